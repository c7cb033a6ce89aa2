# SPDX-License-Identifier: Apache-2.0
"""Model directories in the layouts that transformers accepts: places of chat templates, of
special tokens and of end tokens. Each case is a name and its files besides tokenizer.json, which
is that of data/byte_bpe."""

import json
import random

ROWS = 410  # of the model; the tokenizer has 401 tokens
NAMES = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"]
OWN_NAMES = ["image_token", "eot_token", "end_of_turn_token"]
# Special ones, a plain added one, one of the vocabulary, and two that it lacks.
TOKENS = [
    "<s>", "</s>", "<|user|>", "<|assistant|>", "<|end|>", "<tool>", "the", "<|new|>", "<|pad|>"
]
VARIABLES = "".join(f"{name}={{{{ {name} }}}};" for name in NAMES + OWN_NAMES)
TEMPLATE = VARIABLES + "{{ messages[0].content }}{{ tools | length if tools else '' }}"
PLAIN, TOOLS = "plain " + TEMPLATE, "with tools " + TEMPLATE
CLASSES = [
    "LlamaTokenizer", "LlamaTokenizerFast", "GPT2Tokenizer", "GPT2TokenizerFast",
    "CodeGenTokenizer", "GPTNeoXTokenizerFast", "Qwen2Tokenizer", "GemmaTokenizer",
    "CohereTokenizer"
]
CLASS = {"tokenizer_class": "PreTrainedTokenizerFast"}


def model_config(**more) -> dict:
    """The members of config.json about tokens."""
    return {
        "model_type": "diffllama", "vocab_size": ROWS, "bos_token_id": 0, "eos_token_id": 2, **more
    }


def case(name: str,
         tokenizer_config: dict | None,
         files: dict | None = None,
         generation: dict | None = None,
         **model) -> dict:
    written = {"config.json": model_config(**model)}
    if tokenizer_config is not None:
        written["tokenizer_config.json"] = {**CLASS, **tokenizer_config}
    if generation is not None:
        written["generation_config.json"] = generation
    written.update(files or {})
    return {
        "name": name, "files": {
            path: value if isinstance(value, str) else json.dumps(value)
            for path, value in written.items()
        }
    }


def added(content: str, **flags) -> dict:
    return {"__type": "AddedToken", "content": content, **flags}


def described(content: str, special: bool = True) -> dict:
    """A token in the format of added_tokens_decoder and special_tokens_map.json."""
    return {
        "content": content, "lstrip": False, "normalized": False, "rstrip": False,
        "single_word": False, "special": special
    }


def without_special(content: str) -> dict:
    token = described(content)
    del token["special"]
    return token


def template_cases() -> list[dict]:
    named = [{"name": "default", "template": PLAIN}, {"name": "tool_use", "template": TOOLS}]
    further = "additional_chat_templates/"
    ends = "a\r\nb\rc{{ 'x\r\ny' }}\n{%- if true %}\r\nz\r\n{% endif %}\r\n\r\n"
    return [
        case("a string", {"chat_template": PLAIN}),
        case("a list", {"chat_template": named}),
        case("a list of the default", {"chat_template": named[:1]}),
        case("a list without a default", {"chat_template": named[1:]}),
        case("a list with one name twice",
             {"chat_template": [{"name": "default", "template": "first"}, *named]}),
        case("a list with a third that does not compile",
             {"chat_template": [*named, {"name": "rag", "template": "{% for %}"}]}),
        case("an object", {"chat_template": {"default": PLAIN, "tool_use": TOOLS}}),
        case("a file", {}, {"chat_template.jinja": PLAIN}),
        case("a file before the configuration", {"chat_template": named},
             {"chat_template.jinja": "file " + TEMPLATE}),
        case("a file and one for tools", {},
             {"chat_template.jinja": PLAIN, further + "tool_use.jinja": TOOLS}),
        case("files with the default among the further ones", {}, {
            "chat_template.jinja": "overruled", further + "default.jinja": PLAIN,
            further + "tool_use.jinja": TOOLS, further + "rag.jinja": "{% if %}"
        }),
        case("a further file hides the configuration", {"chat_template": PLAIN},
             {further + "tool_use.jinja": TOOLS}),
        case("other files among the further ones", {"chat_template": PLAIN},
             {further + "readme.md": "not a template"}),
        case("line ends of a file", {}, {"chat_template.jinja": ends}),
        case("line ends of the configuration", {"chat_template": ends}),
        case("a byte order mark in a file", {}, {"chat_template.jinja": "\ufeff" + PLAIN}),
        case("one newline at the end", {}, {"chat_template.jinja": PLAIN + "\n"}),
        case("two newlines at the end", {}, {"chat_template.jinja": PLAIN + "\n\n"}),
        case("no template", {}),
        case("a null template", {"chat_template": None}),
    ]


def token_cases() -> list[dict]:
    t = {"chat_template": TEMPLATE}
    every = dict(zip(NAMES, TOKENS))
    return [
        case("standard names", {**t, **every}),
        case("token objects",
             {**t, **{name: added(token, special=True)
                      for name, token in every.items()}}),
        case("null names", {**t, **dict.fromkeys(NAMES)}),
        case("extra tokens as an object", {**t, "extra_special_tokens": {"eot_token": "<|end|>"}}),
        case("extra tokens as an object of objects",
             {**t, "extra_special_tokens": {"eot_token": added("<tool>", special=True)}}),
        case("extra tokens as a list", {**t, "extra_special_tokens": ["<|end|>", "<tool>"]}),
        case("an extra token of a standard name",
             {**t, "bos_token": "<s>", "extra_special_tokens": {"bos_token": "<|user|>"}}),
        case("an extra token that the vocabulary lacks",
             {**t, "extra_special_tokens": {"eot_token": "<|new|>"}}),
        case("a key of its own", {**t, "image_token": "<tool>"}),
        case("a key of its own as an object", {**t, "image_token": added("<tool>", special=True)}),
        case(
            "a key of its own that is no token",
            {**t, "image_token": {"content": "<tool>"}, "eot_token": True, "add_bos_token": False}),
        case("a key of its own and an extra token",
             {**t, "eot_token": "<|user|>", "extra_special_tokens": {"eot_token": "<|end|>"}}),
        case("model specific tokens",
             {**t, "model_specific_special_tokens": {"eot_token": "<|end|>"}}),
        case("model specific tokens beside a key of its own", {
            **t, "image_token": "<tool>", "model_specific_special_tokens": {"eot_token": "<|end|>"}
        }),
        case(
            "additional tokens",
            {**t, "additional_special_tokens": ["<|end|>", added("<tool>", special=True)]}),
        case(
            "a map", t, {
                "special_tokens_map.json": {
                    "bos_token": "<s>", "eos_token": without_special("</s>"), "eot_token":
                    "<|end|>", "image_token": without_special("<tool>")
                }
            }),
        case("a map before the configuration", {**t, "bos_token": "<|user|>", "pad_token": "<s>"},
             {"special_tokens_map.json": {"bos_token": "<s>"}}),
        case("a map beside listed tokens",
             {**t, "bos_token": "<|user|>", "added_tokens_decoder": {}},
             {"special_tokens_map.json": {"bos_token": "<s>", "eos_token": "</s>"}}),
        case("a map of extra tokens", t,
             {"special_tokens_map.json": {"extra_special_tokens": {"eot_token": "<|end|>"}}}),
        case(
            "listed tokens with other flags", {
                **t, "added_tokens_decoder":
                {"0": described("<s>", special=False), "400": described("<tool>")}
            }),
        case(
            "listed tokens that the vocabulary lacks", {
                **t, "eos_token": "<|new|>", "added_tokens_decoder":
                {"403": described("<|new|>"), "402": described("<|pad|>"), "1": described("</s>")}
            }),
        case("a listed token of the vocabulary",
             {**t, "added_tokens_decoder": {"300": described("the")}}),
        case("added tokens", {**t, "eos_token": "<|new|>"},
             {"added_tokens.json": {"<|new|>": 402, "<|pad|>": 401}}),
        case("an added token at the place of another", t, {"added_tokens.json": {"<|new|>": 3}}),
        case("named tokens that the vocabulary lacks",
             {**t, "pad_token": "<|pad|>", "eos_token": "<|new|>"}),
        *(case(f"the tokens of {name}", {
            **t, "tokenizer_class": name, "pad_token": None, "sep_token": "<|user|>"
        }) for name in CLASSES),
        case("no configuration", None,
             {"chat_template.jinja": TEMPLATE, "config.json": model_config()}),
    ]


def end_cases() -> list[dict]:
    t = {"chat_template": TEMPLATE}
    return [
        case("the tokenizer's end only", {**t, "eos_token": "</s>"}, eos_token_id=None),
        case("the tokenizer's end beside the model's", {**t, "eos_token": "</s>"}),
        case("the tokenizer's end is the model's", {**t, "eos_token": "<|user|>"}),
        case("the tokenizer's end beside the generation's", {**t, "eos_token": "</s>"},
             generation={"eos_token_id": [4]}),
        case("the generation's ends before the model's", t, generation={"eos_token_id": [1, 4]}),
        case("the generation's one end", t, generation={"eos_token_id": 4}),
        case("several ends of the model", t, eos_token_id=[1, 4]),
        case("an end of the tokenizer without a row", {**t, "eos_token": "<|new|>"},
             vocab_size=401),
        case("an end of the tokenizer with a row", {**t, "eos_token": "<|new|>"}),
        case("an end that the map names", t, {"special_tokens_map.json": {"eos_token": "</s>"}}),
        case("no end", t, eos_token_id=None),
    ]


def random_cases(count: int = 60) -> list[dict]:
    rng = random.Random(31)

    def token():
        content = rng.choice(TOKENS)
        return content if rng.random() < 0.6 else added(content, special=True, normalized=False)

    made = []
    for i in range(count):
        config, files = {}, {}
        for name in NAMES + OWN_NAMES:
            if rng.random() < 0.35:
                config[name] = token()
        if rng.random() < 0.3:
            config["extra_special_tokens"] = {rng.choice(OWN_NAMES): rng.choice(TOKENS)}
        if rng.random() < 0.3:
            config["added_tokens_decoder"] = {
                str(rng.choice([0, 1, 4, 400, 401, 402])):
                described(rng.choice(TOKENS),
                          rng.random() < 0.7)
                for _ in range(rng.randint(0, 3))
            }
        if rng.random() < 0.4:
            files["special_tokens_map.json"] = {
                name:
                rng.choice(TOKENS) if rng.random() < 0.6 else without_special(rng.choice(TOKENS))
                for name in NAMES + OWN_NAMES if rng.random() < 0.3
            }
        where = rng.choice(["config", "list", "file", "files"])
        if where == "config":
            config["chat_template"] = PLAIN
        elif where == "list":
            config["chat_template"] = [{"name": "default", "template": PLAIN},
                                       {"name": "tool_use", "template": TOOLS}]
        else:
            files["chat_template.jinja"] = PLAIN + rng.choice(["", "\n", "\r\n"])
            if where == "files":
                files["additional_chat_templates/tool_use.jinja"] = TOOLS
        generation = {"eos_token_id": rng.sample(range(5), 2)} if rng.random() < 0.4 else None
        made.append(case(f"random {i}", config, files, generation))
    return made


def cases() -> list[dict]:
    return template_cases() + token_cases() + end_cases() + random_cases()
