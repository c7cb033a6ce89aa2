// SourceDirectory: a checkpoint directory that is converted. Nothing outside it is read: file names
// in its index are plain, and a link that leads out of it is refused (except into the blobs folder
// beside the snapshots of a Hugging Face cache, where that cache keeps the files of the directory).
// Nothing in it is executed, and pickles are never opened.
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
  // Opens model.safetensors, else the shards that model.safetensors.index.json lists, else the one
  // *.safetensors file there is.
  static Result<std::unique_ptr<SourceDirectory>> Open(const std::string& dir);

  const std::string& path() const { return path_; }
  const std::vector<SourceTensor>& tensors() const { return tensors_; }  // ordered by file and name
  bool Has(const std::string& name) const;
  // A whole file of the directory, of at most max_bytes.
  Result<std::string> Read(const std::string& name, size_t max_bytes) const;
  // Names of all that is in the directory, sorted.
  const std::vector<std::string>& file_names() const { return file_names_; }
  const std::vector<std::string>& tensor_file_names() const { return tensor_file_names_; }
  // Names of a folder's files that end so, sorted, with the folder's; none if there is no folder.
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
