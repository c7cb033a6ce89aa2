# SPDX-License-Identifier: Apache-2.0
"""Starts a server of several models, each in a process of its own."""

import json
import os
import tempfile
from pathlib import Path

from server_process import GatedServer, eventually

NEEDED = ["--kv-cache-memory", "32MiB", "--threads", "1"]  # of each model


class ModelsServer(GatedServer):
    """`models`: the content of the file of --models. The gate is that of all models."""

    def __init__(self, models: dict, *flags, **options):
        super().__init__(*NEEDED, *flags, **options)
        self._models_folder = tempfile.TemporaryDirectory(prefix="diffserve-models-")
        self.file = Path(self._models_folder.name) / "models.json"
        self.file.write_text(json.dumps(models))

    def what_is_served(self) -> list:
        return ["--models", self.file]

    def states(self) -> dict[str, str]:
        return {model["id"]: model["status"]["value"] for model in self.models()}

    def models(self) -> list[dict]:
        return self.get("/v1/models").json()["data"]

    def wait_for_state(self, name: str, state: str) -> None:
        eventually(lambda: self.states()[name] == state, f"{name} is {state}")

    def children(self) -> dict[str, int]:
        """The process id of each model's process."""
        children = {}
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            for pid in (task / "children").read_text().split():
                arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
                names = [argument.partition("=")[2] for argument in arguments
                         if argument.startswith("--served-model-name=")]
                if names:
                    children[names[0]] = int(pid)
        return children


def listening_ports(pid: int) -> list[int]:
    """The TCP ports on which a process listens, the lowest descriptor's first."""
    ports = {}
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        _, local, _, state, *_, inode = line.split()[:10]
        if state == "0A":
            ports[f"socket:[{inode}]"] = int(local.rpartition(":")[2], 16)
    links = sorted(Path(f"/proc/{pid}/fd").iterdir(), key=lambda path: int(path.name))
    return [ports[name] for link in links if (name := os.readlink(link)) in ports]
