// SPDX-License-Identifier: Apache-2.0
// Reads untrusted *.safetensors files. A header must be at most 100 MB, lie inside the file and
// have the format's fixed depth. It lists at most 65,536 tensors, without duplicate names. Sizes
// must follow from dtype and shape without overflow, and offsets must cover the data section
// exactly, without hole or overlap.
//
// Data is read into our own memory, never served from a mapping. So a file that is cut or written
// while it is read gives an error line, not a SIGBUS or weights from two versions. One that is
// replaced later does not matter.
//
// Thread safety: immutable after Open, except for header().
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"
#include "kernels/base/tensor.h"

namespace diffserve {

// One tensor of a header. A file may contain types other than the three floats, but they cannot be
// requested.
struct SafetensorsEntry {
  std::string dtype_name;  // as the format spells it: "BF16"
  bool is_float = false;   // dtype_name is F32, BF16 or F16, and `dtype` is that type
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape;
  size_t begin = 0;  // offsets into the data section
  size_t end = 0;
};

// "F32", "BF16" or "F16".
std::string_view FileNameOf(DType dtype);

using SafetensorsHeader = std::map<std::string, SafetensorsEntry, std::less<>>;

// A checked header: its text and four bytes per tensor. An entry is parsed from the text again at
// each request. So a header takes less than twice its bytes in the file, during the check and
// afterwards, with any number of tensors.
class SafetensorsIndex {
 public:
  // `text` is the header without its length field, followed in the file by `data_bytes` of data.
  // `file` names the file in errors.
  static Result<SafetensorsIndex> Parse(std::string text, size_t data_bytes,
                                        const std::string& file);

  size_t size() const { return names_.size(); }
  // Tensors in name order, 0 <= i < size().
  std::string_view name(size_t i) const;
  SafetensorsEntry entry(size_t i) const;
  // The index of a tensor, or size() if there is none with this name.
  size_t Find(std::string_view name) const;
  SafetensorsHeader ToHeader() const;

 private:
  std::string text_;
  std::vector<uint32_t> names_;  // offsets in text_ of the tensors' names
};

class SafetensorsFile {
 public:
  static constexpr size_t kMaxHeaderBytes = 100'000'000;
  static constexpr size_t kMaxTensors = 65536;
  static constexpr size_t kMaxNameBytes = 512;
  static constexpr size_t kMaxRank = 8;

  // Errors are one line with file, tensor, found and expected.
  static Result<std::unique_ptr<SafetensorsFile>> Open(const std::string& path);
  // Parses only the header. `bytes` are the first bytes (at least the whole header) of a file of
  // `file_size` bytes; `name` names the file in errors. The bytes are copied.
  static Result<SafetensorsHeader> ParseHeader(std::string_view bytes, size_t file_size,
                                               const std::string& name);

  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::string& path() const { return path_; }
  const SafetensorsIndex& index() const { return index_; }
  // The same as a map, made at the first call, which is not thread-safe. For headers whose memory
  // does not matter.
  const SafetensorsHeader& header() const;
  // Bytes of length field and header.
  size_t header_bytes() const { return data_offset_; }
  // Reads entry's bytes into out[entry.end - entry.begin]. Error: the file cannot be read, or has
  // changed since it was opened.
  Status Read(const SafetensorsEntry& entry, std::byte* out) const;

 private:
  SafetensorsFile() = default;
  std::string path_;
  int descriptor_ = -1;
  size_t file_size_ = 0;
  int64_t modified_ns_ = 0;
  size_t data_offset_ = 0;
  SafetensorsIndex index_;
  mutable std::unique_ptr<const SafetensorsHeader> header_;
};

}  // namespace diffserve
