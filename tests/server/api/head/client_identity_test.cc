// SPDX-License-Identifier: Apache-2.0
// Clients' names in the queues: the key's number or the address, never the key.
#include "server/api/head/client_identity.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "server/api/grpc/call_record.h"
#include "server/http/peer_address.h"
#include "server/http/server.h"
#include "tests/testing/server/http_client.h"

namespace diffserve {
namespace {

// A listening socket on a loopback address and a client's connection to it.
class LoopbackPair {
 public:
  LoopbackPair(int family, const char* connect_to) : listener_(socket(AF_INET6, SOCK_STREAM, 0)) {
    const int off = 0;
    setsockopt(listener_, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    sockaddr_in6 any{};
    any.sin6_family = AF_INET6;
    any.sin6_addr = in6addr_any;
    socklen_t size = sizeof(any);
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&any), size), 0);
    EXPECT_EQ(listen(listener_, 1), 0);
    EXPECT_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&any), &size), 0);
    client_ = socket(family, SOCK_STREAM, 0);
    EXPECT_EQ(Connect(family, connect_to, any.sin6_port), 0);
    accepted_ = accept(listener_, nullptr, nullptr);
  }
  ~LoopbackPair() {
    for (const int fd : {listener_, client_, accepted_}) close(fd);
  }
  int accepted() const { return accepted_; }

 private:
  int Connect(int family, const char* address, in_port_t port) {
    if (family == AF_INET) {
      sockaddr_in to{};
      to.sin_family = AF_INET;
      to.sin_port = port;
      inet_pton(AF_INET, address, &to.sin_addr);
      return connect(client_, reinterpret_cast<sockaddr*>(&to), sizeof(to));
    }
    sockaddr_in6 to{};
    to.sin6_family = AF_INET6;
    to.sin6_port = port;
    inet_pton(AF_INET6, address, &to.sin6_addr);
    return connect(client_, reinterpret_cast<sockaddr*>(&to), sizeof(to));
  }

  int listener_, client_ = -1, accepted_ = -1;
};

TEST(ClientIdentityTest, AddressHasNoPortAndOneSpelling) {
  const LoopbackPair ipv4(AF_INET, "127.0.0.1");
  EXPECT_EQ(PeerAddress(ipv4.accepted()), "127.0.0.1") << "on an IPv6 socket";
  const LoopbackPair ipv6(AF_INET6, "::1");
  EXPECT_EQ(PeerAddress(ipv6.accepted()), "::1");
  EXPECT_EQ(PeerAddress(-1), "");
}

TEST(ClientIdentityTest, ClientIsTheKeysNumberOrTheAddressWithoutKeys) {
  const ApiKeys keys = ApiKeys::FromText("first\n# comment\nsecond\n", "keys").value();
  EXPECT_EQ(ClientName(keys, "first", "10.0.0.1"), "key:0");
  EXPECT_EQ(ClientName(keys, "second", "10.0.0.1"), "key:1");
  EXPECT_EQ(ClientName(keys, "third", "10.0.0.1"), "");
  EXPECT_EQ(ClientName(keys, "", "10.0.0.1"), "");
  EXPECT_EQ(ClientName(ApiKeys(), "first", "10.0.0.1"), "10.0.0.1");
}

TEST(ClientIdentityTest, HttpRequestsCarryTheClientAddress) {
  std::string seen;
  HttpService service;
  service.serve = [&seen](HttpRequest request, const std::function<void()>&) -> HttpAnswer {
    seen = request.peer;
    return HttpReply{};
  };
  service.refuse = [](int, std::string_view, const HttpHead&) { return HttpReply{}; };
  service.draining = [] { return false; };
  HttpServerOptions options;
  options.port = 0;
  HttpServer server(options, service);
  ASSERT_TRUE(server.Start().ok());
  EXPECT_EQ(testing::Once(server.port(), "GET", "/").status, 200);
  EXPECT_EQ(seen, "127.0.0.1");
}

TEST(ClientIdentityTest, GrpcCallIsIdentifiedByKeyOrSocket) {
  const LoopbackPair pair(AF_INET, "127.0.0.1");
  const std::string peer = "fd:" + std::to_string(pair.accepted());
  EXPECT_EQ(ClientOf(ApiKeys(), {}, peer), "127.0.0.1");
  EXPECT_EQ(ClientOf(ApiKeys(), {}, "unix:/x"), "");
  const ApiKeys keys = ApiKeys::FromText("first\nsecond\n", "keys").value();
  EXPECT_EQ(ClientOf(keys, {{"authorization", "Bearer second"}}, peer), "key:1");
  EXPECT_EQ(ClientOf(keys, {{"x-api-key", "wrong"}, {"x-api-key", "first"}}, peer), "key:0");
  EXPECT_EQ(ClientOf(keys, {}, peer), "");
}

}  // namespace
}  // namespace diffserve
