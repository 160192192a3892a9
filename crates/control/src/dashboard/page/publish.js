// A form that publishes a test message to a topic, or sends one to a user.

import * as api from './api.js';
import { h, icon, uid } from './dom.js';
import { exact } from './format.js';

/** A line that says how it went. */
export function answerLine() {
  const element = h('p.answer', { role: 'status' });
  return { element, say({ text, isError = false }) {
    element.replaceChildren(...(isError ? [icon('warn'), text] : [text]));
    element.classList.toggle('error', isError);
  } };
}

/** `path` and `whom` say where to: ('/api/publish', {topic}) or ('/api/send', {user}). */
export function messageForm(path, whom, button, sent = () => {}) {
  const [eventId, keyId, dataId] = [uid('event'), uid('key'), uid('data')];
  const name = (id, placeholder) =>
    h('input', { id, placeholder, maxlength: 254, autocomplete: 'off', spellcheck: 'false' });
  const [event, key] = [name(eventId, 'message'), name(keyId, 'none')];
  const text = h('textarea.mono', { id: dataId, rows: 4, spellcheck: 'false' });
  text.value = '{"text":"hello"}';
  const kind = h('span.muted', { 'aria-live': 'polite' }, 'JSON');
  text.addEventListener('input', () => {
    const next = typeof api.data(text.value) === 'string' ? 'text' : 'JSON';
    if (kind.textContent !== next) kind.textContent = next;
  });
  const answer = answerLine();
  const why = api.lacks('publish', 'send anything');
  const submit = h('button.primary', { type: 'submit', disabled: Boolean(why), title: why }, button);
  if (why) answer.say({ text: why });
  const element = h('form.stack', { onsubmit: async pressed => {
    pressed.preventDefault();
    submit.disabled = true;
    try {
      const more = { ...(event.value && { event: event.value }), ...(key.value && { key: key.value }) };
      const body = { ...whom, data: api.data(text.value), ...more };
      const { id, members, queued } = await api.post(path, body);
      const to = queued ? 'and goes to its members when it is on disk' : members === undefined ? 'its members could not be counted' : members === 1 ? 'to 1 connection' : `to ${exact(members)} connections`;
      answer.say({ text: `Sent as ${id}, ${to}.` });
      sent();
    } catch (error) {
      answer.say({ text: error.message, isError: true });
    }
    submit.disabled = false;
  } },
  h('div.field', {}, h('label', { for: eventId }, 'Event'), event),
  h('div.field', {}, h('label', { for: keyId }, 'Key'), key),
  h('div.field', {}, h('label', { for: dataId }, 'Data ', kind), text),
  h('div.row', {}, submit, answer.element));
  return element;
}
