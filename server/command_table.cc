// The table of the commands (option_table.h).
#include <span>
#include <string>
#include <vector>

#include "server/option_table.h"

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
       "HTTP and gRPC server; one line \"ready http=... grpc=... model=...\" on stdout"},
      {"logits",
       {model_dir},
       "logits of a prompt to a .npy file (--tokens or --tokens-file, --output)"},
      {"generate", {model_dir}, "one continuation, streamed (--prompt, --tokens or --tokens-file)"},
      {"chat",
       {model_dir},
       "a conversation in the terminal, also with a server that runs (--url instead of MODEL_DIR)"},
      {"bench", {model_dir}, "prefill and decode speed beside the machine's own limits"},
      {"inspect", {model_dir}, "family, shapes, parameters, memory; refuses what serve refuses"},
      {"convert",
       {model_dir, new_dir},
       "a clean copy of a checkpoint or of a unilm state dict, checked by loading it"},
      {"probe", {url}, "whether the server at http://HOST:PORT[/PATH] is ready (PATH: readyz)"},
  };
  return table;
}

}  // namespace diffserve
