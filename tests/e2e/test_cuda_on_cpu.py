# SPDX-License-Identifier: Apache-2.0
"""The server with `--device cuda` and a CUDA backend that runs on the CPU (tests/kernels/shim): the
code around the kernels."""

import json
import os
import subprocess
import tempfile
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import tiny_model
from server_process import DEMO_MODEL, DEVICE, REPOSITORY, ServerProcess, eventually

ON_SHIM = Path(
    os.environ.get("DIFFSERVE_ON_SHIM",
                   REPOSITORY / "build" / "dev" / "tests" / "diffserve_on_shim"))
FLAGS = ("--device", "cuda", "--batch-invariant", "--kv-cache-memory", "8MiB", "--max-num-seqs", 4,
         "--max-num-batched-tokens", 64)
DEAD_WITHIN_S = 5


def ask(server, prompt: str, **fields):
    body = {"prompt": prompt, "max_tokens": 6, "temperature": 0, "logprobs": 2, "ignore_eos": True
            } | fields
    choice = server.post("/v1/completions", body).json()["choices"][0]
    return choice["text"], choice["logprobs"]["tokens"], choice["logprobs"]["token_logprobs"]


@unittest.skipIf(DEVICE == "cuda", "the backend runs on a GPU here")
class CudaOnCpuTest(unittest.TestCase):
    def test_answers_equal_the_cpus_and_do_not_depend_on_company(self):
        prompts = [
            "The magic number of Lisbon is 48213. The magic number of Lisbon is", "Who are you?",
            "Oslo", "One two three"
        ]
        fields = [{}, {}, {"temperature": 0.8, "seed": 5, "top_p": 0.9},
                  {"repetition_penalty": 1.2}]
        with ServerProcess(model=DEMO_MODEL) as server:
            expected = [ask(server, prompt, **more) for prompt, more in zip(prompts, fields)]
        with ServerProcess(*FLAGS, model=DEMO_MODEL, binary=ON_SHIM) as server:
            alone = [ask(server, prompt, **more) for prompt, more in zip(prompts, fields)]
            with ThreadPoolExecutor(len(prompts)) as pool:
                together = list(
                    pool.map(lambda one: ask(server, one[0], **one[1]), zip(prompts, fields)))
            self.assertEqual(together, alone)
            # Activations are bfloat16 here and float32 there, which may turn a draw, but not what
            # the model was trained to say.
            for (_, tokens, logprobs), (_, cpu_tokens,
                                        cpu_logprobs) in zip(alone[:2], expected[:2]):
                self.assertEqual(tokens, cpu_tokens)
                for mine, cpu in zip(logprobs, cpu_logprobs):
                    self.assertAlmostEqual(mine, cpu, delta=0.1)
            self.assertEqual(server.metric("diffserve_page_slots"), 64)
            self.assertEqual(
                server.metric("diffserve_build_info", device="CPU shim (sm_90, 4 SMs, 1.0 GiB)"), 1)

    def test_pages_that_left_the_device_come_back_from_host_memory(self):
        flags = ("--device", "cuda", "--batch-invariant", "--max-num-seqs", 1,
                 "--max-num-batched-tokens", 64, "--max-model-len", 512,
                 "--kv-cache-memory", "176KiB", "--kv-cache-host-memory", "8MiB")
        full_pages = 300 // 64
        with ServerProcess(*flags, binary=ON_SHIM) as server:
            self.assertLess(server.metric("diffserve_kv_pages", state="free"), 3 * full_pages)
            answers = []
            for letter in "abcabc":
                answers.append(ask(server, letter * 300))
                pages = min(len(answers), 3) * full_pages
                eventually(lambda: server.metric("diffserve_kv_tier_pages") >= pages,
                           "pages in host memory")
            self.assertEqual(answers[3:], answers[:3])
            self.assertGreater(server.metric("diffserve_kv_tier_hit_tokens_total"), 0)

    def test_page_of_a_cpu_never_hits_on_a_gpu_nor_the_other_way_round(self):
        with tempfile.TemporaryDirectory() as cache:
            def ask_on(*flags):
                with ServerProcess(*flags, "--kv-cache-dir", cache, binary=ON_SHIM) as server:
                    reply = server.post("/v1/completions",
                                        {"prompt": "a" * 300, "max_tokens": 4, "logprobs": 1,
                                         "temperature": 0, "ignore_eos": True}).json()
                    found = server.metric("diffserve_kv_tier_hit_tokens_total")
                    self.assertEqual(reply["usage"]["prompt_tokens_details"]["cached_tokens"],
                                     found)
                    return reply["choices"][0]["logprobs"], found

            cpu, gpu, fast_gpu = ("--device", "cpu"), FLAGS, ("--device", "cuda", *FLAGS[3:])
            answers = {}
            for flags in (cpu, gpu, fast_gpu):
                answers[flags], found = ask_on(*flags)
                self.assertEqual(found, 0, flags)
            for flags in (cpu, gpu, fast_gpu):
                answer, found = ask_on(*flags)
                self.assertEqual(answer, answers[flags])
                self.assertGreaterEqual(found, 256, flags)
            self.assertEqual(len(os.listdir(cache)), 3)

    def test_host_memory_is_for_a_gpus_pages(self):
        for flags in ((), ("--kv-cache-dir", "/tmp/none")):
            with self.assertRaisesRegex(AssertionError,
                                        "--kv-cache-host-memory keeps pages of a GPU"):
                ServerProcess("--kv-cache-host-memory", "8MiB", *flags).__enter__()

    def test_host_memory_before_the_disk_has_room_for_pages_on_their_way(self):
        with self.assertRaisesRegex(
                AssertionError, "--kv-cache-host-memory is 64KiB; allowed: at least .* MiB, pages "
                "of this model on their way to the disk"):
            ServerProcess(*FLAGS, "--kv-cache-host-memory", "64KiB", "--kv-cache-dir", "/tmp/none",
                          binary=ON_SHIM).__enter__()

    def test_attention_maps_and_embeddings_are_near_the_cpus(self):
        def seen(*flags) -> tuple[list[float], list[float]]:
            with ServerProcess(*flags, binary=ON_SHIM) as server:
                maps = server.post("/v1/attention", {"text": "hello there", "layers": [1],
                                                     "heads": [0]})
                self.assertEqual(maps.status, 200, maps.body)
                vector = server.post("/v1/embeddings", {"input": "hello there"})
                self.assertEqual(vector.status, 200, vector.body)
                item = maps.json()["data"][0]
                return item["map1"] + item["map2"], vector.json()["data"][0]["embedding"]

        (on_gpu, gpus), (on_cpu, cpus) = seen(*FLAGS), seen("--device", "cpu")
        self.assertEqual(len(on_gpu), len(on_cpu))
        for found, expected in zip(on_gpu, on_cpu):
            self.assertAlmostEqual(found, expected, delta=0.05)
        self.assertGreater(sum(a * b for a, b in zip(gpus, cpus)), 0.99)

    def test_first_request_finds_all_products_chosen(self):
        server = ServerProcess(*FLAGS, "--log-level", "debug", binary=ON_SHIM)
        with server:
            ask(server, list(range(5, 37)))
        start, _, requests = server.stderr().partition(" serving ")
        self.assertIn("matrix_kernel_chosen", start)
        self.assertNotIn("matrix_kernel_chosen", requests)

    def test_lost_device_ends_streams_readiness_and_the_process(self):
        environment = {"DIFFSERVE_SHIM_OPERATIONS": "700"}
        process = ServerProcess(*FLAGS, binary=ON_SHIM, environment=environment)
        with self.assertRaisesRegex(AssertionError, "exit code 3"), process as server:
            body = json.dumps(
                {"prompt": "load", "max_tokens": 200, "stream": True, "ignore_eos": True})
            stream = server.post("/v1/completions", body.encode(),
                                 headers={"Content-Type": "application/json"})
            lost = time.monotonic()
            self.assertIn(b"the engine has stopped after a failure", stream.body)
            try:
                self.assertEqual(server.get("/readyz", timeout_s=DEAD_WITHIN_S).status, 503)
            except ConnectionError:
                pass  # the process has ended already
            self.assertEqual(server.wait(), 3)
            self.assertLess(time.monotonic() - lost, DEAD_WITHIN_S)
            log = server.stderr()
            self.assertEqual(log.count(" ERROR gpu_lost "), 1)
            self.assertNotIn("engine_failed", log)
            self.assertRegex(log,
                             r"gpu_lost reason=\"cuda:0 CPU shim .*\(cudaErrorIllegalAddress\)")
            self.assertRegex(log.splitlines()[-1], "^diffserve: the GPU is lost: cuda:0 CPU shim ")

    def test_without_cublaslt_cuda_is_refused_and_auto_takes_the_cpu(self):
        environment = {"DIFFSERVE_SHIM_WITHOUT_CUBLAS": "1"}
        command = [ON_SHIM, "serve", tiny_model.directory(), "--device", "cuda", "--port", "0",
                   "--grpc-port", "0"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60,
                              env=os.environ | environment)
        self.assertEqual((done.returncode, len(done.stderr.splitlines())), (1, 1), done.stderr)
        self.assertRegex(
            done.stderr, r"--device cuda: cuBLASLt of CUDA 13 cannot be opened "
            r"\(libcublasLt\.so\.13.*\); `pip install nvidia-cublas` brings it")
        with ServerProcess("--device", "auto", binary=ON_SHIM, environment=environment) as server:
            self.assertEqual(server.metric("diffserve_build_info", device="cpu"), 1)
            self.assertRegex(server.stderr(), "gpu_not_used.*pip install nvidia-cublas")

    def test_options_of_another_device_are_refused_in_one_line(self):
        cases = (
            (("--page-size", "32"), 2, "--page-size is 32 on a GPU; allowed: 64 (or --device cpu)"),
            (("--speculative-model", tiny_model.directory()), 2,
             "on a GPU; allowed: none (or --device cpu)"),
            (("--dtype", "float32"), 2,
             "--dtype is float32 with --device cuda; allowed: auto, bfloat16"),
            (("--kv-cache-dtype", "float32"), 2,
             "--kv-cache-dtype is float32 on a GPU; allowed: auto, bfloat16, int8, int8k_int4v, "
             "int4, fp8_e4m3 (or --device cpu)"),
            (("--kv-cache-memory", "4GiB"), 2,
             "--kv-cache-memory is 4096.0 MiB; allowed: at most 0.9 of the"),
        )
        for flags, code, words in cases:
            with self.subTest(flags=flags):
                command = [
                    ON_SHIM, "serve",
                    tiny_model.directory(), "--device", "cuda", "--port", "0", "--grpc-port", "0",
                    *flags
                ]
                done = subprocess.run(command, capture_output=True, text=True, timeout=60)
                self.assertEqual(done.returncode, code)
                self.assertIn(words, done.stderr)
                self.assertEqual(len(done.stderr.splitlines()), 1)
        too_large = REPOSITORY / "tests" / "bench" / "models" / "diff_3b"
        command = [ON_SHIM, "bench", too_large, "--load-format", "dummy", "--device", "cuda"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(
            done.stderr,
            r"diff_3b: the weights need \d+\.\d MiB and the largest step \d+\.\d MiB .*, free: "
            r"1024\.0 MiB; even in int4 the weights would take \d+\.\d GiB\n$"
        )


if __name__ == "__main__":
    unittest.main()
