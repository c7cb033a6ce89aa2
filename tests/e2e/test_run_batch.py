# SPDX-License-Identifier: Apache-2.0
"""`diffserve run-batch`: answers of a file of requests, and what is left after kills, signals and
full disks."""

import json
import os
import signal
import subprocess
import tempfile
import unittest
from pathlib import Path

import tiny_model
from server_process import BINARY, DEVICE_FLAGS, GATED_BINARY, ServerProcess, eventually

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
EMBEDDINGS, RESPONSES = "/v1/embeddings", "/v1/responses"
# Members that differ between two answers to one request, or between two builds.
UNEQUAL = {"id", "created", "created_at", "completed_at", "item_id", "system_fingerprint"}
LIMIT_S = 120


def without_names(value):
    if isinstance(value, dict):
        return {key: without_names(member) for key, member in value.items() if key not in UNEQUAL}
    return [without_names(entry) for entry in value] if isinstance(value, list) else value


def request(custom_id: str, url: str, body) -> dict:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def completion(number: int, max_tokens: int) -> dict:
    return request(f"r{number}", COMPLETIONS, {
        "prompt": f"prompt {number}", "max_tokens": max_tokens, "temperature": 0,
        "ignore_eos": True, "return_token_ids": True
    })


class Batch:
    """An input, an output and the runs over them."""

    def __init__(self, requests: list, folder: Path | None = None):
        self._scratch = tempfile.TemporaryDirectory(prefix="diffserve-batch-")
        self.input = Path(self._scratch.name) / "in.jsonl"
        self.output = (folder or Path(self._scratch.name)) / "out.jsonl"
        self.gate = Path(self._scratch.name) / "gate"
        self._round, self._environment = 0, dict(os.environ)
        lines = [line if isinstance(line, str) else json.dumps(line) for line in requests]
        self.input.write_text("".join(line + "\n" for line in lines))

    def start(self, *flags, binary=BINARY) -> subprocess.Popen:
        self._stderr = tempfile.TemporaryFile()
        command = [
            binary, "run-batch", tiny_model.directory(), "--input", self.input, "--output",
            self.output, *DEVICE_FLAGS, *map(str, flags)
        ]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=self._stderr,
                                env=self._environment)

    def start_gated(self, *flags) -> subprocess.Popen:
        """No step begins before `allow`."""
        self._environment["DIFFSERVE_GATE"] = str(self.gate)
        self.allow(0)
        return self.start(*flags, binary=GATED_BINARY)

    def allow(self, steps: int) -> None:
        self._round += 1
        new = self.gate.with_name("new")
        new.write_text(f"{self._round} {steps}")
        new.rename(self.gate)

    def run(self, *flags) -> int:
        return self.start(*flags).wait(LIMIT_S)

    def stderr(self) -> str:
        self._stderr.seek(0)
        return self._stderr.read().decode()

    def num_lines(self) -> int:
        return self.output.read_bytes().count(b"\n") if self.output.exists() else 0

    def answers(self) -> list[dict]:
        return [json.loads(line) for line in self.output.read_text().splitlines()]

    def bodies(self) -> dict:
        """The answers by custom_id, of which each is there once."""
        found = {}
        for answer in self.answers():
            assert answer["custom_id"] not in found, answer["custom_id"]
            found[answer["custom_id"]] = without_names(answer["response"]["body"])
        return found


class AnswersTest(unittest.TestCase):

    def test_answers_are_those_of_the_http_port(self):
        greedy = {"temperature": 0, "max_tokens": 8}
        messages = [{"role": "user", "content": "hello there"}]
        schema = {"type": "object", "properties": {"z": {"type": "boolean"}, "a": {"const": 1}},
                  "required": ["z", "a"], "additionalProperties": False}
        form = {"type": "json_schema", "json_schema": {"name": "f", "schema": schema}}
        requests = [
            request("chat", CHAT, {"messages": messages, "logprobs": True, **greedy}),
            request("form", CHAT, {"messages": messages, **greedy, "max_tokens": 64,
                                   "response_format": form}),
            request("text", COMPLETIONS, {"prompt": ["the", "other"], "n": 2, "seed": 5,
                                          "max_tokens": 4, "stream": False}),
            request("long", COMPLETIONS, {"prompt": "hello " * 1000 + " " * 70_000,
                                          "truncate_prompt_tokens": 64, **greedy}),
            request("embed", EMBEDDINGS, {"input": ["hello", "the other"]}),
            request("many", EMBEDDINGS, {"input": ["a", "b"] * 128}),
            request("responses", RESPONSES, {"input": "hello", "temperature": 0,
                                             "max_output_tokens": 8}),
            request("model", CHAT, {"messages": messages, "model": "another"}),
            request("too long", COMPLETIONS, {"prompt": "the", "max_tokens": 1 << 20}),
            request("empty", RESPONSES, {}),
        ]
        batch = Batch(requests)
        self.assertEqual(batch.run("--no-enable-prefix-caching"), 0, batch.stderr())
        answers = {answer["custom_id"]: answer for answer in batch.answers()}
        with ServerProcess("--no-enable-prefix-caching") as server:
            for sent in requests:
                reply = server.post(sent["url"], sent["body"])
                answer = answers.pop(sent["custom_id"])
                with self.subTest(sent["custom_id"]):
                    response = answer["response"]
                    self.assertEqual(response["status_code"], reply.status)
                    self.assertEqual(without_names(response["body"]), without_names(reply.json()))
                    self.assertTrue(response["request_id"])
                    self.assertTrue(answer["id"].startswith("batch_req_"))
                    self.assertIsNone(answer["error"])
        self.assertEqual(answers, {})
        self.assertIn("10 answered (3 errors), 0 answered before", batch.stderr())

    def test_lines_that_are_no_requests_have_errors_with_their_numbers(self):
        batch = Batch([
            completion(1, 2), "{\"custom_id\": ", "", completion(1, 2),
            request("url", "/v1/messages", {}), request("stream", CHAT, {"stream": True}),
            "[" * 100, completion(2, 2)
        ])
        self.assertEqual(batch.run(), 0, batch.stderr())
        answers = batch.answers()
        self.assertEqual(sorted(a["custom_id"] for a in answers if a["response"]), ["r1", "r2"])
        errors = {a["error"]["line"]: (a["custom_id"], a["error"]["code"])
                  for a in answers if a["error"]}
        self.assertEqual(errors, {
            2: (None, "invalid_json_line"), 4: (None, "duplicate_custom_id"),
            5: ("url", "invalid_url"), 6: ("stream", "stream_not_supported"),
            7: (None, "invalid_json_line")
        })
        before = batch.output.read_bytes()
        self.assertEqual(batch.run(), 0, batch.stderr())
        self.assertEqual(batch.output.read_bytes(), before)
        self.assertIn("0 answered (0 errors), 7 answered before", batch.stderr())

    def test_thousand_requests_are_answered_with_few_running_at_once(self):
        batch = Batch([completion(number, 1 + number % 5) for number in range(1000)])
        self.assertEqual(batch.run("--max-num-seqs", 8), 0, batch.stderr())
        self.assertEqual(set(batch.bodies()), {f"r{number}" for number in range(1000)})
        for answer in batch.answers():
            self.assertEqual(answer["response"]["status_code"], 200)

    def test_requests_wait_for_memory_that_serve_would_refuse(self):
        requests = [completion(number, 800) for number in range(24)]
        batch = Batch(requests)
        code = batch.run("--max-answers-memory", "1MiB", "--log-level", "info")
        self.assertEqual(code, 0, batch.stderr())
        statuses = [answer["response"]["status_code"] for answer in batch.answers()]
        self.assertEqual(statuses, [200] * 24)
        self.assertIn("status=429", batch.stderr())

    def test_pipe_is_answered_while_it_is_open_and_continued_when_it_is_sent_again(self):
        batch = Batch([])
        lines = [json.dumps(completion(number, 2)) + "\n" for number in range(4)]
        command = [BINARY, "run-batch", tiny_model.directory(), "--output", batch.output,
                   *DEVICE_FLAGS, "--input"]
        fifo = batch.output.with_name("fifo")
        os.mkfifo(fifo)
        with subprocess.Popen([*command, "-"], stdin=subprocess.PIPE, text=True) as process:
            process.stdin.write(lines[0] + lines[1][:20])
            process.stdin.flush()
            eventually(lambda: batch.num_lines() == 1, "the first line is answered")
            process.stdin.write(lines[1][20:] + lines[2])
            process.stdin.close()
            self.assertEqual(process.wait(LIMIT_S), 0)
        self.assertEqual(set(batch.bodies()), {"r0", "r1", "r2"})
        with subprocess.Popen([*command, fifo]) as process:
            fifo.write_text("".join(lines))
            self.assertEqual(process.wait(LIMIT_S), 0)
        self.assertEqual([answer["custom_id"] for answer in batch.answers()][3:], ["r3"])
        with subprocess.Popen([*command, "/dev/stdin"], stdin=subprocess.PIPE) as process:
            process.stdin.write("".join(lines).encode())
            process.stdin.close()
            self.assertEqual(process.wait(LIMIT_S), 0)
        self.assertEqual(batch.num_lines(), 4)

    def test_signal_ends_a_run_whose_pipe_is_silent(self):
        batch = Batch([])
        command = [BINARY, "run-batch", tiny_model.directory(), "--output", batch.output,
                   *DEVICE_FLAGS, "--input", "-"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as process:
            process.stdin.write(json.dumps(completion(1, 2)) + "\n")
            process.stdin.flush()
            eventually(lambda: batch.num_lines() == 1, "the first line is answered")
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(LIMIT_S), 1)

    def test_usage_errors(self):
        batch = Batch([completion(1, 1)])
        run = [BINARY, "run-batch", tiny_model.directory(), *DEVICE_FLAGS]
        for flags, code, message in (
            (["--input", batch.input], 2, "--output is missing"),
            (["--output", batch.output], 2, "--input is missing"),
            (["--input", batch.input, "--output", "-"], 2, "--output is -; allowed: a file"),
            (["--input", batch.input.parent, "--output", batch.output], 1, "allowed: a regular"),
            (["--input", batch.input, "--output", batch.input], 2, "--output is the file of"),
            (["--input", "/nothing", "--output", batch.output], 1, "/nothing: no such file"),
            (["--input", batch.input, "--output", tiny_model.directory() / "config.json"], 1,
             "line 1 is no answer of run-batch")):
            with self.subTest(message):
                done = subprocess.run([*run, *flags], capture_output=True, text=True,
                                      timeout=LIMIT_S)
                self.assertEqual(done.returncode, code)
                self.assertIn(message, done.stderr)


class EndsTest(unittest.TestCase):
    REQUESTS = [completion(number, 3 + 5 * (number % 7)) for number in range(40)]
    FLAGS = ("--max-num-seqs", 4)

    @classmethod
    def setUpClass(cls):
        undisturbed = Batch(cls.REQUESTS)
        assert undisturbed.run(*cls.FLAGS) == 0, undisturbed.stderr()
        cls.expected = undisturbed.bodies()
        assert len(cls.expected) == len(cls.REQUESTS)

    def step_until(self, batch: Batch, lines: int) -> None:
        """Lets one step after another begin until the output has that many lines. A step can end
        as many requests as run."""
        def has_lines() -> bool:
            if batch.num_lines() >= lines:
                return True
            batch.allow(1)
            return False
        eventually(has_lines, f"{lines} answers")

    def test_kills_lose_no_request_and_repeat_none(self):
        batch = Batch(self.REQUESTS)
        for lines in (0, 1, 2, 9, 25, 30):
            process = batch.start_gated(*self.FLAGS)
            eventually(batch.output.exists, "the output is open")
            self.step_until(batch, lines)
            process.send_signal(signal.SIGKILL)
            self.assertEqual(process.wait(LIMIT_S), -signal.SIGKILL)
        self.assertEqual(batch.run(*self.FLAGS), 0, batch.stderr())
        self.assertEqual(batch.bodies(), self.expected)

    def test_unfinished_last_line_is_removed_and_its_request_runs_again(self):
        batch = Batch(self.REQUESTS)
        self.assertEqual(batch.run(*self.FLAGS), 0, batch.stderr())
        whole = batch.output.read_bytes()
        last = len(whole.rstrip(b"\n").rpartition(b"\n")[2])
        for missing in (1, last // 2, last):
            batch.output.write_bytes(whole[:-missing])
            self.assertEqual(batch.run(*self.FLAGS), 0, batch.stderr())
            self.assertIn("unfinished_answer_removed", batch.stderr())
            self.assertIn("1 answered (0 errors), 39 answered before", batch.stderr())
            self.assertEqual(batch.bodies(), self.expected)

    def test_first_signal_waits_for_running_requests_and_the_second_does_not(self):
        batch = Batch(self.REQUESTS)
        process = batch.start_gated(*self.FLAGS)
        self.step_until(batch, 3)
        process.send_signal(signal.SIGTERM)
        eventually(lambda: "a second signal ends at once" in batch.stderr(), "the signal is seen")
        batch.allow(-1)
        self.assertEqual(process.wait(LIMIT_S), 1)
        self.assertIn("stopped by a signal; the same command continues", batch.stderr())
        # At most as many as were in flight, twice --max-num-seqs.
        self.assertLessEqual(batch.num_lines(), 3 + 4 + 8)

        process = batch.start_gated(*self.FLAGS)
        self.step_until(batch, batch.num_lines() + 1)
        process.send_signal(signal.SIGINT)
        eventually(lambda: "a second signal ends at once" in batch.stderr(), "the signal is seen")
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(LIMIT_S), -signal.SIGINT)
        self.assertEqual(batch.run(*self.FLAGS), 0, batch.stderr())
        self.assertEqual(batch.bodies(), self.expected)

    def test_second_run_on_one_output_is_refused(self):
        batch = Batch(self.REQUESTS)
        process = batch.start_gated(*self.FLAGS)
        self.step_until(batch, 1)
        other = subprocess.run([
            BINARY, "run-batch", tiny_model.directory(), "--input", batch.input, "--output",
            batch.output, *DEVICE_FLAGS
        ], capture_output=True, text=True, timeout=LIMIT_S)
        self.assertEqual(other.returncode, 1)
        self.assertIn("another run writes it", other.stderr)
        batch.allow(-1)
        self.assertEqual(process.wait(LIMIT_S), 0)
        self.assertEqual(batch.bodies(), self.expected)


@unittest.skipUnless(os.geteuid() == 0, "a small file system can only be mounted by root")
class FullDiskTest(unittest.TestCase):
    SIZE = 256 << 10

    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        options = f"size={self.SIZE}"
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", self.folder],
                                 capture_output=True, text=True)
        if mounted.returncode:
            self.skipTest(f"tmpfs cannot be mounted here: {mounted.stderr.strip()}")
        self.addCleanup(subprocess.run, ["umount", self.folder], check=True)
        self.filler = self.folder / "filler"

    def fill(self) -> None:
        """Leaves room for a few answers."""
        self.filler.write_bytes(b"x" * (self.SIZE - (16 << 10)))

    def test_run_waits_for_room_and_loses_nothing(self):
        batch = Batch(EndsTest.REQUESTS, self.folder)
        self.fill()
        process = batch.start("--max-num-seqs", 2)
        eventually(lambda: "disk_full" in batch.stderr(), "the full disk is logged")
        self.assertIsNone(process.poll())
        self.assertEqual(batch.output.read_bytes()[-1:], b"\n")
        self.filler.unlink()
        self.assertEqual(process.wait(LIMIT_S), 0)
        self.assertEqual(batch.stderr().count("disk_full"), 1)
        self.assertEqual(set(batch.bodies()), {sent["custom_id"] for sent in EndsTest.REQUESTS})

    def test_signal_ends_a_run_that_waits_for_room(self):
        batch = Batch(EndsTest.REQUESTS, self.folder)
        self.fill()
        process = batch.start("--max-num-seqs", 2)
        eventually(lambda: "disk_full" in batch.stderr(), "the full disk is logged")
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(LIMIT_S), 1)
        self.assertIn("complete answers are dropped and computed again", batch.stderr())
        self.filler.unlink()
        self.assertEqual(batch.run(), 0, batch.stderr())
        self.assertEqual(set(batch.bodies()), {sent["custom_id"] for sent in EndsTest.REQUESTS})


if __name__ == "__main__":
    unittest.main()
