// SPDX-License-Identifier: Apache-2.0
// Reads one line of JSON per chat template, {"template": TEXT, "variables": {"messages": [...],
// NAME: VALUE, ...}}, and writes one line back: {"text": TEXT} or {"error": MESSAGE}.
// tests/templates/run.py feeds it templates and compares with jinja2.
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/text/chat_template.h"
#include "tests/testing/kernels/temporary_directory.h"

namespace diffserve {
namespace {

nlohmann::ordered_json Outcome(const nlohmann::ordered_json& line) {
  TemporaryDirectory dir;
  dir.Write("tokenizer_config.json", nlohmann::json{{"chat_template", line.at("template")}}.dump());
  const auto loaded = ChatTemplate::Load(dir.path());
  if (!loaded.ok()) return {{"error", loaded.status().message()}};
  const nlohmann::ordered_json& variables = line.at("variables");
  const std::string messages = variables.at("messages").dump();
  const auto chat = (*loaded)->Render({messages, variables.dump(), false}, nullptr);
  if (!chat.ok()) return {{"error", chat.status().message()}};
  return {{"text", chat->text}};
}

}  // namespace
}  // namespace diffserve

int main() {
  for (std::string line; std::getline(std::cin, line);)
    std::cout << diffserve::Outcome(nlohmann::ordered_json::parse(line)).dump() << std::endl;
}
