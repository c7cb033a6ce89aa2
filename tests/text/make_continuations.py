# SPDX-License-Identifier: Apache-2.0
"""Writes tests/text/data/continuations.json: the text of tokens that follow a prompt, by Hugging
Face's tokenizers with decoders of every kind. The decode stream gets the prompt first, as in
vLLM.

Run after make_text_golden.py with tokenizers installed; the tests only read the result:
    python tests/text/make_continuations.py
"""

import json
import random
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

DATA = Path(__file__).parent / "data"
CASES_PER_FORM = 40

REPLACE = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
FALLBACK, FUSE = {"type": "ByteFallback"}, {"type": "Fuse"}


def strip(start: int) -> dict:
    return {"type": "Strip", "content": " ", "start": start, "stop": 0}


def metaspace(scheme: str) -> dict:
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": True}


def sequence(*steps: dict) -> dict:
    return {"type": "Sequence", "decoders": list(steps)}


# Name -> (fixture, decoder); None: the decoder of the fixture.
FORMS = {
    "byte level": ("byte_bpe", None),
    "Llama 2": ("sentencepiece", None),
    "Gemma": ("sentencepiece", sequence(REPLACE, FALLBACK, FUSE)),
    "Mistral": ("sentencepiece", sequence(FALLBACK, metaspace("first"))),
    "two spaces stripped": ("sentencepiece", sequence(REPLACE, FALLBACK, FUSE, strip(2))),
    "T5": ("metaspace", None),
    "first": ("metaspace", metaspace("first")),
    "never": ("metaspace", metaspace("never")),
    "WordPiece": ("wordpiece", None),
    "WordPiece as it is": ("wordpiece", {"type": "WordPiece", "prefix": "##", "cleanup": False}),
    "GPT 1": ("suffix_bpe", None),
    "CTC": ("wordpiece", {"type": "CTC", "pad_token": "[UNK]", "word_delimiter_token": "|",
                          "cleanup": True}),
}
TEXTS = ["Hello", "The quick brown fox", " two  spaces", "schön 世界 😀", "time . It does n't", ""]
WORDS = ["world!", " again", "  server", "日本語 Zürich", "it's", "dog"]


def tokenizer_of(fixture: str, decoder: dict | None) -> Tokenizer:
    parsed = json.loads((DATA / fixture / "tokenizer.json").read_text(encoding="utf-8"))
    if decoder is not None:
        parsed["decoder"] = decoder
    return Tokenizer.from_str(json.dumps(parsed))


def streamed(stream: DecodeStream, tokenizer: Tokenizer, ids: list[int]) -> str:
    return "".join(stream.step(tokenizer, i) or "" for i in ids)


def case_of(tokenizer: Tokenizer, prompt: list[int], ids: list[int], skip: bool) -> dict | None:
    """None if the stream fails or a character stays incomplete, because the stream does not say
    whether it belongs to the prompt or to the ids. A character that the prompt begins and the
    ids complete belongs to the ids."""
    stream = DecodeStream(skip_special_tokens=skip)
    try:
        before = streamed(stream, tokenizer, prompt)
        text = streamed(stream, tokenizer, ids)
    except Exception:  # pylint: disable=broad-exception-caught  # it raises no other
        return None
    whole = tokenizer.decode(prompt + ids, skip_special_tokens=skip)
    if before + text != whole or "�" in whole:
        return None
    alone = tokenizer.decode(prompt, skip_special_tokens=skip)
    assert alone == before or "�" in alone
    return {"prompt": prompt, "ids": ids, "skip_special_tokens": skip, "before": before,
            "text": text}


def cases_of(form: str) -> list[dict]:
    fixture, decoder = FORMS[form]
    tokenizer = tokenizer_of(fixture, decoder)
    rng = random.Random(form)
    special = [i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special]
    size = tokenizer.get_vocab_size()

    def some_ids(texts: list[str], most: int) -> list[int]:
        if rng.random() < 0.6:
            return tokenizer.encode(rng.choice(texts), add_special_tokens=rng.random() < 0.5).ids
        return [rng.randrange(size) for _ in range(rng.randint(0, most))]

    cases = []
    while len(cases) < CASES_PER_FORM:
        prompt = rng.choice([some_ids(TEXTS, 20), some_ids(TEXTS, 3), special[:2]])
        prompt += rng.choice([[], special[1:2] * 6])
        ids = some_ids(WORDS, 8)
        if rng.random() < 0.2:
            whole = tokenizer.encode("x 日本語 Zürich 😀", add_special_tokens=False).ids
            cut = rng.randrange(len(whole))
            prompt, ids = whole[:cut], whole[cut:]
        case = case_of(tokenizer, prompt, ids, rng.random() < 0.7)
        if case is not None:
            cases.append({"form": form, **case})
    return cases


def main() -> None:
    forms = {form: {"fixture": fixture, "decoder": decoder}
             for form, (fixture, decoder) in FORMS.items()}
    lines = [json.dumps(case, ensure_ascii=False) for form in FORMS for case in cases_of(form)]
    (DATA / "continuations.json").write_text(
        '{\n"forms": ' + json.dumps(forms, ensure_ascii=False) + ',\n"cases": [\n' +
        ",\n".join(lines) + "\n]\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
