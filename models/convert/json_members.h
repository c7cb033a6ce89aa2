// SPDX-License-Identifier: Apache-2.0
// Edits the members of a JSON object in its text, so that everything else (spelling of numbers,
// order, indentation) stays as its author wrote it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"

namespace diffserve {

struct MemberEdit {
  std::string key;
  std::optional<std::string> value;  // JSON text; nullopt: the member is removed
  bool add = false;                  // whether an absent member is added
};

// `text` must be one JSON object that ConfigReader::Parse accepts; `file` names it in errors. Only
// its own members are edited, not those of nested objects. A key that is spelled with escapes is
// refused: it could be one of those to edit.
Result<std::string> EditMembers(std::string_view text, const std::string& file,
                                const std::vector<MemberEdit>& edits);

}  // namespace diffserve
