// One element for each row of the tree. Every text goes in as text; no markup is ever made of one.

const ICONS = new Map(
  [...document.getElementById('icons').content.children].map((icon) => [icon.dataset.icon, icon]),
);
// How an outcome looks; what is not listed looks like `unknown`.
const LOOKS = new Map([
  ['completed', 'good'],
  ['ok', 'good'],
  ['error', 'bad'],
  ['canceled', 'stopped'],
  ['incomplete', 'open'],
  ['unanswered', 'open'],
  ['orphan', 'odd'],
  ['no turn', 'odd'],
]);
// A session's state: its look, and what it means. Its icon has its own name.
const STATES = new Map([
  ['healthy', ['good', 'Every record of the journal is whole.']],
  ['torn', ['open', 'The last line of the journal is not finished; all records before it are here.']],
  ['truncated', ['bad', 'The end of the journal is lost: records that it once had are not here.']],
  ['damaged', ['bad', 'The journal is damaged: what stands behind the damage is not here.']],
  ['unreadable', ['bad', 'The journal could not be read.']],
]);
const ROLE_ICONS = new Map([['tool', 'tool'], ['message', 'message'], ['reasoning', 'reasoning']]);
const TICKS_MAX = 5;

function make(tag, className = '', ...children) {
  const node = document.createElement(tag);
  if (className) {
    node.className = className;
  }
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== ''));
  return node;
}

function icon(name) {
  return (ICONS.get(name) ?? ICONS.get('unknown')).cloneNode(true);
}

function lookOf(outcome) {
  return LOOKS.get(outcome) ?? 'unknown';
}

/** An outcome: a colour, a shape and a word. */
function outcomeOf(word) {
  return make('span', `outcome ${lookOf(word)}`, icon(lookOf(word)), make('span', '', line(word, 24)));
}

/** A text that is whole under the pointer where its cell cuts it. */
function titled(className, text) {
  const node = make('span', className, text);
  node.title = text;
  return node;
}

function tag(text, look = '') {
  return titled(`tag ${look}`, text);
}

/** A session's state: a shape and a word, and a frame where it is not just healthy. */
function stateOf(state) {
  const [look, meaning] = STATES.get(state) ?? ['', ''];
  const text = line(state, 24);
  const node = state === 'healthy' ? make('span', 'outcome good', make('span', '', text)) : tag(text, look);
  node.prepend(icon(state === 'healthy' ? 'good' : STATES.has(state) ? state : 'unknown'));
  node.title = meaning || text;
  return node;
}

function damage() {
  return stateOf('damaged');
}

/** What is known of a session's state: it was told, or a turn says that the journal is damaged. */
function sessionState(session) {
  return session.state === undefined ? (session.damaged ? damage() : '') : stateOf(session.state);
}

/** The name of an error, when it has one. */
function errorName(attributes) {
  const name = attributes.get('error.type');
  return name === undefined || name === '_OTHER' ? '' : tag(line(plain(name), 40), 'bad');
}

function cell(name, ...children) {
  const node = make('div', `cell c-${name}`, ...children);
  node.setAttribute('role', 'gridcell');
  return node;
}

function wide(node, columns) {
  node.setAttribute('aria-colspan', columns);
  return node;
}

function caret(row) {
  return row.expandable ? icon('caret') : make('span', 'icon');
}

function numbers(attributes) {
  const tokens = (key) => {
    const value = attributes.get(key);
    return value === undefined ? '' : typeof value === 'number' ? amount(value) : line(plain(value), 24);
  };
  const cost = attributes.get('raxol.turn.cost_usd');
  return [
    cell('in', tokens('gen_ai.usage.input_tokens')),
    cell('out', tokens('gen_ai.usage.output_tokens')),
    cell('cost', typeof cost === 'number' ? dollars(cost) : ''),
  ];
}

function sessionRow(session) {
  const chips = [...session.outcomes].map(([outcome, count]) => {
    const chip = make('span', `outcome ${lookOf(outcome)}`, icon(lookOf(outcome)), amount(count));
    const word = make('span', 'unseen', ` ${line(outcome, 24)}`);
    chip.append(word);
    chip.title = `${amount(count)} ${line(outcome, 24)}`;
    return chip;
  });
  const counts = `${plural(session.turns.length, 'turn')}, ${plural(session.spans, 'span')}`;
  const title = titled('title', line(session.title) || '(no id)');
  const name = (text) => cell('name', caret(session), title, titled('quiet', text));
  return [
    ...(session.expandable
      ? [name(counts), wide(cell('chips', ...chips), 3), ...numbers(session.totals)]
      : [wide(name('no turns here'), 7)]),
    wide(cell('notes', sessionState(session), titled('quiet', sessionTime(session))), 2),
    session.size === 'noted' ? wide(cell('remarks', remarks(session)), 9) : '',
  ];
}

/** What is to be said of a session, on a line of its own. */
function remarks(session) {
  const parts = [];
  if (session.trouble) {
    parts.push(make('span', STATES.get(session.state)?.[0] ?? '', line(session.trouble, 400)));
  }
  if (session.held > 0) {
    parts.push(make('span', 'open', stillOpen(session)));
  }
  if (session.otherIds.length > 0) {
    const [first, ...more] = session.otherIds;
    const rest = more.length > 0 ? ` and ${amount(more.length)} more` : '';
    parts.push(make('span', 'quiet', `session id in its records: ${line(first, 120) || '(empty)'}${rest}`));
  }
  const node = make('p', 'remark', ...parts.flatMap((part, index) => (index > 0 ? [' \u00b7 ', part] : [part])));
  node.title = node.textContent;
  return node;
}

function stillOpen(session) {
  return `${plural(session.held, 'turn')} still open, not shown`;
}

/** From when to when, in local time. */
function sessionTime(session) {
  if (!session.expandable) {
    return '';
  }
  const [first, last] = [dateOf(session.first), dateOf(session.last)];
  if (!isDate(first) || !isDate(last)) {
    return '';
  }
  const minute = (date) => clock(date).slice(0, 5);
  const until = day(first) === day(last) ? minute(last) : `${day(last)} ${minute(last)}`;
  return `${day(first)} ${minute(first)}${until === minute(first) ? '' : `\u2009\u2013\u2009${until}`}`;
}

function turnRow(turn) {
  const { attributes } = turn;
  const expected = day(dateOf(turn.session.first));
  return [
    cell('name', caret(turn), titled('title', line(turn.title) || '(no id)'), ...nameTags(attributes)),
    cell('outcome', outcomeOf(turn.outcome)),
    cell('start', shortTime(turn.start, expected)),
    cell('duration', duration(turn.length)),
    ...numbers(attributes),
    cell('evidence', ...evidence(attributes)),
    cell('notes', ...notes(turn)),
  ];
}

function* nameTags(attributes) {
  if (attributes.get('raxol.observed') === true) {
    yield tag('observed');
  }
  const branch = attributes.get('raxol.branch.id');
  if (branch !== undefined) {
    yield tag(`on ${line(plain(branch), 60)}`);
  }
}

function evidence(attributes) {
  const verdict = attributes.get('raxol.turn.evidence');
  if (verdict === undefined || verdict === 'unknown') {
    return [];
  }
  const reason = attributes.get('raxol.turn.evidence.reason');
  const text = line(plain(verdict), 24) + (reason === undefined ? '' : `: ${line(plain(reason), 24)}`);
  const node = make('span', `evidence ${verdict === 'rejected' ? 'bad' : ''}`, text);
  node.title = `evidence ${text}`;
  return [node];
}

function* notes(turn) {
  const { attributes } = turn;
  const name = (key) => line(plain(attributes.get(key)), 60);
  if (turn.damaged) {
    yield damage();
  }
  yield errorName(attributes);
  if (turn.record.failed) {
    yield tag(plural(turn.record.failed, 'failed call'), 'bad');
  }
  if (attributes.has('raxol.observed.reason')) {
    yield tag(name('raxol.observed.reason'));
  }
  if (attributes.get('raxol.turn.synthesized') === true) {
    yield tag('start lost', 'open');
  }
  if (attributes.has('raxol.provenance.trust')) {
    yield tag(name('raxol.provenance.trust'), 'odd');
  }
  if (attributes.get('raxol.clock_skew') === true) {
    yield tag('clock skew', 'open');
  }
  if (attributes.has('gen_ai.request.model')) {
    yield titled('quiet', name('gen_ai.request.model'));
  }
}

/** A length of time that divides the turn into few parts, as people count time. */
function tickOf(ns) {
  const minutes = [60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400];
  for (let power = 1; power < 30 * SECOND; power *= 10) {
    for (const step of [power, 2 * power, 5 * power]) {
      if (ns / step <= TICKS_MAX && step < 60 * SECOND) {
        return step;
      }
    }
  }
  return minutes.map((seconds) => seconds * SECOND).find((step) => ns / step <= TICKS_MAX) ?? ns / TICKS_MAX;
}

/** A part of the turn's time as a percentage, within it. */
function percent(turn, ns) {
  return turn.length > 0 ? Math.min(Math.max((ns / turn.length) * 100, 0), 100) : 0;
}

function track(turn, ...parts) {
  const node = make('div', 'track', ...parts);
  node.style.setProperty('--tick', turn.length > 0 ? `${(tickOf(turn.length) / turn.length) * 100}%` : '100%');
  node.setAttribute('aria-hidden', 'true');
  return node;
}

function rulerRow({ turn }) {
  const marks = [];
  const step = turn.length > 0 ? tickOf(turn.length) : 0;
  for (let at = 0; step > 0 && at <= turn.length * 0.92; at += step) {
    const mark = make('span', 'tick', at === 0 ? '0' : duration(at));
    mark.style.left = `${percent(turn, at)}%`;
    marks.push(mark);
  }
  return [make('div', 'cell c-name'), make('div', 'cell c-bar', track(turn, ...marks))];
}

function bar(span) {
  const node = make('span', `bar ${span.outcome === undefined ? 'plain' : lookOf(span.outcome)}`);
  const from = percent(span.turn, span.at);
  node.style.left = `min(${from}%, 100% - 3px)`;
  node.style.width = `${percent(span.turn, span.at + span.length) - from}%`;
  return node;
}

function marker(turn, at) {
  const node = make('span', 'marker');
  node.style.left = `${percent(turn, at)}%`;
  return node;
}

function spanRow(span) {
  const { turn, record } = span;
  const kind = span.attributes.get('raxol.item.type') ?? record.role;
  const markers = (record.events ?? []).map((event) => marker(turn, Number(BigInt(event.time) - turn.start)));
  return [
    cell(
      'name',
      icon(ROLE_ICONS.get(kind) ?? 'item'),
      titled('title', line(span.title) || '(no name)'),
      errorName(span.attributes),
    ),
    cell('outcome', span.outcome === undefined ? '' : outcomeOf(String(span.outcome))),
    cell('start', after(span.at)),
    cell('duration', duration(span.length)),
    wide(cell('bar', track(turn, bar(span), ...markers)), 5),
  ];
}

function eventRow(moment) {
  const values = [...moment.attributes.values()].map((value) => line(plain(value), 40)).join(' ');
  return [
    wide(cell('name', icon('event'), titled('title', line(moment.title) || '(no name)'), titled('quiet', values)), 2),
    cell('start', after(moment.at)),
    cell('duration'),
    wide(cell('bar', track(moment.turn, marker(moment.turn, moment.at))), 5),
  ];
}

const ROW_MAKERS = { session: sessionRow, turn: turnRow, ruler: rulerRow, span: spanRow, event: eventRow };

/** The element of a row. */
function rowElement(row) {
  const node = make('div', `row ${row.kind}`, ...ROW_MAKERS[row.kind](row));
  node.classList.add(row.size ?? row.kind);
  if (row.kind === 'ruler') {
    node.setAttribute('aria-hidden', 'true');
    return node;
  }
  node.setAttribute('role', 'row');
  node.setAttribute('aria-level', row.level);
  node.setAttribute('aria-posinset', row.position);
  node.setAttribute('aria-setsize', row.siblings);
  if (row.expandable) {
    node.setAttribute('aria-expanded', String(row.open));
  }
  return node;
}
