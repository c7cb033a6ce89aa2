#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each rule of tidy.py finds the violation planted for it, and nothing in a small clean tree."""

import unittest
from pathlib import Path

import language
import tidy

HEADER = "// Says what it is.\n#pragma once\n"
DECODE = '#include "kernels/attention/decode.h"\n'
STAGES = "// Stage 1: scores\n// Stage 2: softmax. Two passes\n"
CLEAN = {
    "kernels/base/status.h": HEADER + "class Status { bool ok() const { return true; } };\n",
    "kernels/base/simd.h": HEADER + "#include <immintrin.h>\n",
    "kernels/attention/decode.h": HEADER + '#include "kernels/base/status.h"\n',
    "kernels/attention/decode_cpu.cc": DECODE + STAGES,
    "kernels/attention/decode_cuda.cu": DECODE + "#include <cuda_runtime.h>\n// Stage 1: scores\n",
    "kernels/attention/decode_tail_cuda.cu": DECODE + "// Stage 2: softmax.\n",
    "kernels/attention/decode.isa.cc": '#include "kernels/base/simd.h"\n' + DECODE,
    "kernels/ops/matrix_library_cuda.cc": DECODE + "#include <cublasLt.h>\n",
    "engine/policy/plan.h":
        HEADER + '#include <vector>\n#include "kernels/base/status.h"\n// Submit never blocks.\n',
    "engine/engine.cc": '#include <thread>\n#include "engine/policy/plan.h"\n',
    "engine/text/tokenizer.cc": '#include "diffserve_text.h"\n#include "engine/policy/plan.h"\n',
    "server/api/grpc/session.h": HEADER + "#include <grpcpp/grpcpp.h>\n",
    "server/api/grpc/server.cc":
        '#include "server/api/grpc/session.h"\n#include "engine/policy/plan.h"\n'
        '#include "diffserve/v1/inference.pb.h"\n',
    "server/app/main.cc": "#include <sys/socket.h>\nint main() { return 0; }\n",
    "tests/engine/scheduler_test.cc":
        '#include <gtest/gtest.h>\n#include "engine/policy/plan.h"\n'
        "TEST(SchedulerTest, PlansAreEqual) { EXPECT_TRUE(true); }\nstatic_assert(true);\n",
    "server/ui/index.html": '<script type="module" src="ui/main.js"></script>\n',
    "server/ui/main.js": 'const svg = "http://www.w3.org/2000/svg";\n',
    "README.md": "# diffserve\n[the scheduler](engine/policy/plan.h)\n",
    "models/demo/model.safetensors": "",
} | {path: f'#include "engine/policy/plan.h"\n#include <{library}>\n' for path, library in {
    "server/http/loop.cc": "boost/beast.hpp", "server/app/options.cc": "nlohmann/json.hpp",
    "server/http/content_coding.cc": "zlib.h",
    "server/observe/kv_event_publisher.cc": "zmq.hpp",
    "server/observe/metrics_exporter.cc": "prometheus/gauge.h",
    "server/api/head/api_key.cc": "openssl/sha.h",
    "server/app/chat/line_editor.cc": "histedit.h",
    "server/hub/hub_client.cc": "curl/curl.h",
    "engine/page_store/page_record.cc": "xxhash.h"}.items()}


LICENCE = {(".h", ".cc", ".cu", ".cuh", ".rs", ".proto", ".js"): f"// {language.SPDX}\n",
           (".py", ".sh", "CMakeLists.txt"): f"# {language.SPDX}\n"}


def licensed(files):
    return {path: next((line for suffixes, line in LICENCE.items() if path.endswith(suffixes)), "")
            + text for path, text in files.items()}


def lines(count, line="x();"):
    return (line + "\n") * count


def findings(changes):
    """Rule names that object to the clean tree with `changes`."""
    tree = tidy.Tree(licensed(CLEAN | changes))
    return {check.__name__ for check in tidy.RULES if tidy.findings(check, tree)}


class TidyTest(unittest.TestCase):
    def expect(self, rule, path, text):
        with self.subTest(rule=rule, path=path, text=text[-60:]):
            self.assertEqual(findings({path: text}), {rule})

    def extend(self, rule, path, text):
        self.expect(rule, path, CLEAN[path] + text)

    def test_a_clean_tree_has_no_findings(self):
        self.assertEqual(findings({}), set())

    def test_sizes(self):
        self.extend("file_length", "engine/engine.cc", lines(tidy.FILE_LINES - 2, "int x;"))
        self.assertEqual(
            findings({
                "engine/engine.cc": CLEAN["engine/engine.cc"] + lines(tidy.FILE_LINES - 3, "int x;")
            }), set())
        self.expect("file_length", "tests/e2e/test_a.py", lines(tidy.FILE_LINES + 1, "x = 1"))
        for opening in ("void F(int a) {", "Foo::Foo(int a)\n    : a_{a}, b_(a) {",
                        "namespace d {\nclass C {\n int F() const {",
                        "template <class T>\nT F() noexcept {", "TEST(A, IsLong) {\nif (x) {\n}",
                        "struct stat F() {", 'extern "C" {\nvoid F() {',
                        "void F() { char c = '{'; // }"):
            self.extend("function_length", "engine/engine.cc",
                        opening + "\n" + lines(tidy.FUNCTION_LINES) + "}\n")
        self.expect("function_length", "tests/e2e/test_a.py",
                    "def f():\n" + lines(tidy.FUNCTION_LINES, "  x = 1"))
        self.extend("function_length", "kernels/attention/decode.isa.cc",
                    "void F() {\n" + lines(tidy.KERNEL_LINES - 1) + "}\n")

    def test_lengths_that_are_allowed(self):
        for path, text in (("engine/engine.cc", "void F() {\n" + lines(tidy.FUNCTION_LINES - 2) +
                            "}\n"), ("kernels/attention/decode.isa.cc",
                                     "void F() {\n" + lines(tidy.KERNEL_LINES - 2) + "}\n"),
                           ("engine/engine.cc",
                            "class C {\n" + lines(100, "int F() { return 1; }") + "};\n"),
                           ("engine/engine.cc", "enum E {\n" + lines(100, "kA,") + "};\n"),
                           ("engine/engine.cc", "constexpr std::array<int, N()> kTable = {\n" +
                            lines(100, "1,") + "};\n"),
                           ("engine/engine.cc",
                            "namespace {\n" + lines(100, 'void F() { g("}"); }') + "}\n")):
            with self.subTest(text=text[:30]):
                self.assertEqual(findings({path: CLEAN[path] + text}), set())

    def test_includes(self):
        status = "kernels/base/status.h"
        for name in ("engine/policy/plan.h", "kernels/attention/decode.h"):
            upwards = {status: CLEAN[status] + f'#include "{name}"\n'}
            self.assertEqual(findings(upwards), {"include_direction", "circles"})
        above = {"engine/inbox.h": HEADER,
                 "engine/engine.cc": CLEAN["engine/engine.cc"] + '#include "engine/inbox.h"\n'}
        plan = CLEAN["engine/policy/plan.h"] + '#include "engine/inbox.h"\n'
        self.assertEqual(findings(above), set())
        self.assertEqual(findings(above | {"engine/policy/plan.h": plan}), {"include_direction"})
        self.extend("include_direction", "engine/engine.cc", '#include "scheduler.h"\n')
        self.extend("include_direction", "engine/engine.cc", "#include <engine/policy/plan.h>\n")
        with_tensor = {
            "kernels/base/tensor.h": HEADER,
            "kernels/ops/linear.cc": '#include "kernels/base/tensor.h"\n'
        }
        main = '#include "kernels/base/tensor.h"\n' + CLEAN["server/app/main.cc"]
        self.assertEqual(findings(with_tensor), set())
        self.assertEqual(findings(with_tensor | {"server/app/main.cc": main}),
                         {"include_direction"})
        self.extend("policy_and_memory_apart", "engine/policy/plan.h", "#include <chrono>\n")
        self.extend("policy_and_memory_apart", "engine/policy/plan.h",
                    "auto t = std::chrono::steady_clock::now();\n")

    def test_policy_classes(self):
        few = "class Pages {\n" + "".join(
            f"  int m{i}_ = 0;\n" for i in range(tidy.POLICY_MEMBERS)) + "  void F(int g_);\n};\n"
        path = "engine/policy/plan.h"
        self.assertEqual(findings({path: CLEAN[path] + few}), set())
        self.extend("policy_classes", path, few.replace("m0_ = 0;", "m0_ = 0, more_ = 0;"))
        source = {"engine/policy/plan.cc": '#include "engine/policy/plan.h"\nvoid Plan::F() {}\n'}
        of_plan = {path: CLEAN[path] + "class Plan {\n  void F();\n};\n"}
        self.assertEqual(findings(of_plan | source), set())
        self.assertEqual(findings(source), {"policy_classes"})

    def test_folders_of_the_server(self):
        api, json = "server/api/openai/request.h", "server/json/json.h"
        routes = "server/api/openai/routes.h"
        seen = {api: HEADER, json: HEADER, routes: HEADER,
                "server/api/apis.cc": f'#include "{routes}"\n',
                "server/api/openai/request.cc": f'#include "{api}"\n#include "{json}"\n',
                "server/api/openai/routes.cc": f'#include "{routes}"\n#include "{api}"\n'}
        self.assertEqual(findings(seen), set())
        for path in ("server/json/json.cc", "server/api/vllm/request.cc", "server/api/routes.cc"):
            found = findings(seen | {path: f'#include "{api}"\n'})
            self.assertEqual(found - {"circles"}, {"server_layers"})
        main = f'#include "{api}"\n' + CLEAN["server/app/main.cc"]
        self.assertEqual(findings(seen | {"server/app/main.cc": main}), {"server_layers"})
        door = {"server/api/door/front_door.h": HEADER, "server/api/api_context.h": HEADER,
                "server/api/routes.cc":
                    '#include "server/api/door/front_door.h"\n'
                    '#include "server/api/api_context.h"\n',
                "server/router/router.cc": '#include "server/api/door/front_door.h"\n'}
        self.assertEqual(findings(door), set())
        for path in ("server/api/door/front_door.cc", "server/router/router.cc"):
            context = {path: '#include "server/api/api_context.h"\n'}
            self.assertEqual(findings(door | context), {"server_layers"})

    def test_circles(self):
        first, second = "models/families/family.h", "models/config.h"
        user = {"models/load.cc": f'#include "{first}"\n#include "{second}"\n'}
        seen = user | {first: HEADER + f'#include "{second}"\n', second: HEADER}
        self.assertEqual(findings(seen), set())
        # A source and its header are one room; so are the files of a folder, however deep.
        back = {"models/config.cc": f'#include "{second}"\n#include "{first}"\n'}
        self.assertEqual(findings(seen | back), {"circles"})
        a, b = "kernels/ops/a/x.h", "kernels/ops/b/y.h"
        between = {a: HEADER + f'#include "{b}"\n', b: HEADER,
                   "kernels/ops/a/z.h": HEADER,
                   "kernels/ops/use.cc": f'#include "{a}"\n#include "kernels/ops/a/z.h"\n'}
        self.assertEqual(findings(between), set())
        self.assertEqual(findings(between | {b: HEADER + '#include "kernels/ops/a/z.h"\n'}),
                         {"circles"})
        # Files of one folder may know each other.
        pair = {f"engine/{x}.h": HEADER for x in "ab"} | {
            f"engine/{x}.cc": '#include "engine/a.h"\n#include "engine/b.h"\n' for x in "ab"}
        self.assertEqual(findings(pair), set())
        module = "deploy/python/diffserve/{}.py"
        hint = "if TYPE_CHECKING:\n    from .arrays import Array\n"
        package = {module.format("results"): hint,
                   module.format("arrays"): "from .results import Attention\n"}
        self.assertEqual(findings(package), set())
        late = {module.format("results"): "def plot():\n    from . import arrays\n"}
        self.assertEqual(findings(package | late), {"circles"})

    def test_floors(self):
        text, engine = "engine/text/stop.h", "engine/inbox.h"
        seen = {text: HEADER + f'#include "{engine}"\n', engine: HEADER,
                "server/http/use.cc": f'#include "{text}"\n#include "{engine}"\n'}
        self.assertEqual(findings(seen), set())
        below = CLEAN["engine/engine.cc"] + f'#include "{text}"\n'
        self.assertEqual(findings(seen | {"engine/engine.cc": below}), {"include_direction"})
        app, hub = "server/app/server.h", "server/hub/model_place.h"
        main = CLEAN["server/app/main.cc"]
        for name in (app, hub):
            main = main.replace("int main", f'#include "{name}"\nint main')
        seen = {app: HEADER, hub: HEADER, "server/app/main.cc": main}
        self.assertEqual(findings(seen), set())
        for path, name in (("server/http/loop.cc", app), ("server/http/loop.cc", hub),
                           ("server/hub/hub_client.cc", app)):
            below = seen | {path: CLEAN[path] + f'#include "{name}"\n'}
            self.assertEqual(findings(below) - {"circles"}, {"include_direction", "server_layers"})

    def test_homes(self):
        for path, name in (("engine/engine.cc", "grpcpp/grpcpp.h"),
                           ("server/api/grpc/server.cc", "boost/beast.hpp"),
                           ("engine/policy/plan.h", "nlohmann/json.hpp"),
                           ("kernels/attention/decode_cpu.cc", "immintrin.h"),
                           ("kernels/attention/decode_cpu.cc", "cuda_runtime.h"),
                           ("server/app/main.cc", "openssl/sha.h"),
                           ("server/app/main.cc", "absl/strings/cord.h"),
                           ("server/app/main.cc", "prometheus/counter.h")):
            self.extend("home_files", path, f"#include <{name}>\n")
        self.extend("home_files", "server/app/main.cc", '#include "diffserve/v1/inference.pb.h"\n')
        self.extend("home_files", "server/app/main.cc", '#include "server/api/grpc/session.h"\n')
        # A library that nothing uses any more has no home.
        self.expect("home_files", "server/api/head/api_key.cc", '#include "engine/policy/plan.h"\n')

    def test_words(self):
        for name in ("server/json_util.py", "engine/common/page.py",
                     "tests/testing/test_helpers.py"):
            self.expect("names", name, "x = 1\n")
        self.extend("names", "engine/engine.cc", "class RequestManager {};\n")
        self.extend("names", "engine/engine.cc", "template <class T>\nstruct StringUtil {};\n")
        self.extend("words", "README.md", "TO" + "DO: write it\n")
        for text in ("int num_blocks = 1;\n", "// frees the KV block\n", "struct BlockTable {};\n",
                     "void FreeBlock();\n"):
            self.extend("words", "engine/engine.cc", text)
        self.extend("banned_code", "engine/engine.cc", "std::regex r;\n")
        self.extend("banned_code", "engine/engine.cc", "void F() { assert(true); }\n")
        self.assertEqual(
            findings({"engine/engine.cc": CLEAN["engine/engine.cc"] + "// no assert(x) here\n"}),
            set())

    def test_json_by_hand(self):
        for text in (r'auto a = "{\"id\":" + id;', r'auto a = "\"" + name + "\": 1";',
                     'auto a = R"({"id":1})";'):
            self.expect("json_by_hand", "server/app/main.cc", "int main() { " + text + " }\n")
        for path, text in (("server/json/json_writer.cc", r'auto a = "\":";'),
                           ("server/app/main.cc", r'auto a = "is \"" + b + "\"; c: " + ":";')):
            self.assertEqual(findings({path: "int main() { " + text + " }\n"}), set())

    def test_refusals(self):
        for text in ('a + "; allowed: 1"', 'a + " must be 1"', 'a + "; at most " + b',
                     'a + b + " are allowed"', 'a + ", expected a list"', '"is allowed with b"',
                     '"a and b; use one of them"', 'a + " is missing or empty"'):
            for path in ("server/app/main.cc", "engine/engine.cc"):
                self.extend("refusals", path, f"auto r = {text};\n")
        allowed = 'auto a = NotAllowed("x has none", "at most 3");  // a is allowed\n'
        self.assertEqual(findings({"engine/engine.cc": CLEAN["engine/engine.cc"] + allowed}), set())
        self.assertIn("refusals",
                      findings({"server/app/option_table.cc": "int main() { return 0; }\n"}))

    def test_headers_and_dead_files(self):
        self.expect("headers", "kernels/base/status.h", "// Says what it is.\nclass Status {};\n")
        self.expect("headers", "kernels/base/status.h", "#pragma once\nclass Status {};\n")
        self.extend("headers", "kernels/base/status.h", "using namespace std;\n")
        self.expect("dead_files", "engine/unused.h", HEADER)
        self.assertEqual(findings({"engine/a.h": HEADER, "engine/a.cc": '#include "engine/a.h"\n'}),
                         {"dead_files"})
        self.expect("dead_files", "engine/orphan.cc", "int x;\n")

    def test_page(self):
        for text in ("node.innerHTML = text;\n", "document.write(text);\n", "eval(text);\n",
                     'import x from "https://cdn.example/x.js";\n'):
            self.extend("page", "server/ui/main.js", text)
        for text in ("<script>x()</script>\n", '<p style="color: red">\n'):
            self.extend("page", "server/ui/index.html", text)
        self.expect("page", "server/ui/unused.js", "x();\n")
        self.expect("page", "server/ui/unused.css", "p { color: red; }\n")
        self.extend("file_length", "server/ui/main.js", lines(tidy.FILE_LINES))
        self.extend("whitespace", "server/ui/main.js", "x" * 101 + "\n")

    def test_assertions(self):
        path, begin = "tests/engine/scheduler_test.cc", '#include "tests/engine/bench.h"\n'
        runs = "TEST_F(SchedulerTest, Ends) { Run(); }\n"
        self.extend("assertions", path, runs)
        self.extend("assertions", path, "void Run() { Stop(); }\n" + runs)
        self.extend("assertions", path, "// EXPECT_TRUE(true)\n" + runs)
        for asserting in ("void Run() { EXPECT_TRUE(true); }\n" + runs,
                          "void Stop() { FAIL(); }\nvoid Run() { Stop(); }\n" + runs,
                          "TEST(SchedulerTest, Ends) { ExpectEnd<4>(1); }\n"):
            self.assertEqual(findings({path: CLEAN[path] + asserting}), set())
        bench = HEADER + "inline void Run() { ASSERT_TRUE(true); }\n"
        self.assertEqual(
            findings({path: begin + CLEAN[path] + runs, "tests/engine/bench.h": bench}), set())
        self.assertEqual(
            findings({path: CLEAN[path] + runs, "tests/engine/bench_test.cc": begin,
                      "tests/engine/bench.h": bench}), {"assertions"})
        python = "class PlanTest:\n    def test_it(self):\n        {}\n"
        for text in ("run()", "self.run()", "print('assert')"):
            self.expect("assertions", "tests/e2e/test_plan.py", python.format(text))
        for text in ("self.assertTrue(1)", "assert 1", "self.fail()", "raise AssertionError(1)"):
            self.assertEqual(findings({"tests/e2e/test_plan.py": python.format(text)}), set())
        self.assertEqual(
            findings({"tests/e2e/test_plan.py": "from plans import run\n" + python.format("run()"),
                      "tests/e2e/plans.py": "def run():\n    assert 1\n"}), set())

    def test_documents(self):
        for name in ("PLAN.md", "docs/notes.txt", "server/build.log", "docs/CHANGELOG.md",
                     "CHANGELOG"):
            self.expect("diaries", name, "text\n")
        self.assertEqual(findings({"CHANGELOG.md": "text\n"}), set())
        for page, limit in (("README.md", 180), ("ARCHITECTURE.md", 150), ("docs/a.md", 250)):
            link = "[a](/x)\n".replace("/x", page.rsplit("/")[-1])
            self.assertEqual(findings({page: link + lines(limit - 1, "text")}), set())
            self.expect("page_size", page, link + lines(limit, "text"))
        self.assertEqual(findings({"docs/cli.md": "[a](cli.md)\n" + lines(1000, "text")}), set())
        self.extend("page_size", "README.md", "x" * 121 + "\n")
        self.extend("page_size", "README.md", "| " + "x" * 160 + "\n")
        row = CLEAN["README.md"] + "| " + "x" * 140 + "\n"
        self.assertEqual(findings({"README.md": row}), set())
        for target in ("missing.md", "engine/engine.cc#a", "#nothing", "server/none/"):
            self.extend("links", "README.md", f"[a]({target})\n")
        good = {"docs/a.md": "# A page, `x`\n[up](../README.md) [here](#a-page-x) [b](https://b)\n",
                "README.md": CLEAN["README.md"] + "[a](docs/a.md#a-page-x) [b](engine)\n"}
        self.assertEqual(findings(good), set())

    def test_language(self):
        for text in ("// Of the rows that are left, the first.\n", "// Whoever reads it waits.\n",
                     "// Read by nobody.\n", "// The client is told.\n", "// What befalls it.\n",
                     "// It stands in the queue.\n", "// At most so many rows.\n",
                     "// The same to the bit.\n", "// It is gone on with.\n",
                     "// 16 bytes a token.\n", "// 8 requests a pod.\n", "// Lets go of it.\n",
                     "// Until it has let go of it.\n", "void LetGo();\n", "struct ReadWish;\n",
                     "void TellClient();\n", "int kLeastRows = 1;\n", "void IsToldOnce();\n"):
            self.extend("phrases", "engine/engine.cc", text)
        for text in ("// Of course it waits.\n", "// The state stands for a page.\n",
                     "// Reads 16 bytes per token.\n", "int kMinRows = 1;\n"):
            self.assertEqual(findings({"engine/engine.cc": CLEAN["engine/engine.cc"] + text}),
                             set())

    def test_type_names(self):
        twice = {"engine/engine.cc": CLEAN["engine/engine.cc"] + "class Status {};\n"}
        self.assertEqual(findings(twice), {"type_names"})
        self.assertEqual(
            findings({"tests/engine/scheduler_test.cc":
                      CLEAN["tests/engine/scheduler_test.cc"] + "class Status {};\n"}), set())
        self.assertEqual(
            findings({path: CLEAN[path] + "struct Tile {};\n" for path in
                      ("kernels/attention/decode.h", "kernels/attention/decode_cuda.cu")}),
            {"type_names"})

    def test_names_of_tests(self):
        path = "tests/engine/scheduler_test.cc"
        for name in ("AFullQueueRefuses", "AnErrorEnds", "TheStepEnds", "OutputIsEqualInCompany"):
            self.extend("test_names", path, f"TEST_F(SchedulerTest, {name}) {{ FAIL(); }}\n")
        self.extend("test_names", "README.md", "Run SchedulerTest.PlansAreNot*.\n")
        self.expect("test_names", "deploy/run.sh", "filter='*EngineTest.*'\n")
        good = {"deploy/run.sh": "filter='SchedulerTest.*:*SchedulerTest.PlansAre*/cuda'\n",
                path: CLEAN[path] + "TEST(SchedulerTest, AnotherStepEnds) { FAIL(); }\n"}
        self.assertEqual(findings(good), set())

    def test_licence(self):
        tree = tidy.Tree(licensed(CLEAN) | {"server/app/main.cc": CLEAN["server/app/main.cc"]})
        found = {check.__name__ for check in tidy.RULES if tidy.findings(check, tree)}
        self.assertEqual(found, {"licence"})

    def test_stages(self):
        cpu, cuda = "kernels/attention/decode_cpu.cc", "kernels/attention/decode_cuda.cu"
        self.expect("twin_stages", cpu, CLEAN[cpu].replace("softmax", "max"))
        self.expect("twin_stages", cuda, CLEAN[cuda].replace("scores", "logits"))
        self.expect("twin_stages", cuda, DECODE + "#include <cuda_runtime.h>\n")
        self.expect("twin_stages", cpu, DECODE)
        self.extend("twin_stages", cuda, "// Stage 3: output\n")
        self.expect("twin_stages", "kernels/ops/rope_cuda.cu", DECODE + "// Stage 1: rotate\n")
        gap = {path: CLEAN[path] + "// Stage 4: output\n" for path in (cpu, cuda)}
        self.assertEqual(findings(gap), {"twin_stages"})
        again = {path: CLEAN[path] + "// Stage 1: gate\n// Stage 2: down\n" for path in
                 (cpu, "kernels/attention/decode_tail_cuda.cu")}
        self.assertEqual(findings(again), set())

    def test_whitespace(self):
        for text in ("int x;", "int x;\n\n", "int x; \n", "\tint x;\n"):
            self.extend("whitespace", "engine/engine.cc", text)
        self.expect("whitespace", "deploy/run.sh", "x" * 101 + "\n")
        self.assertEqual(findings({"deploy/run.sh": "x" * 100 + "\n"}), set())
        self.assertEqual(findings({"README.md": CLEAN["README.md"] + "x" * 101 + "\n"}), set())

    def test_a_rule_that_has_nothing_to_look_at_fails(self):
        for check in tidy.RULES:
            messages = [message for _, _, message in tidy.findings(check, tidy.Tree({}))]
            self.assertIn("looked at nothing", messages, check.__name__)

    def test_every_rule_is_tested(self):
        text = Path(__file__).read_text()
        for check in tidy.RULES:
            self.assertIn(f'"{check.__name__}"', text)


if __name__ == "__main__":
    unittest.main()
