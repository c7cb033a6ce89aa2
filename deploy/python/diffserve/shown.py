# SPDX-License-Identifier: Apache-2.0
"""Numbers as messages and reprs show them."""

from __future__ import annotations

from typing import Sequence


def few(numbers: Sequence[int]) -> str:
    """[0, 2], or 0..511 for a longer run, or the first ones and how many there are."""
    if len(numbers) <= 8:
        return str(list(numbers))
    if list(numbers) == list(range(numbers[0], numbers[0] + len(numbers))):
        return f"{numbers[0]}..{numbers[-1]}"
    return f"[{', '.join(map(str, numbers[:3]))}, ... {len(numbers)} in all]"
