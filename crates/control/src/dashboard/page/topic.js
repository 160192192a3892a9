// A topic: its members, who is present, who follows it, its last messages, its history, and a test message.

import * as api from './api.js';
import { card, every, fill, h, text } from './dom.js';
import { connectionTable } from './connections.js';
import { clock, count, exact } from './format.js';
import { answerLine, messageForm } from './publish.js';
import { href } from './route.js';

const MEMBERS_MAX = 100;
const MESSAGES_MAX = 20;
const HISTORY_MAX = 50;
const PRESENT_MAX = 200;
const SUBSCRIBERS_MAX = 20;

function members(name) {
  const answer = answerLine();
  const note = h('p.empty', {}, 'Loading…');
  const total = h('span.count', {}, '–');
  const list = connectionTable('Members', 'users', () => poll.now(), answer.say);
  list.element.hidden = true;
  const element = card('Members', { tools: [total] }, note, list.element, answer.element);
  element.classList.add('main-column');
  const poll = every(5000, async signal => {
    try {
      const found = await api.get(`/api/topics/${api.segment(name)}/members?limit=${MEMBERS_MAX}`, signal);
      text(total, found.members === 1 ? '1 connection' : `${count(found.members)} connections`, exact(found.members, 'connections'));
      const shown = found.connections.length;
      note.hidden = shown > 0 && shown >= found.members;
      note.textContent = shown ? `The first ${exact(shown)} of ${exact(found.members)}.` : 'This topic has no members now.';
      list.element.hidden = !shown;
      list.update(found.connections);
    } catch (error) {
      if (error.name === 'AbortError') return;
      note.hidden = false;
      note.textContent = error.message;
    }
  });
  return { element, close: poll.stop };
}

/** An object in few words: status online · device web */
function brief(meta) {
  const pairs = Object.entries(meta).filter(([name]) => !name.startsWith('phx_'));
  return pairs.map(([name, value]) => `${name} ${typeof value === 'string' ? value : JSON.stringify(value)}`).join(' · ');
}

function presence(name) {
  const note = h('p.empty', {}, 'Loading…');
  const list = h('ul.present', { hidden: true });
  const total = h('span.count');
  const element = card('Presence', { tools: [total] }, note, list);
  const say = message => {
    note.textContent = message;
    note.hidden = !message;
  };
  const poll = every(5000, async signal => {
    try {
      const found = await api.get(`/api/presence/${api.segment(name)}`, signal);
      const users = Object.entries(found.presences ?? {});
      text(total, `${count(found.users)} ${found.users === 1 ? 'user' : 'users'}, ${count(found.connections)} ${found.connections === 1 ? 'connection' : 'connections'}`);
      list.hidden = !users.length;
      say(found.presences === null ? 'Too many users are present to list them.'
        : users.length > PRESENT_MAX ? `The first ${PRESENT_MAX} of ${exact(users.length)}.` : users.length ? '' : 'No user is present.');
      fill(list, JSON.stringify(found.presences), () => users.slice(0, PRESENT_MAX).map(([user, { metas = [] }]) =>
        h('li', {}, h('a.name', { href: href('user', user) }, user),
          h('span.metas', {}, ...metas.map(meta => h('span', {}, brief(meta) || 'online'))))));
    } catch (error) {
      if (error.name === 'AbortError') return;
      list.hidden = true;
      text(total, '');
      say(error.status === 404 ? 'Presence is off for this topic.' : error.message);
    }
  });
  return { element, close: poll.stop };
}

/** Who is subscribed for good, here or not; hidden where nobody is, or nobody knows. */
function subscribers(name) {
  const note = h('p.empty', {}, 'Loading…');
  const list = h('ul.present', { hidden: true });
  const total = h('span.count');
  const element = card('Subscribers', { tools: [total] }, note, list);
  element.hidden = true;
  const poll = every(30_000, async signal => {
    try {
      const found = await api.get(`/api/topics/${api.segment(name)}/subscribers?limit=${SUBSCRIBERS_MAX}`, signal);
      element.hidden = !found.count;
      text(total, `${count(found.count)} ${found.count === 1 ? 'user' : 'users'}`, exact(found.count, 'users'));
      list.hidden = false;
      note.hidden = !found.next;
      note.textContent = `The first ${found.subscribers.length} by name; throng subscriptions followers lists all.`;
      fill(list, JSON.stringify(found.subscribers), () => found.subscribers.map(({ user, connected }) =>
        h('li', {}, h('a.name', { href: href('user', user) }, user), h('span.metas', {}, connected ? 'connected' : ''))));
    } catch (error) {
      if (error.name === 'AbortError') return;
      element.hidden = element.hidden || error.code === 'not_by_topic';
      note.hidden = false;
      note.textContent = error.message;
    }
  });
  return { element, close: poll.stop };
}

function shown({ data, encoding }) {
  if (encoding === 'base64') return [h('span.muted', {}, 'base64 '), data];
  return [typeof data === 'string' ? data : JSON.stringify(data)];
}

const mark = (name, value) => value && h('span.muted', {}, `${name} ${value}`);

function row(message, selector) {
  return h(selector, { 'data-id': message.id },
    h('div.message-head', {}, h('time', { title: new Date(message.published_at).toLocaleString() }, clock(message.published_at)),
      h('span.event', {}, message.event ?? 'message'), h('span.muted.mono', {}, message.id),
      mark('by', message.sender), mark('key', message.key), mark('tags', message.tags?.join(', '))),
    h('div.payload', {}, ...shown(message)));
}

/** Rows that are there stay; those that are new are marked for a moment, but not the first ones. */
function show(list, messages, isFirst) {
  const known = new Map([...list.children].map(child => [child.dataset.id, child]));
  list.hidden = !messages.length;
  list.replaceChildren(...messages.map(message => known.get(message.id) ?? row(message, isFirst ? 'li' : 'li.fresh')));
}

/** A topic's history, the newest first; hidden where the topic has none. */
export function history(topic) {
  const note = h('p.empty', {}, 'Loading…');
  const list = h('ol.messages', { tabindex: 0, 'aria-label': 'History, newest first', hidden: true });
  const total = h('span.count', {}, 'every 5 s');
  const element = card('History', { tools: [total] }, note, list);
  element.classList.add('main-column');
  element.hidden = true;
  let isFirst = true;
  const poll = every(5000, async signal => {
    try {
      const found = await api.get(`/api/history/${api.segment(topic)}?reverse=true&limit=${HISTORY_MAX}`, signal);
      element.hidden = false;
      show(list, found.messages, isFirst);
      isFirst = false;
      note.hidden = found.messages.length > 0 && !found.more;
      note.textContent = found.more ? `The newest ${exact(found.messages.length)}.` : 'The history of this topic has no messages now.';
    } catch (error) {
      if (error.name === 'AbortError') return;
      element.hidden = element.hidden || error.code === 'no_history';
      note.hidden = false;
      note.textContent = error.message;
    }
  });
  return { element, close: poll.stop, now: poll.now };
}

/** The last messages of a topic; those that are new are marked for a moment. */
export function messages(topic) {
  const note = h('p.empty', {}, 'Loading…');
  const list = h('ol.messages', { tabindex: 0, 'aria-label': 'Last messages, newest first', hidden: true });
  const element = card('Last messages', { tools: [h('span.count', {}, 'every 2 s')] }, note, list);
  element.classList.add('main-column');
  let isFirst = true;
  const poll = every(2000, async signal => {
    try {
      const found = await api.get(`/api/messages?topic=${encodeURIComponent(topic)}&limit=${MESSAGES_MAX}`, signal);
      show(list, found.messages, isFirst);
      note.hidden = found.messages.length > 0;
      note.textContent = 'No message of this topic is in the recent window.';
      isFirst = false;
    } catch (error) {
      if (error.name === 'AbortError') return;
      note.hidden = false;
      note.textContent = error.message;
    }
  });
  return { element, close: poll.stop, now: poll.now };
}

export function view({ name }) {
  const last = messages(name);
  const past = history(name);
  const parts = [members(name), presence(name), subscribers(name), last, past];
  const form = card('Publish a test message', {}, messageForm('/api/publish', { topic: name }, 'Publish', () => {
    last.now();
    past.now();
  }));
  const element = h('div', {},
    h('div.view-head', {}, h('p.kicker', {}, 'Topic'), h('h1.mono', {}, name)),
    h('div.grid.detail', {}, parts[0].element, h('div.column', {}, form, parts[1].element, parts[2].element), last.element, past.element));
  return { title: `Topic ${name}`, element, close: () => parts.forEach(part => part.close()) };
}
