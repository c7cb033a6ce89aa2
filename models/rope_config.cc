// SPDX-License-Identifier: Apache-2.0
#include "models/rope_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <string>

#include "kernels/base/refusal.h"

namespace diffserve {
namespace {

constexpr int kMaxOriginalPositions = 16 << 20;

struct NamedType {
  RopeConfig::Type type;
  const char* name;
};
constexpr std::array<NamedType, 5> kTypes = {{{RopeConfig::Type::kDefault, "default"},
                                              {RopeConfig::Type::kLinear, "linear"},
                                              {RopeConfig::Type::kLlama3, "llama3"},
                                              {RopeConfig::Type::kYarn, "yarn"},
                                              {RopeConfig::Type::kDynamic, "dynamic"}}};

// By how much yarn sharpens attention for a context extended by `factor` (arXiv 2309.00071, eq.
// 22).
double YarnScale(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

void ReadLlama3(ConfigReader& json, RopeConfig& rope) {
  rope.low_freq_factor = json.Number("low_freq_factor", std::nullopt, 1e-6, 1e6);
  rope.high_freq_factor = json.Number("high_freq_factor", std::nullopt, 1e-6, 1e6);
  if (!(rope.high_freq_factor > rope.low_freq_factor))
    json.Refuse("high_freq_factor", "more than low_freq_factor");
}

void ReadYarn(ConfigReader& json, RopeConfig& rope) {
  rope.beta_fast = json.Number("beta_fast", rope.beta_fast, 1e-6, 1e6);
  rope.beta_slow = json.Number("beta_slow", rope.beta_slow, 1e-6, 1e6);
  if (rope.beta_fast < rope.beta_slow) json.Refuse("beta_fast", "beta_slow or more");
  if (rope.theta <= 1)
    json.Fail("rope_type",
              RefusalText("is yarn and rope_theta " + std::to_string(rope.theta), "more than 1"));
  rope.truncate = json.Bool("truncate", true);
  const double mscale = json.Number("mscale", 0.0, 0, 100);
  const double mscale_all_dim = json.Number("mscale_all_dim", 0.0, 0, 100);
  const bool has_both = mscale > 0 && mscale_all_dim > 0;
  const double implied = has_both ? YarnScale(rope.factor, mscale) /
                                        YarnScale(rope.factor, mscale_all_dim)
                                  : YarnScale(rope.factor, 1.0);
  rope.attention_factor = json.Number("attention_factor", implied, 1e-6, 1e6);
}

// `json`: config.json's rope_scaling (older transformers) or rope_parameters (from version 5 on).
void ReadScaling(ConfigReader& json, int max_positions, std::optional<int> original_max_positions,
                 RopeConfig& rope) {
  rope.theta = json.Number("rope_theta", rope.theta, 1.0, 1e12);
  if (json.Number("partial_rotary_factor", 1.0, 0, 1) != 1.0)
    json.Refuse("partial_rotary_factor", "1");
  for (const char* layer_type : {"full_attention", "sliding_attention"}) {
    if (json.Has(layer_type))
      json.Fail(layer_type, "is set: rope parameters that differ between layers cannot be served");
  }
  const char* type_key = json.Has("rope_type") ? "rope_type" : "type";
  const std::string name = json.String(type_key, "default");
  const auto* found = std::ranges::find_if(
      kTypes, [&](const NamedType& type) { return type.name == name; });
  if (found == kTypes.end()) {
    json.Refuse(type_key, "default, linear, llama3, yarn or dynamic");
    return;
  }
  rope.type = found->type;
  if (rope.type == RopeConfig::Type::kDefault) return;
  if (rope.type == RopeConfig::Type::kLlama3 || rope.type == RopeConfig::Type::kYarn) {
    rope.original_max_positions = original_max_positions.value_or(
        json.Int("original_max_position_embeddings", max_positions, 1, kMaxOriginalPositions));
  }
  std::optional<double> implied_factor;
  if (rope.type == RopeConfig::Type::kYarn)
    implied_factor = static_cast<double>(max_positions) / rope.original_max_positions;
  rope.factor = json.Number("factor", implied_factor, 1e-6, 1e6);
  if (rope.type == RopeConfig::Type::kLlama3) ReadLlama3(json, rope);
  if (rope.type == RopeConfig::Type::kYarn) ReadYarn(json, rope);
}

// Llama 3.1's scaling: a wave much longer than the original context is slowed down, a short one is
// kept, and one between is blended.
float Llama3Frequency(const RopeConfig& rope, float plain) {
  const float context = static_cast<float>(rope.original_max_positions);
  const float factor = static_cast<float>(rope.factor);
  const float low = static_cast<float>(rope.low_freq_factor);
  const float high = static_cast<float>(rope.high_freq_factor);
  const float wavelength = static_cast<float>(2 * std::numbers::pi) / plain;
  if (wavelength > context / low) return plain / factor;
  if (wavelength < context / high) return plain;
  const float keep = (context / wavelength - low) / (high - low);
  return (1 - keep) * plain / factor + keep * plain;
}

// Yarn (arXiv 2309.00071, section 3.2): frequencies [0, low] are kept, those from `high` on are
// divided by the factor, and those between are blended.
class YarnBlend {
 public:
  YarnBlend(const RopeConfig& rope, int head_dim) : factor_(static_cast<float>(rope.factor)) {
    // The index of the frequency that makes `turns` turns over the original context.
    const auto index_of = [&](double turns) {
      return head_dim * std::log(rope.original_max_positions / (turns * 2 * std::numbers::pi)) /
             (2 * std::log(rope.theta));
    };
    double low = index_of(rope.beta_fast);
    double high = index_of(rope.beta_slow);
    if (rope.truncate) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, head_dim - 1.0);
    if (low == high) high += 0.001;
    low_ = static_cast<float>(low);
    width_ = static_cast<float>(high - low);
  }
  float Frequency(int i, float power) const {
    const float keep = 1 - std::clamp((static_cast<float>(i) - low_) / width_, 0.0f, 1.0f);
    return 1.0f / (factor_ * power) * (1 - keep) + 1.0f / power * keep;
  }

 private:
  float factor_;
  float low_ = 0;
  float width_ = 1;
};

}  // namespace

RopeConfig ReadRope(ConfigReader& json, int max_positions) {
  RopeConfig rope;
  rope.theta = json.Number("rope_theta", rope.theta, 1.0, 1e12);
  // As in transformers: if both spellings are present the older one wins unless it is empty, and a
  // length beside them wins over one inside.
  std::optional<int> original_max_positions;
  if (json.Has("original_max_position_embeddings")) {
    original_max_positions = json.Int("original_max_position_embeddings", std::nullopt, 1,
                                      kMaxOriginalPositions);
  }
  std::optional<ConfigReader> scaling = json.Object("rope_scaling");
  if (!scaling || scaling->Keys().empty()) scaling = json.Object("rope_parameters");
  if (scaling) ReadScaling(*scaling, max_positions, original_max_positions, rope);
  return rope;
}

const char* NameOf(RopeConfig::Type type) {
  return std::ranges::find_if(kTypes, [&](const NamedType& named) { return named.type == type; })
      ->name;
}

std::vector<double> InverseFrequencies(const RopeConfig& rope, int head_dim) {
  std::vector<double> frequencies;
  const YarnBlend yarn(rope, head_dim);
  for (int i = 0; i < head_dim / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(head_dim);
    const float power = std::pow(static_cast<float>(rope.theta), exponent);
    const float plain = 1.0f / power;
    switch (rope.type) {
      case RopeConfig::Type::kDefault:
      case RopeConfig::Type::kDynamic:
        frequencies.push_back(plain);
        break;
      case RopeConfig::Type::kLinear:
        frequencies.push_back(plain / static_cast<float>(rope.factor));
        break;
      case RopeConfig::Type::kLlama3:
        frequencies.push_back(Llama3Frequency(rope, plain));
        break;
      case RopeConfig::Type::kYarn:
        frequencies.push_back(yarn.Frequency(i, power));
        break;
    }
  }
  return frequencies;
}

}  // namespace diffserve
