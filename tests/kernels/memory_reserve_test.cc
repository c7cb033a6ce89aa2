// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/memory_reserve.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

namespace diffserve {
namespace {

class MemoryReserveTest : public ::testing::Test {
 protected:
  MemoryReserveTest() { EXPECT_TRUE(FillMemoryReserve()); }
  ~MemoryReserveTest() override { DropMemoryReserve(); }
};

TEST_F(MemoryReserveTest, ASmallAllocationGetsSomeAndMemoryIsShortUntilItIsFullAgain) {
  const uint64_t shortages = NumMemoryShortages();
  EXPECT_FALSE(MemoryIsShort());
  EXPECT_EQ(NumMemoryReservePieces(), kMemoryReservePieces);
  EXPECT_TRUE(GiveFromMemoryReserve(1));
  EXPECT_TRUE(MemoryIsShort());
  EXPECT_LT(NumMemoryReservePieces(), kMemoryReservePieces);
  EXPECT_TRUE(GiveFromMemoryReserve(kSmallAllocationBytes));
  EXPECT_EQ(NumMemoryShortages(), shortages + 1) << "it is one shortage";
  EXPECT_TRUE(FillMemoryReserve());
  EXPECT_FALSE(MemoryIsShort());
  EXPECT_EQ(NumMemoryReservePieces(), kMemoryReservePieces);
}

TEST_F(MemoryReserveTest, ALargeAllocationGetsSomeOnAThreadThatWorksForAllAlone) {
  EXPECT_FALSE(GiveFromMemoryReserve(kSmallAllocationBytes + 1));
  EXPECT_FALSE(MemoryIsShort());
  {
    const WorksForAllRequests here;
    {
      const WorksForAllRequests nested;
    }
    EXPECT_TRUE(GiveFromMemoryReserve(8 * kSmallAllocationBytes));
    EXPECT_LE(NumMemoryReservePieces(), kMemoryReservePieces - 8);
  }
  EXPECT_FALSE(GiveFromMemoryReserve(kSmallAllocationBytes + 1));
}

TEST_F(MemoryReserveTest, APieceIsMemoryLikeAnyAndThereAreSoMany) {
  EXPECT_EQ(TakeMemoryReservePiece(2 * kSmallAllocationBytes), nullptr);
  int taken = 0;
  for (; void* const piece = TakeMemoryReservePiece(kSmallAllocationBytes); ++taken)
    std::free(piece);
  EXPECT_EQ(taken, kMemoryReservePieces);
  EXPECT_FALSE(GiveFromMemoryReserve(1)) << "it is empty";
}

TEST_F(MemoryReserveTest, MappedMemoryIsGivenUntilThereIsNone) {
  EXPECT_FALSE(UnmapFromMemoryReserve(size_t{1} << 30)) << "more than it could help";
  int given = 0;
  while (given < 1000 && UnmapFromMemoryReserve(4096)) ++given;
  EXPECT_GT(given, 0);
  EXPECT_LT(given, 1000);
  EXPECT_TRUE(MemoryIsShort());
}

TEST(MemoryReserveAbsentTest, WithoutReserveNothingIsGivenOrShort) {
  EXPECT_FALSE(GiveFromMemoryReserve(1));
  EXPECT_EQ(TakeMemoryReservePiece(1), nullptr);
  EXPECT_FALSE(MemoryIsShort());
}

TEST(RequireMemoryTest, ThrowsIfSoMuchCannotBeHad) {
  EXPECT_NO_THROW(RequireMemory(1 << 20));
  EXPECT_THROW(RequireMemory(size_t{1} << 60), std::bad_alloc);
}

}  // namespace
}  // namespace diffserve
