// The biggest, the busiest and the costliest topics, asked for every five seconds while the page is visible.

import * as api from './api.js';
import { card, every, h } from './dom.js';
import { bytes, count, exact } from './format.js';
import { topicHref } from './route.js';

const ROWS = 10;

const members = { text: 'Members', value: topic => count(topic.members), title: topic => exact(topic.members) };
const messages = { text: 'Msg/min', of: 'Messages per minute', value: topic => count(topic.messages_per_minute),
  title: topic => exact(topic.messages_per_minute, 'messages per minute') };
const deliveries = { text: 'Per min', of: 'Deliveries per minute: each message to each member', value: topic => count(topic.deliveries_per_minute),
  title: topic => exact(topic.deliveries_per_minute, 'deliveries per minute') };
const size = { text: 'Per min', of: 'Bytes to members per minute', value: topic => bytes(topic.bytes_per_minute),
  title: topic => exact(topic.bytes_per_minute, 'bytes to members per minute') };

export function top() {
  const lists = [
    { by: 'members', title: 'Biggest topics', empty: 'No topic has members.', columns: [members, messages] },
    { by: 'messages', title: 'Busiest topics', empty: 'No recent messages.', columns: [members, messages] },
    { by: 'deliveries', title: 'Costliest topics by deliveries', empty: 'No recent deliveries.', columns: [deliveries, messages] },
    { by: 'bytes', title: 'Costliest topics by bytes', empty: 'No recent deliveries.', columns: [size, members] },
  ].map(list => {
    const body = h('tbody');
    const note = h('p.empty', {}, 'Loading…');
    const table = h('table.topics', { hidden: true },
      h('caption.hidden', {}, list.title),
      h('thead', {}, h('tr', {}, h('th', { scope: 'col' }, 'Topic'),
        ...list.columns.map(column => h('th.number', { scope: 'col', title: column.of ?? '' }, column.text)))), body);
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
  topics.forEach((found, at) => {
    const { topic } = found;
    const row = list.body.children[at] ?? list.body.appendChild(h('tr', {},
      h('th', { scope: 'row' }, h('a')), h('td.number'), h('td.number')));
    const [name, ...numbers] = row.children;
    const link = name.firstChild;
    if (link.textContent !== topic) {
      link.textContent = topic;
      link.title = topic;
      link.href = topicHref(topic);
    }
    numbers.forEach((cell, column) => {
      cell.textContent = list.columns[column].value(found);
      cell.title = list.columns[column].title(found);
    });
  });
}
