// SPDX-License-Identifier: Apache-2.0
// SafetensorsWriter: writes a checkpoint's tensors to files of a directory, in the given order:
// model.safetensors, or shards model-00001-of-00003.safetensors with model.safetensors.index.json.
// When Create has returned, headers are complete and files have their final length. So a reader can
// check names and shapes before any data is written.
//
// Thread safety: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/dtype.h"
#include "kernels/base/status.h"
#include "models/convert/output_file.h"

namespace diffserve {

struct OutputTensor {
  std::string name;  // printable ASCII without space, quote and backslash
  std::optional<DType> dtype = DType::kFloat32;  // nullopt: bytes (U8)
  std::vector<int64_t> shape;

  uint64_t size_bytes() const;
};

class SafetensorsWriter {
 public:
  static constexpr size_t kMaxShards = 4096;  // the reader's limit

  // A file holds at most max_shard_bytes of tensors, unless a single tensor is larger. `dir`
  // contains none of the files. Error: one that cannot be written, or more than kMaxShards (param:
  // "max_shard_bytes").
  static Result<std::unique_ptr<SafetensorsWriter>> Create(const std::string& dir,
                                                           const std::vector<OutputTensor>& tensors,
                                                           uint64_t max_shard_bytes);

  // Appends the next bytes of the tensors' data, in portions of any size. REQUIRES: no more in all
  // than the tensors have.
  Status Append(std::span<const std::byte> bytes);
  // REQUIRES: every byte has been appended.
  Status Close();

  size_t num_files() const { return shards_.size(); }
  uint64_t total_bytes() const { return total_bytes_; }  // of all tensors

 private:
  struct Shard {
    std::string path;
    std::vector<OutputTensor> tensors;
    uint64_t data_begin = 0;  // offset in the file
    uint64_t data_bytes = 0;
  };

  SafetensorsWriter() = default;
  void Divide(const std::vector<OutputTensor>& tensors, uint64_t max_shard_bytes);
  static Status WriteHeader(Shard& shard);
  Status WriteIndex(const std::string& dir) const;
  Status NextShard();

  std::vector<Shard> shards_;
  uint64_t total_bytes_ = 0;
  size_t current_ = 0;                // shard being written
  uint64_t appended_ = 0;             // bytes of its data so far
  std::unique_ptr<OutputFile> file_;  // null between shards
};

}  // namespace diffserve
