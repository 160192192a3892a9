// For newcomers: what this is, calls to try with curl, and a listener in the page.

import * as api from './api.js';
import { card, h, icon, uid } from './dom.js';
import { messageForm } from './publish.js';

const client = document.body.dataset.client;
const admin = location.origin;
const SHOWN_MAX = 200;

function example(title, command) {
  const copied = h('span.hidden', { role: 'status' });
  const button = h('button.quiet', { type: 'button', title: 'Copy', onclick: async () => {
    try {
      await navigator.clipboard.writeText(command);
      copied.textContent = 'Copied.';
      button.classList.add('done');
      setTimeout(() => button.classList.remove('done'), 1200);
    } catch {
      copied.textContent = 'The browser does not allow copying here.';
    }
  } }, icon('copy'), h('span.hidden', {}, `Copy: ${title}`));
  return h('div.example', {}, h('h3', {}, title), h('div.command', {}, h('pre.code', { tabindex: 0 }, command), button), copied);
}

function listen() {
  const [id, eventId] = [uid('listen'), uid('listen')];
  const name = h('input', { id: eventId, placeholder: 'message', maxlength: 254, autocomplete: 'off', spellcheck: 'false' });
  const topic = h('input', { id, value: 'news', maxlength: 254, required: true, autocomplete: 'off', spellcheck: 'false' });
  const state = h('p.answer', { role: 'status' }, 'Not listening.');
  const list = h('ol.messages', { tabindex: 0, 'aria-live': 'polite', 'aria-label': 'Messages' });
  let source;
  const show = event => {
    const message = JSON.parse(event.data);
    list.prepend(h('li', {}, h('div.message-head', {}, h('span.event', {}, message.event), h('span.muted.mono', {}, message.id)),
      h('div.payload', {}, typeof message.data === 'string' ? message.data : JSON.stringify(message.data))));
    while (list.children.length > SHOWN_MAX) list.lastChild.remove();
  };
  const form = h('form.stack', { onsubmit: event => {
    event.preventDefault();
    source?.close();
    source = new EventSource(`${client}/sse?format=json&topic=${encodeURIComponent(topic.value)}`);
    const to = topic.value;
    state.textContent = 'Connecting.';
    source.onopen = () => { state.textContent = `Listening to ${to}.`; };
    source.onerror = () => {
      state.textContent = source.readyState === EventSource.CLOSED
        ? `${client} does not allow this page to connect.` : `No connection to ${client}; trying again.`;
    };
    source.addEventListener('message', show);
    if (name.value && name.value !== 'message') source.addEventListener(name.value, show);
  } },
  h('div.field', {}, h('label', { for: id }, 'Topic'), topic),
  h('div.field', {}, h('label', { for: eventId }, 'Also events with this name'), name),
  h('div.row', {}, h('button.primary', { type: 'submit' }, 'Listen'), state), list);
  return { element: card('Listen in this page', {}, form), close: () => source?.close() };
}

const link = (path, name) => h('li', {}, h('a', { href: path }, h('code', {}, path)), ` ${name}`);

export function view() {
  const key = api.who()?.key ? " \\\n  -H 'Authorization: Bearer KEY'" : '';
  const call = (path, body) => `curl ${admin}${path}${key}${body ? ` \\\n  -d '${body}'` : ''}`;
  // Empty where the server does not know how a browser reaches its client port.
  const listener = client ? listen() : undefined;
  const element = h('div', {},
    h('div.view-head', {}, h('h1', {}, 'Help'), h('p.muted', {},
      'A push server: this node holds the open connections of your users (SSE, HTTP stream, long poll, WebSocket) and delivers the messages of your application to all subscribers at once.')),
    h('div.grid.two', {},
      card('Listen and publish', {},
        client && example('Listen in one terminal', `curl -N '${client}/sse?topic=news&user=alice'`),
        example(client ? 'Publish to a topic from another' : 'Publish to a topic', call('/api/publish', '{"topic":"news","data":"hello"}')),
        example('Send to one user, on all their connections', call('/api/send', '{"user":"alice","data":"hello, alice"}')),
        example('Send to everyone', call('/api/broadcast', '{"data":"hello, everyone"}')),
        example('Look at a topic and at a user', `${call('/api/topics/news')}\n${call('/api/users/alice')}`),
        example('Close all connections of a user', call('/api/disconnect', '{"user":"alice"}'))),
      h('div.column', {}, listener?.element,
        card('Publish to “news”', {}, messageForm('/api/publish', { topic: 'news' }, 'Publish')),
        card('Elsewhere', {}, h('ul.plain', {},
          link('/api/openapi.json', 'the API’s description (OpenAPI)'),
          link('/api/stats', 'the node in numbers'),
          link('/metrics', 'for Prometheus'))),
        card('Keys', {}, h('dl.keys', {},
          h('div', {}, h('dt', {}, h('kbd', {}, '/')), h('dd', {}, 'search for a topic or user')),
          h('div', {}, h('dt', {}, h('kbd', {}, '←'), ' ', h('kbd', {}, '→')), h('dd', {}, 'in a chart: 5 s back and forward; with Shift 1 s, with the Page keys a minute')),
          h('div', {}, h('dt', {}, h('kbd', {}, 'Home'), ' ', h('kbd', {}, 'End')), h('dd', {}, 'in a chart: the oldest, the newest')))))));
  return { title: 'Help', element, close: () => listener?.close() };
}
