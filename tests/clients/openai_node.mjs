// openai-node: what is tried, and on which server.
//
// | chat | demo      plain, streamed, logprobs, n, parse by zod, the SDK's stream helper |
// | tools | scripted  runTools: one call, two at once, a chain, no arguments, streamed |
// | reasoning | scripted  the field in message and delta; the turn sent back |
// | Responses | both      text, stream helper, parse by zod, function calls, stored turns |
// | others | demo      completions, embeddings (float and base64 of the SDK), models |
// | errors | demo      context overflow, unknown model, bad field, abort; keyed 401; full 429 |

import OpenAI from "openai";
import { zodFunction, zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";
import { check, DEMO, fill, FULL, KEYED, run, same, SCRIPTED, thrown, yes } from "./checks.mjs";

const of = (url, more = {}) =>
  new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0, ...more });
const demo = of(DEMO), scripted = of(SCRIPTED);
const user = (content) => [{ role: "user", content }];
const NEEDLE = "The magic number of Lisbon is 48213. What is the magic number of Lisbon?";
const FOUND = "The magic number of Lisbon is 48213.";
const weather = (asked) => ({
  type: "function",
  function: {
    name: "get_weather", description: "The weather of a city", parse: JSON.parse,
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
    function: ({ city }) => { asked.push(city); return `weather of ${city}`; },
  },
});

check("chat", async () => {
  const answer = await demo.chat.completions.create({ model: "diff", messages: user(NEEDLE),
                                                      temperature: 0 });
  same(answer.choices[0].message.content, FOUND);
  same(answer.choices[0].finish_reason, "stop");
  yes(answer.usage.total_tokens > 0, "usage");
});

check("chat_streamed_with_usage", async () => {
  const stream = await demo.chat.completions.create({
    model: "diff", messages: user(NEEDLE), temperature: 0, stream: true,
    stream_options: { include_usage: true } });
  let text = "", usage;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta?.content ?? "";
    usage = chunk.usage ?? usage;
  }
  same(text, FOUND);
  yes(usage.completion_tokens > 0, "usage in the last chunk");
});

check("stream_helper_collects_the_message", async () => {
  const stream = scripted.chat.completions.stream({ model: "scripted",
                                                    messages: user("#hello#") });
  const final = await stream.finalChatCompletion();
  same(final.choices[0].message.content, "Hello there! Grüße, 世界 🙂.");
});

check("logprobs_and_n", async () => {
  const answer = await demo.chat.completions.create({
    model: "diff", messages: user(NEEDLE), logprobs: true, top_logprobs: 3, n: 2, seed: 1,
    max_completion_tokens: 4 });
  same(answer.choices.length, 2);
  same(answer.choices[1].logprobs.content.length, 4);
  same(answer.choices[0].logprobs.content[0].top_logprobs.length, 3);
});

check("every_parameter_of_the_chat_form_that_describes_nothing", async () => {
  await demo.chat.completions.create({
    model: "diff", messages: user("Who are you?"), max_completion_tokens: 4, audio: null,
    frequency_penalty: 0, function_call: undefined, logit_bias: {}, logprobs: false,
    metadata: { a: "b" }, modalities: ["text"], n: 1, parallel_tool_calls: true,
    prediction: null, presence_penalty: 0, prompt_cache_key: "k", reasoning_effort: "low",
    response_format: { type: "text" }, safety_identifier: "s", seed: 1, service_tier: "auto",
    stop: null, store: false, temperature: 1, tool_choice: "none", tools: [], top_p: 1,
    user: "u", verbosity: "medium", web_search_options: undefined });
});

check("parse_by_zod", async () => {
  const Person = z.object({ name: z.string().max(8), age: z.number().int().min(0).max(150),
                            tags: z.array(z.enum(["a", "b"])).max(2), note: z.null() });
  const answer = await demo.chat.completions.parse({
    model: "diff", messages: user("Who are you?"),
    response_format: zodResponseFormat(Person, "person") });
  yes(Person.safeParse(answer.choices[0].message.parsed).success, "the parsed object");
});

for (const [script, cities, said] of [
  ["weather", ["Paris"], "It is 21 degrees in Paris."],
  ["two", ["Oslo", "Lima"], "Oslo 3, Lima 18."]]) {
  for (const stream of [false, true]) {
    check(`run_tools_${script}${stream ? "_streamed" : ""}`, async () => {
      const asked = [];
      const runner = scripted.chat.completions.runTools({
        model: "scripted", messages: user(`#${script}#`), tools: [weather(asked)], stream });
      same(await runner.finalContent(), said);
      same(asked, cities);
    });
  }
}

check("run_tools_without_arguments", async () => {
  let asked = 0;
  const runner = scripted.chat.completions.runTools({
    model: "scripted", messages: user("#empty#"),
    tools: [{ type: "function", function: { name: "list_cities", parameters: {},
                                            function: () => { asked++; return "[]"; } } }] });
  same(await runner.finalContent(), "None.");
  same(asked, 1);
});

check("required_call_with_zod_parameters", async () => {
  const tool = zodFunction({ name: "add", parameters: z.object({ a: z.number().int().max(9),
                                                                 b: z.number().int().max(9) }) });
  const answer = await demo.chat.completions.parse({
    model: "diff", messages: user("What is 2 plus 3?"), tools: [tool],
    tool_choice: { type: "function", function: { name: "add" } } });
  const call = answer.choices[0].message.tool_calls[0];
  same(call.function.name, "add");
  yes(Number.isInteger(call.function.parsed_arguments.a), "parsed_arguments.a");
});

check("reasoning_and_the_turn_sent_back", async () => {
  const messages = user("#think#");
  const answer = await scripted.chat.completions.create({ model: "scripted", messages });
  const message = answer.choices[0].message;
  same(message.reasoning_content, "First I think.");
  messages.push(message, ...user("And now?"));
  const next = await scripted.chat.completions.create({ model: "scripted", messages });
  same(next.choices[0].message.content, "Still 4.");
});

check("reasoning_cut_by_max_tokens_and_sent_back", async () => {
  const messages = user("#think#");
  const answer = await scripted.chat.completions.create({ model: "scripted", messages,
                                                          max_tokens: 4 });
  same(answer.choices[0].finish_reason, "length");
  yes(!answer.choices[0].message.content, "no content yet");
  messages.push(answer.choices[0].message, ...user("Go on."));
  await scripted.chat.completions.create({ model: "scripted", messages });
});

check("responses_text_and_stored_turn", async () => {
  const first = await demo.responses.create({ model: "diff", input: NEEDLE, temperature: 0 });
  same(first.output_text, FOUND);
  const next = await demo.responses.create({
    model: "diff", input: "What is the magic number of Lisbon?", temperature: 0,
    previous_response_id: first.id });
  same(next.output_text, FOUND);
  same((await demo.responses.retrieve(first.id)).output_text, FOUND);
});

check("responses_output_appended_to_the_input", async () => {
  const input = user("#plan#");
  const tools = [{ type: "function", name: "get_weather", strict: false,
                   parameters: { type: "object", properties: { city: { type: "string" } } } }];
  const first = await scripted.responses.create({ model: "scripted", input, tools, store: false,
                                                  include: ["reasoning.encrypted_content"] });
  const call = first.output.find((item) => item.type === "function_call");
  same(JSON.parse(call.arguments), { city: "Rome" });
  input.push(...first.output,
             { type: "function_call_output", call_id: call.call_id, output: "30" });
  const next = await scripted.responses.create({ model: "scripted", input, tools, store: false });
  same(next.output_text, "Rome has 30 degrees.");
});

check("responses_stream_helper", async () => {
  const stream = scripted.responses.stream({ model: "scripted", input: "#think#" });
  const seen = new Set();
  for await (const event of stream) seen.add(event.type);
  const final = await stream.finalResponse();
  same(final.output_text, "The answer is 4.");
  yes(seen.has("response.reasoning_text.delta"), `events: ${[...seen]}`);
});

check("responses_parse_by_zod", async () => {
  const Shape = z.object({ kind: z.literal("circle"), radius: z.number().min(0).max(9) });
  const answer = await demo.responses.parse({ model: "diff", input: "Who are you?",
                                              text: { format: zodTextFormat(Shape, "shape") } });
  same(answer.output_parsed.kind, "circle");
});

check("responses_required_function", async () => {
  const answer = await demo.responses.create({
    model: "diff", input: "What is 2 plus 3?", tool_choice: "required",
    tools: [{ type: "function", name: "add", strict: true, parameters: {
      type: "object", properties: { a: { type: "integer", minimum: 0, maximum: 9 } },
      required: ["a"], additionalProperties: false } }] });
  same(answer.output[0].type, "function_call");
  yes(Number.isInteger(JSON.parse(answer.output[0].arguments).a), answer.output[0].arguments);
});

check("responses_with_the_vendors_own_tools_beside_a_function", async () => {
  const answer = await scripted.responses.create({
    model: "scripted", input: "#weather#",
    tools: [{ type: "web_search" }, { type: "image_generation" },
            { type: "custom", name: "apply_patch", description: "Edit files" },
            { type: "function", name: "get_weather", strict: false, parameters: null }] });
  same(answer.output.at(-1).type, "function_call");
});

check("completions_and_models", async () => {
  const answer = await demo.completions.create({ model: "diff", prompt: "The magic number",
                                                 max_tokens: 3, echo: true });
  yes(answer.choices[0].text.startsWith("The magic number"), answer.choices[0].text);
  const names = [];
  for await (const model of demo.models.list()) names.push(model.id);
  same(names, ["diff", "demo"]);
  same((await demo.models.retrieve("diff")).id, "diff");
});

check("embeddings", async () => {
  const both = await demo.embeddings.create({ model: "diff", input: ["a", "b"] });
  const plain = await demo.embeddings.create({ model: "diff", input: "a",
                                               encoding_format: "float" });
  same(both.data.length, 2);
  same(both.data[0].embedding, plain.data[0].embedding.map(Math.fround));
});

check("embeddings_of_2048_inputs", async () => {
  const many = await demo.embeddings.create({ model: "diff", input: Array(2048).fill("a") });
  same(many.data.length, 2048);
});

check("context_overflow_has_its_code", async () => {
  const error = await thrown(() => demo.chat.completions.create({
    model: "diff", messages: user("magic ".repeat(3000)) }));
  same(error.constructor.name, "BadRequestError");
  same(error.code, "context_length_exceeded");
  yes(/maximum context length is 1280 tokens/.test(error.message), error.message);
});

check("context_overflow_of_responses_has_its_code", async () => {
  const error = await thrown(() => demo.responses.create({ model: "diff",
                                                           input: "magic ".repeat(3000) }));
  same(error.code, "context_length_exceeded");
});

check("context_overflow_of_a_responses_stream_has_its_code", async () => {
  const seen = [];
  const error = await thrown(async () => {
    const events = await demo.responses.create({ model: "diff", input: "magic ".repeat(3000),
                                                 stream: true });
    for await (const event of events) seen.push(event.type);
  });
  same([error.constructor.name, error.code], ["APIError", "context_length_exceeded"]);
  same(seen, ["response.created", "response.in_progress"]);
});

check("unknown_model_is_404", async () => {
  const error = await thrown(() => demo.chat.completions.create({ model: "gpt-none",
                                                                  messages: user("a") }));
  same(error.constructor.name, "NotFoundError");
  same(error.code, "model_not_found");
});

check("wrong_key_is_401", async () => {
  const error = await thrown(() => of(KEYED).models.list());
  same(error.constructor.name, "AuthenticationError");
  await of(KEYED, { apiKey: "sesame" }).models.list();
});

check("bad_field_names_the_field", async () => {
  const error = await thrown(() => demo.chat.completions.create({
    model: "diff", messages: user("a"), top_p: 2 }));
  same([error.status, error.param], [400, "top_p"]);
});

check("abort_of_a_stream_leaves_the_client_usable", async () => {
  const stream = await demo.chat.completions.create({
    model: "diff", messages: user("a"), stream: true, ignore_eos: true, max_tokens: 1000 });
  for await (const chunk of stream) { stream.controller.abort(); break; }
  await demo.models.list();
});

check("full_server_is_retried_after_429", async () => {
  const release = await fill();
  const ask = { model: "scripted", prompt: "a", max_tokens: 1 };
  const error = await thrown(() => of(FULL).completions.create(ask));
  same(error.constructor.name, "RateLimitError");
  yes(Number(error.headers.get("retry-after")) > 0, "Retry-After");
  const retried = of(FULL, { maxRetries: 5 }).completions.create(ask);
  setTimeout(release, 300);
  same((await retried).choices.length, 1);
});

await run();
