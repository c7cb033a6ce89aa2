// SPDX-License-Identifier: Apache-2.0
// What inspect says of a directory of the prefix cache on disk, as text and as JSON.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/page_store/store_summary.h"
#include "server/app/session/model_session.h"
#include "server/json/json_writer.h"

namespace diffserve {

struct KvDiskReport {
  std::string directory;
  std::vector<StoreSummary> stores;
  // How the names begin of the subdirectories that the given model uses; nullopt: none is given.
  std::optional<std::string> own_prefix;
};

// `plan`: of the model given beside the directory, as KvDiskFingerprint takes it, or nullptr.
// Writes nothing. Error: kInvalidArgument that names the flag.
Result<KvDiskReport> ReportKvDisk(const std::string& directory, const SessionPlan* plan);

void PrintKvDisk(const KvDiskReport& report);
// Adds a member.
void AddKvDisk(const KvDiskReport& report, JsonWriter& json);

}  // namespace diffserve
