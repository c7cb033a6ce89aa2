// SPDX-License-Identifier: Apache-2.0
// The view of one token: bars over the context, figures, heads.

import { make, visible } from "./dom.js";
import { PAPER } from "./examples.js";

export function share(value) {
  const text = (100 * value).toFixed(Math.abs(value) < 0.1 ? 1 : 0);
  return `${text === "-0.0" ? "0.0" : text.replace("-", "−")} %`;
}

const nats = (value) => (value === null ? "–" : value.toFixed(2));
const offSpan = (one, map) => (one.on_span?.[map] == null ? "–" : share(1 - one.on_span[map]));
const signed = (value) => `${value > 0 ? "+" : ""}${share(value)}`;

// What a head keeps of each slot, and what it subtracts there.
export function keptOf(row) {
  const subtracted = row.map1.map((_, slot) => (row.map2 ? row.lambda * row.map2[slot] : 0));
  return { subtracted, kept: row.map1.map((p, slot) => p - subtracted[slot]) };
}

function barsOf(first, subtracted, kept, top) {
  const height = (value) => `${(100 * Math.min(1, Math.abs(value) / top)).toFixed(1)}%`;
  const parts = [["b1", first], ["b2 second", subtracted], ["bd second", kept]];
  return make("span", { className: "bars" }, ...parts.map(([className, value]) => {
    const one = make("i", { className: `${className}${value < 0 ? " negative" : ""}` });
    one.style.height = height(value);
    return one;
  }));
}

// The context as text with bars under its tokens; a click calls `onPick(slot, event)`.
export function fillContext(box, { texts, row, position, span }, onPick) {
  const { subtracted, kept } = keptOf(row);
  const top = Math.max(...row.map1, ...subtracted, 1e-9);
  const nodes = texts.map((text, slot) => {
    const classes = ["slot"];
    if (slot === position) classes.push("query");
    if (slot > position) classes.push("unseen_yet");
    if (span && slot >= span[0] && slot < span[1]) classes.push("matters");
    const node = make("span", {
      className: classes.join(" "), role: "option", id: `${box.id}_${slot}`,
      ariaSelected: String(slot === position),
    }, make("bdi", {}, visible(text)));
    if (slot <= position) {
      node.append(barsOf(row.map1[slot], subtracted[slot], kept[slot], top));
      node.title = `token ${slot}: A₁ ${share(row.map1[slot])}` + (row.map2
        ? `, λ A₂ ${share(subtracted[slot])}, difference ${share(kept[slot])}` : "");
    }
    if (onPick) node.addEventListener("click", (event) => onPick(slot, event));
    return node;
  });
  box.replaceChildren(...nodes);
  box.setAttribute("aria-activedescendant", `${box.id}_${position}`);
}

export function fillFigures(list, row) {
  const pairs = [["λ", row.lambda.toFixed(3), true],
    ["cancelled of map 1", share(row.cancelled), true],
    ["entropy of A₁, nats", nats(row.entropy1), false],
    ["entropy of A₂, nats", nats(row.entropy2), true]];
  if (row.on_span) {
    pairs.push(["A₁ off what matters", offSpan(row, "map1"), false],
      ["A₂ off what matters", offSpan(row, "map2"), true],
      ["|A₁ − λ A₂| off what matters, negative too", offSpan(row, "difference"), true]);
  }
  list.replaceChildren(...pairs.map(([name, value, second]) =>
    make("div", { className: second ? "second" : "" },
      make("dt", {}, name), make("dd", {}, value))));
}

// What the subtraction did to the share that is off what matters; empty without a second map.
export function noteOf(row) {
  if (!row.on_span || row.map2 === null) return "";
  const before = offSpan(row, "map1"), after = offSpan(row, "difference");
  return row.on_span.difference >= row.on_span.map1
    ? `The subtraction takes what is off what matters from ${before} to ${after}.`
    : `The subtraction takes what is off what matters from ${before} up to ${after}: it leaves ` +
      "negative shares where only A₂ looks, and they count by their size.";
}

const STRONGEST = 5;

// The slots of the largest values, whatever their sign.
export function strongest(values, count = STRONGEST) {
  return [...values.keys()].sort((a, b) => Math.abs(values[b]) - Math.abs(values[a]))
    .slice(0, count);
}

export function fillKept(box, texts, row) {
  const { subtracted, kept } = keptOf(row);
  const columns = [["A₁ saw", "map1", row.map1, share],
    ["λ A₂ subtracts", "map2 second", subtracted, share],
    ["what stays, by size", "kept second", kept, signed]];
  box.replaceChildren(...columns.map(([title, className, values, written]) => make("div",
    { className },
    make("h3", {}, title), make("ol", {}, ...strongest(values).map((slot) =>
      make("li", { "data-slot": slot }, make("bdi", {}, visible(texts[slot])),
        make("small", {}, ` ${slot}`), make("b", {}, written(values[slot]))))))));
}

// Arrow keys move in the grid; one head is chosen.
export function fillHeads(grid, { numLayers, numHeads, rows, chosen }, onChoose) {
  const of = (layer, head) => rows.find((row) => row.layer === layer && row.head === head);
  const nodes = [];
  for (let layer = 0; layer < numLayers; ++layer) {
    const line = make("div", { className: "layer_heads" }, make("span", {}, `layer ${layer}`));
    for (let head = 0; head < numHeads; ++head) {
      const isChosen = layer === chosen.layer && head === chosen.head;
      const node = make("button", {
        type: "button", role: "radio", ariaChecked: String(isChosen), tabIndex: isChosen ? 0 : -1,
        ariaLabel: `layer ${layer}, head ${head}, cancels ${share(of(layer, head).cancelled)}`,
        title: `layer ${layer}, head ${head}`,
        on: { click: () => onChoose(layer, head) },
      }, String(head));
      node.style.setProperty("--share", `${100 * of(layer, head).cancelled}%`);
      line.append(node);
    }
    nodes.push(line);
  }
  const hadFocus = grid.contains(document.activeElement);
  grid.replaceChildren(...nodes);
  if (hadFocus) grid.querySelector("[aria-checked=true]")?.focus();
}

export function headAfter(key, { layer, head }, numLayers, numHeads) {
  const [down, right] = {
    ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1],
  }[key] ?? [0, 0];
  const clamp = (value, count) => Math.max(0, Math.min(count - 1, value));
  const next = { layer: clamp(layer + down, numLayers), head: clamp(head + right, numHeads) };
  return next.layer === layer && next.head === head ? null : next;
}

function headerRow(names) {
  return make("tr", {}, ...names.map((name) => make("th", { scope: "col" }, name)));
}

export function fillRanking(table, rows, chosen, onChoose) {
  const withSpan = rows.some((row) => row.on_span);
  const sorted = [...rows].sort((a, b) => b.cancelled - a.cancelled);
  table.replaceChildren(
    make("thead", {}, headerRow(["head", "λ", "cancelled", "entropies",
      ...(withSpan ? ["off what matters, after"] : [])])),
    make("tbody", {}, ...sorted.map((row) => {
      const isChosen = row.layer === chosen.layer && row.head === chosen.head;
      const name = make("button", {
        type: "button", on: { click: () => onChoose(row.layer, row.head) },
      }, `layer ${row.layer}, head ${row.head}`);
      const cells = [row.lambda.toFixed(3), share(row.cancelled),
        `${nats(row.entropy1)}, ${nats(row.entropy2)}`];
      if (withSpan) cells.push(`${offSpan(row, "map1")}, ${offSpan(row, "difference")}`);
      return make("tr", { className: isChosen ? "chosen" : "" }, make("td", {}, name),
        ...cells.map((cell) => make("td", {}, cell)));
    })));
}

// The paper's shares; the last rows show the chosen head.
export function fillPaper(table, row) {
  const numbers = (values) => values.map((value) => make("td", {}, value));
  const lines = PAPER.rows.map(([what, model, values]) => make("tr", {},
    make("th", { scope: "row" }, `${model} ${what}`), ...numbers(values.map((v) => v.toFixed(2)))));
  if (row.on_span) {
    const here = (name, value) => make("tr", { className: "chosen" },
      make("th", { scope: "row" }, name), make("td", { colSpan: PAPER.depths.length }, value));
    lines.push(here("here, A₁ to what matters", row.on_span.map1.toFixed(2)));
    if (row.map2) {
      lines.push(here("here, the difference", row.on_span.difference.toFixed(2)));
    }
  }
  table.replaceChildren(
    make("thead", {}, headerRow(["depth", ...PAPER.depths.map((depth) => `${depth} %`)])),
    make("tbody", {}, ...lines));
}
