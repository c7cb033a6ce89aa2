# SPDX-License-Identifier: Apache-2.0
"""The prefix cache on disk (--kv-cache-dir): answers after a restart have the same bits as before,
with tokens from the cache, whatever ended the server."""

import json
import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

import tiny_model
import tiny_phi4flash
from server_process import (BINARY, DEVICE, DEVICE_FLAGS, KV_BYTES, PAGE_SLOTS, ServerProcess,
                            eventually)

ON_GPU = DEVICE == "cuda"
SHARE = 4 if ON_GPU else 1  # prompts are shorter there: a simulated GPU is slow
PROMPT = "the quick brown fox and the lazy dog " * (40 // SHARE)
TOKENS = 1200 // SHARE  # at least, of PROMPT
OTHER_TOKENS = 1400 // SHARE
# Memory for two such prompts.
SMALL_MEMORY = ("--kv-cache-memory", f"{512 * KV_BYTES // SHARE}KiB", "--max-model-len",
                1600 // SHARE)
FORMATS = ("auto", "int8", "int8k_int4v", "int4",
           *(("fp8_e4m3",) if ON_GPU else ("bfloat16", "float16")))


class KvDiskTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def server(self, *flags, **how) -> ServerProcess:
        return ServerProcess("--kv-cache-dir", self.folder / "cache", *flags, **how)

    def ask(self, server, prompt=PROMPT, **fields):
        """The answer with its log-probabilities, and the number of cached tokens."""
        reply = server.post("/v1/completions", {
            "prompt": prompt, "max_tokens": 20, "temperature": 0.8, "seed": 7, "logprobs": 5,
            "return_token_ids": True, **fields}).json()
        choice = reply["choices"][0]
        self.assertGreater(reply["usage"]["prompt_tokens"], 100)
        return ((choice["token_ids"], choice["logprobs"]),
                reply["usage"]["prompt_tokens_details"]["cached_tokens"])

    def test_answer_after_a_restart_has_the_same_bits_in_every_page_format(self):
        for page_format in FORMATS:
            flags = ("--kv-cache-dtype", page_format)
            with self.server(*flags) as server:
                before, cached = self.ask(server)
                self.assertEqual(cached, 0, page_format)
            with self.server(*flags) as server:
                after, cached = self.ask(server)
                self.assertEqual(after, before, page_format)
                eventually(lambda: f" cached_tokens={cached} loaded_tokens={cached} " in
                           server.stderr(), "the request's line")
                self.assertGreater(cached, TOKENS, page_format)
                self.assertEqual(server.metric("diffserve_kv_tier_hit_tokens_total"), cached)
                self.assertEqual(cached % PAGE_SLOTS, 0)

    def test_states_and_windows_come_back_after_a_restart(self):
        model = tiny_phi4flash.write(self.folder / "phi")
        found = []
        for prompt in (PROMPT, PROMPT, PROMPT + "again"):
            with self.server(model=model) as server:
                answer, cached = self.ask(server, prompt)
                found.append((answer, cached))
                self.assertEqual(server.metric("diffserve_kv_tier_hit_tokens_total"), cached)
        self.assertEqual(found[1][0], found[0][0])
        self.assertEqual(found[0][1], 0)
        self.assertGreater(found[1][1], TOKENS)
        self.assertGreater(found[2][1], TOKENS)
        with ServerProcess(model=model) as server:
            self.assertEqual(self.ask(server, PROMPT + "again")[0], found[2][0])

    def test_killed_server_loses_nothing_that_was_written(self):
        with self.server() as server:
            before, _ = self.ask(server)
            pages = TOKENS // PAGE_SLOTS
            eventually(lambda: server.metric("diffserve_kv_tier_pages") >= pages, "pages on disk")
            server.kill()
        with self.server() as server:
            after, cached = self.ask(server)
            self.assertEqual(after, before)
            self.assertGreater(cached, TOKENS)

    def test_server_beside_another_finds_its_pages_and_keeps_none_of_them(self):
        pages = "diffserve_kv_tier_pages"
        with self.server() as first, self.server() as second:
            before, _ = self.ask(first)
            eventually(lambda: second.metric("diffserve_kv_tier_sibling_pages") >=
                       TOKENS // PAGE_SLOTS, "the first server's pages")
            after, cached = self.ask(second)
            self.assertEqual(after, before)
            self.assertGreater(cached, TOKENS)
            self.assertEqual(second.metric("diffserve_kv_tier_hit_tokens_total"), cached)
            self.assertEqual(second.metric("diffserve_kv_tier_errors_total", operation="read"), 0)
            other, _ = self.ask(second, "b" + PROMPT)
            eventually(lambda: second.metric(pages) >= TOKENS // PAGE_SLOTS, "its own pages")
            eventually(lambda: first.metric("diffserve_kv_tier_sibling_pages") >=
                       TOKENS // PAGE_SLOTS, "the second server's pages")
            first.kill()
            with self.server() as third:  # takes the subdirectory that the killed one left
                for prompt, expected in ((PROMPT, before), ("b" + PROMPT, other)):
                    answer, cached = self.ask(third, prompt)
                    self.assertEqual(answer, expected)
                    self.assertGreater(cached, TOKENS)

    def test_files_that_vanish_beside_a_server_are_a_miss(self):
        with self.server() as first:
            before, _ = self.ask(first)
        with self.server() as holder, self.server() as server:
            self.assertGreater(server.metric("diffserve_kv_tier_sibling_pages"), 0)
            for segment in (self.folder / "cache").rglob("*.pages"):
                segment.unlink()
            after, cached = self.ask(server)
            self.assertEqual((after, cached), (before, 0))
            self.assertEqual(server.metric("diffserve_kv_tier_errors_total", operation="read"), 0)
            del holder

    def test_pages_that_left_memory_come_back_while_others_run(self):
        with self.server(*SMALL_MEMORY) as server:
            before, _ = self.ask(server)
            eventually(lambda: server.metric("diffserve_kv_tier_pages") >= TOKENS // PAGE_SLOTS,
                       "pages on disk")
            for letter in "abcdef":
                self.ask(server, letter * OTHER_TOKENS)
            after, cached = self.ask(server)
            self.assertEqual(after, before)
            self.assertGreater(cached, TOKENS)
            self.assertGreater(server.metric("diffserve_kv_tier_hit_tokens_total"), TOKENS)

    @unittest.skipUnless(ON_GPU, "the CPU's pages are in host memory")
    def test_host_memory_and_disk_are_two_tiers(self):
        flags = (*SMALL_MEMORY, "--kv-cache-host-memory", "16MiB")
        prompts = [PROMPT, *(letter * OTHER_TOKENS for letter in "abc")]
        with self.server(*flags) as server:
            before = [self.ask(server, prompt)[0] for prompt in prompts]
            eventually(lambda: server.metric("diffserve_kv_tier_pages") >=
                       len(prompts) * (TOKENS // PAGE_SLOTS), "pages on disk")
            for segment in (self.folder / "cache").rglob("*.pages"):  # but not from host memory
                segment.write_bytes(bytes(segment.stat().st_size))
            for prompt, expected in zip(prompts, before):
                answer, cached = self.ask(server, prompt)
                self.assertEqual(answer, expected)
                self.assertGreater(cached, TOKENS)
            self.assertEqual(server.metric("diffserve_kv_tier_errors_total", operation="read"), 0)
            self.assertEqual(server.post("/reset_prefix_cache", b"").status, 200)
            eventually(lambda: server.metric("diffserve_kv_tier_bytes") == 0, "no page on disk")
            self.assertEqual([self.ask(server, prompt) for prompt in prompts],
                             [(answer, 0) for answer in before])
        with self.server(*flags) as server:
            for prompt, expected in zip(prompts, before):
                answer, cached = self.ask(server, prompt)
                self.assertEqual(answer, expected)
                self.assertGreater(cached, TOKENS)

    def test_other_weights_formats_and_salts_find_nothing(self):
        with self.server() as server:
            self.ask(server, cache_salt="one")
        other = self.folder / "other"
        shutil.copytree(tiny_model.directory(), other)
        weights = bytearray((other / "model.safetensors").read_bytes())
        weights[-1] ^= 1
        (other / "model.safetensors").write_bytes(weights)
        others = [((), {}, "two"), (("--quantization", "int8"), {}, "one"),
                  (("--kv-cache-dtype", "int8"), {}, "one"), ((), {"model": other}, "one")]
        if not ON_GPU:  # whose pages have one size
            others.append((("--page-size", 32), {}, "one"))
        for flags, how, salt in others:
            with self.server(*flags, **how) as server:
                self.assertEqual(self.ask(server, cache_salt=salt)[1], 0, (flags, how, salt))
        with self.server() as server:
            self.assertGreater(self.ask(server, cache_salt="one")[1], TOKENS)

    def test_replaced_weights_find_nothing_however_they_are_replaced(self):
        model = self.folder / "model"
        shutil.copytree(tiny_model.directory(), model)
        weights = model / "model.safetensors"
        bytes_by_seed = {
            seed: tiny_model.safetensors_bytes(tiny_model.weights(tiny_model.CONFIG, seed))
            for seed in (1, 2)}

        def in_place(data):
            with open(weights, "r+b") as file:
                file.write(data)

        def unpack(data):  # often with the inode of the file before
            weights.unlink()
            weights.write_bytes(data)

        def rename_over(data):
            (model / "new").write_bytes(data)
            (model / "new").rename(weights)

        weights.write_bytes(bytes_by_seed[1])
        os.utime(weights, ns=(0, 0))  # as `tar --mtime=@0`, which every way keeps
        expected = {}
        for seed in (2, 1):
            in_place(bytes_by_seed[seed])
            with ServerProcess(model=model) as server:
                expected[seed] = self.ask(server)[0]
        self.assertNotEqual(expected[1], expected[2])
        for replace in (in_place, unpack, rename_over):
            for seed in (1, 2, 1):  # the last finds its own pages again
                replace(bytes_by_seed[seed])
                os.utime(weights, ns=(0, 0))
                with self.server(model=model) as server:
                    self.assertEqual(self.ask(server)[0], expected[seed], replace.__name__)
        with self.server(model=model) as server:
            self.assertGreater(self.ask(server)[1], TOKENS)
        self.assertEqual([path for path in (self.folder / "cache").rglob("*.digest")], [])

    def test_reset_forgets_the_disk(self):
        with self.server() as server:
            self.ask(server)
            eventually(lambda: server.metric("diffserve_kv_tier_pages") >= TOKENS // PAGE_SLOTS,
                       "pages on disk")
            self.assertEqual(server.post("/reset_prefix_cache", b"").status, 200)
            eventually(lambda: server.metric("diffserve_kv_tier_bytes") == 0, "no page on disk")
        with self.server() as server:
            self.assertEqual(self.ask(server)[1], 0)

    def test_reset_of_memory_leaves_the_disk_and_the_other_way_round(self):
        with self.server() as server:
            before, _ = self.ask(server)
            eventually(lambda: server.metric("diffserve_kv_tier_pages") >= TOKENS // PAGE_SLOTS,
                       "pages on disk")
            hits = "diffserve_kv_tier_hit_tokens_total"
            self.assertEqual(server.post("/reset_prefix_cache?reset_external=false", b"").status,
                             200)
            after, cached = self.ask(server)
            self.assertEqual((after, server.metric(hits)), (before, cached))
            self.assertGreater(cached, TOKENS)
            # Without pages in memory that are not on disk, nothing is written again.
            self.assertEqual(server.post("/reset_prefix_cache?reset_local=False", b"").status, 200)
            eventually(lambda: server.metric("diffserve_kv_tier_bytes") == 0, "no page on disk")
            after, found = self.ask(server)
            self.assertEqual((after, found, server.metric(hits)), (before, cached, cached))

    def inspect(self, *arguments) -> dict:
        done = subprocess.run([BINARY, "inspect", "--kv-cache-dir", self.folder / "cache", "--json",
                               *map(str, arguments)], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_inspect_tells_what_a_directory_holds_and_which_of_it_a_model_uses(self):
        with self.server() as server:
            usage = server.post("/v1/completions",
                                {"prompt": PROMPT, "max_tokens": 20}).json()["usage"]
            pages = (usage["total_tokens"] - 1) // PAGE_SLOTS  # the last token has no K and V yet
            eventually(lambda: server.metric("diffserve_kv_tier_pages") == pages, "pages on disk")
            [own] = self.inspect()["prefix_cache_on_disk"]["subdirectories"]
            self.assertEqual((own["held"], own["pages"], own["incomplete_segments"]),
                             (True, pages, 1))
            self.assertEqual(own["bytes"], server.metric("diffserve_kv_tier_bytes"))
            server.kill()
        with self.server("--kv-cache-dtype", "int8") as server:
            self.ask(server)
        before = {path: path.stat().st_mtime_ns for path in self.folder.rglob("*")}
        for flags, expected in (((), own["name"]), (("--kv-cache-dtype", "int8"), None)):
            found = self.inspect(tiny_model.directory(), *DEVICE_FLAGS, *flags)
            self.assertEqual(found["family"], "diffllama")
            stores = found["prefix_cache_on_disk"]["subdirectories"]
            [used] = [store for store in stores if store["of_this_model"]]
            self.assertEqual((len(stores), used["held"]), (2, False))
            self.assertEqual(used["name"] == own["name"], expected == own["name"])
            self.assertRegex(used["newest_use"], r"^20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
        self.assertEqual({path: path.stat().st_mtime_ns for path in self.folder.rglob("*")}, before)
        text = subprocess.run([BINARY, "inspect", "--kv-cache-dir", self.folder / "cache"],
                              capture_output=True, text=True, timeout=60).stdout
        self.assertRegex(text, rf"{own['name']} +{pages} pages, .*, segments: 1, "
                               "incomplete: 1, used 20")

    def test_inspect_alone_needs_a_directory_that_is_there(self):
        found = self.inspect(tiny_model.directory(), *DEVICE_FLAGS)["prefix_cache_on_disk"]
        self.assertEqual(found["subdirectories"], [])
        self.assertFalse((self.folder / "cache").exists())
        done = subprocess.run([BINARY, "inspect", "--kv-cache-dir", self.folder / "none"],
                              capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn(f"--kv-cache-dir {self.folder}/none: No such file or directory", done.stderr)

    def test_damage_is_a_miss_that_is_counted_and_logged_once(self):
        with self.server() as server:
            before, _ = self.ask(server)
        [segment] = (self.folder / "cache").rglob("*.pages")
        data = bytearray(segment.read_bytes())
        for position in range(6000, len(data) - 5 * 4096, 4096):  # pages, but not their list
            data[position] ^= 1
        segment.write_bytes(data)
        with self.server() as server:
            after, cached = self.ask(server)
            self.assertEqual((after, cached), (before, 0))
            self.assertGreater(server.metric("diffserve_kv_tier_errors_total", operation="read"), 0)
            self.ask(server, PROMPT + "again")
            self.assertEqual(server.stderr().count("kv_page_not_read"), 1)

    def test_directory_that_cannot_be_used_is_wrong_usage(self):
        (self.folder / "cache").write_text("a file")
        with self.assertRaisesRegex(AssertionError, "--kv-cache-dir .*cache.*Not a directory"):
            self.server().__enter__()


if __name__ == "__main__":
    unittest.main()
