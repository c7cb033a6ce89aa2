# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin that records the templates of Jinja2's own tests: each template in Jinja2's
usual syntax, with its variables if JSON can represent them. $RECORDED_TEMPLATES is the file."""

import json
import os
from pathlib import Path

from jinja2 import Environment, Template

USUAL = ("{%", "%}", "{{", "}}", "{#", "#}", None, None)
found: dict[tuple[str, str], None] = {}  # (template, variables as JSON), in their order
rendered: set[str] = set()
left_out: set[str] = set()
from_string, render = Environment.from_string, Template.render


def is_usual(env: Environment, source) -> bool:
    return isinstance(source, str) and USUAL == (
        env.block_start_string, env.block_end_string, env.variable_start_string,
        env.variable_end_string, env.comment_start_string, env.comment_end_string,
        env.line_statement_prefix, env.line_comment_prefix)


def noting_from_string(self, source, *args, **kwargs):
    if is_usual(self, source):
        found[source, "{}"] = None  # also one that does not compile
    template = from_string(self, source, *args, **kwargs)
    template.recorded_source = source if is_usual(self, source) else None
    return template


def noting_render(self, *args, **kwargs):
    source = getattr(self, "recorded_source", None)
    if source is not None:
        rendered.add(source)
        variables = dict(*args, **kwargs)
        try:
            written = json.dumps(variables)
            if json.loads(written) != variables:
                raise ValueError("JSON has no such values")
            found[source, written] = None
        except (TypeError, ValueError):
            left_out.add(source)
    return render(self, *args, **kwargs)


def pytest_configure(config):
    Environment.from_string, Template.render = noting_from_string, noting_render


def pytest_sessionfinish(session, exitstatus):
    kept = [(source, json.loads(variables)) for source, variables in found
            if variables != "{}" or source not in left_out]
    Path(os.environ["RECORDED_TEMPLATES"]).write_text(
        json.dumps({"cases": kept, "left_out": len(left_out)}))
