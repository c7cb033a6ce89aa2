// SPDX-License-Identifier: Apache-2.0
#include "server/hub/model_name.h"

#include <algorithm>

#include "kernels/base/refusal.h"
#include "models/config_reader.h"

namespace diffserve {
namespace {

constexpr size_t kMaxRepositoryLength = 96;  // the hub's
constexpr size_t kMaxRevisionLength = 200;
constexpr std::string_view kHub = "hf:", kBundled = "bundled:";

bool IsAlphanumeric(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

bool IsMadeOf(std::string_view text, std::string_view others) {
  return std::ranges::all_of(
      text, [&](char c) { return IsAlphanumeric(c) || others.find(c) != std::string_view::npos; });
}

// ORG or NAME. "--" separates them in the cache's folder names.
bool IsRepositoryPart(std::string_view part) {
  constexpr std::string_view kInner = "-.";
  return !part.empty() && IsMadeOf(part, "-_.") &&
         kInner.find(part.front()) == std::string_view::npos &&
         kInner.find(part.back()) == std::string_view::npos &&
         part.find("--") == std::string_view::npos && part.find("..") == std::string_view::npos &&
         !part.ends_with(".git");
}

// It becomes a path below refs/, so each part must be the name of a file.
bool IsRevision(std::string_view revision) {
  if (revision.empty() || revision.size() > kMaxRevisionLength || !IsMadeOf(revision, "-_.+/"))
    return false;
  for (size_t begin = 0; begin <= revision.size();) {
    const size_t end = std::min(revision.find('/', begin), revision.size());
    const std::string_view part = revision.substr(begin, end - begin);
    if (part.empty() || part.front() == '.') return false;
    begin = end + 1;
  }
  return true;
}

Result<ModelName> ParseHubName(std::string_view text) {
  HubName name;
  const std::string_view rest = text.substr(kHub.size());
  const size_t at = rest.find('@');
  const std::string_view repository = rest.substr(0, at);
  const size_t slash = repository.find('/');
  const bool is_repository = slash != std::string_view::npos &&
                             repository.size() <= kMaxRepositoryLength &&
                             IsRepositoryPart(repository.substr(0, slash)) &&
                             IsRepositoryPart(repository.substr(slash + 1));
  if (at != std::string_view::npos) name.revision = rest.substr(at + 1);
  name.repository = repository;
  if (is_repository && IsRevision(name.revision)) return ModelName(std::move(name));
  return NotOneOf(
      "MODEL_DIR", ConfigReader::OneLine(text),
      "a directory, hf:ORG/NAME or hf:ORG/NAME@REVISION, as the hub writes them, bundled:NAME");
}

}  // namespace

bool IsHex(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
  });
}

bool IsCommit(std::string_view text) { return text.size() == 40 && IsHex(text); }

Result<ModelName> ParseModelName(std::string_view text) {
  if (text.starts_with(kHub)) return ParseHubName(text);
  if (!text.starts_with(kBundled)) return ModelName(std::string(text));
  const std::string_view name = text.substr(kBundled.size());
  if (!name.empty() && IsMadeOf(name, "-_")) return ModelName(BundledName{std::string(name)});
  return NotOneOf("MODEL_DIR", ConfigReader::OneLine(text),
                  "letters, digits, - and _ after bundled:");
}

}  // namespace diffserve
