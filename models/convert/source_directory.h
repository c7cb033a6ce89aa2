// SPDX-License-Identifier: Apache-2.0
// SourceDirectory: a checkpoint directory to convert. Nothing outside it is read: file names in its
// index are plain, and a link that leads out of it is refused. (Exception: the blobs folder beside
// the snapshots of a Hugging Face cache, which holds the directory's files.) Nothing in it is
// executed, and pickles are never opened.
//
// Thread safety: one thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "models/safetensors.h"

namespace diffserve {

struct SourceTensor {
  std::string name;
  SafetensorsEntry entry;
  const SafetensorsFile* file = nullptr;
};

class SourceDirectory {
 public:
  // Opens model.safetensors, else the shards in model.safetensors.index.json, else the only
  // *.safetensors file.
  static Result<std::unique_ptr<SourceDirectory>> Open(const std::string& dir);

  const std::string& path() const { return path_; }
  const std::vector<SourceTensor>& tensors() const { return tensors_; }  // ordered by file and name
  bool Has(const std::string& name) const;
  // Reads a whole file of the directory, of at most max_bytes.
  Result<std::string> Read(const std::string& name, size_t max_bytes) const;
  // Names of all entries of the directory, sorted.
  const std::vector<std::string>& file_names() const { return file_names_; }
  const std::vector<std::string>& tensor_file_names() const { return tensor_file_names_; }
  // Names of the files in `folder` with this ending, sorted, prefixed by the folder; empty if the
  // folder does not exist.
  std::vector<std::string> NamesIn(const std::string& folder, std::string_view ending) const;

 private:
  SourceDirectory() = default;
  Status List();
  Status CheckInside(const std::string& name) const;
  // Names of the files that hold the tensors.
  Result<std::vector<std::string>> FindTensorFiles() const;
  Result<std::vector<std::string>> ReadIndex() const;

  std::string path_;
  std::vector<std::string> file_names_, tensor_file_names_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::vector<SourceTensor> tensors_;
};

}  // namespace diffserve
