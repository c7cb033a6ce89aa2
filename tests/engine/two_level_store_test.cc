// SPDX-License-Identifier: Apache-2.0
#include "engine/page_store/two_level_store.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <random>

#include "engine/page_store/page_store.h"
#include "tests/testing/kernels/temporary_directory.h"

namespace diffserve {
namespace {

// Host memory in place of a device's. It knows which memory is the host's.
class CountedTransfer : public DeviceTransfer {
 public:
  Result<std::shared_ptr<std::byte>> AllocateHost(size_t size_bytes) override {
    host_bytes = size_bytes;
    const std::shared_ptr<std::byte> memory(new std::byte[size_bytes],
                                            std::default_delete<std::byte[]>());
    host = memory.get();
    return memory;
  }
  Status ToHost(std::span<const MemoryCopy> copies) override {
    for (const MemoryCopy& copy : copies) EXPECT_TRUE(IsHost(copy.to) && !IsHost(copy.from));
    return Copy(copies);
  }
  Status ToDevice(std::span<const MemoryCopy> copies) override {
    for (const MemoryCopy& copy : copies) EXPECT_TRUE(IsHost(copy.from) && !IsHost(copy.to));
    return Copy(copies);
  }
  std::function<Status()> MarkSteps() override {
    return [] { return Status(); };
  }
  bool IsHost(const void* at) const {
    return std::greater_equal<const void*>()(at, host) &&
           std::less<const void*>()(at, host + host_bytes);
  }

  std::byte* host = nullptr;
  size_t host_bytes = 0;

 private:
  static Status Copy(std::span<const MemoryCopy> copies) {
    for (const MemoryCopy& copy : copies) std::memcpy(copy.to, copy.from, copy.size_bytes);
    return {};
  }
};

// Files that see only host memory, and where something happens during each call.
class HookedFiles : public EntryStore {
 public:
  HookedFiles(std::unique_ptr<PageStore> files, std::shared_ptr<CountedTransfer> transfer)
      : files_(std::move(files)), transfer_(std::move(transfer)) {}

  bool Contains(const RecordKey& key) const override { return files_->Contains(key); }
  Status Append(const RecordKey& key, std::span<const int32_t> tokens,
                std::span<const iovec> payload) override {
    for (const iovec& part : payload) EXPECT_TRUE(transfer_->IsHost(part.iov_base));
    if (before_append) before_append();
    if (failure.ok()) failure = files_->Append(key, tokens, payload);
    if (after_append) after_append();
    return std::exchange(failure, {});
  }
  Status Read(const RecordKey& key, std::span<const int32_t> tokens,
              std::span<const iovec> payload) override {
    ++num_reads;
    for (const iovec& part : payload) EXPECT_TRUE(transfer_->IsHost(part.iov_base));
    const Status status = files_->Read(key, tokens, payload);
    if (during_read) during_read();
    return status;
  }
  void Erase(const RecordKey& key) override { files_->Erase(key); }
  void Clear() override { files_->Clear(); }
  int64_t bytes() const override { return files_->bytes(); }
  int64_t max_bytes() const override { return files_->max_bytes(); }
  size_t num_records() const override { return files_->num_records(); }

  std::function<void()> before_append, after_append, during_read;
  Status failure;  // of the next Append
  int num_reads = 0;

 private:
  const std::unique_ptr<PageStore> files_;
  const std::shared_ptr<CountedTransfer> transfer_;
};

class TwoLevelStoreTest : public ::testing::Test {
 protected:
  static constexpr size_t kUnit = 5000, kUnits = 12;
  using Bytes = std::vector<std::byte>;

  static RecordKey KeyOf(uint64_t i) { return {i, i * 3, RecordKind::kPage}; }
  static std::vector<int32_t> TokensOf(uint64_t i) { return {static_cast<int32_t>(i)}; }
  // Every third entry takes two units.
  static Bytes PayloadOf(uint64_t i) {
    std::mt19937 random(static_cast<unsigned>(i));
    Bytes payload(i % 3 == 0 ? 2 * kUnit - 7 : kUnit);
    for (std::byte& byte : payload) byte = static_cast<std::byte>(random());
    return payload;
  }
  static std::vector<iovec> PartsOf(Bytes& payload) {
    return {{payload.data(), 100}, {payload.data() + 100, payload.size() - 100}};
  }

  void Open() {
    store_.reset();
    Result<std::unique_ptr<PageStore>> files = PageStore::Open(
        {.directory = directory_.path() / "cache", .max_bytes = 16 << 20});
    ASSERT_TRUE(files.ok()) << files.status().message();
    auto hooked = std::make_unique<HookedFiles>(std::move(files).value(), transfer_);
    files_ = hooked.get();
    store_ = std::make_unique<TwoLevelStore>(
        std::move(HostStore::Create(transfer_, kUnits * kUnit, kUnit)).value(), std::move(hooked));
  }
  void SetUp() override { Open(); }

  Status Append(uint64_t i) {
    Bytes payload = PayloadOf(i);
    return store_->Append(KeyOf(i), TokensOf(i), PartsOf(payload));
  }
  void WriteAll() {
    while (const std::optional<Status> status = store_->WriteBehind()) EXPECT_TRUE(status->ok());
    EXPECT_FALSE(store_->HasUnwritten());
  }
  // What is read has the right bytes.
  bool Read(uint64_t i) {
    Bytes payload = PayloadOf(i);
    const Bytes expected = std::exchange(payload, Bytes(payload.size()));
    const Status status = store_->Read(KeyOf(i), TokensOf(i), PartsOf(payload));
    EXPECT_TRUE(!status.ok() || payload == expected) << i;
    return status.ok();
  }

  const TemporaryDirectory directory_;
  const std::shared_ptr<CountedTransfer> transfer_ = std::make_shared<CountedTransfer>();
  HookedFiles* files_ = nullptr;
  std::unique_ptr<TwoLevelStore> store_;
};

TEST_F(TwoLevelStoreTest, EntryIsReadFromHostMemoryAndLaterFromFiles) {
  ASSERT_TRUE(Append(1).ok());
  EXPECT_TRUE(store_->HasUnwritten());
  EXPECT_FALSE(files_->Contains(KeyOf(1)));
  EXPECT_TRUE(Read(1));
  WriteAll();
  EXPECT_TRUE(files_->Contains(KeyOf(1)));
  for (uint64_t i = 2; i < 20; ++i) ASSERT_TRUE(Append(i).ok());
  EXPECT_EQ(files_->num_reads, 0);
  EXPECT_TRUE(Read(1));
  EXPECT_EQ(files_->num_reads, 1);
  EXPECT_TRUE(Read(1));
  EXPECT_EQ(files_->num_reads, 1) << "it is in host memory again";
}

TEST_F(TwoLevelStoreTest, NothingIsLostWhenAppendsOutrunWrites) {
  for (uint64_t i = 0; i < 50; ++i) {
    ASSERT_TRUE(Append(i).ok());
    EXPECT_GE(files_->num_records() + kUnits / 2, i) << "half of host memory waits at most";
  }
  for (uint64_t i = 0; i < 50; ++i) EXPECT_TRUE(Read(i)) << i;
  WriteAll();
  EXPECT_EQ(files_->num_records(), 50u);
}

TEST_F(TwoLevelStoreTest, NextProcessFindsWhatWasWritten) {
  for (uint64_t i = 0; i < 4; ++i) ASSERT_TRUE(Append(i).ok());
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(store_->WriteBehind().has_value());
  Open();
  EXPECT_EQ(store_->num_records(), 2u);
  for (uint64_t i = 0; i < 4; ++i) EXPECT_EQ(Read(i), i < 2) << i;
}

TEST_F(TwoLevelStoreTest, ForgottenEntryIsNotWritten) {
  ASSERT_TRUE(Append(1).ok());
  ASSERT_TRUE(Append(2).ok());
  store_->Erase(KeyOf(1));
  EXPECT_FALSE(store_->Contains(KeyOf(1)));
  WriteAll();
  EXPECT_EQ(files_->num_records(), 1u);
  ASSERT_TRUE(Append(4).ok());
  store_->Clear();
  EXPECT_FALSE(store_->HasUnwritten());
  for (uint64_t i = 1; i < 5; ++i) EXPECT_FALSE(Read(i));
  for (uint64_t i = 10; i < 40; ++i) ASSERT_TRUE(Append(i).ok());  // all of host memory is free
  EXPECT_TRUE(Read(39));
}

TEST_F(TwoLevelStoreTest, EntryThatIsForgottenWhileItIsWrittenIsGone) {
  for (const bool clears : {false, true}) {
    ASSERT_TRUE(Append(1).ok());
    files_->before_append = [&] { clears ? store_->Clear() : store_->Erase(KeyOf(1)); };
    files_->after_append = [&] {
      EXPECT_TRUE(files_->Contains(KeyOf(1)));
      EXPECT_FALSE(store_->Contains(KeyOf(1)));
      EXPECT_FALSE(Read(1));
    };
    EXPECT_TRUE(store_->WriteBehind().has_value());
    files_->before_append = files_->after_append = nullptr;
    EXPECT_FALSE(Read(1));
    EXPECT_FALSE(files_->Contains(KeyOf(1)));
  }
}

TEST_F(TwoLevelStoreTest, EntryThatIsForgottenWhileItIsReadStaysForgotten) {
  ASSERT_TRUE(Append(1).ok());
  WriteAll();
  Open();
  files_->during_read = [&] { store_->Clear(); };
  EXPECT_TRUE(Read(1)) << "it was there when the read began";
  files_->during_read = nullptr;
  EXPECT_FALSE(store_->Contains(KeyOf(1)));
}

TEST_F(TwoLevelStoreTest, FailedWriteIsReportedAndTheEntryStaysInHostMemory) {
  ASSERT_TRUE(Append(1).ok());
  files_->failure = Status(StatusCode::kInternal, "the disk is full");
  EXPECT_EQ(store_->WriteBehind()->message(), "the disk is full");
  EXPECT_FALSE(store_->HasUnwritten());
  EXPECT_TRUE(Read(1));
  files_->failure = Status(StatusCode::kInternal, "the disk is full");
  Status status;
  uint64_t i = 2;
  while (status.ok() && i < 50) status = Append(i++);
  EXPECT_EQ(status.message(), "the disk is full") << "an append that had to write says so";
  EXPECT_TRUE(Read(i - 1));
}

}  // namespace
}  // namespace diffserve
