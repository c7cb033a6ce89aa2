# SPDX-License-Identifier: Apache-2.0
"""openai-python against /v1/completions."""

import math
import unittest

import openai

import tiny_model
from server_process import GatedServer, eventually
from tiny_model import encode

LONG = 8000


def setUpModule():
    global server, client
    server = unittest.enterModuleContext(GatedServer())
    client = unittest.enterModuleContext(
        openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0, timeout=60))


def complete(prompt, max_tokens=16, **options):
    extra = {"ignore_eos": True} | options.pop("extra_body", {})
    options = {"temperature": 0} | options
    return client.completions.create(model="tiny", prompt=prompt, max_tokens=max_tokens,
                                     extra_body=extra, **options)


def draws(response):
    """What sampling decided: tokens and log-probabilities of each choice."""
    return [(c.index, c.text, c.logprobs.tokens, c.logprobs.token_logprobs, c.logprobs.top_logprobs)
            for c in response.choices]


class CompletionsTest(unittest.TestCase):
    def test_completion_has_openais_fields(self):
        response = complete("abc", max_tokens=7)
        self.assertEqual(response.object, "text_completion")
        self.assertEqual(response.model, "tiny")
        self.assertTrue(response.id)
        self.assertGreater(response.created, 1_600_000_000)
        self.assertEqual(len(response.choices), 1)
        self.assertEqual(response.choices[0].index, 0)
        self.assertEqual(response.choices[0].finish_reason, "length")
        self.assertIsNone(response.choices[0].logprobs)
        self.assertEqual((response.usage.prompt_tokens, response.usage.completion_tokens,
                          response.usage.total_tokens), (4, 7, 11))

    def test_max_tokens_is_16_by_default(self):
        response = client.completions.create(model="tiny", prompt="abc",
                                             extra_body={"ignore_eos": True})
        self.assertEqual(response.usage.completion_tokens, 16)

    def test_streamed_text_equals_the_whole(self):
        for prompt in ("abc", "abd", "hello there", "xyz", "thé"):
            with self.subTest(prompt=prompt):
                whole = complete(prompt, max_tokens=60)
                chunks = list(complete(prompt, max_tokens=60, stream=True))
                self.assertEqual("".join(c.choices[0].text for c in chunks if c.choices),
                                 whole.choices[0].text)
                self.assertEqual([c.choices[0].finish_reason for c in chunks if c.choices][-1],
                                 "length")
                self.assertTrue(all(c.usage is None for c in chunks))
                self.assertEqual(len({c.id for c in chunks}), 1)

    def test_include_usage_adds_one_last_chunk(self):
        *chunks, last = complete("abc", max_tokens=9, stream=True,
                                 stream_options={"include_usage": True})
        self.assertTrue(all(chunk.usage is None and chunk.choices for chunk in chunks))
        self.assertEqual(last.choices, [])
        self.assertEqual((last.usage.prompt_tokens, last.usage.completion_tokens), (4, 9))
        self.assertIsNotNone(last.usage.prompt_tokens_details.cached_tokens)

    def test_logprobs_are_a_distribution_with_the_greedy_token_on_top(self):
        logprobs = complete("logprobs", max_tokens=12, logprobs=20).choices[0].logprobs
        self.assertEqual(
            [len(x) for x in (logprobs.tokens, logprobs.token_logprobs, logprobs.text_offset)],
            [12] * 3)
        for chosen, top in zip(logprobs.token_logprobs, logprobs.top_logprobs):
            self.assertLessEqual(sum(map(math.exp, top.values())), 1 + 1e-4)
            self.assertGreater(sum(map(math.exp, top.values())), 0.5)
            self.assertAlmostEqual(chosen, max(top.values()), places=6)

    def test_logprobs_zero_gives_only_the_chosen_token(self):
        logprobs = complete("abc", max_tokens=5, logprobs=0).choices[0].logprobs
        self.assertEqual(len(logprobs.token_logprobs), 5)
        self.assertTrue(all(value <= 0 for value in logprobs.token_logprobs))

    def test_stream_carries_as_many_logprobs_as_tokens(self):
        chunks = complete("abc", max_tokens=40, logprobs=2, stream=True)
        streamed = [
            value for c in chunks if c.choices and c.choices[0].logprobs
            for value in c.choices[0].logprobs.token_logprobs
        ]
        self.assertEqual(
            streamed,
            complete("abc", max_tokens=40, logprobs=2).choices[0].logprobs.token_logprobs)

    def test_seed_fixes_the_sample_alone_and_in_a_batch(self):
        options = {
            "max_tokens": 24, "temperature": 1.0, "top_p": 0.95, "seed": 7, "n": 3, "logprobs": 3
        }
        alone = draws(complete("seeded", **options))
        self.assertEqual(draws(complete("seeded", **options)), alone)
        others = [
            complete(f"other {i}", max_tokens=200, temperature=1.0, stream=True) for i in range(6)
        ]
        try:
            self.assertEqual(draws(complete("seeded", **options)), alone)
        finally:
            for stream in others:
                stream.close()
        self.assertNotEqual(draws(complete("seeded", **options | {"seed": 8})), alone)

    def test_n_continuations_differ_and_are_counted(self):
        response = complete("abc", max_tokens=10, temperature=1.0, n=4, seed=1)
        self.assertEqual([choice.index for choice in response.choices], [0, 1, 2, 3])
        self.assertEqual(len({choice.text for choice in response.choices}), 4)
        self.assertEqual((response.usage.prompt_tokens, response.usage.completion_tokens), (4, 40))

    def test_n_streams_are_distinguished_by_index(self):
        texts = {}
        for chunk in complete("abc", max_tokens=10, temperature=1.0, n=3, seed=1, stream=True):
            for choice in chunk.choices:
                texts[choice.index] = texts.get(choice.index, "") + choice.text
        whole = complete("abc", max_tokens=10, temperature=1.0, n=3, seed=1)
        self.assertEqual(texts, {choice.index: choice.text for choice in whole.choices})

    def test_stop_string_ends_the_text_before_it(self):
        text = complete("stop here", max_tokens=60).choices[0].text
        stop = text[20:23]
        for stream in (False, True):
            with self.subTest(stream=stream):
                response = complete("stop here", max_tokens=60, stop=[stop, "never this"],
                                    stream=stream)
                choices = [c.choices[0] for c in response
                           if c.choices] if stream else response.choices
                self.assertEqual("".join(choice.text for choice in choices),
                                 text[:text.index(stop)])
                self.assertEqual(choices[-1].finish_reason, "stop")
                self.assertEqual(choices[-1].stop_reason, stop)
        included = complete("stop here", max_tokens=60, stop=stop,
                            extra_body={"include_stop_str_in_output": True})
        self.assertEqual(included.choices[0].text, text[:text.index(stop) + len(stop)])

    def test_stop_ids_and_eos_end_the_sequence(self):
        greedy = complete(encode("halt"), max_tokens=10,
                          extra_body={"return_token_ids": True}).choices[0].token_ids
        stopped = complete(encode("halt"), max_tokens=10,
                           extra_body={"stop_token_ids": [greedy[4]]})
        self.assertEqual(stopped.choices[0].finish_reason, "stop")
        self.assertEqual(stopped.choices[0].stop_reason, greedy[4])
        self.assertLessEqual(stopped.usage.completion_tokens, 5)
        eos = complete("abc", max_tokens=10, logit_bias={str(tiny_model.EOS_ID): 100},
                       extra_body={"ignore_eos": False})
        self.assertEqual((eos.choices[0].finish_reason, eos.choices[0].text), ("stop", ""))
        self.assertIsNone(eos.choices[0].stop_reason)
        kept = complete("abc", max_tokens=10, logit_bias={str(tiny_model.EOS_ID): 100},
                        extra_body={"ignore_eos": False, "min_tokens": 6})
        self.assertGreaterEqual(kept.usage.completion_tokens, 6)

    def test_logit_bias_and_top_k_decide_the_draw(self):
        forced = complete("abc", max_tokens=4, temperature=1.0,
                          logit_bias={str(encode("Q")[0]): 100})
        self.assertEqual(forced.choices[0].text, "QQQQ")
        top1 = complete("abc", max_tokens=20, temperature=1.0, seed=3, extra_body={"top_k": 1})
        self.assertEqual(top1.choices[0].text, complete("abc", max_tokens=20).choices[0].text)

    def test_repeated_prompt_comes_from_the_cache(self):
        prompt = "a prompt of more than four pages: " + "0123456789" * 4
        first, second = complete(prompt), complete(prompt)
        self.assertEqual(first.usage.prompt_tokens_details.cached_tokens, 0)
        self.assertEqual(second.usage.prompt_tokens_details.cached_tokens,
                         (first.usage.prompt_tokens - 1) // 16 * 16)
        self.assertEqual(second.choices[0].text, first.choices[0].text)
        salted = complete(prompt, extra_body={"cache_salt": "another tenant"})
        self.assertEqual(salted.usage.prompt_tokens_details.cached_tokens, 0)

    def test_token_ids_are_used_unchanged(self):
        by_text = complete("ids", max_tokens=20)
        by_ids = complete([tiny_model.BOS_ID, *encode("ids")], max_tokens=20)
        self.assertEqual(by_ids.choices[0].text, by_text.choices[0].text)
        self.assertEqual(by_ids.usage.prompt_tokens, 4)

    def test_list_of_prompts_gives_a_choice_each(self):
        prompts = ["first", "second one", "final"]
        for batch in (prompts, [[tiny_model.BOS_ID, *encode(prompt)] for prompt in prompts]):
            together = complete(batch, max_tokens=12)
            self.assertEqual([choice.index for choice in together.choices], [0, 1, 2])
            self.assertEqual(
                [choice.text for choice in together.choices],
                [complete(prompt, max_tokens=12).choices[0].text for prompt in prompts])
            self.assertEqual(together.usage.prompt_tokens, 6 + 11 + 6)
            self.assertEqual(together.usage.completion_tokens, 36)

    def test_echo_with_logprobs_scores_the_prompt(self):
        scored = complete("score me", max_tokens=0, echo=True, logprobs=1)
        choice = scored.choices[0]
        self.assertIn("score me", choice.text)
        self.assertEqual(scored.usage.completion_tokens, 0)
        self.assertEqual(len(choice.logprobs.token_logprobs), 9)
        self.assertIsNone(choice.logprobs.token_logprobs[0])
        self.assertTrue(all(value <= 0 for value in choice.logprobs.token_logprobs[1:]))
        longer = complete("score me", max_tokens=3, echo=True, logprobs=1).choices[0]
        self.assertEqual(longer.logprobs.token_logprobs[:9], choice.logprobs.token_logprobs)
        self.assertEqual(len(longer.logprobs.token_logprobs), 12)
        self.assertTrue(longer.text.startswith(choice.text))

    def test_echoed_scores_equal_those_given_while_generating(self):
        generated = complete([0, *encode("score")], max_tokens=8, logprobs=0,
                             extra_body={"return_token_ids": True}).choices[0]
        scored = complete([0, *encode("score"), *generated.token_ids], max_tokens=0, echo=True,
                          logprobs=0).choices[0]
        self.assertEqual(scored.logprobs.token_logprobs[6:], generated.logprobs.token_logprobs)

    def test_leaving_a_stream_frees_its_pages(self):
        tokens = server.metric("diffserve_generation_tokens_total")
        server.allow(5)
        self.addCleanup(server.open_gate)
        stream = complete("leave", max_tokens=LONG, stream=True)
        for _, _chunk in zip(range(3), stream):
            pass
        self.assertGreater(server.pages_used(), 0)
        stream.close()
        server.wait_until_left()
        server.open_gate()
        server.wait_until_idle()
        eventually(lambda: server.metric("diffserve_requests_running") == 0, "no sequence runs")
        self.assertLess(server.metric("diffserve_generation_tokens_total") - tokens, LONG)


class ErrorsTest(unittest.TestCase):
    def test_bad_field_is_named(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            complete("abc", temperature=-1)
        self.assertEqual(caught.exception.param, "temperature")
        self.assertEqual(caught.exception.type, "invalid_request_error")
        self.assertIn("-1", caught.exception.message)

    def test_request_that_cannot_fit_is_refused_at_once(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            complete([5] * 100, max_tokens=tiny_model.MAX_MODEL_LEN)
        self.assertIn(caught.exception.param, ("max_tokens", "prompt"))
        with self.assertRaises(openai.BadRequestError):
            complete([5] * (tiny_model.MAX_MODEL_LEN + 1), max_tokens=1)

    def test_another_model_is_not_found(self):
        with self.assertRaises(openai.NotFoundError) as caught:
            client.completions.create(model="gpt-unknown", prompt="abc")
        self.assertEqual(caught.exception.param, "model")

    def test_models_lists_the_served_one(self):
        models = client.models.list().data
        self.assertEqual([model.id for model in models], ["tiny"])
        self.assertEqual(models[0].max_model_len, tiny_model.MAX_MODEL_LEN)
        self.assertEqual(client.models.retrieve("tiny").id, "tiny")
        with self.assertRaises(openai.NotFoundError):
            client.models.retrieve("other")
