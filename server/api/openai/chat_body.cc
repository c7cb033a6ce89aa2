// SPDX-License-Identifier: Apache-2.0
#include "server/api/openai/chat_body.h"

#include <algorithm>
#include <iterator>

#include "server/api/fields/chat_fields.h"
#include "server/api/fields/sampling_fields.h"
#include "server/api/openai/request.h"

namespace diffserve {

std::vector<std::string_view> SamplingMembers() {
  return {std::begin(kPlainSamplingFields), std::end(kPlainSamplingFields)};
}

void RefuseMembersBeyond(JsonFields& fields,
                         std::initializer_list<std::vector<std::string_view>> known, bool strict) {
  for (const std::string& name : fields.Names()) {
    const bool found = std::ranges::any_of(known, [&name](const auto& names) {
      return std::ranges::find(names, name) != names.end();
    });
    if (found) continue;
    if (IsChatMember(name)) {
      const bool is_one = (name == "n" || name == "best_of") && fields.JsonText(name) == "1";
      if (!fields.IsOff(name) && !is_one) fields.Fail(Unsupported(name, " on this route"));
      continue;
    }
    if (!strict) continue;
    const std::string shown = name.substr(0, 64);
    fields.Fail(
        InvalidArgument("unknown member '" + shown + "' (the server runs with --strict)", shown));
  }
}

int IntAtLeast(JsonFields& fields, std::string_view name, int min, int absent) {
  if (!fields.Has(name)) return absent;
  int value = absent;
  fields.Count(name, &value);
  if (fields.status().ok() && value < min) {
    fields.Fail(InvalidArgument(std::string(name) + " is " + std::to_string(value) + "; at least " +
                                    std::to_string(min) + " is allowed",
                                std::string(name)));
  }
  return value;
}

}  // namespace diffserve
