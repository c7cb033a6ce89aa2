// SPDX-License-Identifier: Apache-2.0
#include "engine/page_store/host_store.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <future>
#include <numeric>

#include "engine/page_store/store_tier.h"

namespace diffserve {
namespace {

constexpr size_t kUnitBytes = 32;

// Host memory in place of a device's.
class MemoryTransfer : public DeviceTransfer {
 public:
  Result<std::shared_ptr<std::byte>> AllocateHost(size_t size_bytes) override {
    return std::shared_ptr<std::byte>(new std::byte[size_bytes],
                                      std::default_delete<std::byte[]>());
  }
  Status ToHost(std::span<const MemoryCopy> copies) override { return Copy(copies); }
  Status ToDevice(std::span<const MemoryCopy> copies) override {
    if (during_read) during_read();
    return Copy(copies);
  }
  std::function<Status()> MarkSteps() override {
    return [] { return Status(); };
  }

  std::function<void()> during_read;
  Status status;  // of all copies

 private:
  Status Copy(std::span<const MemoryCopy> copies) const {
    for (const MemoryCopy& copy : copies) {
      EXPECT_LE(copy.size_bytes, kUnitBytes);
      std::memcpy(copy.to, copy.from, copy.size_bytes);
    }
    return status;
  }
};

class HostStoreTest : public ::testing::Test {
 protected:
  static RecordKey KeyOf(uint64_t i) { return {i, i, RecordKind::kPage}; }
  static std::vector<int32_t> TokensOf(uint64_t i) { return {static_cast<int32_t>(i)}; }
  static std::vector<uint8_t> PayloadOf(uint64_t i, size_t bytes) {
    std::vector<uint8_t> payload(bytes);
    std::iota(payload.begin(), payload.end(), static_cast<uint8_t>(7 * i));
    return payload;
  }
  // Two parts of unequal size.
  static std::vector<iovec> PartsOf(std::vector<uint8_t>& payload) {
    const size_t first = payload.size() / 3;
    return {{payload.data(), first}, {payload.data() + first, payload.size() - first}};
  }
  Status Append(uint64_t i, size_t bytes = kUnitBytes) {
    std::vector<uint8_t> payload = PayloadOf(i, bytes);
    return store_->Append(KeyOf(i), TokensOf(i), PartsOf(payload));
  }
  // Whether it is there, with the right content.
  bool Read(uint64_t i, size_t bytes = kUnitBytes) {
    std::vector<uint8_t> payload(bytes);
    const Status status = store_->Read(KeyOf(i), TokensOf(i), PartsOf(payload));
    if (!status.ok()) return false;
    EXPECT_EQ(payload, PayloadOf(i, bytes)) << i;
    return true;
  }

  std::shared_ptr<MemoryTransfer> transfer_ = std::make_shared<MemoryTransfer>();
  std::unique_ptr<HostStore> store_ =
      std::move(HostStore::Create(transfer_, 4 * kUnitBytes + 5, kUnitBytes)).value();
};

TEST_F(HostStoreTest, WhatWasUsedLeastRecentlyMakesRoom) {
  EXPECT_EQ(store_->max_bytes(), static_cast<int64_t>(4 * kUnitBytes));
  for (uint64_t i = 0; i < 4; ++i) EXPECT_TRUE(Append(i).ok());
  EXPECT_TRUE(Read(0));
  EXPECT_TRUE(Append(4).ok());
  EXPECT_TRUE(Read(0));
  EXPECT_FALSE(Read(1));
  for (uint64_t i = 2; i < 5; ++i) EXPECT_TRUE(Read(i));
  EXPECT_EQ(store_->num_records(), 4u);
}

TEST_F(HostStoreTest, LargeEntryTakesSeveralUnits) {
  EXPECT_TRUE(Append(1).ok());
  EXPECT_TRUE(Append(2, 3 * kUnitBytes - 5).ok());
  EXPECT_EQ(store_->bytes(), static_cast<int64_t>(4 * kUnitBytes));
  EXPECT_TRUE(Read(1));
  EXPECT_TRUE(Read(2, 3 * kUnitBytes - 5));
  EXPECT_TRUE(Append(3).ok());
  EXPECT_FALSE(Read(1)) << "read before the large one";
  EXPECT_TRUE(Read(2, 3 * kUnitBytes - 5));
  EXPECT_EQ(Append(4, 5 * kUnitBytes).code(), StatusCode::kResourceExhausted);
}

TEST_F(HostStoreTest, EntryThatIsBeingReadKeepsItsMemoryWhenItIsForgotten) {
  for (uint64_t i = 0; i < 4; ++i) EXPECT_TRUE(Append(i).ok());
  transfer_->during_read = [&] {
    store_->Clear();
    EXPECT_EQ(store_->num_records(), 0u);
    EXPECT_EQ(store_->bytes(), static_cast<int64_t>(kUnitBytes));
    for (uint64_t i = 10; i < 13; ++i) EXPECT_TRUE(Append(i).ok());
  };
  EXPECT_TRUE(Read(2));
  transfer_->during_read = nullptr;
  EXPECT_FALSE(Read(2));
  EXPECT_EQ(store_->bytes(), static_cast<int64_t>(3 * kUnitBytes));
}

TEST_F(HostStoreTest, NothingIsEvictedWhileItIsRead) {
  EXPECT_TRUE(Append(1, 4 * kUnitBytes).ok());
  transfer_->during_read = [&] { EXPECT_EQ(Append(2).code(), StatusCode::kResourceExhausted); };
  EXPECT_TRUE(Read(1, 4 * kUnitBytes));
  transfer_->during_read = nullptr;
  EXPECT_TRUE(Append(2).ok());
}

TEST_F(HostStoreTest, FailedCopyStoresNothing) {
  transfer_->status = Status(StatusCode::kInternal, "the device is lost");
  EXPECT_EQ(Append(1).message(), "the device is lost");
  EXPECT_FALSE(store_->Contains(KeyOf(1)));
  EXPECT_EQ(store_->bytes(), 0);
}

TEST_F(HostStoreTest, LoadWaitsForTheStepsThatWereLaunchedBefore) {
  std::vector<uint8_t> memory = PayloadOf(1, kUnitBytes);
  const TierKey key = RootTierKey("1");
  std::promise<void> steps_done, loaded;
  StoreTier tier(
      std::move(store_), [&](const TierEntry&) { return PartsOf(memory); },
      [done = steps_done.get_future().share()] {
        return [done] {
          done.wait();
          return Status();
        };
      });
  std::promise<void> kept;
  tier.OnDone([&] { kept.set_value(); });
  tier.Keep({key, TokensOf(1), 0});
  kept.get_future().wait();
  EXPECT_EQ(tier.TakeDone().size(), 1u);
  std::atomic<bool> steps_run = true;
  transfer_->during_read = [&] { EXPECT_FALSE(steps_run); };
  memory.assign(kUnitBytes, 0xee);
  tier.OnDone([&] { loaded.set_value(); });
  tier.Load(1, {{key, TokensOf(1), 0}});
  steps_run = false;
  steps_done.set_value();
  loaded.get_future().wait();
  EXPECT_EQ(memory, PayloadOf(1, kUnitBytes));
}

}  // namespace
}  // namespace diffserve
