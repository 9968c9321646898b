// The panel beside the tree: everything that is known of one row.

const VALUE_CHARS_MAX = 4000;
const IDS_SHOWN_MAX = 20;

class Details {
  /** `goTo` is called with a link's trace and span when its button is pressed. */
  constructor(panel, { turnOf, goTo }) {
    this.panel = panel;
    this.body = panel.querySelector('.details-body');
    this.hint = panel.querySelector('.hint');
    this.turnOf = turnOf;
    this.goTo = goTo;
    this.row = null;
  }

  show(row) {
    if (row === this.row) {
      return;
    }
    this.row = row;
    const parts = row === null ? [] : row.kind === 'session' ? sessionDetails(row) : this.spanDetails(row);
    this.body.replaceChildren(...parts);
    this.body.scrollTop = 0;
    this.body.hidden = row === null;
    this.hint.hidden = row !== null;
    this.panel.classList.toggle('empty', row === null);
  }

  spanDetails(row) {
    const { record } = row;
    return [
      heading(row),
      facts([...timeFacts(row), ...idFacts(row)]),
      ...this.links(record.links ?? [], row.turn.session),
      ...section('Attributes', row.attributes.size > 0 ? attributeTable(row.attributes) : null),
      ...section('Events', eventList(row)),
    ];
  }

  links(links, session) {
    return section('Links', links.length === 0 ? null : make('ul', 'links', ...links.map((link) => {
      const [trace, span] = link;
      const turn = this.turnOf(trace, span, session);
      if (!turn) {
        return make('li', '', 'previous turn, not on this page: ', make('code', '', line(span)));
      }
      const button = make('button', '', icon('back'), `previous turn: ${line(turn.title, 60)}`);
      button.type = 'button';
      button.addEventListener('click', () => this.goTo(turn));
      return make('li', '', button);
    })));
  }
}

function kindOf(row) {
  if (row.kind === 'span') {
    return row.record.role === 'tool' ? 'Tool call' : 'Item';
  }
  return { session: 'Session', turn: 'Turn', event: 'Event' }[row.kind];
}

function heading(row) {
  const name = make('h2', '', line(row.title, 300) || '(no name)');
  return make(
    'div',
    'details-head',
    make('p', 'kind', kindOf(row), row.kind === 'session' ? sessionState(row) : outcomeIn(row)),
    name,
    row.kind === 'turn' && row.damaged ? make('p', '', damage()) : '',
  );
}

function outcomeIn(row) {
  return row.outcome === undefined ? '' : outcomeOf(String(row.outcome));
}

function facts(pairs) {
  const list = make('dl', 'facts');
  for (const [name, value] of pairs) {
    list.append(make('dt', '', name), make('dd', '', typeof value === 'string' ? line(value, 1100) : value));
  }
  return list;
}

function* timeFacts(row) {
  yield ['Start, UTC', utcTime(row.start)];
  const local = localTime(row.start);
  if (local) {
    yield ['Start, local', local];
  }
  if (row.kind !== 'turn') {
    yield ['In the turn', `${row.at < 0 ? '\u2212' : '+'}${exactly(Math.abs(row.at))}`];
  }
  if (row.kind !== 'event') {
    yield ['Duration', exactly(row.length)];
  }
}

function* idFacts(row) {
  const { record, turn } = row;
  if (row.kind === 'event') {
    return;
  }
  if (record.name !== undefined) {
    yield ['Name', record.name];
  }
  yield ['Status', record.error ? 'ERROR' : 'UNSET'];
  yield ['Session', turn.session.title];
  if (record.session !== undefined && record.session !== turn.session.title) {
    yield ['Session id', record.session];
  }
  yield ['Trace id', make('code', '', line(turn.record.trace))];
  yield ['Span id', make('code', '', line(record.span))];
  const parent = row.kind === 'span' ? turn.record.span : record.parent;
  if (parent) {
    yield ['Parent id', make('code', '', line(parent))];
  }
}

function sessionDetails(session) {
  const outcomes = [...session.outcomes].map(([word, count]) => [outcomeOf(word), amount(count)]);
  const names = [
    ['Input tokens', 'gen_ai.usage.input_tokens', amount],
    ['Output tokens', 'gen_ai.usage.output_tokens', amount],
    ['Cost', 'raxol.turn.cost_usd', dollars],
  ];
  const totals = names.filter(([, key]) => session.totals.has(key));
  return [
    heading(session),
    ...section('What is wrong', troubleText(session)),
    facts([
      ...stateFacts(session),
      ...(session.expandable ? [['From', utcTime(session.first)], ['To', utcTime(session.last)]] : []),
      ['Turns', amount(session.turns.length)],
      ['Spans', amount(session.spans)],
      ...totals.map(([name, key, write]) => [name, write(session.totals.get(key))]),
    ]),
    ...section('Outcomes', outcomes.length > 0 ? facts(outcomes) : null),
  ];
}

/** What the state means, and what is wrong where. */
function troubleText(session) {
  const [, text] = session.state === 'healthy' ? [] : STATES.get(session.state) ?? [];
  const meaning = text ? make('p', '', text) : '';
  const trouble = session.trouble ? make('p', 'trouble', ...valueParts(session.trouble)) : '';
  return meaning || trouble ? make('div', '', trouble, meaning) : null;
}

function* stateFacts(session) {
  if (session.state !== undefined) {
    yield ['Directory', session.name];
  }
  const ids = session.otherIds;
  if (ids.length > 0) {
    const names = ids.slice(0, IDS_SHOWN_MAX).map((id) => make('div', '', line(id, 300) || '(empty)'));
    const rest = ids.length - names.length;
    yield ['Session id', make('div', '', ...names, rest > 0 ? `and ${amount(rest)} more` : '')];
  }
  if (session.held > 0) {
    yield ['Still open', `${plural(session.held, 'turn')}, not shown: a writer may still add to the session`];
  }
  if (session.records !== undefined) {
    yield ['Records', amount(session.records)];
  }
}

function section(title, content) {
  return content === null ? [] : [make('section', '', make('h3', '', title), content)];
}

function attributeTable(attributes) {
  const table = make('dl', 'attributes');
  for (const [key, value] of attributes) {
    table.append(make('dt', '', line(key, 1100) || '(no name)'), make('dd', typeof value, ...valueParts(plain(value))));
  }
  return table;
}

/** A value, or its beginning and a button for the rest. */
function valueParts(text) {
  if (text === '') {
    return [make('span', 'quiet', '(empty)')];
  }
  if (text.length <= VALUE_CHARS_MAX) {
    return [shown(text)];
  }
  const button = make('button', 'more', `Show all ${amount(text.length)} characters`);
  button.type = 'button';
  button.addEventListener('click', () => {
    button.replaceWith(...chunks(text, VALUE_CHARS_MAX).slice(1));
  });
  const [begin] = chunks(text.slice(0, VALUE_CHARS_MAX + 1), VALUE_CHARS_MAX);
  begin.className = '';
  return [begin, button];
}

/** The text in pieces, each laid out only when it comes into sight: a megabyte at once takes a browser seconds. */
function chunks(text, size) {
  const pieces = [];
  let end = 0;
  for (let start = 0; start < text.length; start = end) {
    end = Math.min(start + size, text.length);
    if (end < text.length && /[\ud800-\udbff]/.test(text[end - 1])) {
      end += 1;
    }
    pieces.push(make('span', 'chunk', shown(text.slice(start, end))));
  }
  return pieces;
}

function eventList(row) {
  const { events = [], dropped = 0 } = row.record;
  if (events.length === 0 && dropped === 0) {
    return null;
  }
  const items = events.map((event) => {
    const attributes = pairs(event.attributes);
    const at = Number(BigInt(event.time) - row.turn.start);
    return make(
      'li',
      '',
      make('p', '', icon('event'), make('b', '', line(event.name, 300)), make('span', 'quiet', ` at ${after(at)}`)),
      attributes.size > 0 ? attributeTable(attributes) : '',
    );
  });
  if (dropped > 0) {
    items.push(make('li', 'quiet', `and ${amount(dropped)} more that were not kept`));
  }
  return make('ul', 'events', ...items);
}
