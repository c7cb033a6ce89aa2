// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>
#include <sstream>

#include "server/observe/metrics_exporter.h"
#include "tests/testing/kernels/temporary_directory.h"

namespace diffserve {
namespace {

using ::testing::HasSubstr;

EngineStats SomeStats() {
  EngineStats stats;
  stats.running = 3;
  stats.waiting = 2;
  stats.pages_total = 100;
  stats.pages_free = 50;
  stats.pages_cached = 30;
  stats.pages_used = 20;
  stats.prompt_tokens = 1000;
  stats.generation_tokens = 77;
  stats.proposals = 7;
  stats.proposed_tokens.by_source = {10, 5, 6};
  stats.accepted_tokens.by_source = {7, 2, 4};
  stats.prefix_misses[static_cast<size_t>(MissReason::kEvicted)] = 4;
  stats.refused[static_cast<size_t>(RefusalReason::kQueueFull)] = 5;
  stats.finished[static_cast<size_t>(FinishReason::kCancelled)] = 6;
  stats.finished[static_cast<size_t>(FinishReason::kStop)] = 9;
  stats.inter_token_seconds.Observe(0.0002);
  stats.inter_token_seconds.Observe(0.0002);
  stats.inter_token_seconds.Observe(0.02);
  stats.inter_token_seconds.Observe(100);
  stats.step_tokens.Observe(16);
  return stats;
}

ServedModelInfo SomeInfo() {
  ServedModelInfo info;
  info.model_name = "a \"model\"\\name";
  info.version = "1.2.3";
  info.commit = "abc";
  info.device = "cpu";
  info.cpu_isa = "avx2";
  info.dtype = info.kv_cache_dtype = "float32";
  info.page_size = 16;
  info.num_pages = 100;
  info.max_model_len = 4096;
  info.lambdas = {0.25f, -0.5f};
  info.lambda_inits = {0.125f, 0.375f};
  return info;
}

// The text by an independent reading of the format: every sample's name with labels -> value.
struct Scrape {
  std::map<std::string, double> samples;
  std::map<std::string, std::string> types;
  std::vector<std::string> problems;
};

Scrape Read(const std::string& text) {
  Scrape scrape;
  std::istringstream lines(text);
  std::string line, family;
  std::set<std::string> seen;
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    std::string hash, keyword, name;
    if (line.starts_with("#")) {
      words >> hash >> keyword >> name;
      if (keyword == "TYPE") {
        words >> scrape.types[name];
        family = name;
        if (!seen.insert(name).second) scrape.problems.push_back("family twice: " + name);
      }
      continue;
    }
    const size_t space = line.rfind(' ');
    const std::string key = line.substr(0, space);
    if (!key.starts_with(family)) scrape.problems.push_back("outside its family: " + line);
    if (!scrape.samples.emplace(key, std::strtod(line.c_str() + space + 1, nullptr)).second) {
      scrape.problems.push_back("sample twice: " + key);
    }
  }
  return scrape;
}

class MetricsTextTest : public ::testing::Test {
 protected:
  MetricsExporter exporter_{SomeInfo(), [] { return ServerStats{.engine = SomeStats()}; }};
};

TEST_F(MetricsTextTest, EveryFamilyAppearsOnceWithItsSamples) {
  exporter_.CountGrpc("Generate", 0);
  exporter_.CountHttp("/v1/completions", 200);
  const Scrape scrape = Read(exporter_.Render());
  EXPECT_THAT(scrape.problems, ::testing::IsEmpty());
  EXPECT_GT(scrape.types.size(), 50u);
}

TEST_F(MetricsTextTest, EngineFiguresHaveOurNames) {
  const Scrape scrape = Read(exporter_.Render());
  const std::map<std::string, double> expected = {
      {"diffserve_requests_running", 3},
      {"diffserve_requests_waiting", 2},
      {"diffserve_kv_pages{state=\"free\"}", 50},
      {"diffserve_kv_pages{state=\"cached\"}", 30},
      {"diffserve_kv_pages{state=\"used\"}", 20},
      {"diffserve_prompt_tokens_total", 1000},
      {"diffserve_generation_tokens_total", 77},
      {"diffserve_proposals_total", 7},
      {"diffserve_proposed_tokens_total{source=\"prompt\"}", 10},
      {"diffserve_proposed_tokens_total{source=\"prediction\"}", 5},
      {"diffserve_proposed_tokens_total{source=\"output\"}", 6},
      {"diffserve_accepted_tokens_total{source=\"prediction\"}", 2},
      {"diffserve_prefix_misses_total{reason=\"evicted\"}", 4},
      {"diffserve_requests_refused_total{reason=\"queue_full\"}", 5},
      {"diffserve_requests_finished_total{reason=\"cancelled\"}", 6},
      {"diffserve_layer_lambda{layer=\"0\"}", 0.25},
      {"diffserve_layer_lambda{layer=\"1\"}", -0.5},
      {"diffserve_layer_lambda_init{layer=\"0\"}", 0.125},
      {"diffserve_layer_lambda_init{layer=\"1\"}", 0.375},
  };
  for (const auto& [name, value] : expected) {
    ASSERT_TRUE(scrape.samples.contains(name)) << name;
    EXPECT_EQ(scrape.samples.at(name), value) << name;
  }
}

TEST_F(MetricsTextTest, HistogramsAreCumulativeFromATenthOfAMillisecond) {
  const Scrape scrape = Read(exporter_.Render());
  const std::string name = "diffserve_inter_token_seconds";
  EXPECT_EQ(scrape.types.at(name), "histogram");
  EXPECT_EQ(scrape.samples.at(name + "_bucket{le=\"0.0001\"}"), 0);
  EXPECT_EQ(scrape.samples.at(name + "_bucket{le=\"0.00025\"}"), 2);
  EXPECT_EQ(scrape.samples.at(name + "_bucket{le=\"0.01\"}"), 2);
  EXPECT_EQ(scrape.samples.at(name + "_bucket{le=\"0.025\"}"), 3);
  EXPECT_EQ(scrape.samples.at(name + "_bucket{le=\"60\"}"), 3);
  EXPECT_EQ(scrape.samples.at(name + "_bucket{le=\"+Inf\"}"), 4);
  EXPECT_EQ(scrape.samples.at(name + "_count"), 4);
  EXPECT_NEAR(scrape.samples.at(name + "_sum"), 100.0204, 1e-9);
}

TEST_F(MetricsTextTest, VllmNamesAreExported) {
  const std::string text = exporter_.Render();
  const Scrape scrape = Read(text);
  const std::string labels = "{model_name=\"a \\\"model\\\"\\\\name\",engine=\"0\"";
  EXPECT_EQ(scrape.samples.at("vllm:num_requests_running" + labels + "}"), 3);
  EXPECT_EQ(scrape.samples.at("vllm:num_requests_waiting" + labels + "}"), 2);
  EXPECT_EQ(scrape.samples.at("vllm:kv_cache_usage_perc" + labels + "}"), 0.2);
  EXPECT_EQ(scrape.samples.at("vllm:request_success_total" + labels + ",finished_reason=\"stop\"}"),
            9);
  EXPECT_EQ(
      scrape.samples.at("vllm:request_success_total" + labels + ",finished_reason=\"abort\"}"), 6);
  EXPECT_EQ(scrape.samples.at("vllm:inter_token_latency_seconds_count" + labels + "}"), 4);
  EXPECT_EQ(scrape.samples.at("vllm:spec_decode_num_drafts_total" + labels + "}"), 7);
  EXPECT_EQ(scrape.samples.at("vllm:spec_decode_num_draft_tokens_total" + labels + "}"), 21);
  EXPECT_EQ(scrape.samples.at("vllm:spec_decode_num_accepted_tokens_total" + labels + "}"), 13);
  EXPECT_THAT(text, HasSubstr("block_size=\"16\",num_gpu_blocks=\"100\""));
  for (const char* name : {"prompt_tokens_total",
                           "generation_tokens_total",
                           "num_preemptions_total",
                           "prefix_cache_queries_total",
                           "prefix_cache_hits_total",
                           "time_to_first_token_seconds",
                           "e2e_request_latency_seconds",
                           "request_queue_time_seconds",
                           "request_prefill_time_seconds",
                           "request_decode_time_seconds",
                           "request_prompt_tokens",
                           "request_generation_tokens",
                           "request_inference_time_seconds",
                           "request_time_per_output_token_seconds",
                           "request_max_num_generation_tokens",
                           "request_params_n",
                           "request_params_max_tokens",
                           "iteration_tokens_total",
                           "cache_config_info",
                           "corrupted_requests_total",
                           "lora_requests_info"}) {
    EXPECT_TRUE(scrape.types.contains(std::string("vllm:") + name)) << name;
  }
}

TEST_F(MetricsTextTest, RequestsAreCountedByTransportAndCode) {
  exporter_.CountGrpc("Generate", 0);
  exporter_.CountGrpc("Generate", 8);
  exporter_.CountGrpc("Generate", 8);
  exporter_.CountHttp("/v1/models", 200);
  const Scrape scrape = Read(exporter_.Render());
  EXPECT_EQ(scrape.samples.at("diffserve_grpc_requests_total{method=\"Generate\",code=\"0\"}"), 1);
  EXPECT_EQ(scrape.samples.at("diffserve_grpc_requests_total{method=\"Generate\",code=\"8\"}"), 2);
  EXPECT_EQ(scrape.samples.at("diffserve_http_requests_total{route=\"/v1/models\",code=\"200\"}"),
            1);
}

TEST_F(MetricsTextTest, RequestSeriesAreBounded) {
  for (int i = 0; i < 5000; ++i) exporter_.CountHttp("/" + std::to_string(i), 200);
  const std::map<std::string, double> samples = Read(exporter_.Render()).samples;
  const auto series = std::count_if(samples.begin(), samples.end(), [](const auto& s) {
    return s.first.starts_with("diffserve_http_requests_total");
  });
  EXPECT_LE(series, 1024);
}

TEST_F(MetricsTextTest, ProcessMetricsAreExported) {
  const Scrape scrape = Read(exporter_.Render());
  EXPECT_GT(scrape.samples.at("process_resident_memory_bytes"), 1 << 20);
  EXPECT_GT(scrape.samples.at("process_open_fds"), 2);
  EXPECT_GE(scrape.samples.at("process_max_fds"), scrape.samples.at("process_open_fds"));
  EXPECT_GT(scrape.samples.at("process_start_time_seconds"), 1.7e9);
}

// promtool's output for the text; empty if it finds nothing.
std::string Promtool(const std::string& text) {
  const TemporaryDirectory directory;
  directory.Write("metrics", text);
  const std::string file = directory.path() / "metrics";
  std::system(("promtool check metrics < " + file + " > " + file + ".out 2>&1").c_str());
  return FileBytes(file + ".out");
}

TEST_F(MetricsTextTest, PromtoolComplainsOnlyAboutVllmsNames) {
  if (std::system("promtool --version > /dev/null 2>&1") != 0)
    GTEST_SKIP() << "promtool is not installed";
  exporter_.CountGrpc("Generate", 0);
  exporter_.CountHttp("/v1/completions", 200);
  EXPECT_EQ(Promtool(exporter_.RenderOwnNames()), "");
  std::istringstream lines(Promtool(exporter_.Render()));
  std::string line;
  while (std::getline(lines, line)) {
    const bool colon = line.starts_with("vllm:") &&
                       line.ends_with("metric names should not contain ':'");
    const bool suffix =
        line == "vllm:iteration_tokens_total non-counter metrics should not have \"_total\" suffix";
    EXPECT_TRUE(colon || suffix) << line;
  }
}

}  // namespace
}  // namespace diffserve
