// The tree of rows: only those in sight, and the active one, have elements. The tree itself keeps the keyboard's focus
// and names the active row, so that a row may come and go without the focus being lost.

const OVERSCAN = 400;
const PRINTED_ROWS_MAX = 5000;
const ROW_SIZES = ['session', 'noted', 'turn', 'ruler', 'span', 'event'];

class Tree {
  /** `onActive` and `onHover` are told a row or null, `onToggle` which row is to be open or not. */
  constructor(element, { onActive, onHover, onToggle }) {
    this.element = element;
    this.head = element.querySelector('.head');
    this.canvas = element.querySelector('.canvas');
    this.where = element.querySelector('.where');
    this.onActive = onActive;
    this.onHover = onHover;
    this.onToggle = onToggle;
    this.rows = [];
    this.places = new Map();
    this.tops = [0];
    this.elements = new Map();
    this.active = null;
    this.flat = false;
    this.numbered = 0;
    this.pointer = '';
    this.listen();
    this.measure();
  }

  listen() {
    this.element.addEventListener('scroll', () => this.later());
    this.element.addEventListener('keydown', (event) => this.key(event));
    this.element.addEventListener('focus', () => this.focused());
    this.canvas.addEventListener('click', (event) => this.clicked(event));
    this.canvas.addEventListener('pointermove', (event) => this.hovered(event));
    this.canvas.addEventListener('pointerleave', () => this.onHover(null));
    new ResizeObserver(() => this.resized()).observe(this.element);
    window.addEventListener('beforeprint', () => this.flatten(true));
    window.addEventListener('afterprint', () => this.flatten(false));
  }

  /** The rows' heights are the style sheet's, in root ems. */
  measure() {
    const style = getComputedStyle(this.element);
    const em = parseFloat(getComputedStyle(document.documentElement).fontSize);
    const heights = ROW_SIZES.map((size) => [size, Math.round(parseFloat(style.getPropertyValue(`--${size}-row`)) * em)]);
    const changed = !this.heights || heights.some(([size, height]) => this.heights[size] !== height);
    this.heights = Object.fromEntries(heights);
    return changed;
  }

  heightOf(row) {
    return this.heights[row.size ?? row.kind];
  }

  /** Show these rows; those given as changed get new elements. */
  setRows(rows, changed = []) {
    this.rows = rows;
    for (const row of changed) {
      this.forget(row);
    }
    this.place();
    if (this.active && !this.places.has(this.active)) {
      this.activate(null);
    }
    this.render();
  }

  place() {
    this.tops = new Float64Array(this.rows.length + 1);
    this.places = new Map();
    let spoken = 1;
    this.rows.forEach((row, index) => {
      this.places.set(row, index);
      this.tops[index + 1] = this.tops[index] + this.heightOf(row);
      row.number = row.kind === 'ruler' ? 0 : (spoken += 1);
    });
    this.canvas.style.height = `${this.tops[this.rows.length]}px`;
    this.element.setAttribute('aria-rowcount', spoken);
  }

  forget(row) {
    this.elements.get(row)?.remove();
    this.elements.delete(row);
  }

  resized() {
    if (this.measure()) {
      this.place();
      this.elements.forEach((element) => element.remove());
      this.elements.clear();
    }
    this.render();
  }

  later() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = undefined;
      this.render();
    });
  }

  /** The index of the row at this height. */
  indexAt(top) {
    let [low, high] = [0, this.rows.length - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.tops[middle] <= top) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return Math.max(low, 0);
  }

  wanted() {
    if (this.rows.length === 0) {
      return [];
    }
    if (this.flat) {
      return this.rows.slice(0, PRINTED_ROWS_MAX);
    }
    const top = this.element.scrollTop;
    const first = this.indexAt(top - OVERSCAN);
    const last = this.indexAt(top + this.element.clientHeight + OVERSCAN);
    const rows = this.rows.slice(first, last + 1);
    const active = this.active ? this.places.get(this.active) : first;
    if (active < first) {
      rows.unshift(this.active);
    } else if (active > last) {
      rows.push(this.active);
    }
    return rows;
  }

  /** Bring the elements into line with the rows wanted, touching only those that come or go. */
  render() {
    const wanted = this.wanted();
    const kept = new Set(wanted);
    for (const row of [...this.elements.keys()]) {
      if (!kept.has(row)) {
        this.forget(row);
      }
    }
    let next = this.canvas.firstElementChild;
    for (const row of wanted) {
      const element = this.elements.get(row) ?? this.create(row);
      element.style.top = `${this.tops[this.places.get(row)]}px`;
      if (row.number) {
        element.setAttribute('aria-rowindex', row.number);
        element.setAttribute('aria-posinset', row.position);
        element.setAttribute('aria-setsize', row.siblings);
      }
      if (element === next) {
        next = next.nextElementSibling;
      } else {
        this.canvas.insertBefore(element, next);
      }
    }
    this.tellWhere();
  }

  create(row) {
    const element = rowElement(row);
    element.id = row.elementId ??= `row-${(this.numbered += 1)}`;
    element.style.height = `${this.heightOf(row)}px`;
    element.classList.toggle('active', row === this.active);
    this.elements.set(row, element);
    element.row = row;
    return element;
  }

  /** In the head, the session that is scrolled through. */
  tellWhere() {
    const row = this.rows[this.indexAt(this.element.scrollTop)];
    const session = row && row.kind !== 'session' ? row.turn.session : null;
    this.where.textContent = session ? line(session.title, 60) : '';
  }

  /** Make a row the active one, and bring it into sight. */
  activate(row) {
    if (this.active) {
      this.elements.get(this.active)?.classList.remove('active');
    }
    this.active = row;
    if (row) {
      this.render();
      this.elements.get(row).classList.add('active');
      this.element.setAttribute('aria-activedescendant', row.elementId);
      this.reveal(row);
    } else {
      this.element.removeAttribute('aria-activedescendant');
    }
    this.onActive(row);
  }

  reveal(row = this.active) {
    const index = this.places.get(row);
    if (index === undefined) {
      return;
    }
    const room = this.element.clientHeight - this.head.offsetHeight;
    const top = this.tops[index];
    const bottom = this.tops[index + 1];
    if (top < this.element.scrollTop) {
      this.element.scrollTop = top;
    } else if (bottom > this.element.scrollTop + room) {
      this.element.scrollTop = bottom - room;
    }
    this.render();
  }

  /** The focus that a pointer brings is followed by its click, which says what is meant. */
  focused() {
    if (!this.active && this.rows.length > 0 && this.element.matches(':focus-visible')) {
      const row = this.rows[this.indexAt(this.element.scrollTop)];
      this.activate(row.kind === 'ruler' ? row.turn : row);
    }
  }

  rowOf(event) {
    const row = event.target.closest('.row')?.row;
    return row && row.kind !== 'ruler' ? row : null;
  }

  clicked(event) {
    const row = this.rowOf(event);
    // A click that ends the marking of a text is none.
    if (!row || !getSelection().isCollapsed) {
      return;
    }
    this.activate(row);
    if (row.expandable) {
      this.onToggle(row, !row.open);
    }
  }

  /** Rows that move below a resting pointer are not pointed at. */
  hovered(event) {
    const pointer = `${event.clientX} ${event.clientY}`;
    if (event.pointerType === 'mouse' && pointer !== this.pointer) {
      this.onHover(this.rowOf(event));
    }
    this.pointer = pointer;
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target !== this.element) {
      return;
    }
    const action = KEYS[event.key];
    if (action && this.rows.length > 0) {
      event.preventDefault();
      action(this);
    }
  }

  move(step) {
    const last = this.rows.length - 1;
    let index = this.active ? this.places.get(this.active) + step : 0;
    index = Math.min(Math.max(index, 0), last);
    while (this.rows[index].kind === 'ruler') {
      index += step < 0 ? -1 : 1;
    }
    this.activate(this.rows[index]);
  }

  page() {
    return Math.max(Math.floor(this.element.clientHeight / this.heights.turn) - 2, 1);
  }

  /** Right: open, then go in. */
  enter() {
    const row = this.active;
    if (row?.expandable && !row.open) {
      this.onToggle(row, true);
    } else if (row?.expandable) {
      this.move(1);
    }
  }

  /** Left: close, then go out. */
  leave() {
    const row = this.active;
    if (row?.expandable && row.open) {
      this.onToggle(row, false);
    } else if (row && row.kind !== 'session') {
      this.activate(row.kind === 'turn' ? row.session : row.turn);
    }
  }

  /** Enter and space: open or close; of a row with nothing inside show the details. */
  toggle() {
    const row = this.active;
    if (!row) {
      this.move(0);
    } else if (row.expandable) {
      this.onToggle(row, !row.open);
    } else {
      this.activate(row);
    }
  }

  /** On paper all rows are there, one below the other. */
  flatten(flat) {
    this.flat = flat;
    this.element.classList.toggle('flat', flat);
    this.render();
  }
}

const KEYS = {
  ArrowDown: (tree) => tree.move(1),
  j: (tree) => tree.move(1),
  ArrowUp: (tree) => tree.move(-1),
  k: (tree) => tree.move(-1),
  ArrowRight: (tree) => tree.enter(),
  l: (tree) => tree.enter(),
  ArrowLeft: (tree) => tree.leave(),
  h: (tree) => tree.leave(),
  Enter: (tree) => tree.toggle(),
  ' ': (tree) => tree.toggle(),
  Home: (tree) => tree.move(-Infinity),
  End: (tree) => tree.move(Infinity),
  PageDown: (tree) => tree.move(tree.page()),
  PageUp: (tree) => tree.move(-tree.page()),
};
