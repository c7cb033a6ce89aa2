// SPDX-License-Identifier: Apache-2.0
// JsonFields: a request body parsed under limits, with typed access to the members of its objects.
// This is the home of the JSON library for input; json_writer.h writes output.
//
// Getters leave *out unchanged if the member is absent or null. The first member of a wrong type is
// stored in status(), with its path as `param`; later getters then do nothing.
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "kernels/base/status.h"

namespace diffserve {

struct JsonLimits {
  int max_depth = 64;             // nested arrays and objects, checked during the parse
  size_t max_values = 1 << 20;    // values of any kind in one body
  const char* name = "the body";  // of the text, in errors
};

struct JsonDocument;  // the parsed tree

inline constexpr size_t kMaxShownJsonBytes = 64;  // of client text in an error message
std::string ShownJson(std::string_view text);

class JsonFields {
 public:
  // Error: kInvalidArgument if the body is not one JSON object within the limits. Repeated keys:
  // the last one counts.
  static Result<JsonFields> Parse(std::string_view body, const JsonLimits& limits = {});

  bool Has(std::string_view name) const;    // present and not null
  bool IsOff(std::string_view name) const;  // absent, null, false, 0, "", [] or {}
  std::vector<std::string> Names() const;
  std::string PathOf(std::string_view name) const;  // "messages[3].NAME"
  const Status& status() const { return status_; }
  void Fail(Status status);  // keeps the first error

  bool IsString(std::string_view name) const;
  bool IsObject(std::string_view name) const;
  void Bool(std::string_view name, bool* out);
  // Any value of the type. Ranges are checked in server/serving/request/request_checks.h.
  void Int(std::string_view name, int* out);
  // The same for a count. -0 is refused here, because a later error about 0 would not show its
  // sign.
  void Count(std::string_view name, int* out);
  void Float(std::string_view name, float* out);
  // A number as the client wrote it, for an error message. REQUIRES: Has(name).
  std::string NumberText(std::string_view name) const;
  void Seed(std::string_view name, uint64_t* out);  // any integer of 64 bits, signed or not
  void String(std::string_view name, size_t max_bytes, std::string* out);
  void StringOrStrings(std::string_view name, size_t max_entries, std::vector<std::string>* out);
  // Each integer is at least 0.
  void Ints(std::string_view name, size_t max_entries, std::vector<int32_t>* out);
  // A list of pairs of such integers: [[1, 2], [5, 7]].
  void IntPairs(std::string_view name, size_t max_entries,
                std::vector<std::pair<int32_t, int32_t>>* out);
  void SignedInts(std::string_view name, size_t max_entries, std::vector<int>* out);  // of 32 bits
  // `check` gets each number, also as the client wrote it.
  using CheckWritten = std::function<Status(float value, const std::string& written)>;
  void LogitBias(std::string_view name, size_t max_entries, const CheckWritten& check,
                 std::vector<std::pair<int32_t, float>>* out);
  // An object of strings, numbers and booleans, as JSON text.
  void Scalars(std::string_view name, size_t max_entries, std::string* out);
  // An object of any values, as the client wrote it but without nulls; keys of `reserved` are
  // refused. REQUIRES: as for ObjectText.
  void Variables(std::string_view name, size_t max_entries, size_t max_bytes,
                 std::span<const std::string_view> reserved, std::string* out);
  // A member that is an object, as the client wrote it: the order of a schema's properties is the
  // order in which they are generated. REQUIRES: `name` is one of kKeptTexts in json.cc.
  void ObjectText(std::string_view name, size_t max_bytes, std::string* out);
  // Text, a list of texts, token ids, or a list of lists of ids.
  using TextOrIds = std::variant<std::string, std::vector<int32_t>>;
  void Prompts(std::string_view name, size_t max_entries, std::vector<TextOrIds>* out);
  // Any value as JSON text, unchanged if its name is one of kKeptTexts; "null" if it is absent.
  std::string JsonText(std::string_view name) const;
  // A member that is an object, or the entries of a list of objects. The caller passes their errors
  // on with Fail.
  std::vector<JsonFields> Object(std::string_view name);  // none or one
  std::vector<JsonFields> Objects(std::string_view name, size_t max_entries);

 private:
  JsonFields(std::shared_ptr<const JsonDocument> document, const void* node, std::string path)
      : document_(std::move(document)), node_(node), path_(std::move(path)) {}
  void Expected(std::string_view name, const char* what);

  std::shared_ptr<const JsonDocument> document_;
  const void* node_;  // an object within the document
  std::string path_;  // of this object: empty, or "messages[3]."
  Status status_;
};

// `text` as a JSON string literal; bytes that are not UTF-8 become U+FFFD.
std::string JsonQuoted(std::string_view text);
bool IsUtf8(std::string_view text);

}  // namespace diffserve
