#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks what no compiler checks: sizes, includes, third-party homes, words, twins, dead files.

Usage: tidy.py [ROOT]. Prints each finding as `path:line: rule: message` and, last, `N passed, N
failed` (rules); exit code 1 on any finding. Looks at every file that git tracks or would track; a
rule that finds nothing to look at fails.
"""

import fnmatch
import gc
import re
import subprocess
import sys
from pathlib import Path

import assertions
import circles
import documents
import language
import refusals
import server_layers
from source_text import LITERAL, blank, functions, line_of

CPP, HEADER, CUDA = (".h", ".cc", ".cu", ".cuh"), (".h", ".cuh"), (".cu", ".cuh", "_cuda.cc")
WEB = (".html", ".css", ".js")
SIZED = CPP + WEB + (".py", ".rs", ".sh", ".proto", "CMakeLists.txt")
TEXT = SIZED + (".md", ".cmake", ".toml", ".yaml", ".yml", ".ci/run")

FILE_LINES, FUNCTION_LINES, KERNEL_LINES, COLUMNS = 500, 70, 150, 100
# Each sees those before it. A file is of the longest that it is below.
LAYERS = ["kernels/process/", "kernels/base/", "kernels/", "models/", "engine/contract/",
          "engine/policy/", "engine/", "engine/text/", "server/", "server/hub/", "server/app/"]

# Library, what its includes look like, the files that may name it. A header among them is private:
# only they may include it.
HOMES = [
    ("gRPC", r"grpc|google/protobuf|diffserve/v1/|inference/|vllm/",
     ["server/api/grpc/*", "server/router/grpc_*"]),
    ("Beast and Asio", r"boost/", ["server/http/*"]),
    ("zlib", r"zlib\.h$", ["server/http/content_coding.cc"]),
    ("nlohmann", r"nlohmann/", ["server/json/json*", "server/api/fields/*.cc",
                                "server/api/reply/tokenizer_info.cc", "server/app/options.cc",
                                "server/observe/kv_event_message.cc",
                                "server/router/models_file.cc",
                                "models/config_reader.cc", "models/safetensors*.cc"]),
    ("ZeroMQ", r"zmq", ["server/observe/kv_event_publisher.cc"]),
    ("prometheus-cpp", r"prometheus/", ["server/observe/metrics_exporter.cc"]),
    ("OpenSSL", r"openssl/", ["server/api/head/api_key*.cc", "server/api/head/parent_secret.cc",
                               "server/api/head/parent_secret.cc",
                             "server/hub/blob_file.cc",
                             "engine/contract/page_tier.cc"]),
    ("xxHash", r"xxhash\.h$", ["engine/page_store/page_record.cc",
                                "models/weight_digest.cc"]),
    ("libcurl", r"curl/", ["server/hub/hub_client.cc"]),
    ("libedit", r"histedit\.h$", ["server/app/chat/line_editor.cc"]),
    ("the Rust library", r"(engine/text/crates/.*|.*_ffi)\.h$|diffserve_text",
     ["engine/text/*.cc", "engine/text/bytes_ffi.h"]),
    ("cuBLASLt", r"cublas", ["kernels/ops/matrix_library_cuda.cc", "tests/kernels/shim/cublas*"]),
    ("CUDA", r"cuda|cub/|cooperative_groups|mma\.h$", ["*_cuda.cu", "*_cuda.cc", "*.cuh"]),
    ("intrinsics", r"\w*intrin\.h$", ["kernels/base/simd*.h", "*.isa.cc"]),
]
SYSTEM_FOLDERS = ("sys/", "linux/", "netinet/", "arpa/")
POLICY = ["engine/policy/*"]
POLICY_MEMBERS = 20  # of a class
POLICY_BANNED = re.compile(
    r"models/|kernels/(attention/|base/(tensor|thread|cpu_isa))|cuda|engine/(executor|bounded_q)"
    r"|<(thread|mutex|shared_mutex|atomic|condition_variable|chrono|future|semaphore|ctime)>")
BANNED_NAME = re.compile(r"^(utils?|helpers?|commons?|misc|managers?|handlers?)$", re.I)
BANNED_TEXT = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")
# A word of it, which is quick to look for; the pattern; what is wrong.
BANNED_CODE = [("regex", r"\bstd::w?regex\b", "std::regex recurses on its input"),
               ("assert", r"(?<!\w)assert\s*\(", "use DS_CHECK, which is active in every build")]
BANNED_WEB = re.compile(r"\b(inner|outer)HTML\b|insertAdjacentHTML|document\.write|\beval\("
                        r"|https?://(?!www\.w3\.org/)|\bstyle=|<script(?![^>]*src=)")
# The end of a member's name in a text of C++, and the files of the server that may have some, with
# their number: examples in messages and help, a scan of raw bytes, calls as models write them.
JSON_MEMBER = re.compile(r'\\?" ?:')
JSON_BY_HAND = {
    "server/api/fields/tool_fields.cc": 3,
    "server/api/grpc/arrived_calls.cc": 1,
    "server/api/responses/request.cc": 1,
    "server/app/option_table.cc": 2,
    "server/serving/answer/answer_plan.cc": 2,
}
PAGE_AS_BLOCK = re.compile(r"\w*_blocks?\b|\bblocks?_\w+|\b(?:KV|kv|cache|free|cached) blocks?\b"
                           r"|\w*Blocks?(?=[A-Z(]|\b)")
DIARY = re.compile(r"((plan|note|log|changelog|todo)s?|journal|status|progress|history)"
                   r"(\.(md|txt|rst|org))?$|.*\.log$", re.I)
ENTRY = re.compile(r"\bmain\s*\(|LLVMFuzzerTestOneInput|^TEST(_[FP])?\(|^BENCHMARK\(", re.M)
STAGE = re.compile(r"^\s*// Stage (\d+): *([^.\n]*)", re.M)

RULES = []


def rule(function):
    RULES.append(function)
    return function


class Tree:
    def __init__(self, files):
        self.files = files  # path -> text
        self.includes = {}  # path -> [(line, name, angle)]
        self.looked = 0  # how many things the rule that runs has looked at
        self.lines = 0  # and how many lines, where it counts them
        for path in self.select(CPP):
            found = re.finditer(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', files[path], re.M)
            self.includes[path] = [(line_of(files[path], m.start(1)), m.group(2), m.group(1) == "<")
                                   for m in found]

    def look(self, things):
        for thing in things:
            self.looked += 1
            yield thing

    def select(self, suffixes, folders=("",)):
        return [path for path in self.files
                if path.endswith(suffixes) and path.startswith(tuple(folders))]

    def product_includes(self):
        return [(path, line, name, angle) for path in self.select(CPP, LAYERS)
                for line, name, angle in self.includes[path]]


def matches(path, patterns):
    return any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)


def layer_of(path):
    found = [layer for layer in LAYERS if path.startswith(layer)]
    return LAYERS.index(max(found, key=len)) if found else None


@rule
def file_length(tree):
    for path in tree.look(tree.select(SIZED)):
        if (lines := tree.files[path].count("\n")) > FILE_LINES:
            yield path, lines, f"{lines} lines, at most {FILE_LINES}"


@rule
def function_length(tree):
    for path in tree.select(CPP + (".rs", ".py")):
        limit = KERNEL_LINES if path.endswith((".isa.cc", ".cu", ".cuh")) else FUNCTION_LINES
        for first, last in tree.look(functions(path, tree.files[path])):
            if last - first + 1 > limit:
                yield path, first, f"function of {last - first + 1} lines, at most {limit}"


@rule
def include_direction(tree):
    for path, line, name, angle in tree.look(tree.product_includes()):
        mine, theirs = layer_of(path), layer_of(name)
        if theirs is not None and theirs > mine:
            yield path, line, f"{LAYERS[mine]} includes {name}, which lies above it"
        elif name.startswith("tests/"):
            yield path, line, f"includes {name}: only tests include tests"
        elif path.startswith("server/") and name == "kernels/base/tensor.h":
            yield path, line, "the server never sees a tensor"
    for path in tree.includes:
        for line, name, angle in tree.includes[path]:
            generated = any(re.match(home[1], name) for home in HOMES)
            if angle == (name in tree.files) and (angle or not generated):
                yield path, line, f"{name}: ours in quotes from the repository's root, others in <>"


@rule
def home_files(tree):
    private, used = {}, set()  # header that names its library -> (library, _, home); libraries
    for path, line, name, angle in tree.look(tree.product_includes()):
        home = next((h for h in HOMES if re.match(h[1], name)), None)
        if name in tree.files:
            continue
        if home is None and angle and "/" in name and not name.startswith(SYSTEM_FOLDERS):
            yield path, line, f"<{name}> has no home file in tidy.py"
        used.add(home and home[0])
        if home and not matches(path, home[2]):
            yield path, line, f"{home[0]} has its home in {', '.join(home[2])}"
        elif home and path.endswith(HEADER) and home[0] not in ("intrinsics", "CUDA"):
            private[path] = home
    for library, *_ in (home for home in HOMES if home[0] not in used):
        yield "tests/tidy/tidy.py", 1, f"nothing includes {library}, so it needs no home"
    for path, line, name, _ in tree.product_includes():
        if name in private and not matches(path, private[name][2]):
            library, _, home = private[name]
            yield path, line, f"{name} shows {library} types: only {', '.join(home)} may include it"


@rule
def policy_and_memory_apart(tree):
    for path in tree.look(p for p in tree.includes if matches(p, POLICY)):
        for line, name, angle in tree.includes[path]:
            if POLICY_BANNED.search(f"<{name}>" if angle else name):
                yield path, line, f"policy handles numbers only, not {name}"
        for match in re.finditer(r"_clock::now\(", tree.files[path]):
            yield path, line_of(tree.files[path], match.start()), "policy reads no clock"


# A class of the policy has one header and one source, and few members: a part that owns more, or
# that other files write, is cut by responsibility.
@rule
def policy_classes(tree):
    for path in tree.look(p for p in tree.files if matches(p, POLICY) and p.endswith(CPP)):
        text = blank(tree.files[path], code=True)
        header = re.sub(r"\.cc$", ".h", path)
        known = text + tree.files.get(header, "")
        defined = r"^(?=\w)[\w:<>,*& ]*?\b([A-Z]\w+)::~?\w+\("
        for match in re.finditer(defined, text, re.M):
            if not re.search(rf"\b(class|struct) {match.group(1)}\b", known):
                yield path, line_of(text, match.start(1)), f"{match.group(1)} is not of {header}"
        for match in re.finditer(r"^class (\w+)[^;{]*\{\n(.*?)^\};", text, re.M | re.S):
            members = {name for line in re.findall(r"^  [^\n()]*", match.group(2), re.M)
                       for name in re.findall(r"\b([a-z]\w*_)(?=;| = |\{|, \w+_)", line)}
            if len(members) > POLICY_MEMBERS:
                yield (path, line_of(text, match.start()),
                       f"{match.group(1)} has {len(members)} members, at most {POLICY_MEMBERS}")


@rule
def names(tree):
    for path in tree.look(tree.files):
        for part in re.split(r"[/_.\-]", path):
            if BANNED_NAME.match(part):
                yield path, 1, f'"{part}" says nothing about what is inside'
    for path in tree.select(CPP + (".py", ".rs")):
        text = tree.files[path]
        for match in re.finditer(r"^[\w <>,]*\b(?:class|struct|enum|trait)\s+(\w+)", text, re.M):
            if any(BANNED_NAME.match(word) for word in re.findall(r"[A-Z][a-z]*", match.group(1))):
                line = line_of(text, match.start(1))
                yield path, line, f'"{match.group(1)}" says nothing about what it is'


@rule
def words(tree):
    for path in tree.look(tree.select(TEXT)):
        about_pages = path.startswith("engine/") and path.endswith(CPP)
        for number, line in enumerate(tree.files[path].split("\n"), 1):
            if found := BANNED_TEXT.search(line):
                yield path, number, f"{found.group()}: finish it or file it"
            if about_pages and (found := PAGE_AS_BLOCK.search(line)):
                block = found.group().strip()
                yield path, number, f'"{block}": a fixed run of KV slots is called a page'


@rule
def banned_code(tree):
    for path in tree.look(tree.select(CPP)):
        for word, pattern, message in BANNED_CODE:
            text = blank(tree.files[path], code=False) if word in tree.files[path] else ""
            for match in re.finditer(pattern, text):
                yield path, line_of(text, match.start()), message


@rule
def json_by_hand(tree):
    """JSON is written by server/json/json_writer.h, not as escaped text."""
    for path in tree.look(tree.select((".cc", ".h"), ["server/"])):
        if path.startswith("server/json/"):
            continue
        text = tree.files[path]
        literals = [found for found in re.finditer(LITERAL, text, re.S | re.M)
                    if found.group().startswith(('"', "R"))]
        members = [line_of(text, literal.start()) for literal in literals
                   for _ in JSON_MEMBER.finditer(literal.group()[1:-1])]
        if len(members) != JSON_BY_HAND.get(path, 0):
            yield path, members[-1] if members else 1, (
                f"{len(members)} members of JSON written by hand, {JSON_BY_HAND.get(path, 0)} "
                "expected; use JsonWriter")


@rule
def page(tree):
    """The page makes no markup of text, holds nothing inline and names no other place; all of its
    scripts are used."""
    for path in tree.look(tree.select(WEB)):
        for match in BANNED_WEB.finditer(tree.files[path]):
            yield path, line_of(tree.files[path], match.start()), f"{match.group()} in the page"
        name = Path(path).name
        users = (other for other in tree.select(WEB) if name in tree.files[other])
        if not path.endswith(".html") and not any(users):
            yield path, 1, "no file of the page names it"


@rule
def headers(tree):
    for path in tree.look(tree.select(HEADER)):
        text = tree.files[path]
        if not text.removeprefix(f"// {language.SPDX}\n").startswith("//"):
            yield path, 1, "opens with a comment: what it is, who owns it, which thread uses it"
        if not re.search(r"^#pragma once$", text, re.M):
            yield path, 1, "#pragma once is missing"
        for match in re.finditer(r"^\s*using namespace", text, re.M):
            yield path, line_of(text, match.end()), "no using namespace in a header"


@rule
def dead_files(tree):
    includers = {}
    for path, found in tree.includes.items():
        for _, name, _ in found:
            includers.setdefault(name, set()).add(path)
    for path in tree.look(tree.select(HEADER)):
        own_source = re.sub(r"\.\w+$", "", path)
        if not any(re.sub(r"\.\w+$", "", user) != own_source for user in includers.get(path, ())):
            yield path, 1, "no other file includes this header"
    for path in tree.select((".cc", ".cu")):
        is_ours = any(name in tree.files for _, name, _ in tree.includes[path])
        if not is_ours and not ENTRY.search(tree.files[path]):
            yield path, 1, "a source without a header of ours, a test or a main"


@rule
def diaries(tree):
    for path in tree.look(tree.files):
        if DIARY.match(Path(path).name) and path != "CHANGELOG.md":
            yield path, 1, "plans, logs and notes do not belong into the tree"


@rule
def twin_stages(tree):
    """An op has the same stages in its CPU file and, all files together, on a GPU. A CUDA file is
    of the op with a word of whose name it begins: attention_warp.cuh of diff_attention."""
    stages = {path: found for path in tree.select(CPP, ("kernels/", "models/"))
              if (found := STAGE.findall(tree.files[path]))}
    twins = {path: [] for path in stages if not path.endswith(CUDA)}
    for path in (p for p in stages if p not in twins):
        folder, word = re.match(r"(.*/)([a-z0-9]+)", path).groups()
        if len(ops := [op for op in twins if re.match(rf"{folder}(\w+_)?{word}[_.]", op)]) == 1:
            twins[ops[0]].append(path)
        else:
            yield path, 1, f"its stages belong to no CPU file, or to several: {ops}"
    for path, files in tree.look(twins.items()):
        files.sort(key=lambda file: int(stages[file][0][0]))
        on_gpu = list(dict.fromkeys(stage for file in files for stage in stages[file]))
        if stages[path] != on_gpu:
            yield path, 1, f"its stages {stages[path]} differ from {on_gpu} of {files}"
        numbers = [0] + [int(number) for number, _ in stages[path]]
        for before, number in zip(numbers, numbers[1:]):
            if number not in (before + 1, 1):
                yield path, 1, f"Stage {number} follows Stage {before}"


@rule
def whitespace(tree):
    for path in tree.look(tree.select(TEXT)):
        text = tree.files[path]
        if not text.endswith("\n") or text.endswith("\n\n"):
            yield path, text.count("\n") + 1, "ends in exactly one newline"
        for number, line in enumerate(text.split("\n"), 1):
            if "\t" in line or line != line.rstrip():
                yield path, number, "tab or trailing blank"
            # format.sh holds C++; Markdown's tables and paragraphs are one line each.
            if len(line) > COLUMNS and not path.endswith(CPP + (".md",)):
                yield path, number, f"{len(line)} columns, at most {COLUMNS}"


RULES += (assertions.RULES + circles.RULES + documents.RULES + language.RULES + refusals.RULES +
          server_layers.RULES)


def findings(check, tree):
    tree.looked = tree.lines = 0
    found = list(check(tree))
    return found if tree.looked else found + [("tests/tidy/tidy.py", 1, "looked at nothing")]


def read(root):
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others",
               "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
    paths = [p for p in sorted(set(listed.stdout.split("\0"))) if (root / p).is_file()]
    return Tree({path: (root / path).read_text(errors="replace") if path.endswith(TEXT) else ""
                 for path in paths})


def main(root):
    gc.disable()  # it would walk through the syntax trees of all Python files again and again
    tree, failed = read(root), 0
    for check in RULES:
        found = findings(check, tree)
        failed += bool(found)
        lines = f", {tree.lines} lines" if tree.lines else ""
        print(f"{check.__name__}: looked at {tree.looked}{lines}")
        for path, line, message in found:
            print(f"{path}:{line}: {check.__name__}: {message}")
    print(f"{len(RULES) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[2])))
