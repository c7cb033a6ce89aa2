// SPDX-License-Identifier: Apache-2.0
// The commands on a directory that holds only a config.json (dummy weights), and the sizes they
// choose.
#include "server/app/commands/commands.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "kernels/process/machine_memory.h"
#include "server/app/session/model_session.h"
#include "tests/testing/kernels/kernel_levels.h"
#include "tests/testing/kernels/source_directory.h"
#include "tests/testing/kernels/temporary_directory.h"

namespace diffserve {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kTinyConfig[] =
    R"({"model_type": "diffllama", "vocab_size": 96, "hidden_size": 64, "intermediate_size": 80,
  "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256,
  "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "eos_token_id": 95})";

// Free memory changes between two checks.
std::string WithoutNumbers(std::string text) {
  std::erase_if(text, [](char c) { return c == '.' || (c >= '0' && c <= '9'); });
  return text;
}

class CommandsTest : public ::testing::Test {
 protected:
  void SetUp() override { Write("config.json", kTinyConfig); }

  void Write(const std::string& name, std::string_view text) const { directory_.Write(name, text); }
  std::string Bytes(const std::string& name) const { return FileBytes(directory_.path() / name); }
  Options Parsed(std::vector<std::string> args) const {
    args.insert(args.begin() + 1, {dir_, "--load-format", "dummy", "--threads", "2"});
    Result<Options> options = ParseOptions(args);
    EXPECT_TRUE(options.ok()) << options.status().message();
    return options.ok() ? *options : Options();
  }
  Result<SessionPlan> PlannedServer(const std::vector<std::string>& args) const {
    const SessionOptions options = Parsed(args).session;
    return PlanSession(options, ServerNeeds(options.engine));
  }
  // The command's output on stdout.
  std::string Output(const std::vector<std::string>& args,
                     StatusCode expected = StatusCode::kOk) const {
    ::testing::internal::CaptureStdout();
    const Status status = RunCommand(Parsed(args));
    const std::string text = ::testing::internal::GetCapturedStdout();
    EXPECT_EQ(status.code(), expected) << status.message();
    return text;
  }

  const TemporaryDirectory directory_;
  const std::string dir_ = directory_.path();
};

TEST_F(CommandsTest, LogitsAreBitwiseEqualForEveryStepSize) {
  std::string tokens;
  for (int i = 0; i < 100; ++i) tokens += std::to_string(i * 37 % 96) + "\n";
  Write("ids", tokens);
  for (const std::string step : {"2048", "16", "23", "64"}) {
    Output({"logits", "--tokens", "@" + dir_ + "/ids", "--max-num-batched-tokens", step, "--output",
            dir_ + "/" + step + ".npy"});
  }
  const std::string whole = Bytes("2048.npy");
  ASSERT_GE(whole.size(), 128u);
  EXPECT_EQ(whole.substr(0, 8), std::string("\x93NUMPY\x01\x00", 8));
  const size_t data = 10 + static_cast<unsigned char>(whole[8]) +
                      256u * static_cast<unsigned char>(whole[9]);
  EXPECT_EQ(data % 64, 0u);
  EXPECT_THAT(whole.substr(0, data),
              HasSubstr("'descr': '<f4', 'fortran_order': False, 'shape': (100, 96)"));
  EXPECT_EQ(whole.size(), data + 100 * 96 * sizeof(float));
  for (size_t i = data; i < whole.size(); i += sizeof(float)) {
    float value;
    std::memcpy(&value, whole.data() + i, sizeof(value));
    ASSERT_TRUE(std::isfinite(value)) << i;
  }
  for (const char* other : {"16.npy", "23.npy", "64.npy"}) EXPECT_EQ(Bytes(other), whole) << other;
}

TEST_F(CommandsTest, GenerateContinuesWithTheLargestLogit) {
  const auto object = nlohmann::json::parse(
      Output({"generate", "--tokens", "3,1,4,1,5", "--max-tokens", "6", "--ignore-eos", "--json"}),
      nullptr, false);
  ASSERT_TRUE(object.is_object());
  EXPECT_EQ(object["prompt_token_ids"], (std::vector<int>{3, 1, 4, 1, 5}));
  EXPECT_EQ(object["finish_reason"], "length");
  EXPECT_TRUE(object["timings"].is_object());
  const std::vector<int> generated = object["token_ids"];
  ASSERT_EQ(generated.size(), 6u);

  std::string all = "3,1,4,1,5";
  for (int token : generated) {
    all += ',';
    all += std::to_string(token);
  }
  Output({"logits", "--tokens", all, "--output", dir_ + "/l.npy"});
  const std::string bytes = Bytes("l.npy");
  const size_t data = bytes.size() - 11 * 96 * sizeof(float);
  for (size_t i = 0; i < generated.size(); ++i) {
    std::vector<float> row(96);
    std::memcpy(row.data(), bytes.data() + data + (4 + i) * 96 * sizeof(float), 96 * sizeof(float));
    EXPECT_EQ(std::max_element(row.begin(), row.end()) - row.begin(), generated[i]) << i;
  }
}

TEST_F(CommandsTest, GenerateRefusesIdsOutsideTheVocabulary) {
  const Status status = RunCommand(Parsed({"generate", "--tokens", "96"}));
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("token 0 is 96; allowed: 0 to 95"));
}

TEST_F(CommandsTest, BenchReportsSpeedBytesFlopsAndRatios) {
  const auto object = nlohmann::json::parse(
      Output({"bench", "--prompt", "16,4096", "--generate", "4", "--depth", "0,32", "--batch",
              "1,2", "--repeat", "2", "--json"}),
      nullptr, false);
  ASSERT_TRUE(object.is_object());
  ASSERT_EQ(object["prefill"].size(), 1u) << "4096 tokens are more than the model's length";
  ASSERT_EQ(object["decode"].size(), 4u);
  for (const char* kind : {"prefill", "decode"}) {
    for (const auto& figure : object[kind]) {
      EXPECT_GT(figure["tokens_per_s"]["min"], 0.0);
      EXPECT_LE(figure["tokens_per_s"]["min"], figure["tokens_per_s"]["median"]);
      EXPECT_LE(figure["tokens_per_s"]["median"], figure["tokens_per_s"]["max"]);
      EXPECT_GT(figure["ratio_to_probe"]["median"], 0.0);
    }
  }
  for (const auto& figure : object["decode"])
    EXPECT_GT(figure["ratio_to_arithmetic"]["median"], 0.0);
  EXPECT_EQ(object["decode"][1]["batch"], 2);
  // K1, K2 and V of one group of 16 + 16 + 32 floats in two layers, for one token.
  const double deeper = object["decode"][2]["bytes_per_token"],
               shallow = object["decode"][0]["bytes_per_token"];
  EXPECT_EQ(deeper - shallow, 32.0 * 64 * 4 * 2);
}

TEST_F(CommandsTest, BenchOfSeveralBatchesEndsWithTheCurve) {
  const auto report = [&](const std::string& batches) {
    return Output({"bench", "--prompt", "16", "--generate", "4", "--depth", "0", "--repeat", "1",
                   "--batch", batches});
  };
  EXPECT_THAT(report("1,3"), ContainsRegex("share of memory +share of [^\n]*\n"
                                           " +1 [^\n]*\n"
                                           " +3 [^\n]*\n"));
  EXPECT_THAT(report("3"), Not(HasSubstr("tokens/s/sequence"))) << "one batch is no curve";
}

TEST_F(CommandsTest, BenchDecodesAtDepthsBeyondTheComputedTokens) {
  std::string config = kTinyConfig;
  config.replace(config.find("256"), 3, "4096");
  Write("config.json", config);
  const auto object = nlohmann::json::parse(
      Output({"bench", "--prompt", "16", "--generate", "4", "--depth", "1040,3000", "--batch", "2",
              "--repeat", "1", "--page-size", "48", "--json"}),
      nullptr, false);
  ASSERT_TRUE(object.is_object());
  ASSERT_EQ(object["decode"].size(), 2u);
  const double deeper = object["decode"][1]["bytes_per_token"],
               shallow = object["decode"][0]["bytes_per_token"];
  EXPECT_EQ(deeper - shallow, 1960.0 * 64 * 4 * 2);
}

TEST_F(CommandsTest, InspectReportsShapesAndMemory) {
  const auto object = nlohmann::json::parse(
      Output({"inspect", "--json", "--max-num-seqs", "4", "--max-model-len", "100"}), nullptr,
      false);
  ASSERT_TRUE(object.is_object());
  EXPECT_EQ(object["family"], "diffllama");
  EXPECT_EQ(object["layers"], 2);
  EXPECT_EQ(object["max_model_len"], 100);
  EXPECT_EQ(object["attention"]["output_heads"], 2);
  EXPECT_EQ(object["memory"]["kv_bytes_per_token"], 64 * 4 * 2);
  EXPECT_EQ(object["memory"]["kv_bytes_full"], 4.0 * 112 * 64 * 4 * 2) << "pages are whole";
  EXPECT_THAT(Output({"inspect"}), HasSubstr("KV bytes per token   512"));
}

TEST_F(CommandsTest, Float16PagesHaveTwoBytesPerNumber) {
  const auto object = nlohmann::json::parse(
      Output({"inspect", "--json", "--kv-cache-dtype", "float16"}), nullptr, false);
  ASSERT_TRUE(object.is_object());
  EXPECT_EQ(object["kv_cache_dtype"], "float16");
  EXPECT_EQ(object["memory"]["kv_bytes_per_token"], 64 * 2 * 2);
}

TEST_F(CommandsTest, InspectRefusesWhatServeRefusesInTheSameWords) {
  const std::vector<std::vector<std::string>> cases = {{"--max-model-len", "257"},
                                                       {"--kv-cache-memory", "900T"},
                                                       {"--kv-cache-memory", "1K"},
                                                       {"--cpu-isa", "avx512_bf16"}};
  for (const std::vector<std::string>& flags : cases) {
    std::vector<std::string> inspect = {"inspect"},
                             serve = {"serve", "--port", "0", "--grpc-port", "0"};
    inspect.insert(inspect.end(), flags.begin(), flags.end());
    serve.insert(serve.end(), flags.begin(), flags.end());
    const Result<SessionPlan> plan = PlannedServer(inspect);
    if (plan.ok()) continue;  // this machine has the level
    const std::string refusal = WithoutNumbers(plan.status().message());
    EXPECT_EQ(WithoutNumbers(RunCommand(Parsed(inspect)).message()), refusal);
    EXPECT_EQ(WithoutNumbers(RunCommand(Parsed(serve)).message()), refusal);
  }
  Write("config.json", R"({"model_type": "mamba"})");
  EXPECT_EQ(RunCommand(Parsed({"inspect"})).message(),
            RunCommand(Parsed({"serve", "--port", "0", "--grpc-port", "0"})).message());
}

TEST_F(CommandsTest, PackedConversionIsInspectableAndGeneratesTheSameTokens) {
  const std::string demo = SourceDirectory() + "/models/demo/diff", packed = dir_ + "/packed";
  const std::string isa(NameOf(testing::EightLanes()));
  const std::string levels = kBaseCpuIsa == CpuIsa::kNeon ? "neon, neon_dot, neon_bf16"
                                                          : "plain, avx2";
  const auto output = [&](std::vector<std::string> args) {
    args.insert(args.end(), {"--threads", "2", "--cpu-isa", isa});
    ::testing::internal::CaptureStdout();
    const Result<Options> options = ParseOptions(args);
    const Status status = options.ok() ? RunCommand(*options) : options.status();
    EXPECT_TRUE(status.ok()) << status.message();
    return ::testing::internal::GetCapturedStdout();
  };
  sigset_t before;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  EXPECT_THAT(output({"convert", demo, packed, "--quantization", "int4"}),
              HasSubstr("\npacked               for --cpu-isa " + levels + "\n"));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  EXPECT_THAT(output({"inspect", packed}),
              HasSubstr("\npacked               layout 1, panels of 16 columns, for --cpu-isa " +
                        levels + "\n"));
  const auto object = nlohmann::json::parse(output({"inspect", packed, "--json"}), nullptr, false);
  ASSERT_TRUE(object.is_object());
  EXPECT_EQ(object["packed_for"], levels);
  EXPECT_EQ(object["linear_format"], "int4");
  const auto tokens = [&](const std::string& dir) {
    return output({"generate", dir, "--prompt", "The magic number of", "--device", "cpu",
                   "--quantization", "int4", "--max-tokens", "20", "--ignore-eos"});
  };
  EXPECT_EQ(tokens(packed), tokens(demo));
}

TEST_F(CommandsTest, EmptyAnswerReportsItsCauseAndAHint) {
  const std::string demo = SourceDirectory() + "/models/demo/diff";
  const auto told = [&](std::vector<std::string> flags) {
    std::vector<std::string> args = {"generate", demo, "--threads", "2"};
    args.insert(args.end(), flags.begin(), flags.end());
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    const Result<Options> options = ParseOptions(args);
    const Status status = options.ok() ? RunCommand(*options) : options.status();
    EXPECT_TRUE(status.ok()) << status.message();
    return std::pair(::testing::internal::GetCapturedStdout(),
                     ::testing::internal::GetCapturedStderr());
  };
  const auto [empty, why] = told({"--prompt", "Who are you?"});
  EXPECT_EQ(empty, "\n");
  EXPECT_THAT(why, HasSubstr("the answer is empty: its end token 1 (<|end|>) ended it at once; the "
                             "model has a chat template, which --chat puts around the prompt\n"));
  const auto [answer, nothing] = told({"--prompt", "Who are you?", "--chat"});
  EXPECT_GT(answer.size(), 10u);
  EXPECT_THAT(nothing, ::testing::Not(HasSubstr("empty")));
  const std::string first(1, answer.front());
  const auto [stopped, by] = told({"--prompt", "Who are you?", "--chat", "--stop", first});
  EXPECT_EQ(stopped, "\n");
  EXPECT_THAT(by, HasSubstr("the answer is empty: --stop ended it at once\n"));
}

TEST_F(CommandsTest, PagesFollowTheFlags) {
  const auto pages = [&](const std::vector<std::string>& flags) {
    std::vector<std::string> args = {"serve"};
    args.insert(args.end(), flags.begin(), flags.end());
    Result<SessionPlan> plan = PlannedServer(args);
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    return plan.ok() ? plan->engine.num_pages : 0;
  };
  constexpr int kPageBytes = 16 * 512;
  EXPECT_EQ(pages({"--max-num-seqs", "4"}), 4 * 256 / 16);
  EXPECT_EQ(pages({"--max-num-seqs", "4", "--page-size", "32"}), 4 * 256 / 32);
  EXPECT_EQ(pages({"--max-num-seqs", "1", "--max-model-len", "17"}), 2);
  EXPECT_EQ(pages({"--kv-cache-memory", "1MiB"}), (1 << 20) / kPageBytes);
  EXPECT_EQ(pages({"--kv-cache-memory", "1MiB", "--kv-cache-dtype", "bfloat16"}),
            2 * (1 << 20) / kPageBytes);
  EXPECT_EQ(pages({"--kv-cache-memory", "1MiB", "--kv-cache-dtype", "float16"}),
            2 * (1 << 20) / kPageBytes);
  EXPECT_GT(pages({"--kv-cache-memory", "0.01"}), pages({"--kv-cache-memory", "0.001"}));
}

TEST_F(CommandsTest, TooLargeConfigurationIsRefusedWithNumbers) {
  const auto message = [&](const std::vector<std::string>& flags) {
    std::vector<std::string> args = {"serve"};
    args.insert(args.end(), flags.begin(), flags.end());
    return PlannedServer(args).status().message();
  };
  EXPECT_THAT(message({"--kv-cache-memory", "1K"}),
              HasSubstr("one sequence of 256 tokens needs 0.1 MiB of KV pages; allowed: 0.0 MiB"));
  EXPECT_THAT(message({"--kv-cache-memory", "900T"}),
              HasSubstr("--kv-cache-memory is 858306884.8 MiB; allowed: at most the "));
  EXPECT_THAT(message({"--max-model-len", "257"}),
              HasSubstr("--max-model-len is 257; allowed: 1 to 256"));
}

TEST_F(CommandsTest, TightestControlGroupLimitApplies) {
  Write("a/memory.max", "max\n");
  Write("a/memory.current", "5000\n");
  Write("a/b/memory.max", "1000000\n");
  Write("a/b/memory.current", "400000\n");
  Write("a/b/memory.stat", "anon 300000\ninactive_file 100000\n");
  EXPECT_EQ(CgroupFreeBytes("0::/a/b\n", dir_), 1000000 - (400000 - 100000));
  EXPECT_EQ(CgroupFreeBytes("0::/a\n", dir_), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(CgroupFreeBytes("0::/not/here\n", dir_), std::numeric_limits<int64_t>::max());
  Write("memory.max", "500000\n");
  Write("memory.current", "450000\n");
  EXPECT_EQ(CgroupFreeBytes("0::/a/b\n", dir_), 50000);
  Write("memory/x/memory.limit_in_bytes", "7000\n");
  Write("memory/x/memory.usage_in_bytes", "3000\n");
  EXPECT_EQ(CgroupFreeBytes("5:cpu:/x\n4:memory:/x\n", dir_), 4000);
  EXPECT_EQ(CgroupFreeBytes("", dir_), std::numeric_limits<int64_t>::max());
  EXPECT_GT(FreeMemoryBytes(), 1 << 20);
}

}  // namespace
}  // namespace diffserve
