// A parser of text/event-stream: EventSource can't send an Authorization header, fetch() can.
// Pure: it is fed text and gives events.

/** Longer than any event of this API; what is longer is not an event stream. */
const EVENT_CHARACTERS_MAX = 4_000_000;

/** `push(text)` gives the events that are complete with it: [{event, data, id}]. */
export class EventStreamParser {
  #rest = '';
  #data = [];
  #event = '';
  #id = '';
  #size = 0;
  #isFirst = true;

  push(text) {
    const events = [];
    let buffer = this.#rest + text;
    if (this.#isFirst && buffer) {
      buffer = buffer.replace(/^\uFEFF/, '');
      this.#isFirst = false;
    }
    let start = 0;
    for (;;) {
      const end = lineEnd(buffer, start);
      if (!end) break;
      const event = this.#line(buffer.slice(start, end.at));
      if (event) events.push(event);
      start = end.next;
    }
    this.#rest = buffer.slice(start);
    if (this.#rest.length + this.#size > EVENT_CHARACTERS_MAX) {
      throw new RangeError('an event is too long: this is not the live stream');
    }
    return events;
  }

  #line(line) {
    if (line === '') return this.#dispatch();
    const colon = line.indexOf(':');
    if (colon === 0) return undefined;
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? '' : line.slice(colon + 1).replace(/^ /, '');
    if (field === 'data') {
      this.#data.push(value);
      this.#size += value.length + 1;
    } else if (field === 'event') this.#event = value;
    else if (field === 'id' && !value.includes('\0')) this.#id = value;
    return undefined;
  }

  #dispatch() {
    const lines = this.#data;
    const event = this.#event || 'message';
    this.#data = [];
    this.#event = '';
    this.#size = 0;
    return lines.length ? { event, data: lines.join('\n'), id: this.#id } : undefined;
  }
}

/** Where the line from `start` ends: at LF, CR or CR LF. A CR at the very end waits for its LF. */
function lineEnd(buffer, start) {
  for (let at = start; at < buffer.length; at += 1) {
    const code = buffer.charCodeAt(at);
    if (code === 10) return { at, next: at + 1 };
    if (code === 13) {
      if (at + 1 === buffer.length) return undefined;
      return { at, next: buffer.charCodeAt(at + 1) === 10 ? at + 2 : at + 1 };
    }
  }
  return undefined;
}
