# SPDX-License-Identifier: Apache-2.0
"""A test with a hub on loopback, an empty cache and an environment of its own."""

import os
import resource
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

import tiny_model
from hub_stub import HubStub, commit_of, etag_of
from server_process import BINARY

NAME, WEIGHTS = "acme/tiny", "model.safetensors"
VARIABLES = ("HF_", "HUGGINGFACE_", "TRANSFORMERS_", "SSL_CERT", "CURL_CA", "REQUESTS_CA", "XDG_",
             "http_proxy", "https_proxy", "all_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY",
             "ALL_PROXY", "NO_PROXY")


def tiny_files() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(tiny_model.directory().iterdir())}


class HubTest(unittest.TestCase):
    def setUp(self):
        self.home = Path(tempfile.mkdtemp(prefix="diffserve-hf-"))
        self.addCleanup(shutil.rmtree, self.home, ignore_errors=True)
        self.files = tiny_files() | {"pytorch_model.bin": b"pickle", "README.md": b"# Tiny\n"}
        self.hub = self.enterContext(HubStub({NAME: self.files}))
        self.cache = self.home / "hub"
        self.folder = self.cache / "models--acme--tiny"

    def environment(self, **changes) -> dict:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(VARIABLES)}
        mine = {"HF_HOME": str(self.home), "HF_ENDPOINT": self.hub.endpoint,
                "SSL_CERT_FILE": str(self.hub.certificate)}
        return {name: value for name, value in (kept | mine | changes).items() if value is not None}

    def run_command(self, *arguments, limit: int | None = None, **environment):
        def limited():
            if limit is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        return subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True,
                              env=self.environment(**environment), timeout=120, preexec_fn=limited)

    def inspect(self, name: str = f"hf:{NAME}", **options):
        return self.run_command("inspect", name, "--json", **options)

    def fetched(self, name: str = f"hf:{NAME}", **options):
        done = self.inspect(name, **options)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def refused(self, *words, name: str = f"hf:{NAME}", **options) -> str:
        """The command fails with one error line that has all the words."""
        done = self.inspect(name, **options)
        self.assertEqual(done.returncode, 1, done.stderr)
        errors = [line for line in done.stderr.splitlines() if line.startswith("diffserve: ")]
        self.assertEqual(len(errors), 1, done.stderr)
        for word in words:
            self.assertIn(word, errors[0])
        return errors[0]

    def snapshot(self) -> Path:
        return self.folder / "snapshots" / commit_of(self.files)

    def blob(self, name: str) -> Path:
        return self.folder / "blobs" / etag_of(self.files[name])

    def incomplete(self) -> Path:
        return Path(f"{self.blob(WEIGHTS)}.incomplete")

    def starts_of_weights(self) -> list[str]:
        """The byte from which each request asked for the weights."""
        return [headers.get("Range", "bytes=0-") for headers in self.hub.asked(WEIGHTS)]
