// SPDX-License-Identifier: Apache-2.0
// What is decided about a request before its route: methods, checks of the whole server, hosts.
#include <gtest/gtest.h>

#include <string>

#include "server/api/routes.h"
#include "tests/testing/server/http_client.h"
#include "tests/testing/server/serving_fixture.h"

namespace diffserve {
namespace {

using testing::ClientReply;
using testing::ExampleOf;
using testing::HttpClient;
using testing::Once;
using testing::ServingFixture;
using testing::ServingOptions;

TEST(FrontDoorTest, UnknownPathNamesTheNearest) {
  ServingFixture server;
  const auto message = [&](const std::string& method, const std::string& path) {
    const ClientReply reply = Once(server.port(), method, path);
    EXPECT_EQ(reply.status, 404) << path;
    return reply.json()["error"]["message"].get<std::string>();
  };
  const auto expect_nearest = [&](const std::string& method, const std::string& path,
                                  const std::string& nearest) {
    EXPECT_EQ(message(method, path),
              path + ": there is no such path; did you mean " + nearest + "?");
  };
  expect_nearest("POST", "/chat/completions", "/v1/chat/completions");
  expect_nearest("POST", "/completions", "/v1/completions");
  expect_nearest("POST", "/v1/v1/chat/completions", "/v1/chat/completions");
  expect_nearest("POST", "/v1/chat/completion", "/v1/chat/completions");
  expect_nearest("GET", "/models", "/v1/models");
  EXPECT_EQ(message("GET", "/elsewhere/at/all"), "/elsewhere/at/all: there is no such path");
  EXPECT_LT(message("GET", "/" + std::string(2000, 'x')).size(), 200u);
}

TEST(FrontDoorTest, WrongMethodReturnsAllowHeader) {
  ServingFixture server;
  const auto routes = server.Routes();
  for (const auto& route : routes) {
    const std::string path = ExampleOf(route.path);
    std::string allowed;
    for (const auto& other : routes) {
      if (other.path != route.path) continue;
      allowed += (allowed.empty() ? "" : ", ") + std::string(other.method);
      if (other.method == "GET") allowed += ", HEAD";
    }
    for (const std::string method : {"HEAD", "OPTIONS", "DELETE", "GET", "POST"}) {
      if (allowed.find(method) != std::string::npos) continue;
      if (method == "OPTIONS" && path == "/") continue;  // checks the whole server
      ClientReply reply = Once(server.port(), method, path);
      EXPECT_EQ(reply.status, 405) << method << " " << path;
      EXPECT_EQ(reply.fields["allow"], allowed);
    }
  }
  EXPECT_EQ(Once(server.port(), "PUT", "/v1/responses/x").fields["allow"], "GET, HEAD, DELETE");
}

TEST(FrontDoorTest, MethodOutsideTheStandardIsNotAllowed) {
  ServingFixture server;
  for (const char* method : {"BREW", "get", "PROPFIND"}) {
    ClientReply reply = Once(server.port(), method, "/v1/models");
    EXPECT_EQ(reply.status, 405) << method;
    EXPECT_EQ(reply.fields["allow"], "GET, HEAD") << method;
  }
}

TEST(FrontDoorTest, OptionsOfTheWholeServerTellsWhetherItIsReady) {
  ServingFixture server;
  for (const char* target : {"*", "/", "http://localhost"}) {
    ClientReply reply = Once(server.port(), "OPTIONS", target);
    EXPECT_EQ(reply.status, 204) << target;
    EXPECT_EQ(reply.fields["allow"], "GET, HEAD, POST, DELETE, OPTIONS") << target;
    EXPECT_EQ(reply.fields.count("content-length"), 0u) << target;
  }
  server.health->BeginDrain();
  ClientReply reply = Once(server.port(), "OPTIONS", "/");
  EXPECT_EQ(reply.status, 503);
  EXPECT_EQ(reply.fields.count("retry-after"), 1u);
}

TEST(FrontDoorTest, HeadReplyIsThatOfGetWithoutItsBody) {
  ServingFixture server;
  HttpClient client(server.port());
  for (const auto& route : server.Routes()) {
    if (route.method != "GET") continue;
    const std::string path = ExampleOf(route.path);
    ClientReply got = client.Get(path, "X-Request-Id: a\r\n");
    client.Send("HEAD " + path + " HTTP/1.1\r\nHost: a\r\nX-Request-Id: a\r\n\r\n");
    ClientReply head = client.ReadReply(/*head_only=*/true);
    EXPECT_EQ(head.status, got.status) << path;
    if (path == "/metrics") got.fields["content-length"] = head.fields["content-length"];
    got.fields["date"] = head.fields["date"];
    EXPECT_EQ(head.fields, got.fields) << path;
  }
  EXPECT_TRUE(client.Get("/version").json().contains("version"))
      << "the next reply follows the head at once";
}

TEST(FrontDoorTest, HeadOfARefusedRequestHasNoBody) {
  ServingFixture server;
  HttpClient client(server.port());
  client.Send("HEAD /livez HTTP/1.1\r\nHost: a b\r\n\r\n");
  EXPECT_EQ(client.ReadReply(/*head_only=*/true).status, 400);
  EXPECT_TRUE(client.AtEnd());
}

// As the checks of load balancers come.
TEST(FrontDoorTest, RequestWithoutAHostNameGetsTheOpenPathsOfALoopbackServer) {
  ServingOptions options;
  options.routes.loopback_hosts_only = true;
  ServingFixture server(options);
  const auto status = [&](const std::string& line, const std::string& fields = "") {
    HttpClient client(server.port());
    client.Send(line + "\r\n" + fields + "\r\n");
    return client.ReadReply(/*head_only=*/line.starts_with("HEAD")).status;
  };
  for (const char* path : {"/livez", "/readyz", "/health", "/"}) {
    const std::string target = path;
    EXPECT_EQ(status("GET " + target + " HTTP/1.0"), 200) << path;
    EXPECT_EQ(status("HEAD " + target + " HTTP/1.0"), 200) << path;
    EXPECT_EQ(status("GET " + target + " HTTP/1.1", "Host:\r\n"), 200) << path;
    EXPECT_EQ(status("GET " + target + " HTTP/1.1"), 400) << path;
  }
  EXPECT_EQ(status("OPTIONS / HTTP/1.0"), 204) << "HAProxy's option httpchk";
  EXPECT_EQ(status("OPTIONS * HTTP/1.0"), 204);
  EXPECT_EQ(status("GET /v1/models HTTP/1.0"), 421);
  EXPECT_EQ(status("GET /v1/models HTTP/1.1", "Host:\r\n"), 421);
  EXPECT_EQ(status("GET /nowhere HTTP/1.0"), 421);
}

// What its browser sends without a preflight.
TEST(FrontDoorTest, PageOfAnotherOriginDoesNotAct) {
  ServingOptions options;
  options.routes.cross_origin = CrossOrigin::Parse({"https://a.example"}).value();
  ServingFixture server(options);
  HttpClient client(server.port());
  const auto status = [&](const std::string& path, const std::string& fields) {
    client.Send("POST " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n" + fields +
                "\r\n");
    return client.ReadReply().status;
  };
  const std::string foreign = "Origin: https://b.example\r\n";
  for (const auto& route : server.Routes()) {
    if (route.method != "POST") continue;
    const std::string path = ExampleOf(route.path);
    for (const std::string& page : {foreign, std::string("Origin: null\r\n"),
                                    std::string("Sec-Fetch-Site: cross-site\r\n")}) {
      EXPECT_EQ(status(path, page), 403) << path << " " << page;
      EXPECT_EQ(status(path, page + "Content-Type: text/plain\r\n"), 415) << path;
      EXPECT_EQ(status(path, page + "Content-Type: multipart/form-data\r\n"), 415) << path;
    }
    for (const std::string& asked : {std::string(), foreign + "Content-Type: application/json\r\n",
                                     std::string("Origin: https://a.example\r\n"),
                                     std::string("Origin: http://localhost\r\n")})
      EXPECT_NE(status(path, asked), 403) << path << " " << asked;
  }
  EXPECT_EQ(status("/reset_prefix_cache", ""), 200) << "curl -X POST";
  EXPECT_EQ(client.Get("/v1/models", foreign).status, 200) << "the browser keeps it from the page";
}

TEST(FrontDoorTest, RequestWithoutAHostNameIsServedWhereHostsAreNotChecked) {
  ServingFixture server;
  HttpClient client(server.port());
  client.Send("GET /v1/models HTTP/1.0\r\n\r\n");
  EXPECT_EQ(client.ReadReply().status, 200);
}

}  // namespace
}  // namespace diffserve
