// Reads *.safetensors and trusts nothing in them: header at most 100 MB, inside the file and of the format's fixed depth, at
// most 65,536 tensors, no duplicate names, sizes that follow from dtype and shape without overflow, offsets that cover the data
// section exactly, without hole or overlap. Data is read into memory of our own, never served from a mapping: a file that shrinks
// while it is read is an error line instead of a SIGBUS, and one that is replaced later does not matter.
//
// Thread safety: const after Open.
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

// One tensor of a header. Types other than the three floats may stand in a file but cannot be asked for.
struct SafetensorsEntry {
  std::string dtype_name;  // as the format spells it: "BF16"
  bool is_float = false;   // dtype_name is F32, BF16 or F16, and `dtype` says which
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape;
  size_t begin = 0;  // offsets into the data section
  size_t end = 0;
};
using SafetensorsHeader = std::map<std::string, SafetensorsEntry, std::less<>>;

class SafetensorsFile {
 public:
  static constexpr size_t kMaxHeaderBytes = 100'000'000;
  static constexpr size_t kMaxTensors = 65536;
  static constexpr size_t kMaxNameBytes = 512;
  static constexpr size_t kMaxRank = 8;

  // Errors are one line that names the file, the tensor, what was found and what was expected.
  static Result<std::unique_ptr<SafetensorsFile>> Open(const std::string& path);
  // The header alone: `bytes` are the first bytes (all of the header, at least) of a file of `file_size` bytes; `name` names the
  // file in errors.
  static Result<SafetensorsHeader> ParseHeader(std::string_view bytes, size_t file_size, const std::string& name);

  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::string& path() const { return path_; }
  const SafetensorsHeader& header() const { return header_; }
  // Reads entry's bytes into out[entry.end - entry.begin].
  Status Read(const SafetensorsEntry& entry, std::byte* out) const;

 private:
  SafetensorsFile() = default;
  std::string path_;
  int descriptor_ = -1;
  size_t data_offset_ = 0;
  SafetensorsHeader header_;
};

}  // namespace diffserve
