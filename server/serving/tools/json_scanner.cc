// SPDX-License-Identifier: Apache-2.0
#include "server/serving/tools/json_scanner.h"

#include "kernels/process/check.h"

namespace diffserve {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

int HexOf(char c) {
  if (IsDigit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

void AppendUtf8(uint32_t code, std::string* out) {
  const auto put = [out](uint32_t byte) { *out += static_cast<char>(byte); };
  if (code < 0x80) return put(code);
  if (code < 0x800) {
    put(0xC0 | (code >> 6));
  } else if (code < 0x10000) {
    put(0xE0 | (code >> 12));
    put(0x80 | ((code >> 6) & 0x3F));
  } else {
    put(0xF0 | (code >> 18));
    put(0x80 | ((code >> 12) & 0x3F));
    put(0x80 | ((code >> 6) & 0x3F));
  }
  put(0x80 | (code & 0x3F));
}

uint32_t Hex4(std::string_view text) {
  uint32_t code = 0;
  for (const char c : text.substr(0, 4)) code = code * 16 + static_cast<uint32_t>(HexOf(c));
  return code;
}

}  // namespace

JsonScanner::Step JsonScanner::Open(bool object) {
  if (depth_ == kMaxDepth) return Step::kWrong;
  object_[static_cast<size_t>(depth_++)] = object;
  state_ = object ? State::kFirstKey : State::kFirstValue;
  return Step::kMore;
}

JsonScanner::Step JsonScanner::Close(bool object) {
  if (depth_ == 0 || object_[static_cast<size_t>(depth_ - 1)] != object) return Step::kWrong;
  --depth_;
  return Ended();
}

JsonScanner::Step JsonScanner::Ended() {
  state_ = State::kComma;
  return depth_ == 0 ? Step::kEnd : Step::kMore;
}

JsonScanner::Step JsonScanner::BeginValue(char c) {
  if (c == '{') return Open(true);
  if (c == '[') return Open(false);
  if (c == '"') {
    key_ = false;
    state_ = State::kString;
  } else if (c == 't' || c == 'f' || c == 'n') {
    word_ = c == 't' ? "rue" : c == 'f' ? "alse" : "ull";
    state_ = State::kWord;
  } else if (c == '-') {
    state_ = State::kMinus;
  } else if (IsDigit(c)) {
    state_ = c == '0' ? State::kZero : State::kDigits;
  } else {
    return Step::kWrong;
  }
  return Step::kMore;
}

JsonScanner::Step JsonScanner::InString(char c) {
  const auto byte = static_cast<unsigned char>(c);
  if (c == '"') {
    if (!key_) return Ended();
    state_ = State::kColon;
    return Step::kMore;
  }
  if (c == '\\') {
    state_ = State::kEscape;
    return Step::kMore;
  }
  if (byte < 0x20) return Step::kWrong;
  if (byte < 0x80) return Step::kMore;
  if (byte < 0xC2 || byte > 0xF4) return Step::kWrong;
  left_ = byte < 0xE0 ? 1 : byte < 0xF0 ? 2 : 3;
  least_ = byte == 0xE0 ? 0xA0 : byte == 0xF0 ? 0x90 : 0x80;
  most_ = byte == 0xED ? 0x9F : byte == 0xF4 ? 0x8F : 0xBF;
  state_ = State::kUtf8;
  return Step::kMore;
}

// Within a number: the state after `c`, or that the number has ended.
JsonScanner::Step JsonScanner::InDigits(char c) {
  const auto to = [this](State state) {
    state_ = state;
    return Step::kMore;
  };
  switch (state_) {
    case State::kMinus:
      return IsDigit(c) ? to(c == '0' ? State::kZero : State::kDigits) : Step::kWrong;
    case State::kPoint:
    case State::kFraction:
      if (IsDigit(c)) return to(State::kFraction);
      if (state_ == State::kPoint) return Step::kWrong;
      return c == 'e' || c == 'E' ? to(State::kExponent) : Step::kPast;
    case State::kExponent:
      if (c == '+' || c == '-') return to(State::kExponentSign);
      [[fallthrough]];
    case State::kExponentSign:
      return IsDigit(c) ? to(State::kExponentDigits) : Step::kWrong;
    case State::kExponentDigits:
      return IsDigit(c) ? Step::kMore : Step::kPast;
    default:  // kZero, kDigits
      if (IsDigit(c)) return state_ == State::kDigits ? Step::kMore : Step::kWrong;
      if (c == '.') return to(State::kPoint);
      return c == 'e' || c == 'E' ? to(State::kExponent) : Step::kPast;
  }
}

JsonScanner::Step JsonScanner::Push(char c) {
  if (InNumber()) {
    const Step step = InDigits(c);
    if (step != Step::kPast || depth_ == 0) return step;
    state_ = State::kComma;  // `c` follows the number
  }
  switch (state_) {
    case State::kString:
      return InString(c);
    case State::kEscape:
      if (c == 'u') left_ = 4;
      state_ = c == 'u' ? State::kHex : State::kString;
      return std::string_view("\"\\/bfnrtu").find(c) != std::string_view::npos ? Step::kMore
                                                                               : Step::kWrong;
    case State::kHex:
      if (HexOf(c) < 0) return Step::kWrong;
      if (--left_ == 0) state_ = State::kString;
      return Step::kMore;
    case State::kUtf8: {
      const auto byte = static_cast<unsigned char>(c);
      if (byte < least_ || byte > most_) return Step::kWrong;
      least_ = 0x80;
      most_ = 0xBF;
      if (--left_ == 0) state_ = State::kString;
      return Step::kMore;
    }
    case State::kWord:
      if (c != word_.front()) return Step::kWrong;
      word_.remove_prefix(1);
      return word_.empty() ? Ended() : Step::kMore;
    default:
      break;
  }
  if (IsJsonSpace(c)) return Step::kMore;
  switch (state_) {
    case State::kValue:
      return BeginValue(c);
    case State::kFirstValue:
      return c == ']' ? Close(false) : BeginValue(c);
    case State::kFirstKey:
      if (c == '}') return Close(true);
      [[fallthrough]];
    case State::kKey:
      key_ = true;
      state_ = State::kString;
      return c == '"' ? Step::kMore : Step::kWrong;
    case State::kColon:
      state_ = State::kValue;
      return c == ':' ? Step::kMore : Step::kWrong;
    default:  // kComma
      if (c == '}' || c == ']') return Close(c == '}');
      if (c != ',' || depth_ == 0) return Step::kWrong;
      state_ = object_[static_cast<size_t>(depth_ - 1)] ? State::kKey : State::kValue;
      return Step::kMore;
  }
}

bool JsonScanner::EndsHere() const {
  return depth_ == 0 && (state_ == State::kZero || state_ == State::kDigits ||
                         state_ == State::kFraction || state_ == State::kExponentDigits);
}

bool IsJson(std::string_view text) {
  JsonScanner scanner;
  for (size_t i = 0; i < text.size(); ++i) {
    const JsonScanner::Step step = scanner.Push(text[i]);
    if (step == JsonScanner::Step::kWrong) return false;
    if (step == JsonScanner::Step::kMore) continue;
    const size_t end = step == JsonScanner::Step::kEnd ? i + 1 : i;
    return text.find_first_not_of(" \t\n\r", end) == std::string_view::npos;
  }
  return scanner.EndsHere();
}

bool IsJsonObject(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\n\r");
  return first != std::string_view::npos && text[first] == '{' && IsJson(text);
}

std::string JsonUnescaped(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\') {
      out += text[i];
      continue;
    }
    DS_CHECK(++i < text.size(), "a JSON string that was not scanned");
    const size_t simple = std::string_view("\"\\/bfnrt").find(text[i]);
    if (simple != std::string_view::npos) {
      out += "\"\\/\b\f\n\r\t"[simple];
      continue;
    }
    uint32_t code = Hex4(text.substr(i + 1));
    i += 4;
    if (code >= 0xD800 && code < 0xDC00 && text.substr(i + 1).starts_with("\\u")) {
      const uint32_t low = Hex4(text.substr(i + 3));
      if (low >= 0xDC00 && low < 0xE000) {
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        i += 6;
      }
    }
    AppendUtf8(code >= 0xD800 && code < 0xE000 ? 0xFFFD : code, &out);
  }
  return out;
}

}  // namespace diffserve
