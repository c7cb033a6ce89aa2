// SPDX-License-Identifier: Apache-2.0
// The load report in replies: its three formats, who gets it, and that it equals /metrics.
#include "server/api/head/load_report.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/dynamic_message.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "server/observe/metrics_exporter.h"
#include "tests/testing/server/grpc_stack.h"
#include "tests/testing/server/http_client.h"
#include "tests/testing/server/serving_fixture.h"

namespace diffserve {
namespace {

using diffserve::testing::Eventually;
using diffserve::testing::Finish;
using diffserve::testing::GrpcStack;
using diffserve::testing::GrpcStackOptions;
using diffserve::testing::HttpClient;
using diffserve::testing::RequestOf;
using diffserve::testing::ServingFixture;
using diffserve::testing::ServingOptions;
using Metrics = std::map<std::string, double>;

EngineStats SomeLoad() {
  EngineStats stats;
  stats.pages_total = 48;
  stats.pages_used = 16;
  stats.waiting = 300;
  return stats;
}

// The same message by protobuf's own reading, from the field numbers that xds.data.orca.v3
// publishes.
Metrics DecodedReport(const std::string& bytes) {
  namespace pb = google::protobuf;
  pb::FileDescriptorProto file;
  file.set_name("orca.proto");
  file.set_syntax("proto3");
  pb::DescriptorProto& report = *file.add_message_type();
  report.set_name("OrcaLoadReport");
  pb::DescriptorProto& entry = *report.add_nested_type();
  entry.set_name("NamedMetricsEntry");
  entry.mutable_options()->set_map_entry(true);
  const auto add = [](pb::DescriptorProto& message, const char* name, int number,
                      pb::FieldDescriptorProto::Type type) {
    pb::FieldDescriptorProto& field = *message.add_field();
    field.set_name(name);
    field.set_number(number);
    field.set_type(type);
    field.set_label(pb::FieldDescriptorProto::LABEL_OPTIONAL);
    return &field;
  };
  add(entry, "key", 1, pb::FieldDescriptorProto::TYPE_STRING);
  add(entry, "value", 2, pb::FieldDescriptorProto::TYPE_DOUBLE);
  auto* map = add(report, "named_metrics", 8, pb::FieldDescriptorProto::TYPE_MESSAGE);
  map->set_label(pb::FieldDescriptorProto::LABEL_REPEATED);
  map->set_type_name(".OrcaLoadReport.NamedMetricsEntry");
  pb::DescriptorPool pool;
  const pb::Descriptor* type = pool.BuildFile(file)->message_type(0);
  pb::DynamicMessageFactory factory;
  const std::unique_ptr<pb::Message> message(factory.GetPrototype(type)->New());
  EXPECT_TRUE(message->ParseFromString(bytes));
  EXPECT_TRUE(message->GetReflection()->GetUnknownFields(*message).empty());
  Metrics metrics;
  const pb::FieldDescriptor* field = type->field(0);
  for (int i = 0; i < message->GetReflection()->FieldSize(*message, field); ++i) {
    const pb::Message& pair = message->GetReflection()->GetRepeatedMessage(*message, field, i);
    const pb::Descriptor* of = pair.GetDescriptor();
    metrics[pair.GetReflection()->GetString(pair, of->field(0))] = pair.GetReflection()->GetDouble(
        pair, of->field(1));
  }
  return metrics;
}

TEST(LoadReportTest, EveryFormatHasTheSameValues) {
  const EngineStats load = SomeLoad();
  const Metrics expected = {{"kv_cache_usage_perc", 1.0 / 3}, {"num_requests_waiting", 300}};
  EXPECT_EQ(DecodedReport(LoadReport(load, LoadFormat::kBinary)), expected);
  const std::string json = LoadReport(load, LoadFormat::kJson);
  ASSERT_TRUE(json.starts_with("JSON ")) << json;
  EXPECT_EQ(nlohmann::json::parse(json.substr(5)), (nlohmann::json{{"named_metrics", expected}}));
  EXPECT_EQ(LoadReport(load, LoadFormat::kText),
            "TEXT named_metrics.kv_cache_usage_perc=0.3333333333333333, "
            "named_metrics.num_requests_waiting=300");
  EXPECT_EQ(LoadReport({}, LoadFormat::kText),
            "TEXT named_metrics.kv_cache_usage_perc=0, named_metrics.num_requests_waiting=0");
}

TEST(LoadReportTest, ReportEqualsTheMetricsOfThoseNames) {
  MetricsExporter exporter(ServedModelInfo{}, [] { return ServerStats{.engine = SomeLoad()}; });
  const std::string text = exporter.Render();
  const auto value = [&text](const std::string& name) {
    const size_t at = text.find("\nvllm:" + name + "{");
    return at == std::string::npos ? -1 : std::stod(text.substr(text.find("} ", at) + 2));
  };
  const Metrics metrics = DecodedReport(LoadReport(SomeLoad(), LoadFormat::kBinary));
  EXPECT_EQ(metrics.size(), 2u);
  for (const auto& [name, number] : metrics) EXPECT_DOUBLE_EQ(value(name), number) << name;
}

TEST(LoadReportTest, FormatNamesIgnoreCase) {
  EXPECT_EQ(LoadFormatOf("TEXT"), LoadFormat::kText);
  EXPECT_EQ(LoadFormatOf("Json"), LoadFormat::kJson);
  EXPECT_EQ(LoadFormatOf("bin"), LoadFormat::kBinary);
  for (const char* word : {"", "tex", "texts", "xml", "TEXT,JSON", "JSON "}) {
    EXPECT_EQ(LoadFormatOf(word), LoadFormat::kNone) << word;
  }
}

// The field of a reply, or "none".
std::string HttpReport(HttpClient& client, const std::string& path, const std::string& body,
                       const std::string& fields) {
  auto reply = body.empty() ? client.Get(path, fields) : client.Post(path, body, fields);
  return reply.fields.contains("endpoint-load-metrics") ? reply.fields["endpoint-load-metrics"]
                                                        : "none";
}

TEST(LoadReportTest, HttpRepliesHaveTheReportOnRequest) {
  ServingFixture server;
  HttpClient client(server.port());
  const std::string asked = "Endpoint-Load-Metrics-Format: text\r\n",
                    idle = LoadReport({}, LoadFormat::kText);
  EXPECT_EQ(HttpReport(client, "/v1/models", "", asked), idle);
  EXPECT_EQ(HttpReport(client, "/v1/completions", "{", asked), idle) << "errors too";
  const std::string body = R"({"prompt":"a","max_tokens":1})";
  EXPECT_EQ(HttpReport(client, "/v1/completions", body, asked).substr(0, 5), "TEXT ");
  EXPECT_EQ(HttpReport(client, "/v1/completions", body, "endpoint-load-metrics-format: JSON\r\n")
                .substr(0, 5),
            "JSON ");
  for (const char* fields :
       {"", "endpoint-load-metrics-format: BIN\r\n", "endpoint-load-metrics-format: xml\r\n",
        "endpoint-load-metrics-format:\r\n", "endpoint-load-metrics: TEXT\r\n"}) {
    EXPECT_EQ(HttpReport(client, "/v1/models", "", fields), "none") << fields;
  }
}

TEST(LoadReportTest, StreamReportsTheLoadAtItsStart) {
  ServingOptions options;
  options.hold_steps = true;
  ServingFixture server(options);
  const auto of_pages = [&](int num_pages) {
    EngineStats stats;
    stats.pages_used = num_pages;
    stats.pages_total = options.engine.num_pages;
    return LoadReport(stats, LoadFormat::kText);
  };
  const auto send = [](HttpClient& client, int prompt_tokens) {
    const std::vector<int> prompt(static_cast<size_t>(prompt_tokens), prompt_tokens);
    client.SendPost("/v1/completions",
                    nlohmann::json{{"prompt", prompt}, {"max_tokens", 9}, {"stream", true}}.dump(),
                    "endpoint-load-metrics-format: TEXT\r\n");
  };
  HttpClient first(server.port()), second(server.port()), other(server.port());
  server.steps.Allow(1);
  send(first, 40);  // three pages
  ASSERT_TRUE(Eventually([&] { return server.Stats().pages_used == 3; }));
  EXPECT_EQ(HttpReport(other, "/v1/models", "", "endpoint-load-metrics-format: TEXT\r\n"),
            of_pages(3));
  // The step that draws the second's first token may not have reported its numbers yet.
  send(second, 10);
  ASSERT_TRUE(Eventually([&] { return server.Stats().waiting == 1; }));
  server.steps.Allow(3);
  testing::ClientReply head;
  ASSERT_TRUE(second.ReadHead(&head));
  EXPECT_THAT(head.fields["endpoint-load-metrics"], ::testing::AnyOf(of_pages(3), of_pages(4)));
}

TEST(LoadReportTest, HttpReportNeedsAKey) {
  ServingOptions options;
  options.keys = "secret\n";
  ServingFixture server(options);
  HttpClient client(server.port());
  const std::string asked = "endpoint-load-metrics-format: TEXT\r\n";
  EXPECT_EQ(HttpReport(client, "/v1/models", "", asked), "none");
  EXPECT_EQ(HttpReport(client, "/livez", "", asked), "none");
  EXPECT_EQ(HttpReport(client, "/v1/models", "", asked + "X-Api-Key: secret\r\n"),
            LoadReport({}, LoadFormat::kText));
}

// A trailer of a Generate call, or "none". BIN cannot be read this way: gRPC's clients reserve it
// for their load balancing.
std::string GrpcReport(GrpcStack& stack, const std::string& format, const std::string& key,
                       int max_tokens = 3) {
  grpc::ClientContext context;
  if (!format.empty()) context.AddMetadata("endpoint-load-metrics-format", format);
  if (!key.empty()) context.AddMetadata("x-api-key", key);
  const auto stub = stack.NewStub();
  Finish(context, *stub->Generate(&context, RequestOf({1, 2}, max_tokens)));
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto found = trailers.find("endpoint-load-metrics");
  return found == trailers.end() ? "none" : std::string(found->second.data(), found->second.size());
}

TEST(LoadReportTest, GrpcTrailersHaveTheReportOnRequest) {
  GrpcStack stack;
  for (const int max_tokens : {3, -1}) {  // the second is refused
    EXPECT_EQ(GrpcReport(stack, "text", "", max_tokens).substr(0, 5), "TEXT ");
    EXPECT_EQ(GrpcReport(stack, "JSON", "", max_tokens).substr(0, 5), "JSON ");
  }
  for (const char* format : {"", "xml", "BIN"}) EXPECT_EQ(GrpcReport(stack, format, ""), "none");
}

TEST(LoadReportTest, GrpcReportNeedsAKey) {
  GrpcStackOptions options;
  options.keys = "secret\n";
  GrpcStack stack(options);
  EXPECT_EQ(GrpcReport(stack, "TEXT", "wrong"), "none");
  EXPECT_EQ(GrpcReport(stack, "TEXT", "secret").substr(0, 5), "TEXT ");
}

}  // namespace
}  // namespace diffserve
