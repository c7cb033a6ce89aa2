# SPDX-License-Identifier: Apache-2.0
"""HTTP to one server, over TCP, TLS or a Unix socket. Each request has a connection of its own, so
any thread may send one at any time."""

from __future__ import annotations

import http.client
import json
import socket
import time
from typing import Any, Callable, Dict, Iterator, Mapping, Optional
from urllib.parse import urlsplit

from .errors import DiffserveError

FORMS = "http://HOST:PORT, https://HOST[:PORT] or unix:PATH"
TRIES = 8  # of a request while the server has too much work; it says how long to wait


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: Optional[float]):
        super().__init__("localhost", timeout=timeout)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def connection_maker(url: str, timeout: Optional[float]) -> Callable[
        [], http.client.HTTPConnection]:
    """Makes connections to the server at `url`, whose path may be empty, / or /v1."""
    if url.startswith("unix:"):
        path = url[len("unix:"):]
        return lambda: UnixConnection(path, timeout)
    parts = urlsplit(url)
    host, port = parts.hostname, parts.port
    if host is None or parts.path not in ("", "/", "/v1", "/v1/"):
        raise ValueError(f"url is {url!r}; allowed: {FORMS}")
    if parts.scheme == "http":
        return lambda: http.client.HTTPConnection(host, port, timeout=timeout)
    if parts.scheme == "https":
        return lambda: http.client.HTTPSConnection(host, port, timeout=timeout)
    raise ValueError(f"url is {url!r}; allowed: {FORMS}")


def error_of(status: Optional[int], body: bytes) -> DiffserveError:
    """The error in a body of OpenAI's form, or the start of any other body."""
    try:
        error = json.loads(body)["error"]
        return DiffserveError(str(error["message"]), status, error.get("param"))
    except (ValueError, KeyError, TypeError, AttributeError):
        text = body[:500].decode(errors="replace").strip()
        return DiffserveError(text or "an error without a text", status)


class Transport:
    """`why_lost` gives the reason when the server cannot be reached, if it is known."""

    def __init__(self, url: str, api_key: Optional[str], timeout: Optional[float],
                 why_lost: Callable[[], Optional[DiffserveError]] = lambda: None):
        self.url = url
        self._connect = connection_maker(url, timeout)
        self._headers = {"Content-Type": "application/json"}
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._why_lost = why_lost

    def post(self, path: str, body: Mapping[str, Any]) -> Dict[str, Any]:
        """The reply to a body, as a JSON object."""
        connection = self._connect()
        try:
            answer = json.loads(self._send(connection, "POST", path, body).read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._lost(error) from error
        finally:
            connection.close()
        if not isinstance(answer, dict):
            raise DiffserveError(f"{self.url} answered {path} with something else than an object")
        return answer

    def events(self, path: str, body: Mapping[str, Any]) -> Iterator[Dict[str, Any]]:
        """The server-sent events of an answer. Closing the iterator ends the answer."""
        connection = self._connect()
        try:
            for line in self._send(connection, "POST", path, body):
                if not line.startswith(b"data: "):
                    continue
                data = line[len(b"data: "):].strip()
                if data == b"[DONE]":
                    return
                event = json.loads(data)
                if "error" in event:
                    raise error_of(None, data)
                yield event
            raise DiffserveError(f"the stream from {self.url} ended before its last event")
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._lost(error) from error
        finally:
            connection.close()

    def _send(self, connection: http.client.HTTPConnection, method: str, path: str,
              body: Mapping[str, Any]) -> http.client.HTTPResponse:
        """The response of status 200, whose body is not read yet."""
        text = json.dumps(body).encode()
        for tries_left in reversed(range(TRIES)):
            connection.request(method, path, text, self._headers)
            response = connection.getresponse()
            if response.status == 200:
                return response
            error = error_of(response.status, response.read())
            if response.status != 429 or tries_left == 0:
                raise error
            time.sleep(float(response.getheader("Retry-After") or 1))
        raise AssertionError("the last try returns or raises")

    def _lost(self, error: Exception) -> DiffserveError:
        return self._why_lost() or DiffserveError(
            f"no answer from {self.url}: {type(error).__name__}: {error}")
