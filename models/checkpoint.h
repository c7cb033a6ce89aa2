// SPDX-License-Identifier: Apache-2.0
// Checkpoint: all tensors of a model directory, by name. They are in model.safetensors, or in the
// shards that model.safetensors.index.json lists (plain file names inside the directory). The
// limits of a single file, on tensors and header bytes, hold for all files together. A dummy
// checkpoint makes seeded random tensors and reads no file.
//
// Thread safety: one thread, the one that loads the model, except for ReadBytes. Its pool may read
// for it.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/thread_pool.h"
#include "models/load_progress.h"
#include "models/packed_format.h"
#include "models/safetensors.h"
#include "models/weight_digest.h"

namespace diffserve {

// The weight_map of an index file: tensors and the shards that hold them, plain names of files
// beside it, ordered by shard.
Result<std::vector<std::pair<std::string, std::string>>> ReadWeightMap(
    const std::string& index_path);

// A source of weights.
class TensorSource {
 public:
  virtual ~TensorSource() = default;
  virtual bool Has(const std::string& name) const = 0;
  // The tensor, in memory that lives until ReleaseMemory. Error: there is no float tensor with this
  // name, or it cannot be read.
  virtual Result<TensorView> Get(const std::string& name, const std::vector<int64_t>& shape) = 0;
  // The scales [num_rows] of a matrix that is stored in fp8 codes, float32; without data if it is
  // not. Lives as long as what Get returns. REQUIRES: Get has returned the matrix.
  virtual Result<TensorView> ScaleOf(const std::string& /*matrix*/, int64_t /*num_rows*/) {
    return TensorView();
  }
  virtual void ReleaseMemory() = 0;
};

class Checkpoint : public TensorSource {
 public:
  static Result<std::unique_ptr<Checkpoint>> Open(const std::string& model_dir);
  // Values depend only on seed, name and position. Their spread keeps activations and logits in a
  // trained model's range.
  static std::unique_ptr<Checkpoint> Dummy(DType dtype, uint64_t seed);

  // Whether a file holds the tensor; false for a dummy.
  bool Has(const std::string& name) const override { return Find(name) != nullptr; }
  // Names of the files with weights, and of indexes, that are in the directory and are not used:
  // of another model or version, or the same weights once more.
  std::vector<std::string> UnusedFiles() const;
  // Names of all tensors, in order, valid as long as this object; empty for a dummy.
  std::vector<std::string_view> Names() const;
  // The file that holds it. REQUIRES: Has(name).
  const std::string& PathOf(const std::string& name) const {
    return files_[Find(name)->file]->path();
  }
  // Error unless the tensor exists with this shape and dtype: one line with file, tensor, found and
  // expected.
  Status Check(const NamedShape& tensor) const;
  // Bytes of a tensor's data. REQUIRES: Check has accepted it.
  size_t SizeBytes(const NamedShape& tensor) const;
  // Errors: those of Check, those of reading, and a weight that is not finite. fp8 codes become
  // float32: codes times scales.
  Result<TensorView> Get(const std::string& name, const std::vector<int64_t>& shape) override;
  Result<TensorView> ScaleOf(const std::string& matrix, int64_t num_rows) override;
  void ReleaseMemory() override;
  // Reads a tensor's data from byte `begin` on. REQUIRES: Check has accepted it. Several threads
  // may call this at once.
  Status ReadBytes(const std::string& name, size_t begin, std::span<std::byte> out) const;
  // Digests a tensor that ReadBytes has read. REQUIRES: has_digest.
  void DigestRows(const std::string& name, std::span<const RowDigest> rows);

  // Tensors may be F8_E4M3 if NAME_scale is there: one number, or one per row.
  void AllowFp8() { allows_fp8_ = true; }
  bool IsFp8(const std::string& name) const;
  static std::string ScaleName(const std::string& matrix) { return matrix + "_scale"; }

  // The dtype that matrices are rounded to; their weights must be finite in it.
  void KeepMatricesAs(DType dtype) { matrices_kept_as_ = dtype; }
  // Get reads, checks and decodes with the pool's workers. Without a pool the caller's thread does
  // it.
  void ReadWith(ThreadPool& pool) { pool_ = &pool; }
  // Receives the bytes that Get and CountRead count, when their memory is released; may be nullptr.
  void ReportTo(LoadProgress* progress) { progress_ = progress; }
  void CountRead(size_t bytes) { read_bytes_ += bytes; }
  // Receives what Get reads, and what DigestRows is given; may be nullptr.
  void DigestTo(WeightDigest* digest) { digest_ = digest; }
  bool has_digest() const { return digest_ != nullptr; }

 private:
  // A tensor: the file, and its index there.
  struct Located {
    uint32_t file = 0;
    uint32_t index = 0;
  };

  Checkpoint() = default;
  Status AddFile(const std::string& path);
  Status OpenShards(const std::string& model_dir, const std::string& index_path);
  // Fills tensors_ from files_. Error: a tensor is in two files.
  Status SortTensors();
  std::string_view NameOf(const Located& tensor) const {
    return files_[tensor.file]->index().name(tensor.index);
  }
  const Located* Find(std::string_view name) const;
  // What is wrong with the scale of a matrix of fp8 codes. REQUIRES: IsFp8.
  Status CheckScale(const NamedShape& matrix) const;
  // Float32 values of a matrix of fp8 codes.
  Status DecodeFp8(const SafetensorsFile& file, const SafetensorsEntry& entry, TensorView* tensor);
  // Fills `memory`, the memory of `tensor`.
  Status ReadChecked(const SafetensorsFile& file, const SafetensorsEntry& entry,
                     const TensorView& tensor, std::byte* memory) const;
  // Reads the entry piece by piece, each on one of the pool's workers. use(begin, bytes) gets a
  // piece while it is in the worker's cache. Error: that of the first piece with one.
  using UsePiece = std::function<void(size_t begin, std::span<const std::byte> bytes)>;
  Status ReadPieces(const SafetensorsFile& file, const SafetensorsEntry& entry, std::byte* memory,
                    const UsePiece& use) const;
  // Calls body(begin, end) for parts of [0, count), on the pool's workers.
  void ForShares(int count, const std::function<void(int begin, int end)>& body) const;
  // Begins a tensor in the digest, if there is one.
  void BeginDigest(std::string_view name, const SafetensorsEntry& entry) const;
  std::byte* Allocate(size_t size_bytes);

  std::string model_dir_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::vector<Located> tensors_;  // of all files, in name order
  size_t num_tensors_ = 0;
  size_t header_bytes_ = 0;
  // What Allocate has returned since the last ReleaseMemory lies in the first used_bytes_ of kept_,
  // which serves all tensors, and in memory of its own.
  std::vector<std::unique_ptr<std::byte[]>> buffers_;
  std::unique_ptr<std::byte[]> kept_;
  size_t kept_bytes_ = 0, used_bytes_ = 0, wanted_bytes_ = 0;
  ThreadPool* pool_ = nullptr;
  bool dummy_ = false;
  DType dummy_dtype_ = DType::kFloat32;
  uint64_t dummy_seed_ = 0;
  DType matrices_kept_as_ = DType::kFloat32;
  bool allows_fp8_ = false;
  LoadProgress* progress_ = nullptr;
  WeightDigest* digest_ = nullptr;
  size_t read_bytes_ = 0;  // since the last report to progress_
};

}  // namespace diffserve
