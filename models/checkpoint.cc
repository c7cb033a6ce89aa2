#include "models/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "models/config_reader.h"
#include "models/dummy_weights.h"

namespace diffserve {
namespace {

constexpr size_t kMaxIndexBytes = size_t{32} << 20;
constexpr size_t kMaxShards = 4096;

// A shard must lie in the model directory itself: a plain file name.
bool IsPlainFileName(const std::string& name) {
  return !name.empty() && name.size() <= 255 && name != "." && name != ".." &&
         std::ranges::none_of(name, [](char c) { return c == '/' || c == '\\' || static_cast<unsigned char>(c) < 0x20; });
}

std::string ShapeString(const std::vector<int64_t>& shape) { return TensorView{nullptr, DType::kFloat32, shape}.ShapeString(); }

}  // namespace

Result<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& model_dir) {
  std::unique_ptr<Checkpoint> checkpoint(new Checkpoint());
  checkpoint->model_dir_ = model_dir;
  const std::filesystem::path dir(model_dir);
  const std::string single = (dir / "model.safetensors").string();
  const std::string index = (dir / "model.safetensors.index.json").string();
  std::error_code ignored;
  if (std::filesystem::exists(single, ignored)) {
    DS_RETURN_IF_ERROR(checkpoint->AddFile(single));
  } else if (std::filesystem::exists(index, ignored)) {
    DS_RETURN_IF_ERROR(checkpoint->OpenShards(model_dir, index));
  } else {
    return InvalidArgument(model_dir + ": holds neither model.safetensors nor model.safetensors.index.json");
  }
  return checkpoint;
}

Status Checkpoint::AddFile(const std::string& path) {
  Result<std::unique_ptr<SafetensorsFile>> file = SafetensorsFile::Open(path);
  if (!file.ok()) return file.status();
  for (const auto& [name, entry] : (*file)->header()) {
    const auto [other, is_new] = tensors_.try_emplace(name, Located{&entry, file->get()});
    if (!is_new) return InvalidArgument(path + ": tensor " + name + " is also in " + other->second.file->path());
  }
  files_.push_back(std::move(file).value());
  return Status();
}

Status Checkpoint::OpenShards(const std::string& model_dir, const std::string& index_path) {
  Result<ConfigReader> index = ConfigReader::Open(index_path, kMaxIndexBytes);
  if (!index.ok()) return index.status();
  std::optional<ConfigReader> weight_map = index->Object("weight_map");
  if (!weight_map) index->Refuse("weight_map", "an object of tensor names and file names");
  DS_RETURN_IF_ERROR(index->status());
  const std::vector<std::pair<std::string, std::string>> places = weight_map->StringMembers();
  DS_RETURN_IF_ERROR(index->status());

  std::set<std::string> shards;
  for (const auto& [tensor, shard] : places) {
    if (!IsPlainFileName(shard)) {
      weight_map->Refuse(tensor, "a plain file name: shards must lie in the model directory");
      return index->status();
    }
    shards.insert(shard);
  }
  if (shards.empty() || shards.size() > kMaxShards) {
    return InvalidArgument(index_path + ": weight_map names " + std::to_string(shards.size()) + " files, expected 1.." +
                           std::to_string(kMaxShards));
  }
  for (const std::string& shard : shards) DS_RETURN_IF_ERROR(AddFile((std::filesystem::path(model_dir) / shard).string()));
  for (const auto& [tensor, shard] : places) {
    const auto found = tensors_.find(tensor);
    const std::string path = (std::filesystem::path(model_dir) / shard).string();
    if (found == tensors_.end() || found->second.file->path() != path) {
      const std::string shown = tensor.substr(0, SafetensorsFile::kMaxNameBytes);
      return InvalidArgument(path + ": tensor " + shown + " is missing, but " + index_path + " says it is there");
    }
  }
  return Status();
}

std::unique_ptr<Checkpoint> Checkpoint::Dummy(DType dtype, uint64_t seed) {
  std::unique_ptr<Checkpoint> checkpoint(new Checkpoint());
  checkpoint->dummy_ = true;
  checkpoint->dummy_dtype_ = dtype;
  checkpoint->dummy_seed_ = seed;
  return checkpoint;
}

Status Checkpoint::Check(const std::string& name, const std::vector<int64_t>& shape) const {
  if (dummy_) return Status();
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    const std::string& where = files_.size() == 1 ? files_.front()->path() : model_dir_;
    return InvalidArgument(where + ": tensor " + name + " is missing, expected shape " + ShapeString(shape));
  }
  const auto& [entry, file] = found->second;
  if (entry->shape != shape) {
    return InvalidArgument(file->path() + ": tensor " + name + " has shape " + ShapeString(entry->shape) + ", expected " +
                           ShapeString(shape) + " from config.json");
  }
  if (!entry->is_float) {
    return InvalidArgument(file->path() + ": tensor " + name + " has dtype " + entry->dtype_name + ", expected F32, BF16 or F16");
  }
  return Status();
}

Result<TensorView> Checkpoint::Get(const std::string& name, const std::vector<int64_t>& shape) {
  DS_RETURN_IF_ERROR(Check(name, shape));
  TensorView view{nullptr, dummy_dtype_, shape};
  if (dummy_) {
    std::byte* memory = Allocate(static_cast<size_t>(view.num_elements()) * SizeOf(dummy_dtype_));
    FillDummyTensor(name, dummy_seed_, dummy_dtype_, view.num_elements(), memory);
    view.data = memory;
    return view;
  }
  const auto& [entry, file] = tensors_.find(name)->second;
  std::byte* memory = Allocate(entry->end - entry->begin);
  DS_RETURN_IF_ERROR(file->Read(*entry, memory));
  view.dtype = entry->dtype;
  view.data = memory;
  return view;
}

std::byte* Checkpoint::Allocate(size_t size_bytes) {
  buffers_.push_back(std::make_unique_for_overwrite<std::byte[]>(size_bytes));
  return buffers_.back().get();
}

}  // namespace diffserve
