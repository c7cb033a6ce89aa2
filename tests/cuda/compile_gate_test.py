#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The gate must be able to fail: compile_gate.py on what nvcc 13.0.88 really printed for kernels
that are wrong on purpose (samples/), and sass_walk.py on a small kernel with faults put in."""

import json
import tempfile
import unittest
from pathlib import Path

import compile_gate
import sass_walk

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

    def test_only_kernels_with_a_recorded_reason_may_spill(self):
        for arguments, may in (("Codec, 256, 512, 2", True), ("Codec, 256, 512, 2, true", True),
                               ("Codec, 128, 256, 2", False), ("Codec, 256, 512, 1", False)):
            report = report_of("spill")
            for kernel in report.kernels:
                kernel.name = f"diffserve::cuda::Spilling<diffserve::{arguments}>"
            with self.subTest(arguments):
                self.assertEqual(not any("spills" in found for found in findings({OPS: report})),
                                 may)

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

    def test_kernel_of_an_unnamed_namespace_fails(self):
        text = (Path(__file__).parent / "samples/clean.txt").read_text()
        name, local = "_ZN9diffserve4cuda13RmsNorm", "_GLOBAL__N__ec5e0bf9_8_anon2_cu_9192e9ca6"
        text = text.replace(name, f"_ZN9diffserve4cuda40{local}13RmsNorm", 1)
        self.expect(findings({OPS: compile_gate.parse_report(text)}, None),
                    "move it out of the unnamed namespace")

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


class SassWalkTest(unittest.TestCase):
    """samples/sass.txt: two warpgroups, of which one fetches, a kernel with a loop that loads, and
    one that waits for the kernel before it. Without change they are right."""

    def judge(self, dependent="FewRowsKernel", **changes):
        """Findings after the text of the instruction at each address is replaced. dependent: in the
        name of the kernel that waits."""
        text = (Path(__file__).parent / "samples/sass.txt").read_text()
        lines = text.replace("FewRowsKernel", dependent).splitlines()
        for name, text in changes.items():
            at = [i for i, line in enumerate(lines) if f"/*{name.removeprefix('at_')}*/" in line]
            self.assertEqual(len(at), 1, name)
            lines[at[0]] = f"        /*{name.removeprefix('at_')}*/   {text} ;"
        verdicts, counts = sass_walk.judge(lines)
        return [f"{rule}: {finding}" for _, rule, found in verdicts for finding in found], counts

    def expect(self, found, *parts):
        self.assertEqual(len(found), 1, found)
        for part in parts:
            self.assertIn(part, found[0])

    def test_right_kernel_passes_and_everything_in_it_is_counted(self):
        found, counts = self.judge()
        self.assertEqual(found, [])
        self.assertEqual(counts, {
            "wgmma": 3,
            "setmaxnreg": 2,
            "bulk copy": 1,
            "wait": 2,
            "loads": 1
        })

    def test_touched_registers_of_unfinished_wgmma_fail(self):
        for change, expected in (("FADD R60, R1, R2", "accumulators R56"),
                                 ("STS.128 [R1], R84", "accumulators R56"),
                                 ("STS [R1], R88", None),
                                 ("STS.64 [R1], R54", None),
                                 ("STS.128 [R1], R54", "accumulators R56"),
                                 ("LDS.64 R194, [R1]", "writes A R192"),
                                 ("IMAD.WIDE R188, R1, R2, R55", "accumulators R56"),
                                 ("MOV R101, R192", None)):
            found, _ = self.judge(at_00b0=change)
            if expected is None:
                self.assertEqual(found, [], change)
            else:
                self.expect(found, "wgmma: 0xb0 ", expected)

    def test_every_path_is_followed(self):
        found, _ = self.judge(at_0120="SHFL.BFLY P0, R56, R239, R7, R8")
        self.expect(found, "wgmma: 0x120 ", "accumulators R56")
        found, _ = self.judge(at_0080="NOP", at_0090="NOP", at_00c0="NOP", at_00d0="NOP",
                              at_00e0="NOP")
        self.assertTrue(any("without a wait" in finding for finding in found), found)
        found, _ = self.judge(at_0140="BRX R2 -0x10")
        self.expect(found, "every path: 0x140 ", "cannot be followed")

    def test_missing_wait_fails(self):
        found, _ = self.judge(at_0080="WARPGROUP.DEPBAR.LE gsb0, 0x2")
        self.expect(found, "wgmma: 0x90 ", "accumulators R24")

    def test_wgmma_that_reads_or_overwrites_what_another_uses_fails(self):
        for change in ("HGMMA.64x64x16.F32.BF16 R56, R24, gdesc[UR4].tnspB, R56, gsb0",
                       "HGMMA.64x64x16.F32.BF16 R32, R192, gdesc[UR4].tnspB, R32, gsb0"):
            found, _ = self.judge(at_0070=change)
            self.expect(found, "wgmma: 0x70 ", "accumulators R24")
        found, _ = self.judge(
            at_0070="HGMMA.64x64x16.F32.BF16 R160, R56, gdesc[UR4].tnspB, R160, gsb0")
        self.expect(found, "wgmma: 0x70 ", "writes A R184")

    def test_registers_that_setmaxnreg_released_fail(self):
        found, _ = self.judge(at_0170="IMAD.WIDE R22, R2, 0x4, R23")
        self.expect(found, "setmaxnreg: 0x170 ", "24 registers of 0x150")
        found, _ = self.judge(at_0120="SHFL.BFLY P0, R240, R239, R7, R8")
        self.expect(found, "setmaxnreg: 0x120 ", "240 registers of 0x30")

    def test_bulk_copy_in_a_loop_over_lanes_fails(self):
        found, _ = self.judge(at_01a0="@P2 BRA.U.ANY 0x160")
        self.expect(found, "bulk copy: 0x190 ", "loop over the warp's lanes")

    def test_wait_between_loads_of_a_loop_fails(self):
        for change in ("FADD R8, R5, R8", "MOV R4, R3", "LDG.E R9, desc[UR4][R4.64]"):
            found, _ = self.judge(at_1030=change, at_1040="LDG.E.64 R6, desc[UR4][R20.64+0x8]")
            self.expect(found, "loads: 0x1020 ", "2 rounds of loads", "waits at 0x1030")
        found, _ = self.judge(at_1070="@!P0 BRA 0x1000")
        self.expect(found, "loads: 0x1000 ", "waits at 0x1010")
        found, _ = self.judge(at_1070="NOP", at_1090="BRA 0x1080")
        self.assertEqual(found, [])

    def test_access_before_the_wait_fails(self):
        for change in ("LDG.E R2, desc[UR4][R20.64]", "LD.E R2, [R20.64]", "PREEXIT",
                       "STG.E desc[UR4][R20.64], R2", "REDG.E.ADD desc[UR4][R20.64], R2",
                       "ATOMG.E.ADD.STRONG.GPU PT, R2, desc[UR4][R20.64], R3"):
            found, _ = self.judge(at_2020=change)
            self.expect(found, "wait: 0x2020 ", "comes before the wait")

    def test_decode_may_read_plan_and_pages_before_the_wait(self):
        for change in ("LDG.E R2, desc[UR4][R20.64]", "UBLKCP.S.G [UR4], [UR6], UR8"):
            found, _ = self.judge("DiffDecodePagesKernel", at_2020=change)
            self.assertEqual(found, [])
        found, _ = self.judge("DiffDecodePagesKernel", at_2020="STG.E desc[UR4][R20.64], R2")
        self.expect(found, "wait: 0x2020 ", "comes before the wait")

    def test_path_without_wait_fails(self):
        found, _ = self.judge(at_2090="NOP")
        self.expect(found, "wait: 0x20a0 ", "reached without a wait")
        found, _ = self.judge(at_2010="@!P0 EXIT")
        self.expect(found, "wait: 0x2010 ", "reached without a wait")
        found, _ = self.judge(at_2030="@P2 ACQBULK")
        self.assertEqual([finding.split()[1] for finding in found],
                         ["0x2040", "0x2050", "0x2070", "0x2080"])
        found, counts = self.judge(at_2030="NOP", at_2090="NOP")
        self.assertEqual(counts["wait"], 0)
        self.assertTrue(any("0x20a0 EXIT" in finding for finding in found), found)

    def test_rule_that_found_nothing_to_look_at_fails(self):
        _, counts = self.judge(at_0190="NOP")
        self.assertEqual([name for name, found in compile_gate.judge_counts(counts) if found],
                         ["bulk copy: 0 looked at"])


if __name__ == "__main__":
    unittest.main()
