// SPDX-License-Identifier: Apache-2.0
#include "models/convert/safetensors_writer.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "kernels/base/refusal.h"
#include "kernels/process/check.h"
#include "models/safetensors.h"

namespace diffserve {
namespace {

constexpr uint64_t kAlignment = 8;  // of the data in a file

std::string ShardName(size_t index, size_t count) {
  if (count == 1) return "model.safetensors";
  char name[64];
  std::snprintf(name, sizeof(name), "model-%05zu-of-%05zu.safetensors", index + 1, count);
  return name;
}

std::string QuotedName(const std::string& name) {
  DS_CHECK(std::ranges::all_of(
               name, [](char c) { return c > 0x20 && c < 0x7f && c != '"' && c != '\\'; }),
           name);
  return "\"" + name + "\"";
}

}  // namespace

uint64_t OutputTensor::size_bytes() const {
  uint64_t bytes = dtype ? SizeOf(*dtype) : 1;
  for (int64_t extent : shape) bytes *= static_cast<uint64_t>(extent);
  return bytes;
}

Result<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Create(
    const std::string& dir, const std::vector<OutputTensor>& tensors, uint64_t max_shard_bytes) {
  std::unique_ptr<SafetensorsWriter> writer(new SafetensorsWriter());
  writer->Divide(tensors, max_shard_bytes);
  const size_t count = writer->shards_.size();
  if (count > kMaxShards) {
    return NotAllowed("files of " + std::to_string(max_shard_bytes) + " bytes would be " +
                          std::to_string(count) + " files",
                      "at most " + std::to_string(kMaxShards), "max_shard_bytes");
  }
  for (size_t i = 0; i < count; ++i) {
    Shard& shard = writer->shards_[i];
    shard.path = dir + "/" + ShardName(i, count);
    DS_RETURN_IF_ERROR(WriteHeader(shard));
  }
  if (count > 1) DS_RETURN_IF_ERROR(writer->WriteIndex(dir));
  return writer;
}

void SafetensorsWriter::Divide(const std::vector<OutputTensor>& tensors, uint64_t max_shard_bytes) {
  shards_.emplace_back();
  for (const OutputTensor& tensor : tensors) {
    const uint64_t size = tensor.size_bytes();
    const uint64_t room = max_shard_bytes - std::min(max_shard_bytes, shards_.back().data_bytes);
    if (size > room && !shards_.back().tensors.empty()) shards_.emplace_back();
    shards_.back().tensors.push_back(tensor);
    shards_.back().data_bytes += size;
    total_bytes_ += size;
  }
}

Status SafetensorsWriter::WriteHeader(Shard& shard) {
  // transformers requires the framework of the layout.
  std::string json = "{\"__metadata__\":{\"format\":\"pt\"}";
  uint64_t begin = 0;
  for (const OutputTensor& tensor : shard.tensors) {
    const uint64_t end = begin + tensor.size_bytes();
    json += "," + QuotedName(tensor.name) + ":{\"dtype\":\"";
    json += tensor.dtype ? FileNameOf(*tensor.dtype) : "U8";
    json += "\",\"shape\":[";
    for (size_t i = 0; i < tensor.shape.size(); ++i)
      json += (i > 0 ? "," : "") + std::to_string(tensor.shape[i]);
    json += "],\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(end) + "]}";
    begin = end;
  }
  json += "}";
  json.resize((json.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  const uint64_t length = json.size();
  char length_bytes[sizeof(length)];
  std::memcpy(length_bytes, &length, sizeof(length));  // little-endian, as this machine
  shard.data_begin = sizeof(length) + length;

  Result<std::unique_ptr<OutputFile>> file = OutputFile::Create(shard.path);
  if (!file.ok()) return file.status();
  DS_RETURN_IF_ERROR((*file)->Write(std::as_bytes(std::span(length_bytes))));
  DS_RETURN_IF_ERROR((*file)->Write(std::as_bytes(std::span(json))));
  // NextShard syncs it to disk, with the data.
  return (*file)->Extend(shard.data_begin + shard.data_bytes);
}

Status SafetensorsWriter::WriteIndex(const std::string& dir) const {
  std::string json = "{\n  \"metadata\": {\n    \"total_size\": " + std::to_string(total_bytes_) +
                     "\n  },\n  \"weight_map\": {";
  bool first = true;
  for (size_t i = 0; i < shards_.size(); ++i) {
    for (const OutputTensor& tensor : shards_[i].tensors) {
      json += (first ? "\n    " : ",\n    ") + QuotedName(tensor.name) + ": \"" +
              ShardName(i, shards_.size()) + "\"";
      first = false;
    }
  }
  return OutputFile::WriteText(dir + "/model.safetensors.index.json", json + "\n  }\n}\n");
}

Status SafetensorsWriter::NextShard() {
  if (file_ != nullptr) {
    DS_CHECK(appended_ == shards_[current_].data_bytes, "fewer bytes than the tensors have");
    DS_RETURN_IF_ERROR(file_->Close());
    file_.reset();
    ++current_;
  }
  DS_CHECK(current_ < shards_.size(), "more bytes than the tensors have");
  Result<std::unique_ptr<OutputFile>> file = OutputFile::Open(shards_[current_].path,
                                                              shards_[current_].data_begin);
  if (!file.ok()) return file.status();
  file_ = std::move(file).value();
  appended_ = 0;
  return Status();
}

Status SafetensorsWriter::Append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    // A loop, since a shard of empty tensors has no room at all.
    while (file_ == nullptr || appended_ == shards_[current_].data_bytes)
      DS_RETURN_IF_ERROR(NextShard());
    const uint64_t room = shards_[current_].data_bytes - appended_;
    const std::span<const std::byte> part = bytes.first(
        static_cast<size_t>(std::min<uint64_t>(bytes.size(), room)));
    DS_RETURN_IF_ERROR(file_->Write(part));
    appended_ += part.size();
    bytes = bytes.subspan(part.size());
  }
  return Status();
}

Status SafetensorsWriter::Close() {
  while (file_ == nullptr || current_ + 1 < shards_.size()) DS_RETURN_IF_ERROR(NextShard());
  DS_CHECK(appended_ == shards_[current_].data_bytes, "fewer bytes than the tensors have");
  const Status status = file_->Close();
  file_.reset();
  return status;
}

}  // namespace diffserve
