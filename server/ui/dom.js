// SPDX-License-Identifier: Apache-2.0
// Elements by name, properties and children. A text is always a text node, never markup.

export const byId = (id) => document.getElementById(id);

function setProperty(node, name, value) {
  if (name === "on") {
    for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
  } else if (name in node && !name.includes("-")) {
    node[name] = value;
  } else {
    node.setAttribute(name, value);
  }
}

export function make(name, properties = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) setProperty(node, key, value);
  node.append(...children);
  return node;
}

export function makeSvg(name, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

const NAMED = { "\n": "⏎", "\t": "⇥", "\r": "␍", " ": "␣", "\u007f": "␡" };

// A token's text, with signs for characters that are invisible or reorder their neighbours.
export function visible(text) {
  if (text === "") return "∅";
  const shown = text.replace(/[\u0000-\u001f\u007f]/g, (c) =>
    NAMED[c] ?? String.fromCodePoint(0x2400 + c.codePointAt(0)));
  const marked = shown.replace(/[\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g, (c) =>
    `⟨${c.codePointAt(0).toString(16)}⟩`);
  return /^ +$/.test(marked) ? "␣".repeat(marked.length) : marked;
}

export function download(name, blob) {
  const link = make("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

// Copies into the clipboard if the browser allows it, and always shows the text to copy by hand.
export function showCode(title, code) {
  const dialog = byId("code_dialog"), button = byId("copy_code");
  byId("code_title").textContent = title;
  byId("code").textContent = code;
  button.textContent = "Copy";
  button.hidden = !navigator.clipboard;
  button.onclick = async () => {
    await navigator.clipboard.writeText(code);
    button.textContent = "Copied";
  };
  dialog.showModal();
}

export function notice(text) {
  byId("notice").textContent = text;
  byId("notice").hidden = text === "";
}
