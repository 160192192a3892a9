// A user: their connections and topics, a test message, and disconnecting them.

import * as api from './api.js';
import { card, confirm, every, fill, h, text } from './dom.js';
import { connectionTable, disconnect } from './connections.js';
import { exact } from './format.js';
import { answerLine, messageForm } from './publish.js';
import { topicHref } from './route.js';
import { history, messages } from './topic.js';

export function view({ name }) {
  const answer = answerLine();
  const note = h('p.empty', {}, 'Loading…');
  const total = h('span.count', {}, '–');
  const topics = h('ul.chips');
  const noTopics = h('p.empty', {}, 'None.');
  const why = api.lacks('admin', 'disconnect clients');
  const all = h('button.danger', { type: 'button', disabled: true, title: why, onclick: async () => {
    if (!await confirm(`Disconnect ${name}?`, 'All connections of this user are closed; the server tells their clients not to reconnect.', 'Disconnect all')) return;
    answer.say(await disconnect({ user: name }));
    poll.now();
  } }, 'Disconnect all');
  const list = connectionTable('Connections', 'topics', () => poll.now(), answer.say);
  list.element.hidden = true;
  const last = messages(`@${name}`);
  const waiting = history(`@${name}`);
  const form = messageForm('/api/send', { user: name }, 'Send', last.now);
  const poll = every(3000, async signal => {
    try {
      const { count: size, connections } = await api.get(`/api/users/${api.segment(name)}`, signal);
      const shown = connections.length < size ? `, ${exact(connections.length)} shown` : '';
      text(total, size === 1 ? '1 connection' : `${exact(size)} connections${shown}`);
      note.hidden = size > 0;
      note.textContent = 'This user has no connection to this node.';
      list.element.hidden = !size;
      all.disabled = Boolean(why) || !size;
      list.update(connections);
      const names = [...new Set(connections.flatMap(info => info.topics))].sort();
      noTopics.hidden = names.length > 0;
      fill(topics, JSON.stringify(names), () => names.map(topic => h('li', {}, h('a.name', { href: topicHref(topic), title: topic }, topic))));
    } catch (error) {
      if (error.name === 'AbortError') return;
      note.hidden = false;
      note.textContent = error.message;
    }
  });
  const connections = card('Connections', { tools: [total, all] }, note, list.element, answer.element);
  connections.classList.add('main-column');
  const element = h('div', {},
    h('div.view-head', {}, h('p.kicker', {}, 'User'), h('h1.mono', {}, name)),
    h('div.grid.detail', {}, connections,
      h('div.column', {}, card('Send a test message', {}, form), card('Topics', {}, noTopics, topics)), last.element, waiting.element));
  return { title: `User ${name}`, element, close: () => {
    poll.stop();
    last.close();
    waiting.close();
  } };
}
