# SPDX-License-Identifier: Apache-2.0
"""Multiple choice in the bundled pair's own world: a conversation of small talk that ends in a
question about a capital, a sum, a day or an opposite, and four replies that differ in the one word
or number that answers it. The most likely reply is what a model chooses.

Drawn from seeds, while training draws from texts ("seed/step"): the conversations are held out, the
templates and their facts are those of training.
"""

import random
import re
from dataclasses import dataclass

import chat_samples
import quality

CHOICES = 4
TURNS = 6  # before the question
# What comes before the answer, the answer, what comes after it.
REPLIES = [re.compile(pattern) for pattern in (
    r"(The capital of \w+ is )(\w+)(\.)", r"(\d plus \d is )(\d+)(\.)",
    r"()(\w+day)( comes (?:after|before) \w+\.)", r"(The opposite of \w+ is )(\w+)(\.)")]


@dataclass
class Item:
    messages: list[dict[str, str]]  # ends with the question
    replies: list[str]
    right: int


def question(rng, kind=None):
    """A question whose reply is of a kind in REPLIES, and the match."""
    while True:
        text, reply = chat_samples.exchange(rng)
        for pattern in REPLIES if kind is None else [kind]:
            if match := pattern.fullmatch(reply):
                return text, match


def item(seed):
    rng = random.Random(seed)
    messages = []
    for _ in range(TURNS):
        asked, reply = chat_samples.exchange(rng)
        messages += [{"role": "user", "content": asked}, {"role": "assistant", "content": reply}]
    asked, match = question(rng)
    answers = {match[2]: None}  # a set that keeps its order
    while len(answers) < CHOICES:
        answers[question(rng, match.re)[1][2]] = None
    shuffled = rng.sample(list(answers), CHOICES)
    return Item([*messages, {"role": "user", "content": asked}],
                [match[1] + answer + match[3] for answer in shuffled], shuffled.index(match[2]))


def reply_tokens(server, asked):
    """Of each reply of an item: the conversation's tokens, and where that reply begins."""
    begin = len(quality.tokens_of(server, asked.messages, True))
    return [(quality.tokens_of(server, [*asked.messages, {"role": "assistant", "content": reply}],
                               False), begin) for reply in asked.replies]


def accuracy(items, logprobs):
    """`logprobs`: of each item and reply, those of its tokens."""
    totals = [[sum(reply) for reply in replies] for replies in logprobs]
    return sum(total.index(max(total)) == asked.right
               for total, asked in zip(totals, items)) / len(items)
