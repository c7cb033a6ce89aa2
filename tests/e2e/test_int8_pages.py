"""--kv-cache-dtype int8: answers near those of float32 pages, a token's bytes, what is refused."""

import json
import subprocess
import tempfile
import unittest
from pathlib import Path

import tiny_model
from server_process import BINARY, DEVICE, ServerProcess
from test_cuda_on_cpu import ON_SHIM
from test_float16 import PROMPTS, logprobs, write_loud_model

PAGES = ("--dtype", "float32", "--kv-cache-dtype", "int8")


@unittest.skipIf(DEVICE == "cuda", "int8 pages are the CPU's")
class Int8PagesTest(unittest.TestCase):
    def test_answers_are_near_those_of_float32_pages(self):
        with ServerProcess("--dtype", "float32") as server:
            expected = [logprobs(server, prompt) for prompt in PROMPTS]
        with ServerProcess(*PAGES) as server:
            answers = [logprobs(server, prompt) for prompt in PROMPTS]
            self.assertEqual(server.metric("diffserve_build_info", kv_cache_dtype="int8"), 1)
        for mine, theirs in zip(answers, expected):
            for a, b in zip(mine[1:], theirs[1:], strict=True):
                self.assertAlmostEqual(a, b, delta=0.2)
        self.assertNotEqual(answers, expected)

    def test_a_token_takes_a_byte_a_number_and_a_float_a_head(self):
        def bytes_per_token(*flags):
            told = subprocess.run([BINARY, "inspect", tiny_model.directory(), *flags, "--json"],
                                  capture_output=True, check=True)
            return json.loads(told.stdout)["memory"]["kv_bytes_per_token"]

        numbers = bytes_per_token("--dtype", "float32") // 4
        heads = numbers // tiny_model.CONFIG["head_dim"]
        self.assertEqual(bytes_per_token(*PAGES), numbers + 4 * heads)

    def test_a_k_or_v_that_is_not_finite_ends_its_request_alone(self):
        with tempfile.TemporaryDirectory() as parent:
            folder = write_loud_model(Path(parent) / "tiny", 3e38)
            with ServerProcess(*PAGES, model=folder) as server:
                expected = logprobs(server, PROMPTS[0])
                answer = server.post("/v1/completions", {"prompt": "a ~ b", "max_tokens": 4})
                self.assertEqual(answer.status, 500)
                self.assertEqual(logprobs(server, PROMPTS[0]), expected)

    def test_a_head_without_a_kernel_is_refused_by_name(self):
        with tempfile.TemporaryDirectory() as parent:
            config = {**tiny_model.CONFIG, "head_dim": 18}
            folder = tiny_model.write(Path(parent) / "tiny", config)
            refused = subprocess.run([BINARY, "serve", folder, *PAGES], capture_output=True,
                                     text=True)
        self.assertEqual(refused.returncode, 2)
        for word in ("--kv-cache-dtype is int8", "multiple of 4", "18"):
            self.assertIn(word, refused.stderr)

    def test_a_gpu_refuses_it_by_name(self):
        refused = subprocess.run(
            [ON_SHIM, "serve", tiny_model.directory(), "--device", "cuda", *PAGES[2:]],
            capture_output=True, text=True)
        self.assertEqual(refused.returncode, 2)
        self.assertIn("--kv-cache-dtype is int8, allowed on a GPU: auto, bfloat16", refused.stderr)


if __name__ == "__main__":
    unittest.main()
