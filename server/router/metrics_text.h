// SPDX-License-Identifier: Apache-2.0
// Merges the /metrics of several servers into one text: each sample gets a label with the name of
// its model, and each family has one HELP and one TYPE line. It reads only the form that our own
// server writes: the text format 0.0.4 of Prometheus, with a family's samples after its TYPE line.
// Thread safety: one thread at a time.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace diffserve {

class MetricsText {
 public:
  // Adds a text. `model`: the value of the label that each sample gets; empty: none is added.
  void Add(std::string_view text, std::string_view model);
  std::string Text() const;

 private:
  struct Family {
    std::string head;  // its HELP and TYPE lines
    std::string samples;
  };
  Family& FamilyOf(std::string_view name);

  std::vector<Family> families_;  // in the order of their first lines
  std::unordered_map<std::string, size_t> places_;
};

// A text as the value of a label: backslashes, quotes and line feeds are escaped.
std::string LabelValue(std::string_view text);

}  // namespace diffserve
