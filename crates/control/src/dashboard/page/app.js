// The page around the views: address, search, theme, who is signed in, and the state of the connection.

import * as api from './api.js';
import { recolor } from './chart.js';
import * as config from './config.js';
import { h, text } from './dom.js';
import * as help from './help.js';
import { retryNow, run, store, subscribe } from './live.js';
import * as mqtt from './mqtt.js';
import * as overview from './overview.js';
import { parse, target } from './route.js';
import * as topic from './topic.js';
import * as user from './user.js';

const VIEWS = { overview, topic, user, mqtt, config, help };
const by = id => document.getElementById(id);

// The views.

let open;

function show(isFirst = false) {
  const to = parse(location.hash);
  open?.close?.();
  open = to ? VIEWS[to.view].view(to) : {
    title: 'Not found',
    element: h('div.view-head', {}, h('h1', {}, 'This view does not exist'), h('p', {}, h('a', { href: '#/' }, 'To the overview'))) };
  by('view').replaceChildren(open.element);
  open.shown?.();
  document.title = `${open.title} · Throng`;
  for (const link of document.querySelectorAll('nav a')) {
    const here = to && link.getAttribute('href') === `#/${to.view === 'overview' ? '' : to.view}`;
    if (here) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  if (isFirst) return;
  scrollTo(0, 0);
  by('view').focus({ preventScroll: true });
}

addEventListener('hashchange', () => show());
by('skip').addEventListener('click', event => {
  event.preventDefault();
  by('view').focus();
});

// The search.

by('search').addEventListener('submit', event => {
  event.preventDefault();
  const to = target(by('find').value, by('kind').value);
  if (!to) return;
  location.hash = to;
  by('find').value = '';
});

let suggesting;
by('find').addEventListener('input', () => {
  clearTimeout(suggesting);
  const prefix = by('find').value.trim();
  if (!prefix || (by('kind').value === 'user' && !prefix.startsWith('@'))) return;
  suggesting = setTimeout(async () => {
    try {
      const { topics } = await api.get(`/api/topics?limit=10&prefix=${encodeURIComponent(prefix)}`);
      by('found').replaceChildren(...topics.map(found => h('option', { value: found.topic })));
    } catch {
      // Suggestions are a help: without them the search works.
    }
  }, 200);
});

addEventListener('keydown', event => {
  if (event.key !== '/' || event.ctrlKey || event.altKey || event.metaKey) return;
  if (event.target.closest?.('input, textarea, select, dialog')) return;
  event.preventDefault();
  by('find').focus();
});

// The theme, which theme.js chooses.

function showTheme() {
  by('theme').setAttribute('aria-pressed', String(document.documentElement.dataset.theme === 'dark'));
  recolor();
}

by('theme').addEventListener('click', () => document.dispatchEvent(new Event('theme-toggle')));
document.addEventListener('theme-change', showTheme);
showTheme();

// Who is signed in.

let answerKey;

function keyError(message) {
  by('key-error').hidden = !message;
  text(by('key-error'), message);
}

api.askKeyWith(error => new Promise((done, fail) => {
  // Who has not signed in yet did nothing wrong.
  keyError(error.code === 'no_key' ? '' : error.message);
  by('key').value = '';
  answerKey = { done, fail };
  if (!by('key-dialog').open) by('key-dialog').showModal();
}));

by('key-form').addEventListener('submit', async event => {
  event.preventDefault();
  const value = by('key').value.trim();
  if (!value) return;
  by('key-submit').disabled = true;
  try {
    await api.signIn(value);
    by('key').value = '';
    answerKey?.done();
    answerKey = undefined;
    by('key-dialog').close();
  } catch (error) {
    keyError(error.message);
    by('key').select();
  }
  by('key-submit').disabled = false;
});

by('key-dialog').addEventListener('close', () => {
  answerKey?.fail(new api.ApiError(401, 'no_key', 'This node requires an API key.'));
  answerKey = undefined;
});

by('key-cancel').addEventListener('click', () => by('key-dialog').close());

function showCaller() {
  const caller = api.who();
  by('caller').hidden = !caller?.key;
  if (!caller?.key) return;
  text(by('caller-name'), caller.key, `Signed in with the key “${caller.key}”: ${caller.scopes.join(', ')}`);
  by('caller-reads').hidden = !api.lacks('admin');
}

by('sign-out').addEventListener('click', () => api.signOut().catch(error => {
  by('caller-name').title = error.message;
}));

api.onCaller(() => {
  showCaller();
  // What may be done now is another.
  show(true);
});

/** Asks until it is known. */
async function identify() {
  if (api.who()) return;
  try {
    await api.identify();
  } catch {
    // The stream of samples says what is wrong, and its state calls again.
  }
}

// The state of the connection.

const STATES = { live: 'Live', connecting: 'Connecting', waiting: 'Disconnected', paused: 'Paused' };

function showState() {
  const { state, error, isKeyMissing, retryAt } = store;
  const element = by('state');
  if (element.dataset.state !== state) {
    element.dataset.state = state;
    text(by('state-name'), STATES[state]);
  }
  const isDown = state === 'waiting' || (state === 'connecting' && Boolean(error));
  by('offline').hidden = !isDown;
  if (!isDown) return;
  text(by('offline-text'), error);
  by('offline-old').hidden = !store.samples.length;
  // Trying again asks to sign in, also after that was declined.
  text(by('retry'), isKeyMissing ? 'Sign in' : 'Try now');
  const seconds = Math.max(0, Math.ceil((retryAt - Date.now()) / 1000));
  text(by('offline-wait'), state === 'waiting' && seconds ? `Trying again in ${seconds} s.` : 'Trying again…');
}

// An upgrade, while it is under way and until somebody has seen how it went.

let seen;

function showUpgrade() {
  const upgrade = store.samples.at(-1)?.upgrade;
  const said = upgrade?.result && upgrade.text;
  by('upgrade').hidden = !upgrade || said === seen;
  if (by('upgrade').hidden) return;
  const isBad = said && (upgrade.stage === 'failed' || upgrade.lost > 0);
  by('upgrade').classList.toggle('calm', !isBad);
  text(by('upgrade-name'), said ? '' : 'Upgrade:');
  text(by('upgrade-text'), upgrade.text, (upgrade.notes ?? []).join('\n'));
  by('upgrade-bar').hidden = Boolean(said);
  by('upgrade-bar').max = Math.max(1, upgrade.connections);
  by('upgrade-bar').value = upgrade.connections_copied;
  by('upgrade-close').hidden = !said;
}

by('upgrade-close').addEventListener('click', () => {
  seen = by('upgrade-text').textContent;
  showUpgrade();
});
subscribe(what => what === 'sample' && showUpgrade());

by('retry').addEventListener('click', retryNow);
subscribe(what => {
  if (what !== 'state') return;
  showState();
  if (store.state === 'live') identify();
});
setInterval(() => store.state === 'waiting' && showState(), 500);

show(true);
identify();
run();
