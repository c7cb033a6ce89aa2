// SPDX-License-Identifier: Apache-2.0
#include "engine/text/utf8_repair.h"

namespace diffserve {
void Utf8Repair::Replace(std::string& out) {
  const size_t count = unit_ == Unit::kByte ? pending_.size() : 1;
  for (size_t i = 0; i < count; ++i) out += kReplacementCharacter;
  pending_.clear();
  missing_ = 0;
}

void Utf8Repair::Begin(unsigned char byte, std::string& out) {
  if (byte < 0x80) {
    out.push_back(static_cast<char>(byte));
    return;
  }
  pending_.assign(1, static_cast<char>(byte));
  lower_ = 0x80;
  upper_ = 0xBF;
  if (byte >= 0xC2 && byte <= 0xDF) {
    missing_ = 1;
  } else if (byte >= 0xE0 && byte <= 0xEF) {
    missing_ = 2;
    if (byte == 0xE0) lower_ = 0xA0;  // no overlong encodings
    if (byte == 0xED) upper_ = 0x9F;  // no surrogates
  } else if (byte >= 0xF0 && byte <= 0xF4) {
    missing_ = 3;
    if (byte == 0xF0) lower_ = 0x90;
    if (byte == 0xF4) upper_ = 0x8F;  // U+10FFFF is the last
  } else {
    Replace(out);
  }
}

void Utf8Repair::Push(std::string_view bytes, std::string& out) {
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (missing_ == 0) {
      Begin(byte, out);
    } else if (byte < lower_ || byte > upper_) {
      Replace(out);
      Begin(byte, out);
    } else {
      pending_.push_back(c);
      lower_ = 0x80;
      upper_ = 0xBF;
      if (--missing_ == 0) {
        out += pending_;
        pending_.clear();
      }
    }
  }
}

void Utf8Repair::Finish(std::string& out) {
  if (missing_ > 0) Replace(out);
}

}  // namespace diffserve
