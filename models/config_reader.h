// ConfigReader: checked access to one JSON object of a config file. The first problem is kept and
// later ones are ignored, so a family reads all its keys in straight lines and asks status() once.
// Errors are one line: "FILE: KEY is FOUND, expected THIS". The home of JSON for model directories.
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
  static constexpr int kMaxValues = 1 << 17;  // members and list items; the largest index of shards
                                              // has half as many

  // Parses `text`: one object, at most kMaxDepth deep, of at most kMaxValues, no key twice. `file`
  // names it in errors.
  static Result<ConfigReader> Parse(std::string_view text, std::string file);
  // Reads the whole file first; error if it cannot be read or is larger than `max_bytes`.
  static Result<ConfigReader> Open(const std::string& path, size_t max_bytes = kMaxBytes);

  bool Has(std::string_view key) const;  // present and not null
  bool IsString(std::string_view key) const;
  bool IsList(std::string_view key) const;
  std::vector<std::string> Keys() const;  // all that Has, sorted

  // Without a default (nullopt) the key is required.
  int Int(std::string_view key, std::optional<int> fallback, int min, int max);
  double Number(std::string_view key, std::optional<double> fallback, double min, double max);
  bool Bool(std::string_view key, std::optional<bool> fallback);
  std::string String(std::string_view key, std::optional<std::string> fallback);
  std::vector<int32_t> IntOrList(std::string_view key, int min, int max);  // a number or a list of
                                                                           // numbers; empty if
                                                                           // absent
  // A list of integers and nulls; empty if absent.
  std::vector<std::optional<int>> IntsOrNulls(std::string_view key, int min, int max);
  std::vector<std::string> Strings(std::string_view key);  // a list of strings; empty if absent
  // The nested object, or nullopt if absent or null. Its problems are recorded here too.
  std::optional<ConfigReader> Object(std::string_view key);
  // All members of this object, whose values must be strings, in the order of their keys.
  std::vector<std::pair<std::string, std::string>> StringMembers();

  // `text` as a piece of an error line: what is not printable ASCII becomes '?', and a long text is
  // cut.
  static std::string OneLine(std::string_view text);
  // Records a problem with a key in the reader's own words: "FILE: KEY PROBLEM".
  void Fail(std::string_view key, std::string_view problem);
  // Records "FILE: KEY is FOUND, expected EXPECTED", FOUND being the key's value.
  void Refuse(std::string_view key, std::string_view expected);
  Status status() const;
  const std::string& file() const;

 private:
  struct State;
  explicit ConfigReader(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace diffserve
