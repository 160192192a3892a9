// The samples: those of the last 15 minutes on connecting, then the live stream; connects again by itself.

import * as api from './api.js';
import { add, fromColumns, fromLive } from './samples.js';
import { EventStreamParser } from './sse.js';

/** A sample comes every second: when so long none did, the stream is dead. */
const SILENCE_MS_MAX = 6000;
const RETRY_MS = [500, 1000, 2000, 4000, 8000];

/**
 * What views read: `samples` oldest first, `node` about the node, `state` of the connection (live,
 * connecting, waiting, or paused while nobody looks).
 */
export const store = { samples: [], node: undefined, state: 'connecting', retryAt: 0, error: '', isKeyMissing: false };

const listeners = new Set();

/** Calls back after every change, until the function it gives is called. */
export function subscribe(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function changed(what) {
  for (const listener of listeners) listener(what);
}

function become(state, error = '', isKeyMissing = false) {
  Object.assign(store, { state, error, isKeyMissing });
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

/** Tries now instead of waiting, and asks for the key if it must, also who declined before. */
export function retryNow() {
  api.askAgain();
  retry();
}

/** A browser has six HTTP/1.1 connections to a host for all its tabs: one that is hidden gives its up. */
const visible = () => new Promise(done => {
  const check = () => {
    if (document.hidden) return;
    document.removeEventListener('visibilitychange', check);
    done();
  };
  document.addEventListener('visibilitychange', check);
  check();
});

/** Runs for as long as the page is open. */
export async function run() {
  for (let tries = 0; ; tries += 1) {
    await visible();
    become('connecting', store.error, store.isKeyMissing);
    try {
      await stream(() => {
        tries = 0;
      });
      become('waiting', 'The node ended the stream.');
    } catch (error) {
      if (document.hidden) {
        tries = -1;
        become('paused');
        continue;
      }
      become('waiting', error.message, error.status === 401);
    }
    const wait = RETRY_MS[Math.min(tries, RETRY_MS.length - 1)];
    store.retryAt = Date.now() + wait;
    changed('state');
    await sleep(wait);
  }
}

async function stream(onSample) {
  const control = new AbortController();
  const hide = () => document.hidden && control.abort();
  document.addEventListener('visibilitychange', hide);
  let watch;
  const alive = () => {
    clearTimeout(watch);
    watch = setTimeout(() => control.abort(), SILENCE_MS_MAX);
  };
  try {
    const { samples, ...node } = await api.get('/api/samples', control.signal);
    store.node = node;
    store.samples.length = 0;
    for (const sample of fromColumns(samples ?? {})) add(store.samples, sample);
    changed('samples');
    // Armed before: where no connection is free the request itself waits for ever.
    alive();
    const response = await api.request('/api/live', { signal: control.signal, wait_ms: 0, cache: 'no-store' });
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    const parser = new EventStreamParser();
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
    if (error.name === 'AbortError') throw new Error('The stream sent no events.');
    if (error instanceof api.ApiError) throw error;
    throw new Error('The connection to the node was lost.');
  } finally {
    clearTimeout(watch);
    document.removeEventListener('visibilitychange', hide);
    control.abort();
  }
}
