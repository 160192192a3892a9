// The configuration in force.

import * as api from './api.js';
import { card, h } from './dom.js';
import { store, subscribe } from './live.js';
import { pieces } from './toml.js';

export function view() {
  const control = new AbortController();
  const note = h('p.empty', {}, 'Loading…');
  const again = h('button.small', { type: 'button', hidden: true, onclick: () => {
    api.askAgain();
    load();
  } }, 'Try again');
  const code = h('pre.code', { tabindex: 0, role: 'region', 'aria-label': 'Configuration as TOML', hidden: true });
  const find = h('input', { type: 'search', placeholder: 'Filter', 'aria-label': 'Filter the lines', autocomplete: 'off', spellcheck: 'false' });
  let lines = [];
  find.addEventListener('input', () => {
    const wanted = find.value.trim().toLowerCase();
    let any = false;
    for (const [line, words] of lines) {
      line.hidden = !words.includes(wanted);
      any ||= !line.hidden;
    }
    note.hidden = any;
    note.textContent = 'No line matches.';
  });
  let isLoading = false;
  const load = async () => {
    if (isLoading) return;
    isLoading = true;
    again.hidden = true;
    try {
      const { toml } = await api.get('/api/config', control.signal);
      let table = '';
      lines = toml.replace(/\n$/, '').split('\n').map(text => {
        if (/^\s*\[[^\]]/.test(text)) table = text;
        const line = h('span.code-line', {}, ...pieces(text).map(([kind, piece]) => (kind === 'plain' ? piece : h(`span.t-${kind}`, {}, piece))), '\n');
        return [line, `${table} ${text}`.toLowerCase()];
      });
      code.replaceChildren(...lines.map(([line]) => line));
      code.hidden = false;
      note.hidden = true;
    } catch (error) {
      if (error.name !== 'AbortError') {
        note.textContent = error.message;
        again.hidden = false;
      }
    }
    isLoading = false;
  };
  load();
  // What failed while the node was away, or without the key, comes by itself once it is back.
  const unsubscribe = subscribe(what => what === 'state' && store.state === 'live' && !again.hidden && load());
  const element = h('div.narrow', {},
    h('div.view-head', {}, h('h1', {}, 'Configuration'), h('p.muted', {}, 'What is in force, and where each value came from. Secrets are left out.')),
    card('TOML', { tools: [find] }, note, again, code));
  return { title: 'Configuration', element, close: () => {
    unsubscribe();
    control.abort();
  } };
}
