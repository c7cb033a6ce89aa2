#!/usr/bin/env python3
"""Checks what no compiler checks: sizes, who includes whom, third-party homes, words, twin stages, dead files.

Usage: tidy.py [ROOT]. Prints each finding as `path:line: rule: message` and, last, `N passed, N failed` (rules); exit code 1 on
any finding. Looks at every file that git tracks or would track.
"""

import ast
import fnmatch
import re
import subprocess
import sys
from pathlib import Path

CPP = (".h", ".cc", ".cu", ".cuh")
HEADER = (".h", ".cuh")
SIZED = CPP + (".py", ".rs", ".sh", ".proto", "CMakeLists.txt")
TEXT = SIZED + (".md", ".cmake", ".toml", ".yaml", ".yml", ".ci/run")

FILE_LINES, FUNCTION_LINES, KERNEL_LINES, MARKDOWN_LINES, COLUMNS = 580, 86, 170, 1500, 140
LAYERS = ["kernels/base/", "kernels/", "models/", "engine/",
          "server/"]  # each may include itself and what stands before it

# Library, what its includes look like, the files that may name it. A header among them is private: only they may include it.
HOMES = [
    ("gRPC", r"grpc|google/protobuf|diffserve/v1/", ["server/grpc/*"]),
    ("Beast and Asio", r"boost/", ["server/http/*"]),
    ("nlohmann", r"nlohmann/", [
        "server/openai/*.cc", "server/options.cc", "server/kv_event_message.cc",
        "models/config_reader.cc", "models/safetensors*.cc"
    ]),
    ("ZeroMQ", r"zmq", ["server/kv_event_publisher.cc"]),
    ("prometheus-cpp", r"prometheus/", ["server/metrics_exporter.cc"]),
    ("OpenSSL", r"openssl/", ["server/api_key*.cc"]),
    ("oneDNN", r"(oneapi/)?dnnl", ["kernels/ops/linear*.cc"]),
    ("the Rust library", r"(engine/text/ffi/.*|.*_ffi)\.h$|diffserve_text", ["engine/text/*.cc"]),
    ("cuBLASLt", r"cublas", ["kernels/ops/matrix_library_cuda.cc"]),
    ("NCCL", r"nccl", ["kernels/ops/all_reduce_cuda.cc"]),
    ("CUDA", r"cuda|cub/|cooperative_groups|mma\.h$", ["*_cuda.cu", "*_cuda.cc", "*.cuh"]),
    ("intrinsics", r"\w*intrin\.h$", ["kernels/base/simd*.h", "*.isa.cc"]),
]
POLICY = [
    f"engine/{name}.*"
    for name in ("scheduler", "page_pool", "prefix_index", "sequence", "step_plan")
]
POLICY_BANNED = re.compile(
    r"models/|kernels/(attention/|base/(tensor|thread_pool|cpu_isa))|cuda|engine/(executor|bounded_queue)"
    r"|<(thread|mutex|shared_mutex|atomic|condition_variable|chrono|future|semaphore|ctime)>")
BANNED_NAME = re.compile(r"^(utils?|helpers?|commons?|misc|managers?|handlers?)$", re.I)
BANNED_TEXT = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "X" * 3, "HA" + "CK")) +
                         r")\b")
PAGE_AS_BLOCK = re.compile(
    r"\w*_blocks?\b|\bblocks?_\w+|\b(?:KV|kv|cache|free|cached) blocks?\b|\w*Blocks?(?=[A-Z(]|\b)")
DIARY = re.compile(
    r"((plan|note|log|changelog|todo)s?|journal|status|progress|history)(\.(md|txt|rst|org))?$|.*\.log$",
    re.I)
LITERAL = r"""R"(\w*)\(.*?\)\1"|//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.[^'\n]*|[^'\\\n])'"""
ENTRY = re.compile(r"\bmain\s*\(|LLVMFuzzerTestOneInput|^TEST(_[FP])?\(|^BENCHMARK\(", re.M)

RULES = []


def rule(function):
    RULES.append(function)
    return function


def blank(text, code):
    """`text` with comments and string contents as spaces; `code` also blanks preprocessor lines. Lines stay where they are."""
    for pattern in [LITERAL] + [r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*"] * code:
        text = re.sub(pattern, lambda match: re.sub(r"[^\n]", " ", match.group()), text,
                      flags=re.S | re.M)
    return text


class Tree:
    def __init__(self, files):
        self.files = files  # path -> text
        self.includes = {}  # path -> [(line, name, angle)]
        for path in self.select(CPP):
            found = re.finditer(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', files[path], re.M)
            self.includes[path] = [(line_of(files[path], m.start(1)), m.group(2), m.group(1) == "<")
                                   for m in found]

    def select(self, suffixes, folders=("",)):
        return [
            path for path in self.files
            if path.endswith(suffixes) and path.startswith(tuple(folders))
        ]

    def product_includes(self):
        for path in self.select(CPP, LAYERS):
            for line, name, angle in self.includes[path]:
                yield path, line, name, angle


def line_of(text, position):
    return text.count("\n", 0, position) + 1


def matches(path, patterns):
    return any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)


def layer_of(path):
    return next((i for i, prefix in enumerate(LAYERS) if path.startswith(prefix)), None)


def brace_functions(text):
    """(first line, last line) of each outermost function of C++, CUDA or Rust text."""
    text = blank(text, code=True)
    stack, start, inside = [], 0, 0
    for match in re.finditer(r"[{};]", text):
        if match.group() == "{":
            raw = text[start:match.start()].lstrip()
            head = re.sub(r"^template\s*<.*?>\s*(?=\w)", "", raw, flags=re.S).rstrip()
            container = re.match(
                r"(\w+(\(\w+\))?\s+)?(class|struct|union|enum|namespace|impl|trait|mod|extern)\b",
                head)
            returns = re.search(r"\)\s*(const|noexcept|override|final|->.*|\s)*$", head, re.S)
            function = ")" in head and not head.endswith("=") and (returns or not container)
            kind = "inner" if inside else "function" if function else "container"
            inside += kind != "container"
            stack.append((kind, match.start() - len(raw)))
        elif match.group() == "}" and stack:
            kind, begin = stack.pop()
            inside -= kind != "container"
            if kind == "function":
                yield line_of(text, begin), line_of(text, match.start())
        if not inside:
            start = match.end()


@rule
def file_length(tree):
    for path in tree.select(SIZED):
        if (lines := tree.files[path].count("\n")) > FILE_LINES:
            yield path, lines, f"{lines} lines, at most {FILE_LINES}"


@rule
def function_length(tree):
    for path in tree.select(CPP + (".rs", ".py")):
        if path.endswith(".py"):
            kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
            spans = [(n.lineno, n.end_lineno) for n in ast.walk(ast.parse(tree.files[path]))
                     if isinstance(n, kinds)]
        else:
            spans = brace_functions(tree.files[path])
        limit = KERNEL_LINES if path.endswith((".isa.cc", ".cu", ".cuh")) else FUNCTION_LINES
        for first, last in spans:
            if last - first + 1 > limit:
                yield path, first, f"function of {last - first + 1} lines, at most {limit}"


@rule
def include_direction(tree):
    for path, line, name, angle in tree.product_includes():
        mine, theirs = layer_of(path), layer_of(name)
        if theirs is not None and theirs > mine:
            yield path, line, f"{LAYERS[mine]} includes {name}, which lies above it"
        elif name.startswith("tests/"):
            yield path, line, f"includes {name}: only tests include tests"
        elif path.startswith("server/") and name == "kernels/base/tensor.h":
            yield path, line, "the server never sees a tensor"
    for path, found in tree.includes.items():
        for line, name, angle in found:
            if angle == (name
                         in tree.files) and (angle
                                             or not any(re.match(home[1], name) for home in HOMES)):
                yield path, line, f"{name}: our files are included in quotes from the repository's root, others in <>"


@rule
def home_files(tree):
    private = {}  # header of a home that names the library -> (library, home)
    for path, line, name, angle in tree.product_includes():
        home = next((h for h in HOMES if re.match(h[1], name)), None)
        if name in tree.files:
            continue
        if home is None and angle and "/" in name and not name.startswith(
            ("sys/", "linux/", "netinet/", "arpa/")):
            yield path, line, f"<{name}> has no home file in tidy.py"
        if home and not matches(path, home[2]):
            yield path, line, f"{home[0]} has its home in {', '.join(home[2])}"
        elif home and path.endswith(HEADER) and home[0] not in ("intrinsics", "CUDA"):
            private[path] = home
    for path, line, name, _ in tree.product_includes():
        if name in private and not matches(path, private[name][2]):
            yield path, line, f"{name} shows {private[name][0]} types: only {', '.join(private[name][2])} may include it"


@rule
def policy_and_memory_apart(tree):
    for path in (p for p in tree.includes if matches(p, POLICY)):
        for line, name, angle in tree.includes[path]:
            if POLICY_BANNED.search(f"<{name}>" if angle else name):
                yield path, line, f"policy handles numbers only, not {name}"
        for match in re.finditer(r"_clock::now\(", tree.files[path]):
            yield path, line_of(tree.files[path], match.start()), "policy reads no clock"


@rule
def names(tree):
    for path in tree.files:
        for part in re.split(r"[/_.\-]", path):
            if BANNED_NAME.match(part):
                yield path, 1, f'"{part}" says nothing about what is inside'
    for path in tree.select(CPP + (".py", ".rs")):
        for match in re.finditer(r"^[\w <>,]*\b(?:class|struct|enum|trait)\s+(\w+)",
                                 tree.files[path], re.M):
            if any(BANNED_NAME.match(word) for word in re.findall(r"[A-Z][a-z]*", match.group(1))):
                yield path, line_of(
                    tree.files[path],
                    match.start(1)), f'"{match.group(1)}" says nothing about what it is'


@rule
def words(tree):
    for path in tree.select(TEXT):
        for number, line in enumerate(tree.files[path].split("\n"), 1):
            if found := BANNED_TEXT.search(line):
                yield path, number, f"{found.group()}: finish it or file it"
            if path.startswith("engine/") and path.endswith(CPP) and (found :=
                                                                      PAGE_AS_BLOCK.search(line)):
                yield path, number, f'"{found.group().strip()}": a fixed run of KV slots is called a page'


@rule
def banned_code(tree):
    for path in tree.select(CPP):
        text = blank(tree.files[path], code=False)
        for pattern, message in ((r"\bstd::w?regex\b", "std::regex recurses on its input"),
                                 (r"(?<!\w)assert\s*\(",
                                  "use DS_CHECK, which is active in every build")):
            for match in re.finditer(pattern, text):
                yield path, line_of(text, match.start()), message


@rule
def headers(tree):
    for path in tree.select(HEADER):
        text = tree.files[path]
        if not text.startswith("//"):
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
    for path in tree.select(HEADER):
        own_source = re.sub(r"\.\w+$", "", path)
        if not any(re.sub(r"\.\w+$", "", user) != own_source for user in includers.get(path, ())):
            yield path, 1, "no other file includes this header"
    for path in tree.select((".cc", ".cu")):
        if not ENTRY.search(tree.files[path]) and not any(name in tree.files
                                                          for _, name, _ in tree.includes[path]):
            yield path, 1, "a source without a header of ours, a test or a main"


@rule
def markdown(tree):
    lengths = {path: tree.files[path].count("\n") for path in tree.select((".md",))}
    if (total := sum(lengths.values())) >= MARKDOWN_LINES:
        yield max(
            lengths, key=lengths.get
        ), 1, f"all Markdown together has {total} lines, fewer than {MARKDOWN_LINES} allowed"
    for path in tree.files:
        if DIARY.match(Path(path).name) and path != "CHANGELOG.md":
            yield path, 1, "plans, logs and notes do not belong into the tree"


@rule
def twin_stages(tree):
    stages = {}
    for path in tree.select(CPP, ("kernels/",)):
        found = [(line_of(tree.files[path], m.start()), int(m[1]), m[2]) for m in
                 re.finditer(r"^\s*// Stage (\d+): *(.*?)\.?$", tree.files[path], re.M)]
        for (line, number, _), before in zip(found, [0] + [number for _, number, _ in found]):
            if number not in (before + 1, 1):
                yield path, line, f"Stage {number} follows Stage {before}"
        stages[path] = [f"{number}: {text}" for _, number, text in found]
    for path in (p for p in stages if re.search(r"_cuda\.(cu|cc)$", p)):
        stem = re.sub(r"_cuda\.\w+$", "", path)
        twin = next(
            (t for t in (stem + end
                         for end in ("_cpu.cc", ".isa.cc", "_cpu.isa.cc")) if stages.get(t)), None)
        if twin and stages[twin] != stages[path]:
            yield path, 1, f"its stages {stages[path]} differ from {twin}: {stages[twin]}"


@rule
def whitespace(tree):
    for path in tree.select(TEXT):
        text = tree.files[path]
        if not text.endswith("\n") or text.endswith("\n\n"):
            yield path, text.count("\n") + 1, "ends in exactly one newline"
        for number, line in enumerate(text.split("\n"), 1):
            if "\t" in line or line != line.rstrip():
                yield path, number, "tab or trailing blank"
            if len(line) > COLUMNS and not path.endswith(".md"):
                yield path, number, f"{len(line)} columns, at most {COLUMNS}"


def read(root):
    listed = subprocess.run([
        "git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others",
        "--exclude-standard"
    ], cwd=root, check=True, capture_output=True, text=True).stdout.split("\0")
    paths = [path for path in sorted(set(listed)) if (root / path).is_file()]
    return Tree({
        path: (root / path).read_text(errors="replace") if path.endswith(TEXT) else ""
        for path in paths
    })


def main(root):
    tree, failed = read(root), 0
    for check in RULES:
        findings = list(check(tree))
        failed += bool(findings)
        for path, line, message in findings:
            print(f"{path}:{line}: {check.__name__}: {message}")
    print(f"{len(RULES) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[2])))
