// Charts on canvas: up to 15 minutes, one crosshair for all of them, read by mouse, finger and keys.

import { h, icon, text, uid } from './dom.js';
import { ago, clock, minutes, words } from './format.js';
import { names } from './samples.js';
import { store } from './live.js';
import { context, cross, grid, paintLayer, readPalette, remark, stack } from './paint.js';
import { nearest, runs, span } from './scale.js';

const SPARK_SECONDS_MAX = 300;
const TOP = 8;
const BOTTOM = 20;

const charts = new Set();
/** The time that is pointed at in all charts; undefined is the newest. */
let cursor;
let frame;
/** Whether more than the crosshair is to be drawn. */
let isStale = true;

/** Draws in the colours of the theme in force. */
export function recolor() {
  readPalette();
  draw();
}

/** Draws everything in the next frame. */
export function draw() {
  isStale = true;
  schedule();
}

function schedule() {
  frame ??= requestAnimationFrame(() => {
    frame = undefined;
    const all = isStale;
    isStale = false;
    const now = store.samples.at(-1)?.at ?? Date.now();
    for (const chart of charts) chart.draw(now, all);
  });
}

function point(at) {
  if (cursor === at) return;
  cursor = at;
  schedule();
}

const resized = new ResizeObserver(draw);

/**
 * A chart in a card. `panels`: [{title?, scale(max, min) → axis, format, height, series, empty?}],
 * where series is [{name, color, value(sample), title?, stack?, below?, dash?, fill?}] or a function
 * that makes it from the samples; `empty` stands where no sample has a value. All panels share the
 * time.
 */
export class Chart {
  constructor({ title, panels, note }) {
    // The crosshair has a canvas of its own: it moves far more often than the samples change.
    this.panels = panels.map((panel, at) => ({ ...panel, isLast: at === panels.length - 1,
      canvas: h('canvas', { 'aria-hidden': 'true' }), over: h('canvas', { 'aria-hidden': 'true' }) }));
    this.title = title;
    this.when = h('span.when', {}, 'now');
    this.toggle = h('button.quiet', {
      type: 'button', 'aria-pressed': 'false', title: 'Show as a table', onclick: () => this.flip() },
      icon('table'), h('span.hidden', {}, `${title} as a table`));
    const id = uid('chart');
    this.plot = h('div.plot', {
      tabindex: 0, role: 'slider', 'aria-label': `${title}, up to 15 minutes`, 'aria-orientation': 'horizontal',
      'aria-valuemin': -900, 'aria-valuemax': 0, 'aria-valuenow': 0 });
    for (const panel of this.panels) {
      panel.legend = h('ul.legend', {});
      panel.box = h('div.panel', {}, panel.canvas, panel.over);
      panel.box.style.minHeight = `${panel.height ?? 150}px`;
      this.plot.append(panel.legend, panel.box);
      resized.observe(panel.box);
    }
    this.table = h('div.chart-table', { hidden: true });
    this.element = h('section.card.chart', { 'aria-labelledby': id },
      h('div.card-head', {}, h('h2', { id }, title), h('div.tools', {}, this.when, this.toggle)),
      note && h('p.note', {}, note), this.plot, this.table);
    this.listen();
    charts.add(this);
  }

  close() {
    charts.delete(this);
    for (const panel of this.panels) resized.unobserve(panel.box);
  }

  listen() {
    const at = event => {
      const box = this.panels[0].box.getBoundingClientRect();
      const now = store.samples.at(-1)?.at ?? Date.now();
      const share = Math.min(1, Math.max(0, (event.clientX - box.left) / (box.width - this.right())));
      return now - span(store.samples) * 1000 * (1 - share);
    };
    this.plot.addEventListener('pointermove', event => point(at(event)));
    this.plot.addEventListener('pointerdown', event => point(at(event)));
    this.plot.addEventListener('pointerleave', () => point(undefined));
    this.plot.addEventListener('blur', () => point(undefined));
    this.plot.addEventListener('keydown', event => this.key(event));
  }

  key(event) {
    const { samples } = store;
    if (!samples.length || event.altKey || event.ctrlKey || event.metaKey) return;
    const here = cursor === undefined ? samples.length - 1 : nearest(samples, cursor);
    const step = { ArrowLeft: -5, ArrowDown: -5, ArrowRight: 5, ArrowUp: 5, PageUp: 60, PageDown: -60 }[event.key];
    if (step) {
      const to = Math.min(samples.length - 1, Math.max(0, here + (event.shiftKey ? Math.sign(step) : step)));
      point(to === samples.length - 1 ? undefined : samples[to].at);
    } else if (event.key === 'Home') point(samples[0].at);
    else if (event.key === 'End' || event.key === 'Escape') point(undefined);
    else return;
    this.isAsked = true;
    event.preventDefault();
  }

  flip() {
    const show = this.table.hidden;
    this.table.hidden = !show;
    this.plot.hidden = show;
    this.toggle.setAttribute('aria-pressed', String(show));
    this.toggle.title = show ? 'Show as a chart' : 'Show as a table';
    draw();
  }

  right() {
    return 48;
  }

  draw(now, all) {
    if (!this.element.isConnected) return;
    const { samples } = store;
    const index = samples.length ? (cursor === undefined ? samples.length - 1 : nearest(samples, cursor)) : -1;
    const sample = samples[index];
    const then = () => (cursor === undefined ? 'now' : `${clock(sample.at)} · −${minutes((now - sample.at) / 1000)}`);
    text(this.when, sample ? then() : 'no samples yet');
    const values = [];
    for (const panel of this.panels) {
      if (all || !panel.lines) panel.lines = typeof panel.series === 'function' ? panel.series(samples) : panel.series;
      this.legend(panel, sample, values);
      if (this.plot.hidden) continue;
      if (all || !panel.drawn) this.paint(panel, samples, now);
      if (panel.drawn) this.point(panel, cursor === undefined ? undefined : sample, index);
    }
    this.announce(sample, now, values);
    if (!this.table.hidden) this.tabulate(samples);
  }

  /** A screen reader gets the values when a key asks for them, not every second while the chart has the focus. */
  announce(sample, now, values) {
    if (document.activeElement === this.plot && !this.isAsked) return;
    this.isAsked = false;
    this.plot.setAttribute('aria-valuenow', sample ? Math.round((sample.at - now) / 1000) : 0);
    this.plot.setAttribute('aria-valuetext', sample ? `${ago(sample.at, now)}: ${values.join(', ')}` : 'no samples yet');
  }

  legend(panel, sample, values) {
    const series = panel.lines;
    const key = series.map(one => `${one.name} ${one.title ?? ''}`).join();
    if (panel.key !== key || !panel.values) {
      panel.key = key;
      panel.values = series.map(() => h('output.value', { 'aria-live': 'off' }, '–'));
      panel.legend.replaceChildren(...series.map((one, at) =>
        h('li', { title: one.title }, swatch(one), h('span.name', {}, one.name), panel.values[at])));
    }
    series.forEach((one, at) => {
      const value = sample ? one.value(sample) : undefined;
      const shown = (one.format ?? panel.format)(value);
      text(panel.values[at], shown);
      values.push(`${one.name} ${shown}`);
    });
  }

  paint(panel, samples, now) {
    panel.drawn = undefined;
    const [width, height] = [panel.box.clientWidth, panel.box.clientHeight];
    if (!width || !height) return;
    const g = context(panel.canvas, width, height);
    const right = width - this.right();
    const plot = { width: right, top: TOP, height: height - TOP - (panel.isLast ? BOTTOM : 6) };
    const layers = stack(panel.lines, samples);
    const isEmpty = panel.empty && samples.length > 0 && layers.layers.every(layer => layer.values.every(value => value === null));
    const axis = panel.scale(layers.max, layers.min);
    const seconds = span(samples);
    const x = at => right - ((now - at) / (seconds * 1000)) * right;
    const y = value => plot.top + plot.height * (1 - axis.at(value));
    grid(g, plot, isEmpty ? { ...axis, ticks: [] } : axis, panel, now, seconds);
    if (isEmpty) remark(g, plot, panel.empty);
    g.save();
    g.beginPath();
    g.rect(0, plot.top - 2, right, plot.height + 3);
    g.clip();
    const parts = runs(samples);
    for (const layer of layers.layers) paintLayer(g, layer, samples, parts, x, y);
    g.restore();
    panel.drawn = { width, height, plot, layers: layers.layers, x, y };
  }

  point(panel, sample, index) {
    const { width, height, plot, layers, x, y } = panel.drawn;
    if (!sample && !panel.isMarked) return;
    panel.isMarked = Boolean(sample);
    const g = context(panel.over, width, height);
    if (sample) cross(g, plot, Math.round(x(sample.at)) + 0.5, layers, index, y);
  }

  tabulate(samples) {
    const minute = Math.floor((samples.at(-1)?.at ?? 0) / 60_000);
    if (this.table.dataset.minute === String(minute)) return;
    this.table.dataset.minute = String(minute);
    const all = this.panels.flatMap(panel => {
      const series = typeof panel.series === 'function' ? panel.series(samples) : panel.series;
      return series.map(one => ({ ...one, format: one.format ?? panel.format }));
    });
    const rows = [];
    for (let at = samples.length - 1; at >= 0; at -= 60) rows.push(samples[at]);
    this.table.replaceChildren(h('div.scroll', { tabindex: 0, role: 'region', 'aria-label': `${this.title}, minute by minute` },
      h('table', {},
        h('caption.hidden', {}, `${this.title}, one sample a minute, newest first`),
        h('thead', {}, h('tr', {}, h('th', { scope: 'col' }, 'Time'),
          ...all.map(one => h('th.number', { scope: 'col' }, one.name)))),
        h('tbody', {}, ...rows.map(row => h('tr', {}, h('th', { scope: 'row' }, clock(row.at)),
          ...all.map(one => h('td.number', {}, one.format(one.value(row))))))))));
  }
}

function swatch(series) {
  return h(`span.swatch.s${series.color}${series.stack ? '' : `.line.d${series.dash ?? 0}`}`, { 'aria-hidden': 'true' });
}

/** A small area without axes; the last five minutes. */
export class Sparkline {
  constructor(value) {
    this.value = value;
    this.element = h('canvas.spark', { 'aria-hidden': 'true' });
    charts.add(this);
    resized.observe(this.element);
  }

  close() {
    charts.delete(this);
    resized.unobserve(this.element);
  }

  draw(now, all) {
    if (!all) return;
    const canvas = this.element;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    if (!width || !canvas.isConnected) return;
    const shown_ms = Math.min(span(store.samples), SPARK_SECONDS_MAX) * 1000;
    const samples = store.samples.slice(-SPARK_SECONDS_MAX).filter(sample => now - sample.at <= shown_ms);
    const values = samples.map(sample => this.value(sample));
    const known = values.filter(value => typeof value === 'number');
    const max = Math.max(...known, 0);
    const low = Math.min(...known);
    // A quantity that hardly moves shows how it moves; one that comes near 0 stands on 0.
    const floor = low > max * 0.5 ? low - (max - low) - max * 0.01 : 0;
    const g = context(canvas, width, height);
    const x = at => width - ((now - at) / shown_ms) * width;
    const y = value => height - 1 - (max > floor ? ((value - floor) / (max - floor)) * (height - 3) : 0);
    const layer = { color: 1, fill: true, values: values.map(value => value ?? null), base: values.map(() => floor) };
    paintLayer(g, layer, samples, runs(samples), x, y);
  }
}

/** One stacked series for each known name of a group that occurs, and one, “other”, for the rest. */
export const stacked = (group, known, color, extra = {}) => samples => {
  const all = names(samples, group, known);
  const rest = all.filter(name => !known.includes(name));
  const series = all.filter(name => known.includes(name)).map(name => ({
    name: words(name), color: color(name), stack: true, value: sample => sample[group]?.[name] ?? 0, ...extra }));
  if (rest.length) {
    const value = sample => rest.reduce((sum, name) => sum + (sample[group]?.[name] ?? 0), 0);
    series.push({ name: 'other', title: rest.map(words).join(', '), color: color('other'), stack: true, value, ...extra });
  }
  return series;
};
