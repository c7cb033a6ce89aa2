// SPDX-License-Identifier: Apache-2.0
// Any bytes as a safetensors file and as a config file: refused by one line, or consistent.
#include <cstdint>
#include <string_view>

#include "kernels/process/check.h"
#include "models/config_reader.h"
#include "models/packed_format.h"
#include "models/safetensors.h"

namespace diffserve {
namespace {

void CheckOneLine(const Status& status) {
  DS_CHECK(status.message().starts_with("f: "), "an error names its file");
  DS_CHECK(status.message().find('\n') == std::string::npos, "an error is one line");
}

void ParseAsFile(std::string_view bytes, size_t file_size) {
  const Result<SafetensorsHeader> header = SafetensorsFile::ParseHeader(bytes, file_size, "f");
  if (!header.ok()) return CheckOneLine(header.status());
  size_t covered = 0;
  for (const auto& [name, entry] : *header) {
    DS_CHECK(entry.begin <= entry.end && entry.end <= file_size, "tensors lie inside the file");
    covered += entry.end - entry.begin;
  }
  DS_CHECK(covered < file_size, "tensors do not overlap");
}

}  // namespace
}  // namespace diffserve

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  diffserve::ParseAsFile(bytes, size);
  // The same header in front of more data than the input holds: an input need not carry its
  // tensors' bytes.
  for (size_t data_bytes : {4, 8, 12, 4096}) diffserve::ParseAsFile(bytes, size + data_bytes);
  diffserve::Result<diffserve::ConfigReader> config = diffserve::ConfigReader::Parse(bytes, "f");
  if (!config.ok()) {
    diffserve::CheckOneLine(config.status());
    return 0;
  }
  diffserve::PackedFormat::Read(*config);
  if (!config->status().ok()) diffserve::CheckOneLine(config->status());
  return 0;
}
