// SPDX-License-Identifier: Apache-2.0
#include "server/app/session/kv_disk_report.h"

#include <cstdio>
#include <ctime>
#include <filesystem>
#include <system_error>

#include "engine/page_store/store_directory.h"
#include "kernels/process/terminal_text.h"
#include "server/app/session/kv_disk.h"

namespace diffserve {
namespace {

// "2026-11-26T17:02:11Z"; nullopt for 0.
std::optional<std::string> UtcText(int64_t unix_ns) {
  if (unix_ns == 0) return std::nullopt;
  const auto seconds = static_cast<std::time_t>(unix_ns / 1'000'000'000);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  char text[32];
  return std::string(text, std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts));
}

// Whether the given model uses the subdirectory; nullopt: no model is given.
std::optional<bool> IsOwn(const KvDiskReport& report, const StoreSummary& store) {
  if (!report.own_prefix) return std::nullopt;
  return !report.own_prefix->empty() && store.name.starts_with(*report.own_prefix);
}

std::string Described(const KvDiskReport& report, const StoreSummary& store) {
  std::string text = std::to_string(store.num_pages) + " pages";
  if (store.num_snapshots > 0) text += ", " + std::to_string(store.num_snapshots) + " snapshots";
  text += ", " + MiB(static_cast<double>(store.bytes)) +
          ", segments: " + std::to_string(store.num_segments);
  if (store.num_incomplete > 0) text += ", incomplete: " + std::to_string(store.num_incomplete);
  if (store.num_unreadable > 0) text += ", unreadable: " + std::to_string(store.num_unreadable);
  if (store.num_segments > 0)
    text += ", used " + *UtcText(store.oldest_use_ns) + " to " + *UtcText(store.newest_use_ns);
  if (store.is_held) text += ", held by a process";
  if (IsOwn(report, store).value_or(false)) text += ", of this model";
  return text;
}

}  // namespace

Result<KvDiskReport> ReportKvDisk(const std::string& directory, const SessionPlan* plan) {
  KvDiskReport report = {.directory = directory, .stores = {}, .own_prefix = {}};
  std::error_code ignored;
  const bool is_there = std::filesystem::exists(directory, ignored);
  if (is_there || plan == nullptr)  // a server would create it
    DS_RETURN_IF_ERROR(Assign(&report.stores, SummarizeStores(directory)));
  if (plan == nullptr) return report;
  report.own_prefix = SubdirectoryPrefix(KvDiskFingerprint(*plan));
  return report;
}

void PrintKvDisk(const KvDiskReport& report) {
  std::printf("prefix cache on disk %s\n", ShownOnTerminal(report.directory).c_str());
  for (const StoreSummary& store : report.stores)
    std::printf("  %-18s %s\n", store.name.c_str(), Described(report, store).c_str());
}

void AddKvDisk(const KvDiskReport& report, JsonWriter& json) {
  json.Key("prefix_cache_on_disk").Begin('{').Add("directory", report.directory);
  json.Key("subdirectories").Begin('[');
  for (const StoreSummary& store : report.stores) {
    json.Begin('{').Add("name", store.name).Add("of_this_model", IsOwn(report, store));
    json.Add("held", store.is_held).Add("segments", store.num_segments);
    json.Add("incomplete_segments", store.num_incomplete);
    json.Add("unreadable_segments", store.num_unreadable).Add("bytes", store.bytes);
    json.Add("pages", store.num_pages).Add("snapshots", store.num_snapshots);
    json.Add("oldest_use", UtcText(store.oldest_use_ns));
    json.Add("newest_use", UtcText(store.newest_use_ns)).End('}');
  }
  json.End(']').End('}');
}

}  // namespace diffserve
