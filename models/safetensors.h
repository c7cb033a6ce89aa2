// Reads *.safetensors and trusts nothing in them: header at most 100 MB, inside the file and of the
// format's fixed depth, at most 65,536 tensors, no duplicate names, sizes that follow from dtype
// and shape without overflow, offsets that cover the data section exactly, without hole or overlap.
// Data is read into memory of our own, never served from a mapping: a file that is cut or written
// while it is read is an error line instead of a SIGBUS or of weights from two versions, and one
// that is replaced later does not matter.
//
// Thread safety: const after Open, but for header().
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

// One tensor of a header. Types other than the three floats may stand in a file but cannot be asked
// for.
struct SafetensorsEntry {
  std::string dtype_name;  // as the format spells it: "BF16"
  bool is_float = false;   // dtype_name is F32, BF16 or F16, and `dtype` says which
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape;
  size_t begin = 0;  // offsets into the data section
  size_t end = 0;
};

// "F32", "BF16" or "F16".
std::string_view FileNameOf(DType dtype);

using SafetensorsHeader = std::map<std::string, SafetensorsEntry, std::less<>>;

// A checked header: its text and four bytes a tensor. An entry is read from the text again whenever
// it is asked for, so a header takes less than twice its bytes in the file, while it is checked and
// afterwards, however many tensors it lists.
class SafetensorsIndex {
 public:
  // `text` is the header without its length field, in front of `data_bytes` of data; `file` names
  // the file in errors.
  static Result<SafetensorsIndex> Parse(std::string text, size_t data_bytes,
                                        const std::string& file);

  size_t size() const { return names_.size(); }
  // Tensors in the order of their names, 0 <= i < size().
  std::string_view name(size_t i) const;
  SafetensorsEntry entry(size_t i) const;
  // The index of a tensor, or size() if there is none of this name.
  size_t Find(std::string_view name) const;
  SafetensorsHeader ToHeader() const;

 private:
  std::string text_;
  std::vector<uint32_t> names_;  // where in text_ the tensors' names begin
};

class SafetensorsFile {
 public:
  static constexpr size_t kMaxHeaderBytes = 100'000'000;
  static constexpr size_t kMaxTensors = 65536;
  static constexpr size_t kMaxNameBytes = 512;
  static constexpr size_t kMaxRank = 8;

  // Errors are one line that names the file, the tensor, what was found and what was expected.
  static Result<std::unique_ptr<SafetensorsFile>> Open(const std::string& path);
  // The header alone: `bytes` are the first bytes (all of the header, at least) of a file of
  // `file_size` bytes; `name` names the file in errors. They are copied.
  static Result<SafetensorsHeader> ParseHeader(std::string_view bytes, size_t file_size,
                                               const std::string& name);

  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::string& path() const { return path_; }
  const SafetensorsIndex& index() const { return index_; }
  // The same as a map, made at the first call, which is not safe beside another; for headers whose
  // memory does not matter.
  const SafetensorsHeader& header() const;
  // Length field and header.
  size_t header_bytes() const { return data_offset_; }
  // Reads entry's bytes into out[entry.end - entry.begin]. Error: the file cannot be read, or is
  // not as it was when it was opened.
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
