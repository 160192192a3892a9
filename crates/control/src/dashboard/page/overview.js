// The first view: tiles, charts, shards, transports, topics on top, and who does most or reads most slowly.

import { Chart, draw, stacked } from './chart.js';
import { card, fill, h, text } from './dom.js';
import { bytes, cores, count, duration, exact, milliseconds, percent, words } from './format.js';
import { history } from './history.js';
import { certificates } from './certificates.js';
import { nodes } from './nodes.js';
import { outbox } from './outbox.js';
import { kernel } from './kernel.js';
import { store, subscribe } from './live.js';
import { names } from './samples.js';
import { decades, linear, logarithmic, mirrored } from './scale.js';
import { shards } from './shards.js';
import { slowest } from './slowest.js';
import { SHARED_CONNECTIONS_MIN, tiles } from './tiles.js';
import { noisiest } from './noisiest.js';
import { top } from './top.js';

export const TRANSPORTS = ['ws', 'sse', 'stream', 'poll', 'phoenix', 'phoenix_longpoll', 'http', 'mqtt', 'echo'];
const transportColor = name => TRANSPORTS.indexOf(name) + 1 || 9;
/** Reasons that come about in quantity, each in its colour; the rest together is “other”. */
const REASONS = { client: 2, lost: 3, answered: 4, idle: 5, application: 6, slow_consumer: 7, drain: 9 };

const FEW = `Shown from ${SHARED_CONNECTIONS_MIN} connections on`;

const line = (name, color, key, extra) => ({ name, color, value: sample => sample[key], ...extra });

/** What a few connections share of the program's own memory would hide what many take each. */
const each = (name, color, key) => samples => {
  const most = samples.reduce((most, sample) => Math.max(most, sample.connections), 0);
  const least = Math.max(SHARED_CONNECTIONS_MIN, most / 10);
  return [{ name, color, fill: true, value: sample => (sample.connections >= least ? sample[key] : null) }];
};

function charts() {
  return [
    new Chart({ title: 'Connections', panels: [{
      scale: max => linear(max, 4), format: count,
      series: samples => [
        ...stacked('transports', TRANSPORTS, transportColor)(samples),
        { name: 'total', color: 9, dash: 0, value: sample => sample.connections }],
    }] }),
    new Chart({ title: 'Connects and disconnects /s', panels: [{
      scale: max => mirrored(max, 4), format: count,
      series: samples => [
        { name: 'connects ↑', color: 1, value: sample => sample.opened, stack: true },
        ...stacked('closed_by', Object.keys(REASONS), name => REASONS[name] ?? 8, { below: true })(samples)
          .map(one => ({ ...one, name: `${one.name} ↓` }))],
    }] }),
    new Chart({ title: 'Messages /s', panels: [{
      scale: max => logarithmic(max, 1), format: count,
      series: [line('in', 2, 'messages_in', { dash: 1 }), line('delivered', 1, 'delivered', { fill: true })],
    }] }),
    new Chart({ title: 'Delivery latency', panels: [{
      scale: (max, min) => decades(Math.max(min, 0.001), Math.max(max, 0.001)), format: milliseconds,
      series: [line('p50', 3, 'p50', { dash: 2 }), line('p90', 1, 'p90', { dash: 1 }), line('p99', 2, 'p99')],
    }] }),
    new Chart({ title: 'Memory per connection', panels: [
      { scale: max => linear(max, 4), format: bytes, height: 64, empty: FEW,
        series: each('user space', 1, 'user_bytes_per_connection') },
      { scale: max => linear(max, 4), format: bytes, height: 78, empty: FEW,
        series: each('kernel', 5, 'kernel_bytes_per_connection') },
    ] }),
    new Chart({ title: 'CPU', panels: [{
      scale: max => linear(max, 0.4), format: cores, series: [line('cores in use', 1, 'cpu', { fill: true })],
    }] }),
  ];
}

function transports() {
  const [body, total] = [h('tbody'), h('td.number')];
  const element = card('By transport', {}, h('table.transports', {},
    h('caption.hidden', {}, 'Connections by transport'),
    h('thead', {}, h('tr', {}, h('th', { scope: 'col' }, 'Transport'), h('th.number', { scope: 'col' }, 'Connections'),
      h('th.number', { scope: 'col' }, 'Share'))), body,
    h('tfoot', { hidden: true }, h('tr', {}, h('th', { scope: 'row' }, 'All'), total, h('td.number', {}, '100 %')))));
  let rows = [];
  return { element, update(sample) {
    const all = [...TRANSPORTS.filter(name => name in sample.transports),
      ...names([sample], 'transports', TRANSPORTS).filter(name => !TRANSPORTS.includes(name))];
    fill(body, all.join(), () => {
      rows = all.map(name => {
        const bar = h(`i.s${transportColor(name)}`);
        const [number, share] = [h('td.number'), h('td.number')];
        const row = h('tr', {}, h('th', { scope: 'row' }, h('span.bar', { 'aria-hidden': 'true' }, bar), words(name)), number, share);
        return { name, row, bar, number, share };
      });
      return rows.map(({ row }) => row);
    });
    text(total, count(sample.connections), exact(sample.connections));
    total.closest('tfoot').hidden = false;
    for (const { name, row, bar, number, share } of rows) {
      const value = sample.transports[name] ?? 0;
      text(number, count(value), exact(value));
      text(share, value ? percent(value, sample.connections) : '–');
      row.classList.toggle('zero', !value);
      bar.style.transform = `scaleX(${sample.connections ? value / sample.connections : 0})`;
    }
  } };
}

function nodeLine() {
  const element = h('p.node');
  return { element, update(sample) {
    const { node } = store;
    if (!node) return;
    fill(element, node.epoch, () => [
      h('span', {}, `Throng ${node.version}`), h('span.up'), h('span', {}, `${node.cores} cores`),
      h('span.rss'), h('span.topics'), h('span', { title: 'The epoch with which the ids of messages without history begin' }, `epoch ${node.epoch}`)]);
    text(element.querySelector('.up'), `up ${duration(sample.at / 1000 - node.started_at)}`,
      `since ${new Date(node.started_at * 1000).toLocaleString()}`);
    text(element.querySelector('.rss'), `${bytes(sample.rss_bytes)} resident`, exact(sample.rss_bytes, 'bytes'));
    text(element.querySelector('.topics'), `${count(sample.topics)} topics`, exact(sample.topics));
  } };
}

export function view() {
  const parts = { node: nodeLine(), tiles: tiles(), shards: shards(), transports: transports(), top: top(), noisiest: noisiest(), slowest: slowest(), history: history(), kernel: kernel(), certificates: certificates(), nodes: nodes(), outbox: outbox() };
  const drawn = charts();
  const update = () => {
    const sample = store.samples.at(-1);
    if (!sample) return;
    for (const name of ['node', 'tiles', 'shards', 'transports']) parts[name].update(sample);
    draw();
  };
  const unsubscribe = subscribe(update);
  const element = h('div.overview', {},
    h('div.view-head', {}, h('h1', {}, 'Overview'), parts.node.element),
    parts.tiles.element,
    parts.kernel.banner,
    h('div.grid.charts', {}, ...drawn.map(chart => chart.element)),
    h('div.grid.lists', {}, parts.shards.element, parts.transports.element, ...parts.top.elements, parts.noisiest.element, parts.slowest.element, parts.nodes.element, parts.outbox.element, parts.kernel.element, parts.certificates.element, parts.history.element));
  return {
    title: 'Overview', element, shown: update,
    close() {
      unsubscribe();
      parts.tiles.close();
      parts.top.close();
      parts.noisiest.close();
      parts.slowest.close();
      parts.history.close();
      parts.kernel.close();
      parts.certificates.close();
      parts.nodes.close();
      parts.outbox.close();
      for (const chart of drawn) chart.close();
    },
  };
}
