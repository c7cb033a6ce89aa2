// SPDX-License-Identifier: Apache-2.0
// The header of a safetensors file: 8 bytes of length, then a JSON object of a fixed form,
//   {"__metadata__": {"k": "v", ...},
//    "NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}
// followed by spaces. This parser accepts only that form: no nesting to limit, no copy of the text,
// and no stored value that can be parsed again. So any header takes time and memory in proportion
// to its size.
#include <algorithm>
#include <array>
#include <tuple>

#include "kernels/base/refusal.h"
#include "kernels/process/check.h"
#include "models/safetensors.h"

namespace diffserve {
namespace {

struct FormatType {
  std::string_view name;
  int bits;
};
constexpr std::array<FormatType, 20> kFormatTypes = {{
    {"F32", 32},    {"BF16", 16},   {"F16", 16},    {"F64", 64},    {"I64", 64},
    {"I32", 32},    {"I16", 16},    {"I8", 8},      {"U64", 64},    {"U32", 32},
    {"U16", 16},    {"U8", 8},      {"BOOL", 8},    {"C64", 64},    {"F8_E5M2", 8},
    {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4},
}};
constexpr size_t kMaxQuotedChars = 80;  // of the file's text in an error
// The shortest tensor of a header: "":{"dtype":"F4","shape":[],"data_offsets":[0,0]},
constexpr size_t kMinTensorBytes = 50;

std::string Quoted(std::string_view text) {
  std::string line;
  for (char c : text.substr(0, kMaxQuotedChars)) line += c >= 0x20 && c < 0x7f ? c : '?';
  return text.size() > kMaxQuotedChars ? line + "..." : line;
}

// A tensor's bytes in the data section, and its name in the header's text.
struct Extent {
  size_t begin;
  size_t end;
  uint32_t name_position;
};

// Names hold no escapes: they end at the next quote.
std::string_view NameAt(std::string_view text, uint32_t position) {
  return text.substr(position, text.find('"', position) - position);
}

// A cursor over the header's text. Every method returns false, with a problem recorded, if the text
// is not as expected.
class HeaderParser {
 public:
  explicit HeaderParser(std::string_view text, size_t position = 0)
      : text_(text), position_(position) {}

  // The whole header; `extents` are in the order of the text.
  bool ParseAll(std::vector<Extent>& extents) {
    if (text_.empty() || text_[0] != '{')
      return Fail(RefusalText("starts with another byte", "'{'"));
    const bool parsed = Object([&](std::string_view key) {
      if (key == "__metadata__") return ParseMetadata();
      if (extents.size() == SafetensorsFile::kMaxTensors) {
        return Fail(RefusalText("too many tensors",
                                "at most " + std::to_string(SafetensorsFile::kMaxTensors)));
      }
      SafetensorsEntry entry;
      if (!ParseTensor(key, entry)) return false;
      extents.push_back({entry.begin, entry.end, static_cast<uint32_t>(key.data() - text_.data())});
      return true;
    });
    if (!parsed) return false;
    end_ = position_;
    SkipSpace();
    return position_ == text_.size() || Fail("has text behind its end");
  }
  // One tensor, from its quoted name on.
  bool ParseMember(SafetensorsEntry& entry) {
    std::string_view name;
    return String(name) && Expect(':') && ParseTensor(name, entry);
  }
  const std::string& problem() const { return problem_; }
  size_t end() const { return end_; }  // of the text, without the spaces after it

 private:
  // Records a problem, unless there is one already.
  bool Fail(std::string_view what) {
    if (problem_.empty())
      problem_ = std::string(what) + " (header byte " + std::to_string(position_) + ")";
    return false;
  }
  bool FailTensor(std::string_view name, const std::string& what) {
    return Fail("tensor " + Quoted(name) + " " + what);
  }

  void SkipSpace() {
    while (position_ < text_.size() && (text_[position_] == ' ' || text_[position_] == '\n' ||
                                        text_[position_] == '\r' || text_[position_] == '\t')) {
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
  bool Expect(char c) {
    return Take(c) || Fail(RefusalText("another character", std::string("'") + c + "'"));
  }

  // A string, without its quotes. Escapes stay as they are: no name or value in use needs one.
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

  // A number in this format: only digits, below 2^63.
  bool Number(int64_t& out) {
    SkipSpace();
    const size_t begin = position_;
    uint64_t value = 0;
    for (; position_ < text_.size() && text_[position_] >= '0' && text_[position_] <= '9';
         ++position_) {
      if (__builtin_mul_overflow(value, uint64_t{10}, &value) ||
          __builtin_add_overflow(value, static_cast<uint64_t>(text_[position_] - '0'), &value) ||
          value > INT64_MAX) {
        return Fail("number too large");
      }
    }
    if (position_ == begin) return Fail(RefusalText("another character", "a number without sign"));
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

  bool ParseTensor(std::string_view name, SafetensorsEntry& entry) {
    if (name.empty() || name.size() > SafetensorsFile::kMaxNameBytes) {
      return Fail(RefusalText("a tensor name of " + std::to_string(name.size()) + " bytes",
                              RangeText(1, SafetensorsFile::kMaxNameBytes)));
    }
    if (std::ranges::any_of(name, [](char c) { return c <= 0x20 || c >= 0x7f || c == '\\'; })) {
      return FailTensor(name, "has a name with other than printable ASCII characters");
    }
    std::vector<int64_t> offsets;
    unsigned seen = 0;  // bits: dtype, shape, data_offsets
    const bool parsed = Object([&](std::string_view key) {
      const unsigned bit = key == "dtype"          ? 1u
                           : key == "shape"        ? 2u
                           : key == "data_offsets" ? 4u
                                                   : 0u;
      if (bit == 0)
        return FailTensor(name,
                          RefusalText("has the key " + Quoted(key), "dtype, shape, data_offsets"));
      if ((seen & bit) != 0) return FailTensor(name, "has " + std::string(key) + " twice");
      seen |= bit;
      if (bit == 2)
        return Numbers(entry.shape, SafetensorsFile::kMaxRank) ||
               FailTensor(name, "has a bad shape");
      if (bit == 4) return Numbers(offsets, 2) || FailTensor(name, "has bad data_offsets");
      std::string_view dtype_name;
      if (!String(dtype_name)) return false;
      entry.dtype_name = Quoted(dtype_name);
      return true;
    });
    if (!parsed) return false;
    if (seen != 7u || offsets.size() != 2)
      return FailTensor(name, "needs dtype, shape and two data_offsets");
    return CheckExtent(name, offsets[0], offsets[1], entry);
  }

  // The only place that computes a size in bytes from a shape.
  bool CheckExtent(std::string_view name, int64_t begin, int64_t end, SafetensorsEntry& entry) {
    const auto type = std::ranges::find(kFormatTypes, std::string_view(entry.dtype_name),
                                        &FormatType::name);
    if (type == kFormatTypes.end())
      return FailTensor(name, "has dtype " + entry.dtype_name + ", which the format does not know");
    entry.is_float = type->name == "F32" || type->name == "BF16" || type->name == "F16";
    entry.dtype = type->name == "BF16"  ? DType::kBFloat16
                  : type->name == "F16" ? DType::kFloat16
                                        : DType::kFloat32;
    int64_t bits = type->bits;
    for (int64_t extent : entry.shape) {
      if (__builtin_mul_overflow(bits, extent, &bits))
        return FailTensor(name, "has a shape whose size overflows");
    }
    if (bits % 8 != 0)
      return FailTensor(
          name, RefusalText("has a size of " + std::to_string(bits) + " bits", "whole bytes"));
    if (begin > end) return FailTensor(name, "ends before it begins");
    if (end - begin != bits / 8) {
      return FailTensor(
          name, RefusalText("has " + std::to_string(end - begin) + " bytes",
                            std::to_string(bits / 8) + " for " + entry.dtype_name + " " +
                                TensorView{nullptr, entry.dtype, entry.shape}.ShapeString()));
    }
    entry.begin = static_cast<size_t>(begin);
    entry.end = static_cast<size_t>(end);
    return true;
  }

  std::string_view text_;
  size_t position_ = 0;
  size_t end_ = 0;
  bool seen_metadata_ = false;
  std::string problem_;
};

// Tensors must cover [0, data_bytes) one after the other. Returns "" if they do. Sorts `extents`.
std::string CoverageProblem(std::string_view text, std::vector<Extent>& extents,
                            size_t data_bytes) {
  std::ranges::sort(extents, {},
                    [](const Extent& e) { return std::tuple(e.begin, e.end, e.name_position); });
  size_t covered = 0;
  for (const Extent& extent : extents) {
    const auto tensor = [&] { return "tensor " + std::string(NameAt(text, extent.name_position)); };
    if (extent.begin != covered) {
      return RefusalText(
          tensor() + " begins at byte " + std::to_string(extent.begin) + " of the data",
          std::to_string(covered) + (extent.begin < covered ? " (overlap)" : " (hole)"));
    }
    covered = extent.end;
    if (covered > data_bytes) {
      return tensor() + " ends at byte " + std::to_string(covered) + " of the data, which has " +
             std::to_string(data_bytes) + " (truncated file?)";
    }
  }
  if (covered == data_bytes) return "";
  return RefusalText("has " + std::to_string(data_bytes) + " bytes of data",
                     std::to_string(covered) + " for its tensors");
}

}  // namespace

Result<SafetensorsIndex> SafetensorsIndex::Parse(std::string text, size_t data_bytes,
                                                 const std::string& file) {
  SafetensorsIndex index;
  index.text_ = std::move(text);
  std::vector<Extent> extents;
  extents.reserve(std::min(index.text_.size() / kMinTensorBytes + 1, SafetensorsFile::kMaxTensors));
  HeaderParser parser(index.text_);
  if (!parser.ParseAll(extents)) return InvalidArgument(file + ": " + parser.problem());

  index.names_.reserve(extents.size());
  for (const Extent& extent : extents) index.names_.push_back(extent.name_position);
  std::ranges::sort(index.names_, {}, [&](uint32_t position) {
    return std::pair(NameAt(index.text_, position), position);
  });
  for (size_t i = 1; i < index.size(); ++i) {
    if (index.name(i) != index.name(i - 1)) continue;
    return InvalidArgument(file + ": tensor " + Quoted(index.name(i)) +
                           " occurs twice (header byte " + std::to_string(index.names_[i]) + ")");
  }
  const std::string problem = CoverageProblem(index.text_, extents, data_bytes);
  if (!problem.empty()) return InvalidArgument(file + ": " + problem);

  index.text_.resize(parser.end());
  if (index.text_.size() < index.text_.capacity() / 2) index.text_.shrink_to_fit();
  return index;
}

std::string_view SafetensorsIndex::name(size_t i) const { return NameAt(text_, names_.at(i)); }

SafetensorsEntry SafetensorsIndex::entry(size_t i) const {
  SafetensorsEntry entry;
  HeaderParser parser(text_, names_.at(i) - 1);
  DS_CHECK(parser.ParseMember(entry), "a header that was read once reads the same again");
  return entry;
}

size_t SafetensorsIndex::Find(std::string_view name) const {
  const auto found = std::ranges::lower_bound(
      names_, name, {}, [this](uint32_t position) { return NameAt(text_, position); });
  const bool is_there = found != names_.end() && NameAt(text_, *found) == name;
  return is_there ? static_cast<size_t>(found - names_.begin()) : size();
}

SafetensorsHeader SafetensorsIndex::ToHeader() const {
  SafetensorsHeader header;
  for (size_t i = 0; i < size(); ++i) header.emplace_hint(header.end(), name(i), entry(i));
  return header;
}

}  // namespace diffserve
