// SPDX-License-Identifier: Apache-2.0
// The frame: the model's name and three views; the part of the address after # chooses the view.

import { getJson } from "./api.js";
import { setModel, startChat } from "./chat.js";
import { byId, notice } from "./dom.js";
import { showEngine, startEngine } from "./engine.js";
import { openTokens, showLens, startLens } from "./lens.js";

const VIEWS = ["chat", "lens", "engine"];

function show() {
  const [wanted, state = ""] = location.hash.slice(1).split("?");
  const view = VIEWS.includes(wanted) ? wanted : "chat";
  for (const name of VIEWS) byId(name).hidden = name !== view;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${view}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  showEngine(view === "engine");
  if (view === "lens") showLens(state);
}

async function nameModel() {
  try {
    const [model] = (await getJson("v1/models")).data;
    setModel(model.id);
    byId("model").textContent = `${model.id}, ${model.max_model_len} tokens`;
  } catch (error) {
    notice(error.message);
  }
}

startChat(openTokens);
startLens();
startEngine();
addEventListener("hashchange", show);
show();
nameModel();
