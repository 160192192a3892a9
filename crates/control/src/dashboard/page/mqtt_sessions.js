// MQTT sessions, connected or away: a table with a search, their subscriptions, and ending them.

import * as api from './api.js';
import { card, confirm, every, h, icon, table, uid } from './dom.js';
import { count, duration, exact } from './format.js';
import { answerLine } from './publish.js';
import { href } from './route.js';
import { asked, showRows } from './rows.js';

const STEP = 50;
const ROWS_MAX = 1000;

const path = ({ client, owner }) => `/api/mqtt/sessions/${api.segment(client)}${owner === null ? '' : `?owner=${encodeURIComponent(owner)}`}`;
const named = ({ client, owner }) => (owner === null ? client : `${client} of ${owner}`);
const now = () => Date.now() / 1000;

/** What a session is subscribed to, in a dialog. */
async function showFilters(session, say) {
  let filters;
  try {
    ({ filters } = await api.get(path(session)));
  } catch (error) {
    say({ text: error.message, isError: true });
    return;
  }
  const heading = uid('dialog');
  const row = ({ filter, group, qos, no_local, retain_as_published, id }) => h('li', {},
    h('span.mono', {}, group === null ? filter : `$share/${group}/${filter}`),
    h('span.metas', {}, [`QoS ${qos}`, no_local && 'no local', retain_as_published && 'retain as published', id !== null && `identifier ${id}`].filter(Boolean).join(', ')));
  const dialog = h('dialog', { 'aria-labelledby': heading, onclose: () => dialog.remove() },
    h('form', { method: 'dialog' },
      h('h2', { id: heading }, `Subscriptions of ${named(session)}`),
      filters.length ? h('ul.present', {}, ...filters.map(row)) : h('p', {}, 'None.'),
      h('div.row.end', {}, h('button', { type: 'submit' }, 'Close'))));
  document.body.append(dialog);
  dialog.showModal();
}

export function sessions() {
  const answer = answerLine();
  const why = api.lacks('admin', 'end sessions');
  if (why) answer.say({ text: why });
  const note = h('p.empty', {}, 'Loading…');
  const body = h('tbody');
  const list = table('Sessions', ['Client', 'User', 'State', 'Ends', 'MQTT', 'Address',
    { text: 'Subscriptions', number: true }, { text: 'In flight', number: true }, { text: 'Waiting', number: true },
    { text: 'End', quiet: true }], body);
  list.classList.add('tall');
  list.hidden = true;
  list.querySelector('table').classList.add('connections');
  let shown = STEP;
  const again = asked(() => poll);
  const find = h('input', { type: 'search', placeholder: 'Client begins with', 'aria-label': 'Client identifier begins with',
    maxlength: 254, autocomplete: 'off', autocapitalize: 'off', spellcheck: 'false', oninput: () => {
      shown = STEP;
      again.typed();
    } });
  const which = h('select', { 'aria-label': 'Which sessions', onchange: () => {
    shown = STEP;
    again.chosen();
  } }, h('option', { value: '' }, 'All'), h('option', { value: 'true' }, 'Connected'), h('option', { value: 'false' }, 'Away'));
  const more = h('button.small', { type: 'button', hidden: true, onclick: () => {
    shown = Math.min(ROWS_MAX, shown * 4);
    again.chosen();
  } }, 'Show more');

  async function end(session) {
    const what = session.connected ? 'The server disconnects its client. Its' : 'Its';
    const go = await confirm(`End the session of ${named(session)}?`,
      `${what} subscriptions and queued messages are deleted, and its will is published.`, 'End session');
    if (!go) return;
    try {
      const { disconnected } = await api.remove(path(session));
      answer.say({ text: `Ended the session of ${named(session)}${disconnected ? ', and its connection' : ''}.` });
    } catch (error) {
      answer.say({ text: error.message, isError: true });
    }
    poll.now();
  }

  const rows = {
    key: ({ client, owner }) => JSON.stringify([client, owner]),
    mark: ({ connected, connection, owner }) => [connected, owner, connection?.users, connection?.version, connection?.address],
    make: session => {
      const users = session.owner === null ? session.connection?.users ?? [] : [session.owner];
      const filters = h('button.small', { type: 'button', title: 'Show', onclick: () => showFilters(session, answer.say) });
      return [h('th', { scope: 'row', title: session.client }, session.client),
        h('td', {}, users.length ? h('a.name', { href: href('user', users[0]), title: users.join(', ') }, users[0]) : '–'),
        h('td', {}, h('span.lamp', { 'aria-hidden': 'true' }), h('span')), h('td'),
        h('td', {}, session.connection?.version ?? '–'), h('td.mono', {}, session.connection?.address ?? '–'),
        h('td.number', {}, filters), h('td.number'), h('td.number'),
        h('td.end', {}, h('button.small', { type: 'button', 'aria-label': `End the session of ${named(session)}`, title: why || 'End the session',
          disabled: Boolean(why), onclick: () => end(session) }, icon('close'), h('span', {}, 'End')))];
    },
    update: (row, session) => {
      const cell = (at, value, title) => Object.assign(row.children[at], { textContent: value, title });
      row.classList.toggle('zero', !session.connected);
      row.classList.toggle('here', session.connected);
      row.children[2].title = `since ${new Date(session.since * 1000).toLocaleString()}`;
      row.children[2].lastChild.textContent = `${session.connected ? 'connected' : 'away'} ${duration(now() - session.since)}`;
      const ends = session.connected
        ? { 0: 'with its connection' }[session.expiry_seconds] ?? (session.expiry_seconds === null ? 'never' : `${duration(session.expiry_seconds)} after`)
        : session.expires_at === null ? 'never' : `in ${duration(session.expires_at - now())}`;
      cell(3, ends, session.connected ? 'counted from the end of its connection' : session.expires_at === null ? '' : new Date(session.expires_at * 1000).toLocaleString());
      row.children[6].firstChild.textContent = count(session.subscriptions);
      row.children[6].firstChild.setAttribute('aria-label', `${exact(session.subscriptions)} subscriptions of ${named(session)}`);
      cell(7, count(session.in_flight), 'sent, and not confirmed');
      cell(8, count(session.waiting), session.connected ? 'queued until others are confirmed' : `in addition to messages in its topics after ${session.position}`);
    },
  };

  const asks = () => `limit=${shown}&prefix=${encodeURIComponent(find.value)}${which.value && `&connected=${which.value}`}`;
  const poll = every(5000, async signal => {
    const query = asks();
    try {
      const found = await api.get(`/api/mqtt/sessions?${query}`, signal);
      list.hidden = !found.sessions.length;
      showRows(body, found.sessions, rows);
      note.hidden = found.sessions.length > 0 && found.next === null;
      note.textContent = !found.sessions.length ? 'No MQTT client is here, and none has a session.'
        : `The first ${exact(found.sessions.length)}${shown < ROWS_MAX ? '.' : ': search for the beginning of an identifier to see others.'}`;
      if (!found.sessions.length && (find.value || which.value)) note.textContent = 'No such session.';
      more.hidden = found.next === null || shown >= ROWS_MAX;
    } catch (error) {
      if (error.name === 'AbortError') return;
      note.hidden = false;
      note.textContent = error.message;
    }
    // Something else was typed meanwhile.
    if (query !== asks()) again.chosen();
  });
  const element = card('Sessions', { tools: [which, find] }, list, h('div.row.foot', {}, note, more), answer.element);
  return { element, close: () => {
    again.stop();
    poll.stop();
  } };
}
