# SPDX-License-Identifier: Apache-2.0
"""Models by name from a hub on loopback that lies, redirects, throttles and refuses."""

import json
import os
import subprocess
import unittest

import tiny_model
from hub_case import NAME, VARIABLES, WEIGHTS, HubTest, tiny_files
from hub_stub import HubStub, Proxy, commit_of, content, etag_of, moved_to, sibling, status
from server_process import BINARY, DEMO_MODEL, ServerProcess


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
        self.files["added_tokens.json"] = b"{}"
        outside = {"added_tokens.json": {"blobId": "../../../../evil".ljust(40)}}
        listed = [sibling(*file) | outside.get(file[0], {}) for file in self.files.items()]
        for evil in ("../evil", "/tmp/evil", "a/../../evil",
                     "additional_chat_templates/../evil.jinja"):
            listed.append(sibling(evil, b"evil"))
        body = json.dumps({"sha": commit_of(self.files), "siblings": listed}).encode()
        self.hub.spoil("api", content(body))
        self.fetched()
        self.assertEqual(sorted(path.name for path in self.snapshot().iterdir()),
                         sorted([*tiny_files(), "added_tokens.json"]))
        self.assertTrue(self.blob("added_tokens.json").exists())
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
        self.hub.spoil("redirect", moved_to(self.hub.cdn.replace("https", "http") + "/cdn/x/y"))
        self.refused('"http" not supported')
        self.assertEqual(self.hub.asked(WEIGHTS), [])

    def test_an_answer_that_leads_nowhere_is_refused_at_once(self):
        for words, *answers in (("Maximum (5) redirects", *[moved_to("config.json")] * 6),
                                ("URL", moved_to("https://a b/"))):
            self.hub.spoil("config.json", *answers)
            self.refused(words, "config.json")  # the next answer would be good

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
        self.refused("pickled weights (pytorch_model.bin), not safetensors")
        self.assertEqual(self.hub.asked("redirect"), [])

    def test_a_family_that_is_not_served_is_refused_as_inspect_does(self):
        config = dict(tiny_model.CONFIG, model_type="mixtral")
        self.files["config.json"] = json.dumps(config).encode()
        error = self.refused('model_type is "mixtral"; allowed: diffllama')
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

    def test_an_older_commit_that_replaces_the_newest_is_logged(self):
        self.fetched()
        older = self.snapshot()
        self.files["generation_config.json"] = b'{"eos_token_id": [1]}'
        self.hub.spoil("generation_config.json", status(429, Retry_After="1000"))
        line = next(line for line in self.fetched().stderr.splitlines()
                    if "hub_unavailable" in line)
        self.assertIn(str(older), line)
        self.assertIn(commit_of(self.files), line)

    def test_a_snapshot_that_is_no_longer_main_is_logged(self):
        self.fetched()
        older = self.snapshot()
        self.assertNotIn("snapshot_not_newest", self.fetched(str(older)).stderr)
        self.files["generation_config.json"] = b'{"eos_token_id": [1]}'
        self.fetched()
        line = next(line for line in self.fetched(str(older)).stderr.splitlines()
                    if "snapshot_not_newest" in line)
        self.assertIn(commit_of(self.files), line)
        self.assertNotIn("snapshot_not_newest", self.fetched(str(self.snapshot())).stderr)

    def test_offline_a_ref_without_its_snapshot_is_named(self):
        self.fetched()
        (self.folder / "refs" / "main").write_text("b" * 40)
        self.refused("its main is commit " + "b" * 40, f"hf:{NAME}@{commit_of(self.files)}",
                     HF_HUB_OFFLINE="1")

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

    def test_variables_name_the_folder_and_token_that_they_name_there(self):
        (self.home / "token").write_text(" hf_file\n")
        home = {"HOME": str(self.home), "HF_HOME": None, "SCRATCH": f"{self.home}/scratch"}
        cases = [{}, {"XDG_CACHE_HOME": "~/xdg"}, {"XDG_CACHE_HOME": "$SCRATCH"},
                 {"HF_HOME": "~/hf"}, {"HF_HOME": "${SCRATCH}/$HOME"}, {"HF_HOME": "~root/hf"},
                 {"HF_HOME": "~no-such-user/$NO_SUCH_NAME"}, {"HUGGINGFACE_HUB_CACHE": "~/older"},
                 {"HF_HUB_CACHE": "$SCRATCH/newer", "HUGGINGFACE_HUB_CACHE": "~/older"},
                 {"HF_HOME": str(self.home)}, {"HF_TOKEN_PATH": "~/token"},
                 {"HF_TOKEN": "hf_new\n", "HUGGING_FACE_HUB_TOKEN": "hf_old"},
                 {"HUGGING_FACE_HUB_TOKEN": "hf_\nold", "HF_HOME": str(self.home)},
                 {"HF_TOKEN": " ", "HUGGING_FACE_HUB_TOKEN": "hf_old"},
                 {"HF_TOKEN": "hf_new", "HF_HUB_DISABLE_IMPLICIT_TOKEN": "yes"},
                 {"HF_ENDPOINT": self.hub.endpoint + "//"}]
        for case in cases:
            with self.subTest(case):
                theirs = json.loads(self.python(
                    "import json\nfrom huggingface_hub import constants, utils\n"
                    "sent = utils.build_hf_headers().get('authorization')\n"
                    "print(json.dumps([constants.HF_HUB_CACHE, sent]))", **home | case))
                self.assertIn(f"the cache {theirs[0]},", self.inspect(
                    "hf:acme/none", HF_HUB_OFFLINE="1", **home | case).stderr)
                self.hub.requests.clear()
                self.inspect("hf:acme/none", **home | case)
                self.assertEqual(self.hub.asked("api")[0].get("Authorization"), theirs[1])

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

    def test_it_is_served_as_demo_and_diff(self):
        for place in ("demo", DEMO_MODEL):
            with ServerProcess(model=place) as server:
                listed = [model["id"] for model in server.get("/v1/models").json()["data"]]
                self.assertEqual(listed, ["diff", "demo"])
                for name in listed:
                    asked = {"model": name, "prompt": "Oslo", "max_tokens": 1}
                    self.assertEqual(server.post("/v1/completions", asked).status, 200)
                refused = server.post("/v1/completions", {**asked, "model": "tiny"})
                self.assertIn("served: diff, demo", refused.error["message"])

    def test_another_name_lists_those_that_are_there(self):
        done = subprocess.run([BINARY, "inspect", "bundled:none"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("allowed: bundled:diff, bundled:draft, bundled:twin", done.stderr)


if __name__ == "__main__":
    unittest.main()
