// SPDX-License-Identifier: Apache-2.0
// Access to the HTTP port: by key, and by the Host name.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "server/api/routes.h"
#include "tests/testing/server/http_client.h"
#include "tests/testing/server/serving_fixture.h"

namespace diffserve {
namespace {

using testing::ExampleOf;
using testing::Once;
using testing::ServingFixture;
using testing::ServingOptions;

TEST(OpenAiAccessTest, WithoutAKeyOnlyHealthThePageAndTheApisDescriptionAnswer) {
  ServingOptions options;
  options.keys = "# comment\nsecret-one\n\nsecret-two\n";
  ServingFixture server(options);
  std::set<std::string> open;
  for (const auto& route : server.Routes()) {
    const std::string path = ExampleOf(route.path);
    if (!route.needs_key) open.insert(path);
    for (const char* method :
         {"GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "get"}) {
      for (const char* fields :
           {"", "Authorization: Bearer wrong\r\n", "Authorization: Bearer\r\n",
            "Authorization: secret-one\r\n", "Authorization: Basic secret-one\r\n",
            "X-Api-Key: secret\r\n", "X-Api-Key:\r\n", "Authorization: Bearer secret-one x\r\n",
            "Authorization: Bearer wrong\r\nX-Api-Key: secret-one\r\n"}) {
        const int status = Once(server.port(), method, path, fields).status;
        if (route.needs_key) {
          EXPECT_EQ(status, 401) << method << " " << path << " " << fields;
        } else {
          const std::string sent = method;
          const bool is_check = sent == "OPTIONS" && path == "/";
          EXPECT_EQ(status, sent == "GET" || sent == "HEAD" ? 200
                            : is_check                      ? 204
                                                            : 405)
              << method << " " << path;
        }
      }
    }
  }
  EXPECT_EQ(open, (std::set<std::string>{"/livez", "/readyz", "/health", "/openapi.json", "/",
                                         "/ui/main.js"}));
}

TEST(OpenAiAccessTest, KeyInEitherHeaderOpensEveryRoute) {
  ServingOptions options;
  options.keys = "secret-one\nsecret-two\n";
  ServingFixture server(options);
  for (const char* fields :
       {"Authorization: Bearer secret-one\r\n", "authorization: bearer   secret-two\r\n",
        "X-Api-Key: secret-two\r\n"}) {
    for (const auto& route : server.Routes()) {
      const std::string path = ExampleOf(route.path);
      const int status = Once(server.port(), std::string(route.method), path, fields).status;
      const bool is_stored = path.find("resp_none") != std::string::npos;  // no such response
      // The body {} lacks a prompt.
      const bool needs_prompt = route.method == "POST" && route.path != "/reset_prefix_cache";
      EXPECT_EQ(status, is_stored ? 404 : needs_prompt ? 400 : 200) << path;
    }
    EXPECT_EQ(Once(server.port(), "GET", "/nowhere", fields).status, 404);
  }
}

TEST(OpenAiAccessTest, OddPathsAndHostsStillNeedTheKey) {
  ServingOptions options;
  options.keys = "secret\n";
  ServingFixture server(options);
  for (const char* target : {"/nowhere",
                             "//",
                             "//livez",
                             "//v1/models",
                             "/v1//models",
                             "/livez/",
                             "/livez/../v1/models",
                             "/./livez",
                             "/%6civez",
                             "/livez%2f",
                             "/livez%00",
                             "/v1/models%2e",
                             "/LIVEZ",
                             "/Health",
                             "/livez;x",
                             "/v1/models?x=/livez",
                             "/.",
                             "/..",
                             "/v1/completions?",
                             "/health/x",
                             "/healthz",
                             "/ui",
                             "//ui/main.js",
                             "/x/../ui/main.js",
                             "/UI/main.js",
                             "/%2e%2e/livez"}) {
    EXPECT_EQ(Once(server.port(), "GET", target).status, 401) << target;
    EXPECT_EQ(Once(server.port(), "POST", target).status, 401) << target;
  }
  for (const char* host : {"livez", "localhost.livez", "a:1", "127.0.0.1"}) {
    EXPECT_EQ(Once(server.port(), "GET", "/v1/models", "", host).status, 401) << host;
  }
  EXPECT_EQ(Once(server.port(), "GET", "http://localhost/v1/models").status, 401);
  EXPECT_EQ(Once(server.port(), "GET", "http://livez/v1/models").status, 401);
  EXPECT_EQ(Once(server.port(), "GET", "/livez?key=1").status, 200);
}

TEST(OpenAiAccessTest, OnALoopbackAddressOnlyLoopbackNamesAreServed) {
  ServingOptions options;
  options.routes.loopback_hosts_only = true;
  ServingFixture server(options);
  for (const char* host : {"localhost", "127.0.0.1:8000", "[::1]"}) {
    EXPECT_EQ(Once(server.port(), "GET", "/v1/models", "", host).status, 200) << host;
  }
  for (const char* host : {"evil.example", "localhost.evil.example", "10.0.0.1"}) {
    EXPECT_EQ(Once(server.port(), "GET", "/v1/models", "", host).status, 421) << host;
    EXPECT_EQ(Once(server.port(), "GET", "/livez", "", host).status, 421) << host;
    EXPECT_EQ(Once(server.port(), "OPTIONS", "*", "", host).status, 421) << host;
    const std::string target = "http://" + std::string(host) + "/v1/models";
    EXPECT_EQ(Once(server.port(), "GET", target, "", "localhost").status, 421)
        << "the target's host counts";
  }
  EXPECT_EQ(Once(server.port(), "GET", "http://localhost/v1/models", "", "evil.example").status,
            200);
}

}  // namespace
}  // namespace diffserve
