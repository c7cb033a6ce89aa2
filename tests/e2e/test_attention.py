# SPDX-License-Identifier: Apache-2.0
"""Attention maps over HTTP and gRPC: they equal a double-precision computation from the checkpoint,
are bitwise independent of other requests, and are refused by name if too large. Also the page's
example."""

import base64
import contextlib
import http.client
import io
import json
import math
import re
import sys
import unittest

import grpc
import numpy as np

from grpc_client import channel, pb, pb_grpc
from server_process import (DEMO_MODEL, DEVICE, REPOSITORY, GatedServer, ServerProcess,
                            eventually)
from tiny_model import BOS_ID, MAX_MODEL_LEN, VOCAB_SIZE, encode

sys.path.insert(0, str(REPOSITORY / "tests" / "experiments"))
import numpy_model

PATH = "/v1/attention"
TEXT = ("The magic number of Lisbon is 48213. The magic number of Oslo is 90417. "
        "The magic number of Lisbon is")
LONG = encode("a long prompt of some pages " * 12)
LAYERS, HEADS = 2, 2  # of the tiny model

# invalid member, its value
BAD = [
    ("text", {}),
    ("text", {"text": "a", "tokens": [1]}),
    ("tokens", {"tokens": []}),
    ("tokens", {"tokens": [VOCAB_SIZE]}),
    ("tokens", {"tokens": [1] * (MAX_MODEL_LEN + 1)}),
    ("tokens", {"tokens": "abc"}),
    ("messages", {"messages": []}),
    ("model", {"text": "a", "model": 5}),
    ("layers", {"text": "a", "layers": [LAYERS]}),
    ("layers", {"text": "a", "layers": [-LAYERS - 1]}),
    ("layers", {"text": "a", "layers": []}),
    ("heads", {"text": "a", "heads": [HEADS]}),
    ("heads", {"text": "a", "heads": [0.5]}),
    ("heads", {"text": "a", "heads": "some"}),
    ("positions", {"tokens": [1, 2], "positions": [2]}),
    ("positions", {"tokens": [1, 2], "positions": [-3]}),
    ("positions", {"tokens": LONG * 8, "positions": list(range(len(LONG) * 8))}),
    ("top_k", {"text": "a", "top_k": -1}),
    ("span", {"text": "a", "span": [0]}),
    ("span", {"tokens": [1, 2], "span": [1, 1]}),
    ("span", {"tokens": [1, 2], "span": [0, 3]}),
    ("encoding", {"text": "a", "encoding": "float64"}),
]


LARGE_PAGE = 64 if DEVICE == "cuda" else 32
# The most exact first.
FORMATS = ([] if DEVICE == "cuda" else ["float32"]) + ["bfloat16", "int8", "int8k_int4v"]


def ask(server, **body):
    response = server.post(PATH, body)
    if response.status != 200:
        raise AssertionError(f"{response.status}: {response.body}")
    return response.json()


def without_identity(answer: dict) -> dict:
    return {name: value for name, value in answer.items() if name not in ("id", "created")}


def numbers(encoded: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(encoded), "<f2").astype(float)


@unittest.skipIf(DEVICE == "cuda", "a GPU has no float32; step_observer_test.cc compares both")
class DefinitionTest(unittest.TestCase):
    """Compares with the forward pass of tests/experiments/numpy_model.py in double precision."""

    def check(self, name: str, maps: int) -> None:
        model = numpy_model.Model(name)
        model.weights = {key: value.astype(float) for key, value in model.weights.items()}
        with ServerProcess("--dtype", "float32", model=DEMO_MODEL.with_name(name)) as server:
            tokens = server.post("/tokenize", {"prompt": TEXT}).json()["tokens"]
            positions = [0, 7, len(tokens) - 1]
            answer = ask(server, text=TEXT, positions=[0, 7, -1], span=[2, 6])
        expected = {}

        def watch(layer, _first, _logits, p, weights):
            for head in range(model.units):
                for position in positions:
                    expected[layer, head, position] = (p[:, head, position, :position + 1],
                                                       weights[head, position, :position + 1])

        model.forward(np.array(tokens), watch=watch)
        self.assertEqual((answer["maps"], answer["num_layers"], answer["num_heads"]),
                         (maps, model.layers, model.units))
        self.assertEqual(answer["tokens"], tokens)
        self.assertTrue("".join(answer["token_texts"]).endswith(TEXT))
        found = [(item["layer"], item["head"], item["position"]) for item in answer["data"]]
        self.assertEqual(found, sorted(expected))
        for item in answer["data"]:
            p, weights = expected[item["layer"], item["head"], item["position"]]
            with self.subTest(model=name, layer=item["layer"], head=item["head"],
                              position=item["position"]):
                self.check_item(item, p, weights)

    def check_item(self, item, p, weights) -> None:
        def near(found, expected):
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)

        def entropy(values):
            return -sum(value * math.log(value) for value in values if value > 0)

        near(item["map1"], p[0])
        near(item["entropy1"], entropy(p[0]))
        near(item["on_span"]["map1"], p[0][2:6].sum())
        near(item["on_span"]["difference"], np.abs(weights[2:6]).sum() / np.abs(weights).sum())
        if len(p) == 1:
            for of in (item["map2"], item["entropy2"], item["on_span"]["map2"]):
                self.assertIsNone(of)
            self.assertEqual((item["lambda"], item["cancelled"]), (0, 0))
            return
        near(item["map2"], p[1])
        near(item["entropy2"], entropy(p[1]))
        near(item["on_span"]["map2"], p[1][2:6].sum())
        near(p[0] - item["lambda"] * p[1], weights)
        near(item["cancelled"], np.minimum(p[0], np.maximum(item["lambda"] * p[1], 0)).sum())

    def test_diff_transformer(self):
        self.check("diff", 2)

    def test_transformer_twin(self):
        self.check("twin", 1)


class AttentionTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(GatedServer())

    def test_default_is_the_last_token_in_all_layers_and_heads(self):
        answer = ask(self.server, tokens=LONG)
        self.assertEqual([(item["layer"], item["head"], item["position"])
                          for item in answer["data"]],
                         [(layer, head, len(LONG) - 1) for layer in range(LAYERS)
                          for head in range(HEADS)])
        self.assertEqual(answer["object"], "attention")
        self.assertEqual(answer["model"], self.server.name)
        self.assertTrue(answer["id"].startswith("attn-"))

    def test_indices_from_the_end_and_twice_are_answered_once_in_order(self):
        answer = ask(self.server, tokens=LONG, layers=[-1, 0, 1], heads=[1, -1],
                     positions=[-1, 4, len(LONG) - 1])
        self.assertEqual([(item["layer"], item["head"], item["position"])
                          for item in answer["data"]],
                         [(layer, 1, position) for layer in range(2)
                          for position in (4, len(LONG) - 1)])

    def test_top_slots_are_the_largest_of_the_whole_maps(self):
        whole = ask(self.server, tokens=LONG, positions=[20, -1], span=[0, 9])["data"]
        top = ask(self.server, tokens=LONG, positions=[20, -1], span=[0, 9], top_k=5)["data"]
        bare = ask(self.server, tokens=LONG, positions=[20, -1], span=[0, 9], top_k=0)["data"]
        self.assertGreater(len(whole), 2)
        for item, few, none in zip(whole, top, bare, strict=True):
            self.assertEqual(none["top"], [])
            maps = item.pop("map1"), item.pop("map2")
            slots = few.pop("top")
            del none["top"]
            self.assertEqual(item, few)
            self.assertEqual(item, none)
            difference = [p1 - item["lambda"] * p2 for p1, p2 in zip(*maps)]
            largest = sorted(map(abs, difference), reverse=True)[:5]
            for slot, size in zip(slots, largest, strict=True):
                at = slot["slot"]
                self.assertEqual((slot["map1"], slot["map2"]), (maps[0][at], maps[1][at]))
                self.assertAlmostEqual(slot["difference"], difference[at], delta=1e-6)
                self.assertAlmostEqual(abs(slot["difference"]), size, delta=1e-6)

    def test_float16_is_json_rounded(self):
        exact = ask(self.server, tokens=LONG)["data"]
        rounded = ask(self.server, tokens=LONG, encoding="float16")["data"]
        self.assertGreater(len(exact), 1)
        for item, half in zip(exact, rounded, strict=True):
            for name in ("map1", "map2"):
                np.testing.assert_array_equal(numbers(half[name]),
                                              np.array(item[name]).astype("<f2").astype(float))

    def test_maps_of_text_and_messages_equal_those_of_their_tokens(self):
        messages = [{"role": "user", "content": "hello the day"}]
        begun = [*messages, {"role": "assistant", "content": "a"}]
        goes_on = {"add_generation_prompt": False, "continue_final_message": True}
        for body, tokenized in (({"text": "hello the day"}, {"prompt": "hello the day"}),
                                ({"messages": messages}, {"messages": messages}),
                                *[({"messages": begun, **more},) * 2
                                  for more in ({"add_generation_prompt": False}, goes_on)]):
            tokens = self.server.post("/tokenize", tokenized).json()["tokens"]
            answer = ask(self.server, **body)
            self.assertEqual(answer["tokens"], tokens)
            self.assertEqual(answer["data"], ask(self.server, tokens=tokens)["data"])

    def test_messages_end_where_the_answer_begins(self):
        body = {"messages": [{"role": "user", "content": "hello the day"}]}
        usage = self.server.post("/v1/chat/completions", {**body, "max_tokens": 1}).json()["usage"]
        self.assertEqual(len(ask(self.server, **body)["tokens"]), usage["prompt_tokens"])

    def test_all_names_every_layer_head_and_position(self):
        self.assertEqual(
            ask(self.server, tokens=LONG, layers="all", heads="all", positions="all")["data"],
            ask(self.server, tokens=LONG, positions=list(range(len(LONG))))["data"])

    def test_texts_of_tokens_make_the_text_with_whole_characters(self):
        answer = ask(self.server, text="é→x")
        self.assertEqual(answer["token_texts"],
                         ["<|bos|>", "", "é", "", "", "→", "x"])

    def test_prefix_cache_changes_no_bit(self):
        tokens = encode("something that no one has asked before " * 3)
        first = ask(self.server, tokens=tokens, positions=[40, -1])
        self.server.post("/v1/completions", {"prompt": tokens, "max_tokens": 4})
        again = ask(self.server, tokens=tokens, positions=[40, -1])
        self.assertEqual(without_identity(again), without_identity(first))

    def test_long_answer_comes_whole_in_pieces(self):
        positions = list(range(len(LONG)))
        response = self.server.post(PATH, {"tokens": LONG, "positions": positions})
        self.assertEqual(response.headers.get("transfer-encoding"), "chunked")
        data = response.json()["data"]
        self.assertEqual(len(data), LAYERS * HEADS * len(LONG))
        for item in data:
            self.assertAlmostEqual(sum(item["map1"]), 1, delta=1e-5)

    def test_bad_input_is_refused_by_name(self):
        for param, body in BAD:
            with self.subTest(param=param, body=str(body)[:80]):
                response = self.server.post(PATH, body)
                self.assertEqual(response.status, 400, response.body)
                self.assertEqual(response.error["param"], param)
        self.assertEqual(self.server.post(PATH, {"text": "a", "model": "other"}).status, 404)
        self.server.wait_until_idle()

    def test_client_that_leaves_ends_it(self):
        self.server.close_gate()
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port)
        connection.request("POST", PATH, json.dumps({"tokens": LONG}),
                           {"Content-Type": "application/json"})
        self.server.wait_for_waiting(1)
        connection.close()
        self.server.wait_until_left()
        self.server.open_gate()
        self.server.wait_until_idle()

    def test_requests_are_counted(self):
        before = self.server.metric("diffserve_prompt_tokens_total")
        ask(self.server, tokens=LONG, positions=[9])  # what comes after it is not computed
        self.assertEqual(self.server.metric("diffserve_prompt_tokens_total") - before, 10)
        self.assertGreater(
            self.server.metric("diffserve_http_requests_total", route=PATH, code="200"), 0)


class ExactnessTest(unittest.TestCase):
    def test_chunks_page_sizes_and_other_requests_change_no_bit(self):
        body = {"tokens": LONG, "positions": [0, 30, 31, 100, -1]}
        with ServerProcess() as server:
            expected = without_identity(ask(server, **body))
        with ServerProcess("--max-num-batched-tokens", 16, "--page-size", LARGE_PAGE) as server:
            self.assertEqual(without_identity(ask(server, **body)), expected)
        completion = {
            "prompt": LONG[5:], "max_tokens": 30, "temperature": 0, "logprobs": 3,
            "ignore_eos": True
        }
        with GatedServer("--no-enable-prefix-caching", "--max-num-batched-tokens", 64) as server:
            alone = server.post("/v1/completions", completion).json()["choices"]
            server.close_gate()
            with contextlib.ExitStack() as stack:
                connections = []
                for path, sent in (("/v1/completions", completion), (PATH, body)):
                    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
                    stack.callback(connection.close)
                    connection.request("POST", path, json.dumps(sent),
                                       {"Content-Type": "application/json"})
                    connections.append(connection)
                server.wait_for_waiting(2)
                server.open_gate()
                completed, attended = (json.loads(connection.getresponse().read())
                                       for connection in connections)
        self.assertEqual(completed["choices"], alone)
        self.assertEqual(without_identity(attended) | {"model": expected["model"]}, expected)

    def test_every_page_format_gives_maps_of_its_own(self):
        maps = {}
        for dtype in FORMATS:
            with ServerProcess("--kv-cache-dtype", dtype) as server:
                data = ask(server, tokens=LONG)["data"]
            maps[dtype] = np.array([item[name] for item in data for name in ("map1", "map2")])
            np.testing.assert_allclose(maps[dtype].sum(-1), 1, atol=1e-5)
        exact, near, *_ = FORMATS
        for dtype in FORMATS[1:]:
            self.assertTrue((maps[exact] != maps[dtype]).any(), dtype)
        np.testing.assert_allclose(maps[exact], maps[near], atol=0.1)


class GrpcTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(GatedServer())
        cls.stub = pb_grpc.InferenceStub(cls.enterClassContext(channel(cls.server)))

    def test_it_streams_what_http_answers(self):
        for more in ({}, {"top_k": 3}):
            expected = ask(self.server, tokens=LONG, layers=[-1], positions=[3, -1], span=[0, 4],
                           **more)
            start, *items = self.stub.Attention(
                pb.AttentionRequest(request_id="mine", token_ids=pb.TokenIds(ids=LONG),
                                    layers=[-1], positions=[3, -1],
                                    span=pb.Span(begin=0, end=4), **more))
            self.assertEqual((start.start.request_id, start.start.maps, start.start.num_layers,
                              start.start.num_heads), ("mine", 2, LAYERS, HEADS))
            self.assertEqual(list(start.start.token_ids), LONG)
            self.assertEqual(list(start.start.token_texts), expected["token_texts"])
            for message, wanted in zip(items, expected["data"], strict=True):
                self.check_item(message.item, wanted)

    def check_item(self, item, wanted) -> None:
        for name in ("layer", "head", "position", "lambda", "entropy1", "entropy2", "cancelled"):
            self.assertEqual(getattr(item, name), wanted[name], name)
        for name in ("map1", "map2", "difference"):
            self.assertEqual(getattr(item.on_span, name), wanted["on_span"][name])
        for name in ("map1", "map2"):
            np.testing.assert_array_equal(np.array(getattr(item, name), np.float32),
                                          np.array(wanted.get(name, []), np.float32))
        for slot, other in zip(item.top, wanted.get("top", []), strict=True):
            for name in ("slot", "map1", "map2", "difference"):
                self.assertEqual(np.float32(getattr(slot, name)), np.float32(other[name]))

    def test_text_and_chat_equal_http(self):
        chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="hello")])
        messages = [{"role": "user", "content": "hello"}]
        for request, body in ((pb.AttentionRequest(text="hello"), {"text": "hello"}),
                              (pb.AttentionRequest(chat=chat), {"messages": messages})):
            start, *_ = self.stub.Attention(request)
            self.assertEqual(list(start.start.token_ids), ask(self.server, **body)["tokens"])

    def test_end_of_a_chat_and_all_positions_are_chosen_as_over_http(self):
        chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="hello")],
                       add_generation_prompt=False)
        messages = [{"role": "user", "content": "hello"}]
        for goes_on in (False, True):
            chat.continue_final_message = goes_on
            start, *items = self.stub.Attention(
                pb.AttentionRequest(chat=chat, layers=[0], heads=[0], all_positions=True))
            wanted = ask(self.server, messages=messages, add_generation_prompt=False,
                         continue_final_message=goes_on)["tokens"]
            self.assertEqual(list(start.start.token_ids), wanted)
            self.assertEqual([item.item.position for item in items], list(range(len(wanted))))

    def test_errors_name_the_field(self):
        for field, request in (("prompt", pb.AttentionRequest()),
                               ("continue_final_message", pb.AttentionRequest(
                                   chat=pb.Chat(messages=[pb.ChatMessage(role="user", content="a")],
                                                continue_final_message=True))),
                               ("layers", pb.AttentionRequest(text="a", layers=[9])),
                               ("positions", pb.AttentionRequest(text="a", positions=[9])),
                               ("token_ids", pb.AttentionRequest(
                                   token_ids=pb.TokenIds(ids=[VOCAB_SIZE])))):
            with self.subTest(field), self.assertRaises(grpc.RpcError) as raised:
                list(self.stub.Attention(request))
            self.assertEqual(raised.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
            self.assertIn(field, str(raised.exception.trailing_metadata()))

    def test_cancelled_call_leaves_nothing(self):
        self.server.close_gate()
        call = self.stub.Attention(pb.AttentionRequest(token_ids=pb.TokenIds(ids=LONG)))
        self.server.wait_for_waiting(1)
        call.cancel()
        self.server.open_gate()
        self.server.wait_until_idle()

    def test_cancel_rpc_ends_it(self):
        self.server.close_gate()
        call = self.stub.Attention(pb.AttentionRequest(request_id="to-be-cancelled",
                                                       token_ids=pb.TokenIds(ids=LONG)))
        self.server.wait_for_waiting(1)
        self.stub.Cancel(pb.CancelRequest(request_id="to-be-cancelled"))
        with self.assertRaises(grpc.RpcError) as raised:
            list(call)
        self.assertEqual(raised.exception.code(), grpc.StatusCode.CANCELLED)
        self.server.open_gate()
        self.server.wait_until_idle()


class ExampleInThePageTest(unittest.TestCase):
    def test_example_shows_where_the_last_token_looks(self):
        page = (REPOSITORY / "docs/api/attention.md").read_text()
        examples = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
        example, = [text for text in examples if PATH in text]
        self.assertLessEqual(example.count("\n"), 20)
        with ServerProcess(model=DEMO_MODEL) as server:
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(example.replace("http://127.0.0.1:8000", server.url), {})
        lines = printed.getvalue().splitlines()
        self.assertEqual(len(lines), 3 * 4)  # layers and heads of the bundled model
        for line in lines:
            self.assertRegex(line, r"^layer \d head \d removes \d\.\d\d, keeps ")
