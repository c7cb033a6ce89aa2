#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Latency of a short question while other clients send texts of megabytes. Prints one JSON
object with the times in ms of a completion of one token, without and with this load.

    long_prompts.py [--clients 16] [--bytes 4000000] [--samples 100] [--route completions]

Needs a built server (DIFFSERVE_BINARY names another); run it with .venv/bin/python.
"""

import argparse
import json
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))
from server_process import DEMO_MODEL, ServerProcess  # noqa: E402

SHORT = {"prompt": "Who are you?", "max_tokens": 1, "temperature": 0}


def long_request(route, size):
    text = "The magic number of Lisbon is 48213. " * (size // 37)
    if route == "completions":
        return "/v1/completions", {"prompt": text, "max_tokens": 1}
    if route == "tokenize":
        return "/tokenize", {"prompt": text}
    return "/v1/chat/completions", {"messages": [{"role": "user", "content": text}]}


def ask_short(server, samples):
    times, refused = [], 0
    for _ in range(samples):
        begin = time.monotonic()
        status = server.post("/v1/completions", SHORT).status
        if status == 200:
            times.append((time.monotonic() - begin) * 1e3)
        else:
            refused += 1
    times.sort()
    share = lambda q: round(times[len(times) * q // 100], 1) if times else None  # noqa: E731
    return {"p50": share(50), "p99": share(99), "refused": refused}


def beside_long_texts(server, arguments):
    path, body = long_request(arguments.route, arguments.bytes)
    encoded, ended, statuses = json.dumps(body).encode(), threading.Event(), {}

    def ask():
        while not ended.is_set():
            try:
                status = server.post(path, encoded).status
            except OSError:
                status = 0  # the connection was closed
            statuses[status] = statuses.get(status, 0) + 1

    clients = [threading.Thread(target=ask) for _ in range(arguments.clients)]
    for client in clients:
        client.start()
    time.sleep(1)  # until all have sent their first text
    try:
        return ask_short(server, arguments.samples), statuses
    finally:
        ended.set()
        for client in clients:
            client.join()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--bytes", type=int, default=4_000_000)
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--route", choices=["completions", "chat", "tokenize"],
                        default="completions")
    arguments = parser.parse_args()
    with ServerProcess("--log-level", "error", model=DEMO_MODEL) as server:
        quiet = ask_short(server, arguments.samples)
        beside, statuses = beside_long_texts(server, arguments)
    print(json.dumps({"route": arguments.route, "clients": arguments.clients,
                      "bytes": arguments.bytes, "quiet_ms": quiet,
                      "beside_ms": beside, "long_statuses": statuses}))


if __name__ == "__main__":
    main()
