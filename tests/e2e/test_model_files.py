# SPDX-License-Identifier: Apache-2.0
"""The files of a model directory besides the weights, compared with transformers (directories.json
of tests/text); the names of a server; unused tensors."""

import json
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

import numpy as np

import tiny_model
from grpc_client import channel, generate_request, pb, pb_grpc
from server_process import BINARY, REPOSITORY, ServerProcess

DATA = REPOSITORY / "tests" / "text" / "data"
GOLDEN = json.loads((DATA / "directories.json").read_text(encoding="utf-8"))
HI = [{"role": "user", "content": "Hi"}]


class ModelFilesTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.parent = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.weights = {}

    def weights_of(self, rows: int) -> bytes:
        if rows not in self.weights:
            config = tiny_model.CONFIG | {"vocab_size": rows}
            self.weights[rows] = tiny_model.safetensors_bytes(tiny_model.weights(config))
        return self.weights[rows]

    def write(self, case: dict) -> tuple[Path, int]:
        """Writes the case's directory as a model that can be served; returns it and its rows."""
        folder = self.parent / "case"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for path, text in case["files"].items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_bytes(text.encode())
        config = tiny_model.CONFIG | json.loads(case["files"]["config.json"])
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "model.safetensors").write_bytes(self.weights_of(config["vocab_size"]))
        shutil.copyfile(DATA / "byte_bpe" / "tokenizer.json", folder / "tokenizer.json")
        return folder, config["vocab_size"]

    def test_prompts_and_ends_equal_transformers(self):
        cases = [case for case in GOLDEN["cases"] if not case["name"].startswith("random")]
        self.assertGreater(len(cases), 10)
        for case in cases:
            expected = case["results"]["5"] or case["results"]["4"]
            folder, rows = self.write(case)
            flags = ("--tool-call-parser", "hermes")
            with self.subTest(case["name"]), ServerProcess(*flags, model=folder) as server:
                for key, more in (("plain", {}), ("tools", {"tools": GOLDEN["tools"]})):
                    body = {"messages": GOLDEN["messages"], "add_generation_prompt": False, **more}
                    answer = server.post("/v1/chat/completions/render", body)
                    # An empty prompt has no tokens.
                    self.assertEqual(answer.status, 200 if expected[key] else 400, answer.body)
                    if expected[key]:
                        self.assertEqual(answer.json()["prompt"], expected[key])
                ends = set(expected["generation_eos"])
                if expected["eos"] is not None and expected["eos"] < rows:
                    ends.add(expected["eos"])
                with channel(server) as connection:
                    model = pb_grpc.InferenceStub(connection).GetModel(pb.GetModelRequest())
                self.assertEqual(set(model.eos_token_ids), ends)

    def test_answer_ends_at_the_tokenizers_end_with_and_without_a_server(self):
        folder = self.parent / "ends"
        shutil.copytree(tiny_model.directory(), folder)
        (folder / "generation_config.json").unlink()
        (folder / "config.json").write_text(json.dumps(tiny_model.CONFIG | {"eos_token_id": None}))
        # All logits are 0, so the first token is sampled: <|bos|>.
        tensors = tiny_model.weights(tiny_model.CONFIG)
        tensors["model.norm.weight"] = np.zeros_like(tensors["model.norm.weight"])
        (folder / "model.safetensors").write_bytes(tiny_model.safetensors_bytes(tensors))
        config = json.loads((folder / "tokenizer_config.json").read_text())
        (folder / "tokenizer_config.json").write_text(json.dumps(config | {"eos_token": "<|bos|>"}))
        body = {"messages": HI, "max_tokens": 5, "temperature": 0}
        with ServerProcess(model=folder) as server:
            choice = server.post("/v1/chat/completions", body).json()["choices"][0]
        self.assertEqual(choice["finish_reason"], "stop")
        run = subprocess.run(
            [BINARY, "generate", folder, "--prompt", "a", "--max-tokens", "5", "--json"],
            capture_output=True,
            check=True,
            timeout=60)
        self.assertEqual(json.loads(run.stdout)["finish_reason"], "stop")

    def test_defaults_of_the_generation_config(self):
        folder = self.parent / "defaults"
        shutil.copytree(tiny_model.directory(), folder)
        (folder / "generation_config.json").write_text(
            json.dumps({
                "temperature": 0.5, "top_k": 7, "top_p": 0.5, "min_p": 0.25, "repetition_penalty":
                1.5, "max_new_tokens": 3
            }))
        chat = {"messages": HI, "ignore_eos": True}
        with ServerProcess(model=folder) as server:
            rendered = server.post("/v1/chat/completions/render", chat).json()["sampling_params"]
            silent = server.post("/v1/chat/completions", chat).json()
            asked = server.post("/v1/chat/completions", chat | {"max_tokens": 6}).json()
        self.assertEqual(
            {
                key: rendered[key]
                for key in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty",
                            "max_tokens")
            }, {
                "temperature": 0.5, "top_k": 7, "top_p": 0.5, "min_p": 0.25, "repetition_penalty":
                1.5, "max_tokens": 3
            })
        self.assertEqual(silent["usage"]["completion_tokens"], 3)
        self.assertEqual(asked["usage"]["completion_tokens"], 6)

    def test_tensors_without_a_place_are_named_once(self):
        folder = self.parent / "unused"
        shutil.copytree(tiny_model.directory(), folder)
        more = {
            f"model.layers.{layer}.{name}": np.zeros(2, np.float32)
            for layer in range(2)
            for name in ("self_attn.rotary_emb.inv_freq", "self_attn.q_norm.weight")
        }
        tensors = tiny_model.weights(
            tiny_model.CONFIG) | more | {"vision.patch.weight": np.zeros(2, np.float32)}
        (folder / "model.safetensors").write_bytes(tiny_model.safetensors_bytes(tensors))
        with ServerProcess(model=folder) as server:
            lines = [line for line in server.stderr().splitlines() if "tensors_unused" in line]
        self.assertEqual(len(lines), 1, lines)
        self.assertIn(
            ' WARNING tensors_unused count=3 names="model.layers.*.self_attn.q_norm.weight,'
            ' vision.patch.weight"', lines[0])
        with ServerProcess() as server:
            self.assertNotIn("tensors_unused", server.stderr())
            self.assertNotIn("weight_files_unused", server.stderr())

    def test_weight_files_that_are_not_used_are_named_once(self):
        folder = self.parent / "doubled"
        shutil.copytree(tiny_model.directory(), folder)
        for name in ("model-00001-of-00001.safetensors", "model.safetensors.index.json"):
            (folder / name).write_text("of a release before")
        with ServerProcess(model=folder) as server:
            lines = [line for line in server.stderr().splitlines() if "weight_files_unused" in line]
        self.assertEqual(len(lines), 1, lines)
        self.assertIn('names="model-00001-of-00001.safetensors, model.safetensors.index.json"',
                      lines[0])


class ServedNamesTest(unittest.TestCase):

    def test_each_name_is_served_and_the_first_answers(self):
        with ServerProcess("--served-model-name", "a", "--served-model-name", "b", "c") as server:
            listed = server.get("/v1/models").json()["data"]
            self.assertEqual([model["id"] for model in listed], ["a", "b", "c"])
            body = {"prompt": "x", "max_tokens": 1}
            for name in "abc":
                answer = server.post("/v1/completions", body | {"model": name})
                self.assertEqual((answer.status, answer.json()["model"]), (200, "a"))
            self.assertEqual(server.post("/v1/completions", body | {"model": "d"}).status, 404)
            with channel(server) as connection:
                stub = pb_grpc.InferenceStub(connection)
                self.assertEqual(stub.GetModel(pb.GetModelRequest()).name, "a")
                for name in "abc":
                    request = generate_request([5], 1, model=name)
                    self.assertTrue(list(stub.Generate(request)))

    def test_snapshot_of_hugging_faces_cache_has_its_repositorys_name(self):
        with tempfile.TemporaryDirectory() as cache:
            cached = Path(cache) / "models--org--tiny-model"
            (cached / "blobs").mkdir(parents=True)
            snapshot = cached / "snapshots" / ("0" * 40)
            snapshot.mkdir(parents=True)
            for file in tiny_model.directory().iterdir():
                shutil.copyfile(file, cached / "blobs" / file.name)
                (snapshot / file.name).symlink_to(Path("..") / ".." / "blobs" / file.name)
            with ServerProcess(model=snapshot) as server:
                self.assertEqual(server.name, "org/tiny-model")
                self.assertEqual(server.get("/v1/models").json()["data"][0]["id"], "org/tiny-model")


if __name__ == "__main__":
    unittest.main()
