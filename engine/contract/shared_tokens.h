// SPDX-License-Identifier: Apache-2.0
// SharedTokens: an immutable list of token ids. Copies share one memory, so a prompt is stored once
// for all its continuations and all threads. Thread safety: const; the last copy frees the memory.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace diffserve {

class SharedTokens {
 public:
  SharedTokens() : SharedTokens(std::vector<int32_t>()) {}
  SharedTokens(std::initializer_list<int32_t> ids) : SharedTokens(std::vector<int32_t>(ids)) {}
  SharedTokens(std::vector<int32_t> ids)
      : ids_(std::make_shared<const std::vector<int32_t>>(std::move(ids))) {}

  size_t size() const { return ids_->size(); }
  bool empty() const { return ids_->empty(); }
  int32_t operator[](size_t i) const { return (*ids_)[i]; }
  auto begin() const { return ids_->begin(); }
  auto end() const { return ids_->end(); }
  const std::vector<int32_t>& ids() const { return *ids_; }
  operator std::span<const int32_t>() const { return *ids_; }

 private:
  std::shared_ptr<const std::vector<int32_t>> ids_;
};

}  // namespace diffserve
