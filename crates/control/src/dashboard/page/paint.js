// How charts are drawn on a canvas: areas, lines, marks and the crosshair.

import { brief, clock } from './format.js';

const DASHES = [[], [6, 3], [2, 2], [8, 3, 2, 3]];
let palette = {};

/** Reads the colours of the theme in force. */
export function readPalette() {
  const style = getComputedStyle(document.documentElement);
  const of = name => style.getPropertyValue(name).trim();
  palette = { grid: of('--grid'), axis: of('--muted'), card: of('--card'), cross: of('--ink-2') };
  for (let at = 1; at <= 9; at += 1) palette[at] = of(`--series-${at}`);
}

/** The cleared context of a canvas, in CSS pixels, as sharp as the screen is. */
export function context(canvas, width, height) {
  const ratio = devicePixelRatio || 1;
  const [wide, high] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== wide || canvas.height !== high) Object.assign(canvas, { width: wide, height: high });
  const g = canvas.getContext('2d');
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.clearRect(0, 0, width, height);
  return g;
}

/** Values of each series, stacked ones on top of those before; with the extremes of all. */
export function stack(series, samples) {
  const sums = { above: new Float64Array(samples.length), below: new Float64Array(samples.length) };
  let max = 0;
  let min = Infinity;
  const layers = series.map(one => {
    const base = one.stack ? Float64Array.from(sums[one.below ? 'below' : 'above']) : undefined;
    const values = samples.map((sample, at) => {
      const value = one.value(sample);
      if (typeof value !== 'number') return null;
      if (value > 0 && value < min) min = value;
      const signed = one.below ? -value : value;
      if (!one.stack) {
        if (value > max) max = value;
        return signed;
      }
      const top = base[at] + signed;
      sums[one.below ? 'below' : 'above'][at] = top;
      if (Math.abs(top) > max) max = Math.abs(top);
      return top;
    });
    return { ...one, base, values };
  });
  return { layers, max, min: min === Infinity ? 1 : min };
}

const before = seconds => (seconds % 60 ? `−${seconds} s` : `−${seconds / 60} min`);

export function grid(g, plot, axis, panel, now, seconds) {
  g.font = '11px system-ui, sans-serif';
  g.lineWidth = 1;
  g.textBaseline = 'middle';
  for (const tick of axis.ticks) {
    const y = Math.round(plot.top + plot.height * (1 - axis.at(tick))) + 0.5;
    g.strokeStyle = palette.grid;
    g.beginPath();
    g.moveTo(0, y);
    g.lineTo(plot.width, y);
    g.stroke();
    g.fillStyle = palette.axis;
    g.textAlign = 'left';
    g.fillText(brief(panel.format)(Math.abs(tick)), plot.width + 6, y);
  }
  g.textBaseline = 'alphabetic';
  const bottom = plot.top + plot.height;
  for (const past of [3, 2, 1, 0]) {
    const x = plot.width * (1 - past / 3);
    g.fillStyle = palette.axis;
    g.textAlign = past === 3 ? 'left' : past ? 'center' : 'right';
    if (panel.isLast) g.fillText(past ? before((past * seconds) / 3) : clock(now).slice(0, 5), x, bottom + 15);
    if (past === 3 || past === 0) continue;
    g.strokeStyle = palette.grid;
    g.beginPath();
    g.moveTo(Math.round(x) + 0.5, plot.top);
    g.lineTo(Math.round(x) + 0.5, bottom);
    g.stroke();
  }
}

/** A sentence in place of values. */
export function remark(g, plot, words) {
  const [x, y] = [plot.width / 2, plot.top + plot.height / 2];
  g.font = '12px system-ui, sans-serif';
  g.textAlign = 'center';
  g.textBaseline = 'middle';
  const width = g.measureText(words).width + 16;
  g.fillStyle = palette.card;
  g.fillRect(x - width / 2, y - 10, width, 20);
  g.fillStyle = palette.axis;
  g.fillText(words, x, y);
}

/** One value for every two pixels, the highest: 900 values on a narrow chart would be a smear. */
function thinned(layer, samples, from, to, x) {
  const points = [];
  let column;
  for (let at = from; at < to; at += 1) {
    const value = layer.values[at];
    const here = Math.floor(x(samples[at].at) / 2);
    const last = points.length - 1;
    if (here === column && value !== null && layer.values[points[last]] !== null) {
      if (value > layer.values[points[last]]) points[last] = at;
    } else points.push(at);
    column = here;
  }
  return points;
}

const range = (from, to) => Array.from({ length: to - from }, (_, at) => from + at);

/** Runs of samples that have a value: an area ends where its line does. */
function known(points, layer) {
  const found = [];
  let run;
  for (const at of points) {
    if (layer.values[at] === null) run = undefined;
    else if (run) run.push(at);
    else found.push(run = [at]);
  }
  return found;
}

/** Areas too thin to be parted by a line stay as they are. */
const PARTED_PX = 5;

function isThick(layer, from, to, y) {
  let thickness = 0;
  for (let at = from; at < to; at += 10) thickness += Math.abs(y(layer.values[at] ?? 0) - y(layer.base[at]));
  return thickness / Math.ceil((to - from) / 10) > PARTED_PX;
}

export function paintLayer(g, layer, samples, parts, x, y) {
  const color = palette[layer.color];
  for (const [from, to] of parts) {
    const points = layer.stack ? range(from, to) : thinned(layer, samples, from, to, x);
    for (const run of layer.stack || layer.fill ? known(points, layer) : []) {
      g.beginPath();
      for (const at of run) g.lineTo(x(samples[at].at), y(layer.values[at]));
      for (const at of run.toReversed()) g.lineTo(x(samples[at].at), y(layer.base?.[at] ?? 0));
      g.closePath();
      g.globalAlpha = layer.stack ? 1 : 0.14;
      g.fillStyle = color;
      g.fill();
      g.globalAlpha = 1;
    }
    if (layer.stack && !isThick(layer, from, to, y)) continue;
    g.beginPath();
    let isDown = false;
    for (const at of points) {
      const value = layer.values[at];
      if (value === null) isDown = false;
      else if (isDown) g.lineTo(x(samples[at].at), y(value));
      else {
        // A value alone between two holes is a dot.
        g.moveTo(x(samples[at].at) - (layer.values[at + 1] == null ? 1 : 0), y(value));
        g.lineTo(x(samples[at].at), y(value));
        isDown = true;
      }
    }
    // Stacked areas are parted by the card's own colour, so that none needs its hue to be told apart.
    g.strokeStyle = layer.stack ? palette.card : color;
    g.lineWidth = layer.stack ? 1 : 1.5;
    g.lineJoin = 'round';
    g.setLineDash(layer.stack ? [] : DASHES[layer.dash ?? 0]);
    g.stroke();
    g.setLineDash([]);
  }
}

export function cross(g, plot, x, layers, at, y) {
  g.strokeStyle = palette.cross;
  g.lineWidth = 1;
  g.beginPath();
  g.moveTo(x, plot.top - 4);
  g.lineTo(x, plot.top + plot.height);
  g.stroke();
  for (const layer of layers) {
    const value = layer.values[at];
    if (value === null || value === undefined || layer.stack) continue;
    g.beginPath();
    g.arc(x, y(value), 3.5, 0, Math.PI * 2);
    g.fillStyle = palette[layer.color];
    g.strokeStyle = palette.card;
    g.lineWidth = 1.5;
    g.fill();
    g.stroke();
  }
}
