# SPDX-License-Identifier: Apache-2.0
"""Phi-4-mini-flash: the same answers alone, in a batch, in chunks and after a hit in the prefix
cache; its commands, its tokenizer's stand-in, and configs that are refused."""

import json
import subprocess
import tempfile
import unittest
from pathlib import Path

import tiny_phi4flash
from server_process import BINARY, DEVICE_FLAGS, PAGE_SLOTS, ServerProcess
from test_bit_exactness import SameAnswers
from tiktoken import Encoding

OFTEN = ("--state-snapshot-interval", PAGE_SLOTS)
TEXT = "Hello there, it's 1234567 o'clock:\n\n  the hello THE'LL Straße 東京 \t end"


class Phi4FlashTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.model = tiny_phi4flash.write(Path(cls.folder.name) / "phi")

    def command(self, *arguments) -> subprocess.CompletedProcess:
        return subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True,
                              check=False)


class ExactnessTest(Phi4FlashTest, SameAnswers):
    @classmethod
    def setUpClass(cls):
        Phi4FlashTest.setUpClass.__func__(cls)
        SameAnswers.setUpClass.__func__(cls)

    def test_at_once_with_snapshots_at_prompts_ends(self):
        metrics = self.check()
        self.assertGreater(metrics["diffserve_state_snapshots_resumed_total"], 0)

    def test_alone_with_snapshots_in_every_page(self):
        metrics = self.check(*OFTEN, at_once=False)
        self.assertGreater(metrics["diffserve_prefix_hit_tokens_total"], 300)
        self.assertGreater(metrics["diffserve_state_snapshots_taken_total"], 20)

    def test_in_small_chunks(self):
        self.check(*OFTEN, "--max-num-batched-tokens", 32, "--threads", 2)

    def test_with_few_slots(self):
        self.check(*OFTEN, "--max-num-seqs", 2)

    def test_without_snapshots_nothing_is_found(self):
        metrics = self.check("--state-snapshot-interval", 0)
        self.assertGreater(metrics['diffserve_prefix_misses_total{reason="disabled"}'], 0)
        self.assertEqual(metrics["diffserve_prefix_hit_tokens_total"], 0)
        self.assertEqual(metrics["diffserve_state_snapshots_taken_total"], 0)


class ServingTest(Phi4FlashTest):
    def test_second_turn_continues_the_first(self):
        for flags in ((), ("--max-num-seqs", 1)):  # one slot for all snapshots
            messages = [{"role": "user", "content": "tell me of the hell below " * 4}]
            found = []
            with self.subTest(flags=flags), ServerProcess(*flags, model=self.model) as server:
                for _ in range(4):
                    body = {"messages": messages, "max_tokens": 24, "temperature": 0}
                    reply = server.post("/v1/chat/completions", body).json()
                    messages += [reply["choices"][0]["message"],
                                 {"role": "user", "content": "more " * PAGE_SLOTS}]
                    found.append(reply["usage"]["prompt_tokens_details"]["cached_tokens"])
                self.assertEqual(found[0], 0)
                self.assertEqual(found, sorted(set(found)), "each turn goes on from the last")
                server.wait_until_idle()
                for what in ("state_slots", "window_pages"):
                    self.assertEqual(server.metric("diffserve_" + what, state="used"), 0)
                    self.assertGreater(server.metric("diffserve_" + what, state="snapshot"), 0)

    def test_proposed_tokens_change_no_bit(self):
        """Answers that repeat themselves, and one that stops to."""
        body = {"max_tokens": 90, "temperature": 0, "logprobs": 3, "return_token_ids": True,
                "structured_outputs": {"regex": "((hello ){9}[a-d]{4} )+"}}
        for flags in ((), OFTEN, ("--max-num-seqs", 1)):
            answers = []
            for speculative in (("--speculative", "off"), ("--speculative", "prompt-lookup")):
                with ServerProcess(*flags, *speculative, model=self.model) as server:
                    answers.append([
                        server.post("/v1/completions", {"prompt": prompt} | body).json()["choices"]
                        for prompt in ("tell me", "hello hello hello", "tell me")])
                    accepted = server.metric("vllm:spec_decode_num_accepted_tokens_total")
                    proposed = server.metric("vllm:spec_decode_num_draft_tokens_total")
            self.assertEqual(answers[1], answers[0], flags)
            self.assertGreater(accepted, 0)  # how many depends on the speed
            self.assertGreater(proposed, accepted)

    def test_proposals_by_default_take_no_room_from_sequences(self):
        def generate(kib, method):
            return self.command("generate", self.model, "--tokens", "5,6,7", "--max-tokens", 3,
                                "--device", "cpu", "--max-model-len", 64, "--kv-cache-memory",
                                f"{kib}KiB", "--speculative", method)

        kib = 16
        while (off := generate(kib, "off")).returncode != 0:
            self.assertIn("raise --kv-cache-memory", off.stderr)
            kib += kib // 4
        auto = generate(kib, "auto")
        self.assertEqual((auto.returncode, auto.stdout), (0, off.stdout))
        self.assertIn("speculation_off", auto.stderr)
        self.assertNotIn("speculation_off", generate(1 << 16, "auto").stderr)

    def test_match_before_the_first_snapshot_is_a_miss(self):
        shared = [5] * PAGE_SLOTS
        with ServerProcess(model=self.model) as server:
            for own, missed in ((6, 0), (7, 1)):
                body = {"prompt": shared + [own] * 2 * PAGE_SLOTS, "max_tokens": 1}
                usage = server.post("/v1/completions", body).json()["usage"]
                self.assertEqual(usage["prompt_tokens_details"]["cached_tokens"], 0)
                server.wait_until_idle()
                self.assertEqual(
                    server.metric("diffserve_prefix_misses_total", reason="no_snapshot"), missed)

    def test_text_is_split_as_tiktoken_splits_it(self):
        oracle = Encoding("stand_in", **tiny_phi4flash.tiktoken_arguments())
        expected = oracle.encode(TEXT)
        turn = oracle.encode(f"<|user|>{TEXT}<|end|><|assistant|>", allowed_special="all")
        with ServerProcess(model=self.model) as server:
            told = server.post("/tokenize", {"prompt": TEXT, "add_special_tokens": True}).json()
            self.assertEqual(told["tokens"], expected)
            chat = {"messages": [{"role": "user", "content": TEXT}], "add_generation_prompt": True}
            self.assertEqual(server.post("/tokenize", chat).json()["tokens"], turn)
            chat["messages"][0]["content"] = " \n" + TEXT  # the space is the turn's
            self.assertEqual(server.post("/tokenize", chat).json()["tokens"], turn)
            back = server.post("/detokenize", {"tokens": expected}).json()
            self.assertEqual(back["prompt"], TEXT)


class CommandsTest(Phi4FlashTest):
    def test_generate_logits_bench_and_inspect_accept_the_model(self):
        tokens = ",".join(str(5 + i % 200) for i in range(60))
        made = self.command("generate", self.model, "--tokens", tokens, "--max-tokens", 8, "--json",
                            *DEVICE_FLAGS)
        self.assertEqual(made.returncode, 0, made.stderr)
        with tempfile.TemporaryDirectory() as folder:
            logits = self.command("logits", self.model, "--tokens", tokens, "--output",
                                  Path(folder) / "l.npy", *DEVICE_FLAGS)
            self.assertEqual(logits.returncode, 0, logits.stderr)
        bench = self.command("bench", self.model, "--prompt", 40, "--generate", 4, "--depth",
                             "0,100", "--batch", "1,3", "--repeat", 1, *DEVICE_FLAGS)
        self.assertEqual(bench.returncode, 0, bench.stderr)
        self.assertNotIn("left out", bench.stderr)
        refused = self.command("bench", self.model, "--batch", 256, "--kv-cache-memory", "8M",
                               *DEVICE_FLAGS)
        self.assertEqual(refused.returncode, 2, refused.stderr)
        self.assertIn("states of 256 sequences", refused.stderr)
        self.assertIn("lower --batch", refused.stderr)

    def test_converted_model_answers_the_same(self):
        tokens = ",".join(str(5 + i * 7 % 200) for i in range(60))
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "copy"
            done = self.command("convert", self.model, copy)
            self.assertEqual(done.returncode, 0, done.stderr)
            flags = ("--tokens", tokens, "--max-tokens", 8, "--temperature", 2, "--json")
            answers = [self.command("generate", model, *flags, *DEVICE_FLAGS)
                       for model in (self.model, copy)]
            ids = [json.loads(answer.stdout)["token_ids"] for answer in answers]
            self.assertEqual(ids[0], ids[1])
            self.assertGreater(len(set(ids[0])), 1)

    def test_window_beyond_the_context_takes_pages_for_the_context(self):
        context = tiny_phi4flash.CONFIG["max_position_embeddings"]
        with tempfile.TemporaryDirectory() as folder:
            told = [json.loads(self.command("inspect", tiny_phi4flash.write(
                Path(folder) / str(window), sliding_window=window), "--json", "--max-num-seqs",
                2048, "--kv-cache-memory", "256M", *DEVICE_FLAGS).stdout)
                    for window in (context, 1 << 24)]
        self.assertEqual(told[0]["memory"]["window_pages"], told[1]["memory"]["window_pages"])

    def test_activations_are_refused(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as texts:
            texts.write('{"tokens": [5, 6, 7]}\n')
            texts.flush()
            done = self.command("inspect", self.model, "--activations", texts.name)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("attend to the whole context", done.stderr)

    def test_inspect_reports_the_state_of_a_sequence(self):
        told = json.loads(self.command("inspect", self.model, "--json", *DEVICE_FLAGS).stdout)
        # Three Mamba layers of 128 channels: three tokens of the convolution, four states.
        self.assertEqual(told["memory"]["state_bytes_per_sequence"], 3 * 128 * (3 + 4) * 4)
        self.assertEqual(told["layer_kinds"].split(",")[0], "1 of attention")
        self.assertGreater(told["memory"]["window_pages"], 0)

    def test_options_that_the_family_lacks_are_refused_by_name(self):
        cases = [({"sliding_window": 0}, "sliding_window"), ({"mb_per_layer": 3}, "mb_per_layer"),
                 ({"num_hidden_layers": 6}, "num_hidden_layers"),
                 ({"mamba_d_conv": 1}, "mamba_d_conv"), ({"mamba_d_state": 4096}, "mamba_d_state"),
                 ({"mlp_bias": True}, "mlp_bias"), ({"hidden_size": 62}, "hidden_size")]
        with tempfile.TemporaryDirectory() as folder:
            for index, (changes, key) in enumerate(cases):
                with self.subTest(changes=changes):
                    model = tiny_phi4flash.write(Path(folder) / str(index), **changes)
                    done = self.command("inspect", model)
                    self.assertEqual(done.returncode, 1)
                    self.assertIn(key, done.stderr)
        done = self.command("serve", self.model, "--state-snapshot-interval", 7)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--state-snapshot-interval", done.stderr)


if __name__ == "__main__":
    unittest.main()
