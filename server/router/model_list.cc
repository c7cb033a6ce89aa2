// SPDX-License-Identifier: Apache-2.0
#include "server/router/model_list.h"

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "server/api/reply/codex_models.h"
#include "server/json/json_writer.h"
#include "server/router/metrics_text.h"

namespace diffserve {
namespace {

const char* NameOf(ModelState state) {
  switch (state) {
    case ModelState::kUnloaded:
      return "unloaded";
    case ModelState::kLoading:
      return "loading";
    case ModelState::kLoaded:
      return "loaded";
    case ModelState::kStopping:
      return "unloading";
  }
  return "?";
}

void AddModel(const RoutedModel& model, const ChildReport& report, int64_t created,
              JsonWriter& json) {
  json.Begin('{').Add("id", model.name).Add("object", "model").Add("created", created);
  json.Add("owned_by", "diffserve").Add("root", model.model).Add("aliases", model.aliases);
  json.Key("status").Begin('{').Add("value", NameOf(report.state));
  if (report.exit_code) json.Add("failed", true).Add("exit_code", *report.exit_code);
  json.End('}').End('}');
}

}  // namespace

std::string ModelJson(const RoutedModel& model, const ChildReport& report, int64_t created) {
  std::string text;
  JsonWriter json(&text);
  AddModel(model, report, created, json);
  return text;
}

std::string ModelListJson(const std::vector<RoutedModel>& models,
                          std::span<const ChildReport> reports, int64_t created) {
  return JsonObjectOf([&](JsonWriter& json) {
    json.Add("object", "list").Key("data").Begin('[');
    std::vector<CodexModel> names;
    for (size_t i = 0; i < models.size(); ++i) {
      AddModel(models[i], reports[i], created, json);
      names.push_back({models[i].name, std::nullopt});
      for (const std::string& alias : models[i].aliases) names.push_back({alias, std::nullopt});
    }
    json.End(']');
    AddCodexModels(names, &json);
  });
}

std::string ChildMetrics(const std::vector<RoutedModel>& models,
                         std::span<const ChildReport> reports, int64_t replies_cut) {
  std::string text;
  const auto family = [&](std::string_view name, std::string_view type, std::string_view help) {
    text += "# HELP " + std::string(name) + " " + std::string(help) + "\n# TYPE " +
            std::string(name) + " " + std::string(type) + "\n";
  };
  using ValueOf = std::function<int64_t(const ChildReport& report)>;
  const auto per_model = [&](const std::string& name, const std::string& label,
                             const ValueOf& value) {
    for (size_t i = 0; i < models.size(); ++i) {
      text += name + "{model=\"" + LabelValue(models[i].name) + "\"" + label + "} " +
              std::to_string(value(reports[i])) + "\n";
    }
  };
  const auto add = [&](const std::string& name, std::string_view type, std::string_view help,
                       const ValueOf& value) {
    family(name, type, help);
    per_model(name, "", value);
  };
  add("diffserve_model_loaded", "gauge", "1 while the model's process answers.",
      [](const ChildReport& r) { return r.state == ModelState::kLoaded ? 1 : 0; });
  add("diffserve_model_memory_bytes", "gauge", "Memory that the model's process needs; 0: unknown.",
      [](const ChildReport& r) { return r.bytes; });
  add("diffserve_model_requests_in_flight", "gauge", "Requests at the model's process.",
      [](const ChildReport& r) { return r.in_flight; });
  add("diffserve_model_requests_waiting", "gauge", "Requests that wait for the model's process.",
      [](const ChildReport& r) { return static_cast<int64_t>(r.waiting); });
  add("diffserve_model_starts_total", "counter", "Starts of the model's process.",
      [](const ChildReport& r) { return r.starts; });
  add("diffserve_model_failures_total", "counter",
      "Ends of the model's process that it was not asked for.",
      [](const ChildReport& r) { return r.failures; });
  const std::string stops = "diffserve_model_stops_total";
  family(stops, "counter", "Stops of the model's process, by reason.");
  per_model(stops, ",reason=\"idle\"", [](const ChildReport& r) { return r.stops_idle; });
  per_model(stops, ",reason=\"room\"", [](const ChildReport& r) { return r.stops_room; });
  const std::string cut = "diffserve_http_replies_cut_total";
  family(cut, "counter", "HTTP replies that were cut after they began, by how they ended.");
  text += cut + "{end=\"reset\"} " + std::to_string(replies_cut) + "\n";
  return text;
}

}  // namespace diffserve
