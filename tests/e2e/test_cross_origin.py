# SPDX-License-Identifier: Apache-2.0
"""--cors-origin: a browser's preflight for a page of another origin, and the fields that each reply
needs."""

import subprocess
import tempfile
import unittest

from server_process import BINARY, ServerProcess

CHAT, PAGE, OTHER = "/v1/chat/completions", "https://chat.example.com", "https://evil.example.com"
BODY = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
PREFLIGHT = {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,x-stainless-lang"
}
ALLOWED = "access-control-allow-origin"


def preflight(server, path=CHAT, origin=PAGE, **more):
    return server.request("OPTIONS", path, headers={"Origin": origin} | PREFLIGHT | more)


class CrossOriginTest(unittest.TestCase):
    def test_without_the_flag_no_page_of_another_origin_is_answered(self):
        with ServerProcess() as server:
            response = preflight(server)
            self.assertEqual(response.status, 405)
            self.assertNotIn(ALLOWED, response.headers)
            self.assertNotIn(ALLOWED, server.post(CHAT, BODY, headers={"Origin": PAGE}).headers)

    def test_named_origin_is_answered_everywhere_also_where_a_key_is_needed(self):
        with tempfile.NamedTemporaryFile("w") as keys:
            keys.write("sk-key\n")
            keys.flush()
            with ServerProcess("--api-key-file", keys.name, "--cors-origin",
                               f"{PAGE},http://localhost:3000") as server:
                self.check_named(server)

    def check_named(self, server):
        key = {"Authorization": "Bearer sk-key"}
        for path in (CHAT, "/v1/messages", "/v1/models", "/v1/models/tiny", "/metrics", "/livez",
                     "/v1/responses/resp_1", "/nothing-here"):
            for origin in (PAGE, "http://localhost:3000"):
                with self.subTest(path=path, origin=origin):
                    response = preflight(server, path, origin)
                    self.assertEqual((response.status, response.body), (204, b""))
                    self.assertEqual(response.headers[ALLOWED], origin)
                    self.assertEqual(response.headers["access-control-allow-headers"],
                                     PREFLIGHT["Access-Control-Request-Headers"])
                    for method in ("GET", "POST", "DELETE"):
                        self.assertIn(method, response.headers["access-control-allow-methods"])
                    self.assertGreater(int(response.headers["access-control-max-age"]), 60)
                    self.assertNotIn("access-control-allow-credentials", response.headers)
        stream = {**BODY, "stream": True}
        for name, status, response in (
            ("answer", 200, server.post(CHAT, BODY, headers={"Origin": PAGE} | key)),
            ("stream", 200, server.post(CHAT, stream, headers={"Origin": PAGE} | key)),
            ("no key", 401, server.post(CHAT, BODY, headers={"Origin": PAGE})),
            ("bad body", 400, server.post(CHAT, b"{", headers={"Origin": PAGE} | key)),
            ("no path", 404, server.get("/no", headers={"Origin": PAGE} | key)),
            ("method", 405, server.get(CHAT, headers={"Origin": PAGE} | key)),
            ("type", 415, server.post(CHAT, b"x", headers={"Origin": PAGE,
                                                           "Content-Type": "text/plain"} | key)),
        ):
            with self.subTest(reply=name):
                self.assertEqual(response.status, status)
                self.assertEqual(response.headers[ALLOWED], PAGE)
                self.assertIn("X-Request-Id", response.headers["access-control-expose-headers"])
                self.assertIn("Origin", response.headers["vary"])
        for origin in (OTHER, "null", PAGE + ".evil.example.com", PAGE.upper()):
            with self.subTest(origin=origin):
                response = preflight(server, CHAT, origin)
                self.assertEqual(response.status, 401)
                self.assertNotIn(ALLOWED, response.headers)
                response = server.post(CHAT, BODY, headers={"Origin": origin} | key)
                self.assertEqual(response.status, 200)
                self.assertNotIn(ALLOWED, response.headers)
                self.assertEqual(response.headers["vary"], "Origin")

    def test_star_allows_all_origins_on_every_reply(self):
        with ServerProcess("--cors-origin", "*") as server:
            response = preflight(server, **{"Access-Control-Request-Private-Network": "true"})
            self.assertEqual((response.status, response.headers[ALLOWED]), (204, "*"))
            self.assertEqual(response.headers["access-control-allow-headers"],
                             PREFLIGHT["Access-Control-Request-Headers"])
            self.assertEqual(response.headers["access-control-allow-private-network"], "true")
            huge = server.request("POST", CHAT, b"", {"Content-Length": str(5 << 20)})
            for reply in (server.post(CHAT, BODY), server.get("/no"), huge):
                self.assertEqual(reply.headers[ALLOWED], "*")
            self.assertEqual(huge.status, 413)
            self.assertEqual(server.request("OPTIONS", CHAT).status, 405, "that is no preflight")

    def test_invalid_origin_is_refused_at_startup(self):
        for value in ("example.com", "https://a.example/", "https://a.example/x", "https://",
                      "HTTPS://a.example", "https://a.example,,*", "https://*.example", " *"):
            with self.subTest(value=value):
                done = subprocess.run([BINARY, "serve", "DIR", "--cors-origin", value],
                                      capture_output=True, text=True, timeout=60)
                self.assertEqual(done.returncode, 2)
                self.assertIn("--cors-origin names \"", done.stderr)
