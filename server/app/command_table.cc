// SPDX-License-Identifier: Apache-2.0
// The table of the commands (option_table.h).
#include <span>
#include <string>
#include <vector>

#include "server/app/option_table.h"

namespace diffserve {

std::span<const CommandSpec> CommandTable() {
  static const ArgumentSpec model_dir = {
      "MODEL_DIR", [](Options& options) -> std::string& { return options.session.model_dir; }};
  static const ArgumentSpec new_dir = {
      "NEW_DIR", [](Options& options) -> std::string& { return options.conversion.new_dir; }};
  static const ArgumentSpec url = {
      "URL", [](Options& options) -> std::string& { return options.probe.url; }};
  static const std::vector<CommandSpec> table = {
      {"serve",
       {model_dir},
       "serve HTTP and gRPC; prints one line \"ready http=... grpc=... model=...\" on stdout"},
      {"logits",
       {model_dir},
       "write a prompt's logits to a .npy file (--tokens or --tokens-file, --output)"},
      {"generate",
       {model_dir},
       "print one continuation as it is generated (--prompt, --tokens or --tokens-file)"},
      {"chat",
       {model_dir},
       "chat in the terminal, with a local model or with a running server (--url instead of "
       "MODEL_DIR)"},
      {"bench", {model_dir}, "measure prefill and decode speed, and the machine's own limits"},
      {"inspect",
       {model_dir},
       "print family, shapes, parameters and memory; refuses what serve refuses"},
      {"convert",
       {model_dir, new_dir},
       "write a clean copy of a checkpoint or of a unilm state dict, and load it as a check"},
      {"probe",
       {url},
       "check whether the server at http://HOST:PORT[/PATH] is ready (default PATH: readyz)"},
  };
  return table;
}

}  // namespace diffserve
