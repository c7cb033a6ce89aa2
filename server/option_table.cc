#include "server/option_table.h"

#include <algorithm>
#include <limits>

#include "kernels/base/cuda/device.h"
#include "kernels/ops/weight_codec.h"
#include "server/answer/tool_format.h"

namespace diffserve {
namespace {

constexpr double kMaxInt = std::numeric_limits<int>::max();

// The member of Options at the end of a path of members.
template <auto... Path>
FlagSpec::Target At() {
  return +[](Options& options) -> auto& { return (options.*....*Path); };
}
template <auto Member>
FlagSpec::Target InEngine() {
  return At<&Options::session, &SessionOptions::engine, Member>();
}
template <auto Member>
FlagSpec::Target InSampling() {
  return At<&Options::generate, &GenerateOptions::sampling, Member>();
}

template <typename Format>
std::vector<std::string_view> NamesOf(std::span<const Format> formats) {
  std::vector<std::string_view> names = {"auto", "none"};
  for (const Format& format : formats) names.push_back(format.name);
  return names;
}

std::optional<DType> DTypeOf(std::string_view name) {
  for (DType dtype : kDTypes) {
    if (name == NameOf(dtype)) return dtype;
  }
  return std::nullopt;
}

void SetDType(Options& options, std::string_view value) { options.session.dtype = DTypeOf(value); }
void SetQuantization(Options& options, std::string_view value) {
  options.session.quantization.reset();
  for (WeightFormat format : kQuantizedFormats) {
    if (value == NameOf(format)) options.session.quantization = format;
  }
}
void SetKvCacheDType(Options& options, std::string_view value) {
  options.session.kv_cache_dtype = DTypeOf(value);
}
void SetLogitBits(Options& options, std::string_view value) {
  options.session.logit_quant.bits = value == "none" ? 0 : value.front() - '0';
}
void SetLogitScale(Options& options, std::string_view value) {
  for (LogitScale scale : kLogitScales) {
    if (value == NameOf(scale)) options.session.logit_quant.scale = scale;
  }
}
void SetLoadFormat(Options& options, std::string_view value) {
  options.session.dummy_weights = value == "dummy";
}
void SetSpeculative(Options& options, std::string_view value) {
  options.session.prompt_lookup = value == "prompt-lookup";
}
void SetLogLevelOption(Options& options, std::string_view value) {
  options.log_level = value == "debug"     ? LogLevel::kDebug
                      : value == "info"    ? LogLevel::kInfo
                      : value == "warning" ? LogLevel::kWarning
                                           : LogLevel::kError;
}

FlagSpec DeviceFlag() {
  const FlagSpec flag("--device NAME", kAllCommands,
                      At<&Options::session, &SessionOptions::device>(),
                      "where to run; auto: a GPU if there is one with kernels for the model, else "
                      "the CPU");
  if (cuda::IsCompiledIn()) return flag.OneOf({"auto", "cpu", "cuda"});
  return flag.OneOf({"auto", "cpu"}).Refusing({"cuda"}, "this build has no CUDA backend");
}

std::vector<FlagSpec> ModelFlags() {
  return {
      DeviceFlag(),
      FlagSpec("--dtype TYPE", kAllCommands | kConvert, &SetDType,
               "weights; auto: as the checkpoint (float16 as float32), on a GPU bfloat16")
          .OneOf({"auto", "float32", "bfloat16", "float16"})
          .Default("auto"),
      FlagSpec("--quantization TYPE", kAllCommands | kConvert, &SetQuantization,
               "linear layers, made when the model is loaded; convert writes them packed for the "
               "kernels of --cpu-isa, and none then stands for what was written; int8 and int4: "
               "on the CPU alone")
          .OneOf({"none", "int8", "int4"})
          .Default("none"),
      FlagSpec("--kv-cache-dtype TYPE", kAllCommands, &SetKvCacheDType,
               "KV pages; auto: as --dtype; int8, int4 and fp8 are codes with a scale for each "
               "slot and head; float32 and float16: on the CPU alone; fp8_e4m3: on a GPU alone")
          .OneOf(
              {"auto", "float32", "bfloat16", "float16", "int8", "int8k_int4v", "int4", "fp8_e4m3"})
          .Refusing({"fp8", "fp8_e5m2"},
                    "this build has no KV cache of it; fp8_e4m3, on a GPU, and int8 take as many "
                    "bytes")
          .Default("auto"),
      FlagSpec("--kv-cache-dtype-skip-layers LIST", kAllCommands,
               At<&Options::session, &SessionOptions::kv_cache_skip_layers>(),
               "layers whose pages are as --dtype all the same; -1 is the last")
          .In(-1024, 1023),
      FlagSpec("--attention-logit-bits BITS", kAllCommands, &SetLogitBits,
               "attention logits are rounded to this many bits before the softmax, the paper's "
               "experiment")
          .OneOf({"none", "8", "6", "4"})
          .Default("none"),
      FlagSpec("--attention-logit-scale SCOPE", kAllCommands, &SetLogitScale,
               "with --attention-logit-bits: the largest magnitude, which the codes are spread "
               "over, is that of all slots that a query sees (row) or of 64 (tile); anchored: the "
               "codes count down from the largest logit")
          .OneOf({"row", "tile", "anchored"})
          .Default("row"),
      FlagSpec("--load-format FORMAT", kAllCommands, &SetLoadFormat,
               "dummy: random weights from config.json alone")
          .OneOf({"auto", "dummy"})
          .Default("auto"),
      FlagSpec("--cpu-isa LEVEL", kAllCommands | kConvert,
               At<&Options::session, &SessionOptions::cpu_isa>(),
               "auto: the best level that the machine has")
          .OneOf({"auto", "avx2", "avx512", "avx512_vnni", "avx512_bf16"}),
      FlagSpec("--threads N", kAllCommands | kConvert,
               At<&Options::session, &SessionOptions::threads>(),
               "0: one for each CPU of the affinity mask and cgroup quota")
          .In(0, 1024),
      {"--seed N", kAllCommands, At<&Options::session, &SessionOptions::seed>(),
       "of sampling and of dummy weights"},
  };
}

std::vector<FlagSpec> EngineFlags() {
  return {
      FlagSpec("--max-model-len N", kAllCommands, InEngine<&EngineOptions::max_model_len>(),
               "tokens of prompt and output together; 0: from config.json")
          .In(0, 1 << 24),
      FlagSpec("--max-num-seqs N", kServe | kGenerate | kBench | kInspect,
               InEngine<&EngineOptions::max_num_seqs>(), "sequences running at once")
          .In(1, 4096),
      FlagSpec("--max-num-batched-tokens N", kAllCommands,
               InEngine<&EngineOptions::max_num_batched_tokens>(), "tokens per step")
          .In(16, 1 << 20),
      FlagSpec("--kv-cache-memory SIZE", kAllCommands,
               At<&Options::session, &SessionOptions::kv_cache_memory>(),
               "KV pages: bytes with suffix (2G, 512MiB) or a share of what is free (0.3)")
          .OrShare()
          .Default("what --max-num-seqs sequences of up to 256 tokens need, at most 0.4 of what is "
                   "free; on a GPU 0.9 of it"),
      {"--kv-cache-commit", kServe, At<&Options::session, &SessionOptions::kv_cache_commit>(),
       "take all memory of the KV pages at the start, so that it cannot run out later; on the CPU"},
      FlagSpec("--page-size N", kAllCommands, InEngine<&EngineOptions::page_size>(),
               "slots a page; 0: 16 on the CPU, 64 on a GPU")
          .In(0, 256, 16),
      {"--batch-invariant", kAllCommands, At<&Options::session, &SessionOptions::batch_invariant>(),
       "on a GPU too an answer's bits do not depend on what else is in the batch (slower)"},
      {"--enable-prefix-caching", kServe | kGenerate | kChat | kBench,
       InEngine<&EngineOptions::enable_prefix_caching>(),
       "share KV pages of equal prompt starts; --no-enable-prefix-caching turns it off"},
      FlagSpec("--state-snapshot-interval N", kServe | kGenerate | kChat | kInspect,
               At<&Options::session, &SessionOptions::state_snapshot_interval>(),
               "of models with states: tokens between those that the prefix cache keeps, beside "
               "those at prompts' ends; 0: none, so it finds nothing")
          .In(0, 1 << 24),
      FlagSpec("--speculative METHOD", kServe | kGenerate | kChat, &SetSpeculative,
               "prompt-lookup: where prompt and output repeat themselves, several tokens per step; "
               "the same output; on the CPU")
          .OneOf({"off", "prompt-lookup"})
          .Default("off"),
      FlagSpec("--speculative-tokens N", kServe | kGenerate | kChat,
               At<&Options::session, &SessionOptions::speculative_tokens>(),
               "with --speculative: tokens that a step verifies for a sequence at most")
          .In(1, 16),
      FlagSpec("--max-waiting-requests N", kServe, InEngine<&EngineOptions::max_waiting_requests>(),
               "continuations waiting before new ones are refused")
          .In(1, 1 << 20),
      FlagSpec("--max-waiting-tokens N", kServe, InEngine<&EngineOptions::max_waiting_tokens>(),
               "prompt tokens waiting before new ones are refused")
          .In(1, 9e15),
      FlagSpec("--max-queue-wait SECONDS", kServe, InEngine<&EngineOptions::max_queue_wait_s>(),
               "a request that would not, or does not, start by then is refused")
          .In(0.001, 86400),
  };
}

std::vector<FlagSpec> ServerFlags() {
  return {
      {"--host ADDRESS", kServe, At<&Options::serve, &ServeOptions::host>(),
       "address to listen on, both ports"},
      FlagSpec("--port N", kServe, At<&Options::serve, &ServeOptions::port>(),
               "HTTP; 0 picks a free one")
          .In(0, 65535),
      FlagSpec("--grpc-port N", kServe, At<&Options::serve, &ServeOptions::grpc_port>(),
               "gRPC; 0 picks a free one")
          .In(0, 65535),
      FlagSpec("--health-port N", kServe, At<&Options::serve, &ServeOptions::health_port>(),
               "/livez, /readyz and /health alone, on a thread of their own; 0 picks a free one")
          .In(0, 65535)
          .Default("none"),
      FlagSpec("--served-model-name NAME", kServe,
               At<&Options::serve, &ServeOptions::served_model_names>(),
               "as clients call the model; several names: answers have the first")
          .Default("the directory's name"),
      FlagSpec("--api-key-file FILE", kServe, At<&Options::serve, &ServeOptions::api_key_file>(),
               "keys, one per line; every route but health and the page then needs one")
          .Default("none"),
      {"--strict", kServe, At<&Options::serve, &ServeOptions::strict>(),
       "refuse unknown request fields"},
      {"--ui", kServe, At<&Options::serve, &ServeOptions::ui>(),
       "the page at http://HOST:PORT/ with chat, engine and attention lens; --no-ui turns it off"},
      FlagSpec("--cors-origin ORIGINS", kServe, At<&Options::serve, &ServeOptions::cors_origins>(),
               "web pages of other origins that may use the HTTP port: https://chat.example.com, "
               "several separated by commas or by further flags, or * for all")
          .Default("none"),
      FlagSpec("--http-threads N", kServe, At<&Options::serve, &ServeOptions::http_threads>(),
               "for HTTP connections; no more are started than there are CPUs")
          .In(1, 64),
      FlagSpec("--keep-alive-timeout SECONDS", kServe,
               At<&Options::serve, &ServeOptions::keep_alive_timeout_s>(),
               "for which an HTTP connection without a request stays open; shorter than proxies in "
               "front keep theirs (60 to 120 s), and requests get lost")
          .In(1, 86400),
      {"--max-answer-memory SIZE", kServe, At<&Options::serve, &ServeOptions::max_answer_memory>(),
       "what one answer may take of memory (prompts, n, tokens, log-probabilities); a request for "
       "more is refused with 400"},
      {"--max-answers-memory SIZE", kServe,
       At<&Options::serve, &ServeOptions::max_answers_memory>(),
       "what all answers under way may take together; beyond it new ones are refused with 429"},
      FlagSpec("--drain-timeout SECONDS", kServe,
               At<&Options::serve, &ServeOptions::drain_timeout_s>(),
               "how long running requests may take after SIGTERM")
          .In(0, 3600),
      FlagSpec("--sse-ping-interval SECONDS", kServe,
               At<&Options::serve, &ServeOptions::sse_ping_interval_s>(),
               "of silence in a stream of events, after which a comment is sent, so that no proxy "
               "takes it for dead; 0: none")
          .In(0, 3600),
  };
}

// What a server tells of itself.
std::vector<FlagSpec> ReportFlags() {
  return {
      FlagSpec("--cancelled-mass-sample N", kServe,
               At<&Options::serve, &ServeOptions::cancelled_mass_sample>(),
               "one request in N tells diffserve_cancelled_mass what the difference of its maps "
               "removes; 0: none; on the CPU")
          .In(0, 1 << 30),
      FlagSpec("--stall-timeout SECONDS", kServe,
               At<&Options::serve, &ServeOptions::stall_timeout_s>(),
               "a step that takes longer is logged, with what each thread was doing")
          .In(1, 3600),
      {"--stall-exit", kServe, At<&Options::serve, &ServeOptions::stall_exit>(),
       "and then ends the process with exit code 1"},
      FlagSpec("--kv-events-endpoint ADDRESS", kServe,
               At<&Options::serve, &ServeOptions::kv_events_endpoint>(),
               "publish what the prefix cache holds, token ids included, as vLLM does for routers: "
               "ZeroMQ, listening if the address has *")
          .Default("none"),
      FlagSpec("--kv-events-replay-endpoint ADDRESS", kServe,
               At<&Options::serve, &ServeOptions::kv_events_replay_endpoint>(),
               "where a subscriber gets events that it missed")
          .Default("none"),
      FlagSpec("--kv-events-topic TEXT", kServe,
               At<&Options::serve, &ServeOptions::kv_events_topic>(), "first frame of each message")
          .Default("empty"),
      FlagSpec("--log-level LEVEL", kAllCommands | kConvert, &SetLogLevelOption, "on stderr")
          .OneOf({"debug", "info", "warning", "error"})
          .Default("info"),
  };
}

// How the texts of conversations are read.
std::vector<FlagSpec> ConversationFlags() {
  return {
      FlagSpec("--tool-call-parser NAME", kServe,
               At<&Options::serve, &ServeOptions::tool_call_parser>(),
               "how the model writes its calls of tools; auto: as its chat template tells")
          .OneOf(NamesOf(ToolFormats())),
      FlagSpec("--reasoning-parser NAME", kServe,
               At<&Options::serve, &ServeOptions::reasoning_parser>(),
               "how the model marks its reasoning, which is kept apart from its answer")
          .OneOf(NamesOf(ReasoningFormats())),
      {"--allow-special-tokens-in-content", kServe,
       At<&Options::serve, &ServeOptions::allow_special_tokens_in_content>(),
       "a message's text that spells a special token is that token, as in transformers"},
      FlagSpec("--responses-store-entries N", kServe,
               At<&Options::serve, &ServeOptions::responses_store_entries>(),
               "answers of /v1/responses kept for GET and previous_response_id; 0 keeps none")
          .In(0, 1 << 20),
      {"--responses-store-bytes SIZE", kServe,
       At<&Options::serve, &ServeOptions::responses_store_bytes>(),
       "what they may take together; those not asked for the longest go first"},
      FlagSpec("--resumable-streams-bytes SIZE", kServe,
               At<&Options::serve, &ServeOptions::resumable_streams_bytes>(),
               "for events of streams with X-Resumable, a MiB each, to be sent again on demand")
          .Default("none"),
      FlagSpec("--resumable-streams-linger N", kServe,
               At<&Options::serve, &ServeOptions::resumable_streams_linger_s>(),
               "seconds for which such a stream goes on after its connection was lost")
          .In(1, 3600),
  };
}

std::vector<FlagSpec> PromptFlags() {
  constexpr unsigned kPrompted = kLogits | kGenerate;
  return {
      {"--prompt TEXT", kGenerate, At<&Options::prompt, &PromptOptions::text>(),
       "text to continue"},
      {"--chat", kGenerate, At<&Options::prompt, &PromptOptions::chat>(),
       "the prompt is what a user says: the model's chat template goes around it"},
      {"--tokens IDS", kPrompted, At<&Options::prompt, &PromptOptions::tokens>(),
       "token ids of the prompt, 1,2,3"},
      {"--tokens-file FILE", kPrompted, At<&Options::prompt, &PromptOptions::tokens_file>(),
       "token ids separated by white space"},
      {"--output FILE", kLogits, At<&Options::logits, &LogitsOptions::output>(),
       ".npy file for the logits, float32 [T, vocab]"},
      FlagSpec("--chunk N", kLogits, At<&Options::logits, &LogitsOptions::chunk>(),
               "tokens per step; 0: as the scheduler would")
          .In(0, 1 << 20),
      {"--json", kGenerate | kBench | kInspect, At<&Options::json>(), "print one JSON object"},
      FlagSpec("--prompt N,N", kBench, At<&Options::bench, &BenchOptions::prompt>(),
               "prompt lengths for prefill")
          .In(1, 1 << 20),
      FlagSpec("--generate N", kBench, At<&Options::bench, &BenchOptions::generate>(),
               "tokens decoded in each sample")
          .In(1, 1 << 20),
      FlagSpec("--depth N,N", kBench, At<&Options::bench, &BenchOptions::depth>(),
               "tokens in the cache before decode; behind 1024 pages are copies")
          .In(0, 1 << 24),
      FlagSpec("--batch N,N", kBench, At<&Options::bench, &BenchOptions::batch>(),
               "sequences decoded together")
          .In(1, 4096),
      FlagSpec("--repeat N", kBench, At<&Options::bench, &BenchOptions::repeat>(),
               "samples of each figure")
          .In(1, 1000),
  };
}

std::vector<FlagSpec> AnswerFlags() {
  constexpr unsigned kAnswered = kGenerate | kChat;
  return {
      FlagSpec("--max-tokens N", kGenerate, At<&Options::generate, &GenerateOptions::max_tokens>(),
               "tokens to generate at most")
          .In(1, 1 << 24),
      FlagSpec("--max-tokens N", kChat, At<&Options::chat, &ChatOptions::max_tokens>(),
               "tokens of an answer at most; 0: as many as the context leaves")
          .In(0, 1 << 24),
      FlagSpec("--min-tokens N", kAnswered, At<&Options::generate, &GenerateOptions::min_tokens>(),
               "tokens before the end may come")
          .In(0, 1 << 24),
      FlagSpec("--temperature X", kAnswered, InSampling<&SamplingParams::temperature>(),
               "0: greedy")
          .In(kTemperatureRange),
      FlagSpec("--top-p X", kAnswered, InSampling<&SamplingParams::top_p>(), "1: off")
          .In(kTopPRange),
      FlagSpec("--top-k N", kAnswered, InSampling<&SamplingParams::top_k>(), "0: off")
          .In(0, kMaxInt),
      FlagSpec("--min-p X", kAnswered, InSampling<&SamplingParams::min_p>(), "0: off")
          .In(kMinPRange),
      FlagSpec("--repetition-penalty X", kAnswered,
               InSampling<&SamplingParams::repetition_penalty>(), "1: off")
          .In(kRepetitionPenaltyRange),
      FlagSpec("--presence-penalty X", kAnswered, InSampling<&SamplingParams::presence_penalty>(),
               "0: off")
          .In(kPenaltyRange),
      FlagSpec("--frequency-penalty X", kAnswered, InSampling<&SamplingParams::frequency_penalty>(),
               "0: off")
          .In(kPenaltyRange),
      FlagSpec("--stop TEXT", kAnswered, At<&Options::generate, &GenerateOptions::stop>(),
               "ends the output before it")
          .Default("none"),
      {"--ignore-eos", kAnswered, At<&Options::generate, &GenerateOptions::ignore_eos>(),
       "go on to --max-tokens"},
  };
}

std::vector<FlagSpec> ChatFlags() {
  return {
      FlagSpec("--url URL", kChat, At<&Options::chat, &ChatOptions::url>(),
               "instead of MODEL_DIR: the server that answers, http://HOST:PORT")
          .Default("none"),
      FlagSpec("--api-key-file FILE", kChat, At<&Options::chat, &ChatOptions::api_key_file>(),
               "with --url: the file's first key is shown to the server")
          .Default("none"),
      FlagSpec("--system TEXT", kChat, At<&Options::chat, &ChatOptions::system>(),
               "instructions to the model before the conversation")
          .Default("none"),
  };
}

std::vector<FlagSpec> InspectFlags() {
  return {
      FlagSpec(
          "--activations FILE", kInspect, At<&Options::inspect, &InspectOptions::activations>(),
          "instead of the model's shapes, how large its attention logits and hidden states are "
          "and where it looks, over the texts of the file, one JSON object a line: {\"text\": "
          "...} or {\"tokens\": [...]}, and, to follow an answer, \"spans\"; on the CPU")
          .Default("none"),
  };
}

std::vector<FlagSpec> ConvertFlags() {
  return {
      {"--max-shard-size SIZE", kConvert,
       At<&Options::conversion, &ConversionOptions::max_shard_size>(),
       "bytes of tensors in a file at most, with suffix (5G, 512MiB); a larger tensor has a file "
       "of its own"},
  };
}

std::vector<FlagSpec> ProbeFlags() {
  return {
      FlagSpec("--timeout SECONDS", kProbe, At<&Options::probe, &ProbeOptions::timeout_s>(),
               "how long the whole of it may take")
          .In(0.001, 3600),
  };
}

}  // namespace

FlagSpec::FlagSpec(std::string_view usage, unsigned commands, Target target, std::string_view help)
    : name(usage.substr(0, usage.find(' '))),
      value_name(usage.substr(std::min(usage.size(), name.size() + 1))),
      commands(commands),
      target(target),
      help(help) {}

FlagSpec FlagSpec::In(double low, double high, int step) const {
  FlagSpec row = *this;
  row.min = low;
  row.max = high;
  row.multiple_of = step;
  return row;
}

FlagSpec FlagSpec::OneOf(std::vector<std::string_view> values) const {
  FlagSpec row = *this;
  row.allowed = std::move(values);
  return row;
}

FlagSpec FlagSpec::Refusing(std::vector<std::string_view> values, std::string_view why) const {
  FlagSpec row = *this;
  row.refused = std::move(values);
  row.refusal = why;
  return row;
}

FlagSpec FlagSpec::OrShare() const {
  FlagSpec row = *this;
  row.is_share_allowed = true;
  return row;
}

FlagSpec FlagSpec::Default(std::string_view text) const {
  FlagSpec row = *this;
  row.default_text = text;
  return row;
}

std::span<const FlagSpec> FlagTable() {
  static const std::vector<FlagSpec> table = [] {
    const std::pair<std::string_view, std::vector<FlagSpec>> groups[] = {
        {"Model and device", ModelFlags()},
        {"Engine", EngineFlags()},
        {"Server", ServerFlags()},
        {"Conversations", ConversationFlags()},
        {"What a server tells", ReportFlags()},
        {"Prompt and output of logits, generate, bench", PromptFlags()},
        {"Answers of generate, chat", AnswerFlags()},
        {"Chat", ChatFlags()},
        {"Activations", InspectFlags()},
        {"Output of convert", ConvertFlags()},
        {"Probe", ProbeFlags()}};
    std::vector<FlagSpec> all;
    for (const auto& [name, rows] : groups) {
      for (const FlagSpec& row : rows) all.emplace_back(row).group = name;
    }
    return all;
  }();
  return table;
}

}  // namespace diffserve
