// SPDX-License-Identifier: Apache-2.0
// `diffserve inspect --activations FILE`: the model's attention logits, hidden states and attention
// maps over the texts of a file, each run by itself through the KV pages and chunks that the server
// uses. The pages are numbered in order here, since one sequence needs no pool.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <numeric>

#include "kernels/base/refusal.h"
#include "models/diagnostics/activation_figures.h"
#include "server/app/commands/activation_texts.h"
#include "server/app/commands/commands.h"
#include "server/app/session/model_session.h"
#include "server/json/json_writer.h"

namespace diffserve {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kProgressPeriod{5};
constexpr int kRanks[] = {1, 2, 3, 10, 100};
constexpr double kHighShare = 0.9;

struct MeasuredRun {
  int64_t num_tokens = 0;
  size_t num_texts = 0;
  double seconds = 0;
  bool has_answers = false;
};

SessionNeeds NeedsOf(int64_t longest) {
  SessionNeeds needs;
  needs.kv = [longest](int, int) { return KvDemand{longest, longest}; };
  needs.sequences = 1;
  needs.has_window_pages = false;
  return needs;
}

Status CheckOptions(const SessionOptions& options) {
  if (options.device.kind == DeviceChoice::Kind::kGpu)
    return NotAllowed("--device is cuda with --activations", "cpu", "--device");
  if (options.logit_quant.is_on()) {
    return NotAllowed("--attention-logit-bits is " + std::to_string(options.logit_quant.bits) +
                          " with --activations",
                      "none", "--attention-logit-bits");
  }
  return {};
}

Result<std::vector<ActivationText>> ReadTexts(const SessionOptions& options,
                                              const InspectOptions& inspect,
                                              const SessionPlan& plan) {
  std::unique_ptr<Tokenizer> tokenizer;
  if (!options.dummy_weights)
    DS_RETURN_IF_ERROR(Assign(&tokenizer, Tokenizer::Load(options.model_dir)));
  return ReadActivationTexts(inspect.activations, {.tokenizer = tokenizer.get(),
                                                   .vocab_size = plan.summary.config.vocab_size,
                                                   .max_tokens = plan.engine.max_model_len});
}

// Measurements that each layer has.
Status CheckLayers(const ModelConfig& config) {
  const auto is_plain = [](const LayerConfig& layer) {
    return layer.writes_kv() && layer.window == 0;
  };
  if (std::ranges::all_of(config.layers, is_plain)) return {};
  return InvalidArgument(
      "--activations needs a model whose layers all attend to the whole context, with their own K "
      "and V; family " +
          config.family + " has others",
      "--activations");
}

Status RunText(const ActivationText& text, int chunk, ModelSession& session,
               ActivationFigures& figures) {
  std::vector<int32_t> pages(static_cast<size_t>(session.plan().engine.num_pages));
  std::iota(pages.begin(), pages.end(), 0);
  figures.SetSpans(text.spans);
  const int count = static_cast<int>(text.tokens.size());
  for (int begin = 0; begin < count; begin += chunk) {
    const int step_tokens = std::min(chunk, count - begin);
    Batch batch;
    batch.tokens.assign(text.tokens.begin() + begin, text.tokens.begin() + begin + step_tokens);
    batch.sequences = {{0, step_tokens, begin, pages.data()}};
    batch.observer = &figures;
    DS_RETURN_IF_ERROR(session.model().Forward(batch, session.kv()));
  }
  return {};
}

Status CheckFinite(const ActivationFigures& figures) {
  for (size_t l = 0; l < figures.layers().size(); ++l) {
    const LayerFigures& layer = figures.layers()[l];
    const int64_t logits = layer.logits1.num_not_finite() + layer.logits2.num_not_finite();
    const int64_t hidden = layer.hidden.num_not_finite();
    if (logits + hidden == 0) continue;
    return InvalidArgument("layer " + std::to_string(l) + ": " + std::to_string(logits) +
                           " attention logits and " + std::to_string(hidden) +
                           " hidden states are not finite");
  }
  return {};
}

Result<MeasuredRun> RunTexts(const std::vector<ActivationText>& texts, int chunk,
                             ModelSession& session, ActivationFigures& figures) {
  const Clock::time_point begin = Clock::now();
  Clock::time_point next = begin + kProgressPeriod;
  MeasuredRun run;
  for (const ActivationText& text : texts) {
    DS_RETURN_IF_ERROR(RunText(text, chunk, session, figures));
    DS_RETURN_IF_ERROR(CheckFinite(figures));
    run.num_tokens += static_cast<int64_t>(text.tokens.size());
    run.has_answers = run.has_answers || !text.spans.answer.empty();
    ++run.num_texts;
    if (Clock::now() < next) continue;
    std::fprintf(stderr, "activations: %zu of %zu texts\n", run.num_texts, texts.size());
    next = Clock::now() + kProgressPeriod;
  }
  run.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return run;
}

Magnitudes Together(const Magnitudes& a, const Magnitudes& b) {
  Magnitudes all = a;
  all.Merge(b);
  return all;
}

// Figures over all layers; those of all heads are merged into one.
LayerFigures Overall(const ActivationFigures& figures) {
  LayerFigures all;
  all.heads.resize(1);
  for (const LayerFigures& layer : figures.layers()) {
    all.logits1.Merge(layer.logits1);
    all.logits2.Merge(layer.logits2);
    all.hidden.Merge(layer.hidden);
    all.heads[0].Merge(layer.AllHeads());
  }
  return all;
}

std::string Cell(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%10.4g", value);
  return std::isfinite(value) ? text : "         -";
}

void PrintMagnitudes(const std::string& name, const Magnitudes& magnitudes) {
  std::string line;
  for (int rank : kRanks) line += Cell(static_cast<double>(magnitudes.Top(rank)));
  std::printf("%-20s%s%s\n", name.c_str(), line.c_str(), Cell(magnitudes.Quantile(0.5)).c_str());
}

void PrintMagnitudes(const std::string& name, const LayerFigures& layer) {
  PrintMagnitudes(name + " logits", Together(layer.logits1, layer.logits2));
  if (layer.logits2.count() > 0) {
    PrintMagnitudes(name + "   map 1", layer.logits1);
    PrintMagnitudes(name + "   map 2", layer.logits2);
  }
  PrintMagnitudes(name + " hidden", layer.hidden);
}

void PrintHead(const std::string& name, const HeadFigures& head, bool has_answers) {
  std::string line = Cell(head.kappa.value()) + Cell(head.kappas.Quantile(kHighShare)) +
                     Cell(head.entropy1.value()) + Cell(head.entropy2.value());
  if (has_answers) {
    for (const Mean* mean : {&head.answer, &head.answer1, &head.answer2})
      line += Cell(mean->value());
  }
  std::printf("%-20s%s\n", name.c_str(), line.c_str());
}

void PrintText(const MeasuredRun& run, const ActivationFigures& figures) {
  std::printf("texts                %zu, %lld tokens, %.0f per second\n", run.num_texts,
              static_cast<long long>(run.num_tokens),
              static_cast<double>(run.num_tokens) / run.seconds);
  std::printf("\n%-20s%10s%10s%10s%10s%10s%10s\n", "magnitude", "top 1", "2", "3", "10", "100",
              "median");
  const LayerFigures overall = Overall(figures);
  PrintMagnitudes("all", overall);
  for (size_t l = 0; l < figures.layers().size(); ++l)
    PrintMagnitudes("layer " + std::to_string(l), figures.layers()[l]);

  std::printf("\n%-20s%10s%10s%10s%10s%s\n", "mean of queries", "kappa", "its 90 %", "entropy 1",
              "entropy 2", run.has_answers ? " answer: w        p1        p2" : "");
  PrintHead("all", overall.heads[0], run.has_answers);
  for (size_t l = 0; l < figures.layers().size(); ++l) {
    const LayerFigures& layer = figures.layers()[l];
    PrintHead("layer " + std::to_string(l), layer.AllHeads(), run.has_answers);
    for (size_t h = 0; h < layer.heads.size(); ++h)
      PrintHead("  head " + std::to_string(h), layer.heads[h], run.has_answers);
  }
}

void AddFigures(const char* name, const Magnitudes& magnitudes, JsonWriter& json) {
  json.Key(name).Begin('{').Add("count", magnitudes.count());
  for (int rank : kRanks) json.Add("top_" + std::to_string(rank), magnitudes.Top(rank));
  json.Add("median", magnitudes.Quantile(0.5)).End('}');
}

void AddFigures(const HeadFigures& head, JsonWriter& json) {
  json.Begin('{').Add("kappa", head.kappa.value());
  json.Add("kappa_90", head.kappas.Quantile(kHighShare));
  json.Add("entropy_1", head.entropy1.value()).Add("entropy_2", head.entropy2.value());
  json.Key("answer").Begin('{').Add("queries", head.answer1.count());
  json.Add("w", head.answer.value()).Add("p1", head.answer1.value());
  json.Add("p2", head.answer2.value()).End('}').End('}');
}

void AddFigures(const LayerFigures& layer, JsonWriter& json) {
  json.Begin('{');
  AddFigures("logits", Together(layer.logits1, layer.logits2), json);
  AddFigures("logits_1", layer.logits1, json);
  AddFigures("logits_2", layer.logits2, json);
  AddFigures("hidden", layer.hidden, json);
  json.Key("all_heads");
  AddFigures(layer.AllHeads(), json);
  json.Key("heads").Begin('[');
  for (const HeadFigures& head : layer.heads) AddFigures(head, json);
  json.End(']').End('}');
}

void PrintJson(const MeasuredRun& run, const ActivationFigures& figures) {
  const std::string text = JsonObjectOf([&](JsonWriter& json) {
    json.Add("texts", run.num_texts).Add("tokens", run.num_tokens).Add("seconds", run.seconds);
    json.Key("all");
    AddFigures(Overall(figures), json);
    json.Key("layers").Begin('[');
    for (const LayerFigures& layer : figures.layers()) AddFigures(layer, json);
    json.End(']');
  });
  std::printf("%s\n", text.c_str());
}

}  // namespace

Status RunActivations(const SessionOptions& asked, const InspectOptions& inspect, bool json) {
  DS_RETURN_IF_ERROR(CheckOptions(asked));
  SessionOptions options = asked;
  options.device = {.kind = DeviceChoice::Kind::kCpu};
  // Planned twice: the texts are checked against the model, and then say how many pages they need.
  Result<SessionPlan> plan = PlanSession(options, NeedsOf(1));
  if (!plan.ok()) return plan.status();
  DS_RETURN_IF_ERROR(CheckLayers(plan->summary.config));
  std::vector<ActivationText> texts;
  DS_RETURN_IF_ERROR(Assign(&texts, ReadTexts(options, inspect, *plan)));
  const auto longest = std::ranges::max_element(
      texts, {}, [](const ActivationText& text) { return text.tokens.size(); });
  plan = PlanSession(options, NeedsOf(static_cast<int64_t>(longest->tokens.size())));
  if (!plan.ok()) return plan.status();
  Result<std::unique_ptr<ModelSession>> session = ModelSession::Load(options,
                                                                     std::move(plan).value());
  if (!session.ok()) return session.status();

  ActivationFigures figures((*session)->model().config(), (*session)->pool());
  const Result<MeasuredRun> run = RunTexts(texts, options.engine.max_num_batched_tokens, **session,
                                           figures);
  if (!run.ok()) return run.status();
  json ? PrintJson(*run, figures) : PrintText(*run, figures);
  return {};
}

}  // namespace diffserve
