# SPDX-License-Identifier: Apache-2.0
"""Reasoning before an answer that must have a form. The model's tokens are pieces of text that end
anywhere: markers are spelled in several tokens, and a token holds the end of a marker and what
comes after it. Whatever the cut, the reasoning is read as without the form, and the form holds for
the rest."""

import json
import unittest

import openai

import parrot_model
from server_process import ServerProcess

OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
          "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]
NAMED = {"type": "function", "function": {"name": "weather"}}
CALL = ("", [("weather", '{"city": "Oslo"}')])
FORMS = {  # name: what the model writes, the fields of the request, (content, calls)
    "schema": ('{"a": 17}', {"response_format": {
        "type": "json_schema", "json_schema": {"name": "f", "schema": OBJECT}}},
               ('{"a": 17}', [])),
    "choice": ("<b>", {"extra_body": {"guided_choice": ["<b>", "<thin", "blue"]}}, ("<b>", [])),
    "regex": ("k7 k8", {"extra_body": {"guided_regex": "(k[0-9] ?)+"}}, ("k7 k8", [])),
    "grammar": ("x+x+x", {"extra_body": {"guided_grammar": 'root ::= "x" ("+" "x")*'}},
                ("x+x+x", [])),
    "required": ('[{"name": "weather", "arguments": {"city": "Oslo"}}]',
                 {"tools": TOOLS, "tool_choice": "required"}, CALL),
    "named": ('{"city": "Oslo"}', {"tools": TOOLS, "tool_choice": NAMED}, CALL),
    "form or calls": ('{"a": 17}', {"tools": TOOLS, "response_format": {
        "type": "json_schema", "json_schema": {"name": "f", "schema": OBJECT}}},
                      ('{"a": 17}', [])),
    "no form": ("anything <b>", {}, ("anything <b>", [])),
}
THOUGHT = "I think </thi <b> so"
# (parser, what the template opens, what the model writes before its reasoning)
STARTS = (("auto", "<think>\n", ""), ("auto", "", "<think>"), ("auto", "", "\n<think>\n"),
          ("think", "", " <think>\n\n"), ("deepseek_r1", "", ""), ("deepseek_r1", "", "<think>"),
          ("deepseek_r1", "<think>", ""), ("qwen3", "", ""), ("qwen3", "", "\n<think>\n"),
          ("motif", "", "<think>"))
SHIFTS = range(parrot_model.PIECE_BYTES)  # each cuts the closing marker elsewhere
TEMPLATE_WITH_MARKER = parrot_model.TEMPLATE + "{# </think> #}"


def answers_of(before: str, text: str) -> list[str]:
    """Answers whose tokens are cut in all ways: without whitespace after the reasoning, and with
    it."""
    return [before + "m" * shift + THOUGHT + "</think>" + gap + text
            for shift in SHIFTS for gap in ("", "\n\n")]


class ReasoningFormsTest(unittest.TestCase):
    def serve(self, answers: list[str], parser: str, opening: str = "", *flags, **model):
        self.server = self.enterContext(ServerProcess(
            "--served-model-name", "m", "--tool-call-parser", "hermes", "--reasoning-parser",
            parser, *flags, model=parrot_model.directory(
                answers, template=TEMPLATE_WITH_MARKER, opening=opening, **model)))
        self.client = self.enterContext(openai.OpenAI(
            base_url=self.server.url + "/v1", api_key="x", max_retries=0, timeout=60))

    def ask(self, number: int, **options):
        """(reasoning, content, calls, finish reason), whole and streamed."""
        request = dict(model="m", messages=[{"role": "user", "content": f"#{number}#"}],
                       temperature=0, **{"max_tokens": 100} | options)
        answer = self.client.chat.completions.create(**request).choices[0]
        message = answer.message
        plain = (getattr(message, "reasoning_content", None) or "", message.content or "",
                 [(call.function.name, call.function.arguments)
                  for call in message.tool_calls or []], answer.finish_reason)
        reasoning, content, calls, reason = "", "", [], None
        for chunk in self.client.chat.completions.create(**request, stream=True):
            for choice in chunk.choices:
                reasoning += getattr(choice.delta, "reasoning_content", None) or ""
                content += choice.delta.content or ""
                for call in choice.delta.tool_calls or []:
                    if call.function.name:
                        calls.append((call.function.name, ""))
                    calls[-1] = (calls[-1][0], calls[-1][1] + (call.function.arguments or ""))
                reason = choice.finish_reason or reason
        self.assertEqual(plain, (reasoning, content, calls, reason))
        return plain

    def check(self, parser: str, opening: str, before: str, form: str):
        text, fields, (content, calls) = FORMS[form]
        answers = answers_of(before, text)
        self.serve(answers, parser, opening)
        for number, answer in enumerate(answers):
            with self.subTest(parser=parser, opening=opening, form=form, answer=answer):
                self.assertEqual(self.ask(number, **fields),
                                 ("m" * (number // 2) + THOUGHT, content, calls,
                                  "tool_calls" if calls else "stop"))
        self.doCleanups()

    def test_reasoning_is_as_without_the_form_and_then_the_form_holds(self):
        for form in FORMS:
            for start in STARTS[:2]:
                self.check(*start, form)

    def test_each_parser_and_each_start(self):
        for start in STARTS[2:]:
            self.check(*start, "schema")

    def test_budget_ends_the_reasoning_in_each_token(self):
        thought = "I think <b> so. And so on, and </think"
        for opening, before in (("<think>\n", ""), ("", "<think>")):
            self.serve([before + thought * 8], "auto", opening)
            for budget in range(0, 30):
                with self.subTest(opening=opening, budget=budget):
                    body = {"max_reasoning_tokens": budget, "guided_regex": "(k[0-9] ?){2}"}
                    reasoning, content, _, _ = self.ask(0, extra_body=body)
                    self.assertTrue((thought * 8).startswith(reasoning), reasoning)
                    self.assertFalse(reasoning.endswith("</think"), reasoning)
                    self.assertRegex(content, r"^(k\d ?){2}$")
                    free, rest, _, _ = self.ask(0, extra_body={"max_reasoning_tokens": budget})
                    self.assertEqual(free, reasoning)
                    self.assertNotIn("</think>", rest)
            self.doCleanups()

    def test_answer_without_reasoning_keeps_to_the_form(self):
        texts = [text for _, (text, _, _) in FORMS.items()]
        for opening in ("", "<think>\n\n</think>\n\n"):
            self.serve(texts, "auto", opening)
            for number, (name, (_, fields, (content, calls))) in enumerate(FORMS.items()):
                with self.subTest(opening=opening, form=name):
                    self.assertEqual(self.ask(number, **fields)[:3], ("", content, calls))
            self.doCleanups()

    def test_other_apis_and_several_choices(self):
        for parser, opening, before in STARTS[:5]:
            self.serve(answers_of(before, '{"a": 17}'), parser, opening)
            for number in range(2 * len(SHIFTS)):
                with self.subTest(parser=parser, opening=opening, number=number):
                    thought = "m" * (number // 2) + THOUGHT
                    prompt = [{"role": "user", "content": f"#{number}#"}]
                    both = self.client.chat.completions.create(
                        model="m", messages=prompt, temperature=0, max_tokens=100, n=2,
                        **FORMS["schema"][1]).choices
                    self.assertEqual([(c.message.reasoning_content, c.message.content)
                                      for c in both], [(thought, '{"a": 17}')] * 2)
                    asked = dict(
                        model="m", input=prompt, temperature=0, max_output_tokens=100,
                        text={"format": {"type": "json_schema", "name": "f", "schema": OBJECT}})
                    responses = self.client.responses.create(**asked)
                    events = list(self.client.responses.create(**asked, stream=True))
                    for kind, right in (("reasoning_text", thought), ("output_text", '{"a": 17}')):
                        self.assertEqual("".join(event.delta for event in events if event.type ==
                                                 f"response.{kind}.delta"), right)
                    self.assertEqual(responses.output_text, '{"a": 17}')
                    self.assertEqual(responses.output[0].content[0].text, thought)
                    body = {
                        "model": "m", "messages": prompt, "max_tokens": 100, "temperature": 0,
                        "output_config": {"format": {"type": "json_schema", "schema": OBJECT}}}
                    message = self.server.post("/v1/messages", body).json()["content"]
                    stream = self.server.post("/v1/messages", body | {"stream": True}).body
                    deltas = [json.loads(line[6:]).get("delta", {})
                              for line in stream.decode().splitlines()
                              if line.startswith("data: ")]
                    self.assertEqual(["".join(delta.get(name, "") for delta in deltas)
                                      for name in ("thinking", "text")], [thought, '{"a": 17}'])
                    self.assertEqual([message[0]["thinking"], message[1]["text"]],
                                     [thought, '{"a": 17}'])
            self.doCleanups()

    def test_guesses_of_speculation_change_nothing(self):
        for parser, opening, before in STARTS[:3]:
            self.serve(answers_of(before, FORMS["required"][0]), parser, opening,
                       "--speculative", "off")
            for number in range(2 * len(SHIFTS)):
                with self.subTest(parser=parser, opening=opening, number=number):
                    self.assertEqual(self.ask(number, **FORMS["required"][1])[:3],
                                     ("m" * (number // 2) + THOUGHT, *CALL))
            self.doCleanups()

    def test_named_parser_begins_in_reasoning_unless_thinking_is_off(self):
        off = ({"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}},
               {"reasoning_effort": "none"})
        for parser in ("qwen3", "deepseek_r1", "think"):
            self.serve(["It rains.", "so</think>It rains."], parser)
            content = ("", "It rains.", [], "stop")
            unmarked = content if parser == "think" else ("It rains.", "", [], "stop")
            with self.subTest(parser=parser):
                self.assertEqual(self.ask(0), unmarked)
                for options in off:
                    self.assertEqual(self.ask(0, **options),
                                     content if parser == "qwen3" else unmarked)
                if parser != "think":
                    self.assertEqual(self.ask(1), ("so", "It rains.", [], "stop"))
            self.doCleanups()

    def test_continued_message_shows_where_the_reasoning_is(self):
        for continued, answer, expected in (
                ("<think>I", "think</think>\n<b>", ("think", "<b>")),
                ("<think>I</think>I", "<b>", (None, "<b>")), ("I", "<b>", (None, "<b>"))):
            for parser in ("auto", "deepseek_r1", "qwen3"):
                with self.subTest(continued=continued, parser=parser):
                    self.serve([answer], parser, prompt_end=continued[-1])
                    reply = self.client.chat.completions.create(
                        model="m", messages=[{"role": "user", "content": "#0#"},
                                             {"role": "assistant", "content": continued}],
                        temperature=0, max_tokens=60, extra_body={
                            "continue_final_message": True, "add_generation_prompt": False,
                            "guided_choice": ["<b>", "<c>"]}).choices[0].message
                    self.assertEqual((getattr(reply, "reasoning_content", None), reply.content),
                                     expected)
            self.doCleanups()


if __name__ == "__main__":
    unittest.main()
