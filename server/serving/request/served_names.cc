// SPDX-License-Identifier: Apache-2.0
#include "server/serving/request/served_names.h"

#include <algorithm>

namespace diffserve {
namespace {

constexpr size_t kMaxShownBytes = 128;
constexpr size_t kMaxListed = 20;

}  // namespace

Status UnknownModel(std::string_view found, std::span<const std::string> served,
                    std::string param) {
  std::string text = "the model '" + std::string(found.substr(0, kMaxShownBytes)) +
                     "' is not served here; served: ";
  const size_t num_listed = std::min(served.size(), kMaxListed);
  for (size_t i = 0; i < num_listed; ++i) text += (i == 0 ? "" : ", ") + served[i];
  if (num_listed < served.size())
    text += " and " + std::to_string(served.size() - num_listed) + " more, as /v1/models lists";
  return Status(StatusCode::kNotFound, std::move(text), std::move(param));
}

std::vector<std::string> ServedNames::All() const {
  std::vector<std::string> names = {name};
  names.insert(names.end(), further.begin(), further.end());
  return names;
}

bool ServedNames::Has(std::string_view sought) const {
  return sought == name || std::ranges::count(further, sought) > 0;
}

Status ServedNames::Check(std::string_view sought) const {
  return sought.empty() || Has(sought) ? Status() : UnknownModel(sought, All());
}

}  // namespace diffserve
