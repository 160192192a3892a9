// What the kernel of the node's host dropped in the last 15 minutes and which of its resources run short: a banner above
// the charts while there are findings, and a card with the kernel's stats. Polled every five seconds while the page is visible.

import * as api from './api.js';
import { card, every, fill, h, icon, text } from './dom.js';
import { bytes, count, duration, exact, percent } from './format.js';

/** The kernel reports a limit of this size or more where there is none. */
const NO_LIMIT = 2 ** 60;

const sentence = words => words.charAt(0).toUpperCase() + words.slice(1);
const usage = ({ used, max }) => (max >= NO_LIMIT ? count(used) : `${count(used)} of ${count(max)}`);

/** Name, value and title of each figure that this kernel reports. Counters are since the boot. */
function rows(stats) {
  const { tcp_memory: memory, tcp_segments_out: sent, tcp_segments_retransmitted: again } = stats;
  const counter = (name, value, title) => value !== null && [name, count(value), `${exact(value)} ${title} since the boot`];
  const table = (name, value, title) => value && [name, usage(value), `${exact(value.used)} ${title}`];
  const wait = (name, value) => value && [name, `${Math.round(value.some_percent)} %`,
    `In the last 10 s some tasks of the host waited ${exact(value.some_percent, '%')} of the time, all tasks with work ${exact(value.full_percent, '%')}`];
  const memoryTitle = memory?.max_bytes
    ? `Of ${exact(memory.max_bytes, 'bytes')}; the kernel limits buffers from ${exact(memory.pressure_bytes, 'bytes')} on`
    : 'Buffers of all TCP sockets of the host';
  return [
    counter('Connects dropped', stats.listen_drops, 'attempts to connect that the kernel dropped'),
    counter('Aborted for memory', stats.tcp_aborts_on_memory, 'connections that the kernel aborted because TCP had no memory'),
    counter('Packets dropped', stats.softnet_dropped, 'packets dropped because a core’s backlog was full'),
    again !== null && ['Retransmitted', percent(again, sent), `${exact(again)} of ${exact(sent)} TCP segments since the boot`],
    memory && ['TCP buffers', memory.max_bytes ? `${bytes(memory.used_bytes)} (${percent(memory.used_bytes, memory.max_bytes)})` : bytes(memory.used_bytes),
      memoryTitle],
    table('Conntrack', stats.conntrack, 'connections that the packet filter tracks (conntrack)'),
    table('Open files', stats.files, 'open files of the host'),
    wait('Wait for CPU', stats.cpu),
    wait('Wait for memory', stats.memory),
    wait('Wait for disk', stats.io),
  ].filter(Boolean);
}

function item({ advice }) {
  return h('li', {}, icon('warn'), h('p', {}, h('strong'), ` ${sentence(advice)}. `, h('span.when')));
}

function update(item, { what, seconds_ago: ago }) {
  text(item.querySelector('strong'), `${sentence(what)}.`);
  text(item.querySelector('.when'), ago === null ? 'now' : `${duration(ago)} ago`);
}

export function kernel() {
  const banner = h('ul.findings', { role: 'status', 'aria-label': 'Findings about the kernel' });
  const note = h('p.empty', {}, 'Loading…');
  const figures = h('dl.figures');
  const element = card('Kernel', {}, note, figures);
  element.classList.add('kernel');
  const poll = every(5000, async signal => {
    try {
      const { seconds, findings, stats } = await api.get('/api/kernel', signal);
      text(note, findings.length ? 'See the top of the page.' : `Nothing was dropped and nothing ran short in the last ${duration(seconds)}.`);
      // A screen reader repeats the list when it is made anew, so that happens for other kinds of findings only.
      fill(banner, findings.map(({ kind }) => kind).join(), () => findings.map(item));
      findings.forEach((finding, at) => update(banner.children[at], finding));
      const shown = rows(stats);
      fill(figures, shown.map(([name]) => name).join(), () => shown.map(([name]) => h('div', {}, h('dt', {}, name), h('dd'))));
      shown.forEach(([, value, title], at) => text(figures.children[at].lastChild, value, title));
    } catch (error) {
      if (error.name !== 'AbortError') text(note, error.message);
    }
  });
  return { banner, element, close: poll.stop };
}
