// Calls to this node's API. Who calls is in a cookie that no script can read; the key itself is nowhere.

const SESSION = '/api/session';
const WAIT_MS_MAX = 10_000;

/** What shows the node that a page of its own asks, and no form of another site. */
const OWN = { 'X-Throng-Session': '1' };

/** An answer that is not a success. */
export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** `{key, scopes}` of whoever is signed in, as far as it is known; the key's name is null where none is asked for. */
let caller;
/** Counts sign-ins: a call that was sent before the last one just goes again. */
let signIns = 0;
const listeners = new Set();

export const who = () => caller;

/** Calls back whenever it is known anew who is signed in. */
export const onCaller = listener => listeners.add(listener);

function isNow(next) {
  const isOther = JSON.stringify(next) !== JSON.stringify(caller);
  caller = next;
  if (isOther) for (const listener of listeners) listener();
}

/** Why whoever is signed in may not do what needs `admin` or `publish`; empty if they may. */
export function lacks(needs, what = 'do this') {
  const scopes = caller?.scopes;
  if (!scopes || scopes.includes('admin')) return '';
  if (needs === 'publish' && scopes.some(scope => scope.startsWith('publish:'))) return '';
  const wanted = needs === 'publish' ? 'publish:… or admin' : needs;
  return `The key “${caller.key}” may not ${what}: it requires the scope ${wanted}.`;
}

/** Asks who is signed in. */
export const identify = async signal => isNow(await get(SESSION, signal));

/** Signs in; throws what the node says of the key. */
export async function signIn(key) {
  const response = await send(SESSION, { method: 'POST', body: JSON.stringify({ key }), headers: { ...OWN, 'Content-Type': 'application/json' } });
  if (!response.ok) throw await rejection(response);
  const { key: name, scopes } = await response.json();
  signIns += 1;
  isNow({ key: name, scopes });
}

/** Signs out; what the page shows is for whoever signs in next to see anew. */
export async function signOut() {
  await send(SESSION, { method: 'DELETE', headers: OWN });
  location.reload();
}

let asking;
/** What was thrown when the user declined to sign in. */
let declined;
let ask = async () => {};

/** `prompt(error)` resolves when somebody has signed in, or rejects when nobody does. */
export function askKeyWith(prompt) {
  ask = prompt;
}

/** A user who declined gets no more prompts for what the page does by itself, until this is called. */
export function askAgain() {
  declined = undefined;
}

/** One prompt at a time, whichever call needs it; a call that was sent before a sign-in just goes again. */
async function askKey(error, sent) {
  if (signIns !== sent) return;
  if (declined) throw declined;
  asking ??= ask(error).catch(reason => {
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
  const message = body?.error?.message ?? `the node responded with status ${response.status}`;
  return new ApiError(response.status, body?.error?.code ?? '', message);
}

function connectionError(error) {
  if (error.name === 'AbortError') return error;
  if (error.name === 'TimeoutError') return new ApiError(0, 'late', 'The node took too long to answer.');
  return new ApiError(0, 'unreachable', 'This node does not answer. Is it running?');
}

async function send(path, { signal, wait_ms = WAIT_MS_MAX, ...options }) {
  try {
    return await fetch(path, { credentials: 'same-origin', ...options, signal: within(signal, wait_ms) });
  } catch (error) {
    throw connectionError(error);
  }
}

/**
 * fetch() with the session; asks for a key on 401 and tries again; gives a successful response only.
 * Each try, its body included, has `wait_ms`; 0 is without a limit.
 */
export async function request(path, options = {}) {
  for (;;) {
    const sent = signIns;
    const response = await send(path, options);
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

/** Only ever called because somebody pressed a button: so they may be asked to sign in, too. */
export function post(path, body) {
  askAgain();
  return json(path, { method: 'POST', body: JSON.stringify(body), headers: { ...OWN, 'Content-Type': 'application/json' } });
}

/** The same for what is deleted. */
export function remove(path) {
  askAgain();
  return json(path, { method: 'DELETE', headers: OWN });
}

/** A name as one segment of a path; throws for the two that a browser resolves away, even escaped. */
export function segment(name) {
  if (name !== '.' && name !== '..') return encodeURIComponent(name);
  throw new ApiError(0, 'folded', `A browser can’t request the name “${name}”, because it removes it from the path of a URL. Use curl --path-as-is instead.`);
}

/** What was typed as data: JSON if it is JSON, else text. */
export function data(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
