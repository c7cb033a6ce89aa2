#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes docs/openapi.yaml from the route and field tables in the server's source and from
docs/openapi_fields.yaml, which adds types, ranges, statuses and replies. docs/openapi.json, which
the server serves, is the same.

Usage: .venv/bin/python docs/make_openapi.py [--check]. A route or a field that only one side has is
an error. --check writes nothing; exit code 1 if the page differs.
"""

import json
import re
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
PAGE, SERVED = ROOT / "docs/openapi.yaml", ROOT / "docs/openapi.json"
FIELDS = ROOT / "docs/openapi_fields.yaml"
SERVER = ROOT / "server/api"
NOTE = "# Made by docs/make_openapi.py; edit docs/openapi_fields.yaml instead.\n"
FAULTS = []


def routes():
    """(method, path) of each row of the APIs' route tables; prefixes end in a parameter."""
    paths = []
    for name in re.findall(r'#include "server/api/(\w+/routes)\.h"',
                           (SERVER / "apis.cc").read_text()):
        text = (SERVER / f"{name}.cc").read_text()
        constants = dict(re.findall(r'string_view (k\w+) = ("[^"]*");', text))
        rows = re.findall(r'\{"(GET|POST|DELETE|PUT|PATCH)",\s+("[^"]+"|k\w+)', text)
        if not rows or len(rows) != len(re.findall(r'"[A-Z]{3,}"', text)):
            FAULTS.append(f"{name}.cc: a row of its routes cannot be read")
        paths += [(method.lower(), constants.get(path, path).strip('"')) for method, path in rows]
    prefixes = {"/v1/models/": "/v1/models/{id}", "/ui/": "/ui/{file}"}
    return [(method, prefixes.get(path, path)) for method, path in paths]


def tables():
    """{array of tables: its rows (name, use)} of the headers that have the members of requests."""
    rows, arrays = {}, {}
    for path in SERVER.glob("*/*.h"):
        text = path.read_text()
        for name, body in re.findall(r"constexpr MemberRow (k\w+)\[\] = \{(.*?)\};\n", text, re.S):
            rows[name] = [(member, use) for use, names in re.findall(
                r'\{(k\w+),((?:\s+"[^"]*")+)', body) for member in re.findall(r"\w+", names)]
        for name, body in re.findall(r"MemberTable (k\w+)\[\] = \{(.*?)\};\n", text, re.S):
            arrays[name] = re.findall(r"k\w+", body)
    return {name: [row for table in names for row in rows[table]]
            for name, names in arrays.items()}


def properties(route, overlay, own):
    """The schema of a request body: the members of its tables, with the types of the overlay."""
    schema = {"type": "object", "properties": {}}
    rows = tables().get(own["members"], [])
    if not rows:
        FAULTS.append(f"{route}: the server has no tables {own['members']}")
    for name, use in rows:
        field = own.get("fields", {}).get(name)
        if field is None and name in overlay["fields"]:
            field = {"$ref": f"#/components/schemas/field.{name}"}
        if use == "kIgnored":
            field = {"$ref": "#/components/schemas/passed_over"}
        if use == "kServed" and field is None:
            FAULTS.append(f"{route}: {name} has no entry in {FIELDS.name}")
        if use != "kRefused":
            schema["properties"][name] = field
    for name in own.get("fields", {}):
        if name not in schema["properties"]:
            FAULTS.append(f"{route}: {name} is in no table of the server")
    refused = [name for name, use in rows if use == "kRefused"]
    if refused:
        schema["x-refused"] = refused
    for key in ("required", "anyOf", "oneOf", "example"):
        if key in own:
            schema[key] = own[key]
    return schema


def replies(route, overlay, own):
    """The replies by status: those of this route, and the errors of its API."""
    out = {}
    for status, reply in own["replies"].items():
        contents = {}
        for content in reply if isinstance(reply, list) else [reply]:
            form, _, schema = content.partition(" ")
            # The schema of a stream would be taken for that of each event.
            contents[form] = {} if form == "text/event-stream" else {
                "schema": {"$ref": f"#/components/schemas/{schema}"} if schema else
                          {"type": "string"}}
        out[str(status)] = {"description": overlay["statuses"][status], "content": contents}
    for status in overlay["errors"]:
        name = f"{own.get('error', 'Error')}.{status}"
        out.setdefault(str(status), {"$ref": f"#/components/responses/{name}"})
    return out


def components(overlay):
    schemas = overlay["schemas"] | {"passed_over": {"description": "Accepted and passed over."}}
    schemas |= {f"field.{name}": field for name, field in overlay["fields"].items()}
    errors = {f"{form}.{status}": {
        "description": overlay["statuses"][status],
        "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{form}"}}}}
        for form in ("Error", "AnthropicError") for status in overlay["errors"]}
    return {"schemas": schemas, "responses": errors, "securitySchemes": overlay["security"]}


def operation(method, path, overlay, own):
    route = f"{method.upper()} {path}"
    out = {"summary": own["summary"], "tags": [own["tag"]],
           "operationId": re.sub(r"\W+", "_", f"{method} {path}").strip("_"),
           "responses": replies(route, overlay, own)}
    parameters = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"},
                   "example": own["path_example"]} for name in re.findall(r"\{(\w+)\}", path)]
    parameters += [{"name": name, "in": "query"} | query
                   for name, query in own.get("query", {}).items()]
    if parameters:
        out["parameters"] = parameters
    if "members" in own:
        out["requestBody"] = {"required": True, "content": {
            "application/json": {"schema": properties(route, overlay, own)}}}
    if own.get("key", True):
        out["security"] = [{"bearer": []}, {"api_key": []}, {}]
    return out


def page():
    overlay = yaml.safe_load(FIELDS.read_text())
    paths, rows = {}, routes()
    for method, path in rows:
        own = overlay["routes"].get(f"{method.upper()} {path}")
        if own is None:
            FAULTS.append(f"{method.upper()} {path}: the route has no entry in {FIELDS.name}")
        else:
            paths.setdefault(path, {})[method] = operation(method, path, overlay, own)
    for route in overlay["routes"]:
        method, path = route.split()
        if (method.lower(), path) not in rows:
            FAULTS.append(f"{route}: no route of the server")
    version = re.search(r"project\(diffserve VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text())
    return {"openapi": "3.1.0", "info": overlay["info"] | {"version": version.group(1)},
            "servers": overlay["servers"], "tags": overlay["tags"], "paths": paths,
            "components": components(overlay)}


class Dumper(yaml.SafeDumper):
    """Writes each use of a field out, without YAML's anchors."""

    def ignore_aliases(self, _):
        return True


def main():
    made = page()
    texts = {PAGE: NOTE + yaml.dump(made, Dumper=Dumper, sort_keys=False, width=80,
                                    allow_unicode=True),
             SERVED: json.dumps(made, indent=0, separators=(",", ":"), ensure_ascii=False) + "\n"}
    if not FAULTS and sys.argv[1:] == ["--check"]:
        FAULTS.extend(f"docs/{path.name} differs: run docs/make_openapi.py"
                      for path, text in texts.items()
                      if not path.is_file() or path.read_text() != text)
    for fault in FAULTS:
        print(f"docs/make_openapi.py: {fault}")
    if not FAULTS and sys.argv[1:] != ["--check"]:
        for path, text in texts.items():
            path.write_text(text)
    return 1 if FAULTS else 0


if __name__ == "__main__":
    sys.exit(main())
