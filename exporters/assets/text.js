// What people read: times, durations, amounts, and text in which nothing can hide.

const MS = 1e6;
const SECOND = 1e9;
const LINE_CHARS_MAX = 160;

// Letters that are not seen, or change how others are seen; joiners are kept, writing systems and emoji need them.
const HIDDEN = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu;
const KEPT = '\n\t\u200c\u200d';

function shown(text) {
  return text.replace(HIDDEN, (letter) => (KEPT.includes(letter) ? letter : `\\u{${letter.codePointAt(0).toString(16)}}`));
}

/** The text on one line, and not too long. */
function line(text, limit = LINE_CHARS_MAX) {
  const cut = text.length > limit ? `${text.slice(0, limit - 1).replace(/[\ud800-\udbff]$/, '')}\u2026` : text;
  return shown(cut).replace(/[\n\t]/g, ' ');
}

/** An attribute's value as text. Numbers too large for JavaScript come as text already. */
function plain(value) {
  return typeof value === 'object' ? value.number : String(value);
}

function plural(count, noun) {
  return `${amount(count)} ${noun}${count === 1 ? '' : 's'}`;
}

function amount(number) {
  return number.toLocaleString('en');
}

function dollars(value) {
  if (value > 0 && value < 0.0001) {
    return '<$0.0001';
  }
  return `$${value.toFixed(value === 0 || value >= 1 ? 2 : 4)}`;
}

/** A duration for people: `0`, `4 \u00b5s`, `120 ms`, `3.4 s`, `2m 05s`, `1h 02m`. */
function duration(ns) {
  if (ns <= 0) {
    return '0';
  }
  if (ns < MS) {
    return `${Math.max(Math.floor(ns / 1e3), 1)} \u00b5s`;
  }
  if (ns < SECOND) {
    return `${Math.floor(ns / MS)} ms`;
  }
  if (ns < 60 * SECOND) {
    return `${(Math.floor(ns / 1e8) / 10).toFixed(1)} s`;
  }
  const minutes = Math.floor(ns / (60 * SECOND));
  if (minutes < 60) {
    return `${minutes}m ${two(Math.floor(ns / SECOND) % 60)}s`;
  }
  return `${Math.floor(minutes / 60)}h ${two(minutes % 60)}m`;
}

/** A duration to the last digit that is known. */
function exactly(ns) {
  if (ns > 0 && ns < MS) {
    return `${ns / 1e3} \u00b5s`;
  }
  return ns > 0 && ns < SECOND ? `${ns / MS} ms` : `${ns / SECOND} s`;
}

/** How long after the turn's start. */
function after(ns) {
  return ns < 0 ? `\u2212${duration(-ns)}` : `+${duration(ns)}`;
}

function two(number) {
  return String(number).padStart(2, '0');
}

function dateOf(ns) {
  return new Date(Number(ns / 1000000n));
}

function isDate(date) {
  return !Number.isNaN(date.getTime());
}

function day(date) {
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
}

function clock(date) {
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

/** The digits behind the second: six, or nine where they say something. */
function fraction(ns) {
  const digits = String(((ns % 1000000000n) + 1000000000n) % 1000000000n).padStart(9, '0');
  return digits.endsWith('000') ? digits.slice(0, 6) : digits;
}

function utcTime(ns) {
  const date = dateOf(ns);
  if (!isDate(date)) {
    return `${ns} ns`;
  }
  return `${date.toISOString().slice(0, -5).replace('T', ' ')}.${fraction(ns)} UTC`;
}

function localTime(ns) {
  const date = dateOf(ns);
  if (!isDate(date)) {
    return '';
  }
  const ahead = -date.getTimezoneOffset();
  const zone = `${ahead < 0 ? '-' : '+'}${two(Math.floor(Math.abs(ahead) / 60))}:${two(Math.abs(ahead) % 60)}`;
  return `${day(date)} ${clock(date)}.${fraction(ns).slice(0, 3)} ${zone}`;
}

/** The time of day, with the day where that is not the one expected. */
function shortTime(ns, expected) {
  const date = dateOf(ns);
  if (!isDate(date)) {
    return '';
  }
  return day(date) === expected ? clock(date) : `${day(date).slice(5)} ${clock(date).slice(0, 5)}`;
}
