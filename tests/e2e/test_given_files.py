# SPDX-License-Identifier: Apache-2.0
"""A model without a chat template that gets one by --chat-template, and a model without a
tokenizer, which serves token ids."""

import json
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

import grpc

from grpc_client import channel, pb, pb_grpc
from models_server import ModelsServer
from server_process import BINARY, DEMO_MODEL, DEVICE_FLAGS, ServerProcess

QUESTION = [{"role": "user", "content": "Who are you?"}]
IDS = [5, 6, 7, 8]


def copy_without(name: str, test_case) -> Path:
    """The bundled model without a file, or without its chat template."""
    folder = Path(test_case.enterContext(tempfile.TemporaryDirectory(prefix="diffserve-files-")))
    copy = folder / "base"
    shutil.copytree(DEMO_MODEL, copy)
    if name == "chat_template":
        config = json.loads((copy / "tokenizer_config.json").read_text())
        del config["chat_template"]
        (copy / "tokenizer_config.json").write_text(json.dumps(config))
    else:
        (copy / name).unlink()
    return copy


def chat(server) -> str:
    body = {"messages": QUESTION, "temperature": 0, "max_tokens": 40}
    return server.post("/v1/chat/completions", body).json()["choices"][0]["message"]["content"]


def run(*arguments) -> subprocess.CompletedProcess:
    return subprocess.run([BINARY, *map(str, arguments), *DEVICE_FLAGS], capture_output=True,
                          text=True, check=False, timeout=60)


class ChatTemplateTest(unittest.TestCase):
    def setUp(self):
        self.base = copy_without("chat_template", self)
        self.file = self.base.parent / "mine.jinja"
        config = json.loads((DEMO_MODEL / "tokenizer_config.json").read_text())
        self.file.write_text(config["chat_template"])

    def test_without_one_the_refusal_names_file_and_flag(self):
        with ServerProcess(model=self.base) as server:
            self.assertIsNone(server.get("/tokenizer_info").json()["chat_template"])
            reply = server.post("/v1/chat/completions", {"messages": QUESTION})
            self.assertEqual((reply.status, reply.error["param"]), (400, "messages"))
            self.assertIn("add chat_template.jinja to its directory or start with --chat-template "
                          "FILE", reply.error["message"])
            text = server.post("/v1/completions", {"prompt": "The magic", "max_tokens": 3})
            self.assertEqual(text.status, 200)

    def test_file_and_built_in_form_answer_as_the_models_own(self):
        with ServerProcess(model=DEMO_MODEL) as own:
            expected = chat(own)
        for given in (self.file, "demo"):
            with ServerProcess("--chat-template", str(given), model=self.base) as server:
                self.assertEqual(chat(server), expected)
                shown = server.get("/tokenizer_info").json()["chat_template"]
                self.assertIn("assistant", shown)
        done = run("generate", self.base, "--chat", "--prompt", "Who are you?", "--chat-template",
                   self.file, "--max-tokens", 40)
        self.assertEqual(done.stdout.strip(), expected, done.stderr)

    def test_flag_wins_over_the_models_own(self):
        self.file.write_text("{% for m in messages %}<{{ m.content }}>{% endfor %}")
        with ServerProcess("--chat-template", str(self.file), model=DEMO_MODEL) as server:
            body = {"messages": QUESTION}
            shown = server.post("/v1/chat/completions/render", body).json()["prompt"]
            self.assertEqual(shown, "<Who are you?>")
            self.assertEqual(server.get("/tokenizer_info").json()["chat_template"],
                             self.file.read_text())

    def test_models_get_it_by_their_flags_and_from_the_command_line(self):
        models = {"by_file": {"model": str(self.base), "flags": {"chat-template": "demo"}},
                  "by_line": {"model": str(self.base)}}
        with ModelsServer(models, "--chat-template", str(self.file)) as server:
            infos = [server.get(f"/tokenizer_info?model={name}").json() for name in models]
        self.assertNotEqual(infos[0]["chat_template"], infos[1]["chat_template"])
        self.assertEqual(infos[1]["chat_template"], self.file.read_text())

    def test_bad_template_is_refused_at_the_start_in_one_line(self):
        bad = self.base.parent / "bad.jinja"
        bad.write_text("{% for m in messages %}{{ m.content }}")
        models = self.base.parent / "models.json"
        models.write_text(json.dumps({"a": {"model": str(self.base),
                                            "flags": {"chat-template": str(bad)}}}))
        ports = ["--port", "0", "--grpc-port", "0"]
        output = ["--input", "/dev/null", "--output", str(self.base.parent / "out")]
        for command in (["serve", self.base, *ports, "--chat-template", bad],
                        ["serve", "--models", models, *ports],
                        ["generate", self.base, "--chat", "--prompt", "a", "--chat-template", bad],
                        ["chat", self.base, "--chat-template", bad],
                        ["run-batch", self.base, *output, "--chat-template", bad]):
            done = run(*command)
            self.assertNotEqual(done.returncode, 0)
            line = done.stderr.strip().splitlines()[-1]
            self.assertIn(f"--chat-template {bad}: ", line)
            self.assertIn("chat template:1", line)

    def test_unknown_name_lists_the_built_in_forms(self):
        done = run("serve", self.base, "--chat-template", "alpaca")
        self.assertIn("--chat-template alpaca: no such file; allowed: a Jinja file, "
                      "chatml, llama3, demo", done.stderr)

    def test_chat_command_takes_it(self):
        done = subprocess.run([BINARY, "chat", self.base, "--chat-template", "demo",
                               *DEVICE_FLAGS], input="Who are you?\n", capture_output=True,
                              text=True, check=False, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(done.stdout.strip())


class RandomWeightsTest(unittest.TestCase):
    def test_config_json_alone_is_served_with_weights_of_the_seed(self):
        found = []
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(DEMO_MODEL / "config.json", folder)
            for seed in (1, 1, 2):
                with ServerProcess("--load-format", "dummy", "--seed", seed,
                                   model=Path(folder)) as server:
                    reply = server.post("/v1/completions", {
                        "prompt": IDS, "max_tokens": 8, "temperature": 0, "ignore_eos": True,
                        "return_token_ids": True})
                    self.assertEqual(reply.status, 200, reply.body)
                    found.append(reply.json()["choices"][0]["token_ids"])
                    server.stop()
                    self.assertIn(" load_format=dummy ", server.stderr())
        self.assertEqual(len(found[0]), 8)
        self.assertEqual(found[0], found[1])
        self.assertNotEqual(found[0], found[2])

    def test_without_the_flag_the_missing_weights_are_named(self):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(DEMO_MODEL / "config.json", folder)
            done = subprocess.run([BINARY, "serve", folder], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr, f"diffserve: {folder}: holds neither model.safetensors nor "
                                      "model.safetensors.index.json\n")


class NoTokenizerTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        case = cls()
        cls.addClassCleanup(case.doCleanups)
        cls.model = copy_without("tokenizer.json", case)
        cls.server = cls.enterClassContext(ServerProcess(model=cls.model))
        cls.own = cls.enterClassContext(ServerProcess(model=DEMO_MODEL))

    def both(self, path: str, body: dict) -> tuple[dict, dict]:
        replies = [server.post(path, body) for server in (self.server, self.own)]
        self.assertEqual([reply.status for reply in replies], [200, 200], replies[0].body)
        return replies[0].json(), replies[1].json()

    def test_answers_have_the_tokens_that_they_have_with_a_tokenizer(self):
        params = {"max_tokens": 8, "temperature": 0, "logprobs": 1, "ignore_eos": True}
        found, expected = self.both("/inference/v1/generate",
                                    {"token_ids": IDS, "sampling_params": params})
        ids = found["choices"][0]["token_ids"]
        self.assertEqual(ids, expected["choices"][0]["token_ids"])
        names = [entry["token"] for entry in found["choices"][0]["logprobs"]["content"]]
        self.assertEqual(names, [f"token_id:{id}" for id in ids])
        body = {"prompt": IDS, "max_tokens": 8, "temperature": 0, "ignore_eos": True,
                "return_token_ids": True, "logprobs": 1}
        found, expected = self.both("/v1/completions", body)
        self.assertEqual(found["choices"][0]["token_ids"], expected["choices"][0]["token_ids"])
        self.assertEqual(found["choices"][0]["text"], "")
        self.assertEqual(found["choices"][0]["logprobs"]["tokens"],
                         [f"token_id:{id}" for id in found["choices"][0]["token_ids"]])

    def test_states_and_maps_are_those_with_a_tokenizer(self):
        for path, body in (("/v1/embeddings", {"input": IDS}), ("/pooling", {"input": IDS}),
                           ("/v1/attention", {"tokens": IDS})):
            found, expected = self.both(path, body)
            self.assertEqual(found["data"], expected["data"], path)
        self.assertEqual(self.server.post("/v1/attention", {"tokens": IDS}).json()["token_texts"],
                         [])

    def test_grpc_takes_ids(self):
        request = pb.GenerateRequest(token_ids=pb.TokenIds(ids=IDS),
                                     sampling=pb.SamplingParams(temperature=0),
                                     stopping=pb.StoppingParams(max_tokens=4, ignore_eos=True))
        answers = []
        for server in (self.server, self.own):
            with channel(server) as connection:
                events = list(pb_grpc.InferenceStub(connection).Generate(request))
                answers.append([id for event in events for id in event.delta.token_ids])
        self.assertEqual(answers[0], answers[1])
        self.assertEqual(len(answers[0]), 4)
        with channel(self.server) as connection, self.assertRaises(grpc.RpcError) as caught:
            list(pb_grpc.InferenceStub(connection).Generate(pb.GenerateRequest(text="a")))
        self.assertIn("no tokenizer.json", caught.exception.details())

    def test_what_needs_text_is_refused_by_name(self):
        ids = {"prompt": IDS, "return_token_ids": True}
        message = {"messages": QUESTION, "max_tokens": 4}
        for path, body, param in (
                ("/v1/completions", {"prompt": IDS}, "return_token_ids"),
                ("/v1/completions", ids | {"prompt": "a"}, "prompt"),
                ("/v1/completions", ids | {"stop": "a"}, "stop"),
                ("/v1/completions", ids | {"bad_words": ["a"]}, "bad_words"),
                ("/v1/completions", ids | {"echo": True}, "echo"),
                ("/v1/completions", ids | {"guided_choice": ["a"]}, "guided_choice"),
                ("/v1/completions", ids | {"max_reasoning_tokens": 1}, "max_reasoning_tokens"),
                ("/inference/v1/generate",
                 {"token_ids": IDS, "sampling_params": {"structured_outputs": {"regex": "a"}}},
                 "structured_outputs.regex"),
                ("/v1/chat/completions", message, "messages"),
                ("/v1/embeddings", {"input": "a"}, "input"),
                ("/pooling", {"input": "a"}, "input"),
                ("/v1/attention", {"text": "a"}, "text"),
                ("/v1/attention", {"messages": QUESTION}, "messages"),
                ("/tokenize", {"prompt": "a"}, "prompt"),
                ("/detokenize", {"tokens": IDS}, "tokens")):
            reply = self.server.post(path, body)
            self.assertEqual((reply.status, reply.error["param"]), (400, param), path)
            if param != "max_reasoning_tokens":
                self.assertIn("tokenizer.json", reply.error["message"])
        for path, body in (("/v1/messages", message), ("/v1/responses", {"input": "a"}),
                           ("/v1/completions/render", {"prompt": IDS})):
            reply = self.server.post(path, body)
            self.assertEqual(reply.status, 400, path)
            self.assertIn("tokenizer.json", reply.error["message"])
        info = self.server.get("/tokenizer_info")
        self.assertEqual((info.status, info.error["message"]),
                         (404, "this model has no tokenizer.json"))

    def test_inspect_warns_and_chat_and_template_are_refused(self):
        done = run("inspect", self.model)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("tokenizer_missing", done.stderr)
        for command in (["chat", self.model],
                        ["serve", self.model, "--chat-template", "chatml", "--port", "0"]):
            done = run(*command)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("tokenizer.json: no such file", done.stderr)


if __name__ == "__main__":
    unittest.main()
