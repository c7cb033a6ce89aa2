# SPDX-License-Identifier: Apache-2.0
"""Short templated conversations for the demo model: greetings, who it is, capitals, small sums,
counting, stories.

Answers are fixed by the question except stories, whose parts are drawn: a greedy decode gives one
of them, sampling gives others. Only the standard library is used.
"""

import random

_FIXED = [
    (["Hello", "Hello!", "Hi", "Hi!", "Hi there!", "Hey"], "Hello! How can I help you today?"),
    (["Good morning", "Good morning!"], "Good morning! How can I help you today?"),
    (["Good evening", "Good evening!"], "Good evening! How can I help you?"),
    (["How are you?", "How are you today?",
      "How do you do?"], "I am fine, thank you. How are you?"),
    (["I am fine.", "I am fine, thank you.",
      "I am well."], "I am glad to hear that. What can I do for you?"),
    ([
        "Who are you?", "What are you?", "What is your name?", "Tell me who you are.",
        "Please introduce yourself."
    ], "I am the diffserve demo model, a very small Diff Transformer."),
    (["Who made you?", "Where do you come from?", "How were you trained?"],
     "I was trained from scratch by a short script that comes with diffserve."),
    (["What can you do?", "How can you help me?", "What do you know?", "Help", "Help me"],
     "I can find magic numbers in a long text, name some capitals, count, add small numbers and "
     "tell a short story."
     ),
    ([
        "What is a Diff Transformer?", "What is differential attention?",
        "How does differential attention work?"
    ],
     "A Diff Transformer subtracts one attention map from another, so that noise cancels and the "
     "important words remain."
     ),
    (["What is diffserve?", "Tell me about diffserve."],
     "Diffserve is an inference server for Diff Transformer models. It is serving me right now."),
    (["What is a magic number?", "What are magic numbers?"],
     "A magic number is a number of five digits that a text gives to a city. Put it in your "
     "message and ask me for it."
     ),
    (["Thanks", "Thank you", "Thank you!", "Thank you very much!",
      "Thanks a lot!"], "You are welcome!"),
    (["Bye", "Goodbye", "Goodbye!", "See you later!", "Good night"], "Goodbye! Have a nice day."),
    (["Are you alive?", "Are you a human?", "Are you a robot?",
      "Are you real?"], "No, I am a small language model."),
    (["Are you smart?",
      "Are you clever?"], "I am very small, but I am good at finding magic numbers."),
    (["What color is the sky?"], "The sky is blue."),
    (["What color is grass?", "What color is the grass?"], "Grass is green."),
    (["What color is snow?"], "Snow is white."),
    (["Tell me a joke.", "Do you know a joke?"],
     "Why did the needle hide in the haystack? It wanted to be found by a Diff Transformer."),
    (["What is the meaning of life?"],
     "I do not know, but the magic number may be hidden in a long text."),
    (["How old are you?"], "I am very young. I was trained in a short time on a small machine."),
    (["Say yes.", "Say yes"], "Yes."),
    (["Say hello.", "Say hello"], "Hello!"),
    (["How many days are in a week?", "How many days does a week have?"], "A week has seven days."),
    (["How many months are in a year?",
      "How many months does a year have?"], "A year has twelve months."),
]

_CAPITALS = dict(
    pair.split("=")
    for pair in """France=Paris Italy=Rome Spain=Madrid Portugal=Lisbon Germany=Berlin
Austria=Vienna Poland=Warsaw Hungary=Budapest Greece=Athens Ireland=Dublin Norway=Oslo
Sweden=Stockholm Finland=Helsinki Denmark=Copenhagen Belgium=Brussels Latvia=Riga Estonia=Tallinn
Lithuania=Vilnius Ukraine=Kyiv Russia=Moscow Bulgaria=Sofia Romania=Bucharest Serbia=Belgrade
Croatia=Zagreb Turkey=Ankara Egypt=Cairo Tunisia=Tunis Ghana=Accra Kenya=Nairobi Uganda=Kampala
Iran=Tehran Iraq=Baghdad Lebanon=Beirut India=Delhi Thailand=Bangkok Vietnam=Hanoi Japan=Tokyo
China=Beijing Canada=Ottawa Cuba=Havana Peru=Lima Chile=Santiago England=London
Iceland=Reykjavik"""
    .split())

_OPPOSITES = [
    tuple(pair.split("="))
    for pair in """hot=cold big=small long=short good=bad fast=slow light=dark happy=sad young=old
rich=poor high=low open=closed early=late full=empty hard=soft left=right day=night"""
    .split()
]

_NUMBERS = "zero one two three four five six seven eight nine ten".split()
_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
_HEROES = "fox cat dog rabbit bear mouse bird horse".split()

_STORY_STARTS = [
    "Once upon a time there was a small {hero} who lived near a quiet river.",
    "Once upon a time a young {hero} lived at the edge of a green forest.",
    "Long ago, a clever {hero} lived in a house by the sea.",
]
_STORY_MIDDLES = [
    "One day the {hero} found an old map and followed it over the hills.",
    "One morning the {hero} heard a bird cry for help and ran to the bridge.",
    "One winter the {hero} shared the last piece of bread with a hungry bear.",
]
_STORY_ENDS = [
    "In the end the {hero} came home, tired and happy.",
    "From that day on the {hero} was never alone again.",
    "And the {hero} told the story to everyone who wanted to hear it.",
]
_STORY_REQUESTS = [
    "Tell me a story about a {hero}.",
    "Tell me a short story about a {hero}.",
    "Please tell me a story about a {hero}.",
    "Write a short story about a {hero}.",
]
_SYSTEM_PROMPTS = [
    "You are a helpful assistant.", "You are a friendly assistant.",
    "Answer in one short sentence.", "Be brief."
]
_UNKNOWN_TOPICS = "weather news music history love money time art science sport people water".split(
)


def _story(rng: random.Random) -> tuple[str, str]:
    hero = rng.choice(_HEROES)
    if rng.random() < 0.3:
        request = rng.choice([
            "Tell me a story.", "Tell me a short story.", "Do you know a story?",
            "Write a short story."
        ])
    else:
        request = rng.choice(_STORY_REQUESTS).format(hero=hero)
    parts = (rng.choice(part) for part in (_STORY_STARTS, _STORY_MIDDLES, _STORY_ENDS))
    return request, " ".join(parts).format(hero=hero)


def _capital(rng: random.Random) -> tuple[str, str]:
    country = rng.choice(list(_CAPITALS))
    form = rng.choice(
        ["What is the capital of {}?", "Tell me the capital of {}.", "Name the capital of {}."])
    return form.format(country), f"The capital of {country} is {_CAPITALS[country]}."


def _sum(rng: random.Random) -> tuple[str, str]:
    a, b = rng.randrange(10), rng.randrange(10)
    return rng.choice(["What is {} plus {}?",
                       "How much is {} plus {}?"]).format(a, b), f"{a} plus {b} is {a + b}."


def _counting(rng: random.Random) -> tuple[str, str]:
    end = rng.randrange(3, 11)
    if rng.random() < 0.5:
        request = rng.choice(["Count to {}.", "Please count to {}."]).format(_NUMBERS[end])
        return request, ", ".join(_NUMBERS[1 : end + 1]).capitalize() + "."
    start = rng.randrange(1, 6)
    return f"Count from {start} to {start + end}.", ", ".join(
        map(str, range(start, start + end + 1))) + "."


def _day(rng: random.Random) -> tuple[str, str]:
    i = rng.randrange(7)
    if rng.random() < 0.5:
        return f"What day comes after {_DAYS[i]}?", f"{_DAYS[(i + 1) % 7]} comes after {_DAYS[i]}."
    return f"What day comes before {_DAYS[i]}?", f"{_DAYS[i - 1]} comes before {_DAYS[i]}."


def _opposite(rng: random.Random) -> tuple[str, str]:
    pair = rng.choice(_OPPOSITES)
    a, b = pair if rng.random() < 0.5 else pair[::-1]
    return f"What is the opposite of {a}?", f"The opposite of {a} is {b}."


def _unknown(rng: random.Random) -> tuple[str, str]:
    topic = rng.choice(_UNKNOWN_TOPICS)
    form = rng.choice([
        "What do you think about {}?", "Tell me about {}.", "Can you explain {}?",
        "Why is there {}?"
    ])
    return form.format(topic), f"I am a very small model, and I do not know much about {topic}."


def _fixed(rng: random.Random) -> tuple[str, str]:
    questions, answer = rng.choice(_FIXED)
    return rng.choice(questions), answer


_KINDS = [(_fixed, 8), (_capital, 3), (_sum, 3), (_counting, 2), (_day, 1), (_opposite, 1),
          (_story, 3), (_unknown, 1)]


def exchange(rng: random.Random) -> tuple[str, str]:
    """One question and its answer."""
    kinds, weights = zip(*_KINDS)
    return rng.choices(kinds, weights)[0](rng)


def system_messages(rng: random.Random) -> list[dict[str, str]]:
    """A system message in one conversation of four: the model must not be thrown off by one."""
    if rng.random() < 0.25:
        return [{"role": "system", "content": rng.choice(_SYSTEM_PROMPTS)}]
    return []
