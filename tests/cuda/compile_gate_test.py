#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The gate must be able to fail: compile_gate.py on what nvcc 13.0.88 really printed for kernels
that are wrong on purpose (samples/)."""

import json
import tempfile
import unittest
from pathlib import Path

import compile_gate

OPS, ATTENTION = "kernels/ops/sample_cuda.cu", "kernels/attention/sample_cuda.cu"


def report_of(sample):
    report = compile_gate.parse_report(
        (Path(__file__).parent / f"samples/{sample}.txt").read_text())
    for kernel, name in zip(report.kernels,
                            compile_gate.demangle([kernel.name for kernel in report.kernels])):
        kernel.name = name
    return report


def findings(reports, table=None):
    return [
        f"{name}: {finding}" for name, found in compile_gate.judge(reports, table)
        for finding in found
    ]


class CompileGateTest(unittest.TestCase):
    def setUp(self):
        self.clean = {OPS: report_of("clean")}
        self.table = compile_gate.table_of(self.clean)

    def expect(self, found, *parts):
        self.assertEqual(len(found), 1, found)
        for part in parts:
            self.assertIn(part, found[0])

    def test_reads_every_kernel_of_each_target(self):
        self.assertEqual([(k.name, k.target, k.registers, k.shared_bytes)
                          for k in self.clean[OPS].kernels],
                         [("diffserve::cuda::SiluMulKernel<8>", "sm_80", 32, 0),
                          ("diffserve::cuda::RmsNormKernel<8>", "sm_80", 40, 32),
                          ("diffserve::cuda::SiluMulKernel<8>", "sm_90a", 31, 0),
                          ("diffserve::cuda::RmsNormKernel<8>", "sm_90a", 38, 32)])

    def test_clean_kernels_that_the_table_knows_pass(self):
        self.assertEqual(findings(self.clean, self.table), [])

    def test_spills_fail_everywhere(self):
        self.expect(findings({OPS: report_of("spill")}), "Spilling sm_80", "spills 752 bytes")

    def test_local_memory_fails_only_in_attention_kernels(self):
        self.expect(findings({ATTENTION: report_of("local_array")}), "LocalArray sm_80",
                    "256 bytes of local memory")
        self.assertEqual(findings({OPS: report_of("local_array")}), [])

    def test_every_wgmma_serialisation_message_fails(self):
        found = findings({OPS: report_of("wgmma_call")})
        self.assertEqual([
            finding.count("C7510") + finding.count("C7517") + finding.count("C7519")
            for finding in found
        ], [1] * 4)
        self.expect([finding for finding in found if "C7510" in finding],
                    "wgmma.mma_async instructions are serialized")

    def test_local_memory_of_a_called_function_counts_for_the_kernel(self):
        text = (Path(__file__).parent / "samples/wgmma_call.txt").read_text().replace(
            "    0 bytes stack", "    40 bytes stack")
        self.assertEqual([kernel.stack_bytes for kernel in compile_gate.parse_report(text).kernels],
                         [56])

    def test_changed_registers_or_shared_memory_fail(self):
        key = f"{OPS} diffserve::cuda::RmsNormKernel<8>"
        self.table[key]["sm_80"] = [39, 32]
        self.expect(findings(self.clean, self.table), "RmsNormKernel<8> sm_80",
                    "40 registers, the table has 39")
        self.table[key]["sm_80"] = [40, 64]
        self.expect(findings(self.clean, self.table),
                    "32 bytes of static shared memory, the table has 64")

    def test_unknown_and_vanished_kernels_fail(self):
        key = f"{OPS} diffserve::cuda::RmsNormKernel<8>"
        gone = dict(self.table, **{f"{OPS} Old<1>": {"sm_80": [1, 0]}})
        self.expect(findings(self.clean, gone), "Old<1> sm_80 is gone")
        del self.table[key]["sm_90a"]
        self.expect(findings(self.clean, self.table), "RmsNormKernel<8> sm_90a", "not in the table")

    def test_two_kernels_of_one_name_cannot_hide_each_other(self):
        report = report_of("clean")
        report.kernels += report_of("clean").kernels[:1]
        self.expect(findings({OPS: report}, self.table), "two kernels of this name")

    def test_report_without_kernels_or_registers_fails(self):
        self.expect(findings({OPS: compile_gate.parse_report("")}), "holds no kernel")
        truncated = compile_gate.parse_report(
            "ptxas info    : Compiling entry function '_Z1kPf' for 'sm_80'\n")
        self.expect(findings({OPS: truncated}), "says nothing about its registers")

    def test_other_compilers_are_judged_only_by_the_absolute_rules(self):
        self.assertEqual(findings(self.clean, None), [])

    def test_names_are_independent_of_the_files_folder(self):
        names = [
            "_ZN9diffserve4cuda52_GLOBAL__N__16fa8cfa_19_diff_decode_cuda_cu_9192e9ca6"
            "HiddenILi8EEEvPf",
            "_ZN9diffserve4cuda40_GLOBAL__N__ec5e0bf9_8_anon2_cu_9192e9ca6HiddenILi8EEEvPf"
        ]
        self.assertEqual(compile_gate.demangle(names), ["diffserve::cuda::Hidden<8>"] * 2)

    def test_table_is_written_as_it_is_read(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "table.json"
            compile_gate.write_table("13.0.88", self.table, path)
            self.assertEqual(json.loads(path.read_text())["kernels"], self.table)


if __name__ == "__main__":
    unittest.main()
