// SPDX-License-Identifier: Apache-2.0
// `diffserve inspect`: a model directory's contents and needs, after every check that `serve` makes
// before it listens.
#include <algorithm>
#include <cstdio>

#include "engine/text/chat_template.h"
#include "engine/text/tokenizer.h"
#include "server/app/commands/commands.h"
#include "server/app/session/kv_disk_report.h"
#include "server/app/session/model_session.h"
#include "server/app/session/session_cost.h"
#include "server/json/json_writer.h"

namespace diffserve {
namespace {

const char* NameOf(LambdaKind kind) {
  switch (kind) {
    case LambdaKind::kNone:
      return "none";
    case LambdaKind::kPerLayer:
      return "one per layer";
    case LambdaKind::kPerTokenHead:
      return "one per token and head";
  }
  return "?";
}

const char* NameOf(SubNorm norm) {
  switch (norm) {
    case SubNorm::kNone:
      return "none";
    case SubNorm::kPlain:
      return "without weight";
    case SubNorm::kAffine:
      return "with weight";
  }
  return "?";
}

const char* NameOf(MlpKind kind) {
  switch (kind) {
    case MlpKind::kSwiGlu:
      return "SwiGLU";
    case MlpKind::kPolyNorm:
      return "gated PolyNorm";
  }
  return "?";
}

std::string DescribeSubNorm(const DiffSpec& spec) {
  std::string text = NameOf(spec.sub_norm);
  char eps[32];
  std::snprintf(eps, sizeof(eps), " (eps %g)", static_cast<double>(spec.sub_norm_eps));
  return spec.sub_norm == SubNorm::kNone ? text : text + eps;
}

const char* NameOf(NormKind norm) {
  switch (norm) {
    case NormKind::kRmsNorm:
      return "RMS";
    case NormKind::kLayerNorm:
      break;
  }
  return "LayerNorm";
}

// "32 of attention", or how many of each kind.
std::string DescribeLayers(const ModelConfig& config) {
  int mamba = 0, gated = 0, full = 0, windowed = 0, shared = 0, window = 0;
  for (const LayerConfig& layer : config.layers) {
    if (layer.mixer == MixerKind::kMamba)
      ++mamba;
    else if (layer.mixer == MixerKind::kGatedMemory)
      ++gated;
    else if (layer.shares_kv)
      ++shared;
    else if (layer.window > 0)
      ++windowed, window = layer.window;
    else
      ++full;
  }
  std::string text = std::to_string(full) + " of attention";
  if (windowed > 0)
    text += ", " + std::to_string(windowed) + " within " + std::to_string(window) + " tokens";
  if (shared > 0) text += ", " + std::to_string(shared) + " on an earlier layer's K and V";
  if (mamba > 0) text += ", " + std::to_string(mamba) + " of Mamba";
  if (gated > 0) text += ", " + std::to_string(gated) + " gated memory units";
  return text;
}

std::string DescribeRope(const RopeConfig& rope) {
  if (rope.style == RopeStyle::kNone) return "none";
  char text[200];
  int length = std::snprintf(text, sizeof(text), "%s, %s, theta %g", NameOf(rope.type),
                             rope.style == RopeStyle::kHalfSplit ? "half-split" : "interleaved",
                             rope.theta);
  const auto append = [&](const char* format, auto... values) {
    length += std::snprintf(text + length, sizeof(text) - static_cast<size_t>(length), format,
                            values...);
  };
  if (rope.type != RopeConfig::Type::kDefault) append(", factor %g", rope.factor);
  if (rope.type == RopeConfig::Type::kLlama3)
    append(", frequencies %g to %g", rope.low_freq_factor, rope.high_freq_factor);
  if (rope.type == RopeConfig::Type::kYarn) {
    append(", beta %g to %g, attention factor %g", rope.beta_fast, rope.beta_slow,
           rope.attention_factor);
  }
  if (rope.type == RopeConfig::Type::kLlama3 || rope.type == RopeConfig::Type::kYarn) {
    append(", original length %d", rope.original_max_positions);
  }
  return text;
}

const char* YesNo(bool value) { return value ? "yes" : "no"; }

// The physical heads of each output head: "0: q 0 - 4, k 0 - 2, v 0 1".
std::vector<std::string> Pairing(const ModelConfig& config) {
  const DiffSpec& a = config.attention;
  const HeadOrder& order = config.head_order;
  std::vector<std::string> heads;
  const auto append = [](std::string& text, const char* before, const std::vector<int32_t>& list,
                         int i) {
    text += before;
    text += std::to_string(list[static_cast<size_t>(i)]);
  };
  for (int s = 0; s < a.num_q1_heads; ++s) {
    const int group = s / (a.num_q1_heads / a.num_kv_groups);
    const int v_heads = a.v_dim / a.head_dim;
    std::string text;
    append(text, "q ", order.q, s);
    if (a.has_second_map())
      append(text, " - ", order.q, a.num_q1_heads + s / (a.num_q1_heads / a.num_q2_heads));
    append(text, ", k ", order.k, group);
    if (a.k_maps == 2) append(text, " - ", order.k, a.num_kv_groups + group);
    text += ", v";
    for (int v = 0; v < v_heads; ++v) append(text, " ", order.v, group * v_heads + v);
    heads.push_back(std::move(text));
  }
  return heads;
}

// Bytes of a sequence besides the pages of its tokens: its state and full windows.
double BytesBesidePages(const SessionPlan& plan) {
  const int64_t pages = plan.engine.window > 0 ? plan.engine.WindowPagesPerSequence() : 0;
  return static_cast<double>(plan.slot_bytes()) +
         static_cast<double>(plan.window_page_bytes) * static_cast<double>(pages);
}

// Memory for --max-num-seqs sequences of --max-model-len tokens each.
double FullKvBytes(const SessionPlan& plan) {
  const double pages = static_cast<double>(plan.PagesFor(plan.engine.max_model_len)) *
                       static_cast<double>(plan.page_bytes);
  return (pages + BytesBesidePages(plan)) * plan.engine.max_num_seqs;
}

struct DTypeBytes {
  DType dtype;
  size_t bytes;
};
// Bytes of KV pages per token over all layers, in each format that the device has for such heads.
std::vector<DTypeBytes> KvBytesPerToken(const SessionPlan& plan) {
  const ModelConfig& c = plan.summary.config;
  std::vector<DTypeBytes> found;
  for (DType dtype : kDTypes) {
    if (!plan.pages.IsServedAs(dtype)) continue;
    const auto in_pages = std::ranges::count_if(
        c.layers, [](const LayerConfig& layer) { return layer.writes_kv() && layer.window == 0; });
    const std::vector<KvFormat> layers(static_cast<size_t>(in_pages), plan.pages.As(dtype));
    found.push_back(
        {dtype, KvCache::BytesPerPage(layers) / static_cast<size_t>(plan.engine.page_size)});
  }
  return found;
}

// The dtype of the KV pages, and the layers with another one.
std::string KvPages(const SessionPlan& plan) {
  std::string text(NameOf(plan.layout.codec.dtype));
  for (size_t layer = 0; layer < plan.layouts.size(); ++layer) {
    const DType dtype = plan.layouts[layer].codec.dtype;
    if (dtype != plan.layout.codec.dtype)
      text += ", of layer " + std::to_string(layer) + " " + std::string(NameOf(dtype));
  }
  return text;
}

// The first heads and the last one: those between continue the pattern. --json has all.
void PrintPairing(const ModelConfig& config) {
  constexpr size_t kFirst = 3;
  const std::vector<std::string> heads = Pairing(config);
  for (size_t i = 0; i < heads.size(); ++i) {
    if (i < kFirst || i + 1 == heads.size() || heads.size() == kFirst + 2)
      std::printf("head %-15zu %s\n", i, heads[i].c_str());
    else if (i == kFirst)
      std::printf("...\n");
  }
}

// Rows of kPerRow layers: "lambda 0..9", and below each value the initial one.
void PrintLambdas(const ModelConfig& config, const std::vector<float>& lambdas) {
  constexpr size_t kPerRow = 10;
  for (size_t begin = 0; begin < lambdas.size(); begin += kPerRow) {
    const size_t end = std::min(lambdas.size(), begin + kPerRow);
    const std::string layers = std::to_string(begin) + ".." + std::to_string(end - 1);
    std::string now, init;
    for (size_t i = begin; i < end; ++i) {
      const bool has_lambda = config.layers[i].mixer == MixerKind::kAttention;
      char text[32];
      std::snprintf(text, sizeof(text), " %7.4f", static_cast<double>(lambdas[i]));
      now += has_lambda ? text : "       -";
      std::snprintf(text, sizeof(text), " %7.4f", static_cast<double>(config.lambda_init[i]));
      init += has_lambda ? text : "       -";
    }
    std::printf("lambda, layer %-6s%s\n  at the start     %s\n", layers.c_str(), now.c_str(),
                init.c_str());
  }
}

void PrintText(const SessionPlan& plan, const std::vector<float>& lambdas, bool has_chat_template) {
  const ModelConfig& c = plan.summary.config;
  const DiffSpec& a = c.attention;
  std::printf("device               %s\n", plan.device_name.c_str());
  std::printf("family               %s\n", c.family.c_str());
  std::printf("parameters           %s\n", ParametersText(plan.summary.num_parameters).c_str());
  std::printf("dtype                %s (checkpoint %s), linear layers %s, KV pages %s\n",
              NameOf(plan.summary.weight_format).data(), NameOf(c.checkpoint_dtype).data(),
              NameOf(plan.summary.linear_format).data(), KvPages(plan).c_str());
  const LogitQuant& logits = plan.model.logit_quant;
  if (logits.is_on()) {
    std::printf("attention logits     %d bits, scale: %s\n", logits.bits,
                NameOf(logits.scale).data());
  }
  if (c.packed) {
    std::printf("packed               layout %d, panels of %d columns, for --cpu-isa %s\n",
                PackedFormat::kVersion, c.packed->panel_columns, c.packed->Levels().c_str());
  }
  std::printf(
      "shape                %d layers, hidden %d, mlp %d, vocabulary %d, %s output matrix\n",
      c.num_layers, c.hidden_size, c.intermediate_size, c.vocab_size,
      c.tie_word_embeddings ? "tied" : "own");
  std::printf(
      "attention            %d output heads, %d + %d query heads of %d, %d KV groups, %d K map%s, "
      "V of %d\n",
      a.num_q1_heads, a.num_q1_heads, a.num_q2_heads, a.head_dim, a.num_kv_groups, a.k_maps,
      a.k_maps == 1 ? "" : "s", a.v_dim);
  std::printf("lambda               %s\n", NameOf(a.lambda_kind));
  std::printf("layers               %s\n", DescribeLayers(c).c_str());
  std::printf("norm                 %s eps %g, per-head norm %s\n", NameOf(c.norm), c.norm_eps,
              DescribeSubNorm(a).c_str());
  std::printf("rope                 %s\n", DescribeRope(c.rope).c_str());
  std::printf("mlp                  %s\n", NameOf(c.mlp));
  std::printf("biases               qkv %s, attention output %s, mlp %s\n", YesNo(c.qkv_bias),
              YesNo(c.attention_out_bias), YesNo(c.mlp_bias));
  std::printf("model length         %d of %d positions\n", plan.engine.max_model_len,
              c.max_positions);
  std::printf("chat template        %s\n", has_chat_template ? "yes" : "no");
  std::printf("weights, rope table  %s, of which a decode step reads %s\n",
              MiB(static_cast<double>(plan.summary.memory_bytes)).c_str(),
              MiB(static_cast<double>(plan.summary.weight_bytes)).c_str());
  std::printf("KV bytes per token   %zu, of pages of", plan.kv_bytes_per_token());
  for (const auto& [dtype, bytes] : KvBytesPerToken(plan))
    std::printf(" %s %zu", NameOf(dtype).data(), bytes);
  std::printf("\n");
  if (plan.state_bytes() > 0) {
    std::printf("state per sequence   %s, with full windows %s\n",
                MiB(static_cast<double>(plan.slot_bytes())).c_str(),
                MiB(BytesBesidePages(plan)).c_str());
    std::printf(
        "states, windows      %d slots, %d window pages, %s, for %d sequences and %d "
        "snapshots\n",
        plan.engine.num_state_slots, plan.engine.num_window_pages,
        MiB(static_cast<double>(plan.state_bytes())).c_str(), plan.engine.MaxRunning(),
        plan.engine.num_state_slots - plan.engine.MaxRunning());
  }
  std::printf("KV pages             %d of %d tokens, %s\n", plan.engine.num_pages,
              plan.engine.page_size, MiB(static_cast<double>(plan.kv_bytes())).c_str());
  std::printf("a step of %-10d %s of activations and logits\n", plan.engine.max_num_batched_tokens,
              MiB(StepBytes(plan)).c_str());
  std::printf("total memory         %s (free now: %s)\n", MiB(TotalBytes(plan)).c_str(),
              MiB(static_cast<double>(plan.room.free_bytes)).c_str());
  std::printf("KV for %d x %d tokens %s\n", plan.engine.max_num_seqs, plan.engine.max_model_len,
              MiB(FullKvBytes(plan)).c_str());
  PrintPairing(c);
  PrintLambdas(c, lambdas);
}

void AddAttention(const ModelConfig& c, const std::vector<float>& lambdas, JsonWriter& json) {
  const DiffSpec& a = c.attention;
  json.Key("attention").Begin('{').Add("output_heads", a.num_q1_heads);
  json.Add("noise_heads", a.num_q2_heads).Add("kv_groups", a.num_kv_groups);
  json.Add("k_maps", a.k_maps).Add("head_dim", a.head_dim).Add("v_dim", a.v_dim);
  json.Add("lambda_kind", NameOf(a.lambda_kind)).Add("lambda", lambdas);
  json.Add("lambda_init", c.lambda_init).Add("sub_norm", NameOf(a.sub_norm));
  json.Add("pairing", Pairing(c)).End('}');
}

void AddMemory(const SessionPlan& plan, JsonWriter& json) {
  json.Key("memory").Begin('{').Add("weight_bytes", plan.summary.memory_bytes);
  json.Add("step_weight_bytes", plan.summary.weight_bytes);
  json.Add("kv_bytes_per_token", plan.kv_bytes_per_token());
  json.Key("kv_bytes_per_token_by_dtype").Begin('{');
  for (const auto& [dtype, bytes] : KvBytesPerToken(plan)) json.Add(NameOf(dtype), bytes);
  json.End('}').Add("kv_pages", plan.engine.num_pages).Add("kv_bytes", plan.kv_bytes());
  json.Add("kv_bytes_full", FullKvBytes(plan));
  json.Add("state_bytes_per_sequence", plan.slot_bytes());
  json.Add("bytes_per_sequence_beside_pages", BytesBesidePages(plan));
  json.Add("state_slots", plan.engine.num_state_slots);
  json.Add("window_pages", plan.engine.num_window_pages).Add("state_bytes", plan.state_bytes());
  json.Add("step_bytes", StepBytes(plan)).Add("total_bytes", TotalBytes(plan));
  json.Add("free_bytes", plan.room.free_bytes).End('}');
}

void AddModel(JsonWriter& json, const SessionPlan& plan, const std::vector<float>& lambdas,
              bool has_chat_template) {
  const ModelConfig& c = plan.summary.config;
  json.Add("device", plan.device_name).Add("family", c.family);
  json.Add("parameters", plan.summary.num_parameters);
  json.Add("dtype", NameOf(plan.summary.weight_format));
  json.Add("linear_format", NameOf(plan.summary.linear_format));
  json.Add("packed_for", c.packed ? c.packed->Levels() : "");
  json.Add("kv_cache_dtype", NameOf(plan.layout.codec.dtype));
  json.Add("kv_cache_layers", KvPages(plan));
  json.Add("attention_logit_bits", plan.model.logit_quant.bits);
  json.Add("attention_logit_scale", NameOf(plan.model.logit_quant.scale));
  json.Add("layers", c.num_layers).Add("hidden_size", c.hidden_size);
  json.Add("intermediate_size", c.intermediate_size).Add("vocab_size", c.vocab_size);
  json.Add("max_positions", c.max_positions).Add("max_model_len", plan.engine.max_model_len);
  json.Add("page_size", plan.engine.page_size).Add("tied_embeddings", c.tie_word_embeddings);
  json.Add("layer_kinds", DescribeLayers(c));
  json.Add("rope", c.rope.style == RopeStyle::kNone ? "none" : NameOf(c.rope.type));
  json.Add("rope_theta", c.rope.theta).Add("chat_template", has_chat_template);
  AddAttention(c, lambdas, json);
  AddMemory(plan, json);
}

// A text as a shell's command line has it.
std::string ShellWord(const std::string& text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string::npos) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

void PrintReport(const KvDiskReport& disk, bool json) {
  if (!json) return PrintKvDisk(disk);
  std::printf("%s\n", JsonObjectOf([&](JsonWriter& out) { AddKvDisk(disk, out); }).c_str());
}

}  // namespace

Status RunInspect(const SessionOptions& options, const InspectOptions& inspect,
                  const std::string& kv_cache_dir, bool json) {
  std::optional<KvDiskReport> disk;
  if (options.model_dir.empty()) {
    DS_RETURN_IF_ERROR(Assign(&disk, ReportKvDisk(kv_cache_dir, nullptr)));
    return PrintReport(*disk, json), Status();
  }
  Result<SessionPlan> plan = PlanSession(options, ServerNeeds(options.engine));
  if (!plan.ok()) return plan.status();
  if (!kv_cache_dir.empty()) plan->model.digest = std::make_shared<WeightDigest>();
  SessionPlan shown = *plan;
  std::vector<float> lambdas;
  bool has_chat_template = false;
  // With dummy weights there is nothing more to read.
  if (!options.dummy_weights) {
    const auto tokenizer = Tokenizer::LoadIfPresent(options.model_dir);
    if (!tokenizer.ok()) return tokenizer.status();
    Result<std::unique_ptr<ChatTemplate>> chat_template = ChatTemplate::Load(options.model_dir);
    if (!chat_template.ok()) return chat_template.status();
    has_chat_template = *chat_template != nullptr;
    Result<std::unique_ptr<ModelSession>> session = ModelSession::Load(options,
                                                                       std::move(plan).value());
    if (!session.ok()) return session.status();
    shown = (*session)->plan();
    lambdas = (*session)->model().Lambdas();
  }
  if (!kv_cache_dir.empty()) DS_RETURN_IF_ERROR(Assign(&disk, ReportKvDisk(kv_cache_dir, &shown)));
  if (!json) {
    PrintText(shown, lambdas, has_chat_template);
    if (disk) PrintKvDisk(*disk);
    std::string arguments = ShellWord(options.model_name);
    for (const std::string& flag : inspect.serve_flags) arguments += " " + ShellWord(flag);
    std::printf("serve it             diffserve serve %s\n", arguments.c_str());
    return {};
  }
  const std::string text = JsonObjectOf([&](JsonWriter& out) {
    AddModel(out, shown, lambdas, has_chat_template);
    if (disk) AddKvDisk(*disk, out);
  });
  std::printf("%s\n", text.c_str());
  return {};
}

}  // namespace diffserve
