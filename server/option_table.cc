#include "server/option_table.h"

#include <charconv>
#include <cmath>
#include <cstdio>
#include <limits>

#include "kernels/base/cuda/device.h"

namespace diffserve {
namespace {

constexpr double kMaxInt = std::numeric_limits<int>::max();

std::optional<DType> DTypeOf(std::string_view name) {
  for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    if (name == NameOf(dtype)) return dtype;
  }
  return std::nullopt;
}

void SetDType(Options& options, std::string_view value) { options.dtype = DTypeOf(value); }
void SetKvCacheDType(Options& options, std::string_view value) {
  options.kv_cache_dtype = DTypeOf(value);
}
void SetLoadFormat(Options& options, std::string_view value) {
  options.dummy_weights = value == "dummy";
}
void SetLogLevelOption(Options& options, std::string_view value) {
  options.log_level = value == "debug"     ? LogLevel::kDebug
                      : value == "info"    ? LogLevel::kInfo
                      : value == "warning" ? LogLevel::kWarning
                                           : LogLevel::kError;
}

FlagSpec DeviceFlag(std::string_view group) {
  FlagSpec flag = {
      group,
      "--device",
      "NAME",
      kAllCommands,
      &Options::device,
      "where to run; auto: a GPU if there is one with kernels for the model, else the CPU"};
  flag.allowed = {"auto", "cpu"};
  if (cuda::IsCompiledIn()) {
    flag.allowed.push_back("cuda");
  } else {
    flag.refused = {"cuda"};
    flag.refusal = "this build has no CUDA backend";
  }
  return flag;
}

std::vector<FlagSpec> ModelFlags() {
  constexpr std::string_view group = "Model and device";
  return {
      DeviceFlag(group),
      {group,
       "--dtype",
       "TYPE",
       kAllCommands | kConvert,
       &SetDType,
       "weights; auto: as the checkpoint (float16 as float32), on a GPU bfloat16",
       0,
       0,
       {"auto", "float32", "bfloat16", "float16"},
       {},
       {},
       "auto"},
      {group,
       "--quantization",
       "KIND",
       kAllCommands,
       &Options::quantization,
       "weights, made at load",
       0,
       0,
       {"none"},
       {"int8", "int4"},
       "this build does not quantise weights"},
      {group,
       "--kv-cache-dtype",
       "TYPE",
       kAllCommands,
       &SetKvCacheDType,
       "KV pages; auto: as --dtype",
       0,
       0,
       {"auto", "float32", "bfloat16"},
       {"int8", "int4"},
       "this build has no integer KV cache",
       "auto"},
      {group,
       "--attention-logit-bits",
       "BITS",
       kAllCommands,
       &Options::attention_logit_bits,
       "16: attention logits are not quantised",
       0,
       0,
       {"16"},
       {"8", "6", "4"},
       "this build does not quantise attention logits"},
      {group,
       "--load-format",
       "FORMAT",
       kAllCommands,
       &SetLoadFormat,
       "dummy: random weights from config.json alone",
       0,
       0,
       {"auto", "dummy"},
       {},
       {},
       "auto"},
      {group,
       "--cpu-isa",
       "LEVEL",
       kAllCommands,
       &Options::cpu_isa,
       "auto: the best level that the machine has",
       0,
       0,
       {"auto", "avx2", "avx512", "avx512_bf16"}},
      {group, "--threads", "N", kAllCommands | kConvert, &Options::threads,
       "0: one for each CPU of the affinity mask and cgroup quota", 0, 1024},
      {group, "--seed", "N", kAllCommands, &Options::seed, "of sampling and of dummy weights"},
  };
}

std::vector<FlagSpec> EngineFlags() {
  constexpr std::string_view group = "Engine";
  return {
      {group, "--max-model-len", "N", kAllCommands, &Options::max_model_len,
       "tokens of prompt and output together; 0: from config.json", 0, 1 << 24},
      {group, "--max-num-seqs", "N", kServe | kGenerate | kBench | kInspect, &Options::max_num_seqs,
       "sequences running at once", 1, 4096},
      {group, "--max-num-batched-tokens", "N", kAllCommands, &Options::max_num_batched_tokens,
       "rows a step", 16, 1 << 20},
      {group,
       "--kv-cache-memory",
       "SIZE",
       kAllCommands,
       &Options::kv_cache_memory,
       "KV pages: bytes with suffix (2G, 512MiB) or a share of what is free (0.3)",
       0,
       0,
       {},
       {},
       {},
       "what --max-num-seqs sequences of up to 256 tokens need, at most 0.4 of what is free; on a "
       "GPU 0.9 of it"},
      {group,
       "--page-size",
       "N",
       kAllCommands,
       &Options::page_size,
       "slots a page; 0: 16 on the CPU, 64 on a GPU",
       0,
       256,
       {},
       {},
       {},
       {},
       16},
      {group, "--batch-invariant", "", kAllCommands, &Options::batch_invariant,
       "on a GPU too an answer's bits do not depend on what else is in the batch (slower)"},
      {group, "--enable-prefix-caching", "", kServe | kGenerate | kBench,
       &Options::enable_prefix_caching,
       "share KV pages of equal prompt starts; --no-enable-prefix-caching turns it off"},
      {group, "--max-waiting-requests", "N", kServe, &Options::max_waiting_requests,
       "continuations waiting before new ones are refused", 1, 1 << 20},
      {group, "--max-waiting-tokens", "N", kServe, &Options::max_waiting_tokens,
       "prompt tokens waiting before new ones are refused", 1, 9e15},
  };
}

std::vector<FlagSpec> ServerFlags() {
  constexpr std::string_view group = "Server";
  return {
      {group, "--host", "ADDRESS", kServe, &Options::host, "address to listen on, both ports"},
      {group, "--port", "N", kServe, &Options::port, "HTTP; 0 picks a free one", 0, 65535},
      {group, "--grpc-port", "N", kServe, &Options::grpc_port, "gRPC; 0 picks a free one", 0,
       65535},
      {group,
       "--served-model-name",
       "NAME",
       kServe,
       &Options::served_model_name,
       "as clients call the model",
       0,
       0,
       {},
       {},
       {},
       "the directory's name"},
      {group,
       "--api-key-file",
       "FILE",
       kServe,
       &Options::api_key_file,
       "keys, one a line; every route but health then needs one",
       0,
       0,
       {},
       {},
       {},
       "none"},
      {group, "--strict", "", kServe, &Options::strict, "refuse unknown request fields"},
      {group, "--drain-timeout", "SECONDS", kServe, &Options::drain_timeout_s,
       "how long running requests may take after SIGTERM", 0, 3600},
      {group,
       "--kv-events-endpoint",
       "ADDRESS",
       kServe,
       &Options::kv_events_endpoint,
       "publish what the prefix cache holds, token ids included, as vLLM does for routers: ZeroMQ, "
       "listening if the address has *",
       0,
       0,
       {},
       {},
       {},
       "none"},
      {group,
       "--kv-events-replay-endpoint",
       "ADDRESS",
       kServe,
       &Options::kv_events_replay_endpoint,
       "where a subscriber gets events that it missed",
       0,
       0,
       {},
       {},
       {},
       "none"},
      {group,
       "--kv-events-topic",
       "TEXT",
       kServe,
       &Options::kv_events_topic,
       "first frame of each message",
       0,
       0,
       {},
       {},
       {},
       "empty"},
      {group,
       "--log-level",
       "LEVEL",
       kAllCommands | kConvert,
       &SetLogLevelOption,
       "on stderr",
       0,
       0,
       {"debug", "info", "warning", "error"},
       {},
       {},
       "info"},
  };
}

std::vector<FlagSpec> PromptFlags() {
  constexpr std::string_view group = "Prompt and output of logits, generate, bench";
  constexpr unsigned kPrompted = kLogits | kGenerate;
  return {
      {group, "--prompt", "TEXT", kGenerate, &Options::prompt, "text to continue"},
      {group, "--tokens", "IDS", kPrompted, &Options::tokens, "token ids of the prompt, 1,2,3"},
      {group, "--tokens-file", "FILE", kPrompted, &Options::tokens_file,
       "token ids separated by white space"},
      {group, "--output", "FILE", kLogits, &Options::output,
       ".npy file for the logits, float32 [T, vocab]"},
      {group, "--chunk", "N", kLogits, &Options::chunk, "tokens a step; 0: as the scheduler would",
       0, 1 << 20},
      {group, "--json", "", kGenerate | kBench | kInspect, &Options::json, "print one JSON object"},
      {group, "--max-tokens", "N", kGenerate, &Options::max_tokens, "tokens to generate at most", 1,
       1 << 24},
      {group, "--min-tokens", "N", kGenerate, &Options::min_tokens,
       "tokens before the end may come", 0, 1 << 24},
      {group, "--temperature", "X", kGenerate, &Options::temperature, "0: greedy", 0, 100},
      {group, "--top-p", "X", kGenerate, &Options::top_p, "1: off", 1e-6, 1},
      {group, "--top-k", "N", kGenerate, &Options::top_k, "0: off", 0, kMaxInt},
      {group, "--min-p", "X", kGenerate, &Options::min_p, "0: off", 0, 1},
      {group, "--repetition-penalty", "X", kGenerate, &Options::repetition_penalty, "1: off", 1e-3,
       100},
      {group, "--presence-penalty", "X", kGenerate, &Options::presence_penalty, "0: off", -2, 2},
      {group, "--frequency-penalty", "X", kGenerate, &Options::frequency_penalty, "0: off", -2, 2},
      {group,
       "--stop",
       "TEXT",
       kGenerate,
       &Options::stop,
       "ends the output before it",
       0,
       0,
       {},
       {},
       {},
       "none"},
      {group, "--ignore-eos", "", kGenerate, &Options::ignore_eos, "go on to --max-tokens"},
      {group, "--prompt", "N,N", kBench, &Options::bench_prompt, "prompt lengths for prefill", 1,
       1 << 20},
      {group, "--generate", "N", kBench, &Options::bench_generate, "tokens decoded in each sample",
       1, 1 << 20},
      {group, "--depth", "N,N", kBench, &Options::bench_depth, "tokens in the cache before decode",
       0, 1 << 24},
      {group, "--batch", "N,N", kBench, &Options::bench_batch, "sequences decoded together", 1,
       4096},
      {group, "--repeat", "N", kBench, &Options::repeat, "samples of each figure", 1, 1000},
  };
}

std::vector<FlagSpec> ConvertFlags() {
  return {
      {"Output of convert", "--max-shard-size", "SIZE", kConvert, &Options::max_shard_size,
       "bytes of tensors in a file at most, with suffix (5G, 512MiB); a larger tensor has a file "
       "of its own"},
  };
}

std::vector<FlagSpec> ProbeFlags() {
  return {
      {"Probe", "--timeout", "SECONDS", kProbe, &Options::probe_timeout_s,
       "how long the whole of it may take", 0.001, 3600},
  };
}

bool IsGoodSize(const FlagSpec& flag, std::string_view value) {
  const Result<MemorySize> size = ParseMemorySize(value);
  return size.ok() && (size->share == 0 || flag.name != "--max-shard-size");
}

Status BadValue(const FlagSpec& flag, std::string_view value) {
  const std::string name(flag.name);
  return InvalidArgument(name + " is \"" + std::string(value) + "\", allowed: " + AllowedText(flag),
                         name);
}

template <typename T>
std::optional<T> NumberOf(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

std::string NumberText(double value) {
  char text[40];
  std::snprintf(text, sizeof(text), value == std::floor(value) ? "%.0f" : "%g", value);
  return text;
}

std::string ListText(const std::vector<int>& values) {
  std::string text;
  for (int value : values) {
    if (!text.empty()) text += ',';
    text += std::to_string(value);
  }
  return text;
}

// One overload a kind of target; each answers whether `value` was fit.
bool Store(const FlagSpec&, std::string_view value, bool& out) {
  if (value != "true" && value != "false") return false;
  out = value == "true";
  return true;
}

template <typename T>
bool StoreNumber(const FlagSpec& flag, std::string_view value, T& out) {
  const std::optional<T> number = NumberOf<T>(value);
  if (!number) return false;
  const double wide = static_cast<double>(*number);
  if (!(wide >= flag.min && wide <= flag.max)) return false;  // a NaN fails too
  if constexpr (std::is_integral_v<T>) {
    if (*number % flag.multiple_of != 0) return false;
  }
  out = *number;
  return true;
}

bool Store(const FlagSpec& flag, std::string_view value, int& out) {
  return StoreNumber(flag, value, out);
}
bool Store(const FlagSpec& flag, std::string_view value, int64_t& out) {
  return StoreNumber(flag, value, out);
}
bool Store(const FlagSpec& flag, std::string_view value, float& out) {
  // The range is checked in double, so that the float nearest to 0.1 is not below 0.1.
  double wide = 0;
  if (!StoreNumber(flag, value, wide)) return false;
  out = static_cast<float>(wide);
  return true;
}

bool Store(const FlagSpec&, std::string_view value, uint64_t& out) {
  const std::optional<uint64_t> number = NumberOf<uint64_t>(value);
  if (number) out = *number;
  return number.has_value();
}

bool Store(const FlagSpec& flag, std::string_view value, std::string& out) {
  const bool is_size = flag.name == "--kv-cache-memory" || flag.name == "--max-shard-size";
  if (value.empty() || (is_size && !IsGoodSize(flag, value))) return false;
  out = value;
  return true;
}

bool Store(const FlagSpec& flag, std::string_view value, std::vector<int>& out) {
  std::vector<int> values;
  while (true) {
    const size_t comma = value.find(',');
    int number = 0;
    if (values.size() >= 64 || !StoreNumber(flag, value.substr(0, comma), number)) return false;
    values.push_back(number);
    if (comma == std::string_view::npos) break;
    value.remove_prefix(comma + 1);
  }
  out = std::move(values);
  return true;
}

}  // namespace

std::span<const FlagSpec> FlagTable() {
  static const std::vector<FlagSpec> table = [] {
    std::vector<FlagSpec> all;
    for (const auto& part : {ModelFlags(), EngineFlags(), ServerFlags(), PromptFlags(),
                             ConvertFlags(), ProbeFlags()}) {
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }();
  return table;
}

std::span<const CommandSpec> CommandTable() {
  static const ArgumentSpec model_dir = {"MODEL_DIR", &Options::model_dir};
  static const std::vector<CommandSpec> table = {
      {"serve",
       {model_dir},
       "HTTP and gRPC server; one line \"ready http=... grpc=... model=...\" on stdout"},
      {"logits",
       {model_dir},
       "logits of a prompt to a .npy file (--tokens or --tokens-file, --output)"},
      {"generate", {model_dir}, "one continuation, streamed (--prompt, --tokens or --tokens-file)"},
      {"bench", {model_dir}, "prefill and decode speed beside the machine's own limits"},
      {"inspect", {model_dir}, "family, shapes, parameters, memory; refuses what serve refuses"},
      {"convert",
       {model_dir, {"NEW_DIR", &Options::new_dir}},
       "a clean copy of a checkpoint or of a unilm state dict, checked by loading it"},
      {"probe",
       {{"URL", &Options::url}},
       "whether the server at http://HOST:PORT[/PATH] is ready (PATH: readyz)"},
  };
  return table;
}

Status ApplyFlag(const FlagSpec& flag, std::string_view value, Options& options) {
  for (std::string_view refused : flag.refused) {
    if (value == refused) {
      const std::string name(flag.name);
      const std::string reason = std::string(flag.refusal) + "; allowed: " + AllowedText(flag);
      return InvalidArgument(name + " " + std::string(value) + ": " + reason, name);
    }
  }
  bool fits = flag.allowed.empty();
  for (std::string_view allowed : flag.allowed) fits = fits || value == allowed;
  if (!fits) return BadValue(flag, value);
  if (const auto* setter = std::get_if<FlagSpec::Setter>(&flag.target)) {
    (*setter)(options, value);
    return {};
  }
  const bool stored = std::visit(
      [&](auto target) {
        if constexpr (std::is_member_pointer_v<decltype(target)>) {
          return Store(flag, value, options.*target);
        } else {
          return true;
        }
      },
      flag.target);
  return stored ? Status() : BadValue(flag, value);
}

std::string AllowedText(const FlagSpec& flag) {
  if (!flag.allowed.empty()) {
    std::string text;
    for (std::string_view allowed : flag.allowed) {
      if (!text.empty()) text += ", ";
      text += allowed;
    }
    return text;
  }
  const std::string range =
      NumberText(flag.min) + ".." + NumberText(flag.max) +
      (flag.multiple_of > 1 ? ", a multiple of " + std::to_string(flag.multiple_of) : "");
  if (std::holds_alternative<bool Options::*>(flag.target)) return "true, false";
  if (std::holds_alternative<uint64_t Options::*>(flag.target)) return "0..18446744073709551615";
  if (std::holds_alternative<std::vector<int> Options::*>(flag.target))
    return "numbers " + range + " separated by commas";
  if (std::holds_alternative<std::string Options::*>(flag.target)) {
    if (flag.name == "--max-shard-size") return "bytes with suffix (5G, 512MiB)";
    const bool is_size = flag.name == "--kv-cache-memory";
    return is_size ? "bytes with suffix (2G, 512MiB) or a share of what is free (0.3)"
                   : "text, not empty";
  }
  return range;
}

std::string DefaultText(const FlagSpec& flag) {
  if (!flag.default_text.empty()) return std::string(flag.default_text);
  const Options defaults;
  return std::visit(
      [&](auto target) -> std::string {
        using T = decltype(target);
        if constexpr (std::is_same_v<T, bool Options::*>) {
          return defaults.*target ? "on" : "off";
        } else if constexpr (std::is_same_v<T, std::string Options::*>) {
          return defaults.*target;
        } else if constexpr (std::is_same_v<T, std::vector<int> Options::*>) {
          return ListText(defaults.*target);
        } else if constexpr (std::is_same_v<T, FlagSpec::Setter>) {
          return "";
        } else {
          return NumberText(static_cast<double>(defaults.*target));
        }
      },
      flag.target);
}

}  // namespace diffserve
