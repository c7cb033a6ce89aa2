// SPDX-License-Identifier: Apache-2.0
// WeightDigest: a digest of the weights that a model is made of. It is taken of the bytes in memory
// as they are read, so it is that of the model that runs, whatever happened to the files meanwhile.
//
// Thread safety: one thread, the one that loads the model. DigestOf: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace diffserve {

// XXH3 of 128 bits of a row of a tensor that several threads read.
struct RowDigest {
  uint64_t high = 0, low = 0;
};
RowDigest DigestOf(std::span<const std::byte> row);

class WeightDigest {
 public:
  WeightDigest();
  ~WeightDigest();
  WeightDigest(const WeightDigest&) = delete;
  WeightDigest& operator=(const WeightDigest&) = delete;

  // The tensors in the order in which they are read: each begins, and then come its bytes, in any
  // pieces, or the digests of all its rows.
  void BeginTensor(std::string_view name, std::string_view dtype,
                   const std::vector<int64_t>& shape);
  void AddBytes(std::span<const std::byte> bytes);
  void AddRows(std::span<const RowDigest> rows);
  // 32 hexadecimal digits.
  std::string Text() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace diffserve
