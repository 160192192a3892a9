// A table of connections, and closing them: of a topic or of a user.

import * as api from './api.js';
import { confirm, h, icon, table } from './dom.js';
import { bytes, duration, exact } from './format.js';
import { href, topicHref } from './route.js';

/** Names that fit into a cell; the rest is counted. */
const SHOWN = 3;

function links(names, toHref) {
  const shown = names.slice(0, SHOWN).map(name => h('a.name', { href: toHref(name), title: name }, name));
  const rest = names.length - SHOWN;
  if (rest > 0) shown.push(h('span.muted', { title: names.slice(SHOWN).join('\n') }, `+ ${rest}`));
  return h('span.names', {}, ...(shown.length ? shown : ['–']));
}

/** `column` is `users` or `topics`; `changed` is called after one was closed. */
export function connectionTable(caption, column, changed, say) {
  const body = h('tbody');
  const element = table(caption, ['Connection', 'Transport', column === 'users' ? 'User' : 'Topics',
    { text: 'Age', number: true }, 'Address', { text: 'Sent', number: true }, { text: 'Received', number: true },
    { text: 'Outbox', number: true }, { text: 'Disconnect', quiet: true }], body);
  element.classList.add('tall');
  element.querySelector('table').classList.add('connections');

  async function close(id) {
    const go = await confirm('Disconnect this connection?', `The client of ${id} is told not to come back.`, 'Disconnect');
    if (!go) return;
    say(await disconnect({ connection: id }));
    changed();
  }

  return { element, update(connections) {
    const kept = new Map([...body.children].map(row => [row.dataset.id, row]));
    body.replaceChildren(...connections.map(info => {
      const row = kept.get(info.id) ?? h('tr', { 'data-id': info.id });
      const key = JSON.stringify([info.transport, info.address, info[column]]);
      if (row.dataset.key !== key) {
        row.dataset.key = key;
        row.replaceChildren(
          h('th', { scope: 'row' }, info.id), h('td', {}, info.transport),
          h('td', {}, column === 'users' ? links(info.users, name => href('user', name)) : links(info.topics, topicHref)),
          h('td.number'), h('td.mono', {}, info.address ?? '–'), h('td.number'), h('td.number'), h('td.number'),
          h('td.end', {}, h('button.small', { type: 'button', 'aria-label': `Disconnect ${info.id}`,
            title: 'Disconnect', onclick: () => close(info.id) },
            icon('close'), h('span', {}, 'Disconnect'))));
      }
      const cell = (at, value, title) => Object.assign(row.children[at], { textContent: value, title });
      cell(3, duration(info.age_seconds), `since ${new Date(info.opened_at * 1000).toLocaleString()}`);
      cell(5, bytes(info.bytes_sent), exact(info.bytes_sent, 'bytes'));
      cell(6, bytes(info.bytes_received), exact(info.bytes_received, 'bytes'));
      cell(7, info.outbox_bytes ? bytes(info.outbox_bytes) : '0', exact(info.outbox_bytes, 'bytes wait'));
      return row;
    }));
  } };
}

/** What is said about it. */
export async function disconnect(whom) {
  try {
    const { disconnected } = await api.post('/api/disconnect', whom);
    return { text: disconnected ? `Disconnected ${exact(disconnected)}.` : 'Nothing to disconnect: it was gone already.' };
  } catch (error) {
    return { text: error.message, isProblem: true };
  }
}
