// SPDX-License-Identifier: Apache-2.0
#include "server/router/metrics_text.h"

#include <algorithm>
#include <optional>

namespace diffserve {
namespace {

constexpr std::string_view kHeadPrefixes[] = {"# HELP ", "# TYPE "};

// The name in a HELP or TYPE line; nullopt: it is another line.
std::optional<std::string_view> FamilyInHead(std::string_view line) {
  for (const std::string_view prefix : kHeadPrefixes) {
    if (!line.starts_with(prefix)) continue;
    line.remove_prefix(prefix.size());
    return line.substr(0, line.find(' '));
  }
  return std::nullopt;
}

// `label` is "NAME=\"VALUE\"", or empty.
void AppendSample(std::string_view line, std::string_view label, std::string* out) {
  const size_t end_of_name = std::min(line.find_first_of("{ "), line.size());
  *out += line.substr(0, end_of_name);
  std::string_view rest = line.substr(end_of_name);
  if (!label.empty()) {
    *out += '{';
    *out += label;
    if (rest.starts_with("{}"))
      rest.remove_prefix(1);
    else if (rest.starts_with('{'))
      rest.remove_prefix(1), *out += ',';
    else
      *out += '}';
  }
  *out += rest;
  *out += '\n';
}

}  // namespace

MetricsText::Family& MetricsText::FamilyOf(std::string_view name) {
  const auto [place, is_new] = places_.emplace(std::string(name), families_.size());
  if (is_new) families_.emplace_back();
  return families_[place->second];
}

void MetricsText::Add(std::string_view text, std::string_view model) {
  const std::string label = model.empty() ? "" : "model=\"" + LabelValue(model) + "\"";
  Family* family = &FamilyOf("");
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (const auto name = FamilyInHead(line)) {
      family = &FamilyOf(*name);
      const std::string head = std::string(line) + '\n';
      const std::string_view kind = std::string_view(head).substr(0, kHeadPrefixes[0].size());
      if (family->head.find(kind) == std::string::npos) family->head += head;
    } else if (!line.empty() && line.front() != '#') {
      AppendSample(line, label, &family->samples);
    }
  }
}

std::string MetricsText::Text() const {
  std::string text;
  for (const Family& family : families_) text += family.head + family.samples;
  return text;
}

std::string LabelValue(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\\' || c == '"') escaped += '\\';
    if (c == '\n')
      escaped += "\\n";
    else
      escaped += c;
  }
  return escaped;
}

}  // namespace diffserve
