// The page: the filter, the details, and what a key or a click does to them.

const FILTER_DELAY = 120;
// With more turns than this in several sessions, the page begins as a list of sessions.
const OPEN_TURNS_MAX = 300;
// Where the details stand beside the tree and not below it; the style sheet says the same.
const BESIDE = matchMedia('(min-width: 76rem)');

const get = (id) => document.getElementById(id);

class Page {
  constructor() {
    this.sessions = readSessions();
    this.turns = this.sessions.flatMap((session) => session.turns);
    this.text = '';
    this.outcomes = new Set();
    this.pinned = null;
    this.details = new Details(get('details'), {
      turnOf: (trace, span, session) => this.turnOf(`${trace} ${span}`, session),
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

  /** The turn with these ids: of copies of a session, the one in this copy. */
  turnOf(ids, session) {
    if (!this.byIds) {
      this.byIds = new Map();
      for (const turn of this.turns) {
        const own = `${turn.record.trace} ${turn.record.span}`;
        turn.twin = this.byIds.get(own);
        this.byIds.set(own, turn);
      }
    }
    const found = this.byIds.get(ids);
    for (let turn = found; turn; turn = turn.twin) {
      if (turn.session === session) {
        return turn;
      }
    }
    return found;
  }

  listen() {
    get('filter').addEventListener('input', () => this.typed());
    get('filter').addEventListener('keydown', (event) => this.filterKey(event));
    get('sessions').addEventListener('click', () => this.toggleSessions());
    get('close').addEventListener('click', () => this.closeDetails());
    document.addEventListener('keydown', (event) => this.key(event));
  }

  /** A button for each outcome that occurs, and for each state of sessions that lack something. */
  addOutcomes() {
    const counts = new Map();
    for (const turn of this.turns) {
      counts.set(turn.outcome, (counts.get(turn.outcome) ?? 0) + 1);
    }
    const order = (word) => (KNOWN_OUTCOMES.indexOf(word) + KNOWN_OUTCOMES.length + 1) % (KNOWN_OUTCOMES.length + 1);
    const words = [...counts.keys()].sort((one, other) => order(one) - order(other));
    get('outcomes').append(
      ...words.map((word) => this.outcomeButton(outcomeOf(word), amount(counts.get(word)), `outcome ${word}`)),
    );
    for (const [state, count] of this.broken()) {
      const label = make('span', 'outcome bad', icon(state), state);
      get('outcomes').append(this.outcomeButton(label, plural(count, 'session'), state));
    }
  }

  /** How many sessions are in each state in which something of them is missing. */
  broken() {
    const count = (state) => this.sessions.filter((session) => session.is(state)).length;
    return BROKEN_STATES.map((state) => [state, count(state)]).filter((pair) => pair[1] > 0);
  }

  outcomeButton(label, count, key) {
    const button = make('button', 'chip', label, make('span', 'count', count));
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
    const { session } = turn;
    const fits = chosen.size === 0 || chosen.has(`outcome ${turn.outcome}`) ||
      (turn.damaged && chosen.has('damaged')) || chosen.has(session.state);
    return fits && (this.text === '' || turn.haystack.includes(this.text) || session.words.includes(this.text));
  }

  /** Whether the filter lets a session through that has no turns. */
  matchesEmpty(session) {
    return (this.outcomes.size === 0 || this.outcomes.has(session.state)) && session.words.includes(this.text);
  }

  /** Show what the filter lets through. */
  refresh(changed = []) {
    const { rows, turns, sessions } = rowsOf(this.sessions, this);
    this.tree.setRows(rows, changed);
    const all = this.turns.length;
    const spans = this.sessions.reduce((sum, session) => sum + session.spans, 0);
    const broken = this.broken().map(([state, count]) => `${amount(count)} ${state}`).join(', ');
    const counted = plural(this.sessions.length, 'session') + (broken && ` (${broken})`);
    get('summary').textContent = `${counted}, ${plural(all, 'turn')}, ${plural(spans, 'span')}`;
    get('status').textContent = this.left(turns, sessions);
    get('nothing').hidden = rows.length > 0;
    get('nothing').textContent = this.nothing();
    const expandable = this.sessions.filter((session) => session.expandable);
    get('sessions').hidden = expandable.length < 2;
    get('sessions').textContent = expandable.some((session) => session.open) ? 'Collapse sessions' : 'Expand sessions';
  }

  /** What the filter leaves of all, where it leaves something out. */
  left(turns, sessions) {
    const all = this.turns.length;
    if (turns < all) {
      return `${amount(turns)} of ${plural(all, 'turn')}`;
    }
    return sessions < this.sessions.length ? `${amount(sessions)} of ${plural(this.sessions.length, 'session')}` : '';
  }

  /** Why there is no row. */
  nothing() {
    if (this.sessions.length === 0) {
      return 'There are no sessions on this page.';
    }
    return this.turns.length === 0 ? 'No session matches the filter.' : 'No turn matches the filter.';
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
    const open = !this.sessions.some((session) => session.expandable && session.open);
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
