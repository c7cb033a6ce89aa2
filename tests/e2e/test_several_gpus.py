# SPDX-License-Identifier: Apache-2.0
"""GPUs by number, and models on several of them. The CUDA backend runs on the CPU (tests/kernels/
shim), where a thread that uses another GPU than its own fails."""

import json
import os
import re
import subprocess
import unittest
from pathlib import Path

import tiny_model
from models_server import ModelsServer
from server_process import DEVICE, ServerProcess, eventually
from test_cuda_on_cpu import ON_SHIM, ask

TWO_GPUS = {"DIFFSERVE_SHIM_DEVICES": "2"}
NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}
SMALL = ("--batch-invariant", "--max-num-seqs", 1, "--max-num-batched-tokens", 64)
UUIDS = [f"GPU-00000000-0000-0000-0000-00000000000{gpu}" for gpu in (0, 1)]
PROMPT = {"prompt": "load", "max_tokens": 2, "ignore_eos": True}


def run(*arguments, environment=None):
    return subprocess.run([ON_SHIM, *map(str, arguments)], capture_output=True, text=True,
                          timeout=60, env={**os.environ, **(environment or TWO_GPUS)})


def flags_of(process: int) -> list[str]:
    arguments = Path(f"/proc/{process}/cmdline").read_bytes().decode().split("\0")
    return [flag for flag in arguments if re.match("--(device|gpu-memory)", flag)]


@unittest.skipIf(DEVICE == "cuda", "the backend runs on a GPU here")
class GpuByNumberTest(unittest.TestCase):
    def test_gpus_are_listed_as_device_takes_them(self):
        lines = run("devices").stdout.splitlines()
        self.assertEqual(lines, [
            f"cuda:{gpu}   CPU shim (sm_90, 4 SMs, 1.0 GiB)  {UUIDS[gpu]}" for gpu in (0, 1)])
        listed = json.loads(run("devices", "--json").stdout)
        self.assertEqual([gpu["device"] for gpu in listed["gpus"]], ["cuda:0", "cuda:1"])
        self.assertEqual(listed["gpus"][1]["memory_mib"], 1024)
        self.assertIsNone(listed["gpus"][1]["refusal"])
        visible = run("devices", environment=TWO_GPUS | {"CUDA_VISIBLE_DEVICES": "1"}).stdout
        self.assertEqual(len(visible.splitlines()), 1)
        self.assertEqual(
            run("devices", environment=NO_GPU).stdout,
            'no GPU: the NVIDIA driver shows no device (CUDA_VISIBLE_DEVICES is "")\n')

    def test_named_gpu_serves_with_all_its_threads(self):
        flags = (*SMALL, "--kv-cache-memory", "176KiB", "--max-model-len", 512,
                 "--kv-cache-host-memory", "8MiB")
        answers = []
        for environment, device in (({}, "cuda"), (TWO_GPUS, "cuda:1")):
            with ServerProcess("--device", device, *flags, binary=ON_SHIM,
                               environment=environment) as server:
                answers.append([ask(server, letter * 300) for letter in "abcabc"])
                eventually(lambda: server.metric("diffserve_kv_tier_pages") > 0, "pages are kept")
                self.assertEqual(server.metric("diffserve_kv_tier_errors_total"), 0)
                uuid = UUIDS[len(answers) - 1]
                self.assertEqual(server.metric("diffserve_build_info", gpu_uuid=uuid), 1)
                server.stop()
                self.assertIn(f"gpu=cuda:{len(answers) - 1} gpu_uuid={uuid} ", server.stderr())
        self.assertEqual(answers[0], answers[1])

    def test_every_command_takes_a_number(self):
        model = tiny_model.directory()
        for command in (("generate", model, "--tokens", "1,2", "--max-tokens", 2),
                        ("logits", model, "--tokens", "1,2", "--output", "/dev/stdout"),
                        ("inspect", model, "--json")):
            with self.subTest(command=command[0]):
                done = subprocess.run(
                    [ON_SHIM, *map(str, command), "--device", "cuda:1"], capture_output=True,
                    timeout=60, env={**os.environ, **TWO_GPUS})
                self.assertEqual(done.returncode, 0, done.stderr)

    def test_command_that_loses_its_gpu_ends_with_a_code_of_its_own(self):
        for operations in ("3", "400"):  # while it loads, and in a step
            done = run("generate", tiny_model.directory(), "--device", "cuda:1", "--tokens", "1,2",
                       "--max-tokens", 200, "--ignore-eos",
                       environment=TWO_GPUS | {"DIFFSERVE_SHIM_OPERATIONS": operations})
            self.assertEqual(done.returncode, 3, done.stderr)
            self.assertIn("lost the CUDA context", done.stderr.splitlines()[-1])

    def test_missing_gpu_is_refused_in_one_line(self):
        model = tiny_model.directory()
        for environment, device, words in (
            (TWO_GPUS, "cuda:3", "--device cuda: cuda:3 does not exist; CUDA shows 2 GPUs: "
             "cuda:0 CPU shim, cuda:1 CPU shim"),
            (NO_GPU, "cuda", "--device cuda: the NVIDIA driver shows no device "
             '(CUDA_VISIBLE_DEVICES is "")')):
            done = run("inspect", model, "--device", device, environment=environment)
            self.assertEqual((done.returncode, done.stderr), (3, f"diffserve: {words}\n"))

    def test_auto_takes_the_cpu_where_no_gpu_is_visible(self):
        done = run("inspect", tiny_model.directory(), "--json", environment=NO_GPU)
        self.assertEqual(json.loads(done.stdout)["device"], "cpu")
        self.assertIn(" gpu_not_used ", done.stderr)

    def test_share_of_the_memory_bounds_what_a_process_takes(self):
        def planned(share):
            return run("inspect", tiny_model.directory(), "--json", "--max-num-batched-tokens", 64,
                       "--gpu-memory-utilization", share)

        whole, half = (json.loads(planned(share).stdout)["memory"] for share in (0, 0.5))
        self.assertEqual(half["free_bytes"], 1 << 29)
        self.assertLess(half["total_bytes"], 1 << 29)
        self.assertLess(half["kv_pages"], whole["kv_pages"])
        none = planned(0.0001)
        self.assertEqual(none.returncode, 1)
        self.assertRegex(none.stderr, r"free: 0\.1 MiB within --gpu-memory-utilization 0\.0001")


def model(**members) -> dict:
    return {"model": str(tiny_model.directory()), **members}


@unittest.skipIf(DEVICE == "cuda", "the backend runs on a GPU here")
class ModelsOnGpusTest(unittest.TestCase):
    def serve(self, models, *flags, **environment):
        return ModelsServer(models, *SMALL, "--device", "auto", "--max-loaded", 0, *flags,
                            binary=ON_SHIM,
                            environment=TWO_GPUS | environment)

    def test_models_are_spread_over_the_gpus_and_share_them(self):
        models = {"a": model(), "b": model(pinned=True), "c": model(flags={"device": "cpu"}),
                  "d": model(flags={"device": "cuda:1"}), "e": model(flags={"device": "cuda"}),
                  "f": model(flags={"gpu-memory-utilization": 0.5})}
        expected = {"a": ("auto:0", 0.2), "b": ("auto:0", 0.2), "d": ("cuda:1", 0.45),
                    "e": ("cuda:1", 0.45), "f": ("auto:0", 0.5)}
        with self.serve(models) as server:
            for name in models:
                reply = server.post("/v1/completions", PROMPT | {"model": name})
                self.assertEqual(reply.status, 200, reply.body)
            children = server.children()
            self.assertEqual(flags_of(children["c"])[-1:], ["--device=cpu"])
            for name, (device, share) in expected.items():
                self.assertEqual(flags_of(children[name])[-2:],
                                 [f"--device={device}", f"--gpu-memory-utilization={share:.4f}"])
                self.assertAlmostEqual(
                    server.metric("diffserve_model_memory_bytes", model=name), share * (1 << 30),
                    delta=1024)
            log = server.stderr()
            self.assertEqual(log.count(" model_placed "), 5)
            self.assertRegex(log, "serving .* gpu=cuda:1 .* model=d\n")

    def test_models_take_turns_on_a_gpu_whose_memory_they_need(self):
        flags = {"device": "cuda:1", "gpu-memory-utilization": 0.7}
        with self.serve({name: model(flags=flags) for name in "ab"}) as server:
            for name, other in (("a", "b"), ("b", "a"), ("a", "b")):
                reply = server.post("/v1/completions", PROMPT | {"model": name})
                self.assertEqual(reply.status, 200, reply.body)
                self.assertEqual(server.states(), {name: "loaded", other: "unloaded"})

    def test_parent_refuses_what_no_gpu_can_do(self):
        shared = {"device": "cuda:0", "gpu-memory-utilization": 0.9}
        for models, code, words in (
            ({"a": model(flags={"device": "cuda:2"})}, 3,
             "a: --device cuda:2; CUDA shows cuda:0 CPU shim, cuda:1 CPU shim"),
            ({name: model(flags=shared, pinned=True) for name in "ab"}, 2,
             "b does not fit beside the pinned models")):
            file = ModelsServer(models)
            done = run("serve", "--models", file.file, "--port", 0, "--grpc-port", 0)
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertIn(words, done.stderr)

    def test_lost_gpu_ends_streams_with_an_error_and_the_model_starts_again(self):
        with self.serve({"a": model(pinned=True)}, DIFFSERVE_SHIM_OPERATIONS="600") as server:
            stream = server.post("/v1/completions", PROMPT | {
                "model": "a", "max_tokens": 200, "stream": True})
            self.assertIn(b"the engine has stopped after a failure", stream.body)
            seen = []

            def answered():
                reply = server.post("/v1/completions", PROMPT)
                seen.append(reply.status)
                if reply.status == 503:
                    self.assertIn("retry-after", reply.headers)
                return reply.status == 200

            eventually(answered, "the model answers again")
            self.assertLessEqual(set(seen), {200, 503})
            self.assertEqual(server.metric("diffserve_model_failures_total", model="a"), 1)
            log = server.stderr()
            self.assertEqual(log.count(" ERROR gpu_lost "), 1)
            self.assertRegex(log, 'model_failed model=a while=serving how="exit code 3" '
                             '.* next_start="by itself"')

    def test_gpu_lost_while_loading_is_tried_again(self):
        with self.serve({"a": model(pinned=True)}, DIFFSERVE_SHIM_OPERATIONS="3") as server:
            eventually(lambda: server.metric("diffserve_model_starts_total", model="a") >= 3,
                       "the model is started again and again")
            self.assertEqual(server.get("/readyz").status, 503)
            reply = server.post("/v1/completions", PROMPT)
            self.assertEqual(reply.status, 503)
            self.assertIn("retry-after", reply.headers)


if __name__ == "__main__":
    unittest.main()
