# SPDX-License-Identifier: Apache-2.0
"""Tokens in and tokens out, rendered prompts, the tokenizer's files, and small request fields."""

import gzip
import json
import unittest

import openai

from server_process import ServerProcess, eventually
from tiny_model import CHAT_TEMPLATE, EOS, MAX_MODEL_LEN, VOCAB_SIZE, encode

GENERATE = "/inference/v1/generate"
MESSAGES = [{"role": "user", "content": "hello there"}]
SAMPLED = {"max_tokens": 24, "temperature": 0.8, "seed": 5, "ignore_eos": True}


def setUpModule():
    global server, client
    server = unittest.enterModuleContext(ServerProcess("--served-model-name", "my-model"))
    client = unittest.enterModuleContext(
        openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0, timeout=60))


def events(body: dict, path: str = GENERATE) -> list[dict]:
    response = server.post(path, {**body, "stream": True})
    *lines, done, rest = response.body.decode().split("\n\n")
    assert (response.status, done, rest) == (200, "data: [DONE]", ""), response.body
    return [json.loads(line.removeprefix("data: ")) for line in lines]


class LogLineTest(unittest.TestCase):
    def test_refusal_of_a_text_thread_is_logged_once(self):
        zipped = gzip.compress(b"{")  # unpacked on a text thread
        refused = [server.post("/tokenize", zipped, headers={
            "Content-Encoding": "gzip", "X-Request-Id": "zipped-1"}).status]
        long = {"messages": [{"role": "user", "content": "x" * 9000}]}
        for path in ("/tokenize", "/v1/chat/completions/render"):
            refused.append(server.post(path, long, headers={
                "X-Request-Id": f"long-{len(refused)}"}).status)
        self.assertEqual(refused, [400, 200, 400])
        for name in ("zipped-1", "long-2"):
            def lines(name=name):
                return [line for line in server.stderr().splitlines() if name in line]

            eventually(lines, f"a line of {name}")
            self.assertEqual(len(lines()), 1, lines())
            self.assertRegex(lines()[0], "http_request route=/[a-z0-9/]+ status=400")


class TokensInOutTest(unittest.TestCase):
    def test_same_tokens_as_a_completions_whole_and_streamed(self):
        ids = encode("hello to you")
        expected = server.post("/v1/completions", {
            "prompt": ids, "return_token_ids": True, **SAMPLED
        }).json()["choices"][0]["token_ids"]
        body = {"model": "my-model", "token_ids": ids, "sampling_params": SAMPLED}
        whole = server.post(GENERATE, body).json()
        self.assertEqual(whole["choices"][0]["token_ids"], expected)
        self.assertEqual(whole["choices"][0]["finish_reason"], "length")
        self.assertEqual(whole["usage"]["prompt_tokens"], len(ids))
        streamed = [token for event in events(body) for token in event["choices"][0]["token_ids"]]
        self.assertEqual(streamed, expected)

    def test_rendered_chat_runs_to_the_same_tokens(self):
        chat = {"messages": MESSAGES, "return_token_ids": True, **SAMPLED}
        answer = server.post("/v1/chat/completions", chat).json()
        rendered = server.post("/v1/chat/completions/render", chat).json()
        self.assertEqual(rendered["token_ids"], answer["prompt_token_ids"])
        self.assertEqual(rendered["prompt"],
                         "<|bos|><|user|>hello there<|end|><|assistant|>")
        again = server.post(GENERATE, rendered).json()
        self.assertEqual(again["choices"][0]["token_ids"], answer["choices"][0]["token_ids"])

    def test_answer_has_the_requested_form(self):
        sampling = {"max_tokens": 40, "structured_outputs": {"regex": "[0-9]{3}-[a-f]{2}"}}
        answer = server.post(GENERATE, {"token_ids": encode("a number"),
                                        "sampling_params": sampling}).json()
        ids = answer["choices"][0]["token_ids"]
        text = server.post("/detokenize", {"tokens": ids}).json()["prompt"]
        self.assertRegex(text.removesuffix(EOS), "^[0-9]{3}-[a-f]{2}$")

    def test_each_prompt_of_a_completion_is_rendered(self):
        rendered = server.post("/v1/completions/render", {"prompt": ["hello", "the"]}).json()
        tokenized = [server.post("/tokenize", {"prompt": text}).json()["tokens"]
                     for text in ("hello", "the")]
        self.assertEqual([one["token_ids"] for one in rendered], tokenized)
        self.assertEqual([one["sampling_params"]["max_tokens"] for one in rendered], [16, 16])


class TokenizerInfoTest(unittest.TestCase):
    def test_tokenizer_info_reports_the_models_files(self):
        info = server.get("/tokenizer_info").json()
        self.assertEqual(info["chat_template"], CHAT_TEMPLATE)
        self.assertEqual(info["eos_token"], EOS)


class SmallFieldsTest(unittest.TestCase):
    def test_long_prompt_is_cut_to_its_end(self):
        prompt = encode("x" * (2 * MAX_MODEL_LEN))
        refused = server.post("/v1/completions", {"prompt": prompt, "max_tokens": 1})
        self.assertEqual((refused.status, refused.error["param"]), (400, "prompt"))
        for keep, left in ((-1, MAX_MODEL_LEN - 5), (10, 10)):
            body = {"prompt": prompt, "max_tokens": 5, "truncate_prompt_tokens": keep}
            response = server.post("/v1/completions", body)
            self.assertEqual(response.json()["usage"]["prompt_tokens"], left)
        text = {"prompt": "abc" + "hello", "max_tokens": 1, "echo": True, "temperature": 0}
        for side, kept, shown in (("left", 1, "hello"), ("right", 2, "a")):  # BOS is the first one
            body = {**text, "truncate_prompt_tokens": kept, "truncation_side": side}
            self.assertTrue(
                server.post("/v1/completions", body).json()["choices"][0]["text"].startswith(shown))

    def test_openai_python_reads_tokens_by_their_ids(self):
        completion = client.completions.create(
            model="my-model", prompt="hello", max_tokens=4, temperature=0, logprobs=1,
            extra_body={"return_tokens_as_token_ids": True, "return_token_ids": True})
        choice = completion.choices[0]
        self.assertEqual(choice.logprobs.tokens,
                         [f"token_id:{token}" for token in choice.model_extra["token_ids"]])

    def test_scores_of_the_prompt_come_with_a_stream(self):
        body = {"prompt": encode("hello the"), "max_tokens": 2, "prompt_logprobs": 2,
                "ignore_eos": True}
        whole = server.post("/v1/completions", body).json()["choices"][0]["prompt_logprobs"]
        first, *later = events(body, "/v1/completions")
        self.assertEqual(first["choices"][0]["prompt_logprobs"], whole)
        self.assertEqual(len(whole), len(body["prompt"]))
        self.assertFalse(any("prompt_logprobs" in event["choices"][0] for event in later))
        chat = {"messages": MESSAGES, "max_tokens": 2, "prompt_logprobs": 0}
        whole = server.post("/v1/chat/completions", chat).json()["prompt_logprobs"]
        first = events(chat, "/v1/chat/completions")[0]
        self.assertEqual(first["choices"][0]["prompt_logprobs"], whole)
        self.assertIsNone(whole[0])

    def test_one_token_of_prompt_has_no_score(self):
        body = {"prompt": encode("h"), "max_tokens": 1, "prompt_logprobs": 0}
        whole = server.post("/v1/completions", body).json()["choices"][0]
        self.assertEqual(whole["prompt_logprobs"], [None])
        self.assertEqual(events(body, "/v1/completions")[0]["choices"][0]["prompt_logprobs"],
                         [None])

    def test_running_usage_ends_at_the_whole_one(self):
        body = {"prompt": "hello " * 40, "max_tokens": 6, "ignore_eos": True,
                "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
        server.post("/v1/completions", {"prompt": body["prompt"], "max_tokens": 1})
        *chunks, last = events(body, "/v1/completions")
        counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
        self.assertEqual((counts, counts[-1]), (sorted(counts), 6))
        for chunk in chunks:
            self.assertEqual(chunk["usage"]["prompt_tokens"], last["usage"]["prompt_tokens"])
        self.assertEqual(last["usage"]["completion_tokens"], 6)
        self.assertGreaterEqual(last["usage"]["prompt_tokens_details"]["cached_tokens"], 64)

    def test_unsupported_fields_are_refused_by_name(self):
        for field, value in (("suffix", "x"), ("use_beam_search", True), ("best_of", 3),
                             ("allowed_token_ids", []), ("allowed_token_ids", [VOCAB_SIZE]),
                             ("bad_words", [""]), ("truncate_prompt_tokens", 0)):
            refused = server.post("/v1/completions", {"prompt": "x", field: value})
            self.assertEqual((refused.status, refused.error["param"]), (400, field))


if __name__ == "__main__":
    unittest.main()
