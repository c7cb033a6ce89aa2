// SPDX-License-Identifier: Apache-2.0
#include "server/app/commands/activation_texts.h"

#include <algorithm>
#include <limits>
#include <span>
#include <sstream>
#include <utility>

#include "kernels/base/refusal.h"
#include "models/regular_file.h"
#include "server/app/commands/prompt_input.h"
#include "server/json/json.h"

namespace diffserve {
namespace {

constexpr char kActivationsFlag[] = "--activations";
constexpr size_t kMaxFileBytes = size_t{1} << 30;
constexpr size_t kMaxTextBytes = size_t{64} << 20;
constexpr size_t kMaxRanges = 1024;
constexpr JsonLimits kTextLimits = {.max_depth = 4, .max_values = size_t{1} << 24};

Status CheckNames(const JsonFields& fields, std::span<const std::string_view> allowed,
                  const std::string& where) {
  for (const std::string& name : fields.Names()) {
    if (std::ranges::find(allowed, name) != allowed.end()) continue;
    std::string names;
    for (std::string_view known : allowed)
      names += (names.empty() ? "" : ", ") + std::string(known);
    return NotAllowed(QuotedText(name) + " is not known" + where, names);
  }
  return {};
}

Result<std::vector<int32_t>> TokensOf(JsonFields& fields, const ActivationLimits& limits) {
  if (fields.Has("text") == fields.Has("tokens"))
    return NotAllowed(
        fields.Has("text") ? "text and tokens are set" : "text and tokens are missing",
        "one of them");
  std::vector<int32_t> tokens;
  if (fields.Has("text")) {
    std::string text;
    fields.String("text", kMaxTextBytes, &text);
    DS_RETURN_IF_ERROR(fields.status());
    if (limits.tokenizer == nullptr)
      return NotAllowed("text is set with dummy weights, which have no tokenizer", "tokens");
    DS_RETURN_IF_ERROR(
        Assign(&tokens, limits.tokenizer->Encode(text, /*add_special_tokens=*/true)));
  } else {
    fields.Ints("tokens", std::numeric_limits<size_t>::max(), &tokens);
    DS_RETURN_IF_ERROR(fields.status());
  }
  if (tokens.empty() || tokens.size() > static_cast<size_t>(limits.max_tokens)) {
    return NotAllowed("the line has " + std::to_string(tokens.size()) + " tokens",
                      RangeText(1, limits.max_tokens));
  }
  DS_RETURN_IF_ERROR(CheckIds(tokens, limits.vocab_size, "tokens"));
  return tokens;
}

// The ranges are ascending, not empty, and before the tokens that look for the answer.
Status CheckSpans(const AnswerSpans& spans, int num_tokens) {
  if (spans.query_from < 0 || spans.query_from >= num_tokens) {
    return NotAllowed("spans.query_from is " + std::to_string(spans.query_from),
                      RangeText(0, num_tokens - 1) + ", a token of the line");
  }
  int begin = 0;
  for (TokenRange range : spans.answer) {
    if (range.begin < begin || range.end <= range.begin || range.end > spans.query_from) {
      return NotAllowed("spans.answer has [" + std::to_string(range.begin) + ", " +
                            std::to_string(range.end) + "]",
                        "begin < end within " + RangeText(begin, spans.query_from) +
                            ", after the previous range and not after query_from");
    }
    begin = range.end;
  }
  return {};
}

Result<AnswerSpans> SpansOf(JsonFields& fields, int num_tokens) {
  constexpr std::string_view kNames[] = {"answer", "query_from"};
  AnswerSpans spans;
  for (JsonFields& object : fields.Object("spans")) {
    DS_RETURN_IF_ERROR(CheckNames(object, kNames, " in spans"));
    std::vector<std::pair<int32_t, int32_t>> pairs;
    object.IntPairs("answer", kMaxRanges, &pairs);
    object.Int("query_from", &spans.query_from);
    DS_RETURN_IF_ERROR(object.status());
    if (pairs.empty() || !object.Has("query_from"))
      return InvalidArgument("spans needs both \"answer\", not empty, and \"query_from\"");
    for (const auto& [begin, end] : pairs) spans.answer.push_back({begin, end});
    DS_RETURN_IF_ERROR(CheckSpans(spans, num_tokens));
  }
  DS_RETURN_IF_ERROR(fields.status());
  return spans;
}

}  // namespace

Result<ActivationText> ParseActivationText(std::string_view line, const ActivationLimits& limits) {
  constexpr std::string_view kNames[] = {"text", "tokens", "spans"};
  Result<JsonFields> fields = JsonFields::Parse(line, kTextLimits);
  if (!fields.ok()) return fields.status();
  DS_RETURN_IF_ERROR(CheckNames(*fields, kNames, ""));
  ActivationText text;
  DS_RETURN_IF_ERROR(Assign(&text.tokens, TokensOf(*fields, limits)));
  DS_RETURN_IF_ERROR(Assign(&text.spans, SpansOf(*fields, static_cast<int>(text.tokens.size()))));
  return text;
}

Result<std::vector<ActivationText>> ReadActivationTexts(const std::string& path,
                                                        const ActivationLimits& limits) {
  Result<std::string> read = ReadRegularFile(path, kMaxFileBytes);
  if (!read.ok())
    return InvalidArgument(std::string(kActivationsFlag) + " " + read.status().message(),
                           kActivationsFlag);
  std::istringstream file(std::move(read).value());
  const std::string where = std::string(kActivationsFlag) + " " + path;
  std::vector<ActivationText> texts;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    Result<ActivationText> text = ParseActivationText(line, limits);
    if (!text.ok()) {
      return InvalidArgument(where + ":" + std::to_string(number) + ": " + text.status().message(),
                             kActivationsFlag);
    }
    texts.push_back(std::move(text).value());
  }
  if (texts.empty()) return InvalidArgument(where + ": has no line", kActivationsFlag);
  return texts;
}

}  // namespace diffserve
