// Calls to this node's API, with the key when one was given.

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

/** Kept for this tab alone, and only while it is open. */
export const key = {
  get: () => sessionStorage.getItem(KEY) ?? '',
  set: value => sessionStorage.setItem(KEY, value),
  forget: () => sessionStorage.removeItem(KEY),
};

const headers = () => (key.get() ? { Authorization: `Bearer ${key.get()}` } : {});

let asking;
let ask = async () => {};

/** `prompt(wasWrong)` resolves when there is a new key to try, or rejects when there is none. */
export function askKeyWith(prompt) {
  ask = prompt;
}

/** One question at a time, whoever asks; a call that was sent with an older key just goes again. */
function askKey(error, sent) {
  if (key.get() !== sent) return Promise.resolve();
  asking ??= ask(error.code === 'bad_key').finally(() => {
    asking = undefined;
  });
  return asking;
}

async function failure(response) {
  let body;
  try {
    body = await response.json();
  } catch {
    body = {};
  }
  const message = body?.error?.message ?? `the node answered ${response.status}`;
  return new ApiError(response.status, body?.error?.code ?? '', message);
}

/** fetch() with the key; asks for one on 401 and tries again; gives a successful response only. */
export async function request(path, options = {}) {
  for (;;) {
    const sent = key.get();
    let response;
    try {
      response = await fetch(path, { ...options, headers: { ...headers(), ...options.headers } });
    } catch (error) {
      if (error.name === 'AbortError' || error.name === 'TimeoutError') throw error;
      throw new ApiError(0, 'unreachable', 'This node does not answer. Is it running?');
    }
    if (response.ok) return response;
    const error = await failure(response);
    if (response.status !== 401) throw error;
    await askKey(error, sent);
  }
}

function within(signal) {
  const late = AbortSignal.timeout(WAIT_MS_MAX);
  return signal && AbortSignal.any ? AbortSignal.any([signal, late]) : (signal ?? late);
}

export async function get(path, signal) {
  const response = await request(path, { signal: within(signal), cache: 'no-store' });
  return response.json();
}

export async function post(path, body) {
  const response = await request(path, {
    method: 'POST', body: JSON.stringify(body), headers: { 'Content-Type': 'application/json' } });
  return response.json();
}

/** What was typed as data: JSON if it is JSON, else text. */
export function data(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
