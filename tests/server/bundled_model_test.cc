// SPDX-License-Identifier: Apache-2.0
#include "server/app/bundled_model.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/testing/temporary_directory.h"

namespace diffserve {
namespace {

namespace fs = std::filesystem;

// An installed program, and the path of its model.
class BundledModelTest : public ::testing::Test {
 protected:
  BundledModelTest() : prefix_(fs::canonical(directory_.path())) {
    directory_.Write("bin/diffserve", "");
    directory_.Write("share/diffserve/models/demo/config.json", "{}");
  }

  const TemporaryDirectory directory_;
  const fs::path prefix_;
  const std::string program_ = prefix_ / "bin/diffserve";
  const std::string model_ = prefix_ / "share/diffserve/models/demo";
};

TEST_F(BundledModelTest, DemoIsTheModelBesideTheProgram) {
  EXPECT_EQ(WithBundledModel("demo", program_), model_);
}

TEST_F(BundledModelTest, LinksToTheProgramAreFollowed) {
  const std::string link = prefix_ / "link";
  fs::create_symlink(program_, link);
  EXPECT_EQ(WithBundledModel("demo", link), model_);
}

TEST_F(BundledModelTest, OtherNamesStay) {
  for (const std::string name : {"", "diff", "./demo", "demo/", "/models/demo"})
    EXPECT_EQ(WithBundledModel(name, program_), name);
}

TEST_F(BundledModelTest, WithoutTheModelTheNameStays) {
  fs::remove_all(prefix_ / "share");
  EXPECT_EQ(WithBundledModel("demo", program_), "demo");
  EXPECT_EQ(WithBundledModel("demo", prefix_ / "no_program"), "demo");
}

TEST_F(BundledModelTest, DirectoriesOfThatNameComeFirst) {
  const fs::path before = fs::current_path();
  fs::current_path(prefix_);
  fs::create_directory("demo");
  EXPECT_EQ(WithBundledModel("demo", program_), "demo");
  fs::current_path(before);
}

}  // namespace
}  // namespace diffserve
