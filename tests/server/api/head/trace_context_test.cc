// SPDX-License-Identifier: Apache-2.0
// Accepted `traceparent` values, and the trace in replies of both ports and in the log.
#include "server/api/head/trace_context.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "kernels/process/log.h"
#include "tests/testing/server/grpc_stack.h"
#include "tests/testing/server/http_client.h"
#include "tests/testing/server/serving_fixture.h"

namespace diffserve {
namespace {

using diffserve::testing::Finish;
using diffserve::testing::GrpcStack;
using diffserve::testing::HttpClient;
using diffserve::testing::RequestOf;
using diffserve::testing::ServingFixture;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kTrace = "4bf92f3577b34da6a3ce929d0e0e4736", kParent = "00f067aa0ba902b7";
const std::string kValid = "00-" + kTrace + "-" + kParent + "-01";

// Our span in a `traceparent` of that trace; empty if it is another one.
std::string SpanIn(const std::string& value, const std::string& flags = "01") {
  const std::string head = "00-" + kTrace + "-", tail = "-" + flags;
  if (value.size() != 55 || !value.starts_with(head) || !value.ends_with(tail)) return {};
  const std::string span = value.substr(head.size(), 16);
  return span != kParent && span.find_first_not_of("0123456789abcdef") == std::string::npos
             ? span
             : std::string();
}

TEST(TraceContextTest, ValidValuesKeepTheirTraceAndTheFlagsThatAreDefined) {
  const std::pair<std::string, std::string> cases[] = {
      {kValid, "01"},
      {"00-" + kTrace + "-" + kParent + "-00", "00"},
      {"00-" + kTrace + "-" + kParent + "-03", "03"},
      {"00-" + kTrace + "-" + kParent + "-ff", "03"},
      {"00-" + kTrace + "-" + kParent + "-08", "00"},
      {"01-" + kTrace + "-" + kParent + "-01", "01"},
      {"cc-" + kTrace + "-" + kParent + "-01-what-the-future-holds", "01"},
      {"fe-" + kTrace + "-" + kParent + "-01-", "01"},
      {"00-00000000000000000000000000000001-0000000000000001-01", "01"},
  };
  for (const auto& [value, flags] : cases) {
    const auto trace = ParseTraceparent(value);
    ASSERT_TRUE(trace) << value;
    EXPECT_EQ(trace->trace_id, value.substr(3, 32));
    EXPECT_EQ(trace->parent_id, value.substr(36, 16));
    EXPECT_EQ(Traceparent(*trace), "00-" + trace->trace_id + "-" + trace->span_id + "-" + flags)
        << value;
    EXPECT_NE(trace->span_id, ParseTraceparent(value)->span_id) << "each request has its own";
  }
}

TEST(TraceContextTest, InvalidValuesGiveNoTrace) {
  const std::string zeros32(32, '0'), zeros16(16, '0');
  const std::string cases[] = {
      "",
      "00",
      "00-" + kTrace + "-" + kParent + "-0",
      "00-" + kTrace + "-" + kParent + "-",
      "00-" + kTrace + "-" + kParent,
      kValid + "-",
      kValid + "-extra",
      kValid + " ",
      " " + kValid,
      "cc-" + kTrace + "-" + kParent + "-01.extra",
      "cc-" + kTrace + "-" + kParent + "-010",
      "ff-" + kTrace + "-" + kParent + "-01",
      "0-" + kTrace + "-" + kParent + "-001",
      "0x-" + kTrace + "-" + kParent + "-01",
      "CC-" + kTrace + "-" + kParent + "-01",
      "00-" + zeros32 + "-" + kParent + "-01",
      "00-" + kTrace + "-" + zeros16 + "-01",
      "00-4BF92F3577B34DA6A3CE929D0E0E4736-" + kParent + "-01",
      "00-" + kTrace + "-00F067AA0BA902B7-01",
      "00-" + kTrace.substr(1) + ".-" + kParent + "-01",
      "00-" + kTrace + "-00f067aa0ba902bg-01",
      "00-" + kTrace + "-" + kParent + "-0A",
      "00-" + kTrace + "-" + kParent + "-x1",
      "00_" + kTrace + "-" + kParent + "-01",
      "00-" + kTrace + "_" + kParent + "-01",
      "00-" + kTrace + "-" + kParent + "_01",
      "00-" + kTrace.substr(1) + "-" + kParent + "-01",
      "00-" + kTrace + "f-" + kParent + "-01",
  };
  for (const std::string& value : cases) EXPECT_FALSE(ParseTraceparent(value)) << value;
}

TEST(TraceContextTest, RandomBytesAndDamagedValuesAreReadByTheSameRule) {
  std::mt19937 random(7);
  const std::string digits = "0123456789abcdef";
  int valid = 0;
  for (int i = 0; i < 200'000; ++i) {
    std::string value = kValid.substr(0, i % 3 == 0 ? random() % 56 : 55);
    for (int damage = static_cast<int>(random() % 3); damage > 0 && !value.empty(); --damage) {
      value[random() % value.size()] = static_cast<char>(i % 2 == 0 ? random() & 0xFF
                                                                    : digits[random() & 15]);
    }
    if (i % 5 == 0) value += std::string(random() % 4, static_cast<char>(random() & 0xFF));
    const auto trace = ParseTraceparent(value);
    if (!trace) continue;
    ++valid;
    ASSERT_GE(value.size(), 55u);
    std::string shape = value.substr(0, 55);
    for (char& c : shape) c = digits.find(c) != std::string::npos ? 'x' : c;
    EXPECT_EQ(shape, "xx-" + std::string(32, 'x') + "-" + std::string(16, 'x') + "-xx") << value;
    EXPECT_TRUE(value.size() == 55 || (value[55] == '-' && !value.starts_with("00"))) << value;
    EXPECT_TRUE(ParseTraceparent(Traceparent(*trace))) << "what we hand on is valid";
  }
  EXPECT_GT(valid, 1000) << "the damage left some of them whole";
}

TEST(TraceContextTest, SmallPrintableTracestateIsPassedOnUnread) {
  using Fields = std::vector<std::pair<std::string, std::string>>;
  const auto state = [](const std::vector<std::string>& values) {
    Fields fields = {{"traceparent", kValid}};
    for (const std::string& value : values) fields.emplace_back("tracestate", value);
    return TraceOf(fields)->state;
  };
  EXPECT_EQ(state({}), "");
  EXPECT_EQ(state({"rojo=00f067aa0ba902b7, congo=t61rcWkgMzE"}),
            "rojo=00f067aa0ba902b7, congo=t61rcWkgMzE");
  EXPECT_EQ(state({"a=1", "", "b=2"}), "a=1,b=2");
  EXPECT_EQ(state({std::string(512, 'a')}).size(), 512u);
  EXPECT_EQ(state({std::string(513, 'a')}), "");
  EXPECT_EQ(state({std::string(300, 'a'), std::string(300, 'b')}), "");
  EXPECT_EQ(state({"a=\xC3\xA9"}), "");
  EXPECT_EQ(state({"a=1\tb"}), "");
  EXPECT_FALSE(TraceOf(Fields{{"tracestate", "a=1"}})) << "a state alone is nothing";
  EXPECT_FALSE(TraceOf(Fields{{"traceparent", kValid}, {"traceparent", kValid}}))
      << "which one is meant?";
}

TEST(TraceContextTest, AllHttpRepliesNameTheTrace) {
  ServingFixture server;
  HttpClient client(server.port());
  const std::string fields = "TraceParent: " + kValid +
                             "\r\nTracestate: a=1\r\nX-Request-Id: mine\r\n";
  const std::string large = R"({"max_tokens":1,"user":")" + std::string(100'000, 'u') +
                            R"(","prompt":)";
  std::set<std::string> spans;
  const auto check = [&](testing::ClientReply reply, int status) {
    EXPECT_EQ(reply.status, status);
    EXPECT_EQ(reply.fields["tracestate"], "a=1");
    EXPECT_EQ(reply.fields["x-request-id"], "mine");
    EXPECT_TRUE(spans.insert(SpanIn(reply.fields["traceparent"])).second)
        << reply.fields["traceparent"];
  };
  check(client.Get("/livez", fields), 200);
  check(client.Get("/nowhere", fields), 404);
  check(client.Post("/tokenize", R"({"prompt":"a"})", fields), 200);
  check(client.Post("/v1/completions", R"({"prompt":"a","max_tokens":1})", fields), 200);
  check(client.Post("/v1/completions", R"({"prompt":"a","max_tokens":1,"stream":true})", fields),
        200);
  check(client.Post("/v1/completions", large + R"("a"})", fields), 200);
  check(client.Post("/v1/completions", large + "}", fields), 400);
  EXPECT_EQ(spans.size(), 7u);
  EXPECT_FALSE(spans.contains(""));
}

TEST(TraceContextTest, HttpRepliesNameNoTraceWithoutAValidTraceparent) {
  ServingFixture server;
  HttpClient client(server.port());
  for (const std::string& fields :
       {std::string(), "traceparent: ff-" + kTrace + "-" + kParent + "-01\r\ntracestate: a=1\r\n",
        "traceparent: " + kValid + "\r\ntraceparent: " + kValid + "\r\n",
        std::string("tracestate: a=1\r\n")}) {
    const auto reply = client.Get("/livez", fields);
    EXPECT_EQ(reply.status, 200) << fields;
    EXPECT_FALSE(reply.fields.contains("traceparent")) << fields;
    EXPECT_FALSE(reply.fields.contains("tracestate")) << fields;
  }
}

std::map<std::string, std::string> InitialMetadata(const grpc::ClientContext& context) {
  std::map<std::string, std::string> found;
  for (const auto& [name, value] : context.GetServerInitialMetadata()) {
    found.emplace(std::string(name.data(), name.size()), std::string(value.data(), value.size()));
  }
  return found;
}

TEST(TraceContextTest, AllGrpcCallsNameTheTraceInTheirInitialMetadata) {
  SetLogLevel(LogLevel::kError);
  GrpcStack stack;
  const auto stub = stack.NewStub();
  const auto call = [&](const std::string& parent, auto&& make) {
    grpc::ClientContext context;
    context.AddMetadata("traceparent", parent);
    context.AddMetadata("tracestate", "a=1");
    make(context);
    return InitialMetadata(context);
  };
  const auto generate = [&](grpc::ClientContext& context, int max_tokens) {
    const auto reader = stub->Generate(&context, RequestOf({1, 2}, max_tokens));
    return Finish(context, *reader).status.ok();
  };
  const auto tokenize = [&](grpc::ClientContext& context) {
    v1::TokenizeRequest request;
    request.set_text("a");
    v1::TokenizeResponse response;
    EXPECT_TRUE(stub->Tokenize(&context, request, &response).ok());
  };
  const auto cancel = [&](grpc::ClientContext& context) {
    v1::CancelResponse response;
    EXPECT_FALSE(stub->Cancel(&context, {}, &response).ok());
  };
  std::vector<std::map<std::string, std::string>> traced;
  traced.push_back(call(kValid, [&](auto& context) { EXPECT_TRUE(generate(context, 3)); }));
  traced.push_back(call(kValid, [&](auto& context) { EXPECT_FALSE(generate(context, -1)); }));
  traced.push_back(call(kValid, tokenize));
  traced.push_back(call(kValid, cancel));
  for (auto& metadata : traced) {
    EXPECT_NE(SpanIn(metadata["traceparent"]), "") << metadata["traceparent"];
    EXPECT_EQ(metadata["tracestate"], "a=1");
  }
  auto untraced = call("00-" + kTrace + "-" + kParent, tokenize);
  EXPECT_FALSE(untraced.contains("traceparent") || untraced.contains("tracestate"));
}

TEST(TraceContextTest, LogLineHasTraceAndRequestId) {
  ServingFixture server;
  GrpcStack stack;
  SetLogLevel(LogLevel::kInfo);
  ::testing::internal::CaptureStderr();
  std::string span;
  {
    HttpClient client(server.port());
    auto reply = client.Post("/v1/completions", R"({"prompt":"never in a log","max_tokens":1})",
                             "traceparent: " + kValid + "\r\nX-Request-Id: mine\r\n");
    span = SpanIn(reply.fields["traceparent"]);
    client.Post("/v1/completions", R"({"prompt":"never in a log","max_tokens":1})");
    grpc::ClientContext context;
    context.AddMetadata("traceparent", kValid);
    v1::GenerateRequest request = RequestOf({1, 2}, 3);
    request.set_request_id("ours\x1b[31m");
    const auto stub = stack.NewStub();
    EXPECT_TRUE(Finish(context, *stub->Generate(&context, request)).status.ok());
  }
  SetLogLevel(LogLevel::kError);
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("request_id=mine trace_id=" + kTrace + " parent_id=" + kParent +
                             " span_id=" + span + "\n"));
  EXPECT_THAT(log, HasSubstr(" traced_request route=/v1/completions status=200 ms="));
  EXPECT_THAT(log, HasSubstr(" traced_request route=Generate status=0 ms="));
  EXPECT_THAT(log, HasSubstr("request_id=\"ours [31m\" trace_id=" + kTrace));
  EXPECT_THAT(log, Not(HasSubstr("never in a log")));
  size_t lines = 0;
  for (size_t at = log.find("traced_request"); at != std::string::npos;
       at = log.find("traced_request", at + 1))
    ++lines;
  EXPECT_EQ(lines, 2u) << "none of the request without a trace\n" << log;
}

}  // namespace
}  // namespace diffserve
