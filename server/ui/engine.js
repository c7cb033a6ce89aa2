// SPDX-License-Identifier: Apache-2.0
// The engine at work: /metrics, read once per second while the view is visible.

import { request } from "./api.js";
import { byId, make } from "./dom.js";
import { gained, parseMetrics, quantile, samplesOf, valueOf } from "./metrics.js";
import { bar, lines, strip } from "./plots.js";

const PERIOD_MS = 1000, HISTORY = 120, WINDOW = 10; // in states; quantiles are over WINDOW

const states = []; // {time, samples}
let model = {};
let shown = false;
let timer = 0;
let polling = false;

const rate = (name) => (before, after) =>
  gained(before.samples, after.samples, name) / Math.max(1e-3, (after.time - before.time) / 1000);
const level = (name) => (_, after) => valueOf(after.samples, name);
const ms = (name, share) => (before, after) => {
  const seconds = quantile(before.samples, after.samples, name, share);
  return seconds === null ? null : 1000 * seconds;
};

function hitShare(before, after) {
  const asked = gained(before.samples, after.samples, "prefix_query_tokens_total");
  const hit = gained(before.samples, after.samples, "prefix_hit_tokens_total");
  return asked === 0 ? null : 100 * hit / asked;
}

// Title, unit, window, and for each line its name, class and value from two states that are
// `window` states apart.
const CARDS = [
  ["Requests", "", 1, [["running", "line1", level("requests_running")],
    ["waiting", "line2", level("requests_waiting")]]],
  ["Last step", "", 1, [["rows", "line1", level("last_step_rows")],
    ["sequences", "line2", level("last_step_sequences")]]],
  ["Tokens per second", "", 1, [["generated", "line1", rate("generation_tokens_total")],
    ["prompt", "line2", rate("prompt_tokens_total")]]],
  ["First token", " ms", WINDOW, [["p50", "line1", ms("time_to_first_token_seconds", 0.5)],
    ["p99", "line2", ms("time_to_first_token_seconds", 0.99)]]],
  ["Between tokens", " ms", WINDOW, [["p50", "line1", ms("inter_token_seconds", 0.5)],
    ["p99", "line2", ms("inter_token_seconds", 0.99)]]],
  ["Prompt found in the prefix cache", " %", WINDOW, [["hits", "line1", hitShare]]],
];

function written(value) {
  if (value === null) return "–";
  return value >= 100 || Number.isInteger(value) ? value.toFixed(0) : value.toPrecision(3);
}

function card([title, unit, window, series]) {
  const drawn = series.map(([name, className, value]) => ({
    name, className,
    values: states.slice(1).map((state, i) => value(states[Math.max(0, i + 1 - window)], state)),
  }));
  const now = drawn.map(({ name, className, values }) => make("span", { className },
    `${name} `, make("b", {}, `${written(values.at(-1) ?? null)}${unit}`)));
  const top = Math.max(0, ...drawn.flatMap(({ values }) => values));
  const label = `${title}, up to ${written(top)}${unit}, the last ${HISTORY} seconds`;
  return make("div", { className: "card" }, make("h3", {}, title), make("p", {}, ...now),
    make("small", { className: "top" }, `${written(top)}${unit}`),
    lines(drawn, HISTORY, top, label));
}

function pages(samples) {
  const parts = ["used", "cached", "free"].map((state) => ({
    state, value: valueOf(samples, "kv_pages", { state }), className: `pages_${state}`,
  }));
  const text = parts.map(({ state, value }) => `${state} ${value}`).join(", ");
  return [strip(parts, `KV pages: ${text}`),
    make("p", { className: "legend" }, ...parts.map(({ state, value, className }) =>
      make("span", { className }, "■ ", make("b", {}, String(value)), ` ${state} `)))];
}

function layers(samples) {
  const byLayer = (name) => new Map(samplesOf(samples, name).map((sample) =>
    [sample.labels.layer, sample.value]));
  const lambdas = byLayer("layer_lambda"), starts = byLayer("layer_lambda_init");
  if (lambdas.size === 0) {
    return [make("p", { className: "quiet" },
      "No layer has a constant λ: the model has one map, or its λ depends on the token.")];
  }
  const top = Math.max(1, ...lambdas.values(), ...starts.values());
  return [...lambdas].map(([layer, value]) => {
    const start = starts.get(layer);
    const text = `${value.toFixed(3)}` +
      (start === undefined ? "" : `, initially ${start.toFixed(3)}`);
    return make("div", { className: "layer" }, make("span", {}, `layer ${layer}`),
      bar(value, start, top, `layer ${layer}: λ ${text}`), make("span", {}, text));
  });
}

function draw() {
  const { samples } = states.at(-1);
  byId("cards").replaceChildren(...CARDS.map(card));
  byId("pages").replaceChildren(...pages(samples));
  byId("lambdas").replaceChildren(...layers(samples));
}

async function poll() {
  if (polling) return;
  polling = true;
  try {
    const text = await (await request("metrics")).text();
    states.push({ time: performance.now(), samples: parseMetrics(text, model.inAddress) });
    if (states.length > HISTORY + 1) states.shift();
    const note = "Live from /metrics, once per second; percentiles cover the last ten seconds.";
    if (byId("engine_note").textContent !== note) byId("engine_note").textContent = note;
    draw();
  } catch (error) {
    byId("engine_note").textContent = `No figures: ${error.message}`;
  }
  polling = false;
}

function watch() {
  const wanted = shown && document.visibilityState === "visible";
  if (wanted === (timer !== 0)) return;
  clearInterval(timer);
  timer = wanted ? setInterval(poll, PERIOD_MS) : 0;
  if (wanted) poll();
}

export function setEngineModel(next) {
  model = next;
  states.length = 0;
}

export function showEngine(isShown) {
  shown = isShown;
  watch();
}

export function startEngine() {
  document.addEventListener("visibilitychange", watch);
}
