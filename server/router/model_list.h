// SPDX-License-Identifier: Apache-2.0
// What the server says of its models: the JSON of /v1/models, in the form of OpenAI with
// llama-server's `status`, and its own part of /metrics. Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "server/router/children/model_children.h"
#include "server/router/models_file.h"

namespace diffserve {

// The reports are in the order of the models.
std::string ModelListJson(const std::vector<RoutedModel>& models,
                          std::span<const ChildReport> reports, int64_t created);
std::string ModelJson(const RoutedModel& model, const ChildReport& report, int64_t created);

std::string ChildMetrics(const std::vector<RoutedModel>& models,
                         std::span<const ChildReport> reports, int64_t replies_cut);

}  // namespace diffserve
