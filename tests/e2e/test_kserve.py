# SPDX-License-Identifier: Apache-2.0
"""The Open Inference Protocol v2 with NVIDIA's own client, tritonclient[grpc]."""

import queue
import unittest
import warnings

import grpc
import numpy as np

from server_process import GatedServer, eventually
from tiny_model import BOS_ID, MAX_MODEL_LEN, encode

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its messages are of the previous version of protobuf
    import tritonclient.grpc as triton
    from tritonclient.utils import InferenceServerException

GREEDY = {"temperature": 0, "ignore_eos": True}


def setUpModule():
    global server, client
    server = unittest.enterModuleContext(GatedServer())
    client = triton.InferenceServerClient(server.grpc_address)
    unittest.addModuleCleanup(client.close)


def text_input(text: str, shape=(1,), name="text_input"):
    tensor = triton.InferInput(name, shape, "BYTES")
    tensor.set_data_from_numpy(np.array([text.encode()], dtype=np.object_).reshape(shape))
    return [tensor]


def ids_input(ids: list[int], dtype=np.int32):
    tensor = triton.InferInput("input_ids", (len(ids),), "INT32" if dtype == np.int32 else "INT64")
    tensor.set_data_from_numpy(np.array(ids, dtype=dtype))
    return [tensor]


def infer(inputs, **parameters):
    return client.infer(server.name, inputs, parameters={**GREEDY, **parameters})


def text_of(result) -> str:
    return result.as_numpy("text_output")[0].decode()


def final(result) -> bool:
    return result.get_response().parameters["triton_final_response"].bool_param


class Stream:
    """A bidirectional stream and its responses, in order."""

    def __init__(self):
        self.client = triton.InferenceServerClient(server.grpc_address)
        self.answers = queue.Queue()

    def __enter__(self):
        self.client.start_stream(lambda result, error: self.answers.put((result, error)))
        return self

    def __exit__(self, *_):
        self.client.close()

    def send(self, inputs, name: str, **parameters):
        self.client.async_stream_infer(server.name, inputs, request_id=name,
                                       parameters={**GREEDY, **parameters})

    def take(self):
        return self.answers.get(timeout=60)

    def take_all(self, name: str) -> list:
        """The results of one request, up to its last."""
        results = []
        while not results or not final(results[-1]):
            result, error = self.take()
            if error is not None:
                raise error
            assert result.get_response().id == name, (result.get_response().id, name)
            results.append(result)
        return results


class MetadataTest(unittest.TestCase):
    def test_server_is_live_and_ready(self):
        self.assertTrue(client.is_server_live())
        self.assertTrue(client.is_server_ready())
        self.assertTrue(client.is_model_ready(server.name))
        self.assertTrue(client.is_model_ready(server.name, "1"))

    def test_metadata_names_the_tensors(self):
        self.assertEqual(client.get_server_metadata().name, "diffserve")
        model = client.get_model_metadata(server.name)
        self.assertEqual((model.name, list(model.versions)), (server.name, ["1"]))
        self.assertEqual([(t.name, t.datatype, list(t.shape)) for t in model.inputs],
                         [("text_input", "BYTES", [1]), ("input_ids", "INT32", [-1])])
        self.assertEqual([t.name for t in model.outputs],
                         ["text_output", "output_ids", "finish_reason"])

    def test_another_model_is_not_found(self):
        for call in (lambda: client.get_model_metadata("other"),
                     lambda: client.is_model_ready("other"),
                     lambda: client.get_model_metadata(server.name, "7"),
                     lambda: client.infer("other", text_input("x"))):
            with self.assertRaises(InferenceServerException) as caught:
                call()
            self.assertEqual(caught.exception.status(), str(grpc.StatusCode.NOT_FOUND))


class InferTest(unittest.TestCase):
    def test_text_is_answered_as_over_http(self):
        body = {"prompt": "same", "max_tokens": 20, **GREEDY}
        expected = server.post("/v1/completions", body).json()["choices"][0]["text"]
        for shape in ((1,), (1, 1)):
            result = infer(text_input("same", shape), max_tokens=20, exclude_input_in_output=True)
            self.assertEqual(text_of(result), expected)
        self.assertEqual(text_of(infer(text_input("same"), max_tokens=20)), "same" + expected)

    def test_ids_in_and_ids_out(self):
        ids = [BOS_ID, *encode("ids")]
        results = [infer(ids_input(ids, dtype), max_tokens=9) for dtype in (np.int32, np.int64)]
        for result in results:
            out = result.as_numpy("output_ids")
            self.assertEqual((out.dtype, out.shape), (np.int32, (len(ids) + 9,)))
            self.assertEqual(list(out[:len(ids)]), ids)
            self.assertEqual(list(out), list(results[0].as_numpy("output_ids")))
            self.assertEqual(result.as_numpy("finish_reason")[0], b"length")
            self.assertEqual(result.get_response().parameters["prompt_tokens"].int64_param,
                             len(ids))

    def test_only_requested_outputs_are_returned(self):
        result = client.infer(server.name, text_input("x"),
                              outputs=[triton.InferRequestedOutput("finish_reason")])
        self.assertIsNone(result.as_numpy("text_output"))
        self.assertEqual(result.as_numpy("finish_reason").shape, (1,))

    def test_seed_and_stop(self):
        def draw(**parameters):
            return text_of(client.infer(server.name, text_input("draw"), parameters={
                "max_tokens": 24, "ignore_eos": True, "exclude_input_in_output": True,
                "temperature": 1.0, **parameters}))
        whole = draw(seed=3)
        self.assertEqual(draw(seed=3), whole)
        self.assertNotEqual(draw(seed=4), whole)
        stop = whole[3]
        self.assertEqual(draw(seed=3, stop=stop), whole[:whole.index(stop)])

    def test_errors_name_the_field(self):
        for word, inputs, parameters in (
            ("max_tokens", text_input("x"), {"max_tokens": "many"}),
            ("max_tokens", text_input("x"), {"max_tokens": MAX_MODEL_LEN + 1}),
            ("temperature", text_input("x"), {"temperature": -1.0}),
            ("top_tokens", text_input("x"), {"top_tokens": 3}),
            ("stream", text_input("x"), {"stream": True}),
            ("input_ids", ids_input([]), {}),
            ("has the token id", ids_input([1 << 30]), {}),
            ("input_ids", text_input("x") + ids_input([1]), {}),
            ("not known", text_input("x", name="image"), {}),
        ):
            with self.subTest(word=word, parameters=parameters):
                with self.assertRaises(InferenceServerException) as caught:
                    infer(inputs, **parameters)
                self.assertEqual(caught.exception.status(), str(grpc.StatusCode.INVALID_ARGUMENT))
                self.assertIn(word, caught.exception.message())

    def test_batch_is_refused(self):
        tensor = triton.InferInput("text_input", (2,), "BYTES")
        tensor.set_data_from_numpy(np.array([b"a", b"b"], dtype=np.object_))
        with self.assertRaises(InferenceServerException) as caught:
            infer([tensor])
        self.assertIn("text_input", caught.exception.message())

    def test_client_that_leaves_frees_its_pages(self):
        server.close_gate()
        self.addCleanup(server.open_gate)
        ended = queue.Queue()
        call = client.async_infer(server.name, ids_input(encode("long")),
                                  lambda result, error: ended.put(error),
                                  parameters={**GREEDY, "max_tokens": 4000})
        eventually(lambda: server.metric("diffserve_requests_waiting") +
                   server.metric("diffserve_requests_running") == 1, "the request has come")
        call.cancel()
        server.open_gate()
        self.assertIsNotNone(ended.get(timeout=60))
        server.wait_until_idle()

    def test_timeout_is_in_microseconds(self):
        server.close_gate()
        self.addCleanup(server.open_gate)
        with self.assertRaises(InferenceServerException) as caught:
            client.infer(server.name, text_input("late"), timeout=50_000,
                         parameters={"max_tokens": 4000})
        self.assertEqual(caught.exception.status(), str(grpc.StatusCode.DEADLINE_EXCEEDED))
        server.open_gate()
        server.wait_until_idle()


class StreamInferTest(unittest.TestCase):
    def test_pieces_join_to_the_whole_answer(self):
        whole = infer(text_input("pieces"), max_tokens=30, exclude_input_in_output=True)
        with Stream() as stream:
            stream.send(text_input("pieces"), "a", max_tokens=30)
            results = stream.take_all("a")
        self.assertEqual("".join(map(text_of, results)), text_of(whole))
        ids = [i for result in results for i in result.as_numpy("output_ids")]
        self.assertEqual(ids, list(whole.as_numpy("output_ids")))
        self.assertGreater(len(results), 1)
        self.assertEqual([r.as_numpy("finish_reason")[0] for r in results],
                         [b""] * (len(results) - 1) + [b"length"])

    def test_requests_are_answered_in_order(self):
        with Stream() as stream:
            for index in range(4):
                stream.send(ids_input([5 + index]), str(index), max_tokens=4 + index)
            for index in range(4):
                ids = [i for r in stream.take_all(str(index)) for i in r.as_numpy("output_ids")]
                self.assertEqual(len(ids), 4 + index)

    def test_whole_answer_in_a_stream(self):
        with Stream() as stream:
            stream.send(text_input("one"), "w", max_tokens=6, stream=False)
            self.assertEqual(len(stream.take_all("w")), 1)

    def test_error_leaves_the_stream_open(self):
        with Stream() as stream:
            stream.send(text_input("x"), "bad", max_tokens=-1)
            result, error = stream.take()
            self.assertIsNone(result)
            self.assertIn("max_tokens", error.message())
            stream.send(text_input("x"), "good", max_tokens=3)
            self.assertEqual(sum(len(r.as_numpy("output_ids")) for r in stream.take_all("good")), 3)

    def test_stream_that_is_cancelled_frees_its_pages(self):
        server.allow(5)
        self.addCleanup(server.open_gate)
        stream = Stream()
        with stream:
            stream.send(ids_input(encode("long")), "long", max_tokens=4000)
            stream.take()
            self.assertGreater(server.pages_used(), 0)
            stream.client.stop_stream(cancel_requests=True)
        server.open_gate()
        server.wait_until_idle()
