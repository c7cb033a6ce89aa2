// SPDX-License-Identifier: Apache-2.0
#include "server/serving/request/unknown_model.h"

#include <algorithm>
#include <vector>

#include "server/serving/frontend.h"

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

std::vector<std::string> FrontendOptions::AllModelNames() const {
  std::vector<std::string> names = {served_model_name};
  names.insert(names.end(), further_model_names.begin(), further_model_names.end());
  return names;
}

bool FrontendOptions::Serves(std::string_view name) const {
  return std::ranges::count(AllModelNames(), name) > 0;
}

Status FrontendOptions::CheckModel(std::string_view name) const {
  return name.empty() || Serves(name) ? Status() : UnknownModel(name, AllModelNames());
}

}  // namespace diffserve
