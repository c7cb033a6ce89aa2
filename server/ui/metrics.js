// SPDX-License-Identifier: Apache-2.0
// Prometheus text as samples, and figures computed from two states.

const LINE = /^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)$/;
const LABEL = /([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"/g;

// name -> [{labels, value}]. `model`: one of several, whose samples have its name as a label.
export function parseMetrics(text, model) {
  const samples = new Map();
  for (const line of text.split("\n")) {
    const found = LINE.exec(line);
    if (!found) continue;
    const labels = {};
    for (const [, name, value] of (found[2] ?? "").matchAll(LABEL)) labels[name] = value;
    if (model !== undefined && labels.model !== undefined && labels.model !== model) continue;
    if (!samples.has(found[1])) samples.set(found[1], []);
    samples.get(found[1]).push({ labels, value: Number(found[3].replace("Inf", "Infinity")) });
  }
  return samples;
}

export const samplesOf = (samples, name) => samples.get(`diffserve_${name}`) ?? [];

export function valueOf(samples, name, labels = {}) {
  const matching = samplesOf(samples, name).filter((sample) =>
    Object.entries(labels).every(([key, value]) => sample.labels[key] === value));
  return matching.reduce((sum, sample) => sum + sample.value, 0);
}

// The increase of a counter; a restarted server counts from 0.
export function gained(before, after, name) {
  const value = valueOf(after, name), old = valueOf(before, name);
  return value < old ? value : value - old;
}

// The `share` quantile of the observations between two states, linear within a bucket and at most
// the last bound; null without a new observation.
export function quantile(before, after, name, share) {
  const buckets = (samples) => new Map(samplesOf(samples, `${name}_bucket`).map((sample) =>
    [Number(sample.labels.le.replace("+Inf", "Infinity")), sample.value]));
  const old = buckets(before);
  const counts = [...buckets(after)].sort((a, b) => a[0] - b[0])
    .map(([bound, count]) => [bound, count - (old.get(bound) ?? 0)]);
  const total = counts.at(-1)?.[1] ?? 0;
  if (total <= 0) return null;
  let low = 0, below = 0;
  for (const [bound, count] of counts) {
    if (count >= share * total) {
      if (bound === Infinity) return low;
      return low + (bound - low) * (share * total - below) / (count - below);
    }
    [low, below] = [bound, count];
  }
  return low;
}
