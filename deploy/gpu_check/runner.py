# SPDX-License-Identifier: Apache-2.0
"""Runs suites, one after another or side by side, each in a process of its own with its own limit,
and counts what each test of them did. A hang, a crash or a device that is lost costs only the rest
of its suite. Only the standard library is needed."""

import contextlib
import fnmatch
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

TERMINATION_S = 5  # from SIGTERM to SIGKILL
DEATH_S = 10  # from SIGKILL to giving up on a process that the driver holds
NO_TIME = "no time was left"
ENDED = 124  # in place of an exit code: the suite reached its limit
ALARM_CODE = 9  # the exit code that compute-sanitizer is asked for if it found something

LINE_MAX = 200  # characters of a log's line in a result

GTEST_RESULT = re.compile(r"\[       OK \] (?P<ok>[^\s,]+)|\[  SKIPPED \] (?P<skipped>[^\s,]+) \("
                          r"|\[ RUN      \] (?P<run>\S+)")
GTEST_SKIP_REASON = re.compile(r": Skipped\n(.*)")
UNITTEST_RESULT = re.compile(r"^(test_\w+) \(\S+\)(?:\n.*?)?(?: \.\.\. (ok|skipped '(.*)')?|$)",
                             re.M)
# A finding of compute-sanitizer: its first line and the indented ones after it.
ALARM = re.compile(r"^========= (?=[A-Z])(?!COMPUTE-SANITIZER|[A-Z]+ SUMMARY|Target|Warning).*\n"
                   r"(?:=========(?:  .*)?\n)*", re.M)


@dataclass
class Suite:
    name: str
    command: list
    limit_s: float
    tests: list = None  # names; None: those that begin
    environment: dict = field(default_factory=dict)
    read: object = None  # makes an Outcome of the log; None: the exit code alone counts
    is_figure: bool = False  # prints one JSON object
    needs_s: float = 0  # a figure with less time is left out


@dataclass
class Outcome:
    """What a suite's log says of its tests."""
    begun: list = field(default_factory=list)
    passed: set = field(default_factory=set)
    skipped: dict = field(default_factory=dict)  # name: reason


@dataclass
class Result:
    name: str
    passed: int
    failed: int
    skipped: int
    seconds: float
    remark: str
    failures: list  # names

    def line(self):
        remark = f" ({self.remark})" if self.remark else ""
        return (f"== {self.name}: {self.passed} passed, {self.failed} failed, {self.skipped} "
                f"skipped in {self.seconds:.1f} s{remark}")


def read_gtest(log):
    outcome, begun_at = Outcome(), 0
    for match in GTEST_RESULT.finditer(log):
        if match["run"]:
            outcome.begun.append(match["run"])
            begun_at = match.end()
        elif match["ok"]:
            outcome.passed.add(match["ok"])
        else:
            reasons = GTEST_SKIP_REASON.findall(log, begun_at, match.start())
            outcome.skipped[match["skipped"]] = reasons[-1] if reasons else "no reason"
    return outcome


def read_unittest(log):
    outcome = Outcome()
    for match in UNITTEST_RESULT.finditer(log):
        name, result, reason = match.groups()
        outcome.begun.append(name)
        if result == "ok":
            outcome.passed.add(name)
        elif result:
            outcome.skipped[name] = reason
    return outcome


def end(process):
    """Ends the process and all that it started; returns whether it is gone."""
    for sent, wait_s in ((signal.SIGTERM, TERMINATION_S), (signal.SIGKILL, DEATH_S)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sent)
        try:
            process.wait(wait_s)
        except subprocess.TimeoutExpired:
            continue
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        return True
    return False


def run_command(command, log, limit_s, environment, processes=None):
    """The exit code, or ENDED; the output goes to the file `log`. While the process runs it is in
    the set `processes`."""
    processes = set() if processes is None else processes
    with open(log, "wb") as output:
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output,
                                       stderr=subprocess.STDOUT, start_new_session=True,
                                       env={**os.environ, **environment})
        except OSError as error:
            output.write(f"{command[0]} does not start: {error}\n".encode())
            return 127
    processes.add(process)
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        if not end(process):
            with open(log, "a") as output:
                output.write(f"process {process.pid} does not end\n")
        return ENDED
    finally:
        processes.discard(process)


class Runner:
    """`known_skips` are regular expressions of the reasons for which a test may be skipped. After
    each suite it calls `on_result`."""

    def __init__(self, logs, seconds, known_skips=(), known_alarms=(), clock=time.monotonic):
        self.logs, self.known_skips, self.known_alarms = Path(logs), known_skips, known_alarms
        self.logs.mkdir(parents=True, exist_ok=True)
        self.clock = clock
        self.end = clock() + seconds
        self.results, self.figures, self.left_out = [], {}, {}
        self.patience = 1  # what a suite's limit is multiplied by
        self.on_result = lambda: None
        self._lock, self._processes, self._is_cut = threading.RLock(), set(), False

    def left_s(self):
        return 0 if self._is_cut else self.end - self.clock()

    def log(self, name):
        return self.logs / f"{name}.log"

    def run_all(self, suites, jobs):
        """Runs them in order, or side by side, `jobs` at a time, the longest first."""
        if jobs > 1:
            suites = sorted(suites, key=lambda suite: -suite.limit_s)
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(self.run, suites))

    def cut(self):
        """Ends what runs; nothing else begins."""
        self._is_cut = True
        for process in list(self._processes):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def run(self, suite):
        """Runs the suite, prints its line and returns whether nothing failed. `{limit_s}` in its
        command becomes the seconds after which it would do well to end by itself."""
        begin, limit_s = self.clock(), min(suite.limit_s * self.patience, self.left_s())
        if suite.is_figure and limit_s <= suite.needs_s:
            self.leave_out(suite.name, NO_TIME)
            self._report(Result(suite.name, 0, 0, 1, 0, NO_TIME, []))
            return True
        if limit_s <= 0:
            self.log(suite.name).write_text(f"not run: {NO_TIME}\n")
            code, limit_s = ENDED, 0
        else:
            own_limit = f"{max(1, limit_s - TERMINATION_S):.0f}"
            command = [part.replace("{limit_s}", own_limit) for part in suite.command]
            code = run_command(command, self.log(suite.name), limit_s, suite.environment,
                               self._processes)
        text = self.log(suite.name).read_text(errors="replace")
        result = self.judge(suite, code, text, limit_s)
        result.seconds = self.clock() - begin
        if suite.is_figure:
            self._keep_figure(result, text)
        self._report(result)
        return result.failed == 0

    def _keep_figure(self, result, text):
        try:
            figure = json.loads(text[text.index("{"):text.rindex("}") + 1])
        except ValueError:
            if not result.failed:
                result.passed, result.failed = 0, 1
                result.failures = [f"{result.name}: no JSON object was printed"]
            return
        if "left_out" in figure:
            result.passed, result.skipped = 0, 1
            self.leave_out(result.name, figure["left_out"])
            return
        with self._lock:
            self.figures[result.name] = figure

    def leave_out(self, name, reason):
        with self._lock:
            self.left_out[name] = reason
            print(f"-- {name} left out: {reason}", flush=True)

    def judge(self, suite, code, log, limit_s):
        """The result of a suite that ended with this exit code and this log."""
        remarks, passed, skipped, begun = [], 0, 0, []
        if suite.read is None:
            lines = log.strip().splitlines() or ["no output"]
            failures = [] if code == 0 else [lines[-1][:LINE_MAX]]
            passed = 1 - len(failures)
        else:
            outcome = suite.read(log)
            begun = outcome.begun
            tests = begun if suite.tests is None else suite.tests
            failures = self._failures(tests, outcome)
            passed = len(outcome.passed.intersection(tests))
            skipped = len(tests) - passed - len(failures)
            if not tests:
                failures.append("there is no such test")
        known, unknown = self._alarms(log)
        if unknown:
            failures.append(f"{len(unknown)} alarms, the first: {unknown[0]}")
        if known:
            remarks.append(f"{len(known)} known false alarms")
        if code == ENDED:
            remarks.append(NO_TIME if limit_s == 0 else f"ended after {limit_s:.0f} s")
        elif code != 0:
            remarks.append(f"exit code {code}")
        if code != 0 and not failures and not (code == ALARM_CODE and known):
            failures.append(f"exit code {code}")
        if code not in (0, 1, ALARM_CODE) and begun:
            remarks.append(f"in {begun[-1]}")
        return Result(suite.name, passed, len(failures), skipped, 0, "; ".join(remarks),
                      [f"{suite.name}: {failure}" for failure in failures])

    def _failures(self, tests, outcome):
        failures = []
        for name in tests:
            if name in outcome.passed:
                continue
            reason = outcome.skipped.get(name)
            if reason is None:
                failures.append(name if name in outcome.begun else f"{name} did not run")
            elif not any(re.search(known, reason) for known in self.known_skips):
                failures.append(f"{name} was skipped: {reason}")
        return failures

    def _alarms(self, log):
        """The first lines of the sanitizer's known false alarms, and of all others."""
        known, unknown = [], []
        for match in ALARM.finditer(log):
            is_known = any(re.search(alarm, match[0]) for alarm in self.known_alarms)
            (known if is_known else unknown).append(match[0].splitlines()[0])
        return known, unknown

    def fail(self, name, failures):
        """A failure that no process gave."""
        self._report(Result(name, 0, len(failures), 0, 0, "", [f"{name}: {failure}"
                                                                for failure in failures]))

    def _report(self, result):
        with self._lock:
            self.results.append(result)
            print(result.line())
            for failure in result.failures[:20]:
                print(f"   failed: {failure}")
            sys.stdout.flush()
            self.on_result()

    def total(self, kind):
        return sum(getattr(result, kind) for result in self.results)


def list_gtests(program, log, limit_s=60):
    """The names of all tests, in order."""
    if run_command([*program, "--gtest_list_tests"], log, limit_s, {}) != 0:
        return []
    names, suite = [], ""
    for line in Path(log).read_text(errors="replace").splitlines():
        text = line.split("#")[0].rstrip()
        if text.startswith("  ") and suite:
            names.append(suite + text.strip())
        elif re.fullmatch(r"\S+\.", text):
            suite = text
    return names


def matching(tests, filter_):
    """Those that a filter of gtest, patterns between colons, lets run."""
    return [test for test in tests
            if any(fnmatch.fnmatchcase(test, pattern) for pattern in filter_.split(":"))]
