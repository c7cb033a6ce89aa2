// SPDX-License-Identifier: Apache-2.0
#include "server/api/door/nearest_name.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace diffserve {
namespace {

std::string RandomWord(std::mt19937& random) {
  std::string word(random() % 7, ' ');
  for (char& c : word) c = static_cast<char>('a' + random() % 3);
  return word;
}

// By the definition, without a table.
int PlainDistance(std::string_view a, std::string_view b) {
  if (a.empty() || b.empty()) return static_cast<int>(a.size() + b.size());
  const std::string_view a1 = a.substr(1), b1 = b.substr(1);
  int least = std::min(PlainDistance(a1, b), PlainDistance(a, b1)) + 1;
  least = std::min(least, PlainDistance(a1, b1) + (a[0] != b[0]));
  if (a.size() > 1 && b.size() > 1 && a[0] == b[1] && a[1] == b[0])
    least = std::min(least, PlainDistance(a.substr(2), b.substr(2)) + 1);
  return least;
}

TEST(NearestNameTest, DistancesMatchTheDefinition) {
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    const std::string a = RandomWord(random), b = RandomWord(random);
    EXPECT_EQ(EditDistance(a, b), PlainDistance(a, b)) << a << " " << b;
  }
}

TEST(NearestNameTest, NearestWithinTheBoundIsFound) {
  const std::vector<std::string_view> names = {"serve", "generate", "bench", "--port",
                                               "--grpc-port"};
  EXPECT_EQ(NearestName("serv", names), "serve");
  EXPECT_EQ(NearestName("sevre", names), "serve");
  EXPECT_EQ(NearestName("genrate", names), "generate");
  EXPECT_EQ(NearestName("--prot", names), "--port");
  EXPECT_EQ(NearestName("-grpcport", names), "--grpc-port");
  EXPECT_EQ(NearestName("port", names), "--port") << "dashes count for nothing";
}

TEST(NearestNameTest, DistantNameHasNoSuggestion) {
  const std::vector<std::string_view> names = {"serve", "--port"};
  for (const char* far : {"", "-", "--", "s", "xy", "launch", "sxrvx", "potato"})
    EXPECT_EQ(NearestName(far, names), std::nullopt) << far;
  EXPECT_EQ(NearestName("serve", {}), std::nullopt);
  EXPECT_EQ(NearestName(std::string(100'000, 's'), names), std::nullopt);
}

TEST(NearestNameTest, FirstOfTwoEquallyNearNamesIsFound) {
  const std::vector<std::string_view> names = {"top-k", "top-p"};
  EXPECT_EQ(NearestName("top-x", names), "top-k");
}

}  // namespace
}  // namespace diffserve
