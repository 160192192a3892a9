// The connections for which most bytes wait, asked for every five seconds while the page is visible.

import * as api from './api.js';
import { card, every, h } from './dom.js';
import { bytes, duration, exact } from './format.js';
import { href } from './route.js';

const ROWS = 10;

export function slowest() {
  const body = h('tbody');
  const note = h('p.empty', {}, 'Loading…');
  const head = ['Waiting', 'For'].map(title => h('th.number', { scope: 'col' }, title));
  const table = h('table.topics', { hidden: true },
    h('caption.hidden', {}, 'Slowest connections'),
    h('thead', {}, h('tr', {}, h('th', { scope: 'col' }, 'User or connection'), ...head)), body);
  const poll = every(5000, async signal => {
    try {
      const { count, connections } = await api.get(`/api/slowest?limit=${ROWS}`, signal);
      note.textContent = count > connections.length ? `${exact(count - connections.length)} more connections have queued bytes.`
        : 'No connection has queued bytes.';
      note.hidden = count > 0 && count === connections.length;
      table.hidden = connections.length === 0;
      body.replaceChildren(...connections.map(row));
    } catch (error) {
      if (error.name === 'AbortError') return;
      note.textContent = error.message;
      note.hidden = false;
    }
  });
  return { element: card('Slowest connections', {}, note, table), close: poll.stop };
}

function row({ id, transport, address, users, outbox_bytes, outbox_age_ms }) {
  const title = `${id}, ${transport}, ${address ?? 'no address'}`;
  const who = users.length ? h('a', { href: href('user', users[0]), title }, users[0]) : h('span', { title }, `${transport} ${id}`);
  const number = (text, title) => h('td.number', { title }, text);
  return h('tr', {}, h('th', { scope: 'row' }, who),
    number(bytes(outbox_bytes), exact(outbox_bytes, 'queued bytes')),
    number(duration(outbox_age_ms / 1000), exact(outbox_age_ms, 'milliseconds since the queue was last empty')));
}
