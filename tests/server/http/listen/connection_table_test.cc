// SPDX-License-Identifier: Apache-2.0
// Who gets a place of a port and which idle connection goes for it.
#include "server/http/listen/connection_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "server/http/peer_address.h"

namespace diffserve {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class ConnectionTableTest : public ::testing::Test {
 protected:
  // The outcome; a connection that is admitted gets the name.
  std::string Add(const std::string& network, const std::string& name) {
    ConnectionTable::Admission admission = table_.Admit(network);
    if (admission.entry == nullptr) return admission.is_share_used ? "refused" : "waits";
    admission.entry->OnEnd([this, name] { ended_.push_back(name); });
    entries_[name] = std::move(admission.entry);
    return "admitted";
  }
  void AddMany(const std::string& network, int count) {
    for (int i = 0; i < count; ++i)
      EXPECT_EQ(Add(network, network + std::to_string(i)), "admitted") << i;
  }
  void SetIdle(const std::string& name) { entries_.at(name)->SetIdle(true); }

  ConnectionTable table_{16};
  std::vector<std::string> ended_;
  std::map<std::string, std::unique_ptr<ConnectionTable::Entry>> entries_;
};

TEST_F(ConnectionTableTest, OneNetworkLeavesAnEighthToOthers) {
  AddMany("a", 14);
  EXPECT_EQ(Add("a", "more"), "refused");
  EXPECT_EQ(Add("b", "b0"), "admitted");
  EXPECT_EQ(Add("c", "c0"), "admitted");
  EXPECT_EQ(Add("d", "d0"), "waits");
  EXPECT_THAT(ended_, IsEmpty());
}

TEST_F(ConnectionTableTest, NetworkWithItsShareLosesItsOwnLongestIdleConnection) {
  Add("b", "b0");
  SetIdle("b0");
  AddMany("a", 14);
  for (const char* name : {"a3", "a1"}) SetIdle(name);
  EXPECT_EQ(Add("a", "x"), "admitted");
  EXPECT_EQ(Add("a", "y"), "admitted");
  EXPECT_EQ(Add("a", "z"), "refused");
  EXPECT_THAT(ended_, ElementsAre("a3", "a1"));
}

TEST_F(ConnectionTableTest, LongestIdleConnectionOfAllGoesWhenPlacesRunOut) {
  AddMany("a", 14);
  Add("b", "b0");
  Add("c", "c0");
  for (const char* name : {"a5", "b0", "c0"}) SetIdle(name);
  entries_.at("a5")->SetIdle(false);
  SetIdle("a5");
  EXPECT_EQ(Add("d", "d0"), "admitted");
  EXPECT_EQ(Add("e", "e0"), "admitted");
  EXPECT_THAT(ended_, ElementsAre("b0", "c0"));
}

TEST_F(ConnectionTableTest, FullNetworkDoesNotEndAConnectionOfAnother) {
  AddMany("a", 14);
  Add("b", "b0");
  Add("c", "c0");
  SetIdle("b0");
  EXPECT_EQ(Add("a", "more"), "refused");
  EXPECT_THAT(ended_, IsEmpty());
}

TEST_F(ConnectionTableTest, ConnectionsOfAUnixSocketMayHoldAll) {
  AddMany(kUnixNetwork, 16);
  EXPECT_EQ(Add(kUnixNetwork, "more"), "waits");
  SetIdle("unix7");
  EXPECT_EQ(Add(kUnixNetwork, "more"), "admitted");
  EXPECT_THAT(ended_, ElementsAre("unix7"));
}

TEST_F(ConnectionTableTest, ConnectionThatGoesOnWithoutItsPlaceHasOneAgain) {
  AddMany(kUnixNetwork, 16);
  SetIdle("unix0");
  EXPECT_EQ(Add(kUnixNetwork, "x"), "admitted");
  EXPECT_TRUE(entries_.at("unix0")->HasLostPlace());
  entries_.at("unix0")->SetIdle(false);  // its request had come
  EXPECT_FALSE(entries_.at("unix0")->HasLostPlace());
  entries_.erase("x");
  EXPECT_EQ(Add(kUnixNetwork, "y"), "waits");
  entries_.erase("unix0");
  EXPECT_EQ(Add(kUnixNetwork, "y"), "admitted");
}

// Against a model that counts by hand. In every second thousand of steps none becomes idle, so that
// the table is full.
TEST(ConnectionTableRandomTest, PlacesAddUpAndABusyConnectionNeverGoes) {
  constexpr int kPlaces = 24;
  ConnectionTable table(kPlaces);
  struct Known {
    std::unique_ptr<ConnectionTable::Entry> entry;
    bool is_idle = false;
  };
  std::map<int, Known> known;
  std::mt19937 random(7);
  int num_ended = 0, num_full = 0;
  for (int i = 0; i < 20'000; ++i) {
    const auto draw = [&](size_t below) { return random() % below; };
    if (known.empty() || draw(2) == 0) {
      std::optional<int> ended;
      ConnectionTable::Admission admission = table.Admit("net" + std::to_string(draw(12)));
      for (auto& [id, one] : known) {
        if (one.entry->HasLostPlace()) ended = id;
      }
      ASSERT_EQ(ended.has_value(), admission.has_ended_other);
      if (ended) {
        ASSERT_TRUE(known.at(*ended).is_idle);
        known.erase(*ended);
        ++num_ended;
      }
      if (admission.entry != nullptr) {
        admission.entry->OnEnd([] {});
        known[i].entry = std::move(admission.entry);
      } else if (!admission.is_share_used) {
        ASSERT_EQ(known.size(), static_cast<size_t>(kPlaces));
        ++num_full;
      }
      ASSERT_LE(known.size(), static_cast<size_t>(kPlaces));
      continue;
    }
    const auto chosen = std::next(known.begin(), static_cast<std::ptrdiff_t>(draw(known.size())));
    if (draw(4) == 0) {
      known.erase(chosen);
    } else {
      chosen->second.is_idle = i / 1000 % 2 == 0 && draw(2) == 0;
      chosen->second.entry->SetIdle(chosen->second.is_idle);
    }
  }
  EXPECT_GT(num_ended, 1000);
  EXPECT_GT(num_full, 100);
}

TEST(PeerAddressTest, NetworkOfAnIpv6AddressIsItsHostsPrefix) {
  EXPECT_EQ(NetworkOf("192.0.2.7"), "192.0.2.7");
  EXPECT_EQ(NetworkOf("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::/64");
  EXPECT_EQ(NetworkOf("2001:db8:1:2::1"), "2001:db8:1:2::/64");
  EXPECT_EQ(NetworkOf("::1"), "::/64");
  EXPECT_EQ(NetworkOf(kUnixNetwork), kUnixNetwork);
  EXPECT_EQ(NetworkOf(""), "");
}

}  // namespace
}  // namespace diffserve
