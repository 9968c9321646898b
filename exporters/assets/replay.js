// The page: the filter, the details, and what a key or a click does to them.

const FILTER_DELAY = 120;
// With more turns than this in several sessions, the page begins as a list of sessions.
const OPEN_TURNS_MAX = 300;
// Where the details stand beside the tree and not below it; the style sheet says the same.
const BESIDE = matchMedia('(min-width: 68rem)');

const get = (id) => document.getElementById(id);

class Page {
  constructor() {
    this.sessions = readSessions();
    this.turns = this.sessions.flatMap((session) => session.turns);
    this.text = '';
    this.outcomes = new Set();
    this.pinned = null;
    this.details = new Details(get('details'), {
      turnOf: (trace, span) => this.byId().get(`${trace} ${span}`),
      goTo: (turn) => this.goTo(turn),
    });
    this.tree = new Tree(get('tree'), {
      onActive: (row) => this.showDetails(row),
      onHover: (row) => this.preview(row),
      onToggle: (row, open) => this.toggle(row, open),
    });
    if (this.sessions.length > 1 && this.turns.length > OPEN_TURNS_MAX) {
      this.sessions.forEach((session) => {
        session.open = false;
      });
    }
    const costs = this.turns.some((turn) => turn.attributes.has('raxol.turn.cost_usd'));
    get('tree').classList.toggle('without-cost', !costs);
    this.addOutcomes();
    this.listen();
    this.refresh();
    this.details.show(null);
  }

  byId() {
    this.ids ??= new Map(this.turns.map((turn) => [`${turn.record.trace} ${turn.record.span}`, turn]));
    return this.ids;
  }

  listen() {
    get('filter').addEventListener('input', () => this.typed());
    get('filter').addEventListener('keydown', (event) => this.filterKey(event));
    get('sessions').addEventListener('click', () => this.toggleSessions());
    get('close').addEventListener('click', () => this.closeDetails());
    document.addEventListener('keydown', (event) => this.key(event));
  }

  /** A button for each outcome that occurs. */
  addOutcomes() {
    const counts = new Map();
    for (const turn of this.turns) {
      counts.set(turn.outcome, (counts.get(turn.outcome) ?? 0) + 1);
    }
    const order = (word) => (KNOWN_OUTCOMES.indexOf(word) + KNOWN_OUTCOMES.length + 1) % (KNOWN_OUTCOMES.length + 1);
    const words = [...counts.keys()].sort((one, other) => order(one) - order(other));
    get('outcomes').append(
      ...words.map((word) => this.outcomeButton(outcomeOf(word), counts.get(word), `outcome ${word}`)),
    );
    const damaged = this.turns.filter((turn) => turn.damaged).length;
    if (damaged > 0) {
      const label = make('span', 'outcome bad', icon('damaged'), 'damaged');
      get('outcomes').append(this.outcomeButton(label, damaged, 'damaged'));
    }
  }

  outcomeButton(label, count, key) {
    const button = make('button', 'chip', label, make('span', 'count', amount(count)));
    button.type = 'button';
    button.setAttribute('aria-pressed', 'false');
    button.addEventListener('click', () => {
      const pressed = !this.outcomes.delete(key);
      if (pressed) {
        this.outcomes.add(key);
      }
      button.setAttribute('aria-pressed', String(pressed));
      this.refresh();
    });
    return button;
  }

  matches(turn) {
    const chosen = this.outcomes;
    const fits = chosen.size === 0 || chosen.has(`outcome ${turn.outcome}`) || (turn.damaged && chosen.has('damaged'));
    return fits && (this.text === '' || turn.haystack.includes(this.text));
  }

  /** Show what the filter lets through. */
  refresh(changed = []) {
    const { rows, turns } = rowsOf(this.sessions, (turn) => this.matches(turn));
    this.tree.setRows(rows, changed);
    const all = this.turns.length;
    const spans = this.sessions.reduce((sum, session) => sum + session.spans, 0);
    get('summary').textContent =
      `${plural(this.sessions.length, 'session')}, ${plural(all, 'turn')}, ${plural(spans, 'span')}`;
    get('status').textContent = turns === all ? '' : `${amount(turns)} of ${plural(all, 'turn')}`;
    get('nothing').hidden = rows.length > 0;
    get('nothing').textContent = all === 0 ? 'There are no turns on this page.' : 'No turn matches the filter.';
    get('sessions').hidden = this.sessions.length < 2;
    get('sessions').textContent = this.sessions.some((session) => session.open) ? 'Collapse sessions' : 'Expand sessions';
  }

  typed() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      this.text = get('filter').value.trim().toLowerCase();
      this.refresh();
    }, FILTER_DELAY);
  }

  filterKey(event) {
    if (event.key === 'Escape' && get('filter').value !== '') {
      get('filter').value = '';
      this.typed();
    } else if (event.key === 'Escape' || event.key === 'Enter' || event.key === 'ArrowDown') {
      get('tree').focus();
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  }

  toggle(row, open) {
    row.open = open;
    this.refresh([row]);
    this.tree.activate(this.tree.active);
  }

  toggleSessions() {
    const open = !this.sessions.some((session) => session.open);
    for (const session of this.sessions) {
      session.open = open;
    }
    this.refresh(this.sessions);
  }

  showDetails(row) {
    this.pinned = row;
    this.details.show(row);
    if (!BESIDE.matches) {
      this.tree.reveal();
    }
  }

  /** What the pointer is on, and when it leaves again what was chosen before. */
  preview(row) {
    if (BESIDE.matches) {
      this.details.show(row ?? this.pinned ?? this.details.row);
    }
  }

  closeDetails() {
    const inside = get('details').contains(document.activeElement);
    this.pinned = null;
    this.details.show(null);
    if (inside) {
      get('tree').focus();
    }
  }

  /** Go to a turn, wherever it is, also past the filter. */
  goTo(turn) {
    turn.session.open = true;
    if (!this.matches(turn)) {
      this.clearFilter();
    }
    this.refresh([turn.session]);
    this.tree.activate(turn);
    get('tree').focus();
  }

  clearFilter() {
    get('filter').value = '';
    this.text = '';
    this.outcomes.clear();
    for (const button of get('outcomes').querySelectorAll('button')) {
      button.setAttribute('aria-pressed', 'false');
    }
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) {
      return;
    }
    if (event.key === 'Escape') {
      this.closeDetails();
    } else if (event.key === '/' && event.target !== get('filter')) {
      event.preventDefault();
      get('filter').focus();
      get('filter').select();
    }
  }
}

new Page();
