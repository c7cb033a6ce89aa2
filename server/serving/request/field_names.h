// SPDX-License-Identifier: Apache-2.0
// FieldNames: what a request's API calls the fields whose names differ between APIs. The API's
// reader sets them, so that every refusal names a field as the client wrote it.
#pragma once

namespace diffserve {

struct FieldNames {
  const char* prompt = "prompt";  // a text or token ids
  const char* messages = "messages";
  const char* tools = "tools";
  const char* max_tokens = "max_tokens";
  const char* n = "n";
  const char* logprobs = "logprobs";
  const char* whitespace = "";
};

}  // namespace diffserve
