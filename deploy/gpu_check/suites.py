# SPDX-License-Identifier: Apache-2.0
"""What proves the backend: the suites of cuda_test, the files of bit equality end to end, and
compute-sanitizer's shards. A suite's limit is for a GPU that others use at the same time."""

from runner import ALARM_CODE, Suite, matching, read_unittest

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
    ("attention_decode", 90, "*DiffAttentionTest.*/decode*"),
    ("attention_prefill", 90, "*DiffAttentionTest.*"),
    ("windows_decode", 90, "*AttentionWindowTest.*/decode*"),
    ("windows_prefill", 90, "*AttentionWindowTest.*"),
    ("code_pages", 90, "*CodePagesOnDeviceTest.*:*CodeAppendOnDeviceTest.*:Fp8Pages*"),
    ("sample", 40, "SampleTest.*"),
    ("decoder", 60, "*CudaDecoderTest.*:*CudaWideHeadsTest.*"),
    ("engine_loop", 40, "*CudaEngineTest.*"),
    ("hybrid", 60, "*CudaHybridTest.*"),
    ("repeat", 60, "AttentionRepeatTest.*"),
    ("far", 40, "FarPagesTest.*:RowwiseCudaTest.*"),
    ("fuzz", 60, "AttentionFuzzTest.*"),
    (REST := "rest", 40, "*"),
]

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
# A server runs its largest steps before it is ready, and steps are slow there.
SIMULATED_ENVIRONMENT = {
    "DIFFSERVE_FUZZ_SECONDS": "2", "DIFFSERVE_MAX_NUM_SEQS": "8",
    "DIFFSERVE_MAX_NUM_BATCHED_TOKENS": "64"
}

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

# The first is what a sample of one takes.
EXACTNESS = ("LogitRowExactnessTest", "BitExactnessTest", "Int8PagesExactnessTest",
             "Fp8PagesExactnessTest", "FourBitPagesExactnessTest", "LogitTileExactnessTest",
             "LogitAnchoredExactnessTest", "Int8ExactnessTest", "Int4ExactnessTest")

# A server would take most of the memory that is free, and several run side by side.
EXACTNESS_PAGES = {"DIFFSERVE_KV_CACHE_MEMORY": "256MiB"}


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


def exactness(archive, python, sample=1):
    environment = archive.environment | EXACTNESS_PAGES | {
        "DIFFSERVE_DEVICE": "cuda", "DIFFSERVE_BINARY": archive.server,
        "DIFFSERVE_GATED_BINARY": archive.program,  # its steps can be held
        "DIFFSERVE_GRPC_STUBS": str(archive.root / "python"),
        "DIFFSERVE_TINY_MODEL": str(archive.root / "tiny"),
        "PYTHONPATH": str(archive.root / "python"), "PYTHONDONTWRITEBYTECODE": "1"
    }
    return [Suite(f"e2e_{name}", [python, str(archive.root / "tests/e2e/run.py"),
                                  f"test_bit_exactness.{name}"],
                  90, None, environment, read_unittest) for name in EXACTNESS[::sample]]
