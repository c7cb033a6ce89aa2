# SPDX-License-Identifier: Apache-2.0
"""Streams that are cut and resumed over another connection by Last-Event-ID."""

import http.client
import json
import socket
import struct
import unittest

from server_process import GatedServer, ServerProcess, eventually

COMPLETIONS = "/v1/completions"
BODY = {"prompt": "cut me off", "max_tokens": 60, "temperature": 0, "ignore_eos": True,
        "stream": True}
CHAT = {"messages": [{"role": "user", "content": "cut me off"}], "max_tokens": 60,
        "temperature": 0, "ignore_eos": True, "stream": True}
SOME_STEPS = 40  # a token that is half a character gives no event
RESUMABLE = {"X-Resumable": "true"}


def setUpModule():
    global server
    server = unittest.enterModuleContext(GatedServer("--resumable-streams-bytes", "8MiB"))


class Cut:
    """A stream over a raw socket that is reset after some of its events were read."""

    def __init__(self, to, path, body, events, reset):
        data = json.dumps(body).encode()
        head = (f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(data)}\r\nX-Resumable: true\r\n\r\n").encode()
        with socket.create_connection(("127.0.0.1", to.port), 60) as connection:
            connection.sendall(head + data)
            received = b""
            while received.count(b"\n\n") < events:
                received += connection.recv(65536)
            if reset:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        # Here chunks are whole events: each has the events of one turn of the server.
        lines = received.partition(b"\r\n\r\n")[2].decode().split("\r\n")
        stream = "".join(line for line in lines if "\n" in line)
        self.events = stream.split("\n\n")[:events]
        self.last_id = event_id(self.events[-1])


def event_id(event: str) -> str:
    first, _, _ = event.partition("\n")
    assert first.startswith("id: "), event
    return first.removeprefix("id: ")


def text_of(events) -> str:
    chunks = [json.loads(line.removeprefix("data: ")) for event in events
              for line in event.split("\n") if line.startswith("data: {")]
    choices = [chunk["choices"][0] for chunk in chunks]
    return "".join(choice["text"] if "text" in choice else choice["delta"].get("content") or ""
                   for choice in choices)


def resume(to, path, last_id):
    connection = http.client.HTTPConnection("127.0.0.1", to.port, timeout=60)
    connection.request("POST", path, headers={"Last-Event-ID": last_id})
    return connection.getresponse()


def fates(of, fate: str) -> float:
    return of.metric("diffserve_resumable_streams_total", fate=fate)


def events_of(response) -> list[str]:
    text = response.read().decode()
    assert text.endswith("\n\n"), text[-80:]
    return [event for event in text.split("\n\n") if event and not event.startswith(":")]


class ResumeTest(unittest.TestCase):
    def setUp(self):
        self.addCleanup(server.wait_until_idle)
        self.addCleanup(server.open_gate)

    def test_cut_stream_resumes_to_the_same_text(self):
        for path, body in ((COMPLETIONS, BODY), ("/v1/chat/completions", CHAT)):
            whole = events_of_uncut(path, body)
            for reset in (False, True):
                with self.subTest(path=path, reset=reset):
                    server.allow(SOME_STEPS)
                    cut = Cut(server, path, body, 4, reset)
                    response = resume(server, path, cut.last_id)
                    self.assertEqual(response.status, 200)
                    self.assertEqual(response.headers["Content-Type"],
                                     "text/event-stream; charset=utf-8")
                    server.open_gate()
                    rest = events_of(response)
                    stream, number = cut.last_id.split(":")
                    self.assertEqual([event_id(event) for event in rest],
                                     [f"{stream}:{int(number) + 1 + i}" for i in range(len(rest))])
                    self.assertTrue(rest[-1].endswith("data: [DONE]"))
                    self.assertEqual(text_of(cut.events + rest), text_of(whole))
                    self.assertEqual(resume(server, path, event_id(rest[-1])).status, 204)

    def test_resumed_stream_can_be_cut_and_resumed_again(self):
        server.allow(SOME_STEPS)
        resumed = fates(server, "resumed")
        cut = Cut(server, COMPLETIONS, BODY, 2, reset=True)
        first = cut.last_id
        for _ in range(3):
            response = resume(server, COMPLETIONS, first)
            self.assertEqual(response.status, 200)
            response.close()
        response = resume(server, COMPLETIONS, first)
        server.open_gate()
        self.assertEqual(text_of(cut.events + events_of(response)),
                         text_of(events_of_uncut(COMPLETIONS, BODY)))
        self.assertEqual(fates(server, "resumed"), resumed + 4)

    def test_missing_resources_are_errors(self):
        for last_id in ("nothing:1", "nonsense"):
            response = resume(server, COMPLETIONS, last_id)
            self.assertEqual(response.status, 404)
            self.assertIn("Last-Event-ID", json.loads(response.read())["error"]["message"])

    def test_without_the_field_a_client_that_leaves_cancels(self):
        server.allow(SOME_STEPS)
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        connection.request("POST", COMPLETIONS, json.dumps(BODY),
                           {"Content-Type": "application/json"})
        response = connection.getresponse()
        self.assertTrue(response.readline().startswith(b"data: "))
        response.close()
        connection.close()
        server.open_gate()
        server.wait_until_idle()


def events_of_uncut(path, body) -> list[str]:
    with ServerProcess() as plain:
        response = plain.post(path, body)
    return [event for event in response.body.decode().split("\n\n") if event]


class LimitsTest(unittest.TestCase):
    def test_abandoned_stream_is_cancelled(self):
        with GatedServer("--resumable-streams-bytes", "1MiB", "--resumable-streams-linger",
                         1) as small:
            small.allow(SOME_STEPS)
            cut = Cut(small, COMPLETIONS, BODY | {"max_tokens": 4000}, 2, reset=True)
            eventually(lambda: fates(small, "expired") == 1, "the stream is given up")
            self.assertEqual(resume(small, COMPLETIONS, cut.last_id).status, 404)
            small.open_gate()
            small.wait_until_idle()

    def test_server_without_resumable_streams_says_so(self):
        with ServerProcess() as plain:
            refused = plain.post(COMPLETIONS, BODY, headers=RESUMABLE)
        self.assertEqual(refused.status, 400)
        self.assertIn("--resumable-streams-bytes", refused.error["message"])


if __name__ == "__main__":
    unittest.main()
