// Calls to this node's API, with the key when there is one.

const KEY = 'throng.key';
const WAIT_MS_MAX = 10_000;

/** An answer that is not a success. */
export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** Stays in this tab alone, and only while it is open. */
export const key = {
  get: () => sessionStorage.getItem(KEY) ?? '',
  set: value => sessionStorage.setItem(KEY, value),
  forget: () => sessionStorage.removeItem(KEY),
};

const headers = () => (key.get() ? { Authorization: `Bearer ${key.get()}` } : {});

let asking;
/** What was thrown when the user declined to enter a key. */
let declined;
let ask = async () => {};

/** `prompt(wasRejected)` resolves when there is a new key to try, or rejects when there is none. */
export function askKeyWith(prompt) {
  ask = prompt;
}

/** A user who declined gets no more prompts for what the page does by itself, until this is called. */
export function askAgain() {
  declined = undefined;
}

/** One prompt at a time, whichever call needs it; a call that was sent with an older key just goes again. */
async function askKey(error, sent) {
  if (key.get() !== sent) return;
  if (declined) throw declined;
  asking ??= ask(error.code === 'bad_key').catch(reason => {
    declined = reason;
    throw reason;
  }).finally(() => {
    asking = undefined;
  });
  await asking;
}

async function rejection(response) {
  let body;
  try {
    body = await response.json();
  } catch {
    body = {};
  }
  const message = body?.error?.message ?? `the node answered ${response.status}`;
  return new ApiError(response.status, body?.error?.code ?? '', message);
}

function connectionError(error) {
  if (error.name === 'AbortError') return error;
  if (error.name === 'TimeoutError') return new ApiError(0, 'late', 'The node took too long to answer.');
  return new ApiError(0, 'unreachable', 'This node does not answer. Is it running?');
}

/**
 * fetch() with the key; asks for one on 401 and tries again; gives a successful response only.
 * Each try, its body included, has `wait_ms`; 0 is without a limit.
 */
export async function request(path, { signal, wait_ms = WAIT_MS_MAX, ...options } = {}) {
  for (;;) {
    const sent = key.get();
    let response;
    try {
      response = await fetch(path, { ...options, signal: within(signal, wait_ms), headers: { ...headers(), ...options.headers } });
    } catch (error) {
      throw connectionError(error);
    }
    if (response.ok) return response;
    const error = await rejection(response);
    if (response.status !== 401) throw error;
    await askKey(error, sent);
  }
}

function within(signal, wait_ms) {
  if (!wait_ms) return signal;
  const late = AbortSignal.timeout(wait_ms);
  return signal && AbortSignal.any ? AbortSignal.any([signal, late]) : (signal ?? late);
}

async function json(path, options) {
  const response = await request(path, options);
  try {
    return await response.json();
  } catch (error) {
    if (error instanceof SyntaxError) throw new ApiError(response.status, 'no_json', 'What answered is not a Throng node.');
    throw connectionError(error);
  }
}

export const get = (path, signal) => json(path, { signal, cache: 'no-store' });

/** Only ever called because somebody pressed a button: so the key may be asked for, too. */
export function post(path, body) {
  askAgain();
  return json(path, { method: 'POST', body: JSON.stringify(body), headers: { 'Content-Type': 'application/json' } });
}

/** A name as one segment of a path; throws for the two that a browser resolves away, even escaped. */
export function segment(name) {
  if (name !== '.' && name !== '..') return encodeURIComponent(name);
  throw new ApiError(0, 'folded', `A browser cannot ask about the name “${name}”: it takes it for a step in the path. Use curl --path-as-is instead.`);
}

/** What was typed as data: JSON if it is JSON, else text. */
export function data(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
