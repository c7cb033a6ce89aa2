// The command line: every flag with its default and range, read from argv and from --config FILE
// (flags win).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/cpu_isa.h"
#include "kernels/base/dtype.h"
#include "kernels/base/log.h"
#include "kernels/base/status.h"

namespace diffserve {

struct Options {
  std::string command;  // a name of CommandTable(); or help, version
  std::string model_dir;

  // Model and device.
  std::string device = "auto";  // auto: a GPU if this build and the machine have one and it has
                                // kernels for the model
  std::optional<DType> dtype;   // nullopt: as the checkpoint, on a GPU bfloat16
  std::optional<DType> kv_cache_dtype;  // nullopt: as dtype
  std::string quantization = "none";
  std::string attention_logit_bits = "16";
  bool dummy_weights = false;
  std::string cpu_isa = "auto";
  int threads = 0;  // 0: all available
  uint64_t seed = 0;

  // Engine.
  int max_model_len = 0;  // 0: from config.json
  int max_num_seqs = 256;
  int max_num_batched_tokens = 2048;
  std::string kv_cache_memory;  // bytes with suffix, or a share ("0.3"); empty: chosen from what is
                                // free
  int page_size = 0;            // 0: 16 on the CPU, 64 on a GPU
  bool batch_invariant = false;
  bool enable_prefix_caching = true;
  int max_waiting_requests = 1024;
  int64_t max_waiting_tokens = int64_t{1} << 22;

  // Server.
  std::string host = "127.0.0.1";
  int port = 8000;
  int grpc_port = 8001;
  std::string served_model_name;  // empty: the directory's name
  std::string api_key_file;
  bool strict = false;
  int drain_timeout_s = 45;
  std::string kv_events_endpoint, kv_events_replay_endpoint, kv_events_topic;
  LogLevel log_level = LogLevel::kInfo;

  // logits, generate, bench.
  std::string tokens, tokens_file, prompt, output;
  int chunk = 0;
  int max_tokens = 64;
  int min_tokens = 0;
  float temperature = 0;
  float top_p = 1;
  int top_k = 0;
  float min_p = 0;
  float repetition_penalty = 1, presence_penalty = 0, frequency_penalty = 0;
  std::string stop;  // one stop string; empty: none
  bool ignore_eos = false;
  bool json = false;
  std::vector<int> bench_prompt = {512, 2048}, bench_depth = {0, 4096}, bench_batch = {1, 4, 16};
  int bench_generate = 128;
  int repeat = 5;

  // convert.
  std::string new_dir;
  std::string max_shard_size = "5G";

  // probe.
  std::string url;
  float probe_timeout_s = 5;
};

// Error: kInvalidArgument naming the flag, the value found and what is allowed (exit code 2).
// `--help` and `--version` set command to "help" and "version".
Result<Options> ParseOptions(const std::vector<std::string>& args);

// The value of --kv-cache-memory: an amount ("512MiB", "2G"), or a share of what is free ("0.3").
struct MemorySize {
  int64_t bytes = 0;
  double share = 0;  // (0, 1]; 0: `bytes` counts
};
Result<MemorySize> ParseMemorySize(std::string_view text);

// "1,2,3", or ids separated by white space. `param` names the flag in errors.
Result<std::vector<int32_t>> ParseTokenIds(std::string_view text, std::string_view param);

std::string HelpText();
std::string VersionText();  // lines "key: value": version, commit, compilers, backends, CPU levels
                            // and the one in use

// As in VersionText; for /version and the build info metric.
std::string_view BuildVersion();
std::string_view BuildCommit();

}  // namespace diffserve
