// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/models/golden_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <utility>

#include "kernels/process/check.h"
#include "tests/testing/kernels/source_directory.h"

namespace diffserve {
namespace {

// The value of a string of the safetensors header's __metadata__; empty if it is not there.
std::string SafetensorsMetadata(const std::string& path, const std::string& key) {
  std::ifstream in(path, std::ios::binary);
  uint64_t length = 0;
  in.read(reinterpret_cast<char*>(&length), sizeof(length));
  std::string header(std::min<uint64_t>(length, 1 << 20), '\0');
  in.read(header.data(), static_cast<std::streamsize>(header.size()));
  const std::string opening = "\"" + key + "\":\"";
  const size_t begin = header.find(opening);
  if (begin == std::string::npos) return "";
  return header.substr(begin + opening.size(),
                       header.find('"', begin + opening.size()) - begin - opening.size());
}

}  // namespace

bool HasPagesOf(const Model& model, DType pages) {
  const DiffSpec& spec = model.config().attention;
  return cpu::TakesPages(spec, KvFormat::Of(spec, kGoldenPageSize, pages).codec);
}

std::vector<int32_t> GoldenCase::AllTokens() const {
  std::vector<int32_t> tokens = prompt;
  tokens.insert(tokens.end(), greedy_tokens.begin(), greedy_tokens.end());
  return tokens;
}

std::string GoldenCasesDir() { return SourceDirectory() + "/tests/golden/cases"; }

std::vector<std::string> GoldenCaseNames() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(GoldenCasesDir())) {
    names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

Result<std::vector<float>> ReadFloats(const SafetensorsFile& file, const std::string& tensor) {
  const auto found = file.header().find(tensor);
  if (found == file.header().end() || found->second.dtype_name != "F32")
    return InvalidArgument(file.path() + ": no float32 tensor \"" + tensor + "\"");
  std::vector<float> values((found->second.end - found->second.begin) / sizeof(float));
  DS_RETURN_IF_ERROR(file.Read(found->second, reinterpret_cast<std::byte*>(values.data())));
  return values;
}

Result<GoldenCase> ReadGoldenCase(const std::string& name) {
  GoldenCase golden;
  golden.name = name;
  golden.dir = GoldenCasesDir() + "/" + name;
  const std::string path = golden.dir + "/expected.safetensors";
  const auto file = SafetensorsFile::Open(path);
  if (!file.ok()) return file.status();
  Status status;
  const auto read = [&](const std::string& tensor) {
    Result<std::vector<float>> values = ReadFloats(**file, tensor);
    if (!values.ok()) status = values.status();
    return values.ok() ? std::move(values).value() : std::vector<float>();
  };
  const std::vector<float> prompt = read("tokens"), greedy = read("greedy_tokens");
  golden.prompt = {prompt.begin(), prompt.end()};
  golden.greedy_tokens = {greedy.begin(), greedy.end()};
  golden.greedy_margins = read("greedy_margins");
  golden.logits = read("logits");
  golden.tail_logits = read("tail_logits");
  const std::vector<float> error = read("bfloat16_error"), agreement = read("bfloat16_agreement");
  DS_RETURN_IF_ERROR(status);
  golden.vocab = static_cast<int>(golden.logits.size() / golden.prompt.size());
  for (float x : golden.logits)
    golden.largest_logit = std::max(golden.largest_logit, std::abs(static_cast<double>(x)));
  for (float x : golden.tail_logits)
    golden.largest_logit = std::max(golden.largest_logit, std::abs(static_cast<double>(x)));
  golden.bfloat16_error = error.at(0);
  golden.bfloat16_agreement = agreement.at(0);
  golden.family = SafetensorsMetadata(path, "family");
  golden.reference = SafetensorsMetadata(path, "reference");
  return golden;
}

Result<std::vector<GoldenLogitBits>> ReadGoldenLogitBits(const std::string& name) {
  const auto file = SafetensorsFile::Open(GoldenCasesDir() + "/" + name +
                                          "/logit_bits.safetensors");
  if (!file.ok()) return file.status();
  std::vector<GoldenLogitBits> all;
  for (LogitScale scale : kLogitScales) {
    for (int bits : {8, 6, 4}) {
      const std::string mode = std::string(NameOf(scale)) + "_" + std::to_string(bits);
      if (!(*file)->header().contains(mode + "_tokens")) continue;
      const auto tokens = ReadFloats(**file, mode + "_tokens");
      if (!tokens.ok()) return tokens.status();
      const auto logits = ReadFloats(**file, mode + "_logits");
      if (!logits.ok()) return logits.status();
      all.push_back({{bits, scale}, {tokens->begin(), tokens->end()}, *logits});
    }
  }
  return all;
}

GoldenRunner::GoldenRunner(Model& model, size_t max_tokens, int page_size,
                           std::optional<DType> kv_dtype, const std::vector<size_t>& skipped)
    : model_(model),
      page_size_(static_cast<size_t>(page_size)),
      pages_per_sequence_((max_tokens + page_size_ - 1) / page_size_),
      kv_(model
              .MakeKvCache(LayersOf(model, page_size, kv_dtype.value_or(model.dtype()), skipped),
                           {.num_pages = 2 * static_cast<int>(pages_per_sequence_),
                            .num_window_pages = 2 * static_cast<int>(pages_per_sequence_),
                            .num_states = 3})
              .value()) {
  for (size_t i = 0; i < pages_per_sequence_; ++i) {
    const auto odd = static_cast<int32_t>(2 * (pages_per_sequence_ - i) - 1);
    const auto even = static_cast<int32_t>(2 * i);
    odd_pages_.all.push_back(odd);
    odd_pages_.windows.push_back(even);
    even_pages_.all.push_back(even);
    even_pages_.windows.push_back(odd);
  }
  for (const LayerConfig& layer : model.config().layers)
    window_ = std::max(window_, static_cast<size_t>(layer.window));
}

GoldenRun GoldenRunner::Run(GoldenSchedule schedule, const std::vector<int32_t>& tokens) {
  const size_t kPreempted = 100, kShared = std::max<size_t>(2 * kGoldenPageSize, page_size_);
  DS_CHECK(tokens.size() > kPreempted && tokens.size() <= pages_per_sequence_ * page_size_,
           "tokens for every schedule");
  Poison();
  GoldenRun run;
  switch (schedule) {
    case GoldenSchedule::kOneChunk:
      return Chunks(tokens, tokens.size());
    case GoldenSchedule::kChunksOf7:
      return Chunks(tokens, 7);
    case GoldenSchedule::kOneByOne:
      return Chunks(tokens, 1);
    case GoldenSchedule::kAfterPreemption: {
      std::vector<float> lost;
      Append(odd_pages_, tokens, 0, 40, 40, lost);
      Append(odd_pages_, tokens, 40, kPreempted, 1, lost);
      Poison();
      Append(even_pages_, tokens, 0, kPreempted, kPreempted, run.logits);
      Append(even_pages_, tokens, kPreempted, tokens.size(), 1, run.logits);
      return run;
    }
    case GoldenSchedule::kAfterPrefixHit: {
      std::vector<int32_t> other(tokens.begin(), tokens.begin() + kShared + 9);
      for (size_t i = kShared; i < other.size(); ++i)
        other[i] = (other[i] + 1) % model_.config().vocab_size;
      std::vector<float> of_other;
      // Its state behind what is shared is kept in slot 0.
      Append(even_pages_, other, 0, other.size(), 11, of_other,
             {1, 1, {{static_cast<int>(kShared), 0}}});
      Pages pages = odd_pages_;
      const auto shared = static_cast<long>(kShared / page_size_);
      std::copy_n(even_pages_.all.begin(), shared, pages.all.begin());
      std::copy_n(even_pages_.windows.begin(), shared, pages.windows.begin());
      run.first_row = kShared;
      Append(pages, tokens, kShared, tokens.size(), 1, run.logits, {0, 2});
      return run;
    }
  }
  return run;
}

GoldenRun GoldenRunner::Chunks(const std::vector<int32_t>& tokens, size_t chunk) {
  GoldenRun run;
  Append(odd_pages_, tokens, 0, tokens.size(), chunk, run.logits);
  return run;
}

std::vector<KvFormat> GoldenRunner::LayersOf(const Model& model, int page_size, DType dtype,
                                             const std::vector<size_t>& skipped) {
  const DiffSpec& spec = model.config().attention;
  std::vector<KvFormat> layers(static_cast<size_t>(model.config().num_kv_layers()),
                               KvFormat::Of(spec, page_size, dtype));
  for (size_t layer : skipped) layers.at(layer) = KvFormat::Of(spec, page_size, model.dtype());
  return layers;
}

void GoldenRunner::Poison() {
  if (page_size_ != kGoldenPageSize) return;
  // A NaN in every format.
  std::fill_n(kv_.Layer(0).base, kv_.layout().Bytes(), std::byte{0xff});
}

void GoldenRunner::Append(const Pages& pages, const std::vector<int32_t>& tokens, size_t begin,
                          size_t end, size_t chunk, std::vector<float>& logits,
                          StateSlotUse state) {
  std::vector<int32_t> window_pages = pages.windows;
  for (; begin < end; begin += chunk) {
    // What no window of these tokens reaches is nowhere.
    for (size_t page = 0; (page + 1) * page_size_ + window_ <= begin + 1; ++page)
      window_pages[page] = -1;
    const int rows = static_cast<int>(std::min(chunk, end - begin));
    Batch batch;
    batch.tokens.assign(tokens.begin() + static_cast<long>(begin),
                        tokens.begin() + static_cast<long>(begin) + rows);
    batch.sequences = {{0, rows, static_cast<int>(begin), pages.all.data(), window_pages.data()}};
    StateSlotUse& use = batch.states.emplace_back(state.from, state.to);
    state.from = state.to;
    for (const auto& [position, slot] : state.snapshots) {
      const int behind = position - static_cast<int>(begin);
      if (behind > 0 && behind <= rows) use.snapshots.push_back({behind, slot});
      if (behind == rows) state.from = slot;
    }
    batch.logit_rows.resize(static_cast<size_t>(rows));
    std::iota(batch.logit_rows.begin(), batch.logit_rows.end(), 0);
    const size_t prompt_rows = generated_from_ > begin
                                   ? std::min<size_t>(generated_from_ - begin, batch.tokens.size())
                                   : 0;
    batch.num_prompt_tokens = {static_cast<int32_t>(prompt_rows)};
    const Status status = model_.Forward(batch, kv_);
    DS_CHECK(status.ok(), status.message());
    const std::span<const float> more = model_.Logits(0, rows).value();
    logits.insert(logits.end(), more.begin(), more.end());
  }
}

double GoldenError(const GoldenCase& golden, const GoldenRun& run) {
  const size_t vocab = static_cast<size_t>(golden.vocab);
  const size_t run_end = run.first_row + run.logits.size() / vocab;
  double worst = 0;
  const auto compare = [&](const std::vector<float>& expected, size_t first_row) {
    for (size_t i = 0; i < expected.size(); ++i) {
      const size_t row = first_row + i / vocab;
      if (row < run.first_row || row >= run_end) continue;
      const double found = run.logits[(row - run.first_row) * vocab + i % vocab];
      const double error = std::abs(found - expected[i]);
      worst = std::isnan(error) ? HUGE_VAL : std::max(worst, error);
    }
  };
  compare(golden.logits, 0);
  const size_t all = golden.prompt.size() + golden.greedy_tokens.size();
  compare(golden.tail_logits, all - golden.tail_logits.size() / vocab);
  return worst / golden.largest_logit;
}

double GoldenError(const GoldenLogitBits& golden, const GoldenRun& run) {
  const size_t before = run.logits.size() - golden.logits.size();
  double worst = 0, largest = 0;
  for (size_t i = 0; i < golden.logits.size(); ++i) {
    const double error = std::abs(double{run.logits[before + i]} - golden.logits[i]);
    worst = std::isnan(error) ? HUGE_VAL : std::max(worst, error);
    largest = std::max(largest, std::abs(double{golden.logits[i]}));
  }
  return worst / largest;
}

GoldenChoices CompareChoices(const GoldenCase& golden, const GoldenRun& run) {
  const size_t vocab = static_cast<size_t>(golden.vocab);
  GoldenChoices choices;
  for (size_t i = 0; i < golden.greedy_tokens.size(); ++i) {
    const size_t row = golden.prompt.size() - 1 + i;
    if (row < run.first_row || (row + 1 - run.first_row) * vocab > run.logits.size()) continue;
    const auto begin = run.logits.begin() + static_cast<long>((row - run.first_row) * vocab);
    const auto best = static_cast<int32_t>(
        std::max_element(begin, begin + static_cast<long>(vocab)) - begin);
    if (best == golden.greedy_tokens[i]) {
      ++choices.equal;
    } else if (golden.greedy_margins[i] <= 2 * kGoldenFloat32Tolerance * golden.largest_logit) {
      ++choices.ties;
    } else {
      ++choices.different;
    }
  }
  return choices;
}

}  // namespace diffserve
