// SPDX-License-Identifier: Apache-2.0
#include "models/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <mutex>

#include "kernels/base/refusal.h"
#include "kernels/ops/weight_codec.h"
#include "kernels/process/check.h"
#include "models/config_reader.h"
#include "models/dummy_weights.h"
#include "models/finite_check.h"
#include "models/model_directory.h"

namespace diffserve {
namespace {

constexpr size_t kMaxIndexBytes = size_t{16} << 20;
constexpr size_t kMaxShards = 4096;
constexpr size_t kCheckedPieceBytes = size_t{1} << 20;  // read and checked while it is in L2
// Memory that is kept from tensor to tensor: new memory costs about as much as reading from the
// page cache into it.
constexpr size_t kKeptBytesMax = size_t{512} << 20;
constexpr size_t kAllocationUnit = 64;
constexpr char kFp8Name[] = "F8_E4M3";
constexpr char kSingleName[] = "model.safetensors", kIndexName[] = "model.safetensors.index.json";

// A shard must be in the model directory itself: a plain file name, which also appears in error
// lines.
bool IsPlainFileName(const std::string& name) {
  return !name.empty() && name.size() <= 255 && name != "." && name != ".." &&
         std::ranges::all_of(name,
                             [](char c) { return c >= 0x20 && c < 0x7f && c != '/' && c != '\\'; });
}

std::string ShapeString(const std::vector<int64_t>& shape) {
  return TensorView{nullptr, DType::kFloat32, shape}.ShapeString();
}

}  // namespace

Result<std::vector<std::pair<std::string, std::string>>> ReadWeightMap(
    const std::string& index_path) {
  Result<ConfigReader> index = ConfigReader::Open(index_path, kMaxIndexBytes);
  if (!index.ok()) return index.status();
  std::optional<ConfigReader> weight_map = index->Object("weight_map");
  if (!weight_map) index->Refuse("weight_map", "an object of tensor names and file names");
  DS_RETURN_IF_ERROR(index->status());
  std::vector<std::pair<std::string, std::string>> places = weight_map->StringMembers();
  DS_RETURN_IF_ERROR(index->status());
  for (const auto& [tensor, shard] : places) {
    if (IsPlainFileName(shard)) continue;
    weight_map->Refuse(tensor, "a plain file name: shards must lie in the model directory");
    return index->status();
  }

  std::ranges::stable_sort(places, {}, &std::pair<std::string, std::string>::second);
  size_t num_shards = 0;
  for (size_t i = 0; i < places.size(); ++i)
    num_shards += i == 0 || places[i].second != places[i - 1].second;
  if (num_shards == 0 || num_shards > kMaxShards) {
    return NotAllowed(index_path + ": weight_map names " + std::to_string(num_shards) + " files",
                      RangeText(1, kMaxShards));
  }
  return places;
}

Result<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& model_dir) {
  std::unique_ptr<Checkpoint> checkpoint(new Checkpoint());
  checkpoint->model_dir_ = model_dir;
  const std::filesystem::path dir(model_dir);
  const std::string single = (dir / kSingleName).string();
  const std::string index = (dir / kIndexName).string();
  // A dangling link counts as present: the error of opening it says more than "missing".
  const auto is_there = [](const std::string& path) {
    std::error_code ignored;
    return std::filesystem::symlink_status(path, ignored).type() !=
           std::filesystem::file_type::not_found;
  };
  if (is_there(single)) {
    DS_RETURN_IF_ERROR(checkpoint->AddFile(single));
  } else if (is_there(index)) {
    DS_RETURN_IF_ERROR(checkpoint->OpenShards(model_dir, index));
  } else {
    return InvalidArgument(model_dir +
                           ": holds neither model.safetensors nor model.safetensors.index.json" +
                           DescribeOtherContents(model_dir));
  }
  DS_RETURN_IF_ERROR(checkpoint->SortTensors());
  return checkpoint;
}

Status Checkpoint::AddFile(const std::string& path) {
  Result<std::unique_ptr<SafetensorsFile>> file = SafetensorsFile::Open(path);
  if (!file.ok()) return file.status();
  num_tensors_ += (*file)->index().size();
  header_bytes_ += (*file)->header_bytes();
  files_.push_back(std::move(file).value());
  if (num_tensors_ > SafetensorsFile::kMaxTensors) {
    return NotAllowed(path + ": is a shard with too many tensors",
                      "at most " + std::to_string(SafetensorsFile::kMaxTensors) + " in all");
  }
  if (files_.size() > 1 && header_bytes_ > SafetensorsFile::kMaxHeaderBytes) {
    return NotAllowed(path + ": is a shard with too many header bytes",
                      "at most " + std::to_string(SafetensorsFile::kMaxHeaderBytes) + " in all");
  }
  return Status();
}

Status Checkpoint::OpenShards(const std::string& model_dir, const std::string& index_path) {
  const auto places = ReadWeightMap(index_path);
  if (!places.ok()) return places.status();
  // Each shard must hold what the index says before the next is opened. So names that link to one
  // file many times are refused early.
  std::string_view opened;
  for (const auto& [tensor, shard] : *places) {
    if (shard != opened) {
      const Status added = AddFile((std::filesystem::path(model_dir) / shard).string());
      if (added.code() == StatusCode::kNotFound)
        return InvalidArgument(added.message() + ", but " + index_path + " names it");
      DS_RETURN_IF_ERROR(added);
    }
    opened = shard;
    const SafetensorsIndex& inside = files_.back()->index();
    if (inside.Find(tensor) == inside.size()) {
      return InvalidArgument(files_.back()->path() + ": tensor " + ConfigReader::OneLine(tensor) +
                             " is missing, but " + index_path + " says it is there");
    }
  }
  return Status();
}

Status Checkpoint::SortTensors() {
  tensors_.reserve(num_tensors_);
  for (uint32_t file = 0; file < files_.size(); ++file) {
    for (uint32_t i = 0; i < files_[file]->index().size(); ++i) tensors_.push_back({file, i});
  }
  if (files_.size() == 1) return Status();
  std::ranges::sort(tensors_, {}, [this](const Located& tensor) {
    return std::pair(NameOf(tensor), tensor.file);
  });
  for (size_t i = 1; i < tensors_.size(); ++i) {
    if (NameOf(tensors_[i]) != NameOf(tensors_[i - 1])) continue;
    return InvalidArgument(files_[tensors_[i].file]->path() + ": tensor " +
                           std::string(NameOf(tensors_[i])) + " is also in " +
                           files_[tensors_[i - 1].file]->path());
  }
  return Status();
}

std::vector<std::string> Checkpoint::UnusedFiles() const {
  if (dummy_) return {};
  std::vector<std::string> names = WeightFilesIn(model_dir_);
  const auto is_opened = [this](const std::string& name) {
    const std::string path = (std::filesystem::path(model_dir_) / name).string();
    return std::ranges::any_of(files_, [&](const auto& file) { return file->path() == path; });
  };
  std::erase_if(names, [&](const std::string& name) {
    return is_opened(name) || (name == kIndexName && !is_opened(kSingleName));
  });
  return names;
}

const Checkpoint::Located* Checkpoint::Find(std::string_view name) const {
  const auto found = std::ranges::lower_bound(
      tensors_, name, {}, [this](const Located& tensor) { return NameOf(tensor); });
  return found != tensors_.end() && NameOf(*found) == name ? &*found : nullptr;
}

std::vector<std::string_view> Checkpoint::Names() const {
  std::vector<std::string_view> names;
  for (const Located& tensor : tensors_) names.push_back(NameOf(tensor));
  return names;
}

std::unique_ptr<Checkpoint> Checkpoint::Dummy(DType dtype, uint64_t seed) {
  std::unique_ptr<Checkpoint> checkpoint(new Checkpoint());
  checkpoint->dummy_ = true;
  checkpoint->dummy_dtype_ = dtype;
  checkpoint->dummy_seed_ = seed;
  return checkpoint;
}

Status Checkpoint::Check(const NamedShape& tensor) const {
  if (dummy_) return Status();
  const auto& [name, shape, dtype] = tensor;
  const Located* found = Find(name);
  if (found == nullptr) {
    const std::string& where = files_.size() == 1 ? files_.front()->path() : model_dir_;
    return NotAllowed(where + ": tensor " + name + " is missing", "shape " + ShapeString(shape));
  }
  const SafetensorsFile& file = *files_[found->file];
  const SafetensorsEntry entry = file.index().entry(found->index);
  if (entry.shape != shape) {
    return NotAllowed(file.path() + ": tensor " + name + " has shape " + ShapeString(entry.shape),
                      ShapeString(shape) + " from config.json");
  }
  if (dtype.empty() && IsFp8(name)) return CheckScale(tensor);
  const bool is_expected = dtype.empty() ? entry.is_float : entry.dtype_name == dtype;
  if (is_expected) return Status();
  return NotAllowed(file.path() + ": tensor " + name + " has dtype " + entry.dtype_name,
                    dtype.empty() ? "F32, BF16, F16" : dtype);
}

size_t Checkpoint::SizeBytes(const NamedShape& tensor) const {
  if (dummy_) {
    const TensorView view{nullptr, dummy_dtype_, tensor.shape};
    return static_cast<size_t>(view.num_elements()) * SizeOf(dummy_dtype_);
  }
  const Located& found = *Find(tensor.name);
  const SafetensorsEntry entry = files_[found.file]->index().entry(found.index);
  return entry.end - entry.begin;
}

Result<TensorView> Checkpoint::Get(const std::string& name, const std::vector<int64_t>& shape) {
  const NamedShape tensor{name, shape};
  DS_RETURN_IF_ERROR(Check(tensor));
  CountRead(SizeBytes(tensor));
  TensorView view{nullptr, dummy_dtype_, shape, "tensor " + name};
  if (dummy_) {
    std::byte* memory = Allocate(static_cast<size_t>(view.num_elements()) * SizeOf(dummy_dtype_));
    FillDummyTensor(name, dummy_seed_, dummy_dtype_, view.num_elements(), memory, pool_);
    view.data = memory;
    return view;
  }
  const Located& found = *Find(name);
  const SafetensorsFile& file = *files_[found.file];
  const SafetensorsEntry entry = file.index().entry(found.index);
  view.name = file.path() + ": tensor " + name;
  if (IsFp8(name)) {
    DS_RETURN_IF_ERROR(DecodeFp8(file, entry, &view));
    return view;
  }
  std::byte* memory = Allocate(entry.end - entry.begin);
  view.dtype = entry.dtype;
  view.data = memory;
  BeginDigest(name, entry);
  DS_RETURN_IF_ERROR(ReadChecked(file, entry, view, memory));
  return view;
}

bool Checkpoint::IsFp8(const std::string& name) const {
  if (!allows_fp8_) return false;
  const Located* found = Find(name);
  return found != nullptr &&
         files_[found->file]->index().entry(found->index).dtype_name == kFp8Name;
}

Status Checkpoint::CheckScale(const NamedShape& matrix) const {
  const std::string name = ScaleName(matrix.name);
  const Located* found = Find(name);
  if (found == nullptr) {
    return InvalidArgument(PathOf(matrix.name) + ": tensor " + matrix.name + " has dtype " +
                           kFp8Name + ", and " + name + " is missing");
  }
  const SafetensorsFile& file = *files_[found->file];
  const SafetensorsEntry entry = file.index().entry(found->index);
  const TensorView view{nullptr, entry.dtype, entry.shape};
  const int64_t num_rows = matrix.shape[0], count = view.num_elements();
  if (!entry.is_float || (count != 1 && (count != num_rows || entry.shape[0] != num_rows))) {
    return NotAllowed(file.path() + ": tensor " + name + " has dtype " + entry.dtype_name +
                          " and shape " + ShapeString(entry.shape),
                      "a float type and 1 or " + std::to_string(num_rows) + " elements");
  }
  return Status();
}

Result<TensorView> Checkpoint::ScaleOf(const std::string& matrix, int64_t num_rows) {
  if (dummy_ || !IsFp8(matrix)) return TensorView();
  const std::string name = ScaleName(matrix);
  const Located& found = *Find(name);
  const SafetensorsEntry entry = files_[found.file]->index().entry(found.index);
  const Result<TensorView> stored = Get(name, entry.shape);
  if (!stored.ok()) return stored.status();
  TensorView scale{nullptr, DType::kFloat32, {num_rows}, stored->name};
  auto* values = reinterpret_cast<float*>(Allocate(static_cast<size_t>(num_rows) * sizeof(float)));
  for (int64_t row = 0; row < num_rows; ++row) {
    values[row] = stored->At(stored->num_elements() == 1 ? 0 : row);
    if (values[row] >= 0) continue;
    return NotAllowed(
        stored->name + ": element [" + std::to_string(row) + "] is " + std::to_string(values[row]),
        "0 or more");
  }
  scale.data = values;
  return scale;
}

Status Checkpoint::DecodeFp8(const SafetensorsFile& file, const SafetensorsEntry& entry,
                             TensorView* tensor) {
  const int64_t rows = tensor->shape[0];
  const std::string matrix = tensor->name.substr(tensor->name.rfind(' ') + 1);
  const Result<TensorView> scale = ScaleOf(matrix, rows);
  if (!scale.ok()) return scale.status();
  const size_t count = entry.end - entry.begin, width = count / static_cast<size_t>(rows);
  std::byte* const codes = Allocate(count);
  auto* const values = reinterpret_cast<float*>(Allocate(count * sizeof(float)));
  FiniteCheck all(DType::kFloat32, matrices_kept_as_);
  std::mutex mutex;  // of `all`
  BeginDigest(matrix, entry);
  DS_RETURN_IF_ERROR(
      ReadPieces(file, entry, codes, [&](size_t begin, std::span<const std::byte> bytes) {
        const auto piece = std::span(values, count).subspan(begin, bytes.size());
        const auto* const scales = static_cast<const float*>(scale->data);
        for (size_t i = 0; i < bytes.size();) {
          const size_t row = (begin + i) / width;
          const size_t end = std::min(bytes.size(), (row + 1) * width - begin);
          for (; i < end; ++i)
            piece[i] = Fp8WeightCodec::Decode(std::to_integer<uint8_t>(bytes[i]), scales[row]);
        }
        FiniteCheck check(DType::kFloat32, matrices_kept_as_);
        check.Add(static_cast<int64_t>(begin), std::as_bytes(piece));
        const std::lock_guard lock(mutex);
        all.Add(check);
      }));
  tensor->dtype = DType::kFloat32;
  tensor->data = values;
  return all.status(*tensor);
}

Status Checkpoint::ReadChecked(const SafetensorsFile& file, const SafetensorsEntry& entry,
                               const TensorView& tensor, std::byte* memory) const {
  const DType kept_as = tensor.shape.size() > 1 ? matrices_kept_as_ : DType::kFloat32;
  FiniteCheck all(tensor.dtype, kept_as);
  std::mutex mutex;  // of `all`
  DS_RETURN_IF_ERROR(
      ReadPieces(file, entry, memory, [&](size_t begin, std::span<const std::byte> bytes) {
        FiniteCheck check(tensor.dtype, kept_as);
        check.Add(static_cast<int64_t>(begin / SizeOf(tensor.dtype)), bytes);
        const std::lock_guard lock(mutex);
        all.Add(check);
      }));
  return all.status(tensor);
}

Status Checkpoint::ReadPieces(const SafetensorsFile& file, const SafetensorsEntry& entry,
                              std::byte* memory, const UsePiece& use) const {
  const size_t size = entry.end - entry.begin;
  const size_t num_pieces = (size + kCheckedPieceBytes - 1) / kCheckedPieceBytes;
  std::vector<Status> statuses(num_pieces);
  ForShares(static_cast<int>(num_pieces), [&](int begin, int end) {
    for (size_t i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      const size_t first = i * kCheckedPieceBytes;
      SafetensorsEntry piece = entry;
      piece.begin = entry.begin + first;
      piece.end = std::min(entry.end, piece.begin + kCheckedPieceBytes);
      statuses[i] = file.Read(piece, memory + first);
      if (statuses[i].ok()) use(first, {memory + first, piece.end - piece.begin});
    }
  });
  for (Status& status : statuses) DS_RETURN_IF_ERROR(std::move(status));
  if (digest_ != nullptr) digest_->AddBytes({memory, size});
  return Status();
}

void Checkpoint::ForShares(int count, const std::function<void(int begin, int end)>& body) const {
  if (pool_ == nullptr) return body(0, count);
  RunShares(*pool_, count, /*worth_waking=*/count > 1, body);
}

Status Checkpoint::ReadBytes(const std::string& name, size_t begin,
                             std::span<std::byte> out) const {
  const Located& found = *Find(name);
  const SafetensorsFile& file = *files_[found.file];
  SafetensorsEntry piece = file.index().entry(found.index);
  DS_CHECK(begin + out.size() <= piece.end - piece.begin, "bytes of the tensor");
  piece.begin += begin;
  piece.end = piece.begin + out.size();
  return file.Read(piece, out.data());
}

void Checkpoint::BeginDigest(std::string_view name, const SafetensorsEntry& entry) const {
  if (digest_ != nullptr) digest_->BeginTensor(name, entry.dtype_name, entry.shape);
}

void Checkpoint::DigestRows(const std::string& name, std::span<const RowDigest> rows) {
  const Located& found = *Find(name);
  BeginDigest(name, files_[found.file]->index().entry(found.index));
  digest_->AddRows(rows);
}

void Checkpoint::ReleaseMemory() {
  buffers_.clear();
  if (wanted_bytes_ > kept_bytes_ && wanted_bytes_ <= kKeptBytesMax) {
    kept_.reset();
    kept_ = std::make_unique_for_overwrite<std::byte[]>(wanted_bytes_);
    kept_bytes_ = wanted_bytes_;
  }
  used_bytes_ = wanted_bytes_ = 0;
  if (progress_ != nullptr) progress_->Add(read_bytes_);
  read_bytes_ = 0;
}

std::byte* Checkpoint::Allocate(size_t size_bytes) {
  const size_t size = (size_bytes + kAllocationUnit - 1) / kAllocationUnit * kAllocationUnit;
  wanted_bytes_ += size;
  if (size <= kept_bytes_ - used_bytes_) {
    used_bytes_ += size;
    return kept_.get() + used_bytes_ - size;
  }
  buffers_.push_back(std::make_unique_for_overwrite<std::byte[]>(size));
  return buffers_.back().get();
}

}  // namespace diffserve
