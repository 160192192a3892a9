// The biggest and the busiest topics, asked for every five seconds while the page is visible.

import * as api from './api.js';
import { card, every, h } from './dom.js';
import { count, exact } from './format.js';
import { topicHref } from './route.js';

const ROWS = 10;

export function top() {
  const lists = [
    { by: 'members', title: 'Biggest topics', empty: 'No topic has members.' },
    { by: 'messages', title: 'Busiest topics', empty: 'No recent messages.' },
  ].map(list => {
    const body = h('tbody');
    const note = h('p.empty', {}, 'Loading…');
    const table = h('table.topics', { hidden: true },
      h('caption.hidden', {}, list.title),
      h('thead', {}, h('tr', {}, h('th', { scope: 'col' }, 'Topic'), h('th.number', { scope: 'col' }, 'Members'),
        h('th.number', { scope: 'col', title: 'Messages per minute' }, 'Msg/min'))), body);
    return { ...list, body, note, table, element: card(list.title, {}, note, table) };
  });
  const poll = every(5000, async signal => {
    await Promise.all(lists.map(async list => {
      try {
        const { topics } = await api.get(`/api/top?by=${list.by}&limit=${ROWS}`, signal);
        show(list, topics);
      } catch (error) {
        if (error.name === 'AbortError') return;
        list.note.textContent = error.message;
        list.note.hidden = false;
      }
    }));
  });
  return { elements: lists.map(list => list.element), close: poll.stop };
}

function show(list, topics) {
  list.note.textContent = list.empty;
  list.note.hidden = topics.length > 0;
  list.table.hidden = topics.length === 0;
  // A link that has the focus keeps it: rows stay, what they say changes.
  while (list.body.children.length > topics.length) list.body.lastChild.remove();
  topics.forEach(({ topic, members, messages_per_minute: rate }, at) => {
    const row = list.body.children[at] ?? list.body.appendChild(h('tr', {},
      h('th', { scope: 'row' }, h('a')), h('td.number'), h('td.number')));
    const [name, size, busy] = row.children;
    const link = name.firstChild;
    if (link.textContent !== topic) {
      link.textContent = topic;
      link.title = topic;
      link.href = topicHref(topic);
    }
    size.textContent = count(members);
    size.title = exact(members);
    busy.textContent = count(rate);
    busy.title = exact(rate, 'messages per minute');
  });
}
