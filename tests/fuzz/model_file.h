// SPDX-License-Identifier: Apache-2.0
// A model directory whose files are fuzz input, and what an error about one of them must be.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/base/status.h"
#include "kernels/process/check.h"
#include "tests/testing/kernels/temporary_directory.h"

namespace diffserve::testing {

// Two files in one input: the first NUL byte ends the first, which JSON and Jinja have no use for.
inline std::pair<std::string_view, std::string_view> TwoFiles(std::string_view bytes) {
  const size_t end = std::min(bytes.find('\0'), bytes.size());
  return {bytes.substr(0, end), bytes.substr(std::min(end + 1, bytes.size()))};
}

class FuzzedModelDirectory {
 public:
  std::string path() const { return directory_.path(); }

  // An empty text stands for no file.
  void Put(const char* name, std::string_view bytes) const {
    if (bytes.empty()) {
      std::filesystem::remove(directory_.path() / name);
    } else {
      WriteFile(directory_.path() / name, bytes);
    }
  }
  void CheckError(const Status& status) const {
    DS_CHECK(status.message().starts_with(path() + "/"), "an error names its file");
    DS_CHECK(std::ranges::none_of(status.message(), [](unsigned char c) { return c < 32; }),
             "an error is one line");
    DS_CHECK(status.message().size() < 1000, "an error is short");
  }

 private:
  TemporaryDirectory directory_;
};

}  // namespace diffserve::testing
