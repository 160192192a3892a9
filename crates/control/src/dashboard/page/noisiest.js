// The users, addresses and keys that do most, asked for every five seconds while the page is visible.

import * as api from './api.js';
import { card, every, h } from './dom.js';
import { bytes, count, exact } from './format.js';
import { topicHref } from './route.js';

const ROWS = 10;

export function noisiest() {
  const body = h('tbody');
  const note = h('p.empty', {}, 'Loading…');
  const head = ['Commands/s', 'Bytes/s', 'Refused/s'].map(title => h('th.number', { scope: 'col' }, title));
  const table = h('table.topics', { hidden: true },
    h('caption.hidden', {}, 'Noisiest'),
    h('thead', {}, h('tr', {}, h('th', { scope: 'col' }, 'User, address or key'), ...head)), body);
  const poll = every(5000, async signal => {
    try {
      const { noisiest: rows } = await api.get(`/api/noisiest?limit=${ROWS}`, signal);
      note.textContent = 'No client has sent requests lately.';
      note.hidden = rows.length > 0;
      table.hidden = rows.length === 0;
      body.replaceChildren(...rows.map(row));
    } catch (error) {
      if (error.name === 'AbortError') return;
      note.textContent = error.message;
      note.hidden = false;
    }
  });
  return { element: card('Noisiest', {}, note, table), close: poll.stop };
}

function row({ kind, name, commands_per_second, bytes_per_second, refusals_per_second }) {
  const who = kind === 'user' ? h('a', { href: topicHref(`@${name}`), title: name }, name) : h('span', {}, `${kind} ${name}`);
  const number = (text, title) => h('td.number', { title }, text);
  return h('tr', {}, h('th', { scope: 'row' }, who),
    number(count(commands_per_second), exact(commands_per_second, 'requests and commands a second')),
    number(bytes(bytes_per_second), exact(bytes_per_second, 'bytes a second')),
    number(count(refusals_per_second), exact(refusals_per_second, 'rejections by a limit a second')));
}
