// SPDX-License-Identifier: Apache-2.0
// Which calls of which clients share a connection to a model's process.
#include "server/router/grpc_channels.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace diffserve {
namespace {

using Use = std::shared_ptr<grpc::Channel>;

const ChildAddress kFirstRun = {.http_port = 1, .grpc_port = 2, .run = 1};
const ChildAddress kSecondRun = {.http_port = 3, .grpc_port = 4, .run = 2};

class GrpcChannelsTest : public ::testing::Test {
 protected:
  // A channel connects when it is used, so these never do.
  GrpcChannels channels_{2, {.max_calls = 2, .max_kept_calls = 4, .max_kept = 1}, [](int port) {
                           return grpc::CreateChannel("ipv4:127.0.0.1:" + std::to_string(port),
                                                      grpc::InsecureChannelCredentials());
                         }};
};

TEST_F(GrpcChannelsTest, CallsOfTwoClientsShareNoConnection) {
  const Use first = channels_.Take(0, kFirstRun, "a");
  const Use second = channels_.Take(0, kFirstRun, "a");
  const Use other = channels_.Take(0, kFirstRun, "b");
  EXPECT_EQ(first.get(), second.get());
  EXPECT_NE(first.get(), other.get());
  EXPECT_EQ(channels_.Count(0), 2u);
  EXPECT_EQ(channels_.Count(1), 0u);
}

TEST_F(GrpcChannelsTest, FullConnectionIsFollowedByAnother) {
  Use first = channels_.Take(0, kFirstRun, "a");
  const Use second = channels_.Take(0, kFirstRun, "a");
  const Use third = channels_.Take(0, kFirstRun, "a");
  EXPECT_NE(first.get(), third.get());
  const grpc::Channel* const freed = first.get();
  first.reset();
  EXPECT_EQ(channels_.Take(0, kFirstRun, "a").get(), freed) << "which has room again";
}

TEST_F(GrpcChannelsTest, ConnectionsWithoutCallsAreKeptOrClosed) {
  std::vector<Use> uses;
  for (const char* client : {"a", "b", "c"}) uses.push_back(channels_.Take(0, kFirstRun, client));
  const grpc::Channel* const first = uses[0].get();
  uses.clear();
  EXPECT_EQ(channels_.Count(0), 1u);
  EXPECT_EQ(channels_.Take(0, kFirstRun, "d").get(), first) << "any client may have it next";
}

TEST_F(GrpcChannelsTest, UsedUpConnectionIsNotKept) {
  for (int call = 0; call < 4; ++call) channels_.Take(0, kFirstRun, "a");
  EXPECT_EQ(channels_.Count(0), 1u);
  channels_.Take(0, kFirstRun, "a");
  EXPECT_EQ(channels_.Count(0), 0u) << "it has carried five calls";
}

TEST_F(GrpcChannelsTest, NewProcessGetsNewConnections) {
  Use old = channels_.Take(0, kFirstRun, "a");
  const Use now = channels_.Take(0, kSecondRun, "a");
  EXPECT_NE(old.get(), now.get());
  EXPECT_EQ(channels_.Count(0), 1u);
  old.reset();
  EXPECT_EQ(channels_.Count(0), 1u);
}

}  // namespace
}  // namespace diffserve
