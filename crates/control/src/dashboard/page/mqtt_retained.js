// Retained messages: a table with a filter of MQTT, what each says, and deleting them.

import * as api from './api.js';
import { card, confirm, every, h, icon, table, uid } from './dom.js';
import { bytes, duration, exact } from './format.js';
import { answerLine } from './publish.js';
import { topicHref } from './route.js';
import { asked, showRows } from './rows.js';

const STEP = 50;
const ROWS_MAX = 1000;

const path = topic => `/api/mqtt/retained/${api.segment(topic)}`;

/** What a message says, in a dialog. */
async function showMessage(topic, say) {
  let message;
  try {
    message = await api.get(path(topic));
  } catch (error) {
    say({ text: error.message, isError: true });
    return;
  }
  const { data, encoding, published_at: at, sender, qos } = message;
  const heading = uid('dialog');
  const dialog = h('dialog', { 'aria-labelledby': heading, onclose: () => dialog.remove() },
    h('form', { method: 'dialog' },
      h('h2', { id: heading }, topic),
      h('p.muted', {}, [new Date(at).toLocaleString(), `QoS ${qos}`, sender && `by ${sender}`, encoding].filter(Boolean).join(' · ')),
      h('pre.code.payload', { tabindex: 0 }, typeof data === 'string' ? data : JSON.stringify(data)),
      h('div.row.end', {}, h('button', { type: 'submit' }, 'Close'))));
  document.body.append(dialog);
  dialog.showModal();
}

export function retained() {
  const answer = answerLine();
  const why = api.lacks('admin', 'delete retained messages');
  if (why) answer.say({ text: why });
  const note = h('p.empty', {}, 'Loading…');
  const body = h('tbody');
  const list = table('Retained messages', ['Topic', { text: 'Size', number: true }, { text: 'QoS', number: true }, 'Published', 'Ends',
    { text: 'Delete', quiet: true }], body);
  list.classList.add('tall');
  list.hidden = true;
  list.querySelector('table').classList.add('connections', 'retained');
  let shown = STEP;
  const again = asked(() => poll);
  const find = h('input', { type: 'search', placeholder: 'Filter: state/#', 'aria-label': 'Filter of MQTT', maxlength: 254,
    autocomplete: 'off', autocapitalize: 'off', spellcheck: 'false', oninput: () => {
      shown = STEP;
      again.typed();
    } });
  const more = h('button.small', { type: 'button', hidden: true, onclick: () => {
    shown = Math.min(ROWS_MAX, shown * 4);
    again.chosen();
  } }, 'Show more');

  async function remove(topic) {
    const go = await confirm(`Delete the retained message of ${topic}?`, 'Later subscribers get no retained message. Current subscribers are not notified.', 'Delete');
    if (!go) return;
    try {
      await api.remove(path(topic));
      answer.say({ text: `Deleted the message of ${topic}.` });
    } catch (error) {
      answer.say({ text: error.message, isError: true });
    }
    poll.now();
  }

  const rows = {
    key: ({ topic }) => topic,
    mark: ({ topic }) => topic,
    make: ({ topic }) => [h('th', { scope: 'row' }, h('a.name', { href: topicHref(topic), title: topic }, topic)),
      h('td.number', {}, h('button.small', { type: 'button', title: 'Show', onclick: () => showMessage(topic, answer.say) })),
      h('td.number'), h('td'), h('td'),
      h('td.end', {}, h('button.small', { type: 'button', 'aria-label': `Delete the message of ${topic}`, title: why || 'Delete',
        disabled: Boolean(why), onclick: () => remove(topic) }, icon('close'), h('span', {}, 'Delete')))],
    update: (row, message) => {
      const cell = (at, value, title) => Object.assign(row.children[at], { textContent: value, title });
      const { published_at: at, expires_at: ends } = message;
      row.children[1].firstChild.textContent = bytes(message.bytes);
      row.children[1].firstChild.setAttribute('aria-label', `Show the message of ${message.topic}, ${exact(message.bytes, 'bytes')}`);
      cell(2, String(message.qos), '');
      cell(3, `${duration((Date.now() - at) / 1000)} ago`, new Date(at).toLocaleString());
      cell(4, ends === null ? 'never' : `in ${duration((ends - Date.now()) / 1000)}`, ends === null ? '' : new Date(ends).toLocaleString());
    },
  };

  const asks = () => `limit=${shown}${find.value && `&filter=${encodeURIComponent(find.value)}`}`;
  const poll = every(5000, async signal => {
    const query = asks();
    try {
      const found = await api.get(`/api/mqtt/retained?${query}`, signal);
      list.hidden = !found.retained.length;
      showRows(body, found.retained, rows);
      note.hidden = found.retained.length > 0 && found.next === null;
      note.textContent = found.retained.length
        ? `The first ${exact(found.retained.length)}${shown < ROWS_MAX ? '.' : ': a filter shows others.'}`
        : found.next !== null ? 'None among the first topics: make the filter narrower.'
          : find.value ? 'No retained message of such a topic.' : 'No message is retained.';
      more.hidden = found.next === null || shown >= ROWS_MAX;
    } catch (error) {
      if (error.name === 'AbortError') return;
      note.hidden = false;
      note.textContent = error.message;
    }
    // Something else was typed meanwhile.
    if (query !== asks()) again.chosen();
  });
  const element = card('Retained messages', { tools: [find] }, list, h('div.row.foot', {}, note, more), answer.element);
  return { element, close: () => {
    again.stop();
    poll.stop();
  } };
}
