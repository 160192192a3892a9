// Elements from code. Data becomes text nodes and attributes, never markup.

/** h('a.link', {href}, 'text', child): properties that begin with `on` are listeners. */
export function h(selector, attributes = {}, ...children) {
  const [tag, ...classes] = selector.split('.');
  const element = document.createElement(tag || 'div');
  if (classes.length) element.className = classes.join(' ');
  set(element, attributes);
  element.append(...children.flat().filter(child => child !== undefined && child !== null && child !== false));
  return element;
}

const SVG = 'http://www.w3.org/2000/svg';

/** An icon of the sheet in index.html. */
export function icon(name) {
  const svg = document.createElementNS(SVG, 'svg');
  svg.setAttribute('class', 'icon');
  svg.setAttribute('aria-hidden', 'true');
  const use = document.createElementNS(SVG, 'use');
  use.setAttribute('href', `#icon-${name}`);
  svg.append(use);
  return svg;
}

export function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (value === false || value === undefined || value === null) element.removeAttribute(name);
    else element.setAttribute(name, value === true ? '' : value);
  }
  return element;
}

/** Writes only what changed, so that a selection or a screen reader is not disturbed. */
export function text(element, value, title) {
  if (element.textContent !== value) element.textContent = value;
  if (title !== undefined && element.title !== title) element.title = title;
}

/** Replaces children only if `key` is another than the last time. */
export function fill(element, key, make) {
  if (element.dataset.key === key) return;
  element.dataset.key = key;
  element.replaceChildren(...[make()].flat());
}

let serial = 0;
export const uid = prefix => `${prefix}-${(serial += 1)}`;

/** A card with its heading; further children are its body. */
export function card(title, { level = 2, tools = [], wide = false } = {}, ...body) {
  const id = uid('card');
  return h(`section.card${wide ? '.wide' : ''}`, { 'aria-labelledby': id },
    h('div.card-head', {}, h(`h${level}`, { id }, title), h('div.tools', {}, ...tools)), ...body);
}

/** Shows lines of a name, a value, a title, and whether the value is a warning, in a `dl.keys`. */
export function showLines(list, lines) {
  fill(list, lines.map(([name]) => name).join(), () => lines.map(([name]) => h('div', {}, h('dt', {}, name), h('dd'))));
  lines.forEach(([, value, title, warn], at) => {
    const cell = list.children[at].lastChild;
    fill(cell, String(Boolean(warn)), () => [warn && icon('warn'), h('span')].filter(Boolean));
    text(cell.lastChild, value, title);
  });
}

/** {head: ['Name', {text, number: true}], rows: [[node or text]]}; scrolls sideways if it must. */
export function table(caption, head, body = h('tbody')) {
  const columns = head.map(column => (typeof column === 'string' ? { text: column } : column));
  return h('div.scroll', { tabindex: 0, role: 'region', 'aria-label': caption },
    h('table', {},
      h('caption.hidden', {}, caption),
      h('thead', {}, h('tr', {}, ...columns.map(column =>
        h(column.number ? 'th.number' : 'th', { scope: 'col' },
          column.quiet ? h('span.hidden', {}, column.text) : column.text)))),
      body));
}

/** Opens a dialog; resolves true when its button was pressed. */
export function confirm(title, message, action) {
  const heading = uid('dialog');
  const dialog = h('dialog', { 'aria-labelledby': heading },
    h('form', { method: 'dialog' },
      h('h2', { id: heading }, title),
      h('p', {}, message),
      h('div.row.end', {},
        h('button', { value: '', type: 'submit', autofocus: true }, 'Cancel'),
        h('button.danger', { value: 'yes', type: 'submit' }, action))));
  document.body.append(dialog);
  dialog.showModal();
  return new Promise(done => {
    dialog.addEventListener('close', () => {
      dialog.remove();
      done(dialog.returnValue === 'yes');
    });
  });
}

/** Calls `work(signal)` now and every `period` ms while the page is visible; gives a stop. */
export function every(period, work) {
  const control = new AbortController();
  let timer;
  let busy = false;
  async function round() {
    clearTimeout(timer);
    if (busy || control.signal.aborted) return;
    if (!document.hidden) {
      busy = true;
      try {
        await work(control.signal);
      } catch (error) {
        if (error.name !== 'AbortError') console.warn(error);
      }
      busy = false;
    }
    if (!control.signal.aborted) timer = setTimeout(round, period);
  }
  document.addEventListener('visibilitychange', round, { signal: control.signal });
  round();
  const stop = () => {
    control.abort();
    clearTimeout(timer);
  };
  return { stop, now: round };
}
