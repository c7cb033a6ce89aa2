// SPDX-License-Identifier: Apache-2.0
// Small plots as SVG.

import { makeSvg } from "./dom.js";

const WIDTH = 240, HEIGHT = 48;

// Lines over time from the left edge, at most `length` values; a null leaves a gap. `top` is the
// value at the upper edge.
export function lines(series, length, top, label) {
  const svg = makeSvg("svg", {
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img",
    "aria-label": label, class: "lines",
  });
  for (const { values, className } of series) {
    let path = "", pen = "M";
    values.forEach((value, i) => {
      if (value === null) {
        pen = "M";
        return;
      }
      const x = i / (length - 1) * WIDTH;
      const y = HEIGHT - 2 - value / (top || 1) * (HEIGHT - 4);
      path += `${pen}${x.toFixed(1)} ${y.toFixed(1)}`;
      pen = "L";
    });
    svg.append(makeSvg("path", { d: path, class: className }));
  }
  return svg;
}

// One bar divided by shares: parts are {value, className}.
export function strip(parts, label) {
  const total = parts.reduce((sum, part) => sum + part.value, 0) || 1;
  const svg = makeSvg("svg", {
    viewBox: "0 0 1000 24", preserveAspectRatio: "none", role: "img", "aria-label": label,
    class: "strip",
  });
  let x = 0;
  for (const { value, className } of parts) {
    const width = 1000 * value / total;
    svg.append(makeSvg("rect", { x, y: 0, width, height: 24, class: className }));
    x += width;
  }
  return svg;
}

// A bar from 0 to `value` of `top`, with a tick at `mark` if there is one.
export function bar(value, mark, top, label) {
  const svg = makeSvg("svg", {
    viewBox: "0 0 200 14", preserveAspectRatio: "none", role: "img", "aria-label": label,
    class: "bar",
  });
  const x = (number) => 200 * Math.min(1, Math.max(0, number / top));
  svg.append(makeSvg("rect", { x: 0, y: 2, width: x(value), height: 10, class: "fill2" }));
  if (mark !== undefined) {
    svg.append(makeSvg("rect", { x: x(mark) - 1, y: 0, width: 2, height: 14, class: "tick" }));
  }
  return svg;
}
