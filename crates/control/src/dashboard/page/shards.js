// Connections per shard: a bar each, from 1 to 64 and more.

import { card, fill, h, icon, text } from './dom.js';
import { bytes, count, exact, milliseconds, percent } from './format.js';

const share = value => percent(value, 1);

// What the table has of each shard beside its connections: the head, what it means, and the figure.
const FIGURES = [
  ['Turn p99', '99 % of the turns of the shard’s loop were no longer', (all, at) => milliseconds(all.turn_p99_ms[at])],
  ['Asleep', 'The share of time in which the shard had nothing to do', (all, at) => share(all.asleep[at])],
  ['System', 'The share of time in system calls', (all, at) => share(all.system[at])],
  ['Bulk', 'The share of time in fan-outs over long lists', (all, at) => share(all.bulk[at])],
  ['Wait', 'The share of time in which the shard was ready to run and no processor was free', (all, at) => share(all.cpu_wait[at])],
  ['Mailbox', 'Commands that are queued for the shard', (all, at) => count(all.mailbox[at])],
  ['Listen', 'Connections that the shard has not accepted yet', (all, at) => count(all.listen_queue[at])],
  ['Unsent', 'Queued bytes of slow connections', (all, at) => bytes(all.outbox_bytes[at])],
];

export function shards() {
  const bars = h('div.bars', { tabindex: 0, role: 'slider', 'aria-label': 'Connections per shard', 'aria-valuemin': 0 });
  const readout = h('p.readout');
  const body = h('tbody');
  const tabular = h('div.scroll.short', { hidden: true, tabindex: 0, role: 'region', 'aria-label': 'Connections per shard' },
    h('table', {}, h('caption.hidden', {}, 'Connections per shard'),
      h('thead', {}, h('tr', {}, h('th', { scope: 'col' }, 'Shard'), h('th.number', { scope: 'col' }, 'Connections'),
        h('th.number', { scope: 'col' }, 'Share'), ...FIGURES.map(([name, help]) => h('th.number', { scope: 'col', title: help }, name)))), body));
  const toggle = h('button.quiet', { type: 'button', 'aria-pressed': 'false', title: 'Show as a table', onclick: () => {
    tabular.hidden = !tabular.hidden;
    bars.hidden = !tabular.hidden;
    scale.hidden = bars.hidden;
    toggle.setAttribute('aria-pressed', String(bars.hidden));
    show();
  } }, icon('table'), h('span.hidden', {}, 'Connections per shard as a table'));
  const scale = h('p.bars-scale', { 'aria-hidden': 'true' }, h('span', {}, '0'), h('span'));
  const element = card('Connections per shard', { tools: [toggle] }, readout, bars, tabular, scale);
  element.classList.add('shards');
  let values = [];
  let figures;
  let chosen;

  function choose(at) {
    chosen = at;
    show();
  }
  bars.addEventListener('pointermove', event => {
    const box = bars.getBoundingClientRect();
    choose(Math.min(values.length - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * values.length))));
  });
  bars.addEventListener('pointerleave', () => choose(undefined));
  bars.addEventListener('blur', () => choose(undefined));
  bars.addEventListener('keydown', event => {
    const last = values.length - 1;
    const to = { ArrowLeft: (chosen ?? 0) - 1, ArrowRight: (chosen ?? -1) + 1, Home: 0, End: last, Escape: undefined };
    if (!(event.key in to)) return;
    choose(to[event.key] === undefined ? undefined : Math.min(last, Math.max(0, to[event.key])));
    event.preventDefault();
  });

  function show() {
    if (!values.length) return;
    const max = Math.max(...values, 1);
    const total = values.reduce((all, value) => all + value, 0);
    fill(bars, String(values.length), () => values.map(() => h('span', {}, h('i'))));
    bars.classList.toggle('many', values.length > 24);
    [...bars.children].forEach((bar, at) => {
      bar.firstChild.style.height = `${(100 * values[at]) / max}%`;
      bar.classList.toggle('chosen', at === chosen);
    });
    const all = `${values.length} ${values.length === 1 ? 'shard' : 'shards'}: ${count(Math.min(...values))} to ${count(Math.max(...values))}, mean ${count(total / values.length)}`;
    const one = chosen === undefined ? all : `Shard ${chosen}: ${exact(values[chosen])} (${percent(values[chosen], total)})`;
    text(readout, one);
    text(scale.firstChild, 'shard 0');
    text(scale.lastChild, values.length > 1 ? `${values.length - 1}` : '');
    bars.setAttribute('aria-valuemax', values.length - 1);
    bars.setAttribute('aria-valuenow', chosen ?? 0);
    bars.setAttribute('aria-valuetext', one);
    if (tabular.hidden) return;
    const rows = values.map((value, at) => [exact(value), percent(value, total), ...FIGURES.map(([, , figure]) => (figures ? figure(figures, at) : '–'))]);
    fill(body, JSON.stringify(rows), () => rows.map((row, at) => h('tr', {}, h('th', { scope: 'row' }, String(at)),
      ...row.map(cell => h('td.number', {}, cell)))));
  }

  return { element, update(sample) {
    if (!sample.shards) return;
    values = sample.shards;
    figures = sample.by_shard;
    show();
  } };
}
