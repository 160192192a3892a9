// A table of connections, and closing them: of a topic or of a user.

import * as api from './api.js';
import { confirm, h, icon, table } from './dom.js';
import { bytes, duration, exact } from './format.js';
import { href, topicHref } from './route.js';

/** Names that fit into a cell; the rest is counted. */
const SHOWN = 3;

/** `open` has the ids of connections that show all their names: rows are made anew when they change. */
function links(id, names, toHref, open) {
  const link = name => h('a.name', { href: toHref(name), title: name }, name);
  const rest = names.length - SHOWN;
  const cell = h('span.names', {});
  const show = () => {
    const isOpen = open.has(id);
    cell.classList.toggle('open', isOpen);
    const shown = (isOpen ? names : names.slice(0, SHOWN)).map(link);
    cell.replaceChildren(...(shown.length ? shown : ['–']), ...(rest > 0 ? [more] : []));
    more.textContent = isOpen ? 'Fewer' : `+ ${rest}`;
    more.setAttribute('aria-expanded', String(isOpen));
    more.setAttribute('aria-label', isOpen ? `Fewer names of ${id}` : `${rest} more names of ${id}`);
  };
  const more = h('button.small.more', { type: 'button', onclick: () => {
    if (!open.delete(id)) open.add(id);
    show();
    more.focus();
  } });
  show();
  return cell;
}

/** `column` is `users` or `topics`; `changed` is called after one was closed. */
export function connectionTable(caption, column, changed, say) {
  const body = h('tbody');
  const why = api.lacks('admin', 'disconnect clients');
  if (why) say({ text: why });
  const open = new Set();
  const element = table(caption, ['Connection', 'Transport', column === 'users' ? 'User' : 'Topics',
    { text: 'Age', number: true }, 'Address', { text: 'Sent', number: true }, { text: 'Received', number: true },
    { text: 'Outbox', number: true }, { text: 'Disconnect', quiet: true }], body);
  element.classList.add('tall');
  element.querySelector('table').classList.add('connections');

  async function close(id) {
    const go = await confirm('Disconnect this connection?', `The server tells the client of ${id} not to reconnect.`, 'Disconnect');
    if (!go) return;
    say(await disconnect({ connection: id }));
    changed();
  }

  return { element, update(connections) {
    const known = new Map([...body.children].map(row => [row.dataset.id, row]));
    const rows = connections.map(info => {
      const row = known.get(info.id) ?? h('tr', { 'data-id': info.id });
      const key = JSON.stringify([info.transport, info.address, info[column]]);
      if (row.dataset.key !== key) {
        row.dataset.key = key;
        row.replaceChildren(
          h('th', { scope: 'row' }, info.id), h('td', {}, info.transport),
          h('td', {}, column === 'users' ? links(info.id, info.users, name => href('user', name), open) : links(info.id, info.topics, topicHref, open)),
          h('td.number'), h('td.mono', {}, info.address ?? '–'), h('td.number'), h('td.number'), h('td.number'),
          h('td.end', {}, h('button.small', { type: 'button', 'aria-label': `Disconnect ${info.id}`,
            title: why || 'Disconnect', disabled: Boolean(why), onclick: () => close(info.id) },
            icon('close'), h('span', {}, 'Disconnect'))));
      }
      const cell = (at, value, title) => Object.assign(row.children[at], { textContent: value, title });
      cell(3, duration(info.age_seconds), `since ${new Date(info.opened_at * 1000).toLocaleString()}`);
      cell(5, bytes(info.bytes_sent), exact(info.bytes_sent, 'bytes'));
      cell(6, bytes(info.bytes_received), exact(info.bytes_received, 'bytes'));
      cell(7, info.outbox_bytes ? bytes(info.outbox_bytes) : '0', exact(info.outbox_bytes, 'queued bytes'));
      return row;
    });
    // Rows that are put anew lose the focus that is in them.
    const focused = document.activeElement;
    if (rows.length !== body.children.length || rows.some((row, at) => row !== body.children[at])) body.replaceChildren(...rows);
    if (document.activeElement !== focused && body.contains(focused)) focused.focus({ preventScroll: true });
  } };
}

/** Disconnects a user or a connection; resolves to the line that says how it went. */
export async function disconnect(whom) {
  try {
    const { disconnected } = await api.post('/api/disconnect', whom);
    return { text: disconnected ? `Disconnected ${exact(disconnected)}.` : 'Nothing to disconnect: the connection had already ended.' };
  } catch (error) {
    return { text: error.message, isError: true };
  }
}
