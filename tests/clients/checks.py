# SPDX-License-Identifier: Apache-2.0
"""Helpers of the Python client tests: `@check` on each function, `run()` at the end.

Each check prints `ok NAME` or `not ok NAME: REASON`.
"""

import asyncio
import inspect
import json
import os
import signal
import traceback

DEMO = os.environ["DEMO_URL"]  # the bundled model, named `diff`
SCRIPTED = os.environ["SCRIPTED_URL"]  # the model of scripts.py, named `scripted`
KEYED = os.environ["KEYED_URL"]  # the bundled model, with the key `sesame`
FULL = os.environ["FULL_URL"]  # SCRIPTED with little room
TIMEOUT_S = int(os.environ.get("CHECK_TIMEOUT_S", "60"))

CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


def same(got, expected, what="value"):
    if got != expected:
        raise AssertionError(f"{what} is {shown(got)}; expected {shown(expected)}")


def true(condition, what):
    if not condition:
        raise AssertionError(what)


def raises(kind, call):
    """The exception of `call`, which must be a `kind`."""
    try:
        got = call()
    except kind as error:
        return error
    except Exception as error:
        raise AssertionError(f"expected {kind.__name__}, got {type(error).__name__}: {error}")
    raise AssertionError(f"expected {kind.__name__}, got {shown(got)}")


def shown(value):
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 600 else text[:600] + "..."


def with_time_limit(function):
    def expired(*_):
        raise TimeoutError(f"not done within {TIMEOUT_S} s")

    signal.signal(signal.SIGALRM, expired)
    signal.alarm(TIMEOUT_S)
    try:
        result = function()
        if inspect.iscoroutine(result):
            asyncio.run(result)
    finally:
        signal.alarm(0)


def run():
    for function in CHECKS:
        name = function.__name__
        try:
            with_time_limit(function)
            print(f"ok {name}", flush=True)
        except Exception as error:
            where = [frame for frame in traceback.extract_tb(error.__traceback__)
                     if os.path.dirname(__file__) in frame.filename and "checks.py" not in
                     frame.filename]
            line = f" (line {where[-1].lineno})" if where else ""
            text = json.dumps(shown(f"{type(error).__name__}: {error}"), ensure_ascii=False)
            print(f"not ok {name}: {text}{line}", flush=True)
