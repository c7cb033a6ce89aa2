"""Cases in which the engine is known to differ from jinja2, and why."""

BYTES = "there are no bytes: a chat template makes text"
RANDOM = "a prompt is the same each time, so the filter is refused by name"
ADDRESS = "the text of a generator has an address of Python's, whose words are counted"

DIFFERENCES: dict[str, str] = {
    "'abc'.encode('utf-8')": BYTES,
    "words | random is string": RANDOM,
    "generator: {{ v | wordcount }}": ADDRESS,
}
