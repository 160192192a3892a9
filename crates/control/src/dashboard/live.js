// The samples: history on connecting, then the live stream; connects again by itself.

import * as api from './api.js';
import { add, fromColumns, fromLive } from './history.js';
import { EventStreamParser } from './sse.js';

/** A sample comes every second: when so long none did, the stream is dead. */
const SILENCE_MS_MAX = 6000;
const RETRY_MS = [500, 1000, 2000, 4000, 8000];

/** What views read: `samples` oldest first, `node` about the node, `state` of the connection. */
export const store = { samples: [], node: undefined, state: 'connecting', retryAt: 0, problem: '' };

const listeners = new Set();

/** Calls back after every change, until the function it gives is called. */
export function subscribe(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function changed(what) {
  for (const listener of listeners) listener(what);
}

function become(state, problem = '') {
  store.state = state;
  store.problem = problem;
  changed('state');
}

const sleep = milliseconds => new Promise(done => {
  const timer = setTimeout(end, milliseconds);
  function end() {
    clearTimeout(timer);
    removeEventListener('online', end);
    retry = () => {};
    done();
  }
  addEventListener('online', end);
  retry = end;
});

let retry = () => {};

/** Tries now instead of waiting. */
export const retryNow = () => retry();

/** Runs for as long as the page is open. */
export async function run() {
  for (let failures = 0; ; failures += 1) {
    become('connecting', store.problem);
    try {
      await follow(() => {
        failures = 0;
      });
      become('waiting', 'The node ended the stream.');
    } catch (error) {
      become('waiting', error.message);
    }
    const wait = RETRY_MS[Math.min(failures, RETRY_MS.length - 1)];
    store.retryAt = Date.now() + wait;
    changed('state');
    await sleep(wait);
  }
}

async function follow(onSample) {
  const control = new AbortController();
  let watch;
  const alive = () => {
    clearTimeout(watch);
    watch = setTimeout(() => control.abort(), SILENCE_MS_MAX);
  };
  try {
    const { samples, ...node } = await api.get('/api/history');
    store.node = node;
    store.samples.splice(0, Infinity, ...fromColumns(samples ?? {}));
    changed('history');
    const response = await api.request('/api/live', { signal: control.signal, cache: 'no-store' });
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    const parser = new EventStreamParser();
    alive();
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      alive();
      for (const event of parser.push(value)) {
        if (event.event !== 'sample') continue;
        add(store.samples, fromLive(JSON.parse(event.data)));
        onSample();
        if (store.state !== 'live') become('live');
        changed('sample');
      }
    }
  } catch (error) {
    if (error.name === 'AbortError') throw new Error('The stream went silent.');
    if (error.name === 'TimeoutError') throw new Error('The node took too long to answer.');
    if (error instanceof api.ApiError) throw error;
    throw new Error('The connection to the node broke.');
  } finally {
    clearTimeout(watch);
    control.abort();
  }
}
