// SPDX-License-Identifier: Apache-2.0
#include "server/json/json_writer.h"

#include <cmath>

#include "kernels/process/check.h"

namespace diffserve {

std::string& JsonWriter::Next() {
  std::string& out = Out();
  if (std::exchange(needs_comma_, true)) out += spaced_ ? ", " : ",";
  return out;
}

TextPieces& JsonWriter::Pieces() {
  DS_CHECK(pieces_ != nullptr, "this is written in pieces");
  out_ = nullptr;  // what follows comes after them
  return *pieces_;
}

JsonWriter& JsonWriter::Begin(char bracket) {
  Next() += bracket;
  needs_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::End(char bracket) {
  Out() += bracket;
  needs_comma_ = true;
  return *this;
}

JsonWriter& JsonWriter::Key(std::string_view name) {
  AppendJsonString(name, &Next());
  Out() += spaced_ ? ": " : ":";
  needs_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::Value(std::string_view text) {
  AppendJsonString(text, &Next());
  return *this;
}

JsonWriter& JsonWriter::Value(double value) {
  if (!std::isfinite(value)) return Value(nullptr);
  AppendJsonNumber(value, &Next());
  return *this;
}

JsonWriter& JsonWriter::Value(float value) {
  if (!std::isfinite(value)) return Value(nullptr);
  AppendJsonFloat(value, &Next());
  return *this;
}

JsonWriter& JsonWriter::Json(std::string_view json) {
  Next() += json;
  return *this;
}

JsonWriter& JsonWriter::LongText(std::string_view text) {
  if (text.size() <= TextPieces::kQuotedBytes) return Value(text);
  Next();
  Pieces().AddQuoted(text);
  return *this;
}

JsonWriter& JsonWriter::TextParts(size_t count, TextPieces::AppendItem append) {
  Next() += '"';
  Pieces().AddItems(count, std::move(append));
  Out() += '"';
  return *this;
}

JsonWriter& JsonWriter::Members(std::string_view members) {
  return members.empty() ? *this : Json(members);
}

JsonWriter& JsonWriter::Items(size_t count, WriteItem write) {
  if (count == 0) return *this;
  const bool after_another = std::exchange(needs_comma_, true);
  Pieces().AddItems(count, [pieces = pieces_, after_another, write = std::move(write)](
                               size_t i, std::string* out) {
    JsonWriter json(pieces);
    json.out_ = out;
    json.needs_comma_ = after_another || i > 0;
    write(i, json);
  });
  return *this;
}

JsonWriter& JsonWriter::Then(std::function<void()> act) {
  Pieces().AddItems(1, [act = std::move(act)](size_t, std::string*) { act(); });
  return *this;
}

}  // namespace diffserve
