# SPDX-License-Identifier: Apache-2.0
"""`serve --models`: models that cannot be loaded, found before the start or by a load."""

import os
import shutil
import signal
import subprocess
import tempfile
import unittest
from pathlib import Path

import tiny_model
from hub_stub import HubStub
from models_server import ModelsServer
from server_process import BINARY, eventually

GREEDY = {"prompt": "hello there", "max_tokens": 4, "temperature": 0, "ignore_eos": True}


def tiny(**members) -> dict:
    return {"model": str(tiny_model.directory()), **members}


class StartTest(unittest.TestCase):
    def test_model_whose_files_are_not_there_ends_the_start(self):
        with tempfile.TemporaryDirectory() as empty:
            for entry, reason in (({"model": "/no/such/model"}, "is not a directory"),
                                  ({"model": empty}, "no such file"),
                                  ({"model": "bundled:none"}, "allowed: bundled:"),
                                  (tiny(flags={"speculative-model": "/no"}),
                                   "/no: is not a directory")):
                server = ModelsServer({"a": tiny(), "wrong": entry})
                run = subprocess.run([BINARY, "serve", "--models", server.file, "--port", "0",
                                      "--no-grpc"], capture_output=True, text=True, timeout=60)
                self.assertEqual((run.returncode, run.stdout), (1, ""))
                self.assertRegex(run.stderr, rf"^diffserve: --models {server.file}: wrong: "
                                 rf".*{reason}.*\n$")


class LoadTest(unittest.TestCase):
    def without_weights(self) -> Path:
        folder = Path(self.enterContext(tempfile.TemporaryDirectory())) / "model"
        shutil.copytree(tiny_model.directory(), folder)
        (folder / "model.safetensors").unlink()
        return folder

    def test_model_that_does_not_load_is_retried_after_growing_delays(self):
        bad_model = self.without_weights()
        with ModelsServer({"good": tiny(), "bad": {"model": str(bad_model)}}) as server:
            def ask():
                answer = server.post("/v1/completions", {**GREEDY, "model": "bad"})
                self.assertEqual(answer.status, 503)
                self.assertGreater(int(answer.headers["retry-after"]), 0)
                return answer.error["message"]
            self.assertIn("model bad did not load (exit code 1)", ask())
            eventually(lambda: "times in a row; it may start again in" in ask(), "a refusal")
            bad = server.models()[1]["status"]
            self.assertEqual(bad, {"value": "unloaded", "failed": True, "exit_code": 1})
            self.assertEqual(server.post("/v1/completions", GREEDY).status, 200)
            self.assertRegex(server.stderr(), rf"diffserve: {bad_model}.* model=bad\n")

    def test_pinned_model_that_cannot_load_waits_for_a_request(self):
        folder = self.without_weights()
        models = {"good": tiny(), "bad": {"model": str(folder), "pinned": True}}
        with ModelsServer(models) as server:
            eventually(lambda: server.metric("diffserve_model_failures_total", model="bad") == 1,
                       "the pinned model has failed")
            self.assertEqual(server.post("/v1/completions", GREEDY).status, 200)
            self.assertEqual(server.metric("diffserve_model_starts_total", model="bad"), 1)
            self.assertEqual(server.models()[1]["status"],
                             {"value": "unloaded", "failed": True, "exit_code": 1})
            refusal = server.get("/readyz")
            self.assertEqual(refusal.status, 503)
            self.assertRegex(refusal.error["message"], "bad is not loaded: its process ended with "
                             "exit code 1; .* POST /models/load tries again")
            shutil.copy(tiny_model.directory() / "model.safetensors", folder)
            self.assertEqual(server.post("/models/load", {"model": "bad"}).status, 200)
            server.wait_for_state("bad", "loaded")
            self.assertEqual(server.get("/readyz").status, 200)
            self.assertRegex(server.stderr(), r'model_failed model=bad .*"when asked for"')
            # What has loaded once is kept: it is started again by itself.
            os.kill(server.children()["bad"], signal.SIGKILL)
            eventually(lambda: server.metric("diffserve_model_starts_total", model="bad") == 3,
                       "the third start")
            server.wait_for_state("bad", "loaded")

    def test_pinned_model_of_a_hub_is_tried_again_by_itself(self):
        with tempfile.TemporaryDirectory() as home, HubStub({}) as hub:
            environment = {"HF_HOME": home, "HF_ENDPOINT": hub.endpoint, "HF_HUB_OFFLINE": "0",
                           "SSL_CERT_FILE": str(hub.certificate), "no_proxy": "*"}
            models = {"a": {"model": "hf:acme/tiny", "pinned": True}}
            with ModelsServer(models, environment=environment) as server:
                eventually(lambda: server.metric("diffserve_model_failures_total") >= 2,
                           "two loads have failed")
                self.assertIn("next_start=\"by itself\"", server.stderr())


if __name__ == "__main__":
    unittest.main()
