// SPDX-License-Identifier: Apache-2.0
// The command line: every flag with its default and range, read from argv, from environment
// variables and from --config FILE. The first of these that has a flag wins.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/contract/options.h"
#include "engine/contract/request.h"
#include "kernels/attention/logit_quant.h"
#include "kernels/base/cpu_isa.h"
#include "kernels/base/dtype.h"
#include "kernels/base/status.h"
#include "kernels/ops/weight_format.h"
#include "kernels/process/log.h"

namespace diffserve {

// The value of --kv-cache-memory or --max-body-size: an amount ("512MiB", "2G"), or a share
// of free memory ("0.3").
struct MemorySize {
  std::string text;  // as given; empty: not given
  int64_t bytes = 0;
  double share = 0;  // (0, 1]; 0: `bytes` counts
};
std::optional<MemorySize> ParseMemorySize(std::string_view text);  // nullopt: it is no size

// The value of --device. kAuto: the GPU if it has kernels for the model, else the CPU.
struct DeviceChoice {
  enum class Kind { kAuto, kCpu, kGpu };
  Kind kind = Kind::kAuto;
  std::optional<int> gpu = {};  // CUDA's number; nullopt: 0, with --models the parent's choice
};

// Options of every command that reads a checkpoint.
struct CheckpointOptions {
  std::string model_dir;       // or a name, which server/hub/model_place.h makes a directory
  std::string model_name;      // model_dir as it was given
  std::optional<DType> dtype;  // nullopt: as the checkpoint, on a GPU bfloat16
  std::optional<WeightFormat> quantization;  // of linear layers; nullopt: as the checkpoint
  std::string cpu_isa = "auto";
  int threads = 0;  // 0: all available
};

// --speculative. kAuto: kPromptLookup where it costs nothing else, which is on a CPU that has room.
enum class Speculation { kAuto, kPromptLookup, kOff };

// Further options of every command that runs a model, or reports how it would run.
struct SessionOptions : CheckpointOptions {
  DeviceChoice device;
  float gpu_memory_utilization = 0;     // share of the GPU's memory to take at most; 0: of the free
  std::optional<DType> kv_cache_dtype;  // nullopt: as dtype
  std::vector<int> kv_cache_skip_layers;  // layers that keep --dtype; negative: from the last, -1
  LogitQuant logit_quant;
  bool dummy_weights = false;
  uint64_t seed = 0;  // for sampling and dummy weights
  bool batch_invariant = false;
  Speculation speculation = Speculation::kAuto;
  MemorySize speculative_history;  // not given: none
  std::string draft_dir;  // --speculative-model: a directory or name like model_dir; empty: none
  int state_snapshot_interval = 1024;  // EngineOptions'
  std::string chat_template;  // of a file, or built in (ReadGivenTemplate); empty: the model's own
  bool kv_cache_commit = false;
  MemorySize kv_cache_memory;  // not given: chosen from free memory
  // As the flags say: page_size 0 is 16 on the CPU and 64 on a GPU, max_model_len 0 is the
  // config's.
  EngineOptions engine = {.page_size = 0};
};

struct ServeOptions {
  std::string host = "127.0.0.1";
  int port = 8000;
  std::string unix_socket;  // HTTP listens there instead of on `port`; empty: on `port`
  bool grpc = true;
  int grpc_port = 8001;
  int health_port = -1;                         // -1: no health port
  std::vector<std::string> served_model_names;  // empty: the directory's name
  std::string api_key_file;
  bool ui = true;
  bool stop_with_stdin = false;
  std::string parent_secret;  // of a model's process, from its parent; empty: it is no such process
  std::vector<std::string> cors_origins;  // as CrossOrigin::Parse reads them; empty: none
  // Names of server/serving/tools/tool_format.h, none, or auto: as the chat template shows.
  std::string tool_call_parser = "auto", reasoning_parser = "auto";
  std::string content_format = "auto";  // as ChooseContentForms takes it
  int drain_timeout_s = 45;
  MemorySize max_answers_memory = {"2GiB", int64_t{2} << 30};
  MemorySize max_body_size = {"4MiB", int64_t{4} << 20};
  std::string kv_cache_dir;  // of the prefix cache on disk; empty: none
  MemorySize kv_cache_disk = {"16GiB", int64_t{16} << 30};
  MemorySize kv_cache_host_memory;  // of the prefix cache of a GPU; not given: none
  std::string kv_events_endpoint, kv_events_replay_endpoint, kv_events_topic;
};

// `serve --models`: several models, each with a process of its own.
struct ModelsOptions {
  std::string file;                          // empty: one model in this process
  int idle_timeout_s = 0;                    // 0: no model is stopped for idleness
  int max_loaded = 4;                        // processes; 0: no limit
  MemorySize memory;                         // of them together; not given: no limit
  int load_wait_s = 300;                     // of a request for its model
  std::vector<std::string> inherited_flags;  // of the command line, for every model
};

// The prompt of logits or generate: one of these is given.
struct PromptOptions {
  std::string text, tokens;  // ids, or "@FILE"
  bool chat = false;         // `text` is a user's message
};

struct LogitsOptions {
  std::string output;
};

// Sampling options of generate and chat; chat has its own max_tokens.
struct GenerateOptions {
  SamplingSpec sampling = {{.temperature = 0}};  // the seed is the session's
  int max_tokens = 64;
  std::string stop;  // one stop string; empty: none
};

struct ChatOptions {
  std::string url;  // of the server; empty: the model runs in this process
  std::string api_key_file;
  std::string system;  // message before all others; empty: none
  int max_tokens = 0;  // of an answer; 0: as many as the context leaves
};

struct BenchOptions {
  std::vector<int> prompt, depth;  // empty: 512 and 2048, 0 and 4096, within the model's length
  std::vector<int> batch = {1, 4, 16};
  int generate = 128;
  int repeat = 5;
};

struct InspectOptions {
  std::string activations;               // a file of texts to run; empty: none
  std::vector<std::string> serve_flags;  // of the command line, those that serve takes too
};

struct ConversionOptions {
  std::string new_dir;
};

struct ProbeOptions {
  std::string url;
};

struct CompletionOptions {
  std::string shell;  // of kCompletionShells
};

struct BatchOptions {
  std::string input, output;
};

// The whole command line; each command gets the parts that it needs.
struct Options {
  std::string command;  // a name of CommandTable(); or help, version
  std::string help_of;  // the command whose help is asked for; empty: all
  LogLevel log_level = LogLevel::kInfo;
  LogFormat log_format = LogFormat::kText;
  SessionOptions session;
  ServeOptions serve;
  ModelsOptions models;
  PromptOptions prompt;
  LogitsOptions logits;
  GenerateOptions generate;
  ChatOptions chat;
  BenchOptions bench;
  InspectOptions inspect;
  ConversionOptions conversion;
  ProbeOptions probe;
  CompletionOptions completion;
  BatchOptions batch;
  bool json = false;                  // generate, bench, inspect and models print one JSON object
  std::vector<std::string> warnings;  // texts for the log
};

// Error: kInvalidArgument naming the flag, the value found and what is allowed (exit code 2).
// `--help` and `--version` set command to "help" and "version". `environment`: "NAME=value" each.
Result<Options> ParseOptions(const std::vector<std::string>& args,
                             std::span<const std::string> environment = {});

// "1,2,3", or ids separated by white space. `param` names the flag in errors.
Result<std::vector<int32_t>> ParseTokenIds(std::string_view text, std::string_view param);

}  // namespace diffserve
