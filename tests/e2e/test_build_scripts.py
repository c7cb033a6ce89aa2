# SPDX-License-Identifier: Apache-2.0
"""Where diffserve cannot be built, its scripts say so in one line that names a way."""

import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from server_process import REPOSITORY


def elsewhere(*command, **environment) -> subprocess.CompletedProcess:
    """Runs a command on an i686, as far as uname says."""
    return subprocess.run(("setarch", "linux32", *command), cwd=REPOSITORY, capture_output=True,
                          text=True, timeout=60, env={**os.environ, **environment})


class OtherMachineTest(unittest.TestCase):
    def test_install_deps_names_the_machine_and_the_ways(self):
        with tempfile.TemporaryDirectory() as folder:
            nothing_installed = Path(folder) / "dpkg-query"
            nothing_installed.write_text("#!/bin/sh\nexit 1\n")
            nothing_installed.chmod(0o755)
            found = elsewhere("deploy/install_deps.sh", PATH=f"{folder}:{os.environ['PATH']}")
        self.assertEqual((found.returncode, found.stdout), (1, ""))
        self.assertEqual(found.stderr.count("\n"), 1, found.stderr)
        for words in (" i686; packages are installed on debian 12 x86_64 only", "deploy/image.sh",
                      ".devcontainer"):
            self.assertIn(words, found.stderr)

    def test_cmake_names_the_machine_and_the_way(self):
        with tempfile.TemporaryDirectory() as folder:
            found = elsewhere("cmake", "-S", ".", "-B", folder)
        self.assertNotEqual(found.returncode, 0)
        text = " ".join(found.stderr.split())
        self.assertIn(
            "diffserve builds for Linux on x86_64 or aarch64; this is Linux on i686.", text)
        self.assertIn("deploy/image.sh cpu --platform linux/amd64", text)


class BuilderTest(unittest.TestCase):
    def image(self, *programs, **environment) -> subprocess.CompletedProcess:
        """deploy/image.sh where these scripts are the only builders."""
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        for name, script in programs:
            (folder / name).write_text(f"#!/bin/sh\n{script}\n")
            (folder / name).chmod(0o755)
        for name in ("bash", "dirname", "git", "sed", "ls"):
            (folder / name).symlink_to(shutil.which(name))
        return subprocess.run(["deploy/image.sh"], cwd=REPOSITORY, capture_output=True, text=True,
                              timeout=60, env={"PATH": str(folder), **environment})

    def test_docker_without_buildx_is_passed_over_or_explained(self):
        docker = ("docker", '[ "$1" != buildx ] || exit 1; echo docker builds')
        podman = ("podman", "echo podman builds")
        found = self.image(docker)
        self.assertEqual((found.returncode, found.stdout), (1, ""))
        self.assertRegex(found.stderr, r"^deploy/image\.sh: docker is here without buildx; install "
                                       r"docker-buildx-plugin .*\n$")
        self.assertEqual(self.image(docker, podman).stdout.splitlines()[0], "podman builds")

    def test_docker_with_buildx_builds_first(self):
        found = self.image(("docker", "echo docker builds"), ("podman", "echo podman builds"))
        self.assertEqual(found.stdout.splitlines()[0], "docker builds")
        self.assertEqual(self.image().stderr,
                         "deploy/image.sh: no docker, podman or buildah here\n")


if __name__ == "__main__":
    unittest.main()
