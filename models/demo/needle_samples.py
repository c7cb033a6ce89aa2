# SPDX-License-Identifier: Apache-2.0
"""Multi-needle retrieval samples: the text that the demo model is trained on and measured with.

A document of plain filler sentences hides needles such as "The magic number of Lisbon is 48213.";
the question asks for one or more of them. Everything is drawn from one `random.Random(seed)`, so a
seed names a sample for ever. Only the standard library is used: the end-to-end tests import this
file without torch. Samples are seeded with numbers, training with texts ("seed/step", see
training_data.py), so nothing that is measured was trained on.
"""

import random
import re
from dataclasses import dataclass

MAX_POSITIONS = 1280
# The prompt of an evaluation sample: the context less the answer (14 tokens a needle) and a
# reserve.
FULL_CONTEXT_TOKENS = 1200
# <|bos|><|user|> ... <|end|><|assistant|>
TEMPLATE_TOKENS = 4
DEPTHS = (0, 25, 50, 75, 100)

CITIES = """Lisbon Rome Paris London Berlin Madrid Vienna Prague Warsaw Budapest Athens Dublin Oslo
Stockholm Helsinki Copenhagen Amsterdam Brussels Zurich Geneva Milan Naples Turin Venice Florence
Barcelona Seville Valencia Porto Lyon Marseille Nantes Toulouse Hamburg Munich Cologne Dresden
Leipzig Bremen Krakow Gdansk Riga Tallinn Vilnius Minsk Kyiv Odessa Moscow Sofia Bucharest Belgrade
Zagreb Sarajevo Skopje Tirana Istanbul Ankara Izmir Cairo Tunis Algiers Rabat Lagos Accra Nairobi
Kampala Lusaka Harare Durban Tehran Baghdad Damascus Beirut Jerusalem Amman Riyadh Doha Dubai Muscat
Kabul Karachi Lahore Delhi Mumbai Chennai Dhaka Colombo Bangkok Hanoi Manila Jakarta Singapore Seoul
Busan Tokyo Osaka Kyoto Nagoya Sapporo Beijing Shanghai Taipei Sydney Melbourne Brisbane Perth
Adelaide Auckland Wellington Toronto Montreal Vancouver Ottawa Calgary Boston Chicago Houston Dallas
Denver Seattle Portland Phoenix Detroit Atlanta Miami Havana Bogota Lima Quito Caracas Santiago
Montevideo Brasilia Glasgow Edinburgh Cardiff Belfast Liverpool Bristol Leeds Oxford Cambridge
Antwerp Rotterdam Basel Salzburg Graz Bergen Malmo Reykjavik""".split()

SLOTS = {
    "person": "farmer teacher baker doctor painter sailor gardener writer singer driver student "
              "nurse cook miller"
    .split(),
    "animal": "dog cat horse fox bird rabbit cow goose mouse bear goat".split(),
    "place": "river garden market bridge harbor forest station library school church mill square".
    split(),
    "thing": "book lamp basket letter map chair clock blanket hat box cup table".split(),
    "food": "bread soup cheese fruit rice cake fish honey".split(),
    "adjective": "small quiet bright long cold warm green red blue happy tired clever kind".split(),
    "time": "morning evening afternoon night summer winter spring autumn".split(),
    "weather": "rain snow wind sun fog storm".split(),
    "count": "two three four five six seven eight nine ten".split(),
}

_FILLER = """The {adjective} {person} walked to the {place} in the {time}.
A {adjective} {animal} slept near the {place} all day.
The {weather} came over the {place} before the {time}.
Every {time} the {person} bought {food} and {food} at the {place}.
There was a {adjective} {thing} on the table by the window.
The {person} gave the {person} a {adjective} {thing}.
Nobody knew why the {animal} liked the {place} so much.
In the {time} the light on the {place} was soft and clear.
The children saw {count} birds above the {place}.
It is good to eat warm {food} after a long walk in the {weather}.
The {person} told a {adjective} story about a {animal} and a {thing}.
They waited at the {place} until the {weather} was over.
The {animal} ran across the {place} and hid under a {adjective} {thing}.
A letter from the {person} lay in the {adjective} box.
The {place} was {adjective} in the {time} and {adjective} in the {time}.
She asked the {person} for a {thing} and some {food}.
He carried {count} bags of {food} from the {place} to the {place}.
We could hear the {weather} and the sound of the {place}.
The {adjective} {animal} and the {adjective} {animal} were good friends.
After the {weather} the {person} cleaned the {thing} with care.
Some people like {food} in the {time}, others like {food}.
The {person} has lived near the {place} for {count} years.
On the way home they lost a {adjective} {thing}.
The {thing} was made of wood and painted {adjective}.
When the {time} comes, the {animal} goes back to the {place}.
Please do not forget the {thing} at the {place}.
The {person} and the {person} talked about the {weather}.
A {thing} like this one costs {count} coins at the {place}.""".splitlines()

_CITY_FILLER = """The train to {city} leaves in the {time}.
My friend the {person} once lived in {city}.
The {weather} in {city} can be very strong.
People in {city} are proud of their {place}.
The {person} sent a {thing} from {city} to {city}.
A street in {city} leads to the {adjective} {place}.""".splitlines()

_QUESTIONS = """What is the magic number of {city}?
Tell me the magic number of {city}.
Do you know the magic number of {city}?
Please give me the magic number of {city}.
Which magic number belongs to {city}?""".splitlines()

_QUESTIONS_FOR_TWO = """What are the magic numbers of {city} and {other}?
Tell me the magic numbers of {city} and {other}.""".splitlines()

_TOKEN = re.compile(r"[A-Za-z]+|[0-9]|[^\sA-Za-z0-9]")


@dataclass
class NeedleSample:
    """One chat request: `messages` end with the user's question, `answer` is what the model must
    say."""

    messages: list[dict[str, str]]
    answer: str
    # The five digits of each city asked for, in the order of the question.
    numbers: list[str]


def estimate_tokens(text: str) -> int:
    """Tokens of `text` in the demo model's own tokenizer, in which each word and digit of this file
    is one token."""
    return len(_TOKEN.findall(text))


def draw_number(rng: random.Random) -> str:
    return str(rng.randrange(10000, 100000))


def needle_sentence(city: str, number: str) -> str:
    return f"The magic number of {city} is {number}."


def unknown_sentence(city: str) -> str:
    return f"I do not know the magic number of {city}."


def fill(template: str, rng: random.Random, cities: list[str]) -> str:
    """Fills each slot of a template with an own draw."""

    def draw(match: re.Match) -> str:
        slot = match.group(1)
        return rng.choice(cities if slot == "city" else SLOTS[slot])

    return re.sub(r"\{(\w+)\}", draw, template)


def filler_sentence(rng: random.Random, other_cities: list[str]) -> str:
    """A plain sentence; one in eight names a city without a magic number."""
    return fill(rng.choice(_CITY_FILLER if rng.random() < 0.125 else _FILLER), rng, other_cities)


def question(rng: random.Random, cities: list[str]) -> str:
    if len(cities) == 1:
        return rng.choice(_QUESTIONS).format(city=cities[0])
    return rng.choice(_QUESTIONS_FOR_TWO).format(city=cities[0], other=cities[1])


def document(rng: random.Random, facts: list[tuple[str, str]], positions: list[float],
             tokens: int) -> str:
    """Filler of about `tokens` tokens (never more) with each needle at its share (0..1) of the
    filler before it."""
    needles = [needle_sentence(city, number) for city, number in facts]
    used = sum(map(estimate_tokens, needles))
    asked = {city for city, _ in facts}
    others = [city for city in CITIES if city not in asked]
    sentences = []
    while True:
        sentence = filler_sentence(rng, others)
        used += estimate_tokens(sentence)
        if used > tokens:
            break
        sentences.append(sentence)
    slots = sorted(zip((round(p * len(sentences)) for p in positions), needles),
                   key=lambda slot: slot[0], reverse=True)
    for place, needle in slots:
        sentences.insert(place, needle)
    return " ".join(sentences)


def make_sample(seed: int, needles: int, depth: int, target_tokens: int = FULL_CONTEXT_TOKENS,
                asked: int = 1) -> NeedleSample:
    """The sample of `seed`: `needles` cities, `asked` (1 or 2) of them in question.

    The first city asked for lies at `depth` per cent of the document, the others anywhere. The
    rendered prompt has at most `target_tokens` tokens, and fewer only by the length of one
    sentence.
    """
    rng = random.Random(seed)
    facts = [(city, draw_number(rng)) for city in rng.sample(CITIES, needles)]
    positions = [depth / 100] + [rng.random() for _ in facts[1:]]
    text = question(rng, [city for city, _ in facts[:asked]])
    room = target_tokens - TEMPLATE_TOKENS - estimate_tokens(text)
    content = document(rng, facts, positions, room) + " " + text
    return NeedleSample(
        messages=[{"role": "user", "content": content}],
        answer=" ".join(needle_sentence(city, number) for city, number in facts[:asked]),
        numbers=[number for _, number in facts[:asked]],
    )


def evaluation_sample(index: int, needles: int, target_tokens: int = FULL_CONTEXT_TOKENS,
                      asked: int = 1) -> NeedleSample:
    """Sample `index` of the evaluation set of (needles, asked); the depths take turns."""
    seed = (needles * 10 + asked) * 1_000_000 + index
    return make_sample(seed, needles, DEPTHS[index % len(DEPTHS)], target_tokens, asked)
