# SPDX-License-Identifier: Apache-2.0
"""Training batches: rows of one length, with the positions and targets that the loss looks at.

Step s of seed S always gives the same batch, whatever was trained before: a resumed run and the
Transformer twin see the same data. A row is one conversation of one of three kinds: dense recall
(needle sentences, then as many of them again in any order), needles in filler asked for over
several turns, and small talk.
"""

import random
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer

import chat_samples
import needle_samples
from demo_tokenizer import ASSISTANT, END, render
from needle_samples import CITIES, draw_number, estimate_tokens, needle_sentence, unknown_sentence

SENTENCE_TOKENS = 12  # "The magic number of Lisbon is 48213."
_DENSE_REQUEST = "Repeat all magic numbers in any order."


@dataclass(frozen=True)
class Rows:
    """A length of rows: how often a batch has it, and the shares of two of the three kinds of rows
    in such a batch."""

    length: int
    weight: float
    dense: float
    small_talk: float
    # share of the rows whose numbers are of three digits only: no digit tells what comes next
    alike: float = 0.0


# From which step on batches are drawn from which lengths.
STAGES: dict[int, list[Rows]] = {
    0: [Rows(128, 1.0, dense=0.5, small_talk=0.2)],
    250: [Rows(128, 0.5, dense=0.3, small_talk=0.4), Rows(512, 0.5, dense=0.3, small_talk=0.0)],
    533: [
        Rows(128, 0.4, dense=0.1, small_talk=0.6),
        Rows(512, 0.1, dense=0.3, small_talk=0.0),
        Rows(needle_samples.MAX_POSITIONS, 0.5, dense=0.1, small_talk=0.0),
    ],
    1200: [
        Rows(128, 0.35, dense=0.15, small_talk=0.6, alike=0.5),
        Rows(needle_samples.MAX_POSITIONS, 0.65, dense=0.1, small_talk=0.0, alike=0.5),
    ],
    1700: [
        Rows(128, 0.2, dense=0.2, small_talk=0.6, alike=0.5),
        Rows(512, 0.4, dense=0.5, small_talk=0.0, alike=0.7),
        Rows(needle_samples.MAX_POSITIONS, 0.4, dense=0.2, small_talk=0.0, alike=0.7),
    ],
}
# From this step on the model has its final rope theta.
RAISED_THETA_STEP = 751


@dataclass
class Batch:
    tokens: torch.Tensor  # [B, T] int64
    rows: torch.Tensor  # [B, Q] positions whose successor is predicted, padded with -1
    targets: torch.Tensor  # [N] the successors, without the padding
    first_digits: dict[
        str,
        torch.Tensor]  # by kind of row, [N] bool: the target is the first digit of a magic number
    length: int  # what the rows were made for


def draw_facts(rng: random.Random, count: int, alike: bool) -> list[tuple[str, str]]:
    cities = rng.sample(CITIES, count)
    if not alike:
        return [(city, draw_number(rng)) for city in cities]
    digits = rng.sample("123456789", 3)
    return [(city, "".join(rng.choices(digits, k=5))) for city in cities]


def dense_recall(rng: random.Random, length: int, alike: bool) -> list[dict[str, str]]:
    room = length - needle_samples.TEMPLATE_TOKENS - 1 - estimate_tokens(_DENSE_REQUEST)
    count = min(room // (2 * SENTENCE_TOKENS), rng.randint(2, 24))
    sentences = [needle_sentence(*fact) for fact in draw_facts(rng, count, alike)]
    # Drawn with replacement: what was asked before must not tell what is left.
    again = rng.choices(sentences, k=count)
    return [
        {"role": "user", "content": " ".join([*sentences, _DENSE_REQUEST])},
        {"role": "assistant", "content": " ".join(again)},
    ]


def needle_conversation(rng: random.Random, length: int, alike: bool) -> list[dict[str, str]]:
    """Filler with needles, then a turn for each city (sometimes two in one turn, sometimes one that
    is not there)."""
    count = rng.randint(1, min(8, max(2, length // 48)))
    facts = draw_facts(rng, count, alike)
    cities = [city for city, _ in facts]
    turns: list[tuple[str, str]] = []
    asked = rng.sample(facts, count)
    while asked:
        if len(asked) > 1 and rng.random() < 0.1:
            pair, asked = asked[:2], asked[2:]
            turns.append((needle_samples.question(rng, [c for c, _ in pair]),
                          " ".join(needle_sentence(*f) for f in pair)))
            continue
        if rng.random() < 0.07:
            city = rng.choice([c for c in CITIES if c not in cities])
            turns.append((needle_samples.question(rng, [city]), unknown_sentence(city)))
        fact = asked.pop()
        turns.append((needle_samples.question(rng, [fact[0]]), needle_sentence(*fact)))
    used = sum(estimate_tokens(q) + estimate_tokens(a) + 4 for q, a in turns) + 1
    while len(turns) > 1 and used + SENTENCE_TOKENS * count > length:
        q, a = turns.pop()
        used -= estimate_tokens(q) + estimate_tokens(a) + 4
    room = length - used
    if rng.random() < 0.2:
        room = rng.randint(min(room, SENTENCE_TOKENS * count), room)
    content = needle_samples.document(rng, facts, [rng.random() for _ in facts], room)
    first = {"role": "user", "content": f"{content} {turns[0][0]}"}
    return [first] + _as_messages(turns)[1:]


def small_talk(rng: random.Random, length: int, _alike: bool) -> list[dict[str, str]]:
    messages = chat_samples.system_messages(rng)
    used = 1 + sum(estimate_tokens(m["content"]) + 2 for m in messages)
    while True:
        if rng.random() < 0.1:
            city = rng.choice(CITIES)
            turn = (needle_samples.question(rng, [city]), unknown_sentence(city))
        else:
            turn = chat_samples.exchange(rng)
        used += sum(map(estimate_tokens, turn)) + 4
        if used > length:
            return messages
        messages += _as_messages([turn])


def _as_messages(turns: list[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"role": role, "content": text} for turn in turns
            for role, text in zip(("user", "assistant"), turn)]


class BatchMaker:
    """Makes the batch of any step; holds the tokenizer and the token ids that the loss mask
    needs."""

    def __init__(self, tokenizer: Tokenizer, seed: int, tokens_per_step: int):
        self.tokenizer, self.seed, self.tokens_per_step = tokenizer, seed, tokens_per_step
        self.assistant, self.end = tokenizer.token_to_id(ASSISTANT), tokenizer.token_to_id(END)
        self.city_ids = {tokenizer.encode(" " + city).ids[0] for city in CITIES}
        self.first_digit_ids = {tokenizer.encode(f" {digit}").ids[0] for digit in range(10)}
        self.digit_ids = self.first_digit_ids | {
            tokenizer.encode(str(digit)).ids[0]
            for digit in range(10)
        }

    def batch(self, step: int) -> Batch:
        rng = random.Random(f"{self.seed}/{step}")
        stage = STAGES[max(first for first in STAGES if first <= step)]
        rows = rng.choices(stage, [rows.weight for rows in stage])[0]
        shares = (rows.dense, rows.small_talk, 1 - rows.dense - rows.small_talk)
        kinds = rng.choices((dense_recall, small_talk, needle_conversation), shares,
                            k=self.tokens_per_step // rows.length)
        # No draw without alike rows: what a stage's batches are does not depend on what later
        # stages need.
        conversations = [
            kind(rng, rows.length, rows.alike > 0 and rng.random() < rows.alike) for kind in kinds
        ]
        texts = [render(messages, add_generation_prompt=False) for messages in conversations]
        encoded = [encoding.ids[: rows.length] for encoding in self.tokenizer.encode_batch(texts)]
        return self.tensors(encoded, [kind is dense_recall for kind in kinds], rows.length)

    def tensors(self, encoded: list[list[int]], dense: list[bool], length: int) -> Batch:
        rows, targets, first_digits = [], [], {"dense": [], "needle": []}
        for ids, is_dense in zip(encoded, dense):
            rows.append(self._predicted(ids, is_dense))
            for position in rows[-1]:
                targets.append(ids[position + 1])
                first = targets[-1] in self.first_digit_ids and ids[position - 1] in self.city_ids
                first_digits["dense"].append(first and is_dense)
                first_digits["needle"].append(first and not is_dense)
        kinds = {kind: torch.tensor(flags) for kind, flags in first_digits.items()}
        return Batch(_padded(encoded, self.end), _padded(rows, -1), torch.tensor(targets), kinds,
                     length)

    def _predicted(self, ids: list[int], is_dense: bool) -> list[int]:
        """Positions whose successor is a token of an assistant turn, or in dense recall a digit of
        one.

        In dense recall the order of the cities is chance and the other words are learnt from the
        other rows.
        """
        positions, speaking = [], False
        for position, token in enumerate(ids[:-1]):
            if token == self.assistant:
                speaking = True
            if speaking and not (is_dense and ids[position + 1] not in self.digit_ids):
                positions.append(position)
            if ids[position + 1] == self.end:
                speaking = False
        return positions


def _padded(lists: list[list[int]], filler: int) -> torch.Tensor:
    width = max(map(len, lists))
    return torch.tensor([row + [filler] * (width - len(row)) for row in lists])
