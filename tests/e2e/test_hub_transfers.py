# SPDX-License-Identifier: Apache-2.0
"""Transfers from a hub that break, stall or bring wrong bytes."""

import contextlib
import shutil
import subprocess
import threading
import time
import unittest

from hub_case import NAME, WEIGHTS, HubTest
from hub_stub import broken_after, content, etag_of, held_after, length, status, whole
from server_process import BINARY, eventually

HALF = 200_000  # some bytes of the weights, not all


class BrokenTransferTest(HubTest):
    def test_goes_on_where_it_broke(self):
        self.hub.spoil(WEIGHTS, broken_after(HALF), broken_after(1000))
        self.fetched()
        self.assertEqual(self.starts_of_weights(),
                         ["bytes=0-", f"bytes={HALF}-", f"bytes={HALF + 1000}-"])

    def test_goes_on_after_kill_9(self):
        gate = threading.Event()
        self.addCleanup(gate.set)
        self.hub.spoil(WEIGHTS, held_after(HALF, gate))
        with subprocess.Popen([BINARY, "inspect", f"hf:{NAME}"], env=self.environment(),
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            eventually(lambda: self.incomplete().exists() and
                       self.incomplete().stat().st_size == HALF, "half of the weights are there")
            process.kill()
        gate.set()
        self.fetched()
        self.assertEqual(self.starts_of_weights(), ["bytes=0-", f"bytes={HALF}-"])

    def test_a_part_with_wrong_bytes_is_fetched_again(self):
        self.fetched()
        self.blob(WEIGHTS).unlink()
        (self.snapshot() / WEIGHTS).unlink()
        self.incomplete().write_bytes(b"x" * HALF)
        self.hub.requests.clear()
        self.fetched()
        self.assertEqual(self.starts_of_weights(), [f"bytes={HALF}-", "bytes=0-"])

    def test_a_part_that_is_too_long_is_dropped(self):
        self.fetched()
        self.blob(WEIGHTS).rename(self.incomplete())
        with self.incomplete().open("ab") as file:
            file.write(b"x")
        (self.snapshot() / WEIGHTS).unlink()
        self.fetched()

    def test_a_part_that_is_whole_is_not_fetched(self):
        self.fetched()
        self.blob(WEIGHTS).rename(self.incomplete())
        (self.snapshot() / WEIGHTS).unlink()
        self.fetched()
        self.assertEqual(len(self.starts_of_weights()), 1)

    def test_ranges_served_wrongly_start_the_file_again(self):
        weights = self.files[WEIGHTS]
        size = len(weights)
        wrong = (whole,
                 content(weights[:9], 206, Content_Range=f"bytes 0-8/{size}"),
                 content(weights[HALF:], 206, Content_Range=f"bytes {HALF}-{size}/{size + 1}"),
                 content(weights[HALF:], 206))
        for answer in wrong:
            shutil.rmtree(self.cache, ignore_errors=True)
            self.hub.spoil(WEIGHTS, broken_after(HALF), answer)
            self.fetched()
            self.assertEqual(self.blob(WEIGHTS).read_bytes(), weights)

    def test_lengths_that_are_lies_end_with_the_right_bytes(self):
        weights = self.files[WEIGHTS]
        for claimed, sent in ((1000, weights), (len(weights) + 9, weights),
                              (len(weights) + 9, weights + b"and more.")):
            shutil.rmtree(self.cache, ignore_errors=True)
            self.hub.spoil(WEIGHTS, lambda handler, _: length(claimed)(handler, sent))
            self.fetched()
            self.assertEqual(self.blob(WEIGHTS).read_bytes(), weights)

    def test_wrong_content_once_is_fetched_again_and_twice_is_an_error(self):
        other = bytes(len(self.files[WEIGHTS]))
        self.hub.spoil(WEIGHTS, content(other))
        self.fetched()
        shutil.rmtree(self.cache)
        self.hub.spoil(WEIGHTS, content(other), content(other))
        self.refused(WEIGHTS, "another content", etag_of(self.files[WEIGHTS]))
        self.assertFalse(self.blob(WEIGHTS).exists())
        self.assertFalse((self.snapshot() / WEIGHTS).exists())

    def test_a_small_file_of_another_hash_is_an_error(self):
        other = self.files["config.json"].replace(b"64", b"65")
        self.hub.spoil("config.json", content(other), content(other))
        self.refused("config.json", "another content")

    def test_errors_of_the_server_are_tried_again_up_to_a_limit(self):
        self.hub.spoil("api", status(503), status(500))
        self.hub.spoil(WEIGHTS, status(502), status(504))
        self.fetched()
        self.hub.spoil("config.json", *[status(503)] * 6)
        shutil.rmtree(self.cache)
        self.refused("config.json", "answered 503")
        self.assertEqual(len(self.hub.asked("config.json")), 1 + 6)

    def test_429_waits_as_long_as_it_says(self):
        self.hub.spoil("config.json", status(429, Retry_After="1"))
        begin = time.monotonic()
        self.fetched()
        self.assertGreaterEqual(time.monotonic() - begin, 1)
        shutil.rmtree(self.cache)
        self.hub.spoil("config.json", status(429, Retry_After="1000"))
        self.refused("429", "1000 s", "HF_TOKEN")

    def test_two_processes_fetch_a_file_once(self):
        gate = threading.Event()
        self.addCleanup(gate.set)
        self.hub.spoil(WEIGHTS, held_after(HALF, gate))
        log = self.home / "log"
        with contextlib.ExitStack() as stack:
            both = []
            for _ in range(2):
                stderr = stack.enter_context(log.open("a"))
                both.append(stack.enter_context(
                    subprocess.Popen([BINARY, "inspect", f"hf:{NAME}"], env=self.environment(),
                                     stdout=subprocess.DEVNULL, stderr=stderr)))
            eventually(lambda: "download_waits" in log.read_text(), "one waits for the other")
            eventually(lambda: self.starts_of_weights(), "the weights are asked for")
            gate.set()
            self.assertEqual([process.wait(60) for process in both], [0, 0], log.read_text())
        self.assertEqual(self.starts_of_weights(), ["bytes=0-"])

    def test_a_full_disk_is_an_error_that_the_next_start_goes_on_from(self):
        self.refused("File too large", f"{HALF} of {len(self.files[WEIGHTS])} bytes",
                     "HF_HUB_CACHE", limit=HALF)
        self.fetched()
        self.assertEqual(self.starts_of_weights()[-1], f"bytes={HALF}-")

    def test_space_is_checked_before_the_weights_are_fetched(self):
        self.cache.mkdir(parents=True)
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", self.cache],
                                 capture_output=True)
        if mounted.returncode != 0:
            self.skipTest("cannot mount a small tmpfs")
        self.addCleanup(subprocess.run, ["umount", self.cache], check=True)
        self.refused("MiB more in", "free:", "HF_HUB_CACHE")
        self.assertEqual(self.hub.asked(WEIGHTS), [])

    def test_a_cache_that_cannot_be_written_names_the_variable(self):
        (self.home / "hub").write_text("a file")
        self.refused("HF_HUB_CACHE")


if __name__ == "__main__":
    unittest.main()
