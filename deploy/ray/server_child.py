# SPDX-License-Identifier: Apache-2.0
"""A `diffserve serve` that another process owns: started on free ports of the loopback interface,
drained by stop(), and ended with its owner, however that ends."""

import collections
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence

READY = re.compile(r"ready http=(\S+) grpc=\S+ model=(\S+)\n")
LAST_LINES = 20  # of the log, for the error of a server that does not start


class ServerChild:
    """A ready server at `url`, whose model is called `name`.

    Flags are those of `diffserve serve`. The program is `binary`, or what DIFFSERVE_BINARY names,
    or `diffserve` on the PATH. Its log goes on to stderr.
    """
    def __init__(self, model: str, flags: Sequence[str] = (), binary: str | None = None):
        program = binary or os.environ.get("DIFFSERVE_BINARY", "diffserve")
        # The kernel sends SIGTERM to the server if the thread that starts it ends without stop().
        command = ["setpriv", "--pdeathsig", "TERM", program, "serve", model,
                   "--port", "0", "--grpc-port", "0", *flags]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self._log: collections.deque[str] = collections.deque(maxlen=LAST_LINES)
        self._reader = threading.Thread(target=self._pass_log, daemon=True)
        self._reader.start()
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        ready = READY.fullmatch(line)
        if not ready:
            self.process.kill()
            code = self.process.wait()
            self._reader.join()
            raise RuntimeError(f"{program} serve {model} ended with code {code} and no ready line "
                               f"but {line!r}; its log ends:\n{''.join(self._log)}")
        self.url, self.name = f"http://{ready[1]}", ready[2]
        self._stopped = False

    def _pass_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._log.append(line)
            sys.stderr.write(line)

    def when_lost(self, action: Callable[[], None]) -> None:
        """Calls `action` in a thread of its own if the server ends without stop()."""
        def watch() -> None:
            self.process.wait()
            if not self._stopped:
                action()
        threading.Thread(target=watch, daemon=True).start()

    def stop(self) -> int:
        """SIGTERM: the server finishes what runs, within its --drain-timeout. Returns the exit
        code."""
        self._stopped = True
        self.process.terminate()
        return self.process.wait()
