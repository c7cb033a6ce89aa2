# SPDX-License-Identifier: Apache-2.0
"""deploy/fleet: its scripts start a fleet that answers and leave nothing; its compose file has only
known flags."""

import random
import re
import signal
import socket
import subprocess
import tempfile
import unittest
from pathlib import Path

import yaml

from fleet import (BINARY, COMPLETIONS, DEMO_MODEL, REPOSITORY, Router, certificate, eventually,
                   free_port)

FLEET = REPOSITORY / "deploy" / "fleet"


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def free_range(count: int) -> int:
    """The first of `count` free ports below those that the kernel assigns."""
    return next(base for base in iter(lambda: random.randrange(20000, 32000), None)
                if all(map(is_free, range(base, base + count))))


class StartedFleet(Router):
    """deploy/fleet/run.sh with two replicas of one thread."""

    def __init__(self, kind: str):
        super().__init__(kind, [])
        self.base = free_range(20)
        self.environment |= {"PORT": str(self.port), "BASE": str(self.base)}
        self.command = [FLEET / "run.sh", kind, "2", DEMO_MODEL, "--", "--threads", "1"]


class ScriptTest(unittest.TestCase):
    def test_fleet_of_each_kind_answers_and_ends(self):
        for kind in ("vllm-router", "smg", "haproxy"):
            with self.subTest(kind), StartedFleet(kind) as fleet:
                body = {
                    "model": DEMO_MODEL.name, "prompt": "x", "max_tokens": 3, "ignore_eos": True
                }
                self.assertEqual(
                    fleet.post(COMPLETIONS, body).json()["usage"]["completion_tokens"], 3)
                fleet.process.send_signal(signal.SIGTERM)
                self.assertEqual(fleet.process.wait(60), 0)
                for port in (fleet.port, fleet.base, fleet.base + 10):
                    eventually(lambda: is_free(port), f"port {port} is free")

    def test_wrong_usage_is_reported(self):
        for script, *arguments in (("run.sh", ), ("run.sh", "nginx", "2", DEMO_MODEL),
                                   ("run.sh", "smg", "none", DEMO_MODEL), ("router.sh", "smg"),
                                   ("router.sh", "smg", "8080", "localhost"), ("router.sh", "nginx",
                                                                               "1", "a:1:2")):
            result = subprocess.run([FLEET / script, *arguments], capture_output=True, text=True)
            self.assertEqual((result.returncode, "REPLICA" in result.stderr), (2, True),
                             (script, arguments))


class ComposeTest(unittest.TestCase):
    def setUp(self):
        self.services = yaml.safe_load((FLEET / "compose.yaml").read_text())["services"]

    def flags_of(self, *command) -> set[str]:
        return set(
            re.findall(r"--[a-z][a-z0-9-]*",
                       subprocess.run([*command, "--help"], capture_output=True, text=True).stdout))

    def test_every_flag_exists(self):
        programs = {
            "replica1": [BINARY], "replica2": [BINARY], "vllm-router": ["vllm-router"],
            "smg": ["smg", "launch"]
        }
        for name, program in programs.items():
            used = {word for word in self.services[name]["command"] if word.startswith("--")}
            self.assertTrue(used)
            self.assertEqual(used - self.flags_of(*program), set(), name)

    def test_routers_equal_those_of_the_tests(self):
        pinned = (REPOSITORY / "tests/fleet/requirements.txt").read_text().split()
        for name in ("vllm-router", "smg"):
            self.assertIn(
                re.search(rf"{name}==[\d.]+", self.services[name]["entrypoint"][2])[0], pinned)

    def test_routers_name_the_replicas_and_their_ports(self):
        ports = {"8000", "8001", "5557", "5558"}
        replica = self.services["replica1"]["command"]
        self.assertEqual(set(re.findall(r"\d{4}", " ".join(replica))), ports)
        for name in ("vllm-router", "smg", "haproxy"):
            service = self.services[name]
            text = " ".join([*service.get("command", ()), *service.get("environment", {}).values()])
            for target in ("replica1", "replica2"):
                named = set(re.findall(rf"{target}:(\d+)", text))
                self.assertTrue(named and named <= ports, (name, target))

    def test_haproxy_accepts_the_admin_commands(self):
        known = set(
            re.findall(r"[A-Z]+\d?_?[A-Z]+", (REPOSITORY / "deploy/haproxy.cfg").read_text()))
        self.assertLessEqual(set(self.services["haproxy"]["environment"]), known)

    def test_haproxy_takes_the_file(self):
        environment = {
            "PATH": "/usr/sbin:/usr/bin:/bin", "CERTIFICATE": str(certificate(self.folder())),
            "FRONT": f":{free_port()}"
        }
        for n in range(2, 5):
            environment |= {f"REPLICA{n}_HTTP": "127.0.0.1:1", f"REPLICA{n}_GRPC": "127.0.0.1:2"}
        result = subprocess.run(["haproxy", "-c", "-f", REPOSITORY / "deploy/haproxy.cfg"],
                                env=environment, capture_output=True, text=True)
        self.assertEqual((result.returncode, "WARNING" in result.stdout + result.stderr),
                         (0, False), result)

    def folder(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        return Path(folder.name)


if __name__ == "__main__":
    unittest.main()
