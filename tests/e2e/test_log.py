# SPDX-License-Identifier: Apache-2.0
"""The log: what `serving` says, the JSON form, and the pattern of docs/operate/deploy.md for the
text form."""

import json
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

import tiny_model
from hub_stub import HubStub
from models_server import NEEDED, ModelsServer
from server_process import BINARY, DEMO_MODEL, REPOSITORY, ServerProcess, eventually

LEVELS = {"DEBUG", "INFO", "WARNING", "ERROR"}
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


def objects(text: str) -> list[dict]:
    """Each line as JSON, without doubled members."""
    def members(pairs):
        if len(dict(pairs)) != len(pairs):
            raise ValueError(f"a member twice: {pairs}")
        return dict(pairs)
    return [json.loads(line, object_pairs_hook=members) for line in text.splitlines()]


class LogTest(unittest.TestCase):
    def check(self, text: str) -> list[dict]:
        lines = objects(text)
        for line in lines:
            self.assertEqual(list(line)[:3], ["time", "level", "event"])
            self.assertRegex(line["time"], f"^{TIME}$")
            self.assertIn(line["level"], LEVELS)
            self.assertTrue(all(isinstance(value, str) for value in line.values()), line)
        return lines

    def test_serving_says_what_serves(self):
        with ServerProcess(*NEEDED, "--max-model-len", 64, "--tool-call-parser", "hermes",
                           "--log-format", "json", model=DEMO_MODEL) as server:
            pages = server.metric("diffserve_kv_pages", state="free")
            server.stop()
            lines = self.check(server.stderr())
        serving = next(line for line in lines if line["event"] == "serving")
        about = dict(line.split(": ", 1) for line in subprocess.run(
            [BINARY, "--version"], capture_output=True, text=True).stdout.splitlines())
        expected = {
            "level": "INFO", "served_model_name": "diff", "version": about["version"],
            "commit": about["commit"], "device": "cpu", "driver": "none",
            "cpu_isa": about["cpu level"], "threads": "1", "load_format": "auto",
            "dtype": "bfloat16", "kv_mib": "32", "max_model_len": "64",
            "tool_call_parser": "hermes", "tool_call_parser_by": "command_line",
            "reasoning_parser_by": "chat_template"}
        self.assertEqual({key: serving[key] for key in expected}, expected)
        self.assertEqual(int(serving["kv_pages"]), pages)
        self.assertGreater(int(serving["weights_mib"]), 0)

    def test_kernels_without_avx2_are_a_warning(self):
        with ServerProcess("--cpu-isa", "plain", "--log-format", "json") as server:
            server.post("/v1/completions", {"prompt": "x", "max_tokens": 2})
            server.stop()
            lines = {line["event"]: line for line in self.check(server.stderr())}
        self.assertEqual(lines["cpu_kernels_slow"]["level"], "WARNING")
        self.assertEqual(lines["serving"]["cpu_isa"], "plain")

    def test_requests_and_the_end_are_json_too(self):
        with ServerProcess("--log-level", "debug",
                           environment={"DIFFSERVE_LOG_FORMAT": "json"}) as server:
            server.post("/v1/completions", {"prompt": "x", "max_tokens": 2, "strange\n\"": 1})
            server.stop()
            events = {line["event"] for line in self.check(server.stderr())}
        self.assertLessEqual({"serving", "http_request", "request_members_unknown", "stopped"},
                             events)

    def test_errors_before_the_server_runs_are_json_too(self):
        for arguments, environment in (
                (["--log-format", "json", "/no/such/model"], {}),
                (["--log-format=json", "--prot", "1"], {}),
                (["/no/such/model"], {"DIFFSERVE_LOG_FORMAT": "json", "DIFFSERVE_PROT": "1"})):
            run = subprocess.run([BINARY, "serve", *arguments], capture_output=True, text=True,
                                 env=environment, timeout=60)
            lines = self.check(run.stderr)
            self.assertEqual((lines[-1]["event"], lines[-1]["level"]), ("message", "ERROR"))
        self.assertEqual(lines[0]["level"], "WARNING")
        self.assertIn("did you mean DIFFSERVE_PORT?", lines[0]["message"])

    def test_models_and_the_hub_log_json_too(self):
        files = {path.name: path.read_bytes() for path in tiny_model.directory().iterdir()}
        with tempfile.TemporaryDirectory() as home, HubStub({"acme/tiny": files}) as hub:
            environment = {"HF_HOME": home, "HF_ENDPOINT": hub.endpoint, "HF_HUB_OFFLINE": "0",
                           "SSL_CERT_FILE": str(hub.certificate), "no_proxy": "*"}
            models = {"a": {"model": "hf:acme/tiny"}, "b": {"model": str(DEMO_MODEL)}}
            with ModelsServer(models, "--log-format", "json", environment=environment) as server:
                for name in models:
                    body = {"model": name, "prompt": "x", "max_tokens": 1}
                    self.assertEqual(server.post("/v1/completions", body).status, 200)
                eventually(lambda: server.stderr().count('"http_request"') >= 2, "both are logged")
                lines = self.check(server.stderr())
        download = next(line for line in lines if line["event"] == "download")
        self.assertEqual((download["repository"], download["model"]), ("hf:acme/tiny@main", "a"))
        serving = [line for line in lines if line["event"] == "serving"]
        self.assertEqual([line.get("model") for line in serving], [None, "a", "b"])
        self.assertEqual(serving[0]["models"], "a,b")

    def test_pattern_of_the_page_reads_the_text_form(self):
        page = (REPOSITORY / "docs" / "operate" / "deploy.md").read_text()
        pattern = re.compile(re.search(r"^\^\(\?P<time>.*$", page, re.M)[0])
        with ServerProcess("--log-level", "debug") as server:
            server.post("/v1/completions", {"prompt": "x", "max_tokens": 2})
            server.stop()
            lines = [line for line in server.stderr().splitlines() if re.match(TIME, line)]
        events = set()
        for line in lines:
            found = pattern.match(line)
            self.assertIsNotNone(found, line)
            self.assertIn(found["level"], LEVELS)
            events.add(found["event"])
        self.assertLessEqual({"serving", "page", "http_request", "drained", "stopped"}, events)


class GpuTest(unittest.TestCase):
    def test_build_for_cpus_beside_a_gpus_driver_warns(self):
        about = subprocess.run([BINARY, "--version"], capture_output=True, text=True).stdout
        if "backends: cpu\n" not in about:
            self.skipTest("this build has another backend")
        beside = "mount -t tmpfs tmpfs /dev && touch /dev/nvidiactl && exec \"$@\""
        alone = "mount -t tmpfs tmpfs /dev && exec \"$@\""
        lines = []
        for script, flags in ((beside, ()), (beside, ("--device", "cpu")), (alone, ())):
            run = subprocess.run(["unshare", "--map-root-user", "--mount", "sh", "-c", script, "sh",
                                  BINARY, "inspect", tiny_model.directory(), *flags],
                                 capture_output=True, text=True, timeout=60)
            self.assertEqual(run.returncode, 0, run.stderr)
            self.assertIn("device               cpu\n", run.stdout)
            lines.append(run.stderr)
        self.assertRegex(lines[0], rf'^{TIME} WARNING gpu_not_used reason="this build has no CUDA '
                                   r'backend"\n$')
        self.assertEqual(lines[1:], ["", ""])


if __name__ == "__main__":
    unittest.main()
