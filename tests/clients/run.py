#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Starts the servers, runs each client's test file against them and counts results.

    run.py BINARY MODEL [CLIENT...]

`EXCHANGES=FOLDER` writes each exchange between clients and servers to FOLDER/SERVER.jsonl.
"""

import contextlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

from recorder import Recorder
from scripted_model import write_model
from scripts import SCRIPTS

HERE = pathlib.Path(__file__).resolve().parent
INSTALLED = HERE.parents[1] / "build" / "clients"
FILE_LIMIT_S = 600
CLIENTS = {
    "shapes": "shapes.py",
    "openai-node": "openai_node.mjs",
    "ai-sdk": "ai_sdk.mjs",
    "langchain-js": "langchain_js.mjs",
    "litellm": "litellm_checks.py",
    "pydantic-ai": "pydantic_ai_checks.py",
    "instructor": "instructor_checks.py",
    "claude-code": "claude_code.py",
    "codex": "codex.py",
}


@contextlib.contextmanager
def server(binary, model, *flags):
    """Yields the address of a server on a free port."""
    command = [binary, "serve", model, "--port", "0", "--grpc-port", "0", *flags]
    with tempfile.TemporaryFile() as log, subprocess.Popen(
            [str(part) for part in command], stdout=subprocess.PIPE, stderr=log,
            text=True) as process:
        try:
            ready = re.match(r"ready http=(\S+)", process.stdout.readline())
            if not ready:
                log.seek(0)
                sys.exit(f"the server did not start: {log.read().decode()}")
            yield f"http://{ready[1]}"
        finally:
            process.terminate()


def environment(urls, home):
    """A client's environment: without the machine's settings, and without access to other hosts."""
    off = ("DISABLE_TELEMETRY DISABLE_ERROR_REPORTING DISABLE_AUTOUPDATER DO_NOT_TRACK"
           " HF_HUB_OFFLINE CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC")
    return {**{name: "1" for name in off.split()}, **urls,
            "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LANGCHAIN_TRACING_V2": "false",
            "LANGSMITH_TRACING": "false", "OTEL_SDK_DISABLED": "true", "HOME": str(home),
            "PATH": f"{INSTALLED / 'venv' / 'bin'}:/usr/bin:/bin", "LANG": "C.UTF-8",
            "AI_SDK_LOG_WARNINGS": "false", "INSTALLED": str(INSTALLED),
            "PYTHONWARNINGS": "ignore"}


def command(name):
    file = CLIENTS[name]
    if file.endswith(".mjs"):  # packages are found from where a module lies
        for module in HERE.glob("*.mjs"):
            shutil.copy(module, INSTALLED)
        return [INSTALLED / "venv" / "bin" / "node", INSTALLED / file]
    venv = "instructor-venv" if name == "instructor" else "venv"
    return [INSTALLED / venv / "bin" / "python", HERE / file]


def run_client(name, env):
    """Runs one file and prints its output; returns (passed, failed)."""
    print(f"-- {name}", flush=True)
    began = time.monotonic()
    try:
        done = subprocess.run([str(part) for part in command(name)], env=env, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              timeout=FILE_LIMIT_S, check=False)
        output, errors, code = done.stdout, done.stderr, done.returncode
    except subprocess.TimeoutExpired as expired:
        output, errors, code = (expired.stdout or b"").decode(), f"over {FILE_LIMIT_S} s", 1
    print(output, end="")
    passed = len(re.findall(r"^ok ", output, re.M))
    failed = len(re.findall(r"^not ok ", output, re.M))
    if code != 0 or passed + failed == 0:
        failed += 1
        print(f"not ok {name}: exit code {code}\n{errors[-2000:]}")
    seconds = time.monotonic() - began
    print(f"== {name}: {passed} passed, {failed} failed ({seconds:.0f} s)", flush=True)
    return passed, failed


def main(binary, model, names):
    scripted = INSTALLED / "models" / "scripted"
    write_model(scripted, SCRIPTS)
    key_file = INSTALLED / "key"
    key_file.write_text("sesame\n")
    formats = ["--tool-call-parser", "hermes", "--reasoning-parser", "think"]
    servers = {
        "DEMO_URL": (model, "--tool-call-parser", "hermes"),
        "SCRIPTED_URL": (scripted, *formats),
        "KEYED_URL": (model, "--api-key-file", key_file),
        "FULL_URL": (scripted, *formats, "--max-num-seqs", "1", "--max-waiting-requests", "8",
                     "--kv-cache-memory", "64M", "--max-queue-wait", "600"),
    }
    record = os.environ.get("EXCHANGES")
    results = []
    with contextlib.ExitStack() as stack:
        home = stack.enter_context(tempfile.TemporaryDirectory())
        urls = {name: stack.enter_context(server(binary, *arguments))
                for name, arguments in servers.items()}
        if record:
            folder = pathlib.Path(record)
            folder.mkdir(parents=True, exist_ok=True)
            urls = {name: Recorder(url, folder / f"{name}.jsonl").url
                    for name, url in urls.items()}
        for name in names or CLIENTS:
            results.append(run_client(name, environment(urls, home)))
    passed, failed = (sum(column) for column in zip(*results))
    print(f"{passed} passed, {failed} failed")
    return failed == 0


if __name__ == "__main__":
    sys.exit(0 if main(sys.argv[1], sys.argv[2], sys.argv[3:]) else 1)
