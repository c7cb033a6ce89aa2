#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Answers a file of requests in OpenAI's batch form on a Ray cluster, with Ray Data and a server
per actor. An actor that is lost is started again, and its requests with it; the answers are
written in the order of the requests."""

import argparse
import http.client
import json
import os
import shlex
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ray
from server_child import ServerChild

IN_FLIGHT = 64  # requests that an actor sends at a time, and requests per task


class Answers:
    """An actor of map_batches, with a server of its own."""

    def __init__(self, model: str, flags: Sequence[str]):
        self._server = ServerChild(model, ["--log-level", "warning", *flags])
        self._server.when_lost(lambda: os._exit(1))  # Ray starts the actor and its task again
        self._threads = ThreadPoolExecutor(IN_FLIGHT)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {"text": list(self._threads.map(self._answer, batch["text"]))}

    def _answer(self, line: str) -> str:
        """The line of an answer, for the line of a request."""
        request = json.loads(line)
        connection = http.client.HTTPConnection(self._server.url.removeprefix("http://"))
        try:
            connection.request(request["method"], request["url"], json.dumps(request["body"]),
                               {"Content-Type": "application/json"})
            reply = connection.getresponse()
            body = json.loads(reply.read())
        finally:
            connection.close()
        response = {"status_code": reply.status, "request_id": reply.headers["X-Request-Id"],
                    "body": body}
        return json.dumps({"custom_id": request["custom_id"], "response": response, "error": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="what `diffserve serve` takes, on every node")
    parser.add_argument("input", help="lines with custom_id, method, url and body")
    parser.add_argument("output", help="lines with custom_id and response")
    parser.add_argument("--actors", type=int, default=1, help="servers (%(default)s)")
    parser.add_argument("--num-cpus", type=float, default=1, help="per actor (%(default)s)")
    parser.add_argument("--num-gpus", type=float, default=0, help="per actor (%(default)s)")
    parser.add_argument("--flags", type=shlex.split, default=[],
                        help="of `diffserve serve`, in one word: --flags='--threads 4'")
    arguments = parser.parse_args()
    ray.data.DataContext.get_current().execution_options.preserve_order = True
    requests = ray.data.read_text(arguments.input)
    answers = requests.repartition(target_num_rows_per_block=IN_FLIGHT).map_batches(
        Answers, fn_constructor_args=(arguments.model, arguments.flags), batch_size=IN_FLIGHT,
        compute=ray.data.ActorPoolStrategy(size=arguments.actors),
        num_cpus=arguments.num_cpus, num_gpus=arguments.num_gpus)
    with open(arguments.output, "w", encoding="utf-8") as output:
        for row in answers.iter_rows():
            output.write(row["text"] + "\n")


if __name__ == "__main__":
    main()
