// The header of a safetensors file: 8 bytes of length, then a JSON object of a fixed form,
//   {"__metadata__": {"k": "v", ...}, "NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}
// followed by spaces. A parser of its own for that form alone: no nesting to limit, no copy of the text, no value kept that is
// not used, so that a header of any size is refused or read in time and memory in proportion to it.
#include <algorithm>
#include <array>
#include <cstring>

#include "models/safetensors.h"

namespace diffserve {
namespace {

struct FormatType { std::string_view name; int bits; };
constexpr std::array<FormatType, 20> kFormatTypes = {{
    {"F32", 32}, {"BF16", 16}, {"F16", 16}, {"F64", 64}, {"I64", 64}, {"I32", 32}, {"I16", 16}, {"I8", 8}, {"U64", 64},
    {"U32", 32}, {"U16", 16}, {"U8", 8}, {"BOOL", 8}, {"C64", 64}, {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8},
    {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4},
}};
constexpr size_t kMaxQuotedChars = 80;  // of the file's text in an error

std::string Quoted(std::string_view text) {
  std::string line;
  for (char c : text.substr(0, kMaxQuotedChars)) line += c >= 0x20 && c < 0x7f ? c : '?';
  return text.size() > kMaxQuotedChars ? line + "..." : line;
}

// A cursor over the header's text. Every method returns false, with a problem recorded, if the text is not what was asked for.
class HeaderParser {
 public:
  HeaderParser(std::string_view text, SafetensorsHeader& header) : text_(text), header_(header) {}

  bool ParseAll() {
    if (text_.empty() || text_[0] != '{') return Fail("starts with another byte than '{'");
    const auto member = [this](std::string_view key) { return key == "__metadata__" ? ParseMetadata() : ParseTensor(key); };
    if (!Object(member)) return false;
    SkipSpace();
    return position_ == text_.size() || Fail("has text behind its end");
  }
  const std::string& problem() const { return problem_; }

 private:
  // The first problem counts.
  bool Fail(std::string_view what) {
    if (problem_.empty()) problem_ = std::string(what) + " (header byte " + std::to_string(position_) + ")";
    return false;
  }
  bool FailTensor(std::string_view name, const std::string& what) { return Fail("tensor " + Quoted(name) + " " + what); }

  void SkipSpace() {
    while (position_ < text_.size() && (text_[position_] == ' ' || text_[position_] == '\n' || text_[position_] == '\r' ||
                                        text_[position_] == '\t')) {
      ++position_;
    }
  }
  // Takes `c`, with space before it, if it is next.
  bool Take(char c) {
    SkipSpace();
    if (position_ >= text_.size() || text_[position_] != c) return false;
    ++position_;
    return true;
  }
  bool Expect(char c) { return Take(c) || Fail(std::string("expected '") + c + "'"); }

  // A string, without its quotes. Escapes stay as they are: no name or value that is used needs one.
  bool String(std::string_view& out) {
    if (!Expect('"')) return false;
    const size_t begin = position_;
    for (; position_ < text_.size(); ++position_) {
      const unsigned char c = static_cast<unsigned char>(text_[position_]);
      if (c == '"') {
        out = text_.substr(begin, position_ - begin);
        ++position_;
        return true;
      }
      if (c < 0x20) return Fail("control character in a string");
      if (c == '\\' && ++position_ == text_.size()) break;
    }
    return Fail("a string does not end");
  }

  // A number as the format has them: digits alone, below 2^63.
  bool Number(int64_t& out) {
    SkipSpace();
    const size_t begin = position_;
    uint64_t value = 0;
    for (; position_ < text_.size() && text_[position_] >= '0' && text_[position_] <= '9'; ++position_) {
      if (__builtin_mul_overflow(value, uint64_t{10}, &value) ||
          __builtin_add_overflow(value, static_cast<uint64_t>(text_[position_] - '0'), &value) || value > INT64_MAX) {
        return Fail("number too large");
      }
    }
    if (position_ == begin) return Fail("expected a number without sign");
    out = static_cast<int64_t>(value);
    return true;
  }

  // {"KEY": VALUE, ...} where member(KEY) parses VALUE.
  template <typename Member>
  bool Object(const Member& member) {
    if (!Expect('{')) return false;
    if (Take('}')) return true;
    do {
      std::string_view key;
      if (!String(key) || !Expect(':') || !member(key)) return false;
    } while (Take(','));
    return Expect('}');
  }

  // [NUMBER, ...] of at most `max` numbers.
  bool Numbers(std::vector<int64_t>& out, size_t max) {
    if (!Expect('[')) return false;
    if (Take(']')) return true;
    do {
      int64_t value = 0;
      if (!Number(value)) return false;
      if (out.size() == max) return Fail("a list of more than " + std::to_string(max) + " numbers");
      out.push_back(value);
    } while (Take(','));
    return Expect(']');
  }

  bool ParseMetadata() {
    if (seen_metadata_) return Fail("__metadata__ occurs twice");
    seen_metadata_ = true;
    return Object([this](std::string_view) {
      std::string_view value;
      return String(value);
    });
  }

  bool ParseTensor(std::string_view name) {
    if (name.empty() || name.size() > SafetensorsFile::kMaxNameBytes) {
      return Fail("a tensor name of " + std::to_string(name.size()) + " bytes, allowed 1.." +
                  std::to_string(SafetensorsFile::kMaxNameBytes));
    }
    if (std::ranges::any_of(name, [](char c) { return c <= 0x20 || c >= 0x7f || c == '\\'; })) {
      return FailTensor(name, "has a name with other than printable ASCII characters");
    }
    if (header_.size() == SafetensorsFile::kMaxTensors) {
      return Fail("more than " + std::to_string(SafetensorsFile::kMaxTensors) + " tensors");
    }
    const auto [position, is_new] = header_.try_emplace(std::string(name));
    if (!is_new) return FailTensor(name, "occurs twice");
    SafetensorsEntry& entry = position->second;
    std::vector<int64_t> offsets;
    unsigned seen = 0;  // bits: dtype, shape, data_offsets
    const bool parsed = Object([&](std::string_view key) {
      const unsigned bit = key == "dtype" ? 1u : key == "shape" ? 2u : key == "data_offsets" ? 4u : 0u;
      if (bit == 0) return FailTensor(name, "has an unknown key " + Quoted(key));
      if ((seen & bit) != 0) return FailTensor(name, "has " + std::string(key) + " twice");
      seen |= bit;
      if (bit == 2) return Numbers(entry.shape, SafetensorsFile::kMaxRank) || FailTensor(name, "has a bad shape");
      if (bit == 4) return Numbers(offsets, 2) || FailTensor(name, "has bad data_offsets");
      std::string_view dtype_name;
      if (!String(dtype_name)) return false;
      entry.dtype_name = Quoted(dtype_name);
      return true;
    });
    if (!parsed) return false;
    if (seen != 7u || offsets.size() != 2) return FailTensor(name, "needs dtype, shape and two data_offsets");
    return CheckExtent(name, offsets[0], offsets[1], entry);
  }

  // The one place where a size in bytes follows from a shape.
  bool CheckExtent(std::string_view name, int64_t begin, int64_t end, SafetensorsEntry& entry) {
    const auto type = std::ranges::find(kFormatTypes, std::string_view(entry.dtype_name), &FormatType::name);
    if (type == kFormatTypes.end()) return FailTensor(name, "has dtype " + entry.dtype_name + ", which the format does not know");
    entry.is_float = type->name == "F32" || type->name == "BF16" || type->name == "F16";
    entry.dtype = type->name == "BF16" ? DType::kBFloat16 : type->name == "F16" ? DType::kFloat16 : DType::kFloat32;
    int64_t bits = type->bits;
    for (int64_t extent : entry.shape) {
      if (__builtin_mul_overflow(bits, extent, &bits)) return FailTensor(name, "has a shape whose size overflows");
    }
    if (bits % 8 != 0) return FailTensor(name, "has a size of " + std::to_string(bits) + " bits, expected whole bytes");
    if (begin > end) return FailTensor(name, "ends before it begins");
    if (end - begin != bits / 8) {
      return FailTensor(name, "has " + std::to_string(end - begin) + " bytes, expected " + std::to_string(bits / 8) + " for " +
                                  entry.dtype_name + " " + TensorView{nullptr, entry.dtype, entry.shape}.ShapeString());
    }
    entry.begin = static_cast<size_t>(begin);
    entry.end = static_cast<size_t>(end);
    return true;
  }

  std::string_view text_;
  SafetensorsHeader& header_;
  size_t position_ = 0;
  bool seen_metadata_ = false;
  std::string problem_;
};

// Tensors must cover [0, data_bytes) one behind the other. Empty if they do.
std::string CoverageProblem(const SafetensorsHeader& header, size_t data_bytes) {
  std::vector<const SafetensorsHeader::value_type*> by_offset;
  by_offset.reserve(header.size());
  for (const auto& tensor : header) by_offset.push_back(&tensor);
  std::ranges::sort(by_offset, [](const auto* a, const auto* b) {
    return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
  });
  size_t covered = 0;
  for (const auto* tensor : by_offset) {
    if (tensor->second.begin != covered) {
      return "tensor " + tensor->first + " begins at byte " + std::to_string(tensor->second.begin) + " of the data, expected " +
             std::to_string(covered) + (tensor->second.begin < covered ? " (overlap)" : " (hole)");
    }
    covered = tensor->second.end;
    if (covered > data_bytes) {
      return "tensor " + tensor->first + " ends at byte " + std::to_string(covered) + " of the data, which has " +
             std::to_string(data_bytes) + " (truncated file?)";
    }
  }
  if (covered == data_bytes) return "";
  return "has " + std::to_string(data_bytes) + " bytes of data, expected " + std::to_string(covered) + " for its tensors";
}

}  // namespace

Result<SafetensorsHeader> SafetensorsFile::ParseHeader(std::string_view bytes, size_t file_size, const std::string& name) {
  uint64_t header_bytes = 0;
  if (bytes.size() < sizeof(header_bytes) || file_size < sizeof(header_bytes)) {
    return InvalidArgument(name + ": has " + std::to_string(file_size) + " bytes, too few for a safetensors header");
  }
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));  // little-endian, as this machine
  if (header_bytes > kMaxHeaderBytes) {
    return InvalidArgument(name + ": says its header has " + std::to_string(header_bytes) + " bytes, allowed " +
                           std::to_string(kMaxHeaderBytes));
  }
  const size_t available = std::min(bytes.size(), file_size) - sizeof(header_bytes);
  if (header_bytes > available) {
    return InvalidArgument(name + ": says its header has " + std::to_string(header_bytes) + " bytes, and only " +
                           std::to_string(available) + " follow (truncated file?)");
  }
  SafetensorsHeader header;
  HeaderParser parser(bytes.substr(sizeof(header_bytes), header_bytes), header);
  if (!parser.ParseAll()) return InvalidArgument(name + ": " + parser.problem());
  const std::string problem = CoverageProblem(header, file_size - sizeof(header_bytes) - header_bytes);
  if (!problem.empty()) return InvalidArgument(name + ": " + problem);
  return header;
}

}  // namespace diffserve
