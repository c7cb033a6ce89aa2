// SPDX-License-Identifier: Apache-2.0
// HubSettings: which hub, with which token, and where its files are kept. They come from the
// environment variables that Hugging Face's own tools read, so one setting serves all of them.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "kernels/base/status.h"

namespace diffserve {

struct HubSettings {
  // "https://huggingface.co", without a slash at its end, user or password: it is printed.
  std::string endpoint;
  std::string user, password;  // of the endpoint; empty: none
  std::string cache_dir;       // the folder of models--ORG--NAME
  std::string token;           // empty: none
  std::string token_source;    // the variable or file that has the token
  std::string ca_file;         // certificates that are trusted; empty: libcurl's own choice
  bool offline = false;
  int etag_timeout_s = 10;  // of a question to the hub where the cache has an answer
};

// The value of an environment variable; nullptr: it is not set.
using VariableReader = std::function<const char*(const char* name)>;

// Error: a variable whose value cannot be used, by its name.
Result<HubSettings> ReadHubSettings(const VariableReader& get);

// Without blanks and ends of lines around it.
std::string Trimmed(std::string_view text);

}  // namespace diffserve
