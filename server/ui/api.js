// SPDX-License-Identifier: Apache-2.0
// Requests to the server that this page came from. The API key lives in a variable of this module
// and nowhere else.

import { byId } from "./dom.js";

let key = "";
let asking = null; // the dialog's promise while it is open

function askForKey(wasWrong) {
  if (asking) return asking;
  const dialog = byId("key_dialog");
  byId("key_wrong").hidden = !wasWrong;
  byId("key").value = "";
  dialog.showModal();
  asking = new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      key = byId("key").value.trim();
      byId("key").value = "";
      asking = null;
      resolve(key !== "");
    }, { once: true });
  });
  return asking;
}

export const hasKey = () => key !== "";

async function errorOf(response) {
  const text = await response.text(), { status } = response;
  try {
    return Object.assign(new Error(JSON.parse(text).error.message), { status });
  } catch {
    return Object.assign(new Error(`${status} ${response.statusText}`), { status });
  }
}

// The response of a path relative to the page. Asks for a key when one is needed; throws an Error
// with the server's message and HTTP status when it refuses.
export async function request(path, { body, signal } = {}) {
  for (;;) {
    const used = key;
    const headers = used === "" ? {} : { Authorization: `Bearer ${used}` };
    if (body !== undefined) headers["Content-Type"] = "application/json";
    const response = await fetch(path, {
      method: body === undefined ? "GET" : "POST",
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
    });
    if (response.ok) return response;
    if (response.status !== 401) throw await errorOf(response);
    if (used === key && !(await askForKey(used !== ""))) throw await errorOf(response);
  }
}

export const getJson = async (path) => (await request(path)).json();
export const postJson = async (path, body, signal) =>
  (await request(path, { body, signal })).json();

// The data of each server-sent event, parsed, until [DONE].
export async function* events(path, body, signal) {
  const response = await request(path, { body, signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("the connection ended before the answer did");
    text += value;
    const parts = text.split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").filter((line) => line.startsWith("data: "))
        .map((line) => line.slice(6)).join("\n");
      if (data === "[DONE]") return;
      if (data === "") continue;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message);
      yield event;
    }
  }
}
