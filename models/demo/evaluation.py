# SPDX-License-Identifier: Apache-2.0
"""Measures an exported model through transformers, as the server's test does: chat template, greedy
decode, all digits."""

import re
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import needle_samples
from progress import Progress

# (needles, asked). The first are what the server's test asks for; a quarter of the samples is
# enough to know the others.
TESTED = ((1, 1), (4, 1))
FURTHER = ((6, 1), (2, 2), (4, 2))
CHAT_PROMPTS = (
    "Hello!",
    "Who are you?",
    "What can you do?",
    "What is the capital of France?",
    "What is 3 plus 4?",
    "Count to five.",
    "Tell me a short story about a fox.",
    "The magic number of Lisbon is 48213. The magic number of Rome is 10977. What is the magic "
    "number of Lisbon?",
    "The magic number of Lisbon is 48213. What is the magic number of Rome?",
)


@dataclass
class Accuracy:
    needles: int
    asked: int
    samples: int
    exact: float
    first_digit: float
    prompt_tokens: float


class Evaluator:
    def __init__(self, directory: Path, dtype: torch.dtype = torch.float32):
        self.tokenizer = AutoTokenizer.from_pretrained(directory)
        self.model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).eval()

    @torch.no_grad()
    def reply(self, messages: list[dict[str, str]], max_tokens: int = 64) -> tuple[str, int]:
        """The greedy answer and the number of prompt tokens."""
        prompt = self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        output = self.model.generate(**prompt, max_new_tokens=max_tokens, do_sample=False)
        length = prompt["input_ids"].shape[1]
        return self.tokenizer.decode(output[0, length:], skip_special_tokens=True), length

    def needles(self, needles: int, asked: int, samples: int, progress: Progress) -> Accuracy:
        exact = first = tokens = 0
        for index in range(samples):
            progress.tell(f"measuring {needles} needles: {index} of {samples} samples")
            sample = needle_samples.evaluation_sample(index, needles, asked=asked)
            text, length = self.reply(sample.messages, max_tokens=16 * asked)
            found = re.findall(r"\d+", text)
            exact += found == sample.numbers
            first += [number[0] for number in found] == [number[0] for number in sample.numbers]
            tokens += length
        return Accuracy(needles, asked, samples, exact / samples, first / samples, tokens / samples)


def measure(directory: Path, samples: int) -> list[Accuracy]:
    evaluator = Evaluator(directory)
    counts = [(setting, samples) for setting in TESTED] + [(setting, max(1, samples // 4))
                                                           for setting in FURTHER]
    with Progress() as progress:
        return [evaluator.needles(needles, asked, count, progress)
                for (needles, asked), count in counts]


def replies(directory: Path) -> list[tuple[str, str]]:
    evaluator = Evaluator(directory)
    return [(prompt, evaluator.reply([{"role": "user", "content": prompt}])[0])
            for prompt in CHAT_PROMPTS]


def print_report(accuracies: list[Accuracy], chat: list[tuple[str, str]]) -> None:
    print("needles asked samples  exact  first digit  prompt tokens")
    for a in accuracies:
        print(
            f"{a.needles:7} {a.asked:5} {a.samples:7}  {a.exact:.3f}  {a.first_digit:11.3f}  "
            f"{a.prompt_tokens:13.0f}"
        )
    for prompt, reply in chat:
        print(f"> {prompt}\n  {reply}")
