// langchain-js: @langchain/openai on chat and on Responses, @langchain/anthropic on Messages.
//
// | each model | invoke, stream, a loop of tools with its own messages sent back, reasoning, batch |
// | forms      | withStructuredOutput: schema, function, over nested and optional zod types        |
// | embeddings | more texts than one request of other servers takes                                |
// | errors     | context overflow as its ContextOverflowError, key, model, retry after 429         |

import { ChatAnthropic } from "@langchain/anthropic";
import { HumanMessage, SystemMessage } from "@langchain/core/messages";
import { tool } from "@langchain/core/tools";
import { ChatOpenAI, OpenAIEmbeddings } from "@langchain/openai";
import { z } from "zod";
import { check, DEMO, fill, FULL, KEYED, run, same, SCRIPTED, thrown, yes } from "./checks.mjs";

const openai = (url, more) => new ChatOpenAI({
  apiKey: "none", maxRetries: 0, ...more, configuration: { baseURL: `${url}/v1` } });
const MODELS = {
  chat: (url, more) => openai(url, more),
  responses: (url, more) => openai(url, { useResponsesApi: true, ...more }),
  messages: (url, more) => new ChatAnthropic({ apiKey: "none", maxRetries: 0, anthropicApiUrl: url,
                                               ...more }),
};
const weather = (asked) => [
  tool(async ({ city }) => { asked.push(city); return `weather of ${city}`; },
       { name: "get_weather", description: "The weather of a city",
         schema: z.object({ city: z.string() }) }),
  tool(async ({ zone }) => { asked.push(zone); return { time: "12:00" }; },
       { name: "get_time", schema: z.object({ zone: z.string() }) }),
  tool(async () => { asked.push("list"); return ""; },
       { name: "list_cities", schema: z.object({}) }),
];
const LOOPS = [
  ["weather", ["Paris"], "It is 21 degrees in Paris."],
  ["two", ["Oslo", "Lima"], "Oslo 3, Lima 18."],
  ["chain", ["Bonn", "CET"], "Mild at noon."],
  ["empty", ["list"], "None."],
  ["plan", ["Rome"], "Rome has 30 degrees."],
];

async function gathered(stream) {
  let whole;
  for await (const chunk of stream) whole = whole === undefined ? chunk : whole.concat(chunk);
  return whole;
}

for (const [name, of] of Object.entries(MODELS)) {
  const scripted = of(SCRIPTED, { model: "scripted" });
  const demo = of(DEMO, { model: "diff", maxTokens: 200 });

  check(`${name}_invoke`, async () => {
    const answer = await scripted.invoke([new SystemMessage("Be brief."),
                                          new HumanMessage("#hello#")]);
    same(answer.text, "Hello there! Grüße, 世界 🙂.");
    yes(answer.usage_metadata.output_tokens > 0, "usage");
  });

  check(`${name}_stream`, async () => {
    const answer = await gathered(await scripted.stream("#hello#"));
    same(answer.text, "Hello there! Grüße, 世界 🙂.");
  });

  for (const [script, cities, said] of LOOPS) {
    for (const streamed of [false, true]) {
      check(`${name}_tools_${script}${streamed ? "_streamed" : ""}`, async () => {
        const asked = [], tools = weather(asked), model = scripted.bindTools(tools);
        const messages = [new HumanMessage(`#${script}#`)];
        for (;;) {
          const answer = streamed ? await gathered(await model.stream(messages))
                                  : await model.invoke(messages);
          messages.push(answer);
          if (!answer.tool_calls?.length) return same([asked, answer.text], [cities, said]);
          for (const call of answer.tool_calls) {
            messages.push(await tools.find((t) => t.name === call.name).invoke(call));
          }
        }
      });
    }
  }

  check(`${name}_reasoning_and_a_second_turn`, async () => {
    const messages = [new HumanMessage("#think#")];
    messages.push(await scripted.invoke(messages), new HumanMessage("And now?"));
    same(messages[1].text, "The answer is 4.");
    same((await scripted.invoke(messages)).text, "Still 4.");
  });

  check(`${name}_reasoning_cut_off_and_a_second_turn`, async () => {
    const messages = [new HumanMessage("#think#")];
    messages.push(await of(SCRIPTED, { model: "scripted", maxTokens: 4 }).invoke(messages),
                  new HumanMessage("Go on."));
    await scripted.invoke(messages);
  });

  check(`${name}_required_call`, async () => {
    const add = tool(async () => "", { name: "add", schema: z.object({ a: z.enum(["1", "2"]) }) });
    // On Responses this client drops a choice that is not a name.
    const choice = { chat: "required", responses: "add", messages: "any" }[name];
    const answer = await demo.bindTools([add], { tool_choice: choice }).invoke("Who are you?");
    yes(answer.tool_calls.length > 0, "a call");
    yes(["1", "2"].includes(answer.tool_calls[0].args.a), "its argument");
  });

  for (const method of name === "messages" ? ["functionCalling"]
                                           : ["jsonSchema", "functionCalling"]) {
    check(`${name}_structured_output_by_${method}`, async () => {
      const schema = z.object({ kind: z.enum(["a", "b"]), parts: z.array(z.boolean()).max(2),
                                more: z.object({ yes: z.boolean() }).nullable() });
      const answer = await demo.withStructuredOutput(schema, { method, name: "shape" })
        .invoke("Who are you?");
      yes(schema.safeParse(answer).success, JSON.stringify(answer));
    });
  }

  check(`${name}_batch`, async () => {
    const answers = await scripted.batch(["#hello#", "#think#", "#hello#"]);
    same(answers.map((a) => a.text), ["Hello there! Grüße, 世界 🙂.", "The answer is 4.",
                                      "Hello there! Grüße, 世界 🙂."]);
  });

  check(`${name}_context_overflow`, async () => {
    const error = await thrown(() => demo.invoke("magic ".repeat(3000)));
    same(error.name, "ContextOverflowError", "the error's class");
  });

  check(`${name}_unknown_model`, async () => {
    const error = await thrown(() => of(DEMO, { model: "none" }).invoke("a"));
    same(error.status, 404);
  });

  check(`${name}_wrong_key`, async () => {
    const error = await thrown(() => of(KEYED, { model: "diff" }).invoke("a"));
    same(error.status, 401);
  });

  check(`${name}_full_server_is_retried`, async () => {
    const release = await fill();
    const answer = of(FULL, { model: "scripted", maxRetries: 6 }).invoke("#hello#");
    setTimeout(release, 300);
    same((await answer).text, "Hello there! Grüße, 世界 🙂.");
  });
}

check("embeddings", async () => {
  const model = new OpenAIEmbeddings({ apiKey: "none", model: "diff", maxRetries: 0,
                                       configuration: { baseURL: `${DEMO}/v1` } });
  const vectors = await model.embedDocuments(Array(300).fill("a"));
  same(vectors.length, 300);
  same(vectors[0].length, (await model.embedQuery("b")).length);
});

await run();
