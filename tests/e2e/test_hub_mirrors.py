# SPDX-License-Identifier: Apache-2.0
"""Mirrors and artifact stores as hubs: lists without sizes and hashes, etags of their own, and
codings that were not asked for. What huggingface_hub does with the same answers is the measure."""

import gzip
import subprocess
import sys
import unittest

from hub_case import NAME, WEIGHTS, HubTest, tiny_files
from hub_stub import LARGE_BYTES, broken_after, commit_of, content, etag_of, gzipped, moved_to


class ListWithoutSizesTest(HubTest):
    def setUp(self):
        super().setUp()
        self.hub.lists_sizes = False

    def test_sizes_and_etags_are_those_of_head(self):
        done = self.fetched(HF_TOKEN="hf_secret")
        for name in tiny_files():
            self.assertEqual((self.snapshot() / name).read_bytes(), self.files[name])
            self.assertEqual((self.snapshot() / name).resolve().name, etag_of(self.files[name]))
        self.assertEqual(len(self.hub.asked("redirect", method="HEAD")),
                         sum(len(self.files[name]) >= LARGE_BYTES for name in tiny_files()))
        self.assertEqual(self.hub.asked(WEIGHTS, method="HEAD"), [], "only GET may follow")
        self.assertEqual(self.hub.asked("README.md", method="HEAD"), [], "it is not read")
        self.assertEqual(self.hub.asked("config.json", method="HEAD")[0]["Authorization"],
                         "Bearer hf_secret")
        self.assertIn("download_unchecked", done.stderr)

    def test_huggingface_hub_has_the_same_files(self):
        self.fetched()
        program = (f"import huggingface_hub as h\nfor name in {sorted(tiny_files())}:\n"
                   f"    print(h.hf_hub_download('{NAME}', name))")
        with self.subTest("theirs from the same mirror"):
            done = subprocess.run(
                [sys.executable, "-c", program], capture_output=True, text=True, timeout=120,
                env=self.environment(HF_HUB_OFFLINE="1"))
            self.assertEqual(done.stdout.split(),
                             [str(self.snapshot() / name) for name in sorted(tiny_files())],
                             done.stderr)

    def test_weights_of_another_hash_are_refused(self):
        wrong = content(bytes(len(self.files[WEIGHTS])))
        self.hub.spoil(WEIGHTS, wrong, wrong)
        self.refused("another content than the hash")

    def test_an_etag_of_the_mirrors_own_names_the_blob(self):
        config = self.files["config.json"]
        self.hub.spoil("config.json", content(config, ETag='W/"5f-abc:gzip"'), method="HEAD")
        done = self.fetched()
        self.assertEqual((self.snapshot() / "config.json").resolve().name, "5f-abc:gzip")
        self.assertIn("download_unchecked", done.stderr)

    def test_a_head_that_moves_is_followed(self):
        other = f"/cdn/{commit_of(self.files)}/config.json"
        self.hub.files[commit_of(self.files)] = self.files
        for place in (other, self.hub.endpoint + other, self.hub.cdn + other):
            with self.subTest(place):
                self.hub.spoil("config.json", moved_to(place),
                               content(self.files["config.json"], ETag='"moved"'), method="HEAD")
                self.fetched()
                self.assertEqual((self.snapshot() / "config.json").resolve().name, "moved")
                (self.snapshot() / "config.json").unlink()

    def test_without_an_etag_the_file_is_refused(self):
        config = self.files["config.json"]
        for etag in ({}, {"ETag": '""'}, {"ETag": '"../../x"'}, {"ETag": '".hidden"'}):
            with self.subTest(etag):
                self.hub.spoil("config.json", content(config, **etag), method="HEAD")
                self.refused("config.json", "ETag is")

    def test_a_size_that_counts_the_encoded_bytes_is_not_taken(self):
        coded = gzip.compress(self.files["config.json"])
        self.hub.spoil("config.json", content(coded, ETag='"x"', Content_Encoding="gzip"),
                       method="HEAD")
        self.hub.spoil("config.json", gzipped, gzipped)
        self.fetched()
        self.assertEqual((self.snapshot() / "config.json").read_bytes(),
                         self.files["config.json"])

    def test_offline_and_second_start_use_what_is_there(self):
        self.fetched()
        self.fetched(HF_HUB_OFFLINE="1")
        self.hub.requests.clear()
        self.fetched()
        self.assertEqual({method for method, name, _, _ in self.hub.requests if name != "api"},
                         {"HEAD"})


class CodingTest(HubTest):
    def test_a_coding_that_was_not_asked_for_is_decoded(self):
        for name in ("api", "config.json", "tokenizer.json", WEIGHTS):
            self.hub.spoil(name, gzipped)
        self.fetched()
        for name in tiny_files():
            self.assertEqual((self.snapshot() / name).read_bytes(), self.files[name])
        for name in ("api", "config.json", WEIGHTS):
            self.assertEqual(self.hub.asked(name)[0]["Accept-Encoding"], "identity")

    def test_a_coding_that_is_not_known_is_refused_by_name(self):
        for name in ("api", "config.json"):
            with self.subTest(name):
                self.hub.spoil(name, content(b"xyz", Content_Encoding="exi"))
                self.refused('Content-Encoding is "exi"')

    def test_a_range_in_a_coding_starts_the_file_again(self):
        weights = self.files[WEIGHTS]
        coded = gzip.compress(weights)[1000:]
        head = {"Content_Encoding": "gzip",
                "Content_Range": f"bytes 1000-{len(weights) - 1}/{len(weights)}"}
        self.hub.spoil(WEIGHTS, broken_after(1000), content(coded, 206, **head))
        self.fetched()
        self.assertEqual((self.snapshot() / WEIGHTS).read_bytes(), weights)
        self.assertEqual(self.starts_of_weights(), ["bytes=0-", "bytes=1000-", "bytes=0-"])


if __name__ == "__main__":
    unittest.main()
