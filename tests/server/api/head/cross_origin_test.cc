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

TEST(CrossOriginTest, PageOfAnotherOriginIsForeign) {
  const CrossOrigin cross_origin = CrossOrigin::Parse({"https://a.example"}).value();
  const auto is_foreign = [&](const CrossOrigin& allowed, const Fields& fields) {
    HttpHead head;
    head.host = "127.0.0.1:8000";
    head.fields = fields;
    return allowed.IsForeign(head);
  };
  const std::vector<Fields> foreign = {
      {{"origin", "https://b.example"}},
      {{"origin", "null"}},
      {{"origin", ""}},
      {{"origin", "http://127.0.0.1"}},
      {{"origin", "http://127.0.0.1:80001"}},
      {{"origin", "http://localhost:8000"}},
      {{"origin", "chrome-extension://abc"}},
      {{"origin", "127.0.0.1:8000"}},
      {{"sec-fetch-site", "cross-site"}},
      {{"sec-fetch-site", "same-site"}},
      {{"sec-fetch-site", "of the future"}},
      {{"origin", "http://127.0.0.1:8000"}, {"sec-fetch-site", "same-site"}}};
  for (const Fields& fields : foreign) {
    EXPECT_TRUE(is_foreign(cross_origin, fields)) << fields[0].first << ": " << fields[0].second;
    EXPECT_FALSE(is_foreign(CrossOrigin::Parse({"*"}).value(), fields)) << fields[0].second;
  }
  const std::vector<Fields> own = {
      {},
      {{"origin", "https://a.example"}},
      {{"origin", "https://a.example"}, {"sec-fetch-site", "cross-site"}},
      {{"origin", "http://127.0.0.1:8000"}},
      {{"origin", "https://127.0.0.1:8000"}},
      {{"origin", "https://proxy.example:8443"}, {"sec-fetch-site", "same-origin"}},
      {{"sec-fetch-site", "none"}}};
  for (size_t i = 0; i < own.size(); ++i) EXPECT_FALSE(is_foreign(cross_origin, own[i])) << i;
}

TEST(CrossOriginTest, InvalidOriginsAreRefused) {
  for (const char* wrong :
       {"a.example", "https://a.example/", "HTTPS://a.example", "https://", "://a.example",
        "https://a.example, https://b.example", ",", "https://a b"})
    EXPECT_EQ(CrossOrigin::Parse({wrong}).status().param(), "--cors-origin") << wrong;
}

}  // namespace
}  // namespace diffserve
