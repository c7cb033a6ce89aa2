#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Faults from outside: a server is killed or ended under load and started again, its disk is full,
the wall clock jumps, its files are cut and replaced while it loads.

    faults.py [--quick] [--json FILE] [FAULT...]

Faults: kill, terminate, full_disk, clock, files. Prints one JSON object per fault. Exit code 1
if a reply was cut that must not be, an answer differs, a half-written file is left, or a process
ends in a way that is not allowed. Faults that are not available are reported as left_out: a small
disk needs permission to mount a tmpfs, clock jumps need Debian's package libfaketime.
"""

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "e2e"))
import clock_jumps  # noqa: E402
import full_disk  # noqa: E402
import replaced_files  # noqa: E402
from http_load import percentile  # noqa: E402
from outcome import finish  # noqa: E402
from restart_load import Load  # noqa: E402
from server_process import DEMO_MODEL, ServerProcess, eventually, free_port  # noqa: E402

ANSWERS_BETWEEN = 8  # minimum before the next fault


def seconds_figures(name: str, seconds: list[float]) -> dict:
    return {f"{name}_ms_{share}": round(1000 * percentile(seconds, value), 1)
            for share, value in (("p50", 0.5), ("max", 1))}


def serving_again(times: int, end) -> dict:
    """Starts a server `times` times on the same ports, under the same clients' load, and calls
    `end(server)` each time."""
    ports, ready = (free_port(), free_port()), []
    with Load(ports[0]) as load:
        for _ in range(times):
            begin = time.monotonic()
            with ServerProcess(model=DEMO_MODEL, ports=ports) as server:
                ready.append(time.monotonic() - begin)
                seen = load.ends["whole"]
                eventually(lambda seen=seen: load.ends["whole"] >= seen + ANSWERS_BETWEEN,
                           "answers come")
                end(server)
    with ServerProcess(model=DEMO_MODEL, ports=ports) as server:
        pages = server.metric("diffserve_kv_pages") - server.metric("diffserve_kv_pages",
                                                                    state="free")
    return {"times": times, **seconds_figures("ready", ready), "ends": dict(load.ends),
            "wrong": load.wrong, "pages_not_free_at_start": pages}


def kill(arguments) -> dict:
    return serving_again(50 if not arguments.quick else 4, lambda server: server.kill())


def terminate(arguments) -> dict:
    not_ready, log = [], Counter()

    def end(server) -> None:
        begin = time.monotonic()
        server.terminate()
        while is_ready(server):
            pass
        not_ready.append(time.monotonic() - begin)
        server.wait()
        last = server.stderr().rpartition("drained ")[2].split()
        log.update({name: int(value) for name, value in (word.split("=") for word in last[:2])})

    result = serving_again(50 if not arguments.quick else 4, end)
    return {**result, **seconds_figures("not_ready", not_ready), "log": dict(log)}


def is_ready(server) -> bool:
    """A server that has ended is not."""
    try:
        return server.get("/readyz").status == 200
    except OSError:
        return False


# The correct ends of a client's requests. An idle connection may be closed while the next request
# is on its way: that request is "not taken".
ENDS = {"kill": {"whole", "cut", "not taken"}, "terminate": {"whole", "refused", "not taken"}}


def problems(name: str, result: dict) -> list[str]:
    found = list(result.get("problems", ()))
    if name in ENDS:
        found += [f"{count} replies: {end}" for end, count in result["ends"].items()
                  if end not in ENDS[name]]
        found += [f"{what}: {count}" for what, count in result.get("log", {}).items() if count]
        found += [f"{what}: {result[what]}" for what in ("wrong", "pages_not_free_at_start")
                  if result[what]]
    return found


FAULTS = {"kill": kill, "terminate": terminate, "full_disk": full_disk.run,
          "clock": clock_jumps.run, "files": replaced_files.run}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few times each")
    parser.add_argument("--json", type=Path)
    parser.add_argument("faults", nargs="*", metavar="FAULT", default=list(FAULTS))
    arguments = parser.parse_args()
    results, found = {}, []
    for name in arguments.faults:
        results[name] = FAULTS[name](arguments)
        print(name, json.dumps(results[name]), flush=True)
        found += [f"{name}: {problem}" for problem in problems(name, results[name])]
    return finish(results, found, arguments.json)


if __name__ == "__main__":
    sys.exit(main())
