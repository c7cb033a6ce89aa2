// SPDX-License-Identifier: Apache-2.0
#include "server/api/json/json_writer.h"

#include <utility>

#include "kernels/base/check.h"

namespace diffserve {

void JsonWriter::Separate() {
  if (std::exchange(needs_comma_, true)) Put(",");
}

JsonWriter& JsonWriter::Begin(char bracket) {
  Separate();
  Put({&bracket, 1});
  needs_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::End(char bracket) {
  Put({&bracket, 1});
  needs_comma_ = true;
  return *this;
}

JsonWriter& JsonWriter::Key(std::string_view name) {
  Value(name);
  Put(":");
  needs_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::Value(std::string_view text) {
  std::string quoted;
  AppendJsonString(text, &quoted);
  return Json(quoted);
}

JsonWriter& JsonWriter::Value(double value) {
  std::string number;
  AppendJsonNumber(value, &number);
  return Json(number);
}

JsonWriter& JsonWriter::Value(float value) {
  std::string number;
  AppendJsonFloat(value, &number);
  return Json(number);
}

JsonWriter& JsonWriter::Json(std::string_view json) {
  Separate();
  Put(json);
  return *this;
}

JsonWriter& JsonWriter::LongText(std::string_view text) {
  DS_CHECK(pieces_ != nullptr, "a long text is written in pieces");
  Separate();
  pieces_->AddQuoted(text);
  return *this;
}

JsonWriter& JsonWriter::Members(std::string_view members) {
  return members.empty() ? *this : Json(members);
}

JsonWriter& JsonWriter::Items(size_t count, WriteItem write) {
  DS_CHECK(pieces_ != nullptr, "items are written in pieces");
  if (count == 0) return *this;
  const bool after_another = std::exchange(needs_comma_, true);
  pieces_->AddItems(count, [pieces = pieces_, after_another, write = std::move(write)](
                               size_t i, std::string* /*out*/) {
    JsonWriter json(pieces);
    json.needs_comma_ = after_another || i > 0;
    write(i, json);
  });
  return *this;
}

}  // namespace diffserve
