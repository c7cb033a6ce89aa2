# SPDX-License-Identifier: Apache-2.0
"""deploy/ray/batch.py: every request of a file is answered as a server answers it, also when an
actor or its server is killed."""

import json
import subprocess
import unittest

from answers import stripped
from cluster import BIN, DEPLOY, Cluster
from fleet import COMPLETIONS, DEMO_MODEL, GatedReplica, eventually, figure
from servers import Child, accepted

REQUESTS, FIRST_STEPS = 200, 4


def setUpModule():
    global cluster
    cluster = unittest.enterModuleContext(Cluster())


def requests() -> list[dict]:
    body = {"model": DEMO_MODEL.name, "max_tokens": 16, "temperature": 0, "ignore_eos": True}
    lines = [{"custom_id": f"request-{i}", "method": "POST", "url": COMPLETIONS,
              "body": {**body, "prompt": f"The magic number of city {i} is"}}
             for i in range(REQUESTS)]
    lines[7]["body"]["max_tokens"] = -1  # refused by the server
    lines[8].update(url="/v1/chat/completions", body={
        **body, "messages": [{"role": "user", "content": "Who are you?"}]})
    return lines


class BatchTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.lines = requests()
        with GatedReplica() as server:
            answers = [server.post(line["url"], line["body"]) for line in cls.lines]
        cls.expected = [(a.status, stripped(a.json())) for a in answers]
        cls.input, cls.output = cluster.folder / "in.jsonl", cluster.folder / "out.jsonl"
        cls.input.write_text("".join(json.dumps(line) + "\n" for line in cls.lines))

    def run_with(self, disturb) -> None:
        """Runs the example on two actors; `disturb` gets a server that has begun and not ended."""
        cluster.close_gate()
        self.addCleanup(cluster.open_gate)
        log = cluster.folder / "batch.log"
        with log.open("wb") as sink, subprocess.Popen(
            [BIN / "python", DEPLOY / "batch.py", DEMO_MODEL, self.input, self.output, "--actors",
             "2", "--num-cpus", "0.1", "--flags=--threads 1"], env=cluster.environment,
                stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT) as process:
            try:
                eventually(lambda: any(accepted(c) for c in cluster.children()),
                           "a server has requests", 90)
                child = next(c for c in cluster.children() if accepted(c))
                cluster.allow(FIRST_STEPS)
                disturb(child)
                eventually(lambda: not child.alive, "the server has ended", 10)
                cluster.open_gate()
                self.assertEqual(process.wait(90), 0, log.read_text()[-4000:])
            finally:
                process.kill()
        answers = [json.loads(line) for line in self.output.read_text().splitlines()]
        self.assertEqual([a["custom_id"] for a in answers], [r["custom_id"] for r in self.lines])
        got = [(a["response"]["status_code"], stripped(a["response"]["body"])) for a in answers]
        self.assertEqual(got, self.expected)
        self.assertEqual(self.expected[7][0], 400)

    def test_killed_actor_is_started_again_and_no_answer_is_missing(self):
        self.run_with(lambda child: child.process.parent().kill())
        figure("ray data: kill -9 of one of two actors", f"{REQUESTS} of {REQUESTS} answered")

    def test_killed_server_is_started_again_and_no_answer_is_missing(self):
        self.run_with(Child.kill)
        figure("ray data: kill -9 of one of two servers", f"{REQUESTS} of {REQUESTS} answered")


if __name__ == "__main__":
    unittest.main()
