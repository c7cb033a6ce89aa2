# SPDX-License-Identifier: Apache-2.0
"""Full disks: under a server's log, its socket of KV events, and the output of `convert` and
`logits`. A small disk is a tmpfs that only one process sees."""

import shlex
import subprocess
import tempfile
from pathlib import Path

from server_process import BINARY, DEMO_MODEL, ServerProcess

REQUESTS = 200
NEW_NAMESPACE = "unshare --map-root-user --mount"
# Command, options of its small disk, exit code and words of its one-line error. {disk} is the
# disk's path.
WRITERS = {
    "convert, too few bytes": (("convert", DEMO_MODEL, "{disk}/new"), "size=1m", 1, "its disk has"),
    "convert, no inode": (("convert", DEMO_MODEL, "{disk}/new"), "size=8m,nr_inodes=3", 1,
                          "No space left on device"),
    "logits": (("logits", DEMO_MODEL, "--tokens", ",".join(map(str, range(5, 105))), "--output",
                "{disk}/logits.npy"), "size=64k", 1, "No space left on device"),
    "KV events": (("serve", DEMO_MODEL, "--port", "0", "--grpc-port", "0", "--kv-events-endpoint",
                   "ipc://{disk}/socket"), "size=64k,nr_inodes=1", 2, "--kv-events-endpoint"),
}


def on_small_disk(disk: Path, options: str, command: str) -> str:
    """A shell command that runs `command` with a new tmpfs at `disk`."""
    mounted = f"mount -t tmpfs -o {options} none {disk} && {command}"
    return f"exec {NEW_NAMESPACE} sh -c {shlex.quote(mounted)} sh"


def tmpfs_refusal(disk: Path) -> str:
    """Why no tmpfs can be mounted here, or nothing."""
    done = subprocess.run(["sh", "-c", on_small_disk(disk, "size=4k", "true")],
                          capture_output=True, text=True)
    return done.stderr.strip() if done.returncode else ""


def write_to(disk: Path, command, options: str, code: int, words: str) -> list[str]:
    """Faults in how the program ends on such a disk, which must be empty afterwards."""
    arguments = " ".join(shlex.quote(str(word).format(disk=disk)) for word in command)
    script = f"{BINARY} {arguments}; code=$?; find {disk} -mindepth 1; exit $code"
    done = subprocess.run(["sh", "-c", on_small_disk(disk, options, script)], capture_output=True,
                          text=True, timeout=60)
    found = [f"left behind: {done.stdout.split()}"] * bool(done.stdout)
    if done.returncode != code or len(done.stderr.splitlines()) != 1:
        found.append(f"exit code {done.returncode}: {done.stderr!r}")
    elif words not in done.stderr:
        found.append(f"does not say {words!r}: {done.stderr!r}")
    return found


def serve(folder: Path, command: str) -> tuple[float, list[str]]:
    """Dropped log lines of a server that `command` starts, and its faults."""
    script = folder / "diffserve"
    script.write_text(f"#!/bin/sh\n{command}\n")
    script.chmod(0o755)
    body = {"prompt": "x", "max_tokens": 1}
    with ServerProcess("--log-level", "debug", model=DEMO_MODEL, binary=script) as server:
        statuses = {server.post("/v1/completions", body).status for _ in range(REQUESTS)}
        dropped = server.metric("diffserve_log_lines_dropped_total")
    found = [f"statuses {statuses}"] * (statuses != {200})
    return dropped, found + ["no log line was dropped"] * (dropped == 0)


def run(_) -> dict:
    result, problems = {"requests": REQUESTS}, []
    with tempfile.TemporaryDirectory() as directory:
        folder, disk = Path(directory), Path(directory) / "disk"
        disk.mkdir()
        servers = {"log_to_dev_full": f'exec {BINARY} "$@" 2>/dev/full'}
        refusal = tmpfs_refusal(disk)
        if refusal:
            result["left_out"] = f"small disks: {refusal}"
        else:
            servers["log_to_a_full_disk"] = on_small_disk(
                disk, "size=4k", f'exec {BINARY} "$@" 2>{disk}/log') + ' "$@"'
            for name, writer in WRITERS.items():
                problems += [f"{name}: {what}" for what in write_to(disk, *writer)]
            result["writers"] = len(WRITERS)
        for name, command in servers.items():
            result[f"{name}_lines_dropped"], found = serve(folder, command)
            problems += [f"{name}: {what}" for what in found]
    return {**result, "problems": problems}
