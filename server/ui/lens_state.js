// SPDX-License-Identifier: Apache-2.0
// What the lens looks at, as the part of the address after # and as a saved file.

export const FORMAT = "diffserve lens 1";

const NUMBER = /^-?\d+$/;

function idsOf(text) {
  const ids = text.split(",");
  if (!ids.every((id) => NUMBER.test(id))) throw new Error("the address has an invalid token id");
  return ids.map(Number);
}

// {chat, answer, goes_on} or {text} or {ids}, and {model, matter, layer, head, position, span};
// absent members are undefined.
export function stateOf(fragment) {
  const found = new URLSearchParams(fragment);
  const state = {};
  for (const name of ["model", "chat", "answer", "goes_on", "text", "matter"]) {
    if (found.has(name)) state[name] = found.get(name);
  }
  if (found.has("ids")) state.ids = idsOf(found.get("ids"));
  for (const name of ["layer", "head", "position"]) {
    if (!found.has(name)) continue;
    if (!NUMBER.test(found.get(name))) throw new Error(`${name} in the address is not a number`);
    state[name] = Number(found.get(name));
  }
  if (found.has("span")) {
    const [begin, end, ...rest] = found.get("span").split("-").map(Number);
    if (rest.length > 0 || !(begin < end)) throw new Error("the span in the address is not valid");
    state.span = [begin, end];
  }
  return state;
}

export function fragmentOf(state) {
  const named = { ...state };
  if (state.ids) named.ids = state.ids.join(",");
  if (state.span) named.span = state.span.join("-");
  const told = Object.entries(named).filter(([, value]) => value !== undefined && value !== "");
  return new URLSearchParams(told).toString();
}

// The members of a request that give the text whose attention is requested. It ends where the model
// begins to write: an answer, or the rest of one that goes on. An answer that is whole ends it.
export function sourceOf(state) {
  if (state.ids) return { tokens: state.ids };
  if (state.chat === undefined) return { text: state.text };
  const messages = [{ role: "user", content: state.chat }];
  if (!state.answer) return { messages, add_generation_prompt: true };
  messages.push({ role: "assistant", content: state.answer });
  return { messages, add_generation_prompt: false,
    ...(state.goes_on ? { continue_final_message: true } : {}) };
}

const isNumbers = (list, length) => Array.isArray(list) && list.length === length &&
  list.every((value) => typeof value === "number");

// Parses and checks a saved state; throws an Error that says what is wrong.
export function savedOf(text) {
  let saved;
  try {
    saved = JSON.parse(text);
  } catch {
    throw new Error("this file is not JSON");
  }
  if (saved?.format !== FORMAT) throw new Error(`this file's "format" is not "${FORMAT}"`);
  const { texts, position, row } = saved;
  if (!Array.isArray(texts) || !texts.every((one) => typeof one === "string")) {
    throw new Error('"texts" must be a list of texts');
  }
  if (!Number.isInteger(position) || position < 0 || position >= texts.length) {
    throw new Error(`"position" must be 0 to ${texts.length - 1}`);
  }
  const figures = ["lambda", "cancelled", "entropy1", ...(row?.map2 ? ["entropy2"] : [])];
  const ok = row && figures.every((name) => typeof row[name] === "number") &&
    isNumbers(row.map1, position + 1) && (row.map2 === null || isNumbers(row.map2, position + 1));
  if (!ok) throw new Error(`"row" must have ${figures} and maps of ${position + 1} numbers`);
  return saved;
}

// Token ranges [begin, end) of the first and last occurrence of `wanted`; null if there is none.
export function occurrences(texts, wanted) {
  const all = texts.join("");
  const find = (from) => {
    let begin = 0, offset = 0;
    while (offset + texts[begin].length <= from) offset += texts[begin++].length;
    let end = begin;
    while (end < texts.length && offset < from + wanted.length) offset += texts[end++].length;
    return [begin, end];
  };
  const first = all.indexOf(wanted);
  return wanted === "" || first < 0 ? null
    : { first: find(first), last: find(all.lastIndexOf(wanted)) };
}

const MAX_RUN = 64; // tokens compared on each side

// The range of the earlier token equal to ids[written] around which most tokens are equal as well:
// a model that copies a text reads there. undefined: there is none.
export function earlierPlace(ids, written) {
  const runFrom = (slot, step) => {
    let length = 0;
    while (length < MAX_RUN && ids[slot + step * (length + 1)] !== undefined &&
      ids[slot + step * (length + 1)] === ids[written + step * (length + 1)]) ++length;
    return length;
  };
  let place, longest = -1;
  for (let slot = written - 1; slot >= 0; --slot) {
    if (ids[slot] !== ids[written]) continue;
    const run = runFrom(slot, -1) + runFrom(slot, 1);
    if (run > longest) [place, longest] = [[slot, slot + 1], run];
  }
  return place;
}
