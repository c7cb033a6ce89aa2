// SPDX-License-Identifier: Apache-2.0
// The frame: the model that the page talks to, and three views. The part of the address after #
// chooses the view, and the model where the server has several.

import { getJson } from "./api.js";
import { setChatModel, startChat } from "./chat.js";
import { byId, make, notice } from "./dom.js";
import { setEngineModel, showEngine, startEngine } from "./engine.js";
import { lensOf, openTokens, setLensModel, showLens, startLens } from "./lens.js";

const VIEWS = ["chat", "lens", "engine"];
const NO_TOKENIZER = [400, 404, 501]; // statuses of /tokenizer_info

let cards = []; // of the models to choose from: those of /v1/models, or the first of one model's
let model = null; // {id, takesText, chats, inAddress: its id if there are several}
let latest = 0; // the newest choice of a model

function view() {
  const [wanted, fragment = ""] = location.hash.slice(1).split("?");
  return [VIEWS.includes(wanted) ? wanted : "chat", fragment];
}

function drawFrame() {
  const [shown] = view(), takesText = model?.takesText ?? true, chats = model?.chats ?? true;
  const isWithout = !takesText && shown !== "engine";
  for (const name of VIEWS) byId(name).hidden = name !== shown || isWithout;
  byId("ids_only").hidden = !isWithout;
  for (const node of document.querySelectorAll(".of_chat")) node.hidden = !chats;
  for (const node of document.querySelectorAll(".of_text")) node.hidden = chats;
  for (const link of document.querySelectorAll("nav a")) {
    const [name] = link.hash.slice(1).split("?");
    if (model?.inAddress) {
      link.hash = `${name}?${new URLSearchParams({ model: model.inAddress })}`;
    }
    if (name === shown) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  showEngine(shown === "engine");
}

// What a model can do: it may have no tokenizer, or no chat template.
async function abilitiesOf(id) {
  const query = cards.length > 1 ? `?${new URLSearchParams({ model: id })}` : "";
  try {
    const info = await getJson(`tokenizer_info${query}`);
    return { takesText: true, chats: Boolean(info.chat_template) };
  } catch (error) {
    if (NO_TOKENIZER.includes(error.status)) return { takesText: false, chats: false };
    notice(error.message);
    return { takesText: true, chats: true };
  }
}

// True once `id` is the model; false if another one was chosen meanwhile.
async function choose(id) {
  const turn = ++latest, card = cards.find((one) => one.id === id);
  if (!card) throw new Error(`there is no model ${id} here, but ${cards.map((one) => one.id)}`);
  byId("model_choice").value = id;
  byId("model").textContent = "";
  const abilities = await abilitiesOf(id);
  if (turn !== latest) return false;
  model = { id, ...abilities, inAddress: cards.length > 1 ? id : undefined };
  setChatModel(model);
  setLensModel(model);
  setEngineModel(model);
  const length = card.max_model_len ? `, ${card.max_model_len} tokens` : "";
  byId("model").textContent = model.inAddress ? "" : id + length;
  return true;
}

async function show() {
  drawFrame();
  if (cards.length === 0) return;
  const [shown, fragment] = view();
  const id = new URLSearchParams(fragment).get("model") ?? model?.id ?? cards[0].id;
  try {
    if (id !== model?.id && !(await choose(id))) return;
    drawFrame();
    if (shown === "lens" && model.takesText) await showLens(fragment);
  } catch (error) {
    notice(error.message);
  }
}

function onChoice() {
  const { value } = byId("model_choice"), [shown] = view();
  location.hash = shown === "lens" ? lensOf(value)
    : `${shown}?${new URLSearchParams({ model: value })}`;
}

async function start() {
  try {
    const { data } = await getJson("v1/models");
    // The entries of one model are its names; those of several models have a status.
    cards = data.every((one) => one.status) ? data : data.slice(0, 1);
    byId("models").hidden = cards.length === 1;
    byId("model_choice").append(...cards.map(({ id }) => make("option", {}, id)));
    await show();
  } catch (error) {
    notice(error.message);
  }
}

startChat(openTokens);
startLens();
startEngine();
byId("model_choice").addEventListener("change", onChoice);
addEventListener("hashchange", show);
drawFrame();
start();
