# SPDX-License-Identifier: Apache-2.0
"""Tokenizers in SentencePiece's style, where a token includes the space before its word. The
continuation of a prompt has that space, in answers, streams, stops, constraints and
log-probabilities."""

import json
import unittest

import parrot_model
from server_process import DEVICE, ServerProcess

BOS, EOS, UNKNOWN = "<s>", "</s>", "<unk>"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
LETTERS = list("▁Helowrdn!caf")
PIECES = ["▁Hello", "▁world", "▁no", "no", "▁He", "▁", "▁caf", "▁▁"]
# The continuation of each prompt, one token each, and its text.
ANSWERS = {"Hello": (["▁world", "!"], " world!"),
           "no": (["▁caf", "<0xC3>", "<0xA9>", "<0xE4>", "<0xB8>", "<0x96>"],
                  " caf\u00e9\u4e16"),
           "He": (["no", "▁▁", "o"], "no  o")}
REPLACE = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
FALLBACK, FUSE = {"type": "ByteFallback"}, {"type": "Fuse"}
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


def vocabulary() -> list[str]:
    tokens = [BOS, EOS, UNKNOWN, *BYTES, *PIECES]
    tokens += [letter for letter in LETTERS if letter not in tokens]
    return tokens + [f"\u2581filler{i}" for i in range(-len(tokens) % 64)]


def metaspace(scheme: str) -> dict:
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": True}


def bpe() -> dict:
    """Merges that make each word from its letters, from the left."""
    vocab = {token: i for i, token in enumerate(vocabulary())}
    merges = []
    for word in ("▁Hello", "▁world", "▁no", "▁caf"):
        for end in range(1, len(word)):
            pair, whole = (word[:end], word[end]), word[:end + 1]
            if [*pair] not in merges:
                merges.append([*pair])
            vocab.setdefault(whole, len(vocab))
    for i in range(-len(vocab) % 64):  # in parrot_model's format
        vocab[f"\u2581spare{i}"] = len(vocab)
    return {"type": "BPE", "dropout": None, "unk_token": UNKNOWN, "fuse_unk": True,
            "continuing_subword_prefix": None, "end_of_word_suffix": None, "byte_fallback": True,
            "ignore_merges": False, "vocab": vocab, "merges": merges}


def unigram() -> dict:
    return {"type": "Unigram", "unk_id": 2, "byte_fallback": True,
            "vocab": [[token, -1.0 if token in PIECES else -5.0] for token in vocabulary()]}


# name, model, normalizer, pre-tokenizer, decoder
FORMS = (
    ("Llama 2", bpe, {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}, None,
     {"type": "Sequence", "decoders": [REPLACE, FALLBACK, FUSE, STRIP]}),
    ("Mistral", bpe, None, metaspace("first"),
     {"type": "Sequence", "decoders": [FALLBACK, metaspace("first")]}),
    ("T5", unigram, None, metaspace("always"),
     {"type": "Sequence", "decoders": [FALLBACK, metaspace("always")]}),
)


def model(name: str, make, normalizer, pre_tokenizer, decoder):
    made = make()
    vocab = made["vocab"]
    ids = vocab if isinstance(vocab, dict) else {token: i for i, (token, _) in enumerate(vocab)}
    follows = {}
    for prompt, (tokens, _) in ANSWERS.items():
        for last, token in zip(["▁" + prompt, *tokens], tokens):
            assert follows.setdefault(ids[last], ids[token]) == ids[token], (prompt, last)
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
               "special": True}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer, "decoder": decoder, "post_processor": None, "model": made,
        "added_tokens": [{"id": i, "content": token, **special}
                         for i, token in enumerate((BOS, EOS, UNKNOWN))]}
    config = {"bos_token": BOS, "eos_token": EOS, "unk_token": UNKNOWN,
              "chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"}
    return parrot_model.write(name.replace(" ", "-"), tokenizer, config, follows)


class SentencePieceTest(unittest.TestCase):
    def test_every_form_of_decoder_is_served(self):
        for form in FORMS:
            with ServerProcess("--device", DEVICE, model=model(*form)) as server:
                for check in (self.check_text, self.check_echo, self.check_stops,
                              self.check_choices, self.check_logprobs, self.check_chat):
                    with self.subTest(form=form[0], check=check.__name__):
                        check(server)

    def ask(self, server, path: str, body: dict) -> list[dict]:
        """The reply, and the same body's stream as its events."""
        body = {"max_tokens": 20, "temperature": 0} | body
        response = server.post(path, body)
        self.assertEqual(response.status, 200, response.body)
        lines = server.post(path, body | {"stream": True}).body.decode().split("\n\n")
        self.assertEqual(lines[-2], "data: [DONE]")
        return [response.json()["choices"][0],
                *(json.loads(line[6:])["choices"][0] for line in lines[:-2])]

    def complete(self, server, prompt: str, **more) -> dict:
        """The choice of a completion, whose stream has the same text, end and log-probabilities."""
        whole, *events = self.ask(server, "/v1/completions", {"prompt": prompt} | more)
        self.assertEqual("".join(event["text"] for event in events), whole["text"])
        self.assertEqual(events[-1]["finish_reason"], whole["finish_reason"])
        if whole["logprobs"]:
            for name, values in whole["logprobs"].items():
                parts = [event["logprobs"][name] for event in events if event["logprobs"]]
                self.assertEqual(sum(parts, []), values, name)
        return whole

    def check_text(self, server):
        for prompt, (tokens, text) in ANSWERS.items():
            choice = self.complete(server, prompt)
            self.assertEqual((choice["text"], choice["finish_reason"]), (text, "stop"))
            for count in range(1, len(tokens)):
                cut = self.complete(server, prompt, max_tokens=count)["text"]
                self.assertTrue(text.startswith(cut.rstrip("\ufffd")), cut)

    def check_echo(self, server):
        for prompt, (_, text) in ANSWERS.items():
            self.assertEqual(self.complete(server, prompt, echo=True)["text"], prompt + text)

    def check_stops(self, server):
        for stop, kept in ((" world", ""), ("world", " "), ("!", " world"), ("d!", " worl")):
            choice = self.complete(server, "Hello", stop=stop)
            self.assertEqual((choice["text"], choice["finish_reason"]), (kept, "stop"))
            choice = self.complete(server, "Hello", stop=stop, include_stop_str_in_output=True)
            self.assertEqual(choice["text"], kept + stop)
        self.assertEqual(self.complete(server, "He", stop="  ")["text"], "no")

    def check_choices(self, server):
        for prompt in ANSWERS:
            for wanted in (" no", "no", " world!", "  no", "cano", " caf"):
                more = {"structured_outputs": {"choice": [wanted]}}
                self.assertEqual(self.complete(server, prompt, **more)["text"], wanted)

    def check_logprobs(self, server):
        for prompt, (tokens, text) in ANSWERS.items():
            for echo in (False, True):
                choice = self.complete(server, prompt, echo=echo, logprobs=1)
                found = choice["logprobs"]
                self.assertEqual(len({len(values) for values in found.values()}), 1)
                self.check_offsets(found, choice["text"])
                if not any(token.startswith("bytes:") for token in found["tokens"]):
                    self.assertEqual("".join(found["tokens"]).removesuffix(EOS), choice["text"])

    def check_offsets(self, found: dict, text: str):
        """Each token with its own text is found at its offset."""
        first = found["text_offset"][0]
        for token, offset in zip(found["tokens"], found["text_offset"]):
            if token != EOS and not token.startswith("bytes:"):
                self.assertEqual(text[offset - first:][:len(token)], token)

    def check_chat(self, server):
        for prompt, (tokens, text) in ANSWERS.items():
            body = {"messages": [{"role": "user", "content": prompt}], "logprobs": True}
            whole, *events = self.ask(server, "/v1/chat/completions", body)
            self.assertEqual(whole["message"]["content"], text)
            deltas = [event["delta"].get("content") or "" for event in events]
            self.assertEqual("".join(deltas), text)
            entries = whole["logprobs"]["content"]
            made = bytes(sum((entry["bytes"] for entry in entries), []))
            self.assertEqual(made.decode().removesuffix(EOS), text)
            streamed = [entry for event in events if event.get("logprobs")
                        for entry in event["logprobs"]["content"]]
            self.assertEqual(streamed, entries)


if __name__ == "__main__":
    unittest.main()
