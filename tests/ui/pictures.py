# SPDX-License-Identifier: Apache-2.0
"""Pictures of the page. Each run takes those that README and docs/page.md show, and compares them
with those in the tree; tests/ui/run.py --write-pictures writes them there. Those of the other
states are for eyes, in build/page."""

import io
import os
from pathlib import Path

from PIL import Image, ImageChops

FOLDER = Path(__file__).resolve().parent
MAX_BYTES = 200_000
STATES = FOLDER.parents[1] / "build" / "page"
WRITE = "DIFFSERVE_WRITE_PICTURES"
TILE = 50  # pixels; finer than this, fonts differ between machines
MAX_DIFFERENCE = 25  # of a tile's brightness, 0 to 255


def coarse(picture):
    size = [side // TILE for side in picture.size]
    return picture.convert("L").resize(size, Image.Resampling.BOX)


def keep_picture(page, name: str) -> None:
    taken, path = page.driver.get_screenshot_as_png(), FOLDER / f"{name}.png"
    if os.environ.get(WRITE):
        path.write_bytes(taken)
    for bytes_ in (taken, path.read_bytes()):
        if len(bytes_) >= MAX_BYTES:
            raise AssertionError(f"{name}.png has {len(bytes_)} bytes, at most {MAX_BYTES}")
    now, kept = Image.open(io.BytesIO(taken)), Image.open(path)
    if now.size != kept.size:
        raise AssertionError(f"{name}.png has {kept.size} pixels, the page now {now.size}")
    difference = ImageChops.difference(coarse(now), coarse(kept)).getextrema()[1]
    if difference > MAX_DIFFERENCE:
        raise AssertionError(f"{name}.png shows another page: a tile's brightness differs by "
                             f"{difference}, at most {MAX_DIFFERENCE}")


def keep_state(page, name: str) -> None:
    STATES.mkdir(parents=True, exist_ok=True)
    (STATES / f"{name}.png").write_bytes(page.driver.get_screenshot_as_png())
