// SPDX-License-Identifier: Apache-2.0
// What the server of several models reads in texts of others: a request's model, a process's ready
// line and metrics.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "server/json/json_member.h"
#include "server/router/children/pipe_lines.h"
#include "server/router/children/ready_line.h"
#include "server/router/metrics_text.h"

namespace diffserve {
namespace {

TEST(JsonMemberTest, FindsTheMemberOfTheOutermostObject) {
  const std::pair<const char*, std::optional<std::string>> cases[] = {
      {R"({"model": "a"})", "a"},
      {R"({"messages": [{"model": "x"}], "o": {"model": "y"}, "model": "a", "n": 1})", "a"},
      {R"({"model": "\u0061\n"})", "a\n"},
      {R"({"model": ""})", ""},
      {R"({"model": "a", then nothing that is JSON)", "a"},
      {R"({"model": "a", "model": "b"})", "b"},
      {R"({"model": "a", "n": 1, "model": null})", std::nullopt},
      {R"({"model": "a", "model": ["b"], "n": 1})", std::nullopt},
      {R"({"model": null, "model": "b", "n": {"model": 1}})", "b"},
      {R"({"o": {"model": "y"}})", std::nullopt},
      {R"(["model", "a"])", std::nullopt},
      {R"("model")", std::nullopt},
      {R"({"model": null})", std::nullopt},
      {R"({"model": ["a"]})", std::nullopt},
      {R"({"model": {"model": "a"}})", std::nullopt},
      {R"({"x": broken, "model": "a"})", std::nullopt},
      {R"({"model": "a)", std::nullopt},
      {"", std::nullopt},
  };
  for (const auto& [text, name] : cases) EXPECT_EQ(FindStringMember(text, "model"), name) << text;
}

TEST(JsonMemberTest, DeepTextsTakeNoStack) {
  std::string deep = R"({"x": )";
  deep.append(size_t{1} << 20, '[');
  EXPECT_EQ(FindStringMember(deep, "model"), std::nullopt);
}

TEST(ReadyLineTest, ReadsBothPorts) {
  const auto ports = ParseReadyLine("ready http=127.0.0.1:41 grpc=127.0.0.1:42 model=ready http=x");
  ASSERT_TRUE(ports);
  EXPECT_EQ(ports->http, 41);
  EXPECT_EQ(ports->grpc, 42);
  const auto with_health = ParseReadyLine("ready http=[::1]:1 grpc=[::1]:2 health=[::1]:3 model=m");
  ASSERT_TRUE(with_health);
  EXPECT_EQ(with_health->http, 1);
  for (const char* line :
       {"", "ready", "ready grpc=127.0.0.1:41 model=m", "xready http=a:1 grpc=a:2",
        "ready http=a:0 grpc=a:2", "ready http=a:99999 grpc=a:2", "ready http=a:1x grpc=a:2"}) {
    EXPECT_FALSE(ParseReadyLine(line)) << line;
  }
}

TEST(ReadyLineTest, ServerWithoutGrpcHasNoSuchPort) {
  const auto ports = ParseReadyLine("ready http=127.0.0.1:41 model=m grpc=127.0.0.1:42");
  ASSERT_TRUE(ports);
  EXPECT_EQ(ports->http, 41);
  EXPECT_EQ(ports->grpc, 0);
}

TEST(PipeLinesTest, SplitsAPipeIntoLinesAndKeepsTheLastPart) {
  int pipe_ends[2];
  ASSERT_EQ(pipe2(pipe_ends, O_NONBLOCK), 0);
  PipeLines reader;
  std::vector<std::string> lines;
  const auto take = [&](std::string_view line) { lines.emplace_back(line); };
  const auto write_text = [&](std::string_view text) {
    ASSERT_EQ(write(pipe_ends[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  };
  write_text("one\ntw");
  EXPECT_TRUE(reader.Read(pipe_ends[0], take));
  EXPECT_EQ(lines, std::vector<std::string>{"one"});
  write_text("o\n\nend");
  close(pipe_ends[1]);
  EXPECT_FALSE(reader.Read(pipe_ends[0], take));
  EXPECT_EQ(lines, (std::vector<std::string>{"one", "two", "", "end"}));
  close(pipe_ends[0]);
}

TEST(MergedMetricsTest, MergesFamiliesAndLabelsEachSample) {
  constexpr char kOwn[] = "# HELP up Whether.\n# TYPE up gauge\nup 1\n";
  constexpr char kChild[] =
      "# HELP up Whether.\n# TYPE up gauge\nup{a=\"b\"} 1\n"
      "# HELP wait Seconds.\n# TYPE wait histogram\nwait_bucket{le=\"+Inf\"} 2\nwait_sum 0.5\n"
      "wait_count{} 2\n";
  MetricsText merged;
  merged.Add(kOwn, "");
  merged.Add(kChild, "x");
  merged.Add(kChild, "y\"\\");
  EXPECT_EQ(merged.Text(),
            "# HELP up Whether.\n# TYPE up gauge\nup 1\nup{model=\"x\",a=\"b\"} 1\n"
            "up{model=\"y\\\"\\\\\",a=\"b\"} 1\n"
            "# HELP wait Seconds.\n# TYPE wait histogram\n"
            "wait_bucket{model=\"x\",le=\"+Inf\"} 2\nwait_sum{model=\"x\"} 0.5\n"
            "wait_count{model=\"x\"} 2\n"
            "wait_bucket{model=\"y\\\"\\\\\",le=\"+Inf\"} 2\nwait_sum{model=\"y\\\"\\\\\"} 0.5\n"
            "wait_count{model=\"y\\\"\\\\\"} 2\n");
}

}  // namespace
}  // namespace diffserve
