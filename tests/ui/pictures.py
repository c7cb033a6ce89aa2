# SPDX-License-Identifier: Apache-2.0
"""Pictures of the page. Those that README and docs/page.md show are taken by each run, and
tests/ui/run.py --write-pictures keeps them in the tree. Those of the other states are for eyes, in
build/page."""

import os
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
MAX_BYTES = 200_000
STATES = FOLDER.parents[1] / "build" / "page"
WRITE = "DIFFSERVE_WRITE_PICTURES"
PNG = b"\x89PNG\r\n\x1a\n"


def keep_picture(page, name: str) -> None:
    taken, path = page.driver.get_screenshot_as_png(), FOLDER / f"{name}.png"
    if os.environ.get(WRITE):
        path.write_bytes(taken)
    for bytes_ in (taken, path.read_bytes()):
        if not bytes_.startswith(PNG) or len(bytes_) >= MAX_BYTES:
            raise AssertionError(f"{name}.png: a PNG of less than {MAX_BYTES} bytes is wanted, "
                                 f"this one has {len(bytes_)}")


def keep_state(page, name: str) -> None:
    STATES.mkdir(parents=True, exist_ok=True)
    (STATES / f"{name}.png").write_bytes(page.driver.get_screenshot_as_png())
