# SPDX-License-Identifier: Apache-2.0
"""The dashboards in deploy/grafana, and their expressions with values in place of Grafana's
variables."""

import json
import re
from dataclasses import dataclass

from server_process import REPOSITORY

GRAFANA = REPOSITORY / "deploy" / "grafana"


@dataclass(frozen=True)
class Target:
    board: str  # the file's name
    panel: str
    expression: str  # as in the file
    legend: str
    unit: str

    def __str__(self):
        return f"{self.board}, {self.panel}: {self.expression}"


def boards() -> dict[str, dict]:
    return {path.name: json.loads(path.read_text()) for path in sorted(GRAFANA.glob("*.json"))}


def targets(board: str, panel: dict) -> list[Target]:
    unit = panel["fieldConfig"]["defaults"].get("unit", "")
    return [
        Target(board, panel["title"], target["expr"], target.get("legendFormat", ""), unit)
        for target in panel["targets"]
    ]


def expand(expression: str, rate_interval: str, whole_range: str) -> str:
    """The expression for Prometheus, over every replica of every model."""
    values = {
        "__rate_interval": rate_interval, "__range": whole_range, "instance": ".*", "model": ".*"
    }
    return re.sub(r"\$(\w+)", lambda match: values[match[1]], expression)


def selectors(expression: str) -> set[str]:
    """The metrics that an expression reads, each with its matchers."""
    expression = re.sub(r"\b(by|without|on|ignoring|group_left|group_right) ?\([^)]*\)|\[[^]]*\]",
                        " ", expression)
    words = re.finditer(r"(?<![\w.:])([a-zA-Z_:][\w:]*)(?![\w:]|\s*\()(\{[^}]*\})?", expression)
    return {word[0] for word in words if word[1] not in ("bool", "and", "or", "unless", "offset")}
