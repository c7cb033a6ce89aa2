// SPDX-License-Identifier: Apache-2.0
#include "server/app/option_table.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "kernels/base/cuda/device.h"
#include "kernels/ops/weight_codec.h"
#include "server/app/completion.h"

namespace diffserve {
namespace {

constexpr double kMaxInt = std::numeric_limits<int>::max();

template <auto Member>
FlagSpec::Target InEngine() {
  return At<&Options::session, &SessionOptions::engine, Member>();
}
template <auto Member>
FlagSpec::Target InSampling() {
  return At<&Options::generate, &GenerateOptions::sampling, Member>();
}

constexpr WeightFormat kQuantizations[] = {WeightFormat::kInt8, WeightFormat::kInt4,
                                           WeightFormat::kFp8E4M3};

// Sets a member to the value of this name; to its default ("auto", "none") if none has it.
template <const auto& kValues, auto... Path>
void SetByName(Options& options, std::string_view name) {
  auto& member = (options.*....*Path);
  member = {};
  for (const auto value : kValues) {
    if (name == NameOf(value)) member = value;
  }
}
void SetLogitBits(Options& options, std::string_view value) {
  LogitQuant& quant = options.session.logit_quant = {};
  if (value == "none") return;
  quant.bits = value.front() - '0';
  for (const LogitScale scale : kLogitScales) {
    if (value.ends_with(NameOf(scale))) quant.scale = scale;
  }
}
void SetLoadFormat(Options& options, std::string_view value) {
  options.session.dummy_weights = value == "dummy";
}
void SetSpeculative(Options& options, std::string_view value) {
  options.session.speculation = value == "auto"  ? Speculation::kAuto
                                : value == "off" ? Speculation::kOff
                                                 : Speculation::kPromptLookup;
}
void SetLogLevelOption(Options& options, std::string_view value) {
  options.log_level = value == "debug"     ? LogLevel::kDebug
                      : value == "info"    ? LogLevel::kInfo
                      : value == "warning" ? LogLevel::kWarning
                                           : LogLevel::kError;
}
void SetLogFormatOption(Options& options, std::string_view value) {
  options.log_format = value == "json" ? LogFormat::kJson : LogFormat::kText;
}

// "auto", "cpu", "cuda", or "cuda:1".
void SetDevice(Options& options, std::string_view value) {
  DeviceChoice& device = options.session.device = {};
  device.kind = value == "cpu"              ? DeviceChoice::Kind::kCpu
                : value.starts_with("cuda") ? DeviceChoice::Kind::kGpu
                                            : DeviceChoice::Kind::kAuto;
  if (const size_t colon = value.find(':'); colon != value.npos)
    std::from_chars(value.data() + colon + 1, value.data() + value.size(), device.gpu.emplace());
}

FlagSpec DeviceFlag() {
  FlagSpec flag("--device NAME", kAllCommands | kModels, &SetDevice,
                "where to run; auto: the GPU if it has kernels for the model, else the CPU");
  flag.Default("auto");
  if (cuda::IsCompiledIn()) return flag.OneOf({"auto", "cpu", "cuda"}).Numbered({"auto", "cuda"});
  return flag.OneOf({"auto", "cpu"})
      .Numbered({"cuda"})
      .Refusing({"cuda"}, "this build has no CUDA backend");
}

std::vector<FlagSpec> ModelFlags() {
  return {
      DeviceFlag(),
      FlagSpec("--dtype TYPE", kAllCommands | kConvert,
               &SetByName<kDTypes, &Options::session, &SessionOptions::dtype>,
               "weight dtype; auto: the checkpoint's (float16 loads as float32), bfloat16 on a GPU")
          .OneOf({"auto", "float32", "bfloat16", "float16"})
          .Default("auto"),
      FlagSpec("--quantization TYPE", kAllCommands | kConvert,
               &SetByName<kQuantizations, &Options::session, &SessionOptions::quantization>,
               "format of the linear layers' weights, packed at load; convert stores them packed "
               "for --cpu-isa; none: as the checkpoint stores them; fp8: GPU only, activations too")
          .OneOf({"none", "int8", "int4", "fp8"})
          .Default("none"),
      FlagSpec("--kv-cache-dtype TYPE", kAllCommands,
               &SetByName<kDTypes, &Options::session, &SessionOptions::kv_cache_dtype>,
               "dtype of the KV pages; auto: as --dtype; int8, int4 and fp8 have a scale per slot "
               "and head; float32 and float16: CPU only; fp8_e4m3: GPU only")
          .OneOf(
              {"auto", "float32", "bfloat16", "float16", "int8", "int8k_int4v", "int4", "fp8_e4m3"})
          .Refusing({"fp8", "fp8_e5m2"},
                    "this build has no KV cache in this format; fp8_e4m3, on a GPU, and int8 take "
                    "as many bytes")
          .Default("auto"),
      FlagSpec("--kv-cache-dtype-skip-layers LIST", kAllCommands,
               At<&Options::session, &SessionOptions::kv_cache_skip_layers>(),
               "layers whose pages keep --dtype; -1: the last layer")
          .In(-1024, 1023),
      FlagSpec("--attention-logit-bits BITS", kAllCommands, &SetLogitBits,
               "round attention logits to this many bits before the softmax, as in the paper; "
               "the scale: by the largest magnitude over all slots that a query sees; "
               "tile: over 64 slots; anchored: codes count down from the largest logit")
          .OneOf({"none", "8", "6", "4", "8:tile", "6:tile", "4:tile", "8:anchored", "6:anchored",
                  "4:anchored"})
          .Default("none"),
      FlagSpec("--load-format FORMAT", kAllCommands, &SetLoadFormat,
               "auto: the checkpoint's weights; dummy: random weights, made from config.json only")
          .OneOf({"auto", "dummy"})
          .Default("auto"),
      FlagSpec("--cpu-isa LEVEL", kAllCommands | kConvert | kModels,
               At<&Options::session, &SessionOptions::cpu_isa>(),
               "instruction set of the CPU kernels; auto: the best that the machine has")
          .OneOf({"auto", "plain", "avx2", "avx512", "avx512_vnni", "avx512_bf16", "neon",
                  "neon_dot", "neon_bf16"}),
      FlagSpec("--threads N", kAllCommands | kConvert | kModels,
               At<&Options::session, &SessionOptions::threads>(),
               "compute threads; 0: one per CPU of the affinity mask and cgroup quota")
          .In(0, 1024),
      {"--seed N", kAllCommands, At<&Options::session, &SessionOptions::seed>(),
       "seed for sampling and for dummy weights"},
  };
}

std::vector<FlagSpec> EngineFlags() {
  return {
      FlagSpec("--max-model-len N", kAllCommands, InEngine<&EngineOptions::max_model_len>(),
               "maximum tokens of prompt and output together; 0: from config.json")
          .In(0, 1 << 24),
      FlagSpec("--max-num-seqs N", kServe | kGenerate | kBench | kInspect | kRunBatch,
               InEngine<&EngineOptions::max_num_seqs>(), "maximum sequences running at once")
          .In(1, 4096),
      FlagSpec("--max-num-batched-tokens N", kAllCommands,
               InEngine<&EngineOptions::max_num_batched_tokens>(), "maximum tokens per step")
          .In(16, 1 << 20),
      FlagSpec("--max-step-ms MS", kServe, InEngine<&EngineOptions::max_step_ms>(),
               "time that a step should take at most while sequences decode: prompts are computed "
               "in smaller chunks, of a page at least; 0: no limit")
          .In(0, 60000),
      FlagSpec(
          "--kv-cache-memory SIZE", kAllCommands,
          At<&Options::session, &SessionOptions::kv_cache_memory>(),
          "memory for KV pages: bytes with suffix (2G, 512MiB) or a share of free memory (0.3)")
          .OrShare()
          .Default("enough for --max-num-seqs sequences of up to 256 tokens, at most 0.4 of free "
                   "memory; 0.9 of it on a GPU"),
      FlagSpec("--gpu-memory-utilization X", kAllCommands,
               At<&Options::session, &SessionOptions::gpu_memory_utilization>(),
               "maximum share of the GPU's memory to take; 0: what is free")
          .In(0, 1),
      {"--kv-cache-commit", kServe | kRunBatch,
       At<&Options::session, &SessionOptions::kv_cache_commit>(),
       "take all memory of the KV pages at startup, so that it cannot run out later; CPU only"},
      FlagSpec("--page-size N", kAllCommands, InEngine<&EngineOptions::page_size>(),
               "slots per page; 0: 16 on the CPU, 64 on a GPU")
          .In(0, 256, 16),
      {"--batch-invariant", kAllCommands, At<&Options::session, &SessionOptions::batch_invariant>(),
       "on a GPU: make bits independent of the batch (slower); on the CPU they always "
       "are"},
      {"--enable-prefix-caching", kServe | kGenerate | kChat | kBench | kRunBatch,
       InEngine<&EngineOptions::enable_prefix_caching>(),
       "share KV pages of equal prompt prefixes; --no-enable-prefix-caching turns it off"},
      FlagSpec("--state-snapshot-interval N", kServe | kGenerate | kChat | kInspect | kRunBatch,
               At<&Options::session, &SessionOptions::state_snapshot_interval>(),
               "for models with states: tokens between the snapshots that the prefix cache keeps, "
               "besides those at prompt ends; 0: no snapshots, so the prefix cache finds nothing")
          .In(0, 1 << 24),
      FlagSpec(
          "--speculative METHOD", kServe | kGenerate | kChat | kRunBatch, &SetSpeculative,
          "prompt-lookup: several tokens per step where they can be guessed; the output is the "
          "same (on a GPU: with --batch-invariant); auto: prompt-lookup on the CPU and with "
          "--batch-invariant, else off")
          .OneOf({"auto", "prompt-lookup", "off"})
          .Default("auto"),
      FlagSpec("--speculative-history SIZE", kServe,
               At<&Options::session, &SessionOptions::speculative_history>(),
               "memory for past answers, from which tokens are guessed for requests of the same "
               "API key and cache_salt; at least 1MiB")
          .Default("none"),
      {"--speculative-model MODEL", kServe | kGenerate | kChat | kRunBatch,
       At<&Options::session, &SessionOptions::draft_dir>(),
       "a draft model, a small one with the same tokens, guesses too; CPU only"},
      FlagSpec("--max-waiting-requests N", kServe, InEngine<&EngineOptions::max_waiting_requests>(),
               "maximum waiting continuations; more are refused")
          .In(1, 1 << 20),
      FlagSpec("--max-queue-wait SECONDS", kServe, InEngine<&EngineOptions::max_queue_wait_s>(),
               "maximum wait before a request starts; a request that is expected to wait longer is "
               "refused at once, and one that has waited twice as long leaves the queue")
          .In(0.001, 86400),
  };
}

std::vector<FlagSpec> ServerFlags() {
  return {
      {"--host ADDRESS", kServe, At<&Options::serve, &ServeOptions::host>(),
       "address to listen on, for all ports"},
      FlagSpec("--port N", kServe, At<&Options::serve, &ServeOptions::port>(),
               "HTTP port; 0 picks a free one")
          .In(0, 65535),
      FlagSpec("--unix-socket PATH", kServe, At<&Options::serve, &ServeOptions::unix_socket>(),
               "HTTP listens on a Unix socket at this path, which only its own user may open, and "
               "on no port; the file of a dead server is replaced")
          .Default("none"),
      {"--grpc", kServe, At<&Options::serve, &ServeOptions::grpc>(),
       "gRPC services; --no-grpc turns them off"},
      FlagSpec("--grpc-port N", kServe, At<&Options::serve, &ServeOptions::grpc_port>(),
               "gRPC port; 0 picks a free one")
          .In(0, 65535),
      FlagSpec("--health-port N", kServe, At<&Options::serve, &ServeOptions::health_port>(),
               "port of only /livez, /readyz, /health, on its own thread; 0: a free one")
          .In(0, 65535)
          .Default("none"),
      FlagSpec("--served-model-name NAME", kServe | kRunBatch,
               At<&Options::serve, &ServeOptions::served_model_names>(),
               "model name that clients use; of several names, answers have the first")
          .Default("the directory's name"),
      FlagSpec("--api-key-file FILE", kServe, At<&Options::serve, &ServeOptions::api_key_file>(),
               "API keys, one per line; all but health, the page, /openapi.json then need one")
          .Default("none"),
      {"--ui", kServe, At<&Options::serve, &ServeOptions::ui>(),
       "web page at http://HOST:PORT/ with chat, engine and attention lens; --no-ui turns it off"},
      FlagSpec("--cors-origin ORIGINS", kServe, At<&Options::serve, &ServeOptions::cors_origins>(),
               "origins of other web pages that may use the HTTP port: https://chat.example.com, "
               "several separated by commas or in further flags, or * for all")
          .Default("none"),
      {"--max-answers-memory SIZE", kServe | kRunBatch,
       At<&Options::serve, &ServeOptions::max_answers_memory>(),
       "maximum memory of all running answers together; beyond it new requests are refused with "
       "429 (in run-batch they wait), and a request for more than an eighth of it with 400"},
      FlagSpec("--max-body-size SIZE", kServe | kRunBatch,
               At<&Options::serve, &ServeOptions::max_body_size>(),
               "largest body, also decompressed, or gRPC message, to 64MiB")
          .In(1 << 10, 64 << 20),
      FlagSpec("--drain-timeout SECONDS", kServe,
               At<&Options::serve, &ServeOptions::drain_timeout_s>(),
               "how long running requests may take after SIGTERM")
          .In(0, 3600),
      {"--stop-with-stdin", kServe, At<&Options::serve, &ServeOptions::stop_with_stdin>(),
       "stop as after SIGTERM when standard input ends: a server whose standard input is a pipe "
       "ends with the process that holds the pipe, even one that was killed"},
  };
}

FlagSpec LogLevelFlag(unsigned commands, std::string_view fallback) {
  FlagSpec flag("--log-level LEVEL", commands, &SetLogLevelOption,
                "lowest level that is logged on stderr");
  return flag.OneOf({"debug", "info", "warning", "error"}).Default(fallback);
}

std::vector<FlagSpec> ModelsFlags() {
  return {
      FlagSpec("--models FILE", kServe, At<&Options::models, &ModelsOptions::file>(),
               "serve several models, instead of MODEL_DIR: a JSON object of names, each with a "
               "model and flags of its own; a model's process is started when it is asked for")
          .Default("none"),
      FlagSpec("--idle-timeout SECONDS", kServe,
               At<&Options::models, &ModelsOptions::idle_timeout_s>(),
               "stop a model that has had no request for this long; 0: never")
          .In(0, 1 << 24),
      FlagSpec("--max-loaded N", kServe, At<&Options::models, &ModelsOptions::max_loaded>(),
               "maximum models that have a process; 0: no limit")
          .In(0, 256),
      FlagSpec(
          "--models-memory SIZE", kServe, At<&Options::models, &ModelsOptions::memory>(),
          "maximum memory of all models on the CPU that have a process, by the total that inspect "
          "prints for each: bytes with suffix or a share of free memory")
          .OrShare()
          .Default("no limit"),
      FlagSpec("--load-wait SECONDS", kServe, At<&Options::models, &ModelsOptions::load_wait_s>(),
               "how long a request waits for its model, or for room for it")
          .In(1, 86400),
  };
}

// What a server reports of itself.
std::vector<FlagSpec> ReportFlags() {
  return {
      FlagSpec("--kv-cache-dir DIR", kServe | kRunBatch | kInspect,
               At<&Options::serve, &ServeOptions::kv_cache_dir>(),
               "directory in which pages of the prefix cache outlive memory and process; inspect "
               "reports what it holds, also without MODEL_DIR")
          .Default("none"),
      {"--kv-cache-disk SIZE", kServe | kRunBatch,
       At<&Options::serve, &ServeOptions::kv_cache_disk>(),
       "maximum size of the files in --kv-cache-dir"},
      FlagSpec("--kv-cache-host-memory SIZE", kServe | kRunBatch,
               At<&Options::serve, &ServeOptions::kv_cache_host_memory>(),
               "host memory for pages of the prefix cache that leave a GPU's memory; with "
               "--kv-cache-dir they are there before they are on disk")
          .Default("none"),
      FlagSpec("--kv-events-endpoint ADDRESS", kServe,
               At<&Options::serve, &ServeOptions::kv_events_endpoint>(),
               "publish changes of the prefix cache, token ids included, in vLLM's format for "
               "routers; a ZeroMQ endpoint, which listens if the address has *")
          .Default("none"),
      FlagSpec("--kv-events-replay-endpoint ADDRESS", kServe,
               At<&Options::serve, &ServeOptions::kv_events_replay_endpoint>(),
               "where a subscriber gets events that it missed")
          .Default("none"),
      FlagSpec("--kv-events-topic TEXT", kServe,
               At<&Options::serve, &ServeOptions::kv_events_topic>(), "first frame of each message")
          .Default("empty"),
      LogLevelFlag((kAllCommands & ~kRunBatch) | kConvert | kModels | kDevices, "info"),
      LogLevelFlag(kRunBatch, "warning"),
      FlagSpec("--log-format FORMAT", kServe, &SetLogFormatOption,
               "form of the lines on stderr; json: one JSON object per line")
          .OneOf({"text", "json"})
          .Default("text"),
  };
}

std::vector<FlagSpec> PromptFlags() {
  constexpr unsigned kPrompted = kLogits | kGenerate;
  return {
      {"--prompt TEXT", kPrompted, At<&Options::prompt, &PromptOptions::text>(),
       "the prompt as a text"},
      {"--chat", kGenerate, At<&Options::prompt, &PromptOptions::chat>(),
       "wrap the prompt in the model's chat template, as a user's message"},
      {"--tokens IDS", kPrompted, At<&Options::prompt, &PromptOptions::tokens>(),
       "token ids of the prompt: 1,2,3, or @FILE with ids separated by commas or white space"},
      {"--output FILE", kLogits, At<&Options::logits, &LogitsOptions::output>(),
       ".npy file for the logits: float32 [T, vocab]"},
      {"--json", kGenerate | kBench | kInspect | kModels | kDevices, At<&Options::json>(),
       "print one JSON object"},
      FlagSpec("--prompt N,N", kBench, At<&Options::bench, &BenchOptions::prompt>(),
               "prompt lengths for prefill")
          .In(1, 1 << 20)
          .Default("512,2048, within the model's length"),
      FlagSpec("--generate N", kBench, At<&Options::bench, &BenchOptions::generate>(),
               "tokens decoded per sample")
          .In(1, 1 << 20),
      FlagSpec("--depth N,N", kBench, At<&Options::bench, &BenchOptions::depth>(),
               "tokens in the cache before decode; after the first 1024, pages are copies")
          .In(0, 1 << 24)
          .Default("0,4096, within the model's length"),
      FlagSpec("--batch N,N", kBench, At<&Options::bench, &BenchOptions::batch>(),
               "sequences decoded together")
          .In(1, 4096),
      FlagSpec("--repeat N", kBench, At<&Options::bench, &BenchOptions::repeat>(),
               "samples per figure")
          .In(1, 1000),
  };
}

std::vector<FlagSpec> AnswerFlags() {
  constexpr unsigned kAnswered = kGenerate | kChat;
  return {
      FlagSpec("--max-tokens N", kGenerate, At<&Options::generate, &GenerateOptions::max_tokens>(),
               "maximum tokens to generate")
          .In(1, 1 << 24),
      FlagSpec("--max-tokens N", kChat, At<&Options::chat, &ChatOptions::max_tokens>(),
               "maximum tokens of an answer; 0: as many as the context leaves")
          .In(0, 1 << 24),
      FlagSpec("--temperature X", kAnswered, InSampling<&SamplingParams::temperature>(),
               "0: greedy")
          .In(RangeOf(&SamplingParams::temperature)),
      FlagSpec("--top-p X", kAnswered, InSampling<&SamplingParams::top_p>(), "1: off")
          .In(RangeOf(&SamplingParams::top_p)),
      FlagSpec("--top-k N", kAnswered, InSampling<&SamplingParams::top_k>(), "0: off")
          .In(0, kMaxInt),
      FlagSpec("--min-p X", kAnswered, InSampling<&SamplingParams::min_p>(), "0: off")
          .In(RangeOf(&SamplingParams::min_p)),
      FlagSpec("--stop TEXT", kAnswered, At<&Options::generate, &GenerateOptions::stop>(),
               "end the output before this text")
          .Default("none"),
      {"--ignore-eos", kAnswered, InSampling<&SamplingSpec::ignore_eos>(),
       "continue to --max-tokens"},
  };
}

std::vector<FlagSpec> ChatFlags() {
  return {
      FlagSpec("--url URL", kChat, At<&Options::chat, &ChatOptions::url>(),
               "server to chat with, instead of MODEL_DIR: http://HOST:PORT")
          .Default("none"),
      FlagSpec("--api-key-file FILE", kChat, At<&Options::chat, &ChatOptions::api_key_file>(),
               "with --url: the file's first key is sent to the server")
          .Default("none"),
      FlagSpec("--system TEXT", kChat, At<&Options::chat, &ChatOptions::system>(),
               "system message at the start of the conversation")
          .Default("none"),
  };
}

std::vector<FlagSpec> BatchFlags() {
  return {
      {"--input FILE", kRunBatch, At<&Options::batch, &BatchOptions::input>(),
       "requests, one JSON object per line, in the form of OpenAI's batch API; - is standard "
       "input"},
      {"--output FILE", kRunBatch, At<&Options::batch, &BatchOptions::output>(),
       "answers, one per line, in the order in which they are complete; a file that has some is "
       "continued"},
  };
}

std::vector<FlagSpec> InspectFlags() {
  return {
      FlagSpec(
          "--activations FILE", kInspect, At<&Options::inspect, &InspectOptions::activations>(),
          "instead of the model's shapes, report how large its attention logits and hidden states "
          "are, and where it looks; FILE has texts, one JSON object per line: {\"text\": ...} or "
          "{\"tokens\": [...]}, and optionally \"spans\", to follow an answer; CPU only")
          .Default("none"),
  };
}

}  // namespace

FlagSpec::FlagSpec(std::string_view usage, unsigned commands, Target target, std::string_view help)
    : name(usage.substr(0, usage.find(' '))),
      value_name(usage.substr(std::min(usage.size(), name.size() + 1))),
      commands(commands),
      target(target),
      help(help) {}

std::span<const FlagSpec> FlagTable() {
  static const std::vector<FlagSpec> table = [] {
    const std::pair<std::string_view, std::vector<FlagSpec>> groups[] = {
        {"Model and device", ModelFlags()},
        {"Engine", EngineFlags()},
        {"Server", ServerFlags()},
        {kModelsGroup, ModelsFlags()},
        {"Conversations", ConversationFlags()},
        {"Reports of a server", ReportFlags()},
        {"Prompt and output of logits, generate, bench", PromptFlags()},
        {"Answers of generate, chat", AnswerFlags()},
        {"Chat", ChatFlags()},
        {"Files of run-batch", BatchFlags()},
        {"Activations", InspectFlags()}};
    std::vector<FlagSpec> all;
    for (const auto& [name, rows] : groups) {
      for (const FlagSpec& row : rows) all.emplace_back(row).group = name;
    }
    return all;
  }();
  return table;
}

std::span<const FlagSpec> ArgumentTable() {
  static const FlagSpec table[] = {
      {"--model-dir MODEL_DIR", kAllCommands | kConvert,
       At<&Options::session, &SessionOptions::model_dir>(), ""},
      {"--new-dir NEW_DIR", kConvert, At<&Options::conversion, &ConversionOptions::new_dir>(), ""},
      {"--url URL", kProbe, At<&Options::probe, &ProbeOptions::url>(), ""},
      FlagSpec("--shell SHELL", kCompletion, At<&Options::completion, &CompletionOptions::shell>(),
               "")
          .OneOf({std::begin(kCompletionShells), std::end(kCompletionShells)}),
  };
  return table;
}

std::span<const CommandSpec> CommandTable() {
  static constexpr CommandSpec kTable[] = {
      {"serve",
       "serve HTTP and gRPC; prints one line \"ready http=... grpc=... model=...\" on stdout"},
      {"logits", "write a prompt's logits to a .npy file (--prompt or --tokens, --output)"},
      {"generate", "print one continuation as it is generated (--prompt or --tokens)"},
      {"chat",
       "chat in the terminal, with a local model or with a running server (--url instead of "
       "MODEL_DIR)"},
      {"bench", "measure prefill and decode speed, and the machine's own limits"},
      {"inspect", "print family, shapes, parameters and memory; refuses what serve refuses"},
      {"convert",
       "write a clean copy of a checkpoint or of a unilm state dict, and load it as a check"},
      {"probe",
       "check whether the server at http://HOST:PORT[/PATH] (default: /readyz) or unix:PATH is "
       "ready"},
      {"completion", "print a script that completes this command line in bash, zsh or fish"},
      {"models",
       "list what the hub's cache holds, and the memory and speed that each model would have here"},
      {"run-batch",
       "answer a file of requests without a server, and continue after a crash (--input, "
       "--output)"},
      {"devices", "list the GPUs that CUDA shows, by the names that --device takes"},
  };
  return kTable;
}

}  // namespace diffserve
