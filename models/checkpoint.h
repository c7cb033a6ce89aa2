// Checkpoint: all tensors of a model directory, by name: model.safetensors, or the shards that
// model.safetensors.index.json lists (plain file names inside the directory). What a single file
// may have at most, of tensors and of header bytes, all files together may have. A dummy checkpoint
// makes seeded random tensors and reads no file.
//
// Thread safety: one thread, the one that loads the model, but for ReadBytes.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/load_progress.h"
#include "models/packed_format.h"
#include "models/safetensors.h"

namespace diffserve {

// The weight_map of an index file: tensors and the shards that hold them, plain names of files
// beside it, ordered by shard.
Result<std::vector<std::pair<std::string, std::string>>> ReadWeightMap(
    const std::string& index_path);

// Where weights are read from.
class TensorSource {
 public:
  virtual ~TensorSource() = default;
  virtual bool Has(const std::string& name) const = 0;
  // The tensor, read into memory that lives until ReleaseMemory. Error: there is no such tensor of
  // floats, or it cannot be read.
  virtual Result<TensorView> Get(const std::string& name, const std::vector<int64_t>& shape) = 0;
  virtual void ReleaseMemory() = 0;
};

class Checkpoint : public TensorSource {
 public:
  static Result<std::unique_ptr<Checkpoint>> Open(const std::string& model_dir);
  // Values depend on seed, name and position alone. Their spread keeps activations and logits in a
  // trained model's range.
  static std::unique_ptr<Checkpoint> Dummy(DType dtype, uint64_t seed);

  // Whether a file holds the tensor; false for a dummy.
  bool Has(const std::string& name) const override { return Find(name) != nullptr; }
  // Of all tensors, in their order, valid as long as this; empty for a dummy.
  std::vector<std::string_view> Names() const;
  // The file that holds it. REQUIRES: Has(name).
  const std::string& PathOf(const std::string& name) const {
    return files_[Find(name)->file]->path();
  }
  // Error unless the tensor exists with this shape and dtype: one line naming file, tensor, found
  // and expected.
  Status Check(const NamedShape& tensor) const;
  // Of a tensor's data. REQUIRES: Check has accepted it.
  size_t SizeBytes(const NamedShape& tensor) const;
  // The errors of Check, those of reading, and a weight that is not finite.
  Result<TensorView> Get(const std::string& name, const std::vector<int64_t>& shape) override;
  void ReleaseMemory() override;
  // Reads the bytes from `begin` on of a tensor's data. REQUIRES: Check has accepted it. Any number
  // of threads may call this at a time.
  Status ReadBytes(const std::string& name, size_t begin, std::span<std::byte> out) const;

  // What matrices are rounded to, within which their weights must be finite.
  void KeepMatricesAs(DType dtype) { matrices_kept_as_ = dtype; }
  // Told of all bytes that Get and CountRead count, when their memory is released; may be nullptr.
  void ReportTo(LoadProgress* progress) { progress_ = progress; }
  void CountRead(size_t bytes) { read_bytes_ += bytes; }

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
  // Fills `memory`, which is that of `tensor`.
  Status ReadChecked(const SafetensorsFile& file, const SafetensorsEntry& entry,
                     const TensorView& tensor, std::byte* memory) const;
  std::byte* Allocate(size_t size_bytes);

  std::string model_dir_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::vector<Located> tensors_;  // of all files, in the order of their names
  size_t num_tensors_ = 0;
  size_t header_bytes_ = 0;
  std::vector<std::unique_ptr<std::byte[]>> buffers_;
  bool dummy_ = false;
  DType dummy_dtype_ = DType::kFloat32;
  uint64_t dummy_seed_ = 0;
  DType matrices_kept_as_ = DType::kFloat32;
  LoadProgress* progress_ = nullptr;
  size_t read_bytes_ = 0;  // since progress_ was told
};

}  // namespace diffserve
