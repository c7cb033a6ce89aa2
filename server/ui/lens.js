// SPDX-License-Identifier: Apache-2.0
// The lens: for a token of a text, where each map of a head looked and what the difference kept.

import { postJson } from "./api.js";
import { byId, download, make, notice, showCode, visible } from "./dom.js";
import { TEXTS } from "./examples.js";
import { fillMaps, halvesOf, pictureOf, rowsOf } from "./lens_maps.js";
import {
  fillContext, fillFigures, fillHeads, fillKept, fillPaper, fillRanking, headAfter,
  noteOf,
} from "./lens_view.js";
import {
  FORMAT, earlierPlace, fragmentOf, occurrences, savedOf, sourceOf, stateOf,
} from "./lens_state.js";

let model = null; // {id, chats, inAddress}
let state = null; // the state in the address
let wanted = null; // the state after the change in progress
let found = null; // {model, ids, texts, maps, numLayers, numHeads, rows, row, mapRows}
let shownFragment = null;
let latest = 0; // the newest look; an older one's answers are dropped

const attention = (body) => postJson("v1/attention", { model: model.id, ...body });

// What every answer says about the text.
function textOf(answer) {
  return { model: answer.model, ids: answer.tokens, texts: answer.token_texts, maps: answer.maps,
    numLayers: answer.num_layers, numHeads: answer.num_heads };
}

// If the text that matters occurs again in the answer, its first occurrence is the span, and the
// token before its last occurrence is the query: the model wrote it from there.
function placesOf({ matter, span, position }, texts) {
  const places = matter === undefined ? null : occurrences(texts, matter);
  const last = texts.length - 1;
  if (!places) return { span, position: position ?? last };
  const again = places.last[0] > places.first[0];
  return { span: span ?? places.first, position: position ?? (again ? places.last[0] - 1 : last) };
}

// The head to show first: the one that keeps most of what matters, else the one that cancels most.
function firstHead(rows) {
  const score = (row) => (row.on_span ? row.on_span.difference : row.cancelled);
  return rows.reduce((best, row) => (score(row) > score(best) ? row : best));
}

function writeAddress() {
  shownFragment = fragmentOf({ ...state, model: model.inAddress });
  history.replaceState(null, "", `#lens?${shownFragment}`);
}

// Shows all of `next`; `isNew`: its text was not shown before.
async function look(next, isNew) {
  const turn = ++latest;
  if (isNew) wanted = null;
  byId("lens").setAttribute("aria-busy", "true");
  try {
    let text = found;
    if (isNew) {
      const source = sourceOf(next);
      text = textOf(await attention({ ...source, layers: [0], heads: [0], top_k: 0 }));
      if (turn !== latest) return;
    }
    const places = placesOf(next, text.texts);
    const all = await attention({ tokens: text.ids, positions: [places.position], top_k: 0,
      ...(places.span ? { span: places.span } : {}) });
    if (turn !== latest) return;
    const { layer, head } = next.layer === undefined ? firstHead(all.data) : next;
    const one = await attention({ tokens: text.ids, layers: [layer], heads: [head],
      positions: [places.position], ...(places.span ? { span: places.span } : {}) });
    if (turn !== latest) return;
    const isOther = isNew || layer !== state.layer || head !== state.head;
    wanted = null;
    const [row] = one.data; // its positions count from the front, whatever the request said
    state = { ...next, ...places, layer: row.layer, head: row.head, position: row.position };
    found = { ...text, rows: all.data, row, mapRows: isOther ? null : found.mapRows };
    notice("");
    writeAddress();
    if (isNew) fillForm();
    draw();
    await lookAtMaps(turn);
  } catch (error) {
    if (turn !== latest) return;
    wanted = null;
    notice(error.message);
  } finally {
    if (turn === latest) byId("lens").setAttribute("aria-busy", "false");
  }
}

async function lookAtMaps(turn) {
  if (!found.mapRows) {
    const count = found.ids.length, length = rowsOf(count);
    const positions = Array.from({ length }, (_, i) => count - length + i);
    const answer = await attention({ tokens: found.ids, layers: [state.layer], heads: [state.head],
      positions, encoding: "float16" });
    if (turn !== latest) return;
    found.mapRows = answer.data.map((row) => ({ ...row, map1: halvesOf(row.map1),
      map2: row.map2 === null ? null : halvesOf(row.map2) }));
  }
  drawMaps();
}

// Keys may come faster than answers: each starts from the state that the last one requested.
const aim = () => wanted ?? state;

function change(members) {
  wanted = { ...aim(), ...members };
  return look(wanted, false);
}

const choose = (layer, head) => change({ layer, head });

function describe() {
  const { texts, maps } = found, { position } = state;
  const quoted = (slot) => `“${visible(texts[slot])}”`;
  const next = position + 1 < texts.length
    ? `; the next token is ${quoted(position + 1)}` : "; the next token is not generated yet";
  return `What ${quoted(position)} (token ${position} of ${texts.length}) read in layer ` +
    `${state.layer}, head ${state.head}${next}.` +
    (maps === 1 ? " This model has one map: nothing is subtracted." : "") +
    (state.matter && !state.span ? ` “${visible(state.matter)}” is not in the text.` : "");
}

let spanBegin = null; // of a span that is being marked

function pick(slot, event) {
  if (!event.shiftKey) {
    change({ position: slot });
  } else if (spanBegin === null) {
    spanBegin = slot;
  } else {
    const span = [Math.min(spanBegin, slot), Math.max(spanBegin, slot) + 1];
    spanBegin = null;
    byId("lens_matter").value = "";
    change({ span, matter: undefined });
  }
}

// Only a model with a chat template takes messages, and only an answer can go on.
function enableForm() {
  const chat = byId("lens_chat"), answer = byId("lens_answer"), goesOn = byId("lens_goes_on");
  chat.disabled = !model.chats;
  chat.checked &&= model.chats;
  answer.disabled = !chat.checked;
  goesOn.disabled = !chat.checked || answer.value === "";
}

function fillForm() {
  byId("lens_text").value = state.chat ?? state.text ?? found.texts.join("");
  byId("lens_chat").checked = state.chat !== undefined;
  byId("lens_answer").value = state.answer ?? "";
  byId("lens_goes_on").checked = Boolean(state.goes_on);
  enableForm();
  byId("lens_matter").value = state.matter ??
    (state.span ? found.texts.slice(...state.span).join("").trim() : "");
}

function draw() {
  byId("lens_body").hidden = false;
  byId("lens_body").classList.toggle("plain", found.maps === 1);
  byId("lens_what").textContent = describe();
  fillHeads(byId("heads"), { ...found, chosen: state }, choose);
  fillFigures(byId("figures"), found.row);
  byId("figures_note").textContent = noteOf(found.row);
  fillKept(byId("kept"), found.texts, found.row);
  fillContext(byId("context"), { ...found, ...state }, pick);
  fillRanking(byId("ranking"), found.rows, state, choose);
  fillPaper(byId("paper"), found.row);
}

function drawMaps() {
  const count = found.ids.length;
  byId("maps_note").textContent = "Rows are queries, columns are the tokens they " +
    "see. Colours show the square root of each share, so that faint ones are visible." +
    (rowsOf(count) < count ? ` The last ${rowsOf(count)} of ${count} queries.` : "");
  fillMaps(byId("maps"), { rows: found.mapRows, texts: found.texts, chosen: state.position }, {
    onPoint: (text) => { byId("pointed").textContent = text || "\u00a0"; },
    onPick: (position) => position !== undefined && change({ position }),
  });
}

const titleOf = () => `${found.model}: “${visible(found.texts[state.position])}”, layer ` +
  `${state.layer}, head ${state.head}`;

function savePng() {
  const canvases = [...byId("maps").querySelectorAll("canvas")];
  pictureOf({ title: titleOf(), texts: found.texts, row: found.row, canvases })
    .toBlob((blob) => download("lens.png", blob), "image/png");
}

function saveJson() {
  const { model, ids, texts, maps, rows, row } = found;
  const { layer, head, position, span } = state;
  const saved = { format: FORMAT, model, layer, head, position, span, maps, ids, texts, row, rows };
  download("lens.json", new Blob([JSON.stringify(saved)], { type: "application/json" }));
}

async function compare(event) {
  const [file] = event.target.files;
  event.target.value = "";
  if (!file) return;
  try {
    const saved = savedOf(await file.text());
    const context = make("div", { className: "context", id: "compared_context" });
    const figures = make("dl", { className: "figures" });
    fillContext(context, saved);
    fillFigures(figures, saved.row);
    const box = byId("compared");
    box.replaceChildren(make("h2", {}, `Saved: ${saved.model}, layer ${saved.layer}, head ` +
      `${saved.head}`), figures, context);
    box.classList.toggle("plain", saved.row.map2 === null);
    box.hidden = false;
    notice("");
  } catch (error) {
    notice(`${file.name}: ${error.message}`);
  }
}

function onContextKey(event) {
  const { position } = aim();
  const next = { ArrowRight: position + 1, ArrowLeft: position - 1, Home: 0,
    End: found.ids.length - 1 }[event.key];
  if (next === undefined || next < 0 || next >= found.ids.length) return;
  event.preventDefault();
  change({ position: next });
}

function onHeadKey(event) {
  const next = headAfter(event.key, aim(), found.numLayers, found.numHeads);
  if (!next) return;
  event.preventDefault();
  choose(next.layer, next.head);
}

function onSubmit(event) {
  event.preventDefault();
  const valueOf = (name) => byId(name).value || undefined;
  const text = valueOf("lens_text"), matter = valueOf("lens_matter");
  if (text === undefined) return;
  const answer = valueOf("lens_answer");
  const goes_on = answer && byId("lens_goes_on").checked ? "1" : undefined;
  look(byId("lens_chat").checked ? { chat: text, answer, goes_on, matter } : { text, matter },
    true);
}

// Opens the lens where token `written` of a model's `ids` was written, at the token before it. What
// matters is an earlier place of the same token, if there is one.
export function openTokens(id, ids, written) {
  const position = Math.max(0, written - 1), span = earlierPlace(ids, written);
  location.hash = `#lens?${fragmentOf({ model: model.inAddress && id, ids, position, span })}`;
}

// The address at which another model looks at the text that is shown, if it has its source.
export function lensOf(id) {
  const { chat, answer, goes_on, text, matter } = state ?? {};
  return `#lens?${fragmentOf({ model: id, chat, answer, goes_on, text, matter })}`;
}

// A conversation as a text, for a model without a chat template.
function asText({ chat, answer, goes_on, ...rest }) {
  return chat === undefined ? rest : { text: answer ? `${chat}\n${answer}` : chat, ...rest };
}

export function setLensModel(next) {
  model = next;
  state = found = wanted = shownFragment = null;
  ++latest;
  byId("lens").setAttribute("aria-busy", "false");
  byId("lens_body").hidden = true;
  byId("lens_what").textContent = "";
  byId("lens_chat").checked = next.chats;
  enableForm();
}

// Called when the lens comes into view with a part of the address that it did not write itself.
export function showLens(fragment) {
  if (fragment === shownFragment) return undefined;
  try {
    const { model: _, ...next } = model.chats ? stateOf(fragment) : asText(stateOf(fragment));
    if (Object.keys(next).length > 0) return look(next, true);
    if (state) return writeAddress();
    const { name, ...first } = TEXTS[0];
    return model.chats ? look(first, true) : undefined;
  } catch (error) {
    return notice(error.message);
  }
}

export function startLens() {
  byId("lens_form").addEventListener("submit", onSubmit);
  byId("lens_form").addEventListener("input", enableForm);
  byId("context").tabIndex = 0;
  byId("context").addEventListener("keydown", onContextKey);
  byId("heads").addEventListener("keydown", onHeadKey);
  byId("save_png").addEventListener("click", savePng);
  byId("save_json").addEventListener("click", saveJson);
  byId("copy_link").addEventListener("click", () => showCode("Link to this state", location.href));
  byId("open_json").addEventListener("change", compare);
  byId("lens_examples").append(...TEXTS.map(({ name, ...example }) =>
    make("button", { type: "button", on: { click: () => look(example, true) } }, name)));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    if (found?.mapRows) drawMaps();
  });
}
