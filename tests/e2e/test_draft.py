# SPDX-License-Identifier: Apache-2.0
"""--speculative-model: the same answers in fewer steps, and what is refused.

One pair is the bundled model and its draft model. In the other the model is the bundled one with
more layers that add nothing, so that the bundled one is a small model whose guesses are right."""

import json
import shutil
import struct
import subprocess
import tempfile
import unittest
from pathlib import Path

import test_speculation
import tiny_model
from server_process import BINARY, DEMO_MODEL, DEVICE, ServerProcess

ADDED_LAYERS = 24
STORY = {
    "messages": [{"role": "user", "content": "Tell me a story about a fox."}],
    "temperature": 0, "ignore_eos": True, "max_tokens": 60
}
WITH_STATES = Path(__file__).parents[1] / "golden/cases/phi4flash_stored_lm_head_shards"


def write_deeper_model(folder: Path) -> None:
    shutil.copytree(DEMO_MODEL, folder)
    config = json.loads((folder / "config.json").read_text())
    layers = config["num_hidden_layers"]
    config["num_hidden_layers"] = layers + ADDED_LAYERS
    (folder / "config.json").write_text(json.dumps(config))
    data = (folder / "model.safetensors").read_bytes()
    size, = struct.unpack_from("<Q", data)
    tensors = json.loads(data[8:8 + size])
    tensors.pop("__metadata__", None)
    values = bytearray(data[8 + size:])
    last = f"model.layers.{layers - 1}."
    for name, tensor in [item for item in tensors.items() if item[0].startswith(last)]:
        begin, end = tensor["data_offsets"]
        adds = name.endswith(("o_proj.weight", "down_proj.weight"))
        content = bytes(end - begin) if adds else values[begin:end]
        for layer in range(layers, layers + ADDED_LAYERS):
            offsets = [len(values), len(values) + len(content)]
            tensors[name.replace(last, f"model.layers.{layer}.")] = {
                **tensor, "data_offsets": offsets}
            values += content
    header = json.dumps(tensors).encode()
    header += b" " * (-len(header) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + values)


@unittest.skipIf(DEVICE == "cuda", "refused there")
class DraftTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.model = Path(folder.name) / "deeper"
        write_deeper_model(cls.model)

    def check_same_answers_in_fewer_steps(self, model: Path, draft: Path) -> float:
        """Returns the share of the draft model's guesses that were right."""
        with ServerProcess("--speculative", "off", model=model) as server:
            told = server.post("/v1/chat/completions", STORY).json()["choices"]
            expected = test_speculation.answers(server, at_once=1)
            steps = server.metric("diffserve_steps_total")
        with ServerProcess("--speculative-model", draft, model=model) as server:
            # Costs are measured from the fifth step on. By its size the draft pays before.
            self.assertEqual(server.post("/v1/chat/completions", STORY).json()["choices"], told)
            proposed, accepted = (server.metric(f"diffserve_{kind}_tokens_total", source="draft")
                                  for kind in ("proposed", "accepted"))
            self.assertEqual(test_speculation.answers(server, at_once=1), expected)
            self.assertLess(server.metric("diffserve_steps_total"), steps)
            self.assertEqual(test_speculation.answers(server, at_once=4),
                             expected)  # with prefix hits
            self.assertIn("draft_model", server.stderr())
        self.assertGreater(proposed, 0)
        return accepted / proposed

    def test_answers_are_the_same_in_fewer_steps(self):
        self.check_same_answers_in_fewer_steps(DEMO_MODEL, DEMO_MODEL.parent / "draft")

    def test_guesses_of_an_equal_model_are_right(self):
        self.assertEqual(self.check_same_answers_in_fewer_steps(self.model, DEMO_MODEL), 1)

    def test_draft_model_catches_up_with_a_prompt_from_disk(self):
        """The disk has the pages of the model only."""
        found = []
        with tempfile.TemporaryDirectory() as cache:
            for _ in range(2):
                with ServerProcess("--speculative-model", DEMO_MODEL, "--kv-cache-dir", cache,
                                   model=self.model) as server:
                    answer = server.post("/v1/completions", {
                        "prompt": [300 + 7 * i for i in range(20)], "max_tokens": 200,
                        "temperature": 0, "ignore_eos": True, "return_token_ids": True}).json()
                    found.append((answer["choices"][0]["token_ids"],
                                  server.metric("diffserve_kv_tier_hit_tokens_total")))
                    proposed, accepted = (
                        server.metric(f"diffserve_{kind}_tokens_total", source="draft")
                        for kind in ("proposed", "accepted"))
                    self.assertGreater(proposed, 0)
                    self.assertEqual(accepted, proposed)
        (before, loaded_before), (after, loaded_after) = found
        self.assertEqual(after, before)
        self.assertEqual(loaded_before, 0)
        self.assertEqual(loaded_after, 16)

    def test_pages_count_the_bytes_of_both_models(self):
        flags = ("--kv-cache-memory", "64MiB")
        with ServerProcess(*flags, model=self.model) as server:
            alone = server.metric("diffserve_kv_pages", state="free")
        with ServerProcess(*flags, "--speculative-model", DEMO_MODEL, model=self.model) as server:
            layers = 3 + ADDED_LAYERS
            self.assertAlmostEqual(server.metric("diffserve_kv_pages", state="free"),
                                   alone * layers / (layers + 3), delta=2)

    def test_models_that_cannot_guess_are_refused_by_name(self):
        other_words = self.model.parent / "other_words"
        shutil.copytree(DEMO_MODEL, other_words)
        tokenizer = json.loads((other_words / "tokenizer.json").read_text())
        vocab = tokenizer["model"]["vocab"]
        first, second = (next(word for word, id in vocab.items() if id == number)
                         for number in (700, 701))
        vocab[first], vocab[second] = vocab[second], vocab[first]
        (other_words / "tokenizer.json").write_text(json.dumps(tokenizer))
        cases = (
            (DEMO_MODEL, (tiny_model.directory(),),
             "has 267 tokens; allowed: 1769, as many as "),
            (DEMO_MODEL, (other_words,), "as token 700; allowed: \""),
            (DEMO_MODEL, ("/nowhere",), "/nowhere: is not a directory"),
            (WITH_STATES, (WITH_STATES,), "layers that keep states; allowed: none"),
            (DEMO_MODEL, (DEMO_MODEL, "--speculative", "off"),
             "--speculative is off with --speculative-model; allowed: auto, prompt-lookup"),
        )
        for model, flags, words in cases:
            with self.subTest(flags=flags):
                done = subprocess.run([
                    BINARY, "serve", model, "--port", "0", "--grpc-port", "0",
                    "--speculative-model", *flags
                ], capture_output=True, text=True, timeout=60, check=False)
                self.assertEqual(done.returncode, 1 if flags == ("/nowhere",) else 2)
                self.assertIn(words, done.stderr)
                lines = [line for line in done.stderr.splitlines()
                         if " WARNING weight_files_unused " not in line]
                self.assertEqual(len(lines), 1, done.stderr)


if __name__ == "__main__":
    unittest.main()
