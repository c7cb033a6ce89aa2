// SPDX-License-Identifier: Apache-2.0
// RequestMemory: bytes of requests in memory, by client, and their limit. No client fills it: an
// eighth of what is free is kept for others, as in the waiting queue. Thread safety: RequestMemory
// is used by any thread, a Part of it by one at a time.
#pragma once

#include <cstddef>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

namespace diffserve {

class RequestMemory {
 public:
  explicit RequestMemory(size_t limit) : limit_(limit) {}

  // The bytes of one connection or call. They leave with it.
  class Part {
   public:
    explicit Part(RequestMemory& all) : all_(all) {}
    ~Part() { Set(0); }
    Part(const Part&) = delete;
    Part& operator=(const Part&) = delete;

    // Bytes that are held from now on. False if the client then has more than its share.
    bool Set(size_t bytes) {
      const size_t before = std::exchange(bytes_, bytes);
      return before == bytes || all_.Change(client_, before, bytes);
    }
    void SetClient(std::string client) {
      if (client == client_) return;
      const size_t bytes = bytes_;
      Set(0);
      client_ = std::move(client);
      Set(bytes);
    }
    const std::string& client() const { return client_; }

   private:
    RequestMemory& all_;
    std::string client_;
    size_t bytes_ = 0;
  };

 private:
  // A client's bytes are limited to this multiple of what it leaves to others.
  static constexpr size_t kClientToOthersRatioMax = 7;

  bool Change(const std::string& client, size_t before, size_t now) {
    std::lock_guard lock(mutex_);
    sum_ += now - before;  // may wrap, and wraps back
    const auto own = by_client_.try_emplace(client).first;
    const size_t of_client = own->second += now - before;
    if (of_client == 0) by_client_.erase(own);
    return sum_ <= limit_ && of_client <= kClientToOthersRatioMax * (limit_ - sum_);
  }

  const size_t limit_;
  std::mutex mutex_;
  size_t sum_ = 0;
  std::unordered_map<std::string, size_t> by_client_;  // no zeros
};

}  // namespace diffserve
