// Topics' history in memory, and the store on disk. Hidden where there is neither.

import * as api from './api.js';
import { card, every, h, showLines, text } from './dom.js';
import { bytes, count, exact, milliseconds } from './format.js';

/** Name, value, title, and whether it is a warning. */
function lines({ history, store }) {
  const shown = [
    ['In memory', `${count(history.messages)} messages, ${bytes(history.bytes)}`, exact(history.bytes, 'bytes')],
    ['Topics', count(history.topics), exact(history.topics)],
    ['Came back', `${count(history.recovered)} recovered, ${count(history.unrecovered)} too late`,
      `${exact(history.recovered)} clients recovered all missed messages, ${exact(history.unrecovered)} did not`],
    ['Acknowledged', `${count(history.acknowledged)}, ${count(history.redelivered)} delivered again`,
      `${exact(history.dead_lettered)} moved to a dead-letter topic, ${exact(history.dropped)} dropped`],
  ];
  if (history.lost) shown.push(['Lost', `${count(history.lost)} messages`, 'The store could not write them', true]);
  if (!store) return [...shown, ['Store', 'none: memory only', 'throng serve --data DIR']];
  return [...shown,
    ['Store', store.failed ? 'can’t write' : `${count(store.messages)} messages, ${bytes(store.file_bytes)}`,
      store.failed ?? exact(store.file_bytes, 'bytes'), Boolean(store.failed)],
    ['Commits', `${count(store.commits)}, ${milliseconds(store.commit_ms_mean)} each`,
      `the slowest ${milliseconds(store.commit_ms_max)}`],
    ['Waiting', `${count(store.queue_messages)} writes, ${bytes(store.queue_bytes)}`, exact(store.queue_bytes, 'bytes')],
  ];
}

export function history() {
  const list = h('dl.keys');
  const note = h('p.answer.error', { role: 'status', hidden: true });
  const element = card('History and store', {}, list, note);
  element.hidden = true;
  const poll = every(5000, async signal => {
    try {
      const stats = await api.get('/api/stats', signal);
      const { history, store } = stats;
      element.hidden = !store && !history.published && !history.messages;
      showLines(list, lines(stats));
      note.hidden = !store?.failed;
      text(note, store?.failed ?? '');
    } catch (error) {
      if (error.name !== 'AbortError') console.warn(error);
    }
  });
  return { element, close: poll.stop };
}
