# SPDX-License-Identifier: Apache-2.0
"""Writes tests/text/data: five small tokenizers and the results of Hugging Face's tokenizers and
transformers with them.

Run with tokenizers, transformers and jinja2 installed; the tests only read the result:
    python tests/text/make_text_golden.py
"""

import json
import random
from pathlib import Path

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers,
                        pre_tokenizers, processors, trainers)
from transformers import PreTrainedTokenizerFast

from text_golden_templates import TEMPLATE_CASES

DATA = Path(__file__).parent / "data"

CORPUS = [
    "The quick brown fox jumps over the lazy dog. The dog sleeps; the fox does not.",
    "Once upon a time there was a small server that answered every question in time.",
    "Wie viele Städte kennst du? Zürich, Köln und München sind schön.",
    "Où est la bibliothèque ? L'été dernier, j'étais à Paris.",
    "def main(argc, argv):\n    return {'a': 1, \"b\": [2, 3.5]}\n\n",
    "世界 你好 世界 你好 日本語 日本語 テスト",
    "emoji 😀 😀 🎉 🎉 👩‍👩‍👧 flags 🇨🇭",
    "1234567890 12 345 6789 3.14159",
    "I'm you're he'll they've don't CAN'T",
]

TEXTS = CORPUS + [
    "",
    " ",
    "   leading and trailing   ",
    "\n\n\t mixed \r\n white\u00a0space \u3000",
    "naïve café e\u0301 (combining)",
    "<s>special</s> <|user|>inside<|end|> text",
    "<0x41> looks like a byte token",
    "▁ a lower one eighth block ▁▁",
    "a" * 300,
    "\u0000\u0001 control \x7f",
    "नमस्ते мир שלום สวัสดี",
    "�replacement�",
]

WORDS_AND_DIGITS = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| "
                    r"?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def byte_bpe() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS_AND_DIGITS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "</s>", "<|user|>", "<|assistant|>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    tokenizer.add_tokens([AddedToken("<tool>", special=False)])
    return tokenizer


def sentencepiece_bpe() -> Tokenizer:
    """As Llama 2: no pre-tokenizer, a space is U+2581, bytes as <0xNN>."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<unk>", "<s>", "</s>"]
    bytes_ = [f"<0x{b:02X}>" for b in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=special + bytes_,
                                  show_progress=False)
    latin = [line for line in CORPUS if line.isascii()] + ["世界 你好 世界 Städte schön"]
    trained.train_from_iterator(latin * 3, trainer)
    model = json.loads(trained.to_str())["model"]
    tokenizer = Tokenizer(
        models.BPE(vocab=model["vocab"], merges=[tuple(m) for m in model["merges"]],
                   unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([
        decoders.Replace("▁", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(content=" ", left=1, right=0)
    ])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B",
                                                             special_tokens=[("<s>", 1)])
    return tokenizer


def metaspace_unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=300, special_tokens=["<unk>", "<s>", "</s>"],
                                      unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    return tokenizer


def wordpiece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=["[UNK]", "<s>", "</s>"],
                                        show_progress=False)
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    return tokenizer


def suffix_bpe() -> Tokenizer:
    """As GPT 1: a word's last token is marked. The space after a word comes with the next token,
    so text cannot be decoded token by token."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.BPEDecoder(suffix="</w>")
    trainer = trainers.BpeTrainer(vocab_size=240, special_tokens=["<unk>", "<s>", "</s>"],
                                  end_of_word_suffix="</w>", show_progress=False)
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    return tokenizer


CONFIGS = {
    "byte_bpe": {"add_bos_token": True},  # no effect if there is a tokenizer.json
    "sentencepiece": {"unk_token": "<unk>"},
    "metaspace": {"unk_token": "<unk>"},
    "wordpiece": {"unk_token": "[UNK]"},
    "suffix_bpe": {"unk_token": "<unk>"},
}


def write_fixture(name: str, tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    directory = DATA / name
    directory.mkdir(parents=True, exist_ok=True)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": {"__type": "AddedToken", "content": "</s>", "special": True},
        "clean_up_tokenization_spaces": False,
        **CONFIGS[name],
    }
    (directory / "tokenizer.json").write_text(
        tokenizer.to_str(pretty=False) + "\n", encoding="utf-8")
    (directory / "tokenizer_config.json").write_text(
        json.dumps(config, indent=1) + "\n", encoding="utf-8")
    return PreTrainedTokenizerFast.from_pretrained(directory)


def mixed_byte_run(tokens: list[str]) -> bool:
    """An invalid run of byte tokens that contains a complete character, which our decoder keeps."""
    run = bytearray()
    for token in tokens + [""]:
        if len(token) == 6 and token.startswith("<0x"):
            run.append(int(token[3:5], 16))
            continue
        kept = bytes(run).decode("utf-8", errors="ignore")
        if kept and kept.encode() != bytes(run):
            return True
        run.clear()
    return False


def encode_cases(name: str, reference: PreTrainedTokenizerFast) -> list[dict]:
    cases = []
    for text in TEXTS:
        for special in (False, True):
            ids = reference.encode(text, add_special_tokens=special)
            cases.append({"fixture": name, "text": text, "add_special_tokens": special, "ids": ids})
    return cases


def decode_cases(name: str, reference: PreTrainedTokenizerFast) -> list[dict]:
    rng = random.Random(7)
    walks = [reference.encode(text, add_special_tokens=True) for text in TEXTS]
    size = len(reference)
    while len(walks) < 60:
        walk = [rng.randrange(size) for _ in range(rng.randint(1, 24))]
        if not any(
                mixed_byte_run(reference.convert_ids_to_tokens(walk, skip_special_tokens=skip))
                for skip in (False, True)):
            walks.append(walk)
    cases = []
    for ids in walks:
        for skip in (False, True):
            text = reference.decode(ids, skip_special_tokens=skip)
            cases.append({"fixture": name, "ids": ids, "skip_special_tokens": skip, "text": text})
    return cases


def template_cases(reference: PreTrainedTokenizerFast) -> list[dict]:
    cases = []
    for case in TEMPLATE_CASES:
        expected = reference.apply_chat_template(
            case["messages"],
            chat_template=case["template"],
            tokenize=False,
            add_generation_prompt=case.get("add_generation_prompt", False),
            **case.get("kwargs", {}),
        )
        cases.append({**case, "text": expected})
    return cases


def main() -> None:
    made = {
        "byte_bpe": byte_bpe(),
        "sentencepiece": sentencepiece_bpe(),
        "metaspace": metaspace_unigram(),
        "wordpiece": wordpiece(),
        "suffix_bpe": suffix_bpe(),
    }
    golden = {"encode": [], "decode": [], "template": []}
    for name, tokenizer in made.items():
        reference = write_fixture(name, tokenizer)
        golden["encode"] += encode_cases(name, reference)
        golden["decode"] += decode_cases(name, reference)
        if name == "byte_bpe":
            golden["template"] = template_cases(reference)
    lines = []
    for part, cases in golden.items():
        lines.append(f'"{part}": [\n' +
                     ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases) + "\n]")
    (DATA / "golden.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
