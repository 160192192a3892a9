// The samples of the last 15 minutes, one a second: from columns, then one by one. Pure.

export const SAMPLES_MAX = 900;
const GROUPS = ['transports', 'closed_by'];

/** The columns of /api/samples as samples of the form that /api/live sends. */
export function fromColumns(columns) {
  const at = columns.at ?? [];
  return at.map((time, row) => {
    const sample = { at: time };
    for (const [name, column] of Object.entries(columns)) {
      if (Array.isArray(column)) sample[name] = column[row];
    }
    for (const group of GROUPS) {
      sample[group] = {};
      for (const [name, column] of Object.entries(columns[group] ?? {})) {
        sample[group][name] = column[row] ?? 0;
      }
    }
    return sample;
  });
}

/** A sample of /api/live with its percentiles beside the other columns. */
export function fromLive(sample) {
  const latency = sample.latency_ms ?? {};
  const [p50, p90, p99] = [latency.p50 ?? null, latency.p90 ?? null, latency.p99 ?? null];
  return { ...sample, transports: sample.transports ?? {}, closed_by: sample.closed_by ?? {}, p50, p90, p99 };
}

/** Adds a sample in place. Where the node's clock went back, what it says now replaces the future. */
export function add(samples, sample) {
  while (samples.at(-1)?.at >= sample.at) samples.pop();
  // Only the newest one's shards are shown: 15 minutes of them would be much.
  if (samples.length) delete samples.at(-1).by_shard;
  samples.push(sample);
  const oldest = sample.at - SAMPLES_MAX * 1000;
  let drop = Math.max(0, samples.length - SAMPLES_MAX);
  while (drop < samples.length && samples[drop].at < oldest) drop += 1;
  if (drop) samples.splice(0, drop);
}

/** The names of a group that are anything but 0 somewhere, in the order of `known`, then others. */
export function names(samples, group, known) {
  const seen = new Set();
  for (const sample of samples) {
    for (const name in sample[group]) if (sample[group][name] > 0) seen.add(name);
  }
  const rest = [...seen].filter(name => !known.includes(name)).sort();
  return [...known.filter(name => seen.has(name)), ...rest];
}
