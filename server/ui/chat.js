// SPDX-License-Identifier: Apache-2.0
// The conversation: messages, the running answer, and the actions on each.

import { hasKey } from "./api.js";
import {
  Answer, answerRequest, asCurl, asPython, moveByArrows, tokenNode,
} from "./answer.js";
import { byId, make, notice, showCode } from "./dom.js";
import { QUESTIONS } from "./examples.js";

const turns = []; // {question, answer}: answer is an Answer
let model = { id: "", chats: true };
let running = null; // the answer that is being generated
let openLens = () => {};

const CONTINUED = 64; // tokens that continue a text, which may have no end
const NUMBERS = ["temperature", "top_p", "top_k", "max_tokens", "seed"];

// An empty setting leaves the choice to the server.
function settings() {
  const found = {};
  for (const name of NUMBERS) {
    const input = byId(name);
    if (!input.checkValidity()) throw new Error(`${name}: ${input.validationMessage}`);
    if (input.value !== "") found[name] = Number(input.value);
  }
  return found;
}

function messagesBefore(index, question) {
  const system = byId("system").value;
  const messages = system === "" ? [] : [{ role: "system", content: system }];
  for (const turn of turns.slice(0, index)) {
    messages.push({ role: "user", content: turn.question });
    messages.push({ role: "assistant", content: turn.answer.text });
  }
  return [...messages, { role: "user", content: question }];
}

function setRunning(answer) {
  running = answer;
  byId("stop").disabled = answer === null;
  byId("send").disabled = answer !== null;
  byId("messages").setAttribute("aria-busy", String(answer !== null));
  for (const button of byId("messages").querySelectorAll(".actions button")) {
    button.disabled = answer !== null;
  }
}

// Asks `question` as turn `index` and drops that turn and all later ones. For a model that does not
// chat it is a text, of which what the model writes becomes a part.
async function ask(index, question) {
  if (running || question.trim() === "") return;
  let body;
  try {
    const prompt = model.chats ? messagesBefore(index, question) : question;
    const limits = model.chats ? settings() : { max_tokens: CONTINUED, ...settings() };
    body = answerRequest(model.id, prompt, limits, byId("colour").checked);
  } catch (error) {
    notice(error.message);
    return;
  }
  notice("");
  turns.length = index;
  const answer = new Answer(body);
  turns.push({ question, answer });
  draw();
  setRunning(answer);
  const text = byId("messages").lastElementChild.querySelector(".text");
  await answer.run((tokens) => {
    text.append(...tokens.map((token) => tokenNode(token, pressOf(answer))));
    text.lastElementChild?.scrollIntoView({ block: "nearest" });
  });
  if (answer.end === "stopped" && turns.at(-1)?.answer !== answer) return; // the chat was cleared
  setRunning(null);
  draw();
  byId("status").textContent = answer.failed ? answer.end : `Answer: ${answer.text}`;
  if (body.prompt !== undefined && byId("prompt").value === "") {
    byId("prompt").value = question + answer.text;
  }
}

const pressOf = (answer) => (index) =>
  openLens(answer.body.model, [...answer.promptIds, ...answer.ids],
    answer.promptIds.length + index);

function edit(node, index) {
  const turn = turns[index];
  const area = make("textarea", {
    value: turn.question, rows: 3, dir: "auto", ariaLabel: "Edit the message",
  });
  const form = make("form", {
    className: "edit",
    on: {
      submit: (event) => {
        event.preventDefault();
        ask(index, area.value);
      },
    },
  }, area, make("button", { className: "primary" }, model.chats ? "Ask again" : "Continue"),
  make("button", { type: "button", on: { click: () => draw() } }, "Cancel"));
  node.replaceChildren(form);
  area.focus();
}

function action(label, onClick) {
  return make("button", { type: "button", disabled: running !== null, on: { click: onClick } },
    label);
}

function questionNode(turn, index) {
  const node = make("article", { className: "user", ariaLabel: "You" });
  node.append(make("p", { className: "text", dir: "auto" }, turn.question),
    make("div", { className: "actions" }, action("Edit", () => edit(node, index))));
  return node;
}

function answerNode(turn, index) {
  const { answer, question } = turn;
  const text = make("p", {
    className: "text", dir: "auto", on: { keydown: moveByArrows },
  });
  const nodes = answer.tokens.map((token) => tokenNode(token, pressOf(answer)));
  text.append(...(answer.spelled === answer.text ? nodes : [answer.text]));
  if (text.firstElementChild) text.firstElementChild.tabIndex = 0;
  const node = make("article", { className: "assistant", ariaLabel: "Model" }, text);
  if (answer.end === "") return node;
  if (answer.failed) node.append(make("p", { className: "error" }, answer.end));
  if (!answer.failed && answer.text === "") {
    node.append(make("p", { className: "quiet" }, "The model ended its answer at once."));
  }
  const by = model.inAddress ? `${answer.body.model}: ` : "";
  node.append(make("p", { className: "quiet figures" }, by + answer.figures()),
    make("div", { className: "actions" },
      action("Retry", () => ask(index, question)),
      action("curl", () => showCode("As curl", asCurl(answer.body, hasKey()))),
      action("Python", () => showCode("As Python", asPython(answer.body, hasKey()))),
      ...(answer.ids.length > 0 ? [action("Lens", () => pressOf(answer)(0))] : [])));
  return node;
}

function draw() {
  byId("intro").classList.toggle("small", turns.length > 0);
  byId("messages").replaceChildren(...turns.flatMap((turn, index) =>
    [questionNode(turn, index), answerNode(turn, index)]));
}

function send(event) {
  event.preventDefault();
  if (running) return;
  const question = byId("prompt").value;
  byId("prompt").value = "";
  ask(model.chats ? turns.length : 0, question);
}

function clear() {
  running?.stop();
  turns.length = 0;
  setRunning(null);
  draw();
  byId("prompt").focus();
}

// `lens(model, ids, index)` opens the lens on token `index` of `ids`.
export function startChat(lens) {
  openLens = lens;
  byId("composer").addEventListener("submit", send);
  byId("prompt").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
  });
  byId("chat").addEventListener("keydown", (event) => {
    if (event.key === "Escape") running?.stop();
  });
  byId("stop").addEventListener("click", () => running?.stop());
  byId("clear").addEventListener("click", clear);
  byId("colour").addEventListener("change", () => {
    byId("messages").classList.toggle("coloured", byId("colour").checked);
    byId("scale").hidden = !byId("colour").checked;
  });
  byId("examples").append(...QUESTIONS.map(([name, question]) =>
    make("button", { type: "button", on: { click: () => ask(turns.length, question) } }, name)));
}

// Answers stay when the model changes, so that Retry compares; a text and a chat do not mix.
export function setChatModel(next) {
  if (next.chats !== model.chats) clear();
  model = next;
  const { chats } = model;
  byId("send").textContent = chats ? "Send" : "Continue";
  byId("clear").textContent = chats ? "New chat" : "New text";
  byId("prompt_label").textContent = byId("prompt").placeholder =
    chats ? "Message" : "Text to continue";
  byId("max_tokens").placeholder = chats ? "to the limit" : String(CONTINUED);
}
