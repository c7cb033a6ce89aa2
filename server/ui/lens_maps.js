// SPDX-License-Identifier: Apache-2.0
// Full maps of a head as heat maps, and the lens as a picture.

import { make, visible } from "./dom.js";
import { keptOf, share, strongest } from "./lens_view.js";

const MAX_ROWS = 384, MAX_CELLS = 1 << 20; // of a heat map
const SIDE = 384; // minimum pixels of a map with few tokens

// How many queries of a text are drawn: the last ones.
export const rowsOf = (count) =>
  Math.max(1, Math.min(count, MAX_ROWS, Math.floor(MAX_CELLS / count)));

// Base64 of little-endian float16.
export function halvesOf(base64) {
  const bytes = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  return Float32Array.from({ length: bytes.length / 2 }, (_, i) => {
    const bits = view.getUint16(2 * i, true);
    const exponent = (bits >> 10) & 31, fraction = bits & 1023, sign = bits & 0x8000 ? -1 : 1;
    if (exponent === 31) return fraction ? NaN : sign * Infinity;
    if (exponent === 0) return sign * fraction * 2 ** -24;
    return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
  });
}

export function colours() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => {
    const hex = style.getPropertyValue(name).trim();
    return [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
  };
  return { paper: read("--paper"), ink: read("--ink"), map1: read("--map1"), map2: read("--map2"),
    kept: read("--kept") };
}

const rgb = (colour) => `rgb(${colour.join(" ")})`;

// `rows`: {position, values} of each query; negative values take `below`'s colour. Colours show
// the square root of a share, so that faint ones are visible.
function heatMap(rows, width, { colour, below, palette, chosen }) {
  const top = Math.max(...rows.map(({ values }) =>
    values.reduce((most, value) => Math.max(most, Math.abs(value)), 1e-9)));
  const image = new ImageData(width, rows.length);
  rows.forEach(({ values }, y) => {
    for (let x = 0; x < width; ++x) {
      const value = x < values.length ? values[x] : 0;
      const weight = Math.sqrt(Math.min(1, Math.abs(value) / top));
      const target = value < 0 ? below : colour;
      const at = 4 * (y * width + x);
      for (let c = 0; c < 3; ++c) {
        image.data[at + c] = palette.paper[c] + weight * (target[c] - palette.paper[c]);
      }
      image.data[at + 3] = 255;
    }
  });
  const small = new OffscreenCanvas(width, rows.length);
  small.getContext("2d").putImageData(image, 0, 0);
  const scale = Math.max(1, Math.floor(SIDE / width));
  const canvas = make("canvas", { width: width * scale, height: rows.length * scale });
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = false;
  context.drawImage(small, 0, 0, canvas.width, canvas.height);
  const y = rows.findIndex(({ position }) => position === chosen);
  if (y >= 0) {
    context.strokeStyle = rgb(palette.ink);
    context.strokeRect(0.5, y * scale - 0.5, canvas.width - 1, scale + 1);
  }
  return canvas;
}

// Draws A1, lambda A2 and their difference, or A1 alone. Calls `onPoint(text)` with what is
// under the pointer, and `onPick(position)` with a query that was clicked.
export function fillMaps(box, { rows, texts, chosen }, { onPoint, onPick }) {
  const palette = colours();
  const parts = rows.map((row) => ({ position: row.position, ...keptOf(row), map1: row.map1 }));
  const kinds = [["A₁", "map1", palette.map1, (row) => row.map1]];
  if (rows[0].map2) {
    kinds.push(["λ A₂", "map2", palette.map2, (row) => row.subtracted],
      ["A₁ − λ A₂", "kept", palette.kept, (row) => row.kept]);
  }
  const width = rows.at(-1).position + 1;
  box.replaceChildren(...kinds.map(([title, className, colour, valuesOf]) => {
    const shown = parts.map((row) => ({ position: row.position, values: valuesOf(row) }));
    const canvas = heatMap(shown, width, { colour, below: palette.map2, palette, chosen });
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `${title}: rows are queries, columns what they see`);
    const placeOf = (event) => {
      const x = Math.floor(event.offsetX / canvas.clientWidth * width);
      const row = shown[Math.floor(event.offsetY / canvas.clientHeight * shown.length)];
      return row && x >= 0 ? { x, row } : null;
    };
    canvas.addEventListener("pointermove", (event) => {
      const place = placeOf(event);
      if (!place || place.x > place.row.position) return onPoint("");
      const { x, row } = place;
      return onPoint(`“${visible(texts[row.position])}” (${row.position}) to ` +
        `“${visible(texts[x])}” (${x}): ${title} ${share(row.values[x])}`);
    });
    canvas.addEventListener("click", (event) => onPick(placeOf(event)?.row.position));
    return make("figure", { className: className }, canvas, make("figcaption", {}, title));
  }));
}

// The lens as one picture: its words, the strongest tokens as bars, the maps.
export function pictureOf({ title, texts, row, canvases }) {
  const palette = colours(), { subtracted, kept } = keptOf(row);
  const canvas = make("canvas", { width: 1200, height: 760 });
  const context = canvas.getContext("2d");
  context.fillStyle = rgb(palette.paper);
  context.fillRect(0, 0, canvas.width, canvas.height);
  const write = (text, x, y, colour, size = 16) => {
    context.fillStyle = rgb(colour);
    context.font = `${size}px system-ui, sans-serif`;
    context.fillText(text, x, y);
  };
  write(title, 24, 36, palette.ink, 20);
  const series = [["A₁", palette.map1, row.map1]];
  if (row.map2) {
    series.push(["λ A₂", palette.map2, subtracted], ["A₁ − λ A₂", palette.kept, kept]);
  }
  const most = Math.max(...row.map1, ...subtracted, 1e-9);
  series.forEach(([name, colour, values], column) => {
    const x = 24 + column * 392;
    write(name, x, 76, colour);
    strongest(values, 8).forEach((slot, i) => {
      const y = 104 + 26 * i;
      context.fillStyle = rgb(values[slot] < 0 ? palette.map2 : colour);
      context.fillRect(x + 130, y - 14, 170 * Math.abs(values[slot]) / most, 16);
      write(visible(texts[slot]).slice(0, 14), x, y, palette.ink);
      write(share(values[slot]), x + 306, y, palette.ink);
    });
    const map = canvases[column];
    if (map) {
      context.imageSmoothingEnabled = false;
      context.drawImage(map, x, 330, 368, 368 * map.height / map.width);
    }
  });
  return canvas;
}
