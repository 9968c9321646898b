// The sessions and turns of the page, and a turn's spans when they are asked for. Each is also a row of the tree.

const PARSED_BLOCKS_MAX = 16;
const KNOWN_OUTCOMES = ['completed', 'error', 'canceled', 'incomplete'];

class Session {
  constructor(id) {
    this.kind = 'session';
    this.level = 1;
    this.id = id;
    this.turns = [];
    this.open = true;
    this.spans = 0;
    this.outcomes = new Map();
    this.totals = new Map();
    this.damaged = false;
  }

  get expandable() {
    return true;
  }

  add(turn) {
    this.turns.push(turn);
    this.spans += turn.spans;
    this.damaged ||= turn.damaged;
    this.outcomes.set(turn.outcome, (this.outcomes.get(turn.outcome) ?? 0) + 1);
    for (const key of ['gen_ai.usage.input_tokens', 'gen_ai.usage.output_tokens', 'raxol.turn.cost_usd']) {
      const value = turn.attributes.get(key);
      if (typeof value === 'number') {
        this.totals.set(key, (this.totals.get(key) ?? 0) + value);
      }
    }
  }

  get first() {
    return this.turns.reduce((first, turn) => (turn.start < first ? turn.start : first), this.turns[0].start);
  }

  get last() {
    return this.turns.reduce((last, turn) => (turn.end > last ? turn.end : last), this.turns[0].end);
  }
}

class Turn {
  constructor(record, session) {
    this.kind = 'turn';
    this.level = 2;
    this.record = record;
    this.session = session;
    this.turn = this;
    this.open = false;
    this.attributes = pairs(record.attributes ?? []);
    this.start = BigInt(record.start);
    this.end = BigInt(record.end);
    this.at = 0;
    this.length = Number(this.end - this.start);
    this.outcome = record.stray ? 'no turn' : String(this.attributes.get('raxol.turn.outcome') ?? 'unknown');
    this.damaged = this.attributes.get('raxol.journal.damaged') === true;
    this.spans = (record.count ?? 0) + (record.stray ? 0 : 1);
    this.ruler = { kind: 'ruler', turn: this };
    this.items = null;
    this.searched = null;
  }

  get title() {
    if (this.record.stray) {
      return 'spans without their turn';
    }
    const id = this.attributes.get('raxol.turn.id');
    return id === undefined ? 'turn' : plain(id);
  }

  get expandable() {
    return Boolean(this.record.count || this.record.events);
  }

  /** Everything by which the filter finds the turn, in lower case. */
  get haystack() {
    this.searched ??= [
      this.session.id,
      this.title,
      this.record.name ?? '',
      this.record.span,
      this.record.trace,
      ...[...this.attributes.values()].map(plain),
      ...(this.record.events ?? []).flatMap((event) => [event.name, ...event.attributes.map(plain)]),
      ...(this.record.names ?? []),
    ].join('\n').toLowerCase();
    return this.searched;
  }
}

/** A child of a turn. */
class Span {
  constructor(record, turn) {
    this.kind = 'span';
    this.level = 3;
    this.record = record;
    this.turn = turn;
    this.attributes = pairs(record.attributes);
    this.start = BigInt(record.start);
    this.at = Number(this.start - turn.start);
    this.length = Number(BigInt(record.end) - this.start);
    this.outcome = this.attributes.get('raxol.tool.outcome');
    // The icon says that it is a call.
    this.title = record.name.replace(/^execute_tool (?=.)/s, '');
  }
}

/** Something that happened within a turn. */
class Moment {
  constructor(record, turn) {
    this.kind = 'event';
    this.level = 3;
    this.record = record;
    this.turn = turn;
    this.attributes = pairs(record.attributes);
    this.start = BigInt(record.time);
    this.at = Number(this.start - turn.start);
    this.length = 0;
    this.title = record.name;
  }
}

/** Attributes stand as keys and values in turn. */
function pairs(flat) {
  const found = new Map();
  for (let index = 0; index < flat.length; index += 2) {
    found.set(flat[index], flat[index + 1]);
  }
  return found;
}

/** All sessions in the order in which they first appear. */
function readSessions() {
  const sessions = new Map();
  for (const block of document.querySelectorAll('script.turns')) {
    for (const record of JSON.parse(block.textContent)) {
      let session = sessions.get(record.session);
      if (!session) {
        session = new Session(record.session);
        sessions.set(record.session, session);
      }
      session.add(new Turn(record, session));
    }
    block.remove();
  }
  for (const session of sessions.values()) {
    session.turns.sort(byStart);
  }
  return [...sessions.values()];
}

function byStart(one, other) {
  if (one.start !== other.start) {
    return one.start < other.start ? -1 : 1;
  }
  return Number(one.record.offset ?? Infinity) - Number(other.record.offset ?? Infinity) || 0;
}

const parsedBlocks = new Map();

function readBlock(number) {
  let block = parsedBlocks.get(number);
  if (!block) {
    block = JSON.parse(document.getElementById(`spans-${number}`).textContent);
    if (parsedBlocks.size >= PARSED_BLOCKS_MAX) {
      parsedBlocks.clear();
    }
    parsedBlocks.set(number, block);
  }
  return block;
}

/** The turn's children and events in the order of time. */
function itemsOf(turn) {
  if (!turn.items) {
    const spans = (turn.record.at ?? []).flatMap(([block, entry]) => readBlock(block)[entry]);
    turn.items = [
      ...spans.map((record) => new Span(record, turn)),
      ...(turn.record.events ?? []).map((record) => new Moment(record, turn)),
    ];
    turn.items.sort(byStart);
    turn.items.forEach((item, index) => {
      item.position = index + 1;
      item.siblings = turn.items.length;
    });
  }
  return turn.items;
}

/** The rows to show: sessions, the turns of open sessions that match, the items of open turns. */
function rowsOf(sessions, matches) {
  const rows = [];
  let turns = 0;
  for (const session of sessions) {
    const matching = session.turns.filter(matches);
    if (matching.length === 0) {
      continue;
    }
    turns += matching.length;
    rows.push(session);
    matching.forEach((turn, index) => {
      turn.position = index + 1;
      turn.siblings = matching.length;
      if (session.open) {
        addTurn(rows, turn);
      }
    });
  }
  rows.filter((row) => row.kind === 'session').forEach((session, index, all) => {
    session.position = index + 1;
    session.siblings = all.length;
  });
  return { rows, turns };
}

function addTurn(rows, turn) {
  rows.push(turn);
  if (turn.open && turn.expandable) {
    rows.push(turn.ruler);
    for (const item of itemsOf(turn)) {
      rows.push(item);
    }
  }
}
