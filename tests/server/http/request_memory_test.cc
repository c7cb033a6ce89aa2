// SPDX-License-Identifier: Apache-2.0
// Bytes of requests that a server keeps: their limit, and the shares of its clients.
#include "server/http/request_memory.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "server/http/server.h"
#include "tests/testing/kernels/eventually.h"
#include "tests/testing/server/http_client.h"

namespace diffserve {
namespace {

using testing::Eventually;
using testing::HttpClient;

TEST(RequestMemoryTest, KeepsAnEighthOfWhatIsFreeForOtherClients) {
  RequestMemory memory(800);
  RequestMemory::Part first(memory), second(memory), third(memory);
  first.SetClient("a");
  second.SetClient("a");
  third.SetClient("b");
  EXPECT_TRUE(first.Set(400));
  EXPECT_TRUE(second.Set(300));
  EXPECT_FALSE(second.Set(301)) << "701 bytes of one client leave 99";
  EXPECT_TRUE(second.Set(300));
  EXPECT_TRUE(third.Set(87));
  EXPECT_FALSE(third.Set(88)) << "12 bytes are left, and 88 are more than seven times as many";
  EXPECT_FALSE(third.Set(101)) << "the limit itself";
}

TEST(RequestMemoryTest, PartsLeaveWithTheirOwners) {
  RequestMemory memory(800);
  {
    RequestMemory::Part gone(memory);
    EXPECT_TRUE(gone.Set(700));
  }
  RequestMemory::Part part(memory);
  EXPECT_TRUE(part.Set(700));
  part.SetClient("b");
  RequestMemory::Part other(memory);
  EXPECT_FALSE(other.Set(90)) << "a part that changes its client takes its bytes along";
  EXPECT_TRUE(part.Set(0));
  EXPECT_TRUE(other.Set(700));
}

// An answer that keeps its request and does not come.
class KeepingExchange : public HttpExchange {
 public:
  explicit KeepingExchange(std::string body) : body_(std::move(body)) {}
  std::optional<HttpReply> Reply() override { return std::nullopt; }
  bool Frames(std::string*) override { return true; }
  size_t HeldBytes() const override { return body_.size(); }

 private:
  const std::string body_;
};

class KeptRequestsTest : public ::testing::Test {
 protected:
  KeptRequestsTest() {
    HttpServerOptions options;
    options.port = 0;
    options.max_held_bytes = 1 << 20;
    HttpService service;
    service.serve = [this](HttpRequest request, const std::function<void()>&) -> HttpAnswer {
      ++served_;
      return std::make_unique<KeepingExchange>(std::move(request.body));
    };
    service.refuse = [](int status, std::string_view, const HttpHead&) {
      return HttpReply{.status = status, .fields = {}, .body = {}, .ping = {}};
    };
    service.client = [](const HttpHead& head, const std::string&) {
      return std::string(head.Field("x-api-key"));
    };
    service.draining = [] { return false; };
    server_ = std::make_unique<HttpServer>(options, service);
    EXPECT_TRUE(server_->Start().ok());
  }

  bool AreServed(int count) const {
    return Eventually([&] { return served_ == count; });
  }

  std::atomic<int> served_{0};
  std::unique_ptr<HttpServer> server_;
};

TEST_F(KeptRequestsTest, RequestsCountUntilTheirAnswersLetThemGo) {
  HttpClient first(server_->port()), second(server_->port()), other(server_->port());
  first.SendPost("/", std::string(800 << 10, 'x'), "X-Api-Key: a\r\n");
  ASSERT_TRUE(AreServed(1));
  second.SendPost("/", std::string(200 << 10, 'x'), "X-Api-Key: a\r\n");
  EXPECT_EQ(second.ReadReply().status, 503);
  other.SendPost("/", std::string(100 << 10, 'x'), "X-Api-Key: b\r\n");
  EXPECT_TRUE(AreServed(2)) << "another client has its own share";
  first.Close();
  ASSERT_TRUE(Eventually([&] { return server_->num_connections() == 1; }));
  HttpClient third(server_->port());
  third.SendPost("/", std::string(800 << 10, 'x'), "X-Api-Key: a\r\n");
  EXPECT_TRUE(AreServed(3));
}

TEST_F(KeptRequestsTest, RefusedBodyIsReadToItsEnd) {
  HttpClient client(server_->port());
  EXPECT_TRUE(client.SendPost("/", std::string(4 << 20, 'x')));
  EXPECT_EQ(client.ReadReply().status, 503);
  EXPECT_TRUE(client.AtEnd());
  EXPECT_FALSE(client.WasReset());
}

}  // namespace
}  // namespace diffserve
