# SPDX-License-Identifier: Apache-2.0
"""What each call of the check runs, in order: the tables. A suite's limit is for a GPU; the sum of
a call's limits may exceed its time, and what has no time left says so."""

from pathlib import Path

from runner import ALARM_CODE, Suite, list_gtests, matching, read_gtest, read_unittest

# Name, seconds, filter. A test belongs to the first suite that matches it.
CORRECTNESS = [
    ("ptx", 30, "PtxTest.*"),
    ("wgmma", 30, "WgmmaTest.*"),
    ("backend", 30, "CudaErrorTest.*:CudaBackendTest.*:MatrixLibraryTest.*:DeviceTest.*"
                    ":StepBatchTest.*"),
    ("linear", 40, "*LinearTest.*:MatrixProductTest.*"),
    ("quantized", 60, "WeightTilesTest.*:*Linear*CudaTest.*:*QuantizedDecoderTest.*"
                      ":*Fp8DecoderTest.*"),
    ("rows", 40, "RowwiseTest.*:EmbeddingTest.*:RopeTableTest.*:*RopeAppendTest.*"),
    ("mamba", 30, "Mamba*"),
    ("decode", 40, "DiffDecodeTest.*:AttentionPlan*"),
    ("prefill", 40, "*DiffPrefillTest.*"),
    ("attention", 120, "*DiffAttentionTest.*:*AttentionWindowTest.*"),
    ("code_pages", 90, "*CodePagesOnDeviceTest.*:*CodeAppendOnDeviceTest.*:Fp8Pages*"),
    ("sample", 40, "SampleTest.*"),
    ("decoder", 60, "*CudaDecoderTest.*:*CudaWideHeadsTest.*"),
    ("engine", 40, "*CudaEngineTest.*"),
    ("hybrid", 60, "*CudaHybridTest.*"),
    ("repeat", 60, "AttentionRepeatTest.*"),
    ("far", 40, "FarPagesTest.*:RowwiseCudaTest.*"),
    ("fuzz", 60, "AttentionFuzzTest.*"),
    (REST := "rest", 40, "*"),
]
KERNEL_FIGURES_S = 150

# Reasons for which a test may be skipped, on any device, on one that is not Hopper's, and in the
# simulation. Any other skip is a failure.
KNOWN_SKIPS = (
    "^there is a device$",
    "^its widths are multiples of 16$",
    "^there is no q whose codes and logits are both exact$",
    "^codes round the values?$",
    "^q is bfloat16 there$",
    r"^needs 1[06] GiB of free device memory, has \d+$",
    "^(refused there|the default there|its pages have 64 slots anyway)$",
)
KNOWN_SKIPS_BEFORE_HOPPER = (" has no wgmma$", "which has no bulk copies$",
                             " multiplies no fp8 numbers$")
KNOWN_SKIPS_SIMULATED = ("^needs a GPU: ", )

# compute-sanitizer's shards: tool, name, seconds, filter. Racecheck takes bulk copies for races, so
# it gets the cases without them.
SMALL = ("PtxTest.*:WgmmaTest.Products*:RowwiseTest.RmsNorm*:*RopeAppendTest.EveryStyle*"
         ":AttentionPlanOnDeviceTest.*:SampleTest.RandomRows*")
WITHOUT_BULK = ("RowwiseTest.RmsNorm*:*RopeAppendTest.EveryStyle*:AttentionPlanOnDeviceTest.*"
                ":DiffDecodeTest.MixedBatchWithoutBulk*")
SHARDS = [(tool, name, seconds, filter_) for tool in ("memcheck", "synccheck")
          for name, seconds, filter_ in (
              ("small", 40, SMALL),
              ("decode", 40, "*DiffAttentionTest.EmptyBatch*/decode*"
                             ":*DiffAttentionTest.FirstToken*/decode*"),
              ("prefill", 40, "*DiffAttentionTest.EmptyBatch*/prefill*"
                              ":*DiffAttentionTest.FirstToken*/prefill*"),
              *((f"{codec}_{kernel.lower()}", 30,
                 f"*CodePagesOnDeviceTest.NonFiniteQuery*/{codec}_{kernel}")
                for codec in ("int8", "int8k_int4v", "int4", "fp8_e4m3")
                for kernel in ("DecodeInBulk", "Prefill")))]
SHARDS += [("racecheck", "small", 40, WITHOUT_BULK),
           ("racecheck", "prefill", 40, "*DiffAttentionTest.FirstToken*/prefill")]

# Alarms that the tool itself is known to raise without cause: the size that it takes a wgmma to
# read of shared memory, and bulk copies at the first byte of dynamic shared memory.
KNOWN_ALARMS = (
    r"Invalid __shared__ \? of size \d+ bytes(.*\n)*.*is out of bounds",
    r"Invalid __shared__ (read|write) of size 16 bytes(.*\n)*.*Address 0x400 is out of bounds",
)

EXACTNESS = ("BitExactnessTest", "Int8PagesExactnessTest", "Fp8PagesExactnessTest",
             "FourBitPagesExactnessTest", "LogitRowExactnessTest", "LogitTileExactnessTest",
             "LogitAnchoredExactnessTest")

MODELS = ("diff_3b", "transformer_3b")
BENCH = ("--device", "cuda", "--json")
# What ncu looks at: a figure of cuda_bench, and the kernels in it.
PROFILES = (
    ("profile_decode", "decode_share_v1_d128_heads16_groups4_batch64", "regex:DiffDecode"),
    ("profile_prefill", "prefill_v1_d128_full", "regex:DiffPrefill"),
)
SECTIONS = ("LaunchStats", "Occupancy", "SpeedOfLight", "MemoryWorkloadAnalysis",
            "SchedulerStats", "WarpStateStats")


class Archive:
    """The unpacked archive, which looks like the repository as far as it goes."""

    def __init__(self, root):
        self.root = Path(root)
        self.program = str(self.root / "bin/gpu_check")
        self.environment = {
            "DIFFSERVE_SOURCE_DIR": str(self.root), "DIFFSERVE_FUZZ_SECONDS": "30"
        }

    def tests(self, logs):
        return list_gtests([self.program, "cuda_test"], Path(logs) / "list.log")

    def gtest(self, name, limit_s, tests, before=()):
        """A suite of these tests; `before` stands before the program."""
        command = [*before, self.program, "cuda_test", "--gtest_filter=" + ":".join(tests)]
        return Suite(name, command, limit_s, list(tests), self.environment, read_gtest)


def correctness(archive, logs, sample=1):
    """Each suite with the tests that no suite before it has; of those every `sample`th."""
    left, suites = archive.tests(logs), []
    for name, limit_s, filter_ in CORRECTNESS:
        found = matching(left, filter_)
        left = [test for test in left if test not in found]
        if name == REST and not found:
            continue
        suites.append(archive.gtest(name, limit_s, found[::sample]))
    return suites


def sanitizer(archive, logs, tool):
    tests = archive.tests(logs)
    return [archive.gtest(f"{check}_{name}", limit_s, matching(tests, filter_),
                          before=[tool, "--tool", check, "--error-exitcode", str(ALARM_CODE),
                                  "--report-api-errors", "no"])
            for check, name, limit_s, filter_ in SHARDS]


def exactness(archive, python):
    environment = archive.environment | {
        "DIFFSERVE_DEVICE": "cuda", "DIFFSERVE_BINARY": archive.program,
        "DIFFSERVE_GATED_BINARY": archive.program,
        "DIFFSERVE_GRPC_STUBS": str(archive.root / "python"),
        "DIFFSERVE_TINY_MODEL": str(archive.root / "tiny"),
        "PYTHONPATH": str(archive.root / "python"), "PYTHONDONTWRITEBYTECODE": "1"
    }
    return [Suite(f"e2e_{name}", [python, str(archive.root / "tests/e2e/run.py"),
                                  f"test_bit_exactness.{name}"],
                  90, None, environment, read_unittest) for name in EXACTNESS]


def model_figures(archive, python):
    def bench(name, model, limit_s, *arguments):
        return Suite(name, [archive.program, "bench", str(archive.root / model), *BENCH,
                            *arguments], limit_s)
    streams = Suite("streams", [python, str(archive.root / "tests/bench/streams.py"),
                                archive.program, str(archive.root / "models/demo/diff"),
                                "--streams", "256", "--tokens", "128", "--flag=--device=cuda",
                                "--flag=--max-num-seqs=256"], 60)
    return [*(bench(model, f"tests/bench/models/{model}", 80, "--load-format", "dummy",
                    "--repeat", "5", "--prompt", "2048,4096", "--depth", "2048", "--batch", "1,64",
                    "--generate", "64") for model in MODELS),
            bench("engine", "models/demo/diff", 60, "--repeat", "3", "--prompt", "32", "--depth",
                  "32", "--batch", "256", "--generate", "128"), streams]


def kernel_figures(archive, name="kernels"):
    return Suite(name, [archive.program, "cuda_bench"], KERNEL_FIGURES_S)


def profiles(archive, ncu):
    sections = [part for section in SECTIONS for part in ("--section", section)]
    return [Suite(name, [ncu, "--clock-control", "none", *sections, "--kernel-name", kernels,
                         "--launch-skip", "4", "--launch-count", "2", archive.program,
                         "cuda_bench", "--only", figure], 60)
            for name, figure, kernels in PROFILES]
