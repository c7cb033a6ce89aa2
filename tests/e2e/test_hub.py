# SPDX-License-Identifier: Apache-2.0
"""Models by name from a hub on loopback that breaks, lies, redirects, throttles and refuses."""

import contextlib
import json
import os
import resource
import shutil
import subprocess
import tempfile
import threading
import time
import unittest
from pathlib import Path

import tiny_model
from hub_stub import (HubStub, Proxy, broken_after, commit_of, content, etag_of, held_after, length,
                      moved_to, sibling, status, whole)
from server_process import BINARY, DEMO_MODEL, ServerProcess, eventually

NAME, WEIGHTS, HALF = "acme/tiny", "model.safetensors", 200_000
VARIABLES = ("HF_", "HUGGINGFACE_", "TRANSFORMERS_", "SSL_CERT", "CURL_CA", "REQUESTS_CA", "XDG_",
             "http_proxy", "https_proxy", "all_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY",
             "ALL_PROXY", "NO_PROXY")


def tiny_files() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(tiny_model.directory().iterdir())}


class HubTest(unittest.TestCase):
    def setUp(self):
        self.home = Path(tempfile.mkdtemp(prefix="diffserve-hf-"))
        self.addCleanup(shutil.rmtree, self.home, ignore_errors=True)
        self.files = tiny_files() | {"pytorch_model.bin": b"pickle", "README.md": b"# Tiny\n"}
        self.hub = self.enterContext(HubStub({NAME: self.files}))
        self.cache = self.home / "hub"
        self.folder = self.cache / "models--acme--tiny"

    def environment(self, **changes) -> dict:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(VARIABLES)}
        mine = {"HF_HOME": str(self.home), "HF_ENDPOINT": self.hub.endpoint,
                "SSL_CERT_FILE": str(self.hub.certificate)}
        return {name: value for name, value in (kept | mine | changes).items() if value is not None}

    def run_command(self, *arguments, limit: int | None = None, **environment):
        def limited():
            if limit is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        return subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True,
                              env=self.environment(**environment), timeout=120, preexec_fn=limited)

    def inspect(self, name: str = f"hf:{NAME}", **options):
        return self.run_command("inspect", name, "--json", **options)

    def fetched(self, name: str = f"hf:{NAME}", **options):
        done = self.inspect(name, **options)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def refused(self, *words, name: str = f"hf:{NAME}", **options) -> str:
        """The command fails with one error line that has all the words."""
        done = self.inspect(name, **options)
        self.assertEqual(done.returncode, 1, done.stderr)
        errors = [line for line in done.stderr.splitlines() if line.startswith("diffserve: ")]
        self.assertEqual(len(errors), 1, done.stderr)
        for word in words:
            self.assertIn(word, errors[0])
        return errors[0]

    def snapshot(self) -> Path:
        return self.folder / "snapshots" / commit_of(self.files)

    def blob(self, name: str) -> Path:
        return self.folder / "blobs" / etag_of(self.files[name])

    def incomplete(self) -> Path:
        return Path(f"{self.blob(WEIGHTS)}.incomplete")

    def starts_of_weights(self) -> list[str]:
        """The byte from which each request asked for the weights."""
        return [headers.get("Range", "bytes=0-") for headers in self.hub.asked(WEIGHTS)]


class LayoutTest(HubTest):
    def test_only_files_that_are_read_are_in_the_cache_as_relative_links(self):
        self.fetched()
        names = sorted(path.name for path in self.snapshot().iterdir())
        self.assertEqual(names, sorted(tiny_files()))
        for name in names:
            link = self.snapshot() / name
            self.assertEqual(os.readlink(link), f"../../blobs/{etag_of(self.files[name])}")
            self.assertEqual(link.read_bytes(), self.files[name])
        self.assertEqual((self.folder / "refs" / "main").read_text(), commit_of(self.files))
        self.assertFalse(list((self.folder / "blobs").glob("*.incomplete")))
        locks = self.cache / ".locks" / "models--acme--tiny"
        self.assertTrue((locks / f"{etag_of(self.files[WEIGHTS])}.lock").exists())

    def test_second_start_asks_only_for_the_commit(self):
        self.fetched()
        self.hub.requests.clear()
        self.fetched()
        self.assertEqual([name for _, name, _, _ in self.hub.requests], ["api"])

    def test_a_commit_that_is_complete_needs_no_network(self):
        name = f"hf:{NAME}@{commit_of(self.files)}"
        self.fetched(name)
        self.hub.requests.clear()
        self.fetched(name)
        self.assertEqual(self.hub.requests, [])
        self.assertFalse((self.folder / "refs").exists())

    def test_a_revision_with_a_slash_is_a_ref(self):
        self.fetched(f"hf:{NAME}@refs/pr/1")
        self.assertEqual((self.folder / "refs/refs/pr/1").read_text(), commit_of(self.files))

    def test_new_commit_fetches_what_changed(self):
        self.fetched()
        self.files["generation_config.json"] = b'{"eos_token_id": [1]}'
        self.hub.requests.clear()
        self.fetched()
        self.assertEqual([name for _, name, _, _ in self.hub.requests],
                         ["api", "generation_config.json"])
        self.assertEqual(self.blob(WEIGHTS), (self.snapshot() / WEIGHTS).resolve())

    def test_shards_of_the_index_are_fetched_and_no_others(self):
        self.make_shards()
        self.fetched()
        self.assertEqual(
            sorted(path.name for path in self.snapshot().iterdir()),
            sorted({*tiny_files(), "a.safetensors", "b.safetensors", f"{WEIGHTS}.index.json"} -
                   {WEIGHTS}))

    def make_shards(self, **places):
        tensors = tiny_model.weights(tiny_model.CONFIG)
        names = sorted(tensors)
        shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
        for shard, held in shards.items():
            held_tensors = {name: tensors[name] for name in held}
            self.files[shard] = tiny_model.safetensors_bytes(held_tensors)
        self.files["consolidated.safetensors"] = self.files.pop(WEIGHTS)
        weight_map = {name: shard for shard, held in shards.items() for name in held}
        index = {"weight_map": weight_map | places}
        self.files[f"{WEIGHTS}.index.json"] = json.dumps(index).encode()

    def test_a_shard_outside_of_the_directory_is_refused(self):
        self.make_shards(**{"model.norm.weight": "../../a.safetensors"})
        self.refused("plain file name")

    def test_a_shard_that_the_repository_has_not_is_refused(self):
        self.make_shards(**{"model.norm.weight": "c.safetensors"})
        self.refused("c.safetensors", "has not")

    def test_names_that_lead_out_of_the_directory_are_never_taken(self):
        listed = [sibling(*file) for file in self.files.items()]
        for evil in ("../evil", "/tmp/evil", "a/../../evil",
                     "additional_chat_templates/../evil.jinja"):
            listed.append(sibling(evil, b"evil"))
        outside = {"blobId": "../../../../evil".ljust(40)}
        listed.append(sibling("added_tokens.json", b"{}") | outside)
        body = json.dumps({"sha": commit_of(self.files), "siblings": listed}).encode()
        self.hub.spoil("api", content(body))
        self.fetched()
        self.assertEqual(sorted(path.name for path in self.snapshot().iterdir()),
                         sorted(tiny_files()))
        self.assertEqual([], list(self.home.rglob("*evil*")))

    def test_chat_templates_of_the_folder_are_fetched(self):
        self.files["additional_chat_templates/tool_use.jinja"] = b"{{ messages }}"
        self.fetched()
        link = self.snapshot() / "additional_chat_templates/tool_use.jinja"
        self.assertTrue(os.readlink(link).startswith("../../../blobs/"))
        self.assertEqual(link.read_bytes(), b"{{ messages }}")

    def test_dummy_weights_fetch_no_weights(self):
        done = self.run_command("inspect", f"hf:{NAME}", "--load-format", "dummy", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.hub.asked("redirect"), [])

    def test_the_server_has_the_name_of_the_repository(self):
        with ServerProcess(model=f"hf:{NAME}", environment=self.clean_environment()) as server:
            self.assertEqual(server.name, NAME)
            answer = server.post("/v1/completions", {"model": NAME, "prompt": "a", "max_tokens": 1})
            self.assertEqual(answer.status, 200)

    def clean_environment(self) -> dict:
        return dict.fromkeys((name for name in os.environ if name.startswith(VARIABLES)), "") | {
            name: value for name, value in self.environment().items() if name.startswith(VARIABLES)}

    def test_convert_reads_a_name_too(self):
        copy = self.home / "copy"
        done = self.run_command("convert", f"hf:{NAME}", copy)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual((copy / "tokenizer.json").read_bytes(), self.files["tokenizer.json"])


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


class AccessTest(HubTest):
    def test_the_token_is_sent_to_the_hub_and_not_to_another_host(self):
        self.fetched(HF_TOKEN="hf_secret\n")
        for name in ("api", "config.json", "redirect"):
            self.assertEqual(self.hub.asked(name)[0].get("Authorization"), "Bearer hf_secret")
        for headers in self.hub.asked(WEIGHTS):
            self.assertNotIn("hf_secret", str(headers))
            self.assertTrue(headers["Host"].startswith("127.0.0.1"))

    def test_the_token_file_of_hugging_face_is_read(self):
        (self.home / "token").write_text("hf_file")
        self.fetched()
        self.assertEqual(self.hub.asked("api")[0].get("Authorization"), "Bearer hf_file")
        elsewhere = self.home / "elsewhere"
        elsewhere.write_text("hf_other")
        self.fetched(HF_TOKEN_PATH=str(elsewhere))
        self.assertEqual(self.hub.asked("api")[1].get("Authorization"), "Bearer hf_other")

    def test_an_answer_never_leads_from_https_to_http(self):
        self.hub.spoil("redirect",
                       *[moved_to(self.hub.cdn.replace("https", "http") + "/cdn/x/y")] * 6)
        self.refused("http")
        self.assertEqual(self.hub.asked(WEIGHTS), [])

    def test_gated_says_where_to_accept_and_which_variable(self):
        self.hub.spoil("config.json", status(401, "GatedRepo"))
        self.refused("gated", f"{self.hub.endpoint}/{NAME}", "set HF_TOKEN")
        self.hub.spoil("config.json", status(403, "GatedRepo"))
        self.refused("gated", "token of HF_TOKEN does not allow it", HF_TOKEN="hf_x")

    def test_a_name_or_revision_that_does_not_exist_is_an_error_at_once(self):
        self.refused("acme/none does not exist, or is private", name="hf:acme/none")
        self.hub.spoil("api", status(401, "RepoNotFound"))
        self.refused("does not exist, or is private", "set HF_TOKEN")
        self.refused("no revision v2", name=f"hf:{NAME}@v2")
        self.hub.spoil("api", status(401, message="Invalid credentials in Authorization header"))
        self.refused("HF_TOKEN is not valid", HF_TOKEN="hf_old")
        self.assertEqual(len(self.hub.asked("api")), 4)

    def test_pickles_only_are_refused_before_anything_large(self):
        self.files.pop(WEIGHTS)
        self.files["pytorch_model.bin"] = b"p" * 200_000
        self.refused("pickled weights (pytorch_model.bin), allowed: safetensors")
        self.assertEqual(self.hub.asked("redirect"), [])

    def test_a_family_that_is_not_served_is_refused_as_inspect_does(self):
        config = dict(tiny_model.CONFIG, model_type="mixtral")
        self.files["config.json"] = json.dumps(config).encode()
        error = self.refused('model_type is "mixtral", expected one of those served')
        self.assertEqual(self.hub.asked("redirect"), [])
        local = self.home / "local"
        tiny_model.write(local, config)
        by_directory = self.inspect(local).stderr.partition("config.json")[2]
        self.assertEqual(error.partition("config.json")[2], by_directory.strip())

    def test_a_certificate_that_is_not_trusted_is_refused_at_once(self):
        self.refused("certificate", "SSL_CERT_FILE", SSL_CERT_FILE=None,
                     CURL_CA_BUNDLE="/etc/ssl/certs/ca-certificates.crt")
        self.refused("SSL_CERT_FILE", "not a file", SSL_CERT_FILE="/nonexistent")
        self.assertEqual(self.hub.requests, [])

    def test_a_name_that_is_none_says_what_is_allowed(self):
        for name in ("hf:tiny", "hf:a/b/c", "hf:a/..", "hf:a/b@../x", "hf:a/b@", "hf:-a/b"):
            self.refused("hf:ORG/NAME", name=name)

    def test_a_page_instead_of_an_answer_is_no_hub(self):
        self.hub.spoil("api", content(b"<html>Sign in to this network</html>"))
        self.refused("/api/models/acme/tiny")


class WithoutNetworkTest(HubTest):
    def test_proxy_is_used_but_for_the_hosts_of_no_proxy(self):
        with Proxy() as proxy:
            self.fetched(HTTPS_PROXY=proxy.address)
            self.assertEqual({place.partition(":")[0] for place in proxy.places},
                             {"localhost", "127.0.0.1"})
            proxy.places.clear()
            self.fetched(HTTPS_PROXY=proxy.address, NO_PROXY="localhost")
            self.assertEqual(proxy.places, [])

    def test_offline_uses_the_cache_and_sends_no_request(self):
        self.fetched()
        self.hub.requests.clear()
        self.fetched(HF_HUB_OFFLINE="1")
        self.assertEqual(self.hub.requests, [])

    def test_offline_names_what_the_cache_has(self):
        self.refused("HF_HUB_OFFLINE is set", "which has no model", HF_HUB_OFFLINE="1")
        self.fetched()
        self.refused("hf:acme/other@main is not in the cache", f"hf:{NAME}@main",
                     name="hf:acme/other", HF_HUB_OFFLINE="1")
        (self.snapshot() / WEIGHTS).unlink()
        self.refused(f"lacks {WEIGHTS}", HF_HUB_OFFLINE="1")

    def test_a_hub_that_cannot_be_asked_is_replaced_by_the_cache(self):
        self.fetched()
        done = self.fetched(HF_ENDPOINT="https://localhost:1")
        self.assertIn("hub_unavailable", done.stderr)
        self.hub.spoil("api", status(503))
        self.assertIn("hub_unavailable", self.fetched().stderr)

    def test_without_cache_and_network_the_address_is_named(self):
        self.refused("https://localhost:1/api/models/acme/tiny", "check the network",
                     HF_ENDPOINT="https://localhost:1")

    def test_a_revision_that_is_gone_is_an_error_though_it_is_cached(self):
        self.fetched()
        self.hub.spoil("api", status(404, "RevisionNotFound"))
        self.refused("no revision main")


class HuggingFaceHubTest(HubTest):
    """Both directions with the real huggingface_hub."""

    def python(self, program: str, **environment) -> str:
        done = subprocess.run([os.sys.executable, "-c", program], capture_output=True, text=True,
                              env=self.environment(**environment), timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.strip()

    def test_it_finds_offline_what_diffserve_fetched(self):
        self.fetched()
        found = self.python(
            "import huggingface_hub as h\n"
            f"print(h.snapshot_download('{NAME}'))\n"
            f"print(h.hf_hub_download('{NAME}', 'config.json'))\n"
            f"print(h.try_to_load_from_cache('{NAME}', '{WEIGHTS}'))\n"
            "info, = h.scan_cache_dir().repos\n"
            "print(info.repo_id, info.size_on_disk, len(h.scan_cache_dir().warnings))",
            HF_HUB_OFFLINE="1").splitlines()
        size = sum(map(len, tiny_files().values()))
        self.assertEqual(found, [str(self.snapshot()), str(self.snapshot() / "config.json"),
                                 str(self.snapshot() / WEIGHTS), f"{NAME} {size} 0"])

    def test_diffserve_uses_offline_what_it_fetched(self):
        with HubStub({NAME: self.files}, tls=False) as plain:
            folder = self.python(
                f"import huggingface_hub as h\nprint(h.snapshot_download('{NAME}'))",
                HF_ENDPOINT=plain.endpoint)
        self.assertEqual(folder, str(self.snapshot()))
        self.fetched(HF_HUB_OFFLINE="1")
        self.hub.requests.clear()
        self.fetched()
        self.assertEqual([name for _, name, _, _ in self.hub.requests], ["api"])


class BundledTest(unittest.TestCase):
    def test_the_bundled_model_has_a_name(self):
        asked = ["--tokens", "1,2,3", "--max-tokens", "4", "--json"]
        outputs = [
            json.loads(
                subprocess.run([BINARY, "generate", name, *asked], capture_output=True, text=True,
                               check=True).stdout)["token_ids"]
            for name in ("bundled:diff", DEMO_MODEL)]
        self.assertEqual(outputs[0], outputs[1])

    def test_another_name_lists_those_that_are_there(self):
        done = subprocess.run([BINARY, "inspect", "bundled:none"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("allowed: bundled:diff, bundled:draft, bundled:twin", done.stderr)


if __name__ == "__main__":
    unittest.main()
