# SPDX-License-Identifier: Apache-2.0
"""`diffserve chat`: a conversation at a terminal and through pipes, with a local model and with a
server."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import tempfile
import termios
import threading
import unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import tiny_model
from server_process import BINARY, DEMO_MODEL, DEVICE, DEVICE_FLAGS, GATED_BINARY, ServerProcess
from terminal import Terminal

FACTS = "The magic number of Lisbon is 48213. The magic number of Oslo is 90417."
LISBON, OSLO = f"{FACTS} What is the magic number of Lisbon?", "What is the magic number of Oslo?"
LISBON_ANSWER = "The magic number of Lisbon is 48213."
OSLO_ANSWER = "The magic number of Oslo is 90417."
PROMPT, CTRL_A, CTRL_C, CTRL_D, BACKSPACE, LEFT, UP = (
    "> ", "\x01", "\x03", "\x04", "\x7f", "\x1b[D", "\x1b[A")


def chat(*arguments, lines: str = "") -> subprocess.CompletedProcess:
    return subprocess.run([BINARY, "chat", *map(str, arguments)], input=lines.encode(),
                          capture_output=True, timeout=120)


class StandInServer:
    """Speaks OpenAI's API: answers each conversation with the next text of `answers` and records
    what it received. HELD: sends one word and no end until the client is gone."""
    HELD = None

    def __init__(self, *answers):
        self.answers, self.asked, self.gone = list(answers), queue.Queue(), threading.Event()

    def __enter__(self):
        stand_in = self

        class Exchange(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):  # noqa: N802
                self.reply(json.dumps({"data": [{"id": "stand-in"}]}).encode())

            def do_POST(self):  # noqa: N802
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                answer = stand_in.answers.pop(0)
                if answer is StandInServer.HELD:
                    self.hold(body)
                    return
                stand_in.asked.put(body)
                self.reply(b"".join(map(self.event, (
                    {"choices": [{"delta": {"content": answer}, "finish_reason": None}]},
                    {"choices": [{"delta": {}, "finish_reason": "stop"}]}))) + b"data: [DONE]\n\n")

            def hold(self, body):
                self.send_response(200)
                self.end_headers()
                self.wfile.write(self.event({"choices": [{"delta": {"content": "held"}}]}))
                stand_in.asked.put(body)
                self.close_connection = True
                self.connection.settimeout(60)
                if self.rfile.read(1) == b"":
                    stand_in.gone.set()

            @staticmethod
            def event(chunk: dict) -> bytes:
                return b"data: " + json.dumps(chunk).encode() + b"\n\n"

            def reply(self, body: bytes):
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Exchange)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def last_message(self) -> str:
        return self.asked.get(timeout=60)["messages"][-1]["content"]


@contextlib.contextmanager
def at_terminal(*arguments, binary=BINARY, environment=None):
    with Terminal([binary, "chat", *arguments], environment) as terminal:
        terminal.until("/help lists the commands")
        terminal.until(PROMPT)
        yield terminal


class PipeTest(unittest.TestCase):
    def test_answers_depend_on_earlier_lines(self):
        lines = f"{LISBON}\n\n{OSLO}"  # empty lines are skipped; the last may lack its line feed
        expected = f"{LISBON_ANSWER}\n{OSLO_ANSWER}\n".encode()
        with ServerProcess(model=DEMO_MODEL) as server:
            for source in ((DEMO_MODEL, *DEVICE_FLAGS), ("--url", server.url),
                           ("--url", server.url + "/v1")):
                with self.subTest(source=source):
                    result = chat(*source, lines=lines)
                    self.assertEqual((result.returncode, result.stdout, result.stderr),
                                     (0, expected, b""))

    def test_sampled_answers_equal_the_servers(self):
        flags = ("--temperature", 1.5, "--top-k", 50, "--seed", 3, "--max-tokens", 40,
                 "--system", "Be brief.", "--ignore-eos")
        with ServerProcess() as server:
            at_server = chat("--url", server.url, *flags, lines="hello\nonce more\n")
        in_process = chat(tiny_model.directory(), *DEVICE_FLAGS, *flags,
                          lines="hello\nonce more\n")
        self.assertEqual((in_process.returncode, at_server.returncode), (0, 0), in_process.stderr)
        self.assertEqual(in_process.stdout, at_server.stdout)
        self.assertEqual(in_process.stderr.count(b"(cut off: --max-tokens"), 2)

    def test_commands_change_the_conversation(self):
        with StandInServer("1", "2", "3", "4") as server:
            result = chat("--url", server.url, "--system", "A", lines=(
                "one\n/system B\ntwo\n/reset\nthree\n/system\n /four\n"
                "/help\n/sytem x\n/quit\nfive\n"))
            asked = [[(m["role"], m["content"]) for m in server.asked.get(timeout=60)["messages"]]
                     for _ in range(4)]
        self.assertEqual(result.returncode, 0, result.stderr)
        user, assistant, system = "user", "assistant", "system"
        self.assertEqual(asked, [
            [(system, "A"), (user, "one")],
            [(system, "B"), (user, "one"), (assistant, "1"), (user, "two")],
            [(system, "B"), (user, "three")],
            [(user, "three"), (assistant, "3"), (user, " /four")]])
        self.assertEqual(result.stdout.splitlines()[:4], [b"1", b"2", b"3", b"4"])
        self.assertIn(b"/system TEXT", result.stdout)
        self.assertIn(b"/sytem is not a command: did you mean /system?", result.stderr)

    def test_failure_has_an_exit_code_and_a_reason(self):
        with ServerProcess() as server:
            too_long = chat("--url", server.url, lines="x" * 9000 + "\nnever asked\n")
        gone = chat("--url", server.url, lines="hello\n")
        for result, words in ((too_long, ("status 400", "8192")), (gone, ("Connection refused",)),
                              (chat(DEMO_MODEL / "none"), ("none",))):
            self.assertEqual((result.returncode, result.stdout.strip()), (1, b""), result.stderr)
            for word in words:
                self.assertIn(word, result.stderr.decode())

    def test_answer_that_ends_at_once_is_reported(self):
        with StandInServer("") as server:
            result = chat("--url", server.url, lines="hello\n")
        self.assertEqual((result.returncode, result.stdout), (0, b"\n"))
        self.assertIn(b"the answer ended at once", result.stderr)


class TerminalTest(unittest.TestCase):
    def test_lines_are_edited_in_utf8_and_remembered(self):
        with StandInServer("first", "second", "third") as server:
            with at_terminal("--url", server.url) as terminal:
                terminal.type("wörlx" + BACKSPACE + "d€" + LEFT + BACKSPACE + "ß" + CTRL_A
                              + "hello " + "\n")
                self.assertEqual(server.last_message(), "hello wörlß€")
                terminal.until("first\r\n")
                terminal.until(PROMPT)
                terminal.type(UP + "!\n")
                self.assertEqual(server.last_message(), "hello wörlß€!")
                terminal.until("second\r\n")
                terminal.until(PROMPT)
                terminal.type(UP + UP + "\n")
                self.assertEqual(server.last_message(), "hello wörlß€")
                terminal.until("third\r\n")
                terminal.until(PROMPT)
                terminal.type(CTRL_D)
                self.assertEqual(terminal.end()[0], 0)

    def test_ctrl_c_clears_the_line_and_twice_it_ends(self):
        with StandInServer("answer") as server:
            with at_terminal("--url", server.url) as terminal:
                terminal.type("not to be sent" + CTRL_C)
                terminal.until("Ctrl-C again ends")
                terminal.until(PROMPT)
                terminal.type("sent\n")
                self.assertEqual(server.last_message(), "sent")
                terminal.until("answer\r\n")
                terminal.until(PROMPT)
                terminal.type(CTRL_C)
                terminal.until("Ctrl-C again ends")
                terminal.until(PROMPT)
                terminal.type(CTRL_C)
                self.assertEqual(terminal.end()[0], 0)

    def test_ctrl_c_stops_an_answer_of_a_server_and_not_the_program(self):
        with StandInServer(StandInServer.HELD, "answer") as server:
            with at_terminal("--url", server.url) as terminal:
                terminal.type("first\n")
                self.assertEqual(server.last_message(), "first")
                terminal.until("held")
                terminal.type(CTRL_C)
                terminal.until("(stopped)")
                self.assertTrue(server.gone.wait(60), "the server sees that its client is gone")
                terminal.until(PROMPT)
                terminal.type("second\n")
                self.assertEqual([m["content"] for m in server.asked.get(timeout=60)["messages"]],
                                 ["first", "held", "second"])
                terminal.until("answer\r\n")
                terminal.until(PROMPT)
                terminal.type("/quit\n")
                self.assertEqual(terminal.end()[0], 0)

    def test_ctrl_c_stops_an_answer_of_the_model_while_a_step_is_held(self):
        with tempfile.TemporaryDirectory() as folder:
            gate = Path(folder) / "gate"
            gate.write_text("1 3")
            with at_terminal(DEMO_MODEL, *DEVICE_FLAGS, binary=GATED_BINARY,
                             environment={"DIFFSERVE_GATE": str(gate)}) as terminal:
                terminal.type(LISBON + "\n")
                terminal.until("\nThe")
                terminal.type(CTRL_C)
                terminal.until("(stopped)")
                terminal.until(PROMPT)
                new = gate.with_name("new")
                new.write_text("2 -1")
                new.rename(gate)
                terminal.type("/reset\n")
                terminal.until(PROMPT)
                terminal.type(LISBON + "\n")
                terminal.until(LISBON_ANSWER + "\r\n")
                terminal.until(PROMPT)
                terminal.type(CTRL_D)
                self.assertEqual(terminal.end()[0], 0)

    def test_sigterm_ends_it_and_leaves_the_terminal_as_it_was(self):
        with StandInServer() as server:
            with at_terminal("--url", server.url) as terminal:
                os.kill(terminal.process, signal.SIGTERM)
                self.assertEqual(terminal.end()[0], -signal.SIGTERM)
                settings = termios.tcgetattr(terminal.descriptor)
                self.assertTrue(settings[3] & termios.ICANON and settings[3] & termios.ECHO)
                self.assertEqual(settings[6][termios.VINTR], CTRL_C.encode())

    def test_control_characters_of_an_answer_are_shown_and_not_obeyed(self):
        hostile = "\x1b[2Jred\x07\x9b31m\u202eabc"
        with StandInServer(hostile, "end") as server:
            with at_terminal("--url", server.url) as terminal:
                terminal.type("hello\n")
                terminal.until("␛[2Jred␇\ufffd31m\ufffdabc\r\n")
                terminal.until(PROMPT)
        with StandInServer(hostile) as server:
            piped = chat("--url", server.url, lines="hello\n")
        self.assertEqual(piped.stdout.decode(), hostile + "\n")

    def test_failed_answer_is_reported_and_the_conversation_continues(self):
        with ServerProcess(model=DEMO_MODEL) as server:
            with at_terminal("--url", server.url) as terminal:
                terminal.type("/system " + "long " * 1400 + "\n")
                terminal.until("the system message is set")
                terminal.until(PROMPT)
                terminal.type("hello\n")
                terminal.until("(no answer: ")
                terminal.until(PROMPT)
                terminal.type("/system\n")
                terminal.until(PROMPT)
                terminal.type(LISBON + "\n")
                terminal.until(LISBON_ANSWER + "\r\n")


if __name__ == "__main__":
    unittest.main()
