// SPDX-License-Identifier: Apache-2.0
// Who may connect when connections are many, silent or slow.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tests/testing/kernels/eventually.h"
#include "tests/testing/server/http_client.h"
#include "tests/testing/server/serving_fixture.h"

namespace diffserve {
namespace {

using testing::Eventually;
using testing::HttpClient;
using testing::ServingFixture;
using testing::ServingOptions;

TEST(HttpConnectionsTest, ConnectionWithoutAFirstRequestIsClosedAfterTheTimeForAHead) {
  ServingOptions options;
  options.http.head_timeout = std::chrono::milliseconds(100);
  ServingFixture server(options);
  HttpClient silent(server.port());
  EXPECT_TRUE(silent.AtEnd()) << "without a reply";
  EXPECT_EQ(silent.buffered(), "");
  HttpClient used(server.port());
  EXPECT_EQ(used.Get("/livez").status, 200);
  EXPECT_FALSE(used.ReadSome(300)) << "after a reply the time of an idle connection counts";
  EXPECT_EQ(used.Get("/livez").status, 200);
}

TEST(HttpConnectionsTest, LongestIdleConnectionGoesForANewOne) {
  ServingOptions options;
  options.http.max_connections = 3;
  ServingFixture server(options);
  HttpClient first(server.port()), second(server.port()), third(server.port());
  for (HttpClient* client : {&first, &second, &third, &first})
    EXPECT_EQ(client->Get("/livez").status, 200);
  HttpClient fourth(server.port());
  EXPECT_EQ(fourth.Get("/livez").status, 200);
  EXPECT_TRUE(second.AtEnd());
  EXPECT_EQ(first.Get("/livez").status, 200);
  EXPECT_EQ(third.Get("/livez").status, 200);
}

TEST(HttpConnectionsTest, ConnectionsWithinRequestsAreNotCutForNewOnes) {
  ServingOptions options;
  options.http.max_connections = 2;
  ServingFixture server(options);
  HttpClient head(server.port()), body(server.port());
  head.Send("GET /livez HTTP/1.1\r\nHo");
  body.Send("POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{");
  EXPECT_TRUE(Eventually([&] { return head.IsDrained() && body.IsDrained(); }));
  HttpClient third(server.port());
  third.SendGet("/livez");
  head.Send("st: localhost\r\n\r\n");
  EXPECT_EQ(head.ReadReply().status, 200);
  EXPECT_EQ(third.ReadReply().status, 200) << "the first is idle now, and goes";
  body.Send("}");
  EXPECT_NE(body.ReadReply().status, 0);
}

TEST(HttpConnectionsTest, OneAddressDoesNotHoldAllConnections) {
  ServingOptions options;
  options.http.max_connections = 8;
  options.http.head_timeout = std::chrono::minutes(1);
  ServingFixture server(options);
  std::vector<std::unique_ptr<HttpClient>> slow;
  for (int i = 0; i < 7; ++i) {
    slow.push_back(std::make_unique<HttpClient>(server.port()));
    slow.back()->Send("GET /livez HTTP/1.1\r\n");
  }
  EXPECT_TRUE(Eventually([&] {
    return std::ranges::all_of(slow, [](const auto& client) { return client->IsDrained(); });
  }));
  HttpClient other(server.port(), 0, "127.0.0.2");
  EXPECT_EQ(other.Get("/livez").status, 200);
  HttpClient more(server.port());
  EXPECT_TRUE(more.AtEnd());
  EXPECT_EQ(other.Get("/livez").status, 200);
  slow.back()->Send("Host: localhost\r\n\r\n");
  EXPECT_EQ(slow.back()->ReadReply().status, 200);
}

TEST(HttpConnectionsTest, SilentAndSlowConnectionsDoNotKeepProbesOut) {
  ServingOptions options;
  options.health_port = 0;
  ServingFixture server(options);
  std::vector<std::unique_ptr<HttpClient>> others;
  for (int i = 0; i < 130; ++i) {
    others.push_back(std::make_unique<HttpClient>(server.health_port()));
    if (i % 2 == 0) others.back()->Send("GET /livez HT");
    if (i % 10 != 9) continue;
    EXPECT_EQ(HttpClient(server.health_port()).Get("/livez").status, 200) << i;
  }
}

}  // namespace
}  // namespace diffserve
