// Axes: from values to a share of the height (0 at the bottom, 1 at the top), and their marks. Pure.

/** A linear axis from 0 to a round number at or above `max`, with about four marks. */
export function linear(max, least = 1) {
  const top = Math.max(max, least);
  const rough = top / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 2.5, 5, 10].find(factor => factor * power >= rough * 0.999_999);
  const end = Math.ceil(top / step - 1e-9) * step;
  const ticks = [];
  for (let at = 0; at <= Math.round(end / step); at += 1) ticks.push(at * step);
  return { at: value => clamp(value / end), ticks, end };
}

/** Both ways from 0 in the middle, for what comes above and what goes below. */
export function mirrored(max, least = 1) {
  const { end, ticks } = linear(max, least);
  const every = ticks.length > 4 ? 2 : 1;
  const up = ticks.filter((_, at) => (ticks.length - 1 - at) % every === 0 && at > 0);
  return { at: value => clamp((value / end + 1) / 2), ticks: [...up.map(t => -t).reverse(), 0, ...up], end };
}

/** Logarithmic above `low`, with room for 0 at the bottom: 0 and what is below `low` lie there. */
export function logarithmic(max, low = 1) {
  const from = Math.floor(Math.log10(low)) - 1;
  const to = Math.max(Math.ceil(Math.log10(Math.max(max, low)) - 1e-9), from + 2);
  const at = value => (value > 0 ? clamp((Math.log10(value) - from) / (to - from)) : 0);
  const every = Math.ceil((to - from - 1) / 4);
  const ticks = [];
  for (let power = to; power > from; power -= every) ticks.unshift(10 ** power);
  return { at, ticks: [0, ...ticks], end: 10 ** to };
}

/** Logarithmic between the decades around `min` and `max`, without a place for 0. */
export function decades(min, max) {
  const from = Math.floor(Math.log10(min) + 1e-9);
  const to = Math.max(Math.ceil(Math.log10(max) - 1e-9), from + 1);
  const at = value => (value > 0 ? clamp((Math.log10(value) - from) / (to - from)) : 0);
  const ticks = [];
  const every = Math.ceil((to - from) / 4);
  for (let power = to; power >= from; power -= every) ticks.unshift(10 ** power);
  return { at, ticks, end: 10 ** to };
}

const clamp = value => Math.min(1, Math.max(0, value));

/** The index of the sample whose time is nearest to `at`; samples are sorted by time. */
export function nearest(samples, at) {
  let low = 0;
  let high = samples.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (samples[middle].at < at) low = middle + 1;
    else high = middle;
  }
  if (low > 0 && at - samples[low - 1].at <= samples[low].at - at) return low - 1;
  return low;
}

/** Parts of samples without a hole of more than `hole_ms` between neighbours: [[from, to)]. */
export function runs(samples, hole_ms = 3500) {
  const parts = [];
  let from = 0;
  for (let at = 1; at <= samples.length; at += 1) {
    if (at === samples.length || samples[at].at - samples[at - 1].at > hole_ms) {
      parts.push([from, at]);
      from = at;
    }
  }
  return parts;
}

/** Seconds that charts can show; each is parted in three. */
const SPANS = [60, 180, 360, 900];

/** The seconds to show: a node that has just started need not fill 15 minutes first. */
export function span(samples) {
  const known = samples.length ? (samples.at(-1).at - samples[0].at) / 1000 : 0;
  return SPANS.find(seconds => known <= seconds) ?? SPANS.at(-1);
}
