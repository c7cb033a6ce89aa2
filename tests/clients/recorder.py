# SPDX-License-Identifier: Apache-2.0
"""A proxy in front of a server that writes each exchange to a file, a JSON object per line.

    recorder = Recorder("http://127.0.0.1:8000", path)    # then recorder.url
"""

import http.client
import http.server
import json
import threading
import urllib.parse

PASSED_ON = {"connection", "keep-alive", "transfer-encoding", "content-length", "host"}


class Recorder:
    def __init__(self, upstream, path):
        self.upstream, self.path = urllib.parse.urlsplit(upstream), path
        self.lock = threading.Lock()
        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self.relay_class())
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def write(self, **exchange):
        with self.lock, open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(exchange, ensure_ascii=False) + "\n")

    def relay_class(recorder):
        class Relay(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def relay(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                upstream = http.client.HTTPConnection(recorder.upstream.hostname,
                                                      recorder.upstream.port, timeout=120)
                sent = {k: v for k, v in self.headers.items() if k.lower() not in PASSED_ON}
                upstream.request(self.command, self.path, body or None, sent)
                reply = upstream.getresponse()
                self.send_response(reply.status)
                for name, value in reply.getheaders():
                    if name.lower() not in PASSED_ON:
                        self.send_header(name, value)
                self.send_header("Connection", "close")
                self.end_headers()
                self.close_connection = True
                got = b""
                try:
                    while piece := reply.read1(65536):
                        got += piece
                        self.wfile.write(piece)
                        self.wfile.flush()
                except (BrokenPipeError, ConnectionResetError):
                    pass
                finally:
                    upstream.close()
                    recorder.write(method=self.command, path=self.path, headers=sent,
                                   request=body.decode("utf-8", "replace"), status=reply.status,
                                   reply_headers=dict(reply.getheaders()),
                                   reply=got.decode("utf-8", "replace"))

            do_GET = do_POST = do_DELETE = do_PUT = do_OPTIONS = do_HEAD = relay

        return Relay
