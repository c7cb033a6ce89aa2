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
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/json/text_pieces.h"

namespace diffserve {

class JsonWriter {
 public:
  // Both outlive the writer; until its end, nothing else adds to the pieces. `spaced`: with a space
  // after each comma and colon.
  explicit JsonWriter(std::string* out, bool spaced = false) : out_(out), spaced_(spaced) {}
  explicit JsonWriter(TextPieces* pieces) : pieces_(pieces) {}

  JsonWriter& Begin(char bracket);  // '{' or '['
  JsonWriter& End(char bracket);    // '}' or ']'
  JsonWriter& Key(std::string_view name);

  // Values. Bytes of a text that are not UTF-8 become U+FFFD.
  JsonWriter& Value(std::string_view text);
  JsonWriter& Value(const char* text) {  // null if it is nullptr
    return text == nullptr ? Value(nullptr) : Value(std::string_view(text));
  }
  JsonWriter& Value(const std::string& text) { return Value(std::string_view(text)); }
  JsonWriter& Value(std::nullptr_t) { return Json("null"); }
  JsonWriter& Value(std::same_as<bool> auto value) { return Json(value ? "true" : "false"); }
  JsonWriter& Value(std::integral auto value)
    requires(!std::same_as<decltype(value), bool> && !std::same_as<decltype(value), char>)
  {
    return Json(std::to_string(value));
  }
  // With the fewest digits that identify the number; null if it is not finite.
  JsonWriter& Value(double value);
  JsonWriter& Value(float value);
  template <typename T>
  JsonWriter& Value(const std::optional<T>& value) {
    return value ? Value(*value) : Value(nullptr);
  }
  template <typename T>
  JsonWriter& Value(const std::vector<T>& values) {
    Begin('[');
    for (const T& value : values) Value(value);
    return End(']');
  }
  // JSON text.
  JsonWriter& Json(std::string_view json);
  // A text that may be long and lives until it is written. REQUIRES: made over TextPieces.
  JsonWriter& LongText(std::string_view text);
  // A text of parts that need no escape, each appended when its turn comes. REQUIRES: made over
  // TextPieces.
  JsonWriter& TextParts(size_t count, TextPieces::AppendItem append);
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
  // Calls `act` when all that comes before is written. REQUIRES: made over TextPieces.
  JsonWriter& Then(std::function<void()> act);

 private:
  std::string& Out() { return out_ != nullptr ? *out_ : *(out_ = &pieces_->Tail()); }
  std::string& Next();  // after a comma if one is due
  TextPieces& Pieces();

  std::string* out_ = nullptr;  // nullptr: the tail of the pieces, which is not known yet
  TextPieces* pieces_ = nullptr;
  bool needs_comma_ = false;
  bool spaced_ = false;
};

// The object whose members `write` writes.
template <typename Write>
std::string JsonObjectOf(const Write& write) {
  std::string text;
  JsonWriter json(&text);
  json.Begin('{');
  write(json);
  json.End('}');
  return text;
}
// The object with one member.
template <typename T>
std::string JsonObjectOf(std::string_view name, const T& value) {
  return JsonObjectOf([&](JsonWriter& json) { json.Add(name, value); });
}

}  // namespace diffserve
