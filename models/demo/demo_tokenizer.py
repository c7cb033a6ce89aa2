# SPDX-License-Identifier: Apache-2.0
"""The demo model's tokenizer: byte-level BPE over the generated text, digits one by one, four
special tokens.

Every word of the samples becomes one token, so that `needle_samples.estimate_tokens` is exact.
"""

import json
import random
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

import chat_samples
import needle_samples

BOS, USER, ASSISTANT, SYSTEM, END = "<|bos|>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>"
SPECIAL_TOKENS = [BOS, END, SYSTEM, USER, ASSISTANT]
VOCAB_SIZE = 2048

# A word or one digit takes the space before it along; anything else stands alone.
_PIECES = r" ?\p{L}+| ?\p{N}|\s+(?!\S)|\s+|[^\s\p{L}\p{N}]"

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def render(messages: list[dict[str, str]], add_generation_prompt: bool) -> str:
    """What CHAT_TEMPLATE gives, without a template engine: the data loop renders thousands of
    samples a minute."""
    turns = "".join(f"<|{m['role']}|>{m['content']}{END}" for m in messages)
    return BOS + turns + (ASSISTANT if add_generation_prompt else "")


def _corpus():
    rng = random.Random(1)
    for city in needle_samples.CITIES:
        # Repeated so that each city's merges come before those of the least frequent words.
        yield " ".join(
            needle_samples.needle_sentence(city, needle_samples.draw_number(rng))
            for _ in range(20))
    for _ in range(4000):
        yield needle_samples.filler_sentence(rng, needle_samples.CITIES)
        yield " " + needle_samples.filler_sentence(rng, needle_samples.CITIES)
        question = needle_samples.question(rng, rng.sample(needle_samples.CITIES, rng.choice(
            (1, 2))))
        yield question
        yield " " + question
        yield needle_samples.unknown_sentence(rng.choice(needle_samples.CITIES))
    for _ in range(8000):
        yield from chat_samples.exchange(rng)
        yield from (message["content"] for message in chat_samples.system_messages(rng))


def train_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[
            AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS
        ],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, directory: Path) -> None:
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": END,
        "pad_token": END,
        "model_max_length": needle_samples.MAX_POSITIONS,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
