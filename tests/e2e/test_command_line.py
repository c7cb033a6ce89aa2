# SPDX-License-Identifier: Apache-2.0
"""The commands as scripts use them: help, version, wrong flags, generate, logits, inspect and
bench."""

import json
import re
import resource
import shlex
import subprocess
import tempfile
import unittest
from pathlib import Path

import numpy as np

import tiny_model
from server_process import BINARY, ServerProcess
from tiny_model import BOS_ID, EOS_ID, VOCAB_SIZE, encode

PROMPT = [BOS_ID, *encode("a prompt of some length for the logits")]
COMMANDS = ("serve", "logits", "generate", "chat", "bench", "inspect", "convert", "probe",
            "completion")


def run(*arguments, timeout_s=60, **how) -> subprocess.CompletedProcess:
    return subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True,
                          timeout=timeout_s, **how)


class UsageTest(unittest.TestCase):
    def test_help_lists_all_commands_and_flags_with_defaults(self):
        for arguments in (("--help",), ("serve", "--help")):
            result = run(*arguments)
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            words = COMMANDS if arguments[0] == "--help" else ("diffserve serve MODEL_DIR",)
            for word in words + ("--port", "8000", "--max-num-batched-tokens", "2048",
                                    "--page-size", "--api-key-file", "--cpu-isa"):
                self.assertIn(word, result.stdout)

    def test_help_of_a_command_has_its_flags_and_ends_with_the_documents(self):
        help_text = run("bench", "--help").stdout
        self.assertIn("--repeat N", help_text)
        self.assertNotIn("--port", help_text)
        folder = help_text.splitlines()[-1].removeprefix("Documents: ")
        self.assertTrue((Path(folder) / "cli.md").is_file(), folder)

    def test_name_on_the_hub_without_its_prefix_is_understood(self):
        for command in ("serve", "inspect"):
            result = run(command, "kajuma/DiffLlama-1B")
            self.assertEqual(result.returncode, 1)
            self.assertIn("did you mean hf:kajuma/DiffLlama-1B?", result.stderr)
        self.assertIn("did you mean bundled:twin?", run("serve", "twin").stderr)

    def test_version_reports_commit_compilers_backends_and_cpu_levels(self):
        result = run("--version")
        self.assertEqual(result.returncode, 0)
        told = dict(line.split(": ", 1) for line in result.stdout.splitlines())
        self.assertRegex(told["version"], r"^\d+\.\d+\.\d+(\.dev0\+g[0-9a-f]+)?$")
        self.assertRegex(told["commit"], r"^([0-9a-f]{12}|unknown)$")
        self.assertIn("clang", told["kernel compiler"])
        self.assertIn("cpu", told["backends"].split(", "))
        self.assertIn(told["cpu level"], told["cpu levels"].split(", "))

    def test_wrong_usage_is_exit_code_2_and_names_the_flag(self):
        model = tiny_model.directory()
        for arguments, words in (
            ((), ("serve",)),
            (("launch", model), ("launch",)),
            (("serv", model), ("serv", "did you mean serve?")),
            (("serve",), ("MODEL_DIR",)),
            (("serve", model, "--prot", "8000"), ("--prot", "did you mean --port?")),
            (("serve", model, "--port", "70000"), ("--port", "70000", "65535")),
            (("serve", model, "--port", "-1"), ("--port", "-1")),
            (("serve", model, "--port", "80a"), ("--port", "80a")),
            (("serve", model, "--port"), ("--port",)),
            (("serve", model, "--page-size", "20"), ("--page-size", "20", "16")),
            (("serve", model, "--dtype", "float8"), ("--dtype", "float8", "bfloat16")),
            (("serve", model, "--device", "tpu"), ("--device", "tpu", "cpu")),
            (("serve", model, "--cpu-isa", "mmx"), ("--cpu-isa", "mmx", "avx2")),
            (("serve", model, "--kv-cache-memory", "lots"), ("--kv-cache-memory", "lots")),
            (("serve", model, "--max-num-seqs", "0"), ("--max-num-seqs", "0")),
            (("serve", model, "--no-port"), ("--no-port",)),
            (("serve", model, "--config", "/nonexistent.json"), ("--config", "/nonexistent.json")),
            (("serve", model, "extra"), ("extra",)),
            (("generate", model, "--prompt", "x", "--temperature", "-1"), ("--temperature", "-1")),
            (("generate", model, "--prompt", "x", "--port", "1"), ("--port",)),
            (("generate", model), ("--prompt",)),
            (("chat",), ("MODEL_DIR",)),
            (("chat", "--url", "https://host:443"), ("https", "http://HOST:PORT")),
            (("chat", "--url", "http://host:80", "--device", "cpu"), ("--device", "--url")),
            (("probe",), ("URL",)),
            (("logits", model, "--tokens", "1,x", "--output", "/tmp/x.npy"), ("--tokens",)),
            (("logits", model, "--tokens", "1,2"), ("--output",)),
        ):
            with self.subTest(arguments=arguments[:1] + arguments[2:]):
                result = run(*arguments)
                self.assertEqual(result.returncode, 2, result.stderr)
                self.assertEqual(result.stdout, "")
                for word in words:
                    self.assertIn(word, result.stderr)
                self.assertLess(len(result.stderr.splitlines()), 4)

    def test_config_file_sets_flags_and_the_command_line_wins(self):
        with tempfile.TemporaryDirectory() as folder:
            config = Path(folder) / "serve.json"
            config.write_text(
                json.dumps({
                    "served_model_name": "from-file", "max-num-seqs": 3,
                    "enable_prefix_caching": False
                }))
            with ServerProcess("--config", config) as server:
                self.assertEqual(server.name, "from-file")
            with ServerProcess("--config", config, "--served-model-name", "from-flag") as server:
                self.assertEqual(server.name, "from-flag")
            config.write_text(json.dumps({"prot": 1}))
            result = run("serve", tiny_model.directory(), "--config", config)
            self.assertEqual(result.returncode, 2)
            self.assertIn("--prot is not a flag: did you mean --port?", result.stderr)
            config.write_text('{"port": 1,}')
            result = run("serve", tiny_model.directory(), "--config", config)
            self.assertEqual((result.returncode, result.stderr),
                             (2, f"diffserve: --config {config} holds no valid JSON; allowed: one "
                                 "flat JSON object\n"))


class GenerateTest(unittest.TestCase):
    def test_json_has_ids_text_reason_and_timings(self):
        result = run("generate", tiny_model.directory(), "--prompt", "abc", "--max-tokens", 12,
                     "--ignore-eos", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        answer = json.loads(result.stdout)
        self.assertLessEqual({"prompt_token_ids", "token_ids", "text", "finish_reason", "timings"},
                             set(answer))
        self.assertEqual(answer["prompt_token_ids"], [BOS_ID, *encode("abc")])
        self.assertEqual((len(answer["token_ids"]), answer["finish_reason"]), (12, "length"))
        self.assertTrue(answer["timings"])

    def test_generate_and_the_server_give_the_same_text(self):
        plain = run("generate", tiny_model.directory(), "--prompt", "abc", "--max-tokens", 20,
                    "--ignore-eos")
        with ServerProcess() as server:
            body = {"prompt": "abc", "max_tokens": 20, "temperature": 0, "ignore_eos": True}
            text = server.post("/v1/completions", body).json()["choices"][0]["text"]
        self.assertEqual(plain.returncode, 0, plain.stderr)
        self.assertEqual(plain.stdout.rstrip("\n"), text.rstrip("\n"))

    def test_ids_come_from_the_flag_or_a_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "ids.txt"
            path.write_text(" ".join(map(str, PROMPT)) + "\n")
            answers = [
                json.loads(
                    run("generate", tiny_model.directory(), *source, "--max-tokens", 8,
                        "--json").stdout)
                for source in (("--tokens", ",".join(map(str, PROMPT))), ("--tokens", f"@{path}"))
            ]
        self.assertEqual(answers[0]["token_ids"], answers[1]["token_ids"])
        self.assertEqual(answers[0]["prompt_token_ids"], PROMPT)

    def test_sampling_is_seeded(self):
        def draw(seed):
            flags = ("--prompt", "abc", "--max-tokens", 16, "--temperature", 1, "--seed", seed,
                     "--ignore-eos", "--json")
            return json.loads(run("generate", tiny_model.directory(), *flags).stdout)["token_ids"]
        self.assertEqual(draw(1), draw(1))
        self.assertNotEqual(draw(1), draw(2))

    def test_end_token_ends_the_text(self):
        flags = ("--prompt", "x", "--max-tokens", 60, "--json"
                 )  # a continuation that contains the end token
        on = json.loads(run("generate", tiny_model.directory(), *flags, "--ignore-eos").stdout)
        self.assertIn(EOS_ID, on["token_ids"])
        end = on["token_ids"].index(EOS_ID)
        stopped = json.loads(run("generate", tiny_model.directory(), *flags).stdout)
        self.assertEqual(stopped["finish_reason"], "stop")
        self.assertEqual([i for i in stopped["token_ids"] if i != EOS_ID], on["token_ids"][:end])

    def test_too_large_configuration_is_exit_code_1(self):
        result = run("generate", tiny_model.directory(), "--tokens", "267", "--max-tokens", 2)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("267", result.stderr)


class LogitsTest(unittest.TestCase):
    def logits(self, ids, *flags) -> np.ndarray:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "logits.npy"
            result = run("logits", tiny_model.directory(), "--tokens", ",".join(map(str, ids)),
                         "--output", path, *flags)
            self.assertEqual(result.returncode, 0, result.stderr)
            return np.load(path)

    def test_logits_are_float32_rows_of_the_vocabulary_whatever_the_step_size(self):
        whole = self.logits(PROMPT)
        self.assertEqual((whole.dtype, whole.shape),
                         (np.dtype("float32"), (len(PROMPT), VOCAB_SIZE)))
        for tokens in (16, 17):
            np.testing.assert_array_equal(
                self.logits(PROMPT, "--max-num-batched-tokens", tokens), whole)
        np.testing.assert_array_equal(self.logits(PROMPT[:10]), whole[:10])

    def test_file_that_does_not_fit_is_removed(self):
        def limit_file_size():
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "logits.npy"
            result = run("logits", tiny_model.directory(), "--tokens", ",".join(map(str, PROMPT)),
                         "--output", path, preexec_fn=limit_file_size)
            self.assertEqual((result.returncode, result.stdout), (1, ""), result.stderr)
            self.assertEqual(result.stderr,
                             f"diffserve: {path}: cannot be written: File too large\n")
            self.assertFalse(path.exists())

    def test_logits_of_a_text_are_those_of_its_tokens_and_are_reported(self):
        text, rows = "a prompt of some length for the logits", {}
        generated = run("generate", tiny_model.directory(), "--prompt", text, "--max-tokens", 1,
                        "--json")
        ids = json.loads(generated.stdout)["prompt_token_ids"]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "logits.npy"
            for flags in (("--prompt", text), ("--tokens", ",".join(map(str, ids)))):
                result = run("logits", tiny_model.directory(), "--output", path, *flags)
                self.assertEqual((result.returncode, result.stdout), (0, ""), result.stderr)
                rows[flags[0]] = np.load(path)
                best = int(rows[flags[0]][-1].argmax())
                shape = f"float32 [{len(ids)}, {VOCAB_SIZE}]"
                self.assertRegex(result.stderr, rf'^{path}: {re.escape(shape)}; most probable next '
                                                rf'token: {best} ".*", probability 0\.\d\d\d\n$')
            np.testing.assert_array_equal(rows["--prompt"], rows["--tokens"])
            both = run("logits", tiny_model.directory(), "--output", path, "--prompt", text,
                       "--tokens", "1")
        self.assertIn("found 2 prompts; allowed: exactly one of --prompt, --tokens", both.stderr)

    def test_logits_of_ids_need_no_tokenizer(self):
        with tempfile.TemporaryDirectory() as folder:
            model, path = tiny_model.write(Path(folder) / "model"), Path(folder) / "logits.npy"
            for break_it in (lambda file: file.write_text("{"), Path.unlink):
                break_it(model / "tokenizer.json")
                result = run("logits", model, "--tokens", "1,2", "--output", path)
                self.assertRegex(result.stderr, r"most probable next token: \d+, probability 0")
                self.assertEqual(np.load(path).shape, (2, VOCAB_SIZE))
                refused = run("logits", model, "--prompt", "a", "--output", path)
                self.assertIn("tokenizer.json", refused.stderr)

    def test_greedy_tokens_are_the_largest_logits(self):
        flags = ("--tokens", ",".join(map(str,
                                          PROMPT)), "--max-tokens", 20, "--ignore-eos", "--json")
        generated = json.loads(run("generate", tiny_model.directory(), *flags).stdout)["token_ids"]
        rows = self.logits(PROMPT + generated)
        self.assertEqual(rows.argmax(axis=1)[len(PROMPT) - 1:-1].tolist(), generated)
        self.assertEqual(len(generated), 20)

    def test_served_log_probabilities_are_their_log_softmax(self):
        rows = self.logits(PROMPT).astype(np.float64)
        expected = rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))
        with ServerProcess() as server:
            body = {"prompt": PROMPT, "max_tokens": 0, "echo": True, "logprobs": 5}
            scored = server.post("/v1/completions", body).json()["choices"][0]["logprobs"]
        for position in range(1, len(PROMPT)):
            self.assertAlmostEqual(scored["token_logprobs"][position],
                                   expected[position - 1, PROMPT[position]], places=4)
            best = sorted(expected[position - 1], reverse=True)[:5]
            served = sorted(scored["top_logprobs"][position].values(), reverse=True)[:5]
            np.testing.assert_allclose(served, best[:len(served)], atol=1e-4)


class InspectTest(unittest.TestCase):
    def test_inspect_reports_family_shapes_parameters_and_memory(self):
        result = run("inspect", tiny_model.directory())
        self.assertEqual(result.returncode, 0, result.stderr)
        count = sum(tensor.size for tensor in tiny_model.weights(tiny_model.CONFIG).values())
        for word in ("diffllama", str(VOCAB_SIZE), str(tiny_model.MAX_MODEL_LEN), "float32"):
            self.assertIn(word, result.stdout)
        self.assertIn(f"{count / 1e6:.2f} M", result.stdout)
        self.assertEqual(result.stdout.splitlines()[-1].split(),
                         ["serve", "it", "diffserve", "serve", str(tiny_model.directory())])

    def test_inspect_ends_with_the_command_that_serves_it_so(self):
        with tempfile.TemporaryDirectory() as folder:
            model = Path(folder) / "it's mine"
            model.mkdir()
            (model / "config.json").write_text(json.dumps(tiny_model.CONFIG))
            config = Path(folder) / "serve.json"
            config.write_text(json.dumps({"max_num_seqs": 3}))
            result = run("inspect", "--config", config, model, "--load-format", "dummy",
                         "--quantization=int8", "--no-batch-invariant", "--log-level", "error")
            self.assertEqual(result.returncode, 0, result.stderr)
            words = shlex.split(result.stdout.splitlines()[-1].removeprefix("serve it"))
            self.assertEqual(words[:3], ["diffserve", "serve", str(model)])
            serve = [BINARY, *words[1:], "--port", "0", "--no-grpc", "--stop-with-stdin"]
            with subprocess.Popen(serve, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  stderr=subprocess.DEVNULL, text=True) as server:
                self.assertRegex(server.stdout.readline(), "^ready ")
                server.stdin.close()
                self.assertEqual(server.wait(30), 0)
        self.assertEqual(words[3:], [f"--config={config}", "--load-format=dummy",
                                     "--quantization=int8", "--no-batch-invariant",
                                     "--log-level=error"])

    def test_activations_are_of_texts_and_of_tokens(self):
        ids = encode("an answer") + encode(" and a question")
        lines = [{"text": "abc"}, {"tokens": ids, "spans": {"answer": [[0, 9]], "query_from": 20}}]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "lines.jsonl"
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))
            result = run("inspect", tiny_model.directory(), "--activations", path, "--json")
            self.assertEqual(result.returncode, 0, result.stderr)
            found = json.loads(result.stdout)
            path.write_text('{"text": "abc"}\n{"text": "abc", "spans": {"question": [[0, 1]]}}\n')
            refused = run("inspect", tiny_model.directory(), "--activations", path)
        self.assertEqual((found["texts"], found["tokens"]), (2, 4 + len(ids)))  # with BOS
        self.assertEqual(found["layers"][0]["heads"][0]["answer"]["queries"], len(ids) - 20)
        self.assertEqual((refused.returncode, refused.stdout), (2, ""))
        for word in (f"--activations {path}:2", "question", "answer", "query_from"):
            self.assertIn(word, refused.stderr)


class BenchTest(unittest.TestCase):
    def test_model_of_random_weights_is_measured_as_json(self):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(tiny_model.CONFIG))
            flags = ("--load-format", "dummy", "--prompt", "16", "--generate", 4, "--depth", "0,32",
                     "--batch", "1,2", "--repeat", 2)
            result = run("bench", folder, *flags, "--json", timeout_s=120)
        self.assertEqual(result.returncode, 0, result.stderr)
        text = json.dumps(json.loads(result.stdout))
        for word in ("prefill", "decode", "median"):
            self.assertIn(word, text)

    def test_lengths_are_those_that_the_model_has_room_for(self):
        with tempfile.TemporaryDirectory() as folder:
            config = {**tiny_model.CONFIG, "max_position_embeddings": 600}
            (Path(folder) / "config.json").write_text(json.dumps(config))
            result = run("bench", folder, "--load-format", "dummy", "--generate", 4, "--batch", "1",
                         "--repeat", 1, timeout_s=120)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        cases = [line[:28].strip() for line in result.stdout.splitlines()[4:] if line]
        self.assertEqual(cases, ["prefill 512", "prefill 600", "decode depth 0 batch 1",
                                 "decode depth 596 batch 1"])
        self.assertIn("GFLOP/s", result.stdout)
        self.assertIn("GB/s", result.stdout)
