// SPDX-License-Identifier: Apache-2.0
// Buffer: zeros of any size, aligned; a large one takes memory only where it is written.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/base/tensor.h"

namespace diffserve {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

size_t ResidentBytes(Buffer& buffer) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> present((buffer.size_bytes() + page - 1) / page);
  EXPECT_EQ(mincore(buffer.data(), buffer.size_bytes(), present.data()), 0);
  return page * static_cast<size_t>(std::count_if(present.begin(), present.end(),
                                                  [](unsigned char p) { return (p & 1) != 0; }));
}

TEST(BufferTest, IsAlignedZeroAndWritableToItsLastByteAtEverySize) {
  for (const size_t size : {size_t{1}, size_t{63}, size_t{64}, size_t{4097}, kHugePage - 1,
                            kHugePage, kHugePage + 1, 5 * kHugePage - 3}) {
    for (int round = 0; round < 3; ++round) {  // values from an earlier buffer must not reappear
      Buffer buffer(size);
      ASSERT_EQ(buffer.size_bytes(), size);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % (size >= kHugePage ? kHugePage : 64),
                0u)
          << size;
      const auto* bytes = buffer.as<unsigned char>();
      EXPECT_TRUE(std::all_of(bytes, bytes + size, [](unsigned char byte) { return byte == 0; }))
          << size;
      std::fill_n(buffer.as<unsigned char>(), size, 0xab);
      EXPECT_EQ(bytes[size - 1], 0xab);
    }
  }
}

TEST(BufferTest, MovesItsMemoryWithoutTouchingIt) {
  for (const size_t size : {size_t{100}, 3 * kHugePage}) {
    Buffer first(size), second;
    first.as<char>()[size - 1] = 'x';
    const void* const place = first.data();
    second = std::move(first);
    EXPECT_EQ(second.data(), place);
    EXPECT_EQ(second.as<char>()[size - 1], 'x');
    Buffer third(std::move(second));
    EXPECT_EQ(third.as<char>()[size - 1], 'x');
    third = Buffer(2 * size);
    EXPECT_EQ(third.as<char>()[2 * size - 1], 0);
  }
}

TEST(BufferTest, LargeBufferTakesMemoryOnlyWhereItIsWritten) {
  Buffer buffer(64 * kHugePage);
  EXPECT_EQ(ResidentBytes(buffer), 0u);
  buffer.as<char>()[10 * kHugePage + 5] = 1;
  EXPECT_GT(ResidentBytes(buffer), 0u);
  EXPECT_LE(ResidentBytes(buffer), kHugePage);
}

}  // namespace
}  // namespace diffserve
