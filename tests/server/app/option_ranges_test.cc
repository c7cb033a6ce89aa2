// SPDX-License-Identifier: Apache-2.0
// The ranges that users rely on, written out: options_table_test.cc takes them from the same table
// as the parser.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>
#include <string_view>
#include <tuple>

#include "server/app/option_table.h"

namespace diffserve {
namespace {

TEST(OptionRangesTest, RangesAreThoseOfTheInterface) {
  using Range = std::tuple<std::string_view, double, double>;
  const std::set<Range> expected = {
      {"--kv-cache-dtype-skip-layers", -1024, 1023},
      {"--threads", 0, 1024},
      {"--max-model-len", 0, 1 << 24},
      {"--max-num-seqs", 1, 4096},
      {"--max-num-batched-tokens", 16, 1 << 20},
      {"--max-step-ms", 0, 60000},
      {"--gpu-memory-utilization", 0, 1},
      {"--page-size", 0, 256},
      {"--state-snapshot-interval", 0, 1 << 24},
      {"--max-waiting-requests", 1, 1 << 20},
      {"--max-queue-wait", 0.001, 86400},
      {"--port", 0, 65535},
      {"--grpc-port", 0, 65535},
      {"--health-port", 0, 65535},
      {"--max-body-size", 1 << 10, 64 << 20},
      {"--drain-timeout", 0, 3600},
      {"--idle-timeout", 0, 1 << 24},
      {"--max-loaded", 0, 256},
      {"--load-wait", 1, 86400},
      {"--prompt", 1, 1 << 20},
      {"--generate", 1, 1 << 20},
      {"--depth", 0, 1 << 24},
      {"--batch", 1, 4096},
      {"--repeat", 1, 1000},
      {"--max-tokens", 1, 1 << 24},
      {"--max-tokens", 0, 1 << 24},
      {"--temperature", 0, 100},
      {"--top-p", std::numeric_limits<float>::denorm_min(), 1},
      {"--top-k", 0, std::numeric_limits<int>::max()},
      {"--min-p", 0, 1},
  };
  std::set<Range> ranges;
  for (const FlagSpec& flag : FlagTable()) {
    if (flag.max > 0) ranges.emplace(flag.name, flag.min, flag.max);
  }
  EXPECT_THAT(ranges, ::testing::ContainerEq(expected));
}

}  // namespace
}  // namespace diffserve
