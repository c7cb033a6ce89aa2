# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face hub on loopback, with TLS, whose answers a test can spoil.

    with HubStub({"acme/tiny": files}) as hub:
        hub.spoil("model.safetensors", broken_after(1000), status(503))

The next two requests for that file are answered so, all others as the hub does: small files
directly, large ones by a redirect to another host name, where the token must not be sent.
"""

import contextlib
import gzip
import hashlib
import http.server
import json
import shutil
import socket
import socketserver
import ssl
import subprocess
import tempfile
import threading
import urllib.parse
from pathlib import Path

LARGE_BYTES = 100_000  # from here on a file is large: it has a SHA-256
POLL_S = 0.01  # how soon a server ends


def commit_of(files: dict[str, bytes]) -> str:
    listed = [(name, etag_of(files[name])) for name in sorted(files)]
    return hashlib.sha1(repr(listed).encode()).hexdigest()


def etag_of(content: bytes) -> str:
    if len(content) >= LARGE_BYTES:
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def sibling(name: str, content: bytes) -> dict:
    entry = {"rfilename": name, "size": len(content), "blobId": etag_of(content)}
    if len(content) >= LARGE_BYTES:
        entry["blobId"] = hashlib.sha1(content).hexdigest()
        entry["lfs"] = {"sha256": etag_of(content), "size": len(content), "pointerSize": 134}
    return entry


# What spoils an answer: a function of the handler and the content.


def status(code: int, error: str = "", message: str = "", **headers):
    def answer(handler, _):
        if error:
            headers["X-Error-Code"] = error
        if message:
            headers["X-Error-Message"] = message
        handler.reply(code, b"", {name.replace("_", "-"): value for name, value in headers.items()})
    return answer


def broken_after(count: int):
    """The connection ends after `count` bytes of the body."""
    def answer(handler, content):
        handler.reply_part(content, until=handler.begin() + count)
        handler.close_connection = True
    return answer


def held_after(count: int, gate: threading.Event):
    """The body stops after `count` bytes until the gate opens."""
    def answer(handler, content):
        middle = handler.begin() + count
        with contextlib.suppress(OSError):  # the client may be killed meanwhile
            handler.reply_part(content, until=middle)
            handler.wfile.flush()
            gate.wait(60)
            handler.wfile.write(content[middle:])
    return answer


def length(claimed: int):
    """Content-Length says `claimed`, whatever comes."""
    def answer(handler, content):
        handler.reply(200, content, {"Content-Length": str(claimed)})
        handler.close_connection = True
    return answer


def content(other: bytes, code: int = 200, **headers):
    def answer(handler, _):
        handler.reply(code, other,
                      {name.replace("_", "-"): value
                       for name, value in headers.items()})
    return answer


def whole(handler, content):
    """The whole file with 200, whatever range is asked for."""
    handler.reply(200, content)


def gzipped(handler, content):
    """In a coding that was not asked for."""
    handler.reply(200, gzip.compress(content), {"Content-Encoding": "gzip"})


def dribbled(text: bytes, end: threading.Event):
    """These bytes of an answer, then one more of them every tenth of a second."""
    def answer(handler, _):
        handler.close_connection = True
        with contextlib.suppress(OSError):
            handler.wfile.write(text)
            while not end.wait(0.1):
                handler.wfile.write(text[-1:])
    return answer


def flooded(text: bytes, piece: bytes):
    """These bytes of an answer, then the piece again and again."""
    def answer(handler, _):
        handler.close_connection = True
        with contextlib.suppress(OSError):
            handler.wfile.write(text)
            while True:
                handler.wfile.write(piece)
    return answer


def moved_to(location: str):
    return status(302, Location=location)


class HubConnection(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def begin(self) -> int:
        asked = self.headers.get("Range", "bytes=0-")
        return int(asked.removeprefix("bytes=").partition("-")[0])

    def reply(self, code: int, body: bytes, headers: dict | None = None):
        self.send_response(code)
        for name, value in ({"Content-Length": str(len(body))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def reply_part(self, content: bytes, until: int | None = None):
        """As a hub does, from the byte asked for on; the body may end before its length."""
        begin, headers = self.begin(), {}
        if begin:
            headers["Content-Range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
        headers["Content-Length"] = str(len(content) - begin)
        self.reply(206 if begin else 200, content[begin:until], headers)

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        hub = self.server.hub
        path = urllib.parse.urlsplit(self.path).path
        parts = [urllib.parse.unquote(part) for part in path.strip("/").split("/")]
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            if parts[0] == "cdn":
                self.answer(parts[2], hub.files[parts[1]][parts[2]], self.reply_part)
            elif parts[:2] == ["api", "models"]:
                self.api("/".join(parts[2:4]), parts[4:])
            else:
                self.resolve("/".join(parts[:2]), parts[3], "/".join(parts[4:]))

    def answer(self, name, content, otherwise):
        """By the next spoiled answer of this name, if there is one."""
        hub = self.server.hub
        with hub.lock:
            hub.requests.append((self.command, name, self.headers.get("Host", ""),
                                 dict(self.headers)))
            spoiled = hub.spoiled.get((self.command, name))
            spoil = spoiled.pop(0) if spoiled else None
        spoil(self, content) if spoil else otherwise(content)

    def api(self, repository, rest):
        hub = self.server.hub
        if repository not in hub.repositories:
            return self.answer("api", b"", lambda _: status(404, "RepoNotFound")(self, b""))
        files = hub.repositories[repository]
        commit = commit_of(files)
        if rest[0] == "tree":
            listed = [{"type": "file", "path": entry["rfilename"], "oid": entry["blobId"],
                       "size": entry["size"]} |
                      ({"lfs": {"oid": entry["lfs"]["sha256"], "size": entry["size"],
                                "pointerSize": 134}} if "lfs" in entry else {})
                      for entry in (sibling(*file) for file in files.items())]
        else:
            if rest[1:] not in (["main"], [commit], ["refs/pr/1"]):
                return self.answer("api", b"", lambda _: status(404, "RevisionNotFound")(self, b""))
            siblings = [sibling(*file) for file in files.items()] if hub.lists_sizes else [
                {"rfilename": name} for name in files]
            listed = {"id": repository, "sha": commit, "gated": False, "siblings": siblings}
        body = json.dumps(listed).encode()
        self.answer("api", body,
                    lambda body: self.reply(200, body, {"Content-Type": "application/json"}))

    def resolve(self, repository, revision, name):
        hub = self.server.hub
        files = hub.repositories.get(repository, {})
        if name not in files:
            return status(404, "EntryNotFound", X_Repo_Commit=commit_of(files))(self, b"")
        content = files[name]
        hub.files[commit_of(files)] = files
        facts = {"X-Repo-Commit": commit_of(files), "ETag": f'"{etag_of(content)}"'}

        def served(content):
            if len(content) < LARGE_BYTES:
                return self.reply(200, content, facts)
            self.reply(302, b"", facts | {
                "X-Linked-Etag": f'"{etag_of(content)}"', "X-Linked-Size": str(len(content)),
                "Location": f"{hub.cdn}/cdn/{commit_of(files)}/{name}"})
        self.answer("redirect" if len(content) >= LARGE_BYTES else name, content, served)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads, request_queue_size = True, 64

    def handle_error(self, *_):
        pass  # clients that are killed, or refuse the certificate


class Proxy(socketserver.ThreadingTCPServer):
    """Tunnels what CONNECT asks for; `places` are the hosts and ports."""
    daemon_threads = True

    class Tunnel(socketserver.StreamRequestHandler):
        def handle(self):
            place = self.rfile.readline().decode().split()[1]
            while self.rfile.readline().strip():
                pass
            self.server.places.append(place)
            with socket.create_connection(place.rsplit(":", 1)) as other:
                self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                back = threading.Thread(target=self.copy, args=(other, self.connection))
                back.start()
                self.copy(self.connection, other)
                back.join()

        @staticmethod
        def copy(source, target):
            with contextlib.suppress(OSError):
                while data := source.recv(1 << 16):
                    target.sendall(data)
                target.shutdown(socket.SHUT_WR)

    def __init__(self):
        super().__init__(("127.0.0.1", 0), self.Tunnel)
        self.places = []
        self.address = f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self.serve_forever, args=(POLL_S,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()


class HubStub:
    def __init__(self, repositories: dict[str, dict[str, bytes]], tls: bool = True):
        self.repositories, self.files = repositories, {}
        self.lists_sizes = True  # mirrors do not
        self.spoiled, self.requests, self.lock = {}, [], threading.Lock()
        self._folder = Path(tempfile.mkdtemp(prefix="diffserve-hub-"))
        self.server = Server(("127.0.0.1", 0), HubConnection)
        self.server.hub = self
        self.certificate = self._folder / "certificate.pem"
        scheme, port = "http", self.server.server_port
        if tls:
            scheme = "https"
            self._use_tls()
        self.endpoint = f"{scheme}://localhost:{port}"
        self.cdn = f"{scheme}://127.0.0.1:{port}"  # another host

    def _use_tls(self):
        key = self._folder / "key.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                        "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj",
                        "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
                        "-keyout", key, "-out", self.certificate], check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, key)
        # The handshake belongs to the connection's own thread.
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True,
                                                 do_handshake_on_connect=False)

    def __enter__(self):
        self._thread = threading.Thread(target=self.server.serve_forever, args=(POLL_S,),
                                        daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()
        shutil.rmtree(self._folder, ignore_errors=True)

    def spoil(self, name: str, *answers, method: str = "GET") -> None:
        """The next requests for the file of this name, or "api", are answered so, in order."""
        with self.lock:
            self.spoiled[method, name] = list(answers)

    def asked(self, name: str, method: str = "GET") -> list[dict]:
        """The headers of the requests for this file, "api", or "redirect"."""
        with self.lock:
            return [headers for asked_by, asked, _, headers in self.requests
                    if (asked_by, asked) == (method, name)]
