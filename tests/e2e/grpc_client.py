# SPDX-License-Identifier: Apache-2.0
"""Python stubs of our .proto files, generated at run time into a temporary directory if
DIFFSERVE_GRPC_STUBS names none, and a small client of diffserve.v1."""

import atexit
import os
import pkgutil
import shutil
import sys
import tempfile
from dataclasses import dataclass, field

import grpc

import grpc_stubs


def _import():
    stubs = os.environ.get("DIFFSERVE_GRPC_STUBS")
    if stubs is None:
        stubs = tempfile.mkdtemp(prefix="diffserve-stubs-")
        atexit.register(shutil.rmtree, stubs, ignore_errors=True)
        grpc_stubs.generate(stubs)
    # The stubs of our own services become modules of the Python package.
    sys.path.insert(0, str(grpc_stubs.PROTO.with_name("deploy") / "python"))
    import diffserve
    sys.path.insert(0, stubs)
    diffserve.__path__ = pkgutil.extend_path(diffserve.__path__, "diffserve")
    from diffserve.v1 import inference_pb2, inference_pb2_grpc
    from vllm.grpc.engine import vllm_engine_pb2, vllm_engine_pb2_grpc
    return inference_pb2, inference_pb2_grpc, vllm_engine_pb2, vllm_engine_pb2_grpc


pb, pb_grpc, vllm_pb, vllm_pb_grpc = _import()


def channel(server) -> grpc.Channel:
    return grpc.insecure_channel(server.grpc_address,
                                 [("grpc.max_receive_message_length", 64 << 20)])


@dataclass
class Generated:
    """All events of one Generate call, by choice."""

    prompt_ids: list[int] = field(default_factory=list)
    text: dict[int, str] = field(default_factory=dict)
    ids: dict[int, list[int]] = field(default_factory=dict)
    logprobs: dict[int, list] = field(default_factory=dict)
    finish: dict = field(default_factory=dict)
    prompt_logprobs: list = field(default_factory=list)
    usage: object = None

    def add(self, event) -> None:
        kind = event.WhichOneof("event")
        value = getattr(event, kind)
        if kind == "start":
            self.prompt_ids = list(value.token_ids)
        elif kind == "delta":
            self.text[value.choice] = self.text.get(value.choice, "") + value.text
            self.ids.setdefault(value.choice, []).extend(value.token_ids)
            self.logprobs.setdefault(value.choice, []).extend(value.logprobs)
        elif kind == "finish":
            if value.choice in self.finish:
                raise AssertionError(f"choice {value.choice} finished twice")
            self.finish[value.choice] = value
        elif kind == "prompt_logprobs":
            self.prompt_logprobs = list(value.tokens)
        else:
            self.usage = value

    def exact(self) -> list:
        """Everything that must be bitwise equal: ids and the float32 log-probabilities."""
        return [(choice, ids, [(t.chosen.id, t.chosen.logprob, [(a.id, a.logprob) for a in t.top])
                               for t in self.logprobs[choice]])
                for choice, ids in sorted(self.ids.items())]


def collect(call) -> Generated:
    generated = Generated()
    for event in call:
        generated.add(event)
    return generated


def generate_request(ids: list[int], max_tokens: int, logprobs: int | None = None, **fields):
    """A greedy request for exactly max_tokens, unless `fields` say otherwise."""
    request = pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=ids),
        sampling=pb.SamplingParams(temperature=0),
        stopping=pb.StoppingParams(max_tokens=max_tokens, ignore_eos=True),
        **fields,
    )
    if logprobs is not None:
        request.logprobs = logprobs
    return request
