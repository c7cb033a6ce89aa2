// SPDX-License-Identifier: Apache-2.0
// HubClient: asks a hub over HTTPS and fetches files from it, several at once. This is the home of
// libcurl. A broken transfer goes on where it stopped. The number of tries, every wait, the time
// until a file begins and the bytes of a head have a limit, and a file has a least rate. The token
// is sent to the hub's own host only, not to where it redirects.
//
// Thread safety: one thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/base/status.h"
#include "models/load_progress.h"
#include "server/hub/blob_file.h"
#include "server/hub/hub_settings.h"
#include "server/hub/model_name.h"

namespace diffserve {

class HubClient {
 public:
  // Both outlive the client. `name` is what errors are about.
  HubClient(const HubSettings& settings, const HubName& name);
  ~HubClient();

  // The cache has an answer too: questions are asked once, for the time of HF_HUB_ETAG_TIMEOUT.
  void SetHasFallback() { has_fallback_ = true; }

  // The body of ENDPOINT + `path`. Errors: those of ErrorOf.
  Result<std::string> Read(const std::string& path);
  // Asks for the sizes and etags of those files of this commit that are listed without. Errors:
  // those of ErrorOf, and a file without an etag that can name it.
  Status Describe(const std::string& commit, std::vector<HubFile>* files);
  // Fetches what the blobs of this commit miss, and finishes them. Errors: those of ErrorOf and of
  // BlobFile, and a file whose content is not what the hub listed.
  Status Fetch(const std::string& commit, const std::vector<std::unique_ptr<BlobFile>>& blobs,
               LoadProgress& progress);

 private:
  class Transfer;
  class Multi;
  std::string PathOf(const std::string& commit, const std::string& file) const;
  std::unique_ptr<Transfer> NewTransfer(const std::string& path) const;
  Status Run(std::vector<std::unique_ptr<Transfer>>& transfers, bool is_patient);

  const HubSettings& settings_;
  const HubName& name_;
  bool has_fallback_ = false;
  std::unique_ptr<Multi> multi_;
};

}  // namespace diffserve
