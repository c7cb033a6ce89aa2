# SPDX-License-Identifier: Apache-2.0
"""The one exception of the package."""

from __future__ import annotations

from typing import Optional


class DiffserveError(Exception):
    """What the server refused or why it could not be reached, in its own words."""

    def __init__(self, message: str, status: Optional[int] = None, param: Optional[str] = None):
        super().__init__(message if status is None else f"{message} (status {status})")
        self.message = message
        self.status = status  # of HTTP; None: there was no answer
        self.param = param  # the field of the request that is wrong, if the server names one
