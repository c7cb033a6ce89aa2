# SPDX-License-Identifier: Apache-2.0
"""Comments in a stream that is silent for longer than --sse-ping-interval."""

import http.client
import json
import unittest

from server_process import GatedServer

PING = b": ping\n"


def begin_stream(server) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    body = {"prompt": "hello", "max_tokens": 12, "ignore_eos": True, "temperature": 0,
            "return_token_ids": True, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(body))
    return connection.getresponse()


class PingTest(unittest.TestCase):
    def test_silent_stream_is_pinged_and_continues(self):
        with GatedServer("--sse-ping-interval", 1) as server:
            server.allow(2)  # the prompt's step and one more: the stream begins, then it is silent
            response = begin_stream(server)
            lines = []
            while lines[-1:] != [PING]:
                lines.append(response.readline())
            server.open_gate()
            lines += response.readlines()
            data = [line[6:] for line in lines if line.startswith(b"data: ")]
            self.assertEqual(data[-1], b"[DONE]\n")
            choices = [json.loads(line)["choices"][0] for line in data[:-1]]
            tokens = [token for choice in choices for token in choice.get("token_ids", [])]
            self.assertEqual(len(tokens), 12)
            self.assertTrue(all(line in (b"\n", PING) or line.startswith(b"data: ")
                                for line in lines))


if __name__ == "__main__":
    unittest.main()
