# SPDX-License-Identifier: Apache-2.0
"""A Ray cluster of this machine, the application of deploy/ray on it, and the servers that its
actors started, seen from outside."""

import copy
import http.client
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import yaml

from server_process import (DEMO_MODEL, GATED_BINARY, REPOSITORY, Gate, HttpTarget, eventually,
                            free_port)
from servers import KEY, Child, KeyConnection, is_alive

DEPLOY = REPOSITORY / "deploy" / "ray"
BIN = Path(sys.executable).parent
START_TIMEOUT_S = 90


class Cluster(Gate):
    """`ray start` of one node whose servers share a gate."""

    def __enter__(self) -> "Cluster":
        self.folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
        self.keys = self.folder / "keys"
        self.keys.write_text(KEY + "\n")
        self.keys.chmod(0o600)
        self.address = f"127.0.0.1:{free_port()}"
        self.environment = {
            **os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "PYTHONPATH": str(DEPLOY),
            "DIFFSERVE_BINARY": str(GATED_BINARY), "DIFFSERVE_GATE": str(self.gate),
            "RAY_ADDRESS": self.address, "RAY_USAGE_STATS_ENABLED": "0",
            # decisions of the autoscaler within a second
            "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "0.5",
            "RAY_SERVE_HANDLE_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "0.5"
        }
        self.log = (self.folder / "ray.log").open("wb")
        self.process = subprocess.Popen(
            [BIN / "ray", "start", "--head", "--block", "--port", self.address.split(":")[1],
             "--num-cpus", "4", "--object-store-memory", "80000000", "--include-dashboard", "false",
             "--temp-dir", self.folder], env=self.environment, stdin=subprocess.DEVNULL,
            stdout=self.log, stderr=subprocess.STDOUT)
        eventually(lambda: b"Ray runtime started" in (self.folder / "ray.log").read_bytes(),
                   "Ray has started", START_TIMEOUT_S)
        return self

    def __exit__(self, *_):
        family = psutil.Process(self.process.pid).children(recursive=True)
        self.process.terminate()
        self.process.wait(60)
        for process in psutil.wait_procs(family, 3)[1]:
            process.kill()
        self.log.close()
        subprocess.run(["rm", "-rf", self.folder], check=True)

    def children(self) -> list[Child]:
        """The servers that are ready, oldest first."""
        found = []
        for process in psutil.Process(self.process.pid).children(recursive=True):
            try:
                if process.exe() == str(GATED_BINARY) and is_alive(process):
                    found.append(Child(process))
            except (psutil.NoSuchProcess, psutil.ZombieProcess, AssertionError):
                continue  # it starts or ends
        return sorted(found, key=lambda child: child.process.create_time())

    def wait_for_children(self, count: int, timeout_s: float = 60) -> list[Child]:
        eventually(lambda: len(self.children()) == count, f"{count} servers run", timeout_s)
        return self.children()


class Application(HttpTarget):
    """deploy/ray/serve.yaml under `serve run`, with the bundled model and what a test changes."""

    def __init__(self, cluster: Cluster, args: dict, autoscaling: dict, **server):
        self.cluster, self.port, self.log_line = cluster, free_port(), None
        config = copy.deepcopy(yaml.safe_load((DEPLOY / "serve.yaml").read_text()))
        config["http_options"]["port"] = self.port
        application = config["applications"][0]
        application["args"] = {"model": str(DEMO_MODEL), "api_key_file": str(cluster.keys), **args}
        for deployment in application["deployments"]:
            deployment["ray_actor_options"] = {"num_cpus": 0}
            if deployment["name"] == "Server":
                deployment.update(server)
                deployment["autoscaling_config"].update(autoscaling)
        self.config = cluster.folder / "serve.yaml"
        self.config.write_text(yaml.safe_dump(config))

    def __enter__(self) -> "Application":
        self._log = (self.cluster.folder / "serve.log").open("wb")
        self.process = subprocess.Popen([BIN / "serve", "run", self.config],
                                        env=self.cluster.environment, stdin=subprocess.DEVNULL,
                                        stdout=self._log, stderr=subprocess.STDOUT)
        try:
            eventually(self._answers if self.log_line is None else self._has_logged,
                       "the application answers", START_TIMEOUT_S)
        except AssertionError as problem:
            problem.add_note(self.log()[-4000:])
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.cluster.open_gate()
        self.process.send_signal(signal.SIGINT)  # also ends Ray Serve and its replicas
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            self._log.close()

    def log(self) -> str:
        return (self.cluster.folder / "serve.log").read_text(errors="replace")

    def that_logs(self, line: str) -> "Application":
        """The same application, started when its log has the line instead of when it answers."""
        self.log_line = line
        return self

    def _has_logged(self) -> bool:
        return self.log_line in self.log()

    def _answers(self) -> bool:
        if self.process.poll() is not None:
            raise AssertionError(f"serve run ended with {self.process.returncode}")
        try:
            return self.request("GET", "/readyz").status == 200
        except OSError:
            return False

    def replicas(self) -> set[str]:
        """The replicas that the gateway knows."""
        response = self.request("GET", "/metrics")  # 503: none
        return set(re.findall('{replica="([^"]+)"', response.body.decode()))

    def connect(self, timeout_s: float = 120) -> http.client.HTTPConnection:
        return KeyConnection("127.0.0.1", self.port, timeout=timeout_s)


def seconds_until(condition, what: str, timeout_s: float = 60) -> float:
    start = time.monotonic()
    eventually(condition, what, timeout_s)
    return time.monotonic() - start
