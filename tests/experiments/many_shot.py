#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Many-shot classification (arXiv 2410.05258, section 3.5 and figure 7) by the bundled pair, the
Diff Transformer and its twin: a block of docs/results/experiments.md, a plot, and the figures in
many_shot.json beside this file. Usage: experiment.py; `measure` has --tasks 20 and --orders 8.

The pair was trained to look up what a text says of a city, so the classes are magic numbers: a task
gives 12 cities 6 classes, and an example is the sentence that gives a city its number; each city
has one example in twelve. There are tasks whose examples are all right, and tasks in which 4
examples of 10 name one of the other five classes, so that a city's class is what most of its
examples say. The same examples come in several orders. Each city is asked for. As in the paper the
answer is constrained to the classes: a bias leaves their first digits, which tell them apart, to
choose from.
"""

import random
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import experiment  # first: from here on the other folders' modules are found
import blocks
import line_charts
import needle_samples
import quality
from experiment import ROOT

CLASSES, CITIES = 6, 12
SHOTS = (1, 3, 6, 12, 24, 48, 96)  # 96 examples are about 1,170 tokens of the 1,280
NOISE = {"right": 0.0, "noisy": 0.4}
EXAMPLES = {"right": "all right", "noisy": "4 of 10 wrong"}


@dataclass
class Task:
    classes: dict[str, str]  # of each city
    examples: list[tuple[str, str]]  # city and class; the first N are a task of N shots


def draw_task(seed, noise):
    rng = random.Random(seed)
    numbers = [digit + needle_samples.draw_number(rng)[1:]
               for digit in rng.sample("123456789", CLASSES)]
    cities = rng.sample(needle_samples.CITIES, CITIES)
    classes = {city: numbers[at % CLASSES] for at, city in enumerate(cities)}
    examples = []
    while len(examples) < max(SHOTS):
        for city in rng.sample(cities, CITIES):
            others = [number for number in numbers if number != classes[city]]
            said = rng.choice(others) if rng.random() < noise else classes[city]
            examples.append((city, said))
    return Task(classes, examples)


class Classifier:
    def __init__(self, server):
        self.server = server
        self.pool = ThreadPoolExecutor(quality.CONCURRENT)
        self.ids = {digit: quality.ask(server, "/tokenize", {"prompt": f" {digit}"})["tokens"][0]
                    for digit in "123456789"}

    def choice(self, task, text, city):
        """The class of greedy decoding when the classes' first digits alone are allowed."""
        prompt = (f"<|bos|><|user|>{text} What is the magic number of {city}?<|end|><|assistant|>"
                  f"The magic number of {city} is")
        first = {f" {number[0]}": number for number in task.classes.values()}
        bias = {str(self.ids[digit.strip()]): 100 for digit in first}
        answer = quality.ask(self.server, "/v1/completions", {
            "prompt": prompt, "max_tokens": 1, "temperature": 0, "logit_bias": bias})
        return first[answer["choices"][0]["text"]]

    def accuracy(self, task, shots, order):
        examples = task.examples[:shots]
        random.Random(order).shuffle(examples)
        text = " ".join(needle_samples.needle_sentence(*example) for example in examples)
        chosen = self.pool.map(lambda city: self.choice(task, text, city), task.classes)
        return statistics.mean(float(a == b) for a, b in zip(chosen, task.classes.values()))


def vote(task, shots):
    """The share of cities that a vote of their examples gets right; ties count by their share."""
    shares = []
    for city, right in task.classes.items():
        said = [number for name, number in task.examples[:shots] if name == city]
        counts = {number: said.count(number) for number in task.classes.values()}
        most = [number for number in counts if counts[number] == max(counts.values())]
        shares.append((right in most) / len(most))
    return statistics.mean(shares)


def measure(tasks, orders):
    from server_process import ServerProcess
    drawn = {name: [draw_task(seed, noise) for seed in range(tasks)]
             for name, noise in NOISE.items()}
    models = {}
    for model in quality.MODELS:
        with ServerProcess("--max-num-seqs", quality.CONCURRENT,
                           model=ROOT / "models/demo" / model) as server:
            classifier = Classifier(server)
            models[model] = {name: [] for name in NOISE}
            for name in NOISE:
                for shots in SHOTS:
                    found = [[classifier.accuracy(task, shots, order) for order in range(orders)]
                             for task in drawn[name]]
                    models[model][name].append(
                        {"accuracy": statistics.mean(map(statistics.mean, found)),
                         "deviation": statistics.mean(map(statistics.pstdev, found)),
                         "range": statistics.mean(max(row) - min(row) for row in found)})
                    print(model, name, shots, models[model][name][-1], flush=True)
    votes = {name: [statistics.mean(vote(task, shots) for task in drawn[name]) for shots in SHOTS]
             for name in NOISE}
    return {"models": models, "vote": votes}


def section(result):
    rows = []
    for name in NOISE:
        for model, title in quality.MODELS.items():
            rows.append([f"{EXAMPLES[name]}, {title}",
                         *(f"{found['accuracy']:.3f} ± {found['deviation']:.3f}"
                           for found in result["models"][model][name])])
        rows.append([f"{EXAMPLES[name]}, a vote of the city's",
                     *(f"{share:.3f}" for share in result["vote"][name])])
    about = ("Each cell: accuracy and its standard deviation over the order of the examples, means "
             f"of {result['tasks']} tasks of {CITIES} cities, {result['orders']} orders each. "
             f"Chance is {1 / CLASSES:.3f}. {experiment.made_by(__file__, result)}")
    return (blocks.table(["shots", *SHOTS], rows), blocks.paragraph(about),
            experiment.image(__file__, "Accuracy and its spread by number of shots"))


def plot(result):
    ticks = line_charts.evenly([str(shots) for shots in SHOTS])

    def chart(title, name, key):
        drawn = line_charts.Chart(title, "percentunit", False, 1 if key == "accuracy" else None,
                                  ticks)
        for model in quality.MODELS:
            drawn.lines[model] = [found[key] for found in result["models"][model][name]]
        return drawn

    charts = [chart("All examples right, by shots", "right", "accuracy"),
              chart("4 of 10 wrong, by shots", "noisy", "accuracy"),
              chart("4 of 10 wrong: best less worst order", "noisy", "range")]
    for drawn, name in zip(charts, NOISE):
        drawn.lines["vote"] = result["vote"][name]
    return line_charts.svg(charts, "Many-shot classification by the bundled pair")


if __name__ == "__main__":
    sys.exit(experiment.main(__file__, __doc__, {"tasks": 20, "orders": 8}, measure, section, plot))
