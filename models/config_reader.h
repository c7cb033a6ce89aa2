// SPDX-License-Identifier: Apache-2.0
// ConfigReader: checked access to one JSON object of a config file. It keeps the first problem and
// ignores later ones, so a family reads all its keys without branches and checks status() once.
// Errors are one line: "FILE: KEY is FOUND, expected THIS". JSON of model directories is parsed
// only here.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/status.h"

namespace diffserve {

class ConfigReader {
 public:
  static constexpr size_t kMaxBytes = size_t{4} << 20;  // of a config file
  static constexpr int kMaxDepth = 32;
  // Members and list items; the largest known index of shards has half as many.
  static constexpr int kMaxValues = 1 << 17;

  // Parses `text`: one object, at most kMaxDepth deep, with at most kMaxValues values and no
  // duplicate key. `file` names it in errors.
  static Result<ConfigReader> Parse(std::string_view text, std::string file);
  // Reads the whole file first; error if it cannot be read or is larger than `max_bytes`.
  static Result<ConfigReader> Open(const std::string& path, size_t max_bytes = kMaxBytes);

  bool Has(std::string_view key) const;  // present and not null
  bool IsString(std::string_view key) const;
  bool IsList(std::string_view key) const;
  std::vector<std::string> Keys() const;  // all keys that Has accepts, sorted

  // Without a fallback (nullopt) the key is required.
  int Int(std::string_view key, std::optional<int> fallback, int min, int max);
  double Number(std::string_view key, std::optional<double> fallback, double min, double max);
  bool Bool(std::string_view key, std::optional<bool> fallback);
  std::string String(std::string_view key, std::optional<std::string> fallback);
  // A number or a list of numbers; empty if absent.
  std::vector<int32_t> IntOrList(std::string_view key, int min, int max);
  // A list of integers and nulls; empty if absent.
  std::vector<std::optional<int>> IntsOrNulls(std::string_view key, int min, int max);
  std::vector<std::string> Strings(std::string_view key);  // a list of strings; empty if absent
  // The nested object, or nullopt if absent or null. Its problems are recorded here too.
  std::optional<ConfigReader> Object(std::string_view key);
  // All members of this object in key order; their values must be strings.
  std::vector<std::pair<std::string, std::string>> StringMembers();

  // `text` as part of an error line: characters that are not printable ASCII become '?', and a long
  // text is cut.
  static std::string OneLine(std::string_view text);
  // Records a problem with a key in the reader's own words: "FILE: KEY PROBLEM".
  void Fail(std::string_view key, std::string_view problem);
  // Records "FILE: KEY is FOUND; allowed: ALLOWED"; FOUND is the key's value.
  void Refuse(std::string_view key, std::string_view allowed);
  Status status() const;
  const std::string& file() const;

 private:
  struct State;
  explicit ConfigReader(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace diffserve
