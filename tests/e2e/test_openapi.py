# SPDX-License-Identifier: Apache-2.0
"""docs/openapi.yaml is valid and describes the running server; clients driven by it find no
undocumented reply."""

import http.client
import json
import subprocess
import sys
import unittest

import hypothesis
import schemathesis
import yaml
from openapi_spec_validator import validate
from schemathesis import GenerationMode, checks

from server_process import DEMO_MODEL, REPOSITORY, ServerProcess

EXAMPLES = 20  # requests per operation, half of them against their schema
CHECKS = [checks.not_a_server_error, checks.status_code_conformance,
          checks.content_type_conformance, checks.response_schema_conformance]
METHODS = ("get", "post", "put", "delete", "patch")


def setUpModule():
    global server, spec
    spec = yaml.safe_load((REPOSITORY / "docs/openapi.yaml").read_text())
    server = unittest.enterModuleContext(ServerProcess("--served-model-name", "diff",
                                                       model=DEMO_MODEL))


def operations():
    for path, item in spec["paths"].items():
        for method, operation in item.items():
            yield method, path, operation


def status_of(where: ServerProcess, method: str, path: str, body=None) -> tuple[int, str, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", where.port, timeout=60)
    connection.request(method.upper(), path, None if body is None else json.dumps(body),
                       {"Content-Type": "application/json"})
    reply = connection.getresponse()
    found = reply.status, reply.getheader("Allow", ""), reply.read()
    connection.close()
    return found


def filled(path: str, operation: dict) -> str:
    for parameter in operation.get("parameters", []):
        path = path.replace("{" + parameter["name"] + "}", parameter.get("example", ""))
    return path


class OpenApiTest(unittest.TestCase):
    def test_file_is_made_from_the_tables(self):
        made = subprocess.run([sys.executable, REPOSITORY / "docs/make_openapi.py", "--check"],
                              capture_output=True, text=True)
        self.assertEqual((made.returncode, made.stdout), (0, ""))

    def test_server_serves_it(self):
        served = server.get("/openapi.json")
        self.assertEqual(served.headers["content-type"], "application/json")
        self.assertEqual(served.json(), spec)

    def test_validator_accepts_it(self):
        self.assertIsNone(validate(spec), "it raises what it finds")

    def test_server_has_these_methods(self):
        for path, item in spec["paths"].items():
            with self.subTest(path=path):
                place = filled(path, next(iter(item.values())))
                status, allowed, _ = status_of(server, "PATCH", place)
                self.assertEqual(status, 405)
                self.assertEqual(set(allowed.lower().split(", ")) & set(METHODS), set(item))

    def test_examples_are_answered(self):
        answered = 0
        for method, path, operation in operations():
            body = operation.get("requestBody", {}).get("content", {}).get("application/json")
            if not body or "200" not in operation["responses"]:
                continue
            with self.subTest(path=path):
                example = body["schema"]["example"]
                self.assertEqual(status_of(server, method, path, example)[0], 200)
                answered += 1
        self.assertGreater(answered, 10)

    def test_nothing_undocumented_is_met(self):
        schema = schemathesis.openapi.from_dict(spec)
        schema.config.update(base_url=server.url)
        driven = [found.ok() for found in schema.get_all_operations()]
        self.assertEqual(len(driven), len(list(operations())))
        for operation in driven:
            for mode in GenerationMode:
                with self.subTest(operation=operation.label, mode=mode.value):
                    self.drive(operation, mode)

    def drive(self, operation, mode):
        @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
        @hypothesis.settings(max_examples=EXAMPLES // 2, derandomize=True, deadline=None,
                             database=None, suppress_health_check=list(hypothesis.HealthCheck),
                             phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate])
        def sent(case):
            case.call_and_validate(checks=CHECKS, timeout=60)

        try:
            sent()
        except hypothesis.errors.Unsatisfiable:
            pass  # nothing can be wrong about a request without parameters and body


if __name__ == "__main__":
    unittest.main()
