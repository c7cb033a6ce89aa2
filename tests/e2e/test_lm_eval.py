# SPDX-License-Identifier: Apache-2.0
"""lm-evaluation-harness (`local-completions`) on the bundled model: choices scored by echo with
log-probabilities over token ids, and text generated up to a stop string. The tokenizer is the
server's own, by /tokenizer_info and /tokenize."""

import json
import os
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import openai

from server_process import DEMO_MODEL, ServerProcess

CITIES = {"Lisbon": "48213", "Oslo": "90417", "Cairo": "31764", "Lima": "25890"}


def needle(city: str) -> str:
    """A text like those that the model was trained on, up to the number that it asks for."""
    facts = " ".join(f"The magic number of {name} is {CITIES[name]}." for name in CITIES)
    return f"{facts} The magic number of {city} is"


def documents() -> list[dict]:
    return [{"text": needle(city), "choices": [f" {number}" for number in CITIES.values()],
             "label": index, "number": number}
            for index, (city, number) in enumerate(CITIES.items())]


def tasks(folder: Path) -> list[dict]:
    """A task that ranks choices and one that generates, over one file; no data set is fetched."""
    path = folder / "needles.json"
    path.write_text("\n".join(map(json.dumps, documents())))
    common = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(path)}},
              "test_split": "test", "doc_to_text": "{{text}}", "num_fewshot": 0}
    ranked = common | {"task": "needle_choice", "output_type": "multiple_choice",
                       "doc_to_choice": "{{choices}}", "doc_to_target": "label",
                       "target_delimiter": "", "metric_list": [{"metric": "acc"}]}
    written = common | {"task": "needle_text", "output_type": "generate_until",
                        "doc_to_target": " {{number}}",
                        "generation_kwargs": {"until": ["."], "max_gen_toks": 12},
                        "metric_list": [{"metric": "exact_match", "ignore_punctuation": True}]}
    return [ranked, written]


class LmEvalTest(unittest.TestCase):
    def test_choices_and_text_are_scored(self):
        server = self.enterContext(ServerProcess("--served-model-name", "diff", model=DEMO_MODEL))
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        offline = {"HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder),
                   "HF_DATASETS_CACHE": str(folder / "cache")}
        self.enterContext(mock.patch.dict(os.environ, offline))
        import lm_eval  # reads the environment
        from lm_eval.tasks import TaskManager
        found = lm_eval.simple_evaluate(
            model="local-completions",
            model_args={"model": "diff", "base_url": server.url + "/v1/completions",
                        "tokenizer_backend": "remote", "max_length": 1024, "max_retries": 1},
            tasks=tasks(folder), task_manager=TaskManager(include_defaults=False), limit=4,
            bootstrap_iters=0, verbosity="ERROR")
        self.assertEqual(found["results"]["needle_choice"]["acc,none"], 1.0)
        self.assertEqual(found["results"]["needle_text"]["exact_match,none"], 1.0)
        self.check_loglikelihoods(server, found["samples"]["needle_choice"])

    def check_loglikelihoods(self, server, samples):
        """The harness's sums equal the server's log-probabilities of the same tokens."""
        with openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0) as client:
            for sample in samples:
                text = sample["doc"]["text"] + sample["doc"]["choices"][0]
                scored = client.completions.create(model="diff", prompt=text, echo=True,
                                                   max_tokens=0, logprobs=1, temperature=0,
                                                   extra_body={"add_special_tokens": False})
                logprobs = scored.choices[0].logprobs
                begin = len(sample["doc"]["text"])
                added = sum(logprob for logprob, offset in zip(logprobs.token_logprobs,
                                                               logprobs.text_offset)
                            if offset >= begin)
                self.assertAlmostEqual(added, sample["filtered_resps"][0][0], places=4)


if __name__ == "__main__":
    unittest.main()
