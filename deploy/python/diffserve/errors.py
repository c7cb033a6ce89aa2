# SPDX-License-Identifier: Apache-2.0
"""The one exception of the package."""

from __future__ import annotations

from typing import Optional

PREFIX = "diffserve: "  # of the program's line that says why it ended


class DiffserveError(Exception):
    """What the server refused or why it could not be reached, in its own words."""

    def __init__(self, message: str, status: Optional[int] = None, param: Optional[str] = None,
                 log: str = ""):
        super().__init__(message if status is None else f"{message} (status {status})")
        self.message = message
        self.status = status  # of HTTP; None: there was no answer
        self.param = param  # the field of the request that is wrong, if the server names one
        self.log = log  # what the program wrote, if it ended


def of_ended(what: str, exit_code: int, log: str) -> DiffserveError:
    """With the program's last words: its own last line, else the last line of its log."""
    lines = log.strip().splitlines()
    own = [line[len(PREFIX):] for line in lines if line.startswith(PREFIX)]
    message = ": ".join([f"{what} (exit code {exit_code})", *(own or lines)[-1:]])
    return DiffserveError(message, log=log)
