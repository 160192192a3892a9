// What applications publish in their own transactions in PostgreSQL. The card is hidden where the node has no outbox. Polled
// every two seconds while the page is visible.

import * as api from './api.js';
import { card, every, h, showLines } from './dom.js';
import { count, duration, exact } from './format.js';
import { store } from './live.js';

/** Rows that are older than this many seconds are a warning. */
const LAG_SECONDS = 5;

function lines({ schema, connected, seconds, draining, error, losses, published, refused, lag_seconds: lag }) {
  const since = seconds === null ? '' : ` for ${duration(seconds)}`;
  const isWaiting = connected && error !== null;
  return [
    ['PostgreSQL', `${connected ? 'connected' : 'disconnected'}${since}`, `${error ?? 'No error'}; lost ${exact(losses, 'times')}`, !connected],
    ['Drained by', draining ? 'this node' : connected ? 'another node' : 'not this node', `The table is ${schema}.outbox`],
    ['Oldest row', lag > 0 ? `${duration(lag)} old` : 'none', isWaiting ? error : '', isWaiting || lag > LAG_SECONDS],
    ['Published', count(published), `${exact(published)} rows by this node since it began`],
    ['Refused', count(refused), `They are in ${schema}.outbox_refused, each with its reason`, refused > 0],
  ];
}

export function outbox() {
  const list = h('dl.keys');
  const element = card('Outbox', {}, list);
  element.hidden = true;
  const poll = every(2000, async signal => {
    element.hidden = !store.node?.has_outbox;
    if (!element.hidden) showLines(list, lines(await api.get('/api/outbox', signal)));
  });
  return { element, close: poll.stop };
}
