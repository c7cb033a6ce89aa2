// SPDX-License-Identifier: Apache-2.0
// Model directories with every damage that a loader must survive: truncated files, flipped bits,
// false headers and indexes, things that are not files. A Damage changes a DamagedCopy of a good
// directory and states the expected outcome; Restore undoes it.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/testing/models/checkpoint_writer.h"

namespace diffserve {

constexpr char kIndexName[] = "model.safetensors.index.json";

// A copy of a checkpoint's files in its own directory, with the good bytes in memory.
class DamagedCopy {
 public:
  // `source`'s files but for the recorded answers of a golden case. `two_shards` makes two shards
  // and an index of one file.
  explicit DamagedCopy(const std::filesystem::path& source, bool two_shards = false);

  std::string dir() const { return directory_.path().string(); }
  std::filesystem::path Path(const std::string& name) const { return directory_.path() / name; }
  const std::map<std::string, std::string>& good() const { return good_; }
  std::vector<std::string> TensorFiles() const;

  // The operations of Damages. Each notes the file's name for Restore.
  void Write(const std::string& name, std::string_view bytes) { WriteFile(Replaced(name), bytes); }
  void Remove(const std::string& name) { Replaced(name); }
  void Cut(const std::string& name, size_t length);
  void Flip(const std::string& name, size_t bit);
  void Link(const std::string& name, const std::string& target);
  void MakeDirectory(const std::string& name) { std::filesystem::create_directory(Replaced(name)); }
  void MakePipe(const std::string& name);
  void ForbidReading(const std::string& name);
  void Restore();

 private:
  std::filesystem::path Touched(const std::string& name);
  std::filesystem::path Replaced(const std::string& name);
  void Split();

  static constexpr const char* kShards[] = {"model-00001-of-00002.safetensors",
                                            "model-00002-of-00002.safetensors"};
  TemporaryDirectory directory_;
  std::map<std::string, std::string> good_;
  std::set<std::string> touched_;
};

enum class Expected { kRefused, kLoaded, kEither };

struct Damage {
  std::string name;
  Expected expected = Expected::kRefused;
  std::function<void(DamagedCopy&)> apply;
  bool as_unprivileged_user = false;  // to be loaded by a user without rights
};

// Every position at which the file may end: every `stride`th of the first 4 KiB, and each edge of
// the header and of a tensor with its neighbours.
std::vector<Damage> Cuts(const DamagedCopy& copy, const std::string& file, size_t stride = 1);

// `count` bits over the whole file; for a file of tensors as many again over its header. Files of
// no more bits: every bit, if `count` allows. Flipped weights must load while they, and what the
// loader computes of them, are finite.
std::vector<Damage> Flips(const DamagedCopy& copy, const std::string& file, size_t count,
                          uint64_t seed);

// Headers that lie about the data, on the file of tensors `file`.
std::vector<Damage> LyingHeaders(const DamagedCopy& copy, const std::string& file);

// Headers of wrong form or length.
std::vector<Damage> BrokenHeaders(const DamagedCopy& copy, const std::string& file);

// Something other than a readable file in the place of `file`.
std::vector<Damage> NoFiles(const std::string& file);

}  // namespace diffserve
