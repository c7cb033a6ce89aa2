// The whole step on the device against the golden cases, whose numbers come from the authors' code.
#include <gtest/gtest.h>

#include <set>

#include "tests/cuda/device_array.h"
#include "tests/testing/golden_case.h"

namespace diffserve {
namespace {

class CudaDecoderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::KernelsCanRun()) GTEST_SKIP() << cuda::OpenDevice(0).status().message();
  }

  static ModelOptions OptionsOf(const GoldenCase& golden) {
    ModelOptions options;
    options.model_dir = golden.dir;
    options.device = Device::kCuda;
    options.limits = {.num_rows = 320, .num_sequences = 8, .max_model_len = 0};
    options.batch_invariant = true;
    return options;
  }
  std::unique_ptr<Model> Load(const GoldenCase& golden) {
    Result<std::unique_ptr<Model>> model = Model::Load(OptionsOf(golden), pool_);
    EXPECT_TRUE(model.ok()) << model.status().message();
    return model.ok() ? std::move(*model) : nullptr;
  }

  // Those with kernels for their shape: head_dim 16.
  static std::vector<GoldenCase> Cases() {
    std::vector<GoldenCase> cases;
    for (const std::string& name : GoldenCaseNames()) {
      GoldenCase golden = ReadGoldenCase(name).value();
      if (InspectModel(OptionsOf(golden)).ok()) cases.push_back(std::move(golden));
    }
    return cases;
  }

  ThreadPool pool_{{.num_threads = 1, .pin = false, .spin_us = 0}};
};

TEST_F(CudaDecoderTest, EveryFamilyIsWithinTwiceTheReferencesOwnBFloat16Error) {
  std::set<std::string> families;
  for (const GoldenCase& golden : Cases()) {
    const std::unique_ptr<Model> model = Load(golden);
    ASSERT_NE(model, nullptr);
    families.insert(golden.family);
    const GoldenRun run = GoldenRunner(*model, golden.prompt.size(), 64).Chunks(golden.prompt, golden.prompt.size());
    EXPECT_LE(GoldenError(golden, run), kGoldenBFloat16Share * golden.bfloat16_error) << golden.name;
  }
  EXPECT_EQ(families.size(), 6u);
}

}  // namespace
}  // namespace diffserve
