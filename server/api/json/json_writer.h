// SPDX-License-Identifier: Apache-2.0
// JsonWriter: writes JSON to a string, or to TextPieces, which are sent piece by piece. It is the
// only code of the server that writes a quote, a comma or a brace. It keeps track of commas; the
// caller opens and closes in the right order.
//
//   JsonWriter(&pieces).Begin('{').Add("id", id).Key("choices").Begin('[').End(']').End('}');
//
// Without Begin, members are written that another writer can take with Members.
// Thread safety: one thread at a time.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "server/api/json/text_pieces.h"

namespace diffserve {

class JsonWriter {
 public:
  // Both outlive the writer.
  explicit JsonWriter(std::string* out) : out_(out) {}
  explicit JsonWriter(TextPieces* pieces) : pieces_(pieces) {}

  JsonWriter& Begin(char bracket);  // '{' or '['
  JsonWriter& End(char bracket);    // '}' or ']'
  JsonWriter& Key(std::string_view name);

  // Values. Bytes of a text that are not UTF-8 become U+FFFD.
  JsonWriter& Value(std::string_view text);
  JsonWriter& Value(const char* text) { return Value(std::string_view(text)); }
  JsonWriter& Value(const std::string& text) { return Value(std::string_view(text)); }
  JsonWriter& Value(std::nullptr_t) { return Json("null"); }
  JsonWriter& Value(std::same_as<bool> auto value) { return Json(value ? "true" : "false"); }
  JsonWriter& Value(std::integral auto value)
    requires(!std::same_as<decltype(value), bool> && !std::same_as<decltype(value), char>)
  {
    return Json(std::to_string(value));
  }
  // With the fewest digits that identify the number. REQUIRES: finite.
  JsonWriter& Value(double value);
  JsonWriter& Value(float value);
  // JSON text.
  JsonWriter& Json(std::string_view json);
  // A text that may be long and lives until it is written. REQUIRES: made over TextPieces.
  JsonWriter& LongText(std::string_view text);
  // Key and value.
  JsonWriter& Add(std::string_view name, const auto& value) { return Key(name).Value(value); }
  // Members as another writer wrote them without Begin; none if empty.
  JsonWriter& Members(std::string_view members);

  // Values, or members, that are written when their turn comes, each whole. What `write` uses lives
  // until then. REQUIRES: made over TextPieces.
  using WriteItem = std::function<void(size_t i, JsonWriter& json)>;
  JsonWriter& Items(size_t count, WriteItem write);
  JsonWriter& List(size_t count, WriteItem write) {
    return Begin('[').Items(count, std::move(write)).End(']');
  }

 private:
  void Put(std::string_view text) { pieces_ != nullptr ? pieces_->Add(text) : void(*out_ += text); }
  void Separate();

  std::string* out_ = nullptr;
  TextPieces* pieces_ = nullptr;
  bool needs_comma_ = false;
};

}  // namespace diffserve
