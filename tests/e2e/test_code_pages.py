# SPDX-License-Identifier: Apache-2.0
"""--kv-cache-dtype int8, int8k_int4v and int4: answers near those of float32 pages, bytes per
token, skipped layers, and what is refused."""

import json
import subprocess
import tempfile
import unittest
from pathlib import Path

import tiny_model
from server_process import BINARY, DEVICE, ServerProcess
from test_cuda_on_cpu import ON_SHIM
from test_float16 import PROMPTS, logprobs, write_loud_model

FLOAT32 = ("--dtype", "float32")
PAGES = (*FLOAT32, "--kv-cache-dtype")
# Maximum mean distance of log-probabilities from those of float32 pages.
FAR = {"int8": 0.1, "int8k_int4v": 0.5, "int4": 0.8}


def inspected(*flags):
    told = subprocess.run([BINARY, "inspect", tiny_model.directory(), *flags, "--json"],
                          capture_output=True, check=True)
    return json.loads(told.stdout)


@unittest.skipIf(DEVICE == "cuda", "beside float32 pages, which the CPU has")
class CodePagesTest(unittest.TestCase):
    def test_answers_are_near_those_of_float32_pages(self):
        with ServerProcess(*FLOAT32) as server:
            expected = [logprobs(server, prompt) for prompt in PROMPTS]
        for name, far in FAR.items():
            with ServerProcess(*PAGES, name) as server:
                answers = [logprobs(server, prompt) for prompt in PROMPTS]
                self.assertEqual(server.metric("diffserve_build_info", kv_cache_dtype=name), 1)
            distances = [abs(a - b) for mine, theirs in zip(answers, expected)
                         for a, b in zip(mine[1:], theirs[1:], strict=True)]
            self.assertLess(sum(distances) / len(distances), far, name)
            self.assertNotEqual(answers, expected)

    def test_token_takes_one_code_per_number_and_one_float_per_head(self):
        def bytes_per_token(*flags):
            return inspected(*flags)["memory"]["kv_bytes_per_token"]

        numbers = bytes_per_token(*FLOAT32) // 4  # K1, K2 and V of twice their width
        scales = 4 * numbers // tiny_model.CONFIG["head_dim"]
        self.assertEqual(bytes_per_token(*PAGES, "int8"), numbers + scales)
        self.assertEqual(bytes_per_token(*PAGES, "int8k_int4v"), numbers * 3 // 4 + scales)
        self.assertEqual(bytes_per_token(*PAGES, "int4"), numbers // 2 + scales)
        told = inspected(*FLOAT32)["memory"]["kv_bytes_per_token_by_dtype"]
        self.assertEqual({name: told[name] for name in FAR},
                         {name: bytes_per_token(*PAGES, name) for name in FAR})
        self.assertEqual(told["bfloat16"], numbers * 2)

    def test_layers_that_are_skipped_keep_full_precision(self):
        layers = tiny_model.CONFIG["num_hidden_layers"]
        skip = "--kv-cache-dtype-skip-layers"
        full = inspected(*FLOAT32)["memory"]["kv_bytes_per_token"]
        codes = inspected(*PAGES, "int4")["memory"]["kv_bytes_per_token"]
        told = inspected(*PAGES, "int4", skip, "-1")
        self.assertEqual(told["memory"]["kv_bytes_per_token"],
                         (full + (layers - 1) * codes) // layers)
        self.assertEqual(told["kv_cache_layers"], f"int4, of layer {layers - 1} float32")
        every = ",".join(map(str, range(layers)))
        with ServerProcess(*FLOAT32) as server:
            expected = [logprobs(server, prompt) for prompt in PROMPTS]
        with ServerProcess(*PAGES, "int4", skip, every) as server:
            self.assertEqual([logprobs(server, prompt) for prompt in PROMPTS], expected)
        for bad in (str(layers), str(-layers - 1)):
            refused = subprocess.run([BINARY, "inspect", tiny_model.directory(), f"{skip}={bad}"],
                                     capture_output=True, text=True)
            self.assertEqual(refused.returncode, 2)
            self.assertIn(f"{skip} has {bad}; allowed: -{layers} to {layers - 1}", refused.stderr)

    def test_non_finite_k_or_v_ends_only_its_request(self):
        with tempfile.TemporaryDirectory() as parent:
            folder = write_loud_model(Path(parent) / "tiny", 3e38)
            for name in ("int8", "int4"):
                with ServerProcess(*PAGES, name, model=folder) as server:
                    expected = logprobs(server, PROMPTS[0])
                    answer = server.post("/v1/completions", {"prompt": "a ~ b", "max_tokens": 4})
                    self.assertEqual(answer.status, 500)
                    self.assertEqual(logprobs(server, PROMPTS[0]), expected)

    def test_head_without_a_kernel_is_refused_by_name(self):
        for name, head_dim, multiple in (("int8", 18, 4), ("int4", 20, 8)):
            with tempfile.TemporaryDirectory() as parent:
                folder = tiny_model.write(Path(parent) / "tiny",
                                          {**tiny_model.CONFIG, "head_dim": head_dim})
                refused = subprocess.run([BINARY, "serve", folder, *PAGES, name],
                                         capture_output=True, text=True)
            self.assertEqual(refused.returncode, 2)
            for word in (f"--kv-cache-dtype is {name}", f"multiple of {multiple}", str(head_dim)):
                self.assertIn(word, refused.stderr)

    def test_gpu_reports_page_bytes_and_skipped_layers(self):
        command = [ON_SHIM, "inspect", tiny_model.directory(), "--device", "cuda", "--json"]

        def told_by(*flags):
            told = subprocess.run([*command, *flags], capture_output=True, check=True)
            return json.loads(told.stdout)

        mixed = told_by("--kv-cache-dtype", "int4", "--kv-cache-dtype-skip-layers", "0")
        self.assertEqual(mixed["kv_cache_layers"], "int4, of layer 0 bfloat16")
        layers = tiny_model.CONFIG["num_hidden_layers"]
        self.assertEqual(mixed["memory"]["kv_bytes_per_token"],
                         4 * (32 + (16 + 4) * (layers - 1)))
        found = told_by()["memory"]["kv_bytes_per_token_by_dtype"]
        # K1, K2 and the halves of V in each layer and group, 16 numbers of one scale each. Those of
        # 4 bits take 16 bytes all the same.
        heads = 4 * tiny_model.CONFIG["num_hidden_layers"]
        self.assertEqual(found, {"bfloat16": 32 * heads}
                         | dict.fromkeys((*FAR, "fp8_e4m3"), (16 + 4) * heads))

    def test_fp8_needs_a_gpu(self):
        refused = subprocess.run([BINARY, "serve", tiny_model.directory(), *PAGES, "fp8_e4m3"],
                                 capture_output=True, text=True)
        self.assertEqual(refused.returncode, 2)
        self.assertIn("--kv-cache-dtype is fp8_e4m3 on a CPU; allowed: auto, float32, bfloat16, "
                      "float16, int8, int8k_int4v, int4", refused.stderr)


if __name__ == "__main__":
    unittest.main()
