// SPDX-License-Identifier: Apache-2.0
// One streamed answer: its tokens with their probabilities, its times, and how it is drawn.

import { events } from "./api.js";
import { make, visible } from "./dom.js";

const TOP = 5; // alternatives requested per token when tokens are coloured

// A conversation is answered, a text is continued.
const routeOf = (body) => (body.messages ? "v1/chat/completions" : "v1/completions");

// The tokens of an event's choice. Those of a chat have bytes, which may be a part of a character.
function tokensOf({ logprobs }, decoder) {
  if (logprobs?.tokens) {
    return logprobs.tokens.map((text, i) => ({ text, logprob: logprobs.token_logprobs[i],
      top: Object.entries(logprobs.top_logprobs?.[i] ?? {}).sort((a, b) => b[1] - a[1])
        .map(([token, logprob]) => ({ token, logprob })) }));
  }
  return (logprobs?.content ?? []).map((token) => ({
    text: decoder.decode(new Uint8Array(token.bytes), { stream: true }),
    logprob: token.logprob, top: token.top_logprobs ?? [] }));
}

export class Answer {
  // `body` is the request's body, with prompt or messages, settings and stream members set.
  constructor(body) {
    this.body = body;
    this.text = "";
    // {index, text, logprob, top: [{token, logprob}]}: those that spell the text, not its end token
    this.tokens = [];
    this.spelled = "";
    this.count = 0; // all tokens
    this.promptIds = [];
    this.ids = [];
    this.usage = null;
    this.timings = null; // the server's, of the latest event
    this.end = ""; // finish_reason, "stopped", or an error's text
    this.abort = new AbortController();
  }

  stop() {
    this.abort.abort();
  }

  // Runs to its end; calls `onTokens` with the tokens of each event.
  async run(onTokens) {
    const decoder = new TextDecoder();
    try {
      for await (const event of events(routeOf(this.body), this.body, this.abort.signal)) {
        if (event.usage) this.usage = event.usage;
        if (event.timings) this.timings = event.timings;
        const choice = event.choices[0];
        if (!choice) continue;
        if (choice.prompt_token_ids) this.promptIds = choice.prompt_token_ids;
        this.ids.push(...(choice.token_ids ?? []));
        this.text += choice.delta?.content ?? choice.text ?? "";
        const all = tokensOf(choice, decoder).map((token) => ({ ...token, index: this.count++ }));
        onTokens(all.filter((token) => this.spell(token)));
        if (choice.finish_reason) this.end = choice.finish_reason;
      }
    } catch (error) {
      this.end = this.abort.signal.aborted ? "stopped" : error.message;
    }
  }

  spell(token) {
    if (!this.text.startsWith(this.spelled + token.text)) return false;
    this.spelled += token.text;
    this.tokens.push(token);
    return true;
  }

  get failed() {
    return !["stop", "length", "stopped"].includes(this.end);
  }

  figures() {
    const parts = [], { timings, usage } = this;
    if (timings) {
      parts.push(`prompt ${timings.prompt_n + timings.cache_n}, ${timings.cache_n} cached, in ` +
        `${timings.prompt_ms.toFixed(1)} ms`);
    }
    parts.push(`${usage?.completion_tokens ?? this.count} tokens`);
    if (timings?.predicted_per_second > 0) {
      parts.push(`${timings.predicted_per_second.toFixed(0)} tokens/s`);
    }
    if (this.end === "length") parts.push("stopped at the token limit");
    if (this.end === "stopped") parts.push("stopped");
    return parts.join(" · ");
  }
}

// `prompt`: the messages of a conversation, or a text to continue.
export function answerRequest(model, prompt, settings, withTop) {
  const top = withTop ? TOP : 0;
  const source = typeof prompt === "string" ? { prompt, logprobs: top }
    : { messages: prompt, logprobs: true, top_logprobs: top };
  return {
    model, ...source, ...settings,
    stream: true, stream_options: { include_usage: true },
    return_token_ids: true, timings_per_token: true,
  };
}

function certainty(logprob) {
  const p = Math.exp(logprob);
  return p < 0.5 ? "p0" : p < 0.9 ? "p1" : p < 0.99 ? "p2" : "";
}

const percent = (logprob) => `${(100 * Math.exp(logprob)).toPrecision(3)} %`;

// A token that can be pressed; `onPress` is called with its index in the answer.
export function tokenNode(token, onPress) {
  // Its alternatives stay within the window.
  const place = ({ currentTarget }) => currentTarget.classList.toggle("at_right",
    currentTarget.getBoundingClientRect().left > innerWidth / 2);
  const alternatives = token.top.map((one) => `${visible(one.token)}  ${percent(one.logprob)}`);
  const node = make("span", {
    className: `token ${certainty(token.logprob)}`, role: "button", tabIndex: -1,
    on: {
      pointerenter: place,
      focus: place,
      click: () => onPress(token.index),
      keydown: (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        onPress(token.index);
      },
    },
  }, token.text);
  const lines = [`probability ${percent(token.logprob)}`, ...alternatives];
  node.setAttribute("data-tip", lines.join("\n")); // drawn by the style sheet
  node.setAttribute("aria-label", `${visible(token.text)}, ${lines.join(", ")}`);
  return node;
}

// The left and right arrows move through the tokens of a box, which is one stop of the Tab key.
export function moveByArrows(event) {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  const tokens = [...event.currentTarget.querySelectorAll(".token")];
  const at = tokens.indexOf(event.target);
  if (!step || at < 0) return;
  event.preventDefault();
  const next = tokens[Math.min(tokens.length - 1, Math.max(0, at + step))];
  event.target.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

const shown = (body) => JSON.stringify(body, null, 2);

// The request as a script would send it, without the members that only the page needs.
function scriptBody(body) {
  const { logprobs, top_logprobs, return_token_ids, timings_per_token, ...rest } = body;
  return rest;
}

export function asCurl(body, withKey) {
  const key = withKey ? " -H \"Authorization: Bearer $API_KEY\"" : "";
  const json = shown(scriptBody(body)).replaceAll("'", "'\\''");
  return `curl -N ${location.origin}/${routeOf(body)}${key} ` +
    `-H 'Content-Type: application/json' -d '${json}'`;
}

// JSON's texts and numbers are valid Python; its true is not.
export function asPython(body, withKey) {
  const { model, messages, prompt, stream, stream_options, top_k, ...rest } = scriptBody(body);
  const settings = Object.entries(rest).map(([name, value]) =>
    `    ${name}=${JSON.stringify(value)},\n`).join("");
  const extra = top_k === undefined ? "" : `    extra_body={"top_k": ${top_k}},\n`;
  const key = withKey ? "os.environ[\"API_KEY\"]" : "\"none\"";
  const [create, source, piece] = messages
    ? ["chat.completions", `messages=${shown(messages).replaceAll("\n", "\n    ")}`,
      "delta.content"]
    : ["completions", `prompt=${JSON.stringify(prompt)}`, "text"];
  return `${withKey ? "import os\n\n" : ""}from openai import OpenAI

client = OpenAI(base_url=${JSON.stringify(`${location.origin}/v1`)}, api_key=${key})
answer = client.${create}.create(
    model=${JSON.stringify(model)},
    ${source},
${settings}${extra}    stream=True,
)
for chunk in answer:
    if chunk.choices:
        print(chunk.choices[0].${piece} or "", end="", flush=True)
print()
`;
}
