// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/models/damaged_checkpoint.h"

#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <random>
#include <utility>

#include "models/safetensors.h"

namespace diffserve {
namespace {

// A safetensors header as text in parts, so that it can be invalid in any way.
struct HeaderDraft {
  struct Tensor {
    std::string name, dtype, shape, begin, end;
  };
  std::vector<Tensor> tensors;  // in the order of the data
  std::string data;

  explicit HeaderDraft(const std::string& file);

  std::string Json() const;
  std::string Bytes() const { return SafetensorsHeaderBytes(Json()) + data; }
};

HeaderDraft::HeaderDraft(const std::string& file) {
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof(length));
  data = file.substr(sizeof(length) + length);
  std::map<size_t, Tensor> by_offset;
  for (const auto& [name, entry] :
       SafetensorsFile::ParseHeader(file, file.size(), "good").value()) {
    const std::string shape = TensorView{nullptr, entry.dtype, entry.shape}.ShapeString();
    by_offset[entry.begin] = {name, entry.dtype_name, shape, std::to_string(entry.begin),
                              std::to_string(entry.end)};
  }
  for (const auto& [offset, tensor] : by_offset) tensors.push_back(tensor);
}

std::string HeaderDraft::Json() const {
  std::string json = "{";
  for (const Tensor& t : tensors) {
    json.append(json.size() > 1 ? ",\"" : "\"")
        .append(t.name)
        .append("\":{\"dtype\":\"")
        .append(t.dtype);
    json.append("\",\"shape\":")
        .append(t.shape)
        .append(",\"data_offsets\":[")
        .append(t.begin)
        .append(",")
        .append(t.end);
    json.append("]}");
  }
  return json + "}";
}

Damage FlipOf(const std::string& file, size_t bit, Expected expected) {
  return {file + " bit " + std::to_string(bit), expected,
          [file, bit](DamagedCopy& c) { c.Flip(file, bit); }};
}

// What becomes of the file with a bit of its data section flipped: the weight that holds it must
// stay finite, and where the loader takes an exponential of the weight, that too.
Expected OutcomeOfFlip(const SafetensorsHeader& header, std::string_view data, size_t bit) {
  const size_t byte = bit / 8;
  for (const auto& [name, entry] : header) {
    if (byte < entry.begin || byte >= entry.end || !entry.is_float) continue;
    const size_t in_number = (byte - entry.begin) % SizeOf(entry.dtype);
    std::string number(data.substr(byte - in_number, SizeOf(entry.dtype)));
    number[in_number] ^= static_cast<char>(1 << bit % 8);
    if (!std::isfinite(TensorView{number.data(), entry.dtype, {1}}.At(0)))
      return Expected::kRefused;
    const bool has_exponential = name.ends_with(".A_log") ||
                                 name.find(".lambda_") != std::string::npos;
    return has_exponential ? Expected::kEither : Expected::kLoaded;
  }
  return Expected::kLoaded;
}

}  // namespace

DamagedCopy::DamagedCopy(const std::filesystem::path& source, bool two_shards) {
  std::filesystem::permissions(directory_.path(), std::filesystem::perms(0755));
  for (const auto& entry : std::filesystem::directory_iterator(source)) {
    const std::string name = entry.path().filename().string();
    if (name == "expected.safetensors" || name == "logit_bits.safetensors" ||
        !entry.is_regular_file() || name.ends_with(".md"))
      continue;
    good_[name] = FileBytes(entry.path());
  }
  if (two_shards && good_.contains("model.safetensors")) Split();
  for (const auto& [name, bytes] : good_) WriteFile(directory_.path() / name, bytes);
}

std::vector<std::string> DamagedCopy::TensorFiles() const {
  std::vector<std::string> names;
  for (const auto& [name, bytes] : good_) {
    if (name.ends_with(".safetensors")) names.push_back(name);
  }
  return names;
}

void DamagedCopy::Cut(const std::string& name, size_t length) {
  Write(name, std::string_view(good_.at(name)).substr(0, length));
}

void DamagedCopy::Flip(const std::string& name, size_t bit) {
  std::string bytes = good_.at(name);
  bytes.at(bit / 8) ^= static_cast<char>(1 << bit % 8);
  Write(name, bytes);
}

void DamagedCopy::Link(const std::string& name, const std::string& target) {
  std::filesystem::create_symlink(target, Replaced(name));
}

void DamagedCopy::MakePipe(const std::string& name) { mkfifo(Replaced(name).c_str(), 0600); }

void DamagedCopy::ForbidReading(const std::string& name) {
  std::filesystem::permissions(Touched(name), std::filesystem::perms::none);
}

void DamagedCopy::Restore() {
  for (const std::string& name : std::set<std::string>(std::move(touched_))) {
    std::filesystem::remove_all(Path(name));
    if (const auto good = good_.find(name); good != good_.end())
      WriteFile(Path(name), good->second);
  }
  touched_.clear();
}

std::filesystem::path DamagedCopy::Touched(const std::string& name) {
  return touched_.insert(name), Path(name);
}

std::filesystem::path DamagedCopy::Replaced(const std::string& name) {
  std::filesystem::remove_all(Touched(name));
  return Path(name);
}

void DamagedCopy::Split() {
  const std::string whole = good_.extract("model.safetensors").mapped();
  const SafetensorsHeader header =
      SafetensorsFile::ParseHeader(whole, whole.size(), "whole").value();
  uint64_t length = 0;
  std::memcpy(&length, whole.data(), sizeof(length));
  std::vector<FileTensor> shards[2];
  std::string weight_map;
  for (const auto& [name, entry] : header) {
    const size_t shard = shards[0].size() < header.size() / 2 ? 0 : 1;
    const std::string bytes = whole.substr(sizeof(length) + length + entry.begin,
                                           entry.end - entry.begin);
    shards[shard].push_back({name, entry.dtype_name, entry.shape, bytes});
    weight_map += (weight_map.empty() ? "\"" : ", \"") + name + "\": \"" + kShards[shard] + "\"";
  }
  for (size_t shard : {0, 1}) good_[kShards[shard]] = SafetensorsBytes(shards[shard]);
  good_[kIndexName] = "{\"metadata\": {\"total_size\": 1}, \"weight_map\": {" + weight_map + "}}\n";
}

std::vector<Damage> Cuts(const DamagedCopy& copy, const std::string& file, size_t stride) {
  const std::string& bytes = copy.good().at(file);
  std::set<size_t> lengths;
  for (size_t length = 0; length < 4096; length += stride) lengths.insert(length);
  if (file.ends_with(".safetensors")) {
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof(length));
    std::set<size_t> edges = {1, sizeof(length), sizeof(length) + length, bytes.size()};
    for (const auto& [name, entry] :
         SafetensorsFile::ParseHeader(bytes, bytes.size(), file).value()) {
      edges.insert(sizeof(length) + length + entry.end);
    }
    for (size_t edge : edges) lengths.insert({edge - 1, edge, edge + 1});
  }
  // JSON text is whole up to its last brace.
  const size_t whole = file.ends_with(".json") ? bytes.find_last_of('}') + 1 : bytes.size();
  std::vector<Damage> damages;
  for (size_t length : lengths) {
    if (length >= whole) continue;
    damages.push_back({file + " cut to " + std::to_string(length) + " bytes", Expected::kRefused,
                       [file, length](DamagedCopy& c) { c.Cut(file, length); }});
  }
  return damages;
}

std::vector<Damage> Flips(const DamagedCopy& copy, const std::string& file, size_t count,
                          uint64_t seed) {
  const std::string& bytes = copy.good().at(file);
  std::mt19937_64 random(seed);
  std::vector<Damage> damages;
  const auto add = [&](size_t num_bits, const std::function<Expected(size_t bit)>& expected) {
    const bool every = num_bits <= count;
    for (size_t i = 0; i < std::min(num_bits, count); ++i) {
      const size_t bit = every ? i : random() % num_bits;
      damages.push_back(FlipOf(file, bit, expected(bit)));
    }
  };
  const auto either = [](size_t) { return Expected::kEither; };
  if (!file.ends_with(".safetensors")) {
    add(8 * bytes.size(), either);
    return damages;
  }
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof(length));
  const size_t header_bytes = sizeof(length) + length;
  const SafetensorsHeader header = SafetensorsFile::ParseHeader(bytes, bytes.size(), file).value();
  const std::string_view data = std::string_view(bytes).substr(header_bytes);
  add(8 * bytes.size(), [&](size_t bit) {
    if (bit < 8 * header_bytes) return Expected::kEither;
    return OutcomeOfFlip(header, data, bit - 8 * header_bytes);
  });
  add(8 * header_bytes, either);
  return damages;
}

std::vector<Damage> LyingHeaders(const DamagedCopy& copy, const std::string& file) {
  std::vector<Damage> damages;
  const auto add = [&](const std::string& name, const std::function<void(HeaderDraft&)>& change,
                       Expected expected = Expected::kRefused) {
    damages.push_back({file + ": " + name, expected, [file, change](DamagedCopy& c) {
                         HeaderDraft draft(c.good().at(file));
                         change(draft);
                         c.Write(file, draft.Bytes());
                       }});
  };
  const size_t last = HeaderDraft(copy.good().at(file)).tensors.size() - 1;
  add("overlap", [last](HeaderDraft& d) { d.tensors[last].begin = d.tensors[last - 1].begin; });
  add("the same bytes twice", [last](HeaderDraft& d) {
    HeaderDraft::Tensor twin = d.tensors[last];
    twin.name += "_twin";
    d.tensors.push_back(twin);
  });
  add("hole", [](HeaderDraft& d) { d.tensors.erase(d.tensors.begin()); });
  add("hole at the end", [last](HeaderDraft& d) { d.tensors.resize(last); });
  add("a byte behind the data", [](HeaderDraft& d) { d.data += '\0'; });
  for (const char* offset :
       {"-1", "-9223372036854775808", "9223372036854775807", "9223372036854775808",
        "18446744073709551615", "18446744073709551616", "1e3", "0.5", "null", "\"0\"", "[]",
        "99999999999999999999999999999999"}) {
    add(std::string("end ") + offset,
        [last, offset](HeaderDraft& d) { d.tensors[last].end = offset; });
    add(std::string("begin ") + offset,
        [last, offset](HeaderDraft& d) { d.tensors[last].begin = offset; });
  }
  for (const char* shape :
       {"[4294967296,4294967296]", "[4294967296,4294967296,4294967296,4294967296]",
        "[2305843009213693952]", "[9223372036854775807,9223372036854775807]", "[-1]", "[-64,-64]",
        "[1,1,1,1,1,1,1,1,1]", "[]", "[0]", "[1.0]", "[[1]]", "{}", "null", "64",
        "[18446744073709551615]", "[64,]"}) {
    add(std::string("shape ") + shape,
        [last, shape](HeaderDraft& d) { d.tensors[last].shape = shape; });
  }
  for (const char* dtype :
       {"", "F", "F33", "f32", "I32", "F64", "F4", "F8_E4M3", "\\u0046\\u0033\\u0032"}) {
    add(std::string("dtype ") + dtype,
        [last, dtype](HeaderDraft& d) { d.tensors[last].dtype = dtype; });
  }
  for (const std::string& name :
       {std::string(), std::string(513, 'n'), std::string("a\\nb"), std::string("a\x01"),
        std::string("a\xc3\xa9"), std::string(1 << 20, 'n'), std::string("__metadata__")}) {
    add("name of " + std::to_string(name.size()) + " bytes",
        [last, name](HeaderDraft& d) { d.tensors[last].name = name; });
  }
  add("duplicate key", [last](HeaderDraft& d) { d.tensors[last].name = d.tensors[0].name; });
  add("a key twice in a tensor",
      [last](HeaderDraft& d) { d.tensors[last].dtype += "\",\"dtype\":\"F32"; });
  // Zero bytes each, so that nothing but their number is wrong.
  const auto add_tensors = [](size_t count) {
    return [count](HeaderDraft& d) {
      const std::string end = d.tensors.back().end;
      for (size_t i = d.tensors.size(); i < count; ++i)
        d.tensors.push_back({std::to_string(i), "F32", "[0]", end, end});
    };
  };
  add("100,000 tensors", add_tensors(100'000));
  add("65,537 tensors", add_tensors(65'537));
  if (copy.TensorFiles().size() == 1) add("65,536 tensors", add_tensors(65'536), Expected::kLoaded);
  return damages;
}

std::vector<Damage> BrokenHeaders(const DamagedCopy& copy, const std::string& file) {
  std::vector<Damage> damages;
  const auto add = [&](const std::string& name,
                       const std::function<std::string(const HeaderDraft&)>& bytes,
                       Expected expected = Expected::kRefused) {
    damages.push_back({file + ": " + name, expected, [file, bytes](DamagedCopy& c) {
                         c.Write(file, bytes(HeaderDraft(c.good().at(file))));
                       }});
  };
  const size_t size = copy.good().at(file).size();
  for (uint64_t length : {uint64_t{0}, uint64_t{1}, uint64_t{size - 8}, uint64_t{size},
                          uint64_t{1} << 31, (uint64_t{1} << 32) + 2, uint64_t{100'000'000},
                          uint64_t{1} << 63, UINT64_MAX - 8, UINT64_MAX - 7, UINT64_MAX}) {
    add("length field " + std::to_string(length), [length](const HeaderDraft& d) {
      std::string bytes = d.Bytes();
      std::memcpy(bytes.data(), &length, sizeof(length));
      return bytes;
    });
  }
  const auto repeated = [](const char* text, size_t count) {
    std::string json;
    for (size_t i = 0; i < count; ++i) json += text;
    return json;
  };
  constexpr size_t kMax = SafetensorsFile::kMaxHeaderBytes;
  const auto header = [&](const std::string& name, const std::function<std::string()>& json) {
    add(name, [json](const HeaderDraft& d) { return SafetensorsHeaderBytes(json()) + d.data; });
  };
  header("100 MB of spaces", [] { return std::string(kMax, ' '); });
  header("a brace and 100 MB of spaces", [] { return "{" + std::string(kMax - 1, ' '); });
  header("100 MB of braces", [] { return std::string(kMax, '{'); });
  header("a name of 100 MB", [] { return "{\"" + std::string(kMax - 2, 'a'); });
  header("metadata of 100 MB",
         [=] { return "{\"__metadata__\":{" + repeated("\"\":\"\",", 14'000'000) + "}}"; });
  header("a number of 100 MB",
         [] { return "{\"a\":{\"shape\":[" + std::string(kMax - 20, '0') + "]}}"; });
  header("deep objects", [=] { return repeated("{\"a\":", 1'000'000); });
  header("deep lists", [=] { return "{\"a\":{\"shape\":" + std::string(1'000'000, '['); });
  header("deep metadata", [=] { return "{\"__metadata__\":" + repeated("{\"a\":", 1'000'000); });
  header("no tensor", [] { return std::string("{}"); });
  header("a zero byte", [] { return std::string("{\0}", 3); });
  add(
      "good, with spaces up to 100 MB",
      [](const HeaderDraft& d) {
        std::string json = d.Json();
        json.resize(kMax, ' ');
        return SafetensorsHeaderBytes(json) + d.data;
      },
      copy.TensorFiles().size() == 1 ? Expected::kLoaded : Expected::kRefused);  // all headers
                                                                                 // together may
                                                                                 // have no more
  add("good, with spaces up to 100 MB and one byte", [](const HeaderDraft& d) {
    std::string json = d.Json();
    json.resize(kMax + 1, ' ');
    return SafetensorsHeaderBytes(json) + d.data;
  });
  return damages;
}

std::vector<Damage> NoFiles(const std::string& file) {
  std::vector<Damage> damages;
  const auto add = [&](const std::string& name, const std::function<void(DamagedCopy&)>& apply,
                       bool as_unprivileged_user = false) {
    damages.push_back({file + " is " + name, Expected::kRefused, apply, as_unprivileged_user});
  };
  add("missing", [file](DamagedCopy& c) { c.Remove(file); });
  add("empty", [file](DamagedCopy& c) { c.Write(file, ""); });
  add("a directory", [file](DamagedCopy& c) { c.MakeDirectory(file); });
  add("a pipe", [file](DamagedCopy& c) { c.MakePipe(file); });
  add("a link to a directory", [file](DamagedCopy& c) { c.Link(file, "/"); });
  add("a link to itself", [file](DamagedCopy& c) { c.Link(file, file); });
  add("a link to nothing", [file](DamagedCopy& c) { c.Link(file, "nothing"); });
  for (const char* device : {"/dev/zero", "/dev/null", "/dev/random", "/dev/tty"}) {
    add(std::string("a link to ") + device, [=](DamagedCopy& c) { c.Link(file, device); });
  }
  add("forbidden", [file](DamagedCopy& c) { c.ForbidReading(file); }, true);
  // Regular files that cannot be read: a process's memory at 0, and an attribute that can only be
  // written.
  for (const char* unreadable :
       {"/proc/self/mem", "/sys/bus/cpu/drivers_probe", "/sys/bus/platform/drivers_probe"}) {
    if (!std::filesystem::exists(unreadable)) continue;
    add(std::string("a link to ") + unreadable, [=](DamagedCopy& c) { c.Link(file, unreadable); });
  }
  return damages;
}

}  // namespace diffserve
