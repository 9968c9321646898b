// The sessions and turns of the page, and a turn's spans when they are asked for. Each is also a row of the tree.

const PARSED_BLOCKS_MAX = 16;
const KNOWN_OUTCOMES = ['completed', 'error', 'canceled', 'incomplete'];
const BROKEN_STATES = ['damaged', 'truncated', 'unreadable'];

/** A session as it was told, with its state; or turns of one id of which no more is known. */
class Session {
  constructor({ name, state, trouble = '', records, held = 0 }, title) {
    this.kind = 'session';
    this.level = 1;
    this.name = name;
    this.title = title;
    this.state = state;
    this.trouble = trouble;
    this.records = records;
    this.held = held;
    this.ids = new Set();
    this.turns = [];
    this.open = true;
    this.spans = 0;
    this.outcomes = new Map();
    this.totals = new Map();
    this.damaged = false;
    this.first = this.last = undefined;
  }

  get expandable() {
    return this.turns.length > 0;
  }

  /** The ids in the records where they are not just the directory's name. */
  get otherIds() {
    return this.ids.size === 1 && this.ids.has(this.name) ? [] : [...this.ids];
  }

  /** The row is higher where something is to be said of the session. */
  get size() {
    return this.trouble || this.held > 0 || this.otherIds.length > 0 ? 'noted' : 'session';
  }

  /** Whether this is the session's state; where none was told the turns may know. */
  is(state) {
    return this.state === undefined ? state === 'damaged' && this.damaged : this.state === state;
  }

  /** By what the filter finds the session with all its turns, in lower case. */
  get words() {
    const state = BROKEN_STATES.includes(this.state) ? this.state : '';
    this.searched ??= [this.title, ...this.ids, state, this.trouble].join('\n').toLowerCase();
    return this.searched;
  }

  add(turn) {
    this.turns.push(turn);
    this.ids.add(turn.record.session);
    this.spans += turn.spans;
    this.damaged ||= turn.damaged;
    this.outcomes.set(turn.outcome, (this.outcomes.get(turn.outcome) ?? 0) + 1);
    this.first = this.first === undefined || turn.start < this.first ? turn.start : this.first;
    this.last = this.last === undefined || turn.end > this.last ? turn.end : this.last;
    for (const key of ['gen_ai.usage.input_tokens', 'gen_ai.usage.output_tokens', 'raxol.turn.cost_usd']) {
      const value = turn.attributes.get(key);
      if (typeof value === 'number') {
        this.totals.set(key, (this.totals.get(key) ?? 0) + value);
      }
    }
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

  /** Everything by which the filter finds the turn beside its session's words, in lower case. */
  get haystack() {
    this.searched ??= [
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

/** What stands in the page's blocks of a kind, which are done with then. */
function* recordsOf(kind) {
  for (const block of document.querySelectorAll(`script.${kind}`)) {
    yield* JSON.parse(block.textContent);
    block.remove();
  }
}

/** All sessions that were told, each with as many turns as it had; then those of which only turns are known. */
function readSessions() {
  const sessions = [];
  const turns = recordsOf('turns');
  const titles = new Map();
  for (const record of recordsOf('sessions')) {
    const session = new Session(record, titleOf(record.name, titles));
    for (let left = record.entries; left > 0; left -= 1) {
      session.add(new Turn(turns.next().value, session));
    }
    sessions.push(session);
  }
  const byId = new Map();
  for (const record of turns) {
    let session = byId.get(record.session);
    if (!session) {
      session = new Session({ name: record.session }, titleOf(record.session, titles));
      byId.set(record.session, session);
      sessions.push(session);
    }
    session.add(new Turn(record, session));
  }
  for (const session of sessions) {
    session.turns.sort(byStart);
  }
  return sessions;
}

/** The name, or with a number behind it when a session before has it. */
function titleOf(name, titles) {
  let title = name;
  for (let number = titles.get(name) ?? 1; titles.has(title); title = `${name} (${number})`) {
    number += 1;
    titles.set(name, number);
  }
  titles.set(title, 1);
  return title;
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

/** The rows to show: sessions, the turns of open sessions that the filter lets through, the items of open turns. */
function rowsOf(sessions, filter) {
  const rows = [];
  let turns = 0;
  for (const session of sessions) {
    const matching = session.turns.filter((turn) => filter.matches(turn));
    if (matching.length === 0 && (session.turns.length > 0 || !filter.matchesEmpty(session))) {
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
  const shown = rows.filter((row) => row.kind === 'session');
  shown.forEach((session, index) => {
    session.position = index + 1;
    session.siblings = shown.length;
  });
  return { rows, turns, sessions: shown.length };
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
