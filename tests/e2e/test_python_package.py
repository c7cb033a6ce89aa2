# SPDX-License-Identifier: Apache-2.0
"""The Python package: each method gives what the route gives, for a server of its own and for one
that runs; the child ends with its owner, however that ends."""

import base64
import gc
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import numpy as np

from server_process import BINARY, DEMO_MODEL, DEVICE, REPOSITORY, ServerProcess, eventually

PACKAGE = REPOSITORY / "deploy" / "python"
sys.path.insert(0, str(PACKAGE))
import diffserve
from diffserve.arrays import MAX_NUMBERS
from diffserve.shown import few

os.environ["DIFFSERVE_BINARY"] = str(BINARY)
PROMPT = "The magic number of Lisbon is 48213. The magic number of Lisbon is"
MESSAGES = [{"role": "user", "content": "Who are you?"}]
GREEDY = {"max_tokens": 8, "temperature": 0}


def is_running(pid: int) -> bool:
    """Whether the process exists and is not a zombie, whose parent may be late to reap it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class MethodsTest(unittest.TestCase):
    """Every method, against the same request sent by hand to another server of the model."""

    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(ServerProcess("--served-model-name", "diff",
                                                         model=DEMO_MODEL))
        cls.llm = cls.enterClassContext(diffserve.LLM(DEMO_MODEL))
        cls.both = (cls.llm, diffserve.connect(cls.server.url))

    def raw(self, path: str, body: dict) -> dict:
        response = self.server.post(path, body)
        self.assertEqual(response.status, 200, response.body)
        return response.json()

    def test_generate(self):
        choice = self.raw("/v1/completions", {"prompt": PROMPT, "return_token_ids": True,
                                              "logprobs": 0, **GREEDY})["choices"][0]
        ids = self.llm.tokenize(PROMPT)
        for client in self.both:
            for prompt in (PROMPT, ids, np.array(ids)):
                answer = client.generate(prompt, logprobs=0, **GREEDY)
                self.assertEqual((answer.text, answer.token_ids, answer.finish_reason),
                                 (choice["text"], choice["token_ids"], choice["finish_reason"]))
                self.assertEqual(answer.choice, choice)
        self.assertIn("48213", str(answer))

    def test_chat(self):
        choice = self.raw("/v1/chat/completions", {"messages": MESSAGES, **GREEDY})["choices"][0]
        for client in self.both:
            answer = client.chat(MESSAGES, **GREEDY)
            self.assertEqual((answer.text, answer.finish_reason),
                             (choice["message"]["content"], choice["finish_reason"]))
            self.assertEqual(client.detokenize(answer.token_ids), answer.text)
            self.assertEqual(client.chat(MESSAGES[0]["content"], **GREEDY), answer)

    def test_list_gives_a_list_in_order(self):
        prompts = [f"{i}. {PROMPT}" for i in range(100)]
        alone = [self.raw("/v1/completions", {"prompt": prompt, **GREEDY})["choices"][0]["text"]
                 for prompt in prompts]
        self.assertEqual([answer.text for answer in self.llm.generate(prompts, **GREEDY)], alone)
        chats = self.llm.chat([MESSAGES, MESSAGES[0]["content"]], **GREEDY)
        alone = self.llm.chat(MESSAGES, **GREEDY).text
        self.assertEqual([chat.text for chat in chats], [alone] * 2)
        self.assertEqual(self.llm.generate([], **GREEDY), [])

    def test_stream_joins_to_the_answer(self):
        for client in self.both:
            self.assertEqual("".join(client.stream(PROMPT, **GREEDY)),
                             client.generate(PROMPT, **GREEDY).text)
            pieces = list(client.stream(MESSAGES, **GREEDY))
            self.assertGreater(len(pieces), 2)
            self.assertEqual("".join(pieces), client.chat(MESSAGES, **GREEDY).text)

    def test_stream_that_is_dropped_ends_the_answer(self):
        pieces = diffserve.connect(self.server.url).stream(PROMPT, max_tokens=1000, ignore_eos=True)
        next(pieces)
        pieces.close()
        self.server.wait_until_idle()

    def test_embed(self):
        texts = [PROMPT, "Who are you?"]
        data = self.raw("/v1/embeddings", {"input": texts})["data"]
        expected = np.array([item["embedding"] for item in data], np.float32)
        for client in self.both:
            np.testing.assert_array_equal(client.embed(texts), expected)
            np.testing.assert_array_equal(client.embed(PROMPT), expected[0])

    def test_logprobs(self):
        choice = self.raw("/v1/completions", {
            "prompt": PROMPT, "echo": True, "max_tokens": 0, "logprobs": 2})["choices"][0]
        raw = choice["logprobs"]
        for client in self.both:
            found = client.logprobs(PROMPT, top=2)
            self.assertEqual(found.texts, raw["tokens"])
            self.assertEqual(found.tokens.tolist(), client.tokenize(PROMPT))
            self.assertTrue(math.isnan(found.logprobs[0]))
            np.testing.assert_array_equal(found.logprobs[1:],
                                          np.float32(raw["token_logprobs"][1:]))
            for i, entries in enumerate(raw["top_logprobs"][1:], 1):
                best = sorted(entries.values(), reverse=True)[:2]
                np.testing.assert_array_equal(found.top_logprobs[i], np.float32(best))
                self.assertEqual(client.detokenize(found.top_tokens[i, :1]),
                                 max(entries, key=entries.get))
        several = self.llm.logprobs([PROMPT, PROMPT])
        self.assertEqual([one.top_tokens.shape for one in several], [(len(found.tokens), 0)] * 2)

    def test_attention(self):
        raw = self.raw("/v1/attention", {"text": PROMPT, "layers": [0, 2], "heads": [1],
                                         "positions": [5, -1]})
        for client in self.both:
            found = client.attention(PROMPT, layers=[0, 2], heads=[1], positions=[5, -1])
            count = len(raw["tokens"])
            self.assertEqual((found.tokens, found.texts), (raw["tokens"], raw["token_texts"]))
            self.assertEqual((found.layers, found.heads, found.positions),
                             ([0, 2], [1], [5, count - 1]))
            self.assertEqual(found.map1.shape, (2, 1, 2, count))
            for item in raw["data"]:
                at = found.layers.index(item["layer"]), 0, found.positions.index(item["position"])
                seen = item["position"] + 1
                for name in ("map1", "map2"):
                    row = getattr(found, name)[at]
                    np.testing.assert_array_equal(row[:seen], np.float32(item[name]))
                    self.assertFalse(row[seen:].any())
                for name in ("lambdas", "entropy1", "entropy2", "cancelled"):
                    self.assertEqual(getattr(found, name)[at], np.float32(item[name.rstrip("s")]))
            np.testing.assert_array_equal(
                found.difference, found.map1 - found.lambdas[..., None] * found.map2)

    def test_attention_of_all_positions_and_of_conversations(self):
        whole = self.llm.attention(PROMPT, layers=[0], positions="all")
        count = len(whole.tokens)
        self.assertEqual(whole.map1.shape[2:], (count, count))
        np.testing.assert_allclose(whole.map1.sum(-1), 1, atol=1e-5)
        np.testing.assert_array_equal(whole.map1[:, :, -1:],
                                      self.llm.attention(PROMPT, layers=[0]).map1)
        self.assertEqual(self.llm.attention(MESSAGES, positions="all").positions,
                         list(range(len(self.llm.attention(MESSAGES).tokens))))

    def test_all_stands_for_layers_heads_and_positions(self):
        whole = self.llm.attention([1, 5, 6], layers="all", heads="all", positions="all")
        self.assertEqual((whole.layers, whole.heads, whole.positions),
                         ([0, 1, 2], [0, 1, 2, 3], [0, 1, 2]))
        with self.assertRaisesRegex(ValueError, 'heads is \'some\'; allowed: a list'):
            self.llm.attention("a", heads="some")

    def test_conversation_ends_where_its_answer_begins_or_as_the_keywords_say(self):
        begun = [*MESSAGES, {"role": "assistant", "content": "I am"}]
        for chat, fields in ((MESSAGES, {}), (MESSAGES, {"add_generation_prompt": False}),
                             (begun, {"continue_final_message": True})):
            sent = dict(fields)
            if "continue_final_message" in fields:
                sent["add_generation_prompt"] = False
            tokens = self.raw("/tokenize", {"messages": chat, **sent})["tokens"]
            for client in self.both:
                self.assertEqual(client.attention(chat, **fields).tokens, tokens)
                self.assertEqual(client.tokenize(chat, **sent), tokens)
                np.testing.assert_array_equal(client.hidden_states(chat, **fields),
                                              client.hidden_states(tokens))
        for ask in (self.llm.attention, self.llm.hidden_states):
            with self.assertRaisesRegex(ValueError, "are for a conversation"):
                ask(PROMPT, add_generation_prompt=True)

    def test_maps_too_large_for_one_reply_are_joined_from_several(self):
        asked = {"layers": [0, 2], "heads": "all", "positions": [-1, 3, 15, 4]}
        count = len(self.llm.tokenize(PROMPT))
        whole = self.llm.attention(PROMPT, **asked)
        slots = sum((4, 5, 16, count)) * 2
        for limit, parts in ((slots * 8, 1), (slots * 4, 2), (slots * 2, 4), (slots, 8),
                             (2 * count, 24), (1, 32)):
            with self.subTest(limit=limit), mock.patch("diffserve.arrays.MAX_NUMBERS", limit), \
                    mock.patch.object(self.llm, "_post", wraps=self.llm._post) as post:
                joined = self.llm.attention(PROMPT, **asked)
                self.assertEqual(post.call_count - 1, parts)
            for name in ("tokens", "texts", "layers", "heads", "positions"):
                self.assertEqual(getattr(joined, name), getattr(whole, name))
            for name in ("map1", "map2", "lambdas", "entropy1", "entropy2", "cancelled"):
                np.testing.assert_array_equal(getattr(joined, name), getattr(whole, name))

    def test_limit_of_one_reply_is_the_servers(self):
        tokens = [5] * 600  # one position more than fits: 3 layers, 4 heads, 2 maps
        fits = next(n for n in range(600) if 24 * (n + 1) * (n + 2) // 2 > MAX_NUMBERS)
        self.raw("/v1/attention", {"tokens": tokens[:fits], "positions": "all"})
        refused = self.server.post("/v1/attention", {"tokens": tokens[:fits + 1],
                                                     "positions": "all"})
        self.assertIn(f"allowed: at most {MAX_NUMBERS};", refused.error["message"])
        joined = self.llm.attention(tokens[:fits + 1], positions="all")
        np.testing.assert_allclose(joined.map1.sum(-1), 1, atol=1e-5)

    def test_other_indices_are_refused_by_name(self):
        for name in ("layers", "heads", "positions"):
            for wrong in ([99], [-99], []):
                with self.subTest(name, wrong=wrong), \
                        self.assertRaises(diffserve.DiffserveError) as caught:
                    self.llm.attention("a b", **{name: wrong})
                self.assertEqual((caught.exception.status, caught.exception.param), (400, name))

    def test_plot_shows_the_maps_of_one_head(self):
        maps = self.llm.attention("Prices: $5 and $6", layers=[1], heads=[0, 3], positions="all")
        figure = maps.plot(1, 3)
        with tempfile.TemporaryDirectory() as folder:
            figure.savefig(f"{folder}/lens.png")
        shown = [axis.images[0].get_array() for axis in figure.axes[:3]]
        for image, expected in zip(shown, (maps.map1, maps.map2, maps.difference), strict=True):
            np.testing.assert_array_equal(image, expected[0, 1])
        for layer, head, words in ((0, 3, "layer is 0; these maps have layers \\[1\\]"),
                                   (1, 2, "head is 2; these maps have heads \\[0, 3\\]")):
            with self.assertRaisesRegex(ValueError, words):
                maps.plot(layer, head)
        with mock.patch.dict(sys.modules, {"matplotlib": None}), \
                self.assertRaisesRegex(ImportError, "pip install matplotlib"):
            maps.plot(1, 3)

    def test_results_are_shown_in_one_line(self):
        maps = self.llm.attention(PROMPT, positions="all")
        count = len(maps.tokens)
        self.assertEqual(repr(maps), f"Attention(map1, map2 [3, 4, {count}, {count}]: layers "
                                     f"[0, 1, 2], heads [0, 1, 2, 3], positions 0..{count - 1}, "
                                     f"{count} tokens)")
        self.assertEqual(repr(self.llm.logprobs(PROMPT, top=2)), f"Logprobs({count} tokens, top 2)")
        answer = self.llm.chat(MESSAGES, **GREEDY)
        self.assertEqual(repr(answer), f"Answer(text={answer.text!r}, finish_reason='length')")
        self.assertEqual(few(range(0, 40, 2)), "[0, 2, 4, ... 20 in all]")

    def test_logits_are_those_that_the_server_draws_from(self):
        ids = self.llm.tokenize(PROMPT)
        logits = diffserve.logits(DEMO_MODEL, PROMPT)
        np.testing.assert_array_equal(logits, diffserve.logits(DEMO_MODEL, np.array(ids)))
        self.assertEqual((logits.dtype, logits.shape[0]), (np.float32, len(ids)))
        scores = self.llm.logprobs(PROMPT)
        logprobs = logits - np.log(np.exp(logits.astype(float)).sum(-1, keepdims=True))
        np.testing.assert_allclose(logprobs[range(len(ids) - 1), ids[1:]], scores.logprobs[1:],
                                   atol=1e-4)
        with self.assertRaisesRegex(diffserve.DiffserveError, "max_model_len|allowed: 1 to 8"):
            diffserve.logits(DEMO_MODEL, PROMPT, max_model_len=8)
        with self.assertRaisesRegex(ValueError, "give its token ids"):
            diffserve.logits(DEMO_MODEL, "a" * 200_000)

    def test_hidden_states(self):
        raw = self.raw("/pooling", {"input": PROMPT, "use_activation": False})["data"][0]["data"]
        count = len(self.llm.tokenize(PROMPT))
        for client in self.both:
            states = client.hidden_states(PROMPT)
            self.assertEqual(states.shape[0], count)
            np.testing.assert_array_equal(states, np.float32(raw))
        mean = states.astype(float).mean(0)
        np.testing.assert_allclose(self.llm.embed(PROMPT), mean / np.linalg.norm(mean), atol=1e-6)
        self.assertEqual(self.llm.hidden_states(MESSAGES).shape[0],
                         len(self.llm.attention(MESSAGES).tokens))

    def test_pooling_at_unit_length_and_in_base64(self):
        body = {"input": [self.llm.tokenize(PROMPT), [5, 6]], "encoding_format": "base64"}
        reply = self.raw("/pooling", body)
        self.assertTrue(reply["id"].startswith("pool-"))
        for item, given in zip(reply["data"], body["input"]):
            found = np.frombuffer(base64.b64decode(item["data"]), "<f4")
            states = self.llm.hidden_states(given)
            lengths = np.linalg.norm(states.astype(float), axis=1, keepdims=True)
            np.testing.assert_allclose(found.reshape(states.shape), states / lengths, atol=1e-6)

    def test_tokens_go_there_and_back(self):
        ids = self.llm.tokenize(PROMPT)
        self.assertEqual(ids, self.raw("/tokenize", {"prompt": PROMPT})["tokens"])
        self.assertEqual(self.llm.detokenize(ids), PROMPT)

    def test_error_has_the_servers_message(self):
        raw = self.server.post("/v1/completions", {"prompt": "a", "max_tokens": -1})
        for client in self.both:
            with self.assertRaises(diffserve.DiffserveError) as caught:
                client.generate(["a", "b"], max_tokens=-1)
            error = caught.exception
            self.assertEqual((error.status, error.message, error.param),
                             (400, raw.error["message"], "max_tokens"))
            with self.assertRaisesRegex(diffserve.DiffserveError, "max_tokens"):
                next(client.stream("a", max_tokens=-1))
        with self.assertRaisesRegex(ValueError, "n is not offered"):
            self.llm.generate("a", n=2)

    def test_threads_share_a_client(self):
        expected = self.llm.generate(PROMPT, **GREEDY).text
        with ThreadPoolExecutor(16) as pool:
            answers = [pool.submit(self.llm.generate, PROMPT, **GREEDY) for _ in range(64)]
            self.assertEqual({answer.result().text for answer in answers}, {expected})


class ConnectTest(unittest.TestCase):
    def test_key_is_sent(self):
        with tempfile.NamedTemporaryFile("w") as keys:
            print("secret", file=keys, flush=True)
            with ServerProcess("--api-key-file", keys.name) as server:
                self.assertTrue(diffserve.connect(server.url + "/v1", "secret").tokenize("a"))
                with self.assertRaises(diffserve.DiffserveError) as caught:
                    diffserve.connect(server.url).tokenize("a")
                self.assertEqual(caught.exception.status, 401)

    def test_unreachable_server_is_named(self):
        for url in ("http://127.0.0.1:1", "unix:/none"):
            with self.assertRaisesRegex(diffserve.DiffserveError, f"no answer from {url}"):
                diffserve.connect(url).tokenize("a")

    def test_other_urls_are_refused(self):
        for url in ("127.0.0.1:8000", "ftp://a", "http://a/v2"):
            with self.assertRaisesRegex(ValueError, "allowed: http://"):
                diffserve.connect(url)

    def test_import_needs_no_numpy(self):
        code = "import sys, diffserve; diffserve.LLM; print('numpy' in sys.modules)"
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                             env={"PYTHONPATH": str(PACKAGE)})
        self.assertEqual(ran.stdout, "False\n", ran.stderr)

    def test_types_are_complete(self):
        ran = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--cache-dir=/dev/null",
                              PACKAGE / "diffserve"], capture_output=True, text=True)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)


class ChildTest(unittest.TestCase):
    """The life of the server that LLM starts."""

    def test_context_ends_the_child_and_its_folder(self):
        with diffserve.LLM(DEMO_MODEL) as llm:
            folder = Path(llm._transport.url.removeprefix("unix:")).parent
            self.assertEqual(folder.stat().st_mode & 0o777, 0o700)
            self.assertTrue(is_running(llm.pid))
        self.assertFalse(is_running(llm.pid) or folder.exists())
        with self.assertRaisesRegex(diffserve.DiffserveError,
                                    r"^the server ended \(exit code 0\)$"):
            llm.tokenize("a")

    def test_exception_ends_the_child(self):
        with self.assertRaisesRegex(RuntimeError, "mine"), diffserve.LLM(DEMO_MODEL) as llm:
            raise RuntimeError("mine")
        self.assertFalse(is_running(llm.pid))

    def test_garbage_collection_ends_the_child(self):
        llm = diffserve.LLM(DEMO_MODEL)
        pid = llm.pid
        del llm
        gc.collect()
        self.assertFalse(is_running(pid))

    def in_process(self, code: str) -> tuple[subprocess.Popen, int]:
        """A process that runs the code after it has made an LLM; the process id of its child."""
        code = (f"import diffserve, os, sys, time\nllm = diffserve.LLM({str(DEMO_MODEL)!r})\n"
                f"print(llm.pid, flush=True)\n{code}")
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True,
                                   env={**os.environ, "PYTHONPATH": str(PACKAGE)})
        self.addCleanup(process.stdout.close)
        return process, int(process.stdout.readline())

    def check_end(self, process: subprocess.Popen, pid: int) -> None:
        process.wait(60)
        eventually(lambda: not is_running(pid), "the child has ended", 30)

    def test_end_of_the_process_ends_the_child(self):
        self.check_end(*self.in_process("sys.exit(3)"))

    def test_kill_of_the_process_ends_the_child(self):
        process, pid = self.in_process("time.sleep(600)")
        self.assertTrue(is_running(pid))
        process.kill()
        self.check_end(process, pid)

    def test_kill_ends_the_child_although_a_fork_lives(self):
        process, pid = self.in_process("fork = os.fork()\nif fork > 0: print(fork, flush=True)\n"
                                       "time.sleep(600)")
        fork = int(process.stdout.readline())
        self.addCleanup(os.kill, fork, signal.SIGKILL)
        self.assertTrue(is_running(pid))
        process.kill()
        self.check_end(process, pid)

    def test_fork_that_ends_leaves_the_child(self):
        process, pid = self.in_process("if os.fork() == 0: sys.exit()\nos.wait()\n"
                                       "print(llm.tokenize('a'), flush=True)")
        self.assertRegex(process.stdout.readline(), r"^\[\d")
        self.assertEqual(process.wait(60), 0)

    def test_two_live_at_once(self):
        with diffserve.LLM(DEMO_MODEL) as one, diffserve.LLM(DEMO_MODEL.with_name("twin")) as two:
            self.assertIsNone(two.attention(PROMPT).map2)
            self.assertIsNotNone(one.attention(PROMPT).map2)
            one.close()
            self.assertTrue(two.tokenize("a"))

    def test_child_that_dies_is_reported(self):
        with diffserve.LLM(DEMO_MODEL) as llm:
            os.kill(llm.pid, signal.SIGKILL)
            with self.assertRaisesRegex(diffserve.DiffserveError,
                                        r"^the server ended \(exit code -9\)"):
                llm.generate(PROMPT, **GREEDY)

    def test_start_that_fails_gives_the_servers_words(self):
        with tempfile.TemporaryDirectory() as folder, \
                self.assertRaisesRegex(diffserve.DiffserveError, "config.json"):
            diffserve.LLM(folder)
        logits = lambda model, **flags: diffserve.logits(model, "a", **flags)
        for start in (diffserve.LLM, logits):
            with self.assertRaisesRegex(
                    diffserve.DiffserveError,
                    r"^[a-z ]+ \(exit code 2\): --max-modle-len is not a flag: .*$"):
                start(DEMO_MODEL, max_modle_len=3)

    def test_error_of_a_start_is_the_last_line_and_the_rest_is_its_log(self):
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "program"
            program.write_text("#!/bin/sh\nfor i in 1 2 3; do echo WARNING try $i >&2; done\n"
                               "echo diffserve: no such model >&2; echo a hint >&2; exit 3\n")
            program.chmod(0o755)
            with mock.patch.dict(os.environ, {"DIFFSERVE_BINARY": str(program)}), \
                    self.assertRaises(diffserve.DiffserveError) as caught:
                diffserve.LLM(DEMO_MODEL)
        self.assertEqual(str(caught.exception),
                         "the server did not start (exit code 3): no such model")
        self.assertEqual(len(caught.exception.log.splitlines()), 5)

    def test_flags_are_keywords(self):
        with diffserve.LLM(DEMO_MODEL, max_model_len=64, ui=False, served_model_name=["a", "b"],
                           kv_cache_dtype="int8", kv_cache_dtype_skip_layers=[0, -1],
                           config=None) as llm:
            for name in ("a", "b"):
                self.assertEqual(len(llm.generate("a", model=name, max_tokens=1).token_ids), 1)
            with self.assertRaisesRegex(diffserve.DiffserveError, "64"):
                llm.generate(list(range(1, 80)))

    def test_keys_of_other_servers_are_not_asked_for(self):
        with mock.patch.dict(os.environ, {"DIFFSERVE_API_KEY_FILE": "/nonexistent"}):
            with diffserve.LLM(DEMO_MODEL) as llm:
                self.assertEqual(len(llm.generate("Hi", max_tokens=1).token_ids), 1)

    def test_long_temporary_folder_is_not_used(self):
        deep = Path(tempfile.mkdtemp()) / ("x" * 100)
        deep.mkdir()
        self.addCleanup(shutil.rmtree, deep.parent)
        before = tempfile.tempdir
        tempfile.tempdir = str(deep)
        try:
            with diffserve.LLM(DEMO_MODEL) as llm:
                self.assertTrue(llm._transport.url.startswith("unix:/tmp/"))
        finally:
            tempfile.tempdir = before


if __name__ == "__main__":
    unittest.main()
