// SPDX-License-Identifier: Apache-2.0
// golden_fidelity: how near the golden cases' references the kernels of this machine's lowest and
// highest level come, in every format of linear layers and schedule, as JSON on standard output.
// tests/golden/report.py makes a table of it.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>

#include "kernels/ops/weight_codec.h"
#include "models/checkpoint.h"
#include "tests/testing/kernels/kernel_levels.h"
#include "tests/testing/models/golden_case.h"

namespace diffserve {
namespace {

float RoundToBFloat16(float value) { return BFloat16ToFloat(FloatToBFloat16(value)); }

struct LambdaDifference {
  double absolute = 0;
  double relative = 0;  // to the larger of the two exps
};

// The largest differences, over the layers, of our float32 lambda to the one the originals use in
// bfloat16, where each exp, their difference and the sum are rounded. Error: a tensor that is not
// there.
Result<LambdaDifference> CompareLambdas(const GoldenCase& golden, const Model& model) {
  const ModelConfig& config = model.config();
  auto checkpoint = Checkpoint::Open(golden.dir);
  if (!checkpoint.ok()) return checkpoint.status();
  const std::vector<float> lambdas = model.Lambdas();
  LambdaDifference worst;
  for (int layer = 0; layer < config.num_layers; ++layer) {
    if (config.layers[static_cast<size_t>(layer)].mixer != MixerKind::kAttention) continue;
    const std::string prefix = "model.layers." + std::to_string(layer) + "." +
                               config.names.lambdas + "lambda_";
    float exps[2] = {};
    for (int map = 0; map < 2; ++map) {
      const std::string number = std::to_string(map + 1);
      const auto q = (*checkpoint)->Get(prefix + "q" + number, {config.attention.head_dim});
      const auto k = (*checkpoint)->Get(prefix + "k" + number, {config.attention.head_dim});
      if (!q.ok()) return q.status();
      if (!k.ok()) return k.status();
      float dot = 0;
      for (int i = 0; i < config.attention.head_dim; ++i) dot += q->At(i) * k->At(i);
      exps[map] = RoundToBFloat16(std::exp(dot));
    }
    const size_t index = static_cast<size_t>(layer);
    const float original = RoundToBFloat16(RoundToBFloat16(exps[0] - exps[1]) +
                                           config.lambda_init[index]);
    const double difference = std::abs(static_cast<double>(lambdas[index]) - original);
    worst.absolute = std::max(worst.absolute, difference);
    worst.relative = std::max(worst.relative, difference / std::max(exps[0], exps[1]));
  }
  return worst;
}

// One JSON object for each schedule, each after a comma.
void PrintRuns(const GoldenCase& golden, Model& model, WeightFormat format, CpuIsa isa) {
  const std::vector<int32_t> tokens = golden.AllTokens();
  const size_t vocab = static_cast<size_t>(golden.vocab);
  GoldenRunner runner(model, tokens.size());
  std::vector<float> whole;
  for (GoldenSchedule schedule : kGoldenSchedules) {
    const GoldenRun run = runner.Run(schedule, tokens);
    if (schedule == GoldenSchedule::kOneChunk) whole = run.logits;
    const auto same_rows = whole.begin() + static_cast<long>(run.first_row * vocab);
    const bool same_bits = std::equal(run.logits.begin(), run.logits.end(), same_rows);
    const GoldenChoices choices = CompareChoices(golden, run);
    std::printf(
        ",\n  {\"format\": \"%s\", \"isa\": \"%s\", \"schedule\": \"%s\", \"error\": %.6e, "
        "\"same_bits\": %s, \"steps\": %d, \"equal\": %d, \"ties\": %d, \"different\": %d}",
        NameOf(format).data(), NameOf(isa).data(), NameOf(schedule), GoldenError(golden, run),
        same_bits ? "true" : "false", choices.steps(), choices.equal, choices.ties,
        choices.different);
  }
}

Status Measure(const GoldenCase& golden, ThreadPool& pool) {
  std::printf(
      "{\"case\": \"%s\", \"family\": \"%s\", \"reference\": \"%s\", \"reference_bfloat16_error\": "
      "%.6e, \"reference_bfloat16_agreement\": %.6f, \"runs\": [{}",
      golden.name.c_str(), golden.family.c_str(), golden.reference.c_str(), golden.bfloat16_error,
      golden.bfloat16_agreement);
  const std::vector<CpuIsa> isas = {testing::EightLanes(), SupportedCpuIsas().back()};
  std::optional<LambdaDifference> lambda;
  for (WeightFormat format : kWeightFormats) {
    for (CpuIsa isa : isas) {
      ModelOptions options;
      options.model_dir = golden.dir;
      options.weight_format = IsQuantized(format) ? WeightFormat::kFloat32 : format;
      options.linear_format = format;
      options.isa = isa;
      auto model = Model::Load(options, pool);
      if (!model.ok()) return model.status();
      if ((*model)->config().attention.lambda_kind == LambdaKind::kPerLayer)
        DS_RETURN_IF_ERROR(Assign(&lambda, CompareLambdas(golden, **model)));
      PrintRuns(golden, **model, format, isa);
    }
  }
  std::printf("]");
  if (lambda) {
    std::printf(", \"lambda_difference\": %.6e, \"lambda_relative_difference\": %.6e",
                lambda->absolute, lambda->relative);
  }
  std::printf("}");
  return Status();
}

int Main() {
  ThreadPool pool({.num_threads = 2, .pin = false, .spin_us = 0});
  int failures = 0;
  std::printf("{\"isas\": [\"%s\", \"%s\"], \"cases\": [", NameOf(testing::EightLanes()).data(),
              NameOf(SupportedCpuIsas().back()).data());
  const char* separator = "\n";
  for (const std::string& name : GoldenCaseNames()) {
    const Result<GoldenCase> golden = ReadGoldenCase(name);
    Status status = golden.status();
    if (golden.ok()) {
      std::printf("%s", separator);
      separator = ",\n";
      status = Measure(*golden, pool);
    }
    if (status.ok()) continue;
    std::fprintf(stderr, "golden_fidelity: %s: %s\n", name.c_str(), status.message().c_str());
    ++failures;
  }
  std::printf("\n]}\n");
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace diffserve

int main() { return diffserve::Main(); }
