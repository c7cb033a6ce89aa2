// SPDX-License-Identifier: Apache-2.0
// Reply fields for browsers, by the rules of the Fetch standard.
#include "server/api/head/cross_origin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace diffserve {
namespace {

using ::testing::Contains;
using ::testing::IsEmpty;
using ::testing::Pair;
using Fields = std::vector<std::pair<std::string, std::string>>;

HttpHead Preflight(const std::string& origin) {
  HttpHead head;
  head.method = "OPTIONS";
  head.fields = {{"origin", origin}, {"access-control-request-method", "POST"}};
  return head;
}

Fields FieldsFor(const std::string& flag, const std::string& origin) {
  HttpReply reply;
  CrossOrigin::Parse({flag}).value().AddFields(origin, &reply);
  return reply.fields;
}

TEST(CrossOriginTest, RequestWithoutOriginGetsNoFields) {
  EXPECT_FALSE(CrossOrigin().Preflight(Preflight("https://a.example")));
  EXPECT_THAT(FieldsFor("", "https://a.example"), IsEmpty());
}

TEST(CrossOriginTest, AnswersAnAllowedOriginOnly) {
  const std::string flag = "https://a.example,http://localhost:3000";
  const CrossOrigin cross_origin = CrossOrigin::Parse({flag}).value();
  for (const char* allowed : {"https://a.example", "http://localhost:3000"}) {
    EXPECT_TRUE(cross_origin.Preflight(Preflight(allowed))) << allowed;
    EXPECT_THAT(FieldsFor(flag, allowed), Contains(Pair("Access-Control-Allow-Origin", allowed)));
  }
  for (const char* other : {"https://b.example", "http://a.example", "https://a.example:444",
                            "null", "https://a.example.evil", "", "*"}) {
    EXPECT_FALSE(cross_origin.Preflight(Preflight(other))) << other;
    EXPECT_EQ(FieldsFor(flag, other), (Fields{{"Vary", "Origin"}})) << other;
  }
}

TEST(CrossOriginTest, OriginListsAccumulate) {
  const CrossOrigin cross_origin =
      CrossOrigin::Parse({"https://a.example,https://b.example", "https://c.example"}).value();
  for (const char* allowed : {"https://a.example", "https://b.example", "https://c.example"})
    EXPECT_TRUE(cross_origin.Preflight(Preflight(allowed))) << allowed;
  EXPECT_FALSE(cross_origin.Preflight(Preflight("https://d.example")));
  EXPECT_EQ(CrossOrigin::Parse({"https://a.example", "a.example"}).status().param(),
            "--cors-origin");
}

TEST(CrossOriginTest, StarAllowsAllOrigins) {
  EXPECT_TRUE(CrossOrigin::Parse({"*"}).value().Preflight(Preflight("https://b.example")));
  for (const char* origin : {"https://b.example", "null", ""})
    EXPECT_THAT(FieldsFor("https://a.example,*", origin),
                Contains(Pair("Access-Control-Allow-Origin", "*")));
}

TEST(CrossOriginTest, OnlyAPreflightIsAnsweredAsOne) {
  const CrossOrigin cross_origin = CrossOrigin::Parse({"*"}).value();
  HttpHead head = Preflight("https://a.example");
  head.method = "POST";
  EXPECT_FALSE(cross_origin.Preflight(head));
  head = Preflight("https://a.example");
  head.fields.pop_back();
  EXPECT_FALSE(cross_origin.Preflight(head)) << "it asks for no method";
}

TEST(CrossOriginTest, InvalidOriginsAreRefused) {
  for (const char* wrong :
       {"a.example", "https://a.example/", "HTTPS://a.example", "https://", "://a.example",
        "https://a.example, https://b.example", ",", "https://a b"})
    EXPECT_EQ(CrossOrigin::Parse({wrong}).status().param(), "--cors-origin") << wrong;
}

}  // namespace
}  // namespace diffserve
