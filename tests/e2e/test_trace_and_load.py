# SPDX-License-Identifier: Apache-2.0
"""Fields of routers and tracing systems on both ports: `traceparent` and
`endpoint-load-metrics`."""

import base64
import json
import re
import subprocess
import unittest

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from grpc_client import channel, collect, generate_request, pb, pb_grpc
from server_process import ServerProcess, eventually

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"
COMPLETION = {"prompt": "never in a log", "max_tokens": 4, "ignore_eos": True}
FORMAT, REPORT = "endpoint-load-metrics-format", "endpoint-load-metrics"
NAMES = {"kv_cache_usage_perc", "num_requests_waiting"}


def setUpModule():
    global server, stub
    server = unittest.enterModuleContext(ServerProcess())
    stub = pb_grpc.InferenceStub(unittest.enterModuleContext(channel(server)))


def span_of(traceparent: str) -> str:
    found = re.fullmatch(rf"00-{TRACE}-([0-9a-f]{{16}})-01", traceparent)
    if not found or found[1] in (PARENT, "0" * 16):
        raise AssertionError(f"not a new span of the trace: {traceparent!r}")
    return found[1]


def logged(span: str) -> str:
    lines = [line for line in server.stderr().splitlines() if f"span_id={span}" in line]
    if len(lines) > 1:
        raise AssertionError(f"more than one line: {lines}")
    return lines[0] if lines else ""


def orca_report(data: bytes) -> dict[str, float]:
    """named_metrics of a xds.data.orca.v3.OrcaLoadReport, by its published field number."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="orca.proto", package="orca", syntax="proto3")
    report = file.message_type.add(name="OrcaLoadReport")
    entry = report.nested_type.add(name="NamedMetricsEntry",
                                   options=descriptor_pb2.MessageOptions(map_entry=True))
    entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=field.TYPE_DOUBLE, label=field.LABEL_OPTIONAL)
    report.field.add(name="named_metrics", number=8, type=field.TYPE_MESSAGE,
                     label=field.LABEL_REPEATED, type_name=".orca.OrcaLoadReport.NamedMetricsEntry")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    message = message_factory.GetMessageClass(
        pool.FindMessageTypeByName("orca.OrcaLoadReport")).FromString(data)
    return dict(message.named_metrics)


class TraceTest(unittest.TestCase):
    def test_http_replies_and_the_log_name_the_trace(self):
        headers = {
            "traceparent": TRACEPARENT, "tracestate": "rojo=1", "X-Request-Id": "traced-by-http"
        }
        for stream in (False, True):
            reply = server.post("/v1/completions", COMPLETION | {"stream": stream}, headers=headers)
            self.assertEqual((reply.status, reply.headers["tracestate"]), (200, "rojo=1"))
            span = span_of(reply.headers["traceparent"])
            eventually(lambda: logged(span), "the line of the request")
            self.assertLessEqual(
                {
                    "route=/v1/completions", "status=200", "request_id=traced-by-http",
                    f"trace_id={TRACE}", f"parent_id={PARENT}"
                }, set(logged(span).split()))
        self.assertNotIn("never in a log", server.stderr())

    def test_grpc_calls_and_the_log_name_the_trace(self):
        request = generate_request([5, 6], 4, request_id="traced-by-grpc")
        call = stub.Generate(request, metadata=[("traceparent", TRACEPARENT)])
        self.assertEqual(len(collect(call).ids[0]), 4)
        span = span_of(dict(call.initial_metadata())["traceparent"])
        eventually(lambda: logged(span), "the line of the call")
        self.assertLessEqual(
            {
                "route=Generate", "status=0", "request_id=traced-by-grpc", f"trace_id={TRACE}",
                f"parent_id={PARENT}"
            }, set(logged(span).split()))

    def test_invalid_traceparent_is_not_repeated(self):
        for value in (f"00-{'0' * 32}-{PARENT}-01", f"ff-{TRACE}-{PARENT}-01", TRACEPARENT.upper(),
                      "x"):
            reply = server.post("/v1/completions", COMPLETION,
                                headers={"traceparent": value, "tracestate": "rojo=1"})
            self.assertEqual(reply.status, 200)
            self.assertFalse({"traceparent", "tracestate"} & set(reply.headers))
            _, call = stub.GetModel.with_call(pb.GetModelRequest(),
                                              metadata=[("traceparent", value.lower() + "-")])
            self.assertNotIn("traceparent", dict(call.initial_metadata()))


class LoadTest(unittest.TestCase):
    def check(self, metrics: dict[str, float]):
        self.assertEqual(set(metrics), NAMES)
        self.assertTrue(0 <= metrics["kv_cache_usage_perc"] <= 1, metrics)
        self.assertGreaterEqual(metrics["num_requests_waiting"], 0)

    def check_text(self, value: str):
        self.assertTrue(value.startswith("TEXT "), value)
        pairs = [pair.split("=") for pair in value[5:].split(", ")]
        self.check({name.removeprefix("named_metrics."): float(number) for name, number in pairs})

    def check_json(self, value: str):
        self.assertTrue(value.startswith("JSON "), value)
        report = json.loads(value[5:])
        self.assertEqual(set(report), {"named_metrics"})
        self.check(report["named_metrics"])

    def test_http_replies_report_the_load_on_request(self):
        for stream in (False, True):
            body = COMPLETION | {"stream": stream}
            self.check_text(
                server.post("/v1/completions", body, headers={FORMAT: "TEXT"}).headers[REPORT])
            self.check_json(
                server.post("/v1/completions", body, headers={FORMAT: "JSON"}).headers[REPORT])
            for headers in ({}, {FORMAT: "xml"}):
                reply = server.post("/v1/completions", body, headers=headers)
                self.assertEqual(reply.status, 200)
                self.assertNotIn(REPORT, reply.headers)

    def test_grpc_trailers_report_the_load_on_request(self):
        def trailers(*metadata):
            call = stub.Generate(generate_request([5, 6], 4), metadata=metadata)
            collect(call)
            self.assertEqual(call.code(), grpc.StatusCode.OK)
            return dict(call.trailing_metadata())
        self.check_text(trailers((FORMAT, "TEXT"))[REPORT])
        self.check_json(trailers((FORMAT, "JSON"))[REPORT])
        for metadata in ((), ((FORMAT, "xml"),)):
            self.assertNotIn(REPORT, trailers(*metadata))

    def test_binary_trailer_is_the_message_of_orca(self):
        """By curl: gRPC's own clients do not show this trailer."""
        fields = ("content-type: application/grpc", "te: trailers", f"{FORMAT}: BIN")
        command = [
            "curl", "-sS", "--fail", "--max-time", "60", "--http2-prior-knowledge", "-D", "-", "-o",
            "/dev/null", "--data-binary", "@-",
            *(part for field in fields for part in ("-H", field))
        ]
        ran = subprocess.run(
            [*command, f"http://{server.grpc_address}/diffserve.v1.Inference/GetModel"],
            input=bytes(5), capture_output=True, check=True)
        sent = dict(
            line.split(": ", 1) for line in ran.stdout.decode().splitlines() if ": " in line)
        self.assertEqual(sent["grpc-status"], "0")
        self.check(orca_report(base64.b64decode(sent[f"{REPORT}-bin"] + "==")))
