# SPDX-License-Identifier: Apache-2.0
"""What is decided about a request before its route is the same for a server of one model and for
the parent of several."""

import itertools
import json
import re
import socket
import tempfile
import unittest

from models_server import NEEDED, ModelsServer
from server_process import ServerProcess, eventually
from test_several_models import tiny

ALLOWED, FOREIGN = "https://page.example", "http://evil.example"
# Fields of browsers, SELF being the server's own address.
PAGES = ("", f"Origin: {FOREIGN}", f"Origin: {ALLOWED}", "Origin: null", "Origin: http://SELF",
         "Origin: https://SELF", "Origin: http://127.0.0.1:1", "Origin: chrome-extension://abc",
         f"Origin: {FOREIGN}\r\nSec-Fetch-Site: cross-site", "Sec-Fetch-Site: same-site",
         "Origin: https://proxy.example\r\nSec-Fetch-Site: same-origin", "Sec-Fetch-Site: none")
TYPES = ("", "Content-Type:", "Content-Type: text/plain;charset=UTF-8",
         "Content-Type: text/plain; application/json", "content-type: multipart/form-data",
         "Content-Type: application/x-www-form-urlencoded", "Content-Type: application/jsonp",
         "CONTENT-TYPE: Application/JSON; charset=utf-8")
TARGETS = ("POST /v1/completions", "POST /v1/messages", "POST /reset_prefix_cache",
           "POST /v1/nowhere", "DELETE /v1/responses/resp_x", "HEAD /metrics", "GET /livez",
           "PUT /v1/chat/completions", "BREW /v1/responses/x", "OPTIONS /v1/models", "OPTIONS *",
           "CONNECT a:80")
HOSTS = ("Host: localhost", "Host: evil.example", "Host: 127.0.0.1.evil.example", "Host:",
         "Host: [::1]:80", "Host: 2130706433", "Host: a b", "")
OTHERS = (
    "Content-Encoding: br", "Content-Encoding: gzip", "X-Api-Key: wrong", "Authorization: Basic a",
    "X-Api-Key: key\r\nX-Api-Key: key", "Access-Control-Request-Method: POST", "Expect: 200-ok",
    "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "X-Diffserve-Client: " + "0" * 64 + ":key:0", "X: a\nb", "Transfer-Encoding: gzip",
    "A: " + "a" * 17000)
# Different on purpose: the ids of trace spans, and how long ago the reply was made.
UNEQUAL = {"date", "traceparent"}


def requests():
    """Request lines, each with further fields."""
    for target, page, content_type in itertools.product(TARGETS, PAGES, TYPES):
        yield target, f"Host: SELF\r\n{page}\r\n{content_type}"
    for target, host, other in itertools.product(TARGETS, HOSTS, ("", *OTHERS)):
        yield target, f"{host}\r\n{other}"


class Reply:
    def __init__(self, received: bytes):
        head, _, self.body = received.partition(b"\r\n\r\n")
        line, *fields = head.decode("latin-1").split("\r\n")
        self.status = int(line.split()[1])
        self.fields = sorted(tuple(field.split(": ", 1)) for field in fields)

    def comparable(self) -> tuple:
        """All of it; of a reply that was served only the status."""
        if self.status == 200:
            return (200,)
        fields = [(name, "" if name.lower() in UNEQUAL else value) for name, value in self.fields]
        return self.status, fields, self.body


def ask(server, target: str, fields: str = "", body: bytes = b"", key: str | None = None,
        version: str = "1.1", source: str = "127.0.0.1") -> Reply:
    lines = [f"{target} HTTP/{version}", "X-Request-Id: same", "Connection: close"]
    lines += [line for line in fields.split("\r\n") if line]
    if key is not None:
        lines.append(f"Authorization: Bearer {key}")
    if target.startswith("POST"):
        lines.append(f"Content-Length: {len(body)}")
    data = "\r\n".join(lines).replace("SELF", f"127.0.0.1:{server.port}").encode("latin-1")
    with socket.create_connection(("127.0.0.1", server.port), 30, (source, 0)) as connection:
        connection.sendall(data + b"\r\n\r\n" + body)
        received = bytearray()
        while part := connection.recv(1 << 16):
            received += part
    return Reply(bytes(received))


class FrontDoorTest(unittest.TestCase):
    def compare(self, *flags, key=None) -> None:
        with (ModelsServer({"tiny": tiny(pinned=True)}, *flags) as several,
              ServerProcess(*NEEDED, "--served-model-name", "tiny", *flags) as one):
            eventually(lambda: several.get("/readyz").status == 200, "the model is loaded")
            statuses = set()
            for target, fields in requests():
                routed, direct = (ask(s, target, fields, key=key) for s in (several, one))
                statuses.add(direct.status)
                self.assertEqual(routed.comparable(), direct.comparable(), (target, fields))
            self.assertTrue(statuses >= self.wanted, statuses)

    def test_without_keys(self):
        self.wanted = {200, 204, 400, 403, 404, 405, 415, 417, 421, 431, 501}
        self.compare()

    def test_with_an_allowed_origin(self):
        self.wanted = {200, 204, 400, 403, 404, 405, 415, 421}
        self.compare("--cors-origin", ALLOWED)

    def test_with_keys(self):
        with tempfile.NamedTemporaryFile("w") as keys:
            keys.write("key\nother\n")
            keys.flush()
            self.wanted = {200, 204, 400, 401}
            self.compare("--api-key-file", keys.name)
            self.wanted = {200, 204, 400, 403, 404, 405, 415}
            self.compare("--api-key-file", keys.name, key="key")

    def test_pages_of_other_origins_change_no_model(self):
        models = {"a": tiny(pinned=True), "b": tiny()}
        with ModelsServer(models, "--cors-origin", ALLOWED) as server:
            server.wait_for_state("a", "loaded")
            page = f"Host: SELF\r\nOrigin: {FOREIGN}"
            for path in ("/models/unload", "/models/load"):
                for fields, status in ((page, 403), (page + "\r\nContent-Type: text/plain", 415),
                                       ("Host: SELF\r\nSec-Fetch-Site: same-site", 403)):
                    reply = ask(server, f"POST {path}", fields, b'{"model": "a"}')
                    self.assertEqual(reply.status, status, (path, fields))
            # A page sends these for an image, without Origin. The model would be loaded.
            for target in ("GET /load?model=b", "HEAD /v1/responses/resp_x?model=b"):
                site = "Host: SELF\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors"
                self.assertEqual(ask(server, target, site).status, 403)
            self.assertEqual(ask(server, "GET /v1/models", site).status, 200)
            self.assertEqual(server.states(), {"a": "loaded", "b": "unloaded"})

    def test_the_page_itself_and_programs_act(self):
        with ModelsServer({"a": tiny()}) as server:
            for fields in ("", "Origin: http://SELF",
                           f"Content-Type: application/json\r\nOrigin: {FOREIGN}",
                           "Origin: https://a.example\r\nSec-Fetch-Site: same-origin"):
                reply = ask(server, "POST /models/load", f"Host: SELF\r\n{fields}",
                            b'{"model": "a"}')
                self.assertEqual((reply.status, json.loads(reply.body)), (200, {"success": True}))
                reply = ask(server, "POST /reset_prefix_cache", f"Host: SELF\r\n{fields}")
                self.assertEqual(reply.status, 200)

    def test_own_replies_of_the_parent_have_the_fields_and_the_log_lines_of_a_server(self):
        trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        with ModelsServer({"a": tiny()}, "--log-level", "debug") as server:
            for target in ("GET /metrics", "GET /v1/models", "GET /nowhere"):
                reply = ask(server, target, f"Host: SELF\r\ntraceparent: {trace}")
                fields = {name.lower(): value for name, value in reply.fields}
                self.assertEqual(fields["x-request-id"], "same", target)
                self.assertTrue(fields["traceparent"].startswith(trace[:36]), target)
            # Lines are written after their replies.
            wanted = [("/metrics", "200"), ("/v1/models", "200"), ("other", "404")]
            eventually(
                lambda: re.findall(r"traced_request .*route=(\S+) .*status=(\d+)",
                                   server.stderr()) == wanted, "a line for each request")
            eventually(lambda: "http_request route=other status=404 " in server.stderr(),
                       "the line of the unknown path")
