// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/models/damaged_json.h"

#include <map>
#include <utility>

#include "models/config_reader.h"

namespace diffserve {
namespace {

using WeightMap = std::vector<std::pair<std::string, std::string>>;

// A checkpoint's index with this weight map.
std::string IndexJson(const WeightMap& map) {
  std::string json = "{\"weight_map\": {";
  for (const auto& [name, shard] : map) {
    json.append(json.ends_with('{') ? "\"" : ",\"");
    json.append(name).append("\":\"").append(shard).append("\"");
  }
  return json + "}}";
}

}  // namespace

std::vector<Damage> LyingIndexes(const DamagedCopy& copy) {
  WeightMap good;
  {
    const ConfigReader index = ConfigReader::Parse(copy.good().at(kIndexName), "index").value();
    for (const auto& [name, shard] : ConfigReader(index).Object("weight_map")->StringMembers())
      good.emplace_back(name, shard);
  }
  const std::vector<std::string> shards = copy.TensorFiles();
  std::vector<Damage> damages;
  const auto add = [&](const std::string& name, const std::function<void(WeightMap&)>& change,
                       const std::function<void(DamagedCopy&)>& files = {},
                       Expected expected = Expected::kRefused) {
    WeightMap map = good;
    change(map);
    damages.push_back({"index: " + name, expected, [json = IndexJson(map), files](DamagedCopy& c) {
                         if (files) files(c);
                         c.Write(kIndexName, json);
                       }});
  };
  const auto all_in = [](const std::string& shard) {
    return [shard](WeightMap& map) {
      for (auto& [name, place] : map) place = shard;
    };
  };
  for (const char* place : {"", ".", "..", "/", "/etc/passwd", "/dev/zero", "../x.safetensors",
                            "sub/x.safetensors", "..\\\\x", "x\\u0000.safetensors",
                            "x\\n.safetensors", "config.json", "missing.safetensors"}) {
    add(std::string("a shard is ") + place, [place](WeightMap& map) { map[0].second = place; });
  }
  add("a shard's name is long", [](WeightMap& map) { map[0].second = std::string(256, 'x'); });
  add("a name is not printable",
      [](WeightMap& map) { map[0].first = "a\\nb\\u0085\\u2028\\u001b[31m"; });
  add("a name is not printable and its shard outside",
      [](WeightMap& map) { map[0] = {"a\\nb\\u0085\\u2028\\u001b[31m", "/"}; });
  add("a name is long", [](WeightMap& map) { map[0].first = std::string(1 << 20, 'n'); });
  add("all in one shard", all_in(shards[0]));
  add("a tensor in the wrong shard", [shards](WeightMap& map) {
    map[0].second = map[0].second == shards[0] ? shards[1] : shards[0];
  });
  add("a tensor that is nowhere",
      [shards](WeightMap& map) { map.emplace_back("model.nowhere", shards[0]); });
  add("a tensor twice", [](WeightMap& map) { map.push_back(map[0]); });
  add("a tensor less", [](WeightMap& map) { map.erase(map.begin()); }, {}, Expected::kLoaded);
  add("a shard less", [shards](WeightMap& map) {
    std::erase_if(map, [&](const auto& m) { return m.second == shards[1]; });
  });
  add("no tensor", [](WeightMap& map) { map.clear(); });
  add(
      "a shard under two names", [](WeightMap& map) { map[0].second = "link.safetensors"; },
      [shards](DamagedCopy& c) { c.Link("link.safetensors", shards[0]); });
  add(
      "a shard of 100 MB without tensors under 4,000 names",
      [](WeightMap& map) {
        map.clear();
        for (int i = 0; i < 4000; ++i)
          map.emplace_back("t" + std::to_string(i), "link" + std::to_string(i));
      },
      [](DamagedCopy& c) {
        c.Write("big", SafetensorsHeaderBytes("{" + std::string(99'999'000, ' ') + "}"));
        for (int i = 0; i < 4000; ++i) c.Link("link" + std::to_string(i), "big");
      });
  add("5,000 shards", [](WeightMap& map) {
    for (int i = 0; i < 5000; ++i) map.emplace_back("t" + std::to_string(i), std::to_string(i));
  });
  add("100,000 tensors", [shards](WeightMap& map) {
    for (int i = 0; i < 100'000; ++i) map.emplace_back("t" + std::to_string(i), shards[0]);
  });
  return damages;
}

std::vector<Damage> BrokenJson(const std::string& file) {
  std::vector<Damage> damages;
  const auto add = [&](const std::string& name, const std::function<std::string()>& text) {
    damages.push_back({file + ": " + name, Expected::kRefused,
                       [file, text](DamagedCopy& c) { c.Write(file, text()); }});
  };
  const auto repeated = [](const std::string& begin, const char* text, size_t count,
                           const std::string& end) {
    std::string json = begin;
    for (size_t i = 0; i < count; ++i) json += text;
    return json + end;
  };
  constexpr size_t kMaxBytes = 4'000'000;  // within the size that any of the files may have
  for (const char* text :
       {" ", "null", "[]", "1", "\"{}\"", "{", "}", "{}{}", "{\"a\"}", "{\"a\":}", "{\"a\":1,}",
        "{'a':1}", "{\"a\":NaN}", "{\"a\":1e999}", "{\"a\":\"\\ud800\"}", "{\"a\":\"\xff\"}",
        "{\"a\":\"\n\"}", "{} // c"}) {
    add(text, [text] { return std::string(text); });
  }
  add("zeros", [] { return std::string(100'000, '\0'); });
  add("20 MB of spaces", [] { return "{" + std::string(20'000'000, ' ') + "}"; });
  add("deep objects", [=] { return repeated("", "{\"a\":", kMaxBytes / 5, ""); });
  add("deep lists", [=] { return repeated("{\"a\":", "[", kMaxBytes, ""); });
  add("empty objects", [=] { return repeated("{\"a\":[{}", ",{}", kMaxBytes / 3, "]}"); });
  add("empty lists", [=] { return repeated("{\"a\":[[]", ",[]", kMaxBytes / 3, "]}"); });
  add("numbers", [=] { return repeated("{\"a\":[1", ",1", kMaxBytes / 2, "]}"); });
  add("members", [=] {
    std::string json = "{\"a\":1";
    for (size_t i = 0; json.size() < kMaxBytes; ++i) json += ",\"" + std::to_string(i) + "\":1";
    return json + "}";
  });
  add("a long number", [=] { return repeated("{\"a\":", "1", kMaxBytes, "}"); });
  add("a long string that does not end", [=] { return repeated("{\"a\":\"", "x", kMaxBytes, ""); });
  add("a key twice", [] { return std::string("{\"a\":1,\"b\":2,\"a\":1}"); });
  return damages;
}

std::vector<Damage> WrongValues(const DamagedCopy& copy, const std::string& file) {
  const std::string& good = copy.good().at(file);
  std::vector<Damage> damages;
  // A member of the form  "key": VALUE  with VALUE up to a comma, a brace or the line's end; lists
  // and objects stay.
  for (size_t colon = good.find("\": "); colon != std::string::npos;
       colon = good.find("\": ", colon + 1)) {
    const size_t begin = colon + 3;
    if (good[begin] == '{' || good[begin] == '[') continue;
    const size_t end = good.find_first_of(",}\n", begin);
    const size_t key = good.rfind('"', colon - 1) + 1;
    for (const char* value : {"null", "true", "-1", "0", "1", "3", "2147483647", "2147483648",
                              "-9223372036854775808", "18446744073709551615", "1e300", "-1e300",
                              "1e-300", "0.5", "\"\"", "\"x\"", "[]", "{}", "[[[[1]]]]"}) {
      const std::string text = good.substr(0, begin) + value + good.substr(end);
      damages.push_back({file + ": " + good.substr(key, colon - key) + " is " + value,
                         Expected::kEither, [file, text](DamagedCopy& c) { c.Write(file, text); }});
    }
  }
  return damages;
}

}  // namespace diffserve
