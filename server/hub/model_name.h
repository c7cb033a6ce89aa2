// SPDX-License-Identifier: Apache-2.0
// ModelName: what the argument MODEL_DIR names. It is a directory, a repository on a Hugging Face
// hub ("hf:ORG/NAME@REVISION"), or a model that comes with the program ("bundled:NAME").
#pragma once

#include <string>
#include <string_view>
#include <variant>

#include "kernels/base/status.h"

namespace diffserve {

struct HubName {
  std::string repository;         // "ORG/NAME"
  std::string revision = "main";  // a branch, a tag, or a commit

  std::string Text() const { return "hf:" + repository + "@" + revision; }
  bool operator==(const HubName&) const = default;
};

struct BundledName {
  std::string name;
  bool operator==(const BundledName&) const = default;
};

using ModelName = std::variant<std::string, HubName, BundledName>;  // std::string: a directory

// Error: a name that begins with "hf:" or "bundled:" and is none of theirs.
Result<ModelName> ParseModelName(std::string_view text);

// 40 hexadecimal digits in lower case.
bool IsCommit(std::string_view text);
bool IsHex(std::string_view text);  // in lower case, at least one digit

}  // namespace diffserve
