# SPDX-License-Identifier: Apache-2.0
"""diffserve convert: its output and exit codes, and that it leaves nothing when it fails or is
interrupted."""

import json
import resource
import signal
import subprocess
import tempfile
import unittest
from pathlib import Path

import numpy as np

import tiny_model
from server_process import BINARY, eventually

UNILM = {
    "model_type": "diff_transformer",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "torch_dtype": "float32",
}


def run(*arguments, **how) -> subprocess.CompletedProcess:
    return subprocess.run([BINARY, "convert", *map(str, arguments)], capture_output=True, text=True,
                          timeout=120, **how)


def state_dict() -> dict[str, np.ndarray]:
    """Tensors named as in unilm's modules, with fused projections."""
    rng = np.random.default_rng(1)
    width, inner, vocab = (UNILM[key] for key in ("hidden_size", "intermediate_size", "vocab_size"))

    def random(*shape):
        return (rng.standard_normal(shape) / 6).astype(np.float32)

    tensors = {
        "tok_embeddings.weight": random(vocab, width), "norm.weight": random(width),
        "output.weight": random(vocab, width)
    }
    for layer in range(UNILM["num_hidden_layers"]):
        at = f"layers.{layer}."
        tensors |= {
            at + "attn.qkv_proj.weight": random(32 + 16 + 16, width),
            at + "attn.out_proj.weight": random(width, 32), at + "attn.subln.weight": random(16),
            at + "attention_norm.weight": random(width), at + "ffn_norm.weight": random(width),
            at + "feed_forward.w13.weight": random(2 * inner, width),
            at + "feed_forward.w2.weight": random(width, inner)
        }
        tensors |= {at + f"attn.lambda_{name}": random(8) for name in ("q1", "k1", "q2", "k2")}
    return tensors


def of_diff_mlx() -> tuple[dict, dict[str, np.ndarray], dict[str, str]]:
    """config.json and tensors as diff-mlx writes them, and each tensor's served name."""
    model = {
        "dim": 32, "n_layers": 2, "n_heads_vanilla": 4, "qk_head_dim": 8, "vocab_size": 64,
        "mlp_intermediate": 48, "block_size": 64, "rope_base": 10000.0, "rms_eps": 1e-05,
        "tie_embeddings": True, "amp_dtype": "bfloat16"
    }
    names = {"model.tok_embed.weight": "model.embed_tokens.weight"}
    for layer in range(model["n_layers"]):
        names |= {
            f"model.blocks.{layer}.{name}": f"model.layers.{layer}.{served}"
            for name, served in (("norm_attn.scale", "input_layernorm.weight"),
                                 ("attn.q_proj.weight", "self_attn.q_proj.weight"),
                                 ("attn.k_proj.weight", "self_attn.k_proj.weight"),
                                 ("attn.v_proj.weight", "self_attn.v_proj.weight"),
                                 ("attn.o_proj.weight", "self_attn.out_proj.weight"),
                                 ("attn.lambda_q1", "self_attn.lambda_q1"),
                                 ("attn.lambda_k1", "self_attn.lambda_k1"),
                                 ("attn.lambda_q2", "self_attn.lambda_q2"),
                                 ("attn.lambda_k2", "self_attn.lambda_k2"),
                                 ("attn.subln.scale", "self_attn.subln.weight"),
                                 ("norm_mlp.scale", "post_attention_layernorm.weight"),
                                 ("mlp.gate.weight", "mlp.gate_proj.weight"),
                                 ("mlp.up.weight", "mlp.up_proj.weight"),
                                 ("mlp.down.weight", "mlp.down_proj.weight"))
        }
    names["model.final_norm.scale"] = "model.norm.weight"
    shapes = {
        "tok_embed.weight": (64, 32), "subln.scale": (16, ), "scale": (32, ),
        "gate.weight": (48, 32), "up.weight": (48, 32), "down.weight": (32, 48),
        "_proj.weight": (32, 32), "": (8, )
    }
    rng = np.random.default_rng(2)

    def random(name: str) -> np.ndarray:
        shape = next(shape for end, shape in shapes.items() if name.endswith(end))
        return (rng.standard_normal(shape) / 3).astype(np.float32)

    return {"model": model, "train": {"peak_lr": 4e-4}}, {n: random(n) for n in names}, names


class ConvertTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def names(self, folder: Path) -> list[str]:
        return sorted(path.name for path in folder.iterdir())

    def logits(self, model: Path) -> np.ndarray:
        output = self.folder / "logits.npy"
        command = [BINARY, "logits", model, "--tokens", "1,2,3,5,8,13", "--output", output]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        logits = np.load(output)
        output.unlink()
        return logits

    def test_directory_of_transformers_is_copied_clean_and_served_the_same(self):
        source, result = tiny_model.write(self.folder / "source"), self.folder / "result"
        (source / "modeling.py").write_text("raise SystemExit")
        done = run(source, result)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(self.names(result), [
            "config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
            "tokenizer_config.json"
        ])
        for words in ("family diffllama", "in 1 file", "not copied     modeling.py",
                      "checked by loading"):
            self.assertIn(words, done.stdout)
        self.assertLess(len(done.stdout.splitlines()), 8)
        np.testing.assert_array_equal(self.logits(result), self.logits(source))
        self.assertEqual(result.stat().st_mode & 0o777, source.stat().st_mode & 0o777)

    def test_state_dict_of_unilm_becomes_a_model_in_bfloat16(self):
        source, result = self.folder / "source", self.folder / "result"
        source.mkdir()
        (source / "config.json").write_text(json.dumps(UNILM))
        (source / "state.safetensors").write_bytes(tiny_model.safetensors_bytes(state_dict()))
        done = run(source, result, "--dtype", "bfloat16")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("4 fused", done.stdout)
        self.assertEqual(self.names(result), ["config.json", "model.safetensors"])
        self.assertIn(b"model.layers.1.self_attn.k_proj.weight",
                      (result / "model.safetensors").read_bytes())
        self.assertEqual(json.loads((result / "config.json").read_text()),
                         UNILM | {"torch_dtype": "bfloat16"})
        self.assertTrue(np.isfinite(self.logits(result)).all())

    def write(self, name: str, config: dict, tensors: dict[str, np.ndarray]) -> Path:
        folder = self.folder / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config, indent=2))
        (folder / "latest.safetensors").write_bytes(tiny_model.safetensors_bytes(tensors))
        return folder

    def test_run_of_diff_mlx_becomes_the_diff_transformer_that_it_is(self):
        config, tensors, names = of_diff_mlx()
        by_hand = self.write("by_hand", UNILM | {
            "num_key_value_heads": 2, "tie_word_embeddings": True
        }, {names[name]: tensor
            for name, tensor in tensors.items()})
        (by_hand / "latest.safetensors").rename(by_hand / "model.safetensors")
        expected = self.logits(by_hand)
        without_prefix = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
        state = {
            "opt." + name + moment: tensor
            for name, tensor in without_prefix.items()
            for moment in (".m", ".v")
        }
        for number, (sources, dropped) in enumerate(
            ((tensors | state, 2 * len(tensors)), (without_prefix, 0))):
            with self.subTest(dropped=dropped):
                source = self.write(f"source{number}", config, sources)
                (source / "metrics.jsonl").write_text("{}")
                result = self.folder / f"result{number}"
                done = run(source, result)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                for words in ("family diff_transformer", f"renamed              {len(tensors)}",
                              "not copied     metrics.jsonl", "checked by loading"):
                    self.assertIn(words, done.stdout)
                if dropped:
                    self.assertRegex(done.stdout, rf"dropped  opt\..* and {dropped - 8} more")
                else:
                    self.assertNotIn("dropped", done.stdout)
                self.assertEqual(self.names(result), ["config.json", "model.safetensors"])
                np.testing.assert_array_equal(self.logits(result), expected)

    def test_run_of_diff_mlx_that_is_another_model_is_refused(self):
        config, tensors, _ = of_diff_mlx()
        vanilla = {
            name: tensor
            for name, tensor in tensors.items()
            if "lambda" not in name and "subln" not in name
        }
        one_missing = {n: t for n, t in tensors.items() if n != "model.blocks.1.attn.lambda_k2"}
        for number, (changes, sources, words) in enumerate((
            ({}, vanilla, "holds the vanilla variant of diff-mlx"),
            ({}, one_missing, "model.layers.1.self_attn.lambda_k2 is missing; allowed: shape [8]"),
            ({"rms_eps": 1e-6}, tensors, "config.json: model.rms_eps is 1e-06; allowed: 1e-05"),
            ({"n_kv_heads": 2}, tensors, "config.json: model.n_kv_heads is 2; allowed: no key but"),
        )):
            with self.subTest(words):
                changed = {"model": config["model"] | changes}
                source = self.write(f"source{number}", changed, sources)
                before = self.names(self.folder)
                refused = run(source, self.folder / "result")
                self.assertEqual((refused.returncode, refused.stdout), (1, ""), refused.stderr)
                self.assertIn(words, refused.stderr)
                self.assertEqual(len(refused.stderr.splitlines()), 1)
                self.assertEqual(self.names(self.folder), before)

    def test_wrong_usage_is_exit_code_2(self):
        source = tiny_model.directory()
        result = self.folder / "result"
        for arguments, word in (
            ((), "MODEL_DIR"),
            ((source, ), "NEW_DIR"),
            ((source, result, "more"), "more"),
            ((source, result, "--dtype", "int8"), "float32, bfloat16"),
            ((source, result, "--port", "1"), "--port"),
        ):
            with self.subTest(arguments=arguments):
                refused = run(*arguments)
                self.assertEqual((refused.returncode, refused.stdout), (2, ""))
                self.assertIn(word, refused.stderr)
        self.assertEqual(self.names(self.folder), [])

    def test_failure_is_exit_code_1_and_one_line_and_leaves_nothing(self):
        source, result = tiny_model.write(self.folder / "source"), self.folder / "result"
        before = self.names(self.folder)
        (source / "model.pth").write_bytes(b"pickle")

        def limit_file_size():
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

        for arguments, how, words in (
            ((source / "model.pth", result), {}, "a pickle is never opened"),
            ((source, source), {}, "is not empty"),
            ((source, self.folder / "a" / "b"), {}, "is not a directory"),
            ((source, result), {"preexec_fn": limit_file_size},
             "result/model.safetensors: cannot be written: File too large"),
        ):
            with self.subTest(words):
                refused = run(*arguments, **how)
                self.assertEqual((refused.returncode, refused.stdout), (1, ""), refused.stderr)
                self.assertIn(words, refused.stderr)
                self.assertEqual(len(refused.stderr.splitlines()), 1)
                self.assertEqual(self.names(self.folder), before)

    def test_signal_ends_it_and_leaves_nothing(self):
        config = tiny_model.CONFIG | {"vocab_size": 100_000}
        source, result = tiny_model.write(self.folder / "source", config), self.folder / "result"
        for number in (signal.SIGINT, signal.SIGTERM):
            process = subprocess.Popen([BINARY, "convert", source, result],
                                       stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            eventually(lambda: len(self.names(self.folder)) > 1 or process.poll() is not None,
                       "it writes or has ended")
            process.send_signal(number)
            _, error = process.communicate(timeout=60)
            self.assertEqual((process.returncode, error.decode()),
                             (1, f"diffserve: {result}: interrupted, and nothing was written\n"))
            self.assertEqual(self.names(self.folder), ["source"])


if __name__ == "__main__":
    unittest.main()
