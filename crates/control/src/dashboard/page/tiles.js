// The headline figures of this second, each with its last five minutes.

import { Sparkline } from './chart.js';
import { h, icon, text } from './dom.js';
import { brief, bytes, cores, count, exact, milliseconds, percent, words } from './format.js';
import { store } from './live.js';

/** The lowest level at which memory and connections are called near their limit. */
const NEAR = 0.9;

/** Fewer connections share the program's own memory, and say nothing of what one takes. */
export const SHARED_CONNECTIONS_MIN = 100;

const perSecond = value => `${exact(value)} per second`;
const sum = (samples, name) => samples.reduce((total, sample) => total + (sample[name] ?? 0), 0);

function topReason(sample) {
  const [first] = Object.entries(sample.closed_by).sort((a, b) => b[1] - a[1]);
  return first ? `${words(first[0])} ${count(first[1])}` : 'none';
}

/** Each gives {main, unit, title, note, warn}. */
const TILES = [
  ['Connections', sample => sample.connections, ({ connections, connections_max }, node) => {
    const max = connections_max ?? node?.connections_max;
    const near = max && connections >= max * NEAR;
    return { main: count(connections), title: exact(connections, 'connections'), warn: near,
      note: max ? `${near ? 'near the limit: ' : ''}${percent(connections, max)} of ${brief(count)(max)}` : '' };
  }],
  ['Connects', sample => sample.opened, sample => ({
    main: count(sample.opened), unit: '/s', title: perSecond(sample.opened), warn: sample.refused > 0,
    note: sample.refused > 0 ? `${count(sample.refused)}/s refused` : 'none refused' })],
  ['Disconnects', sample => sample.closed, sample => ({
    main: count(sample.closed), unit: '/s', title: perSecond(sample.closed), note: `most: ${topReason(sample)}` })],
  ['Messages in', sample => sample.messages_in, sample => ({
    main: count(sample.messages_in), unit: '/s', title: perSecond(sample.messages_in),
    note: `${bytes(sample.bytes_in)}/s from clients` })],
  ['Delivered', sample => sample.delivered, sample => ({
    main: count(sample.delivered), unit: '/s', title: perSecond(sample.delivered), note: `${bytes(sample.bytes_out)}/s out` })],
  ['Latency p99', sample => sample.p99, sample => ({
    main: milliseconds(sample.p99), title: exact(sample.p99, 'ms'),
    note: sample.p99 === null ? 'nothing delivered' : `p50 ${milliseconds(sample.p50)}` })],
  ['Memory each', sample => (sample.connections >= SHARED_CONNECTIONS_MIN ? sample.user_bytes_per_connection : null), sample => (sample.connections < SHARED_CONNECTIONS_MIN ? {
    main: '–', note: `from ${SHARED_CONNECTIONS_MIN} connections on`,
    title: `Fewer than ${SHARED_CONNECTIONS_MIN} connections share the program's own memory, so a share per connection would be misleading.` } : {
    main: bytes(sample.user_bytes_per_connection), unit: 'user', title: exact(sample.user_bytes_per_connection, 'bytes of user space per connection'),
    note: `kernel ${bytes(sample.kernel_bytes_per_connection)}` })],
  ['CPU', sample => sample.cpu, (sample, node) => ({
    main: cores(sample.cpu), unit: sample.cpu === 1 ? 'core' : 'cores', title: exact(sample.cpu, 'processor seconds per second'),
    warn: node?.cores && sample.cpu >= node.cores * NEAR,
    note: node?.cores ? `${percent(sample.cpu, node.cores)} of ${node.cores}` : '' })],
  ['Slow consumers', sample => sample.slow, (sample, _, samples) => ({
    main: count(sample.slow), unit: '/s', title: `${exact(sample.slow)} closed per second`, warn: sample.slow > 0,
    note: `${count(sum(samples, 'slow'))} in 15 min` })],
  ['Outboxes', sample => sample.outboxes, sample => ({
    main: count(sample.outboxes), title: exact(sample.outboxes, 'connections with bytes waiting'),
    note: `${bytes(sample.outbox_bytes)} waiting` })],
];

/** Of the whole node, or of other rows like these. */
export function tiles(rows = TILES) {
  const made = rows.map(([name, value, show]) => {
    const spark = new Sparkline(value);
    const [main, unit, note] = [h('span.main', {}, '–'), h('span.unit'), h('span')];
    const sign = icon('warn');
    sign.toggleAttribute('hidden', true);
    const noted = h('dd.tile-note', {}, sign, note);
    const element = h('div.tile', {}, h('dt', {}, name), h('dd.tile-value', {}, main, unit), noted,
      h('dd', { 'aria-hidden': 'true' }, spark.element));
    return { element, spark, update(sample) {
      const shown = show(sample, store.node, store.samples);
      const value = shown.main.split(/ (?=\D)/);
      // The unit of the number is smaller than the number, and never moves it.
      text(main, value[0], shown.title);
      text(unit, [value[1], shown.unit].filter(Boolean).join(shown.unit?.startsWith('/') ? '' : ' '));
      text(note, shown.note ?? '', shown.title);
      element.classList.toggle('warn', Boolean(shown.warn));
      sign.toggleAttribute('hidden', !shown.warn);
    } };
  });
  return {
    element: h('dl.tiles', { 'aria-label': 'Now' }, ...made.map(tile => tile.element)),
    update: sample => made.forEach(tile => tile.update(sample)),
    close: () => made.forEach(tile => tile.spark.close()),
  };
}
