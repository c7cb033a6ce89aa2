#include "server/openai/answer_splitter.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <variant>

namespace diffserve {

AnswerSplitter SplitterOf(const OpenAiRequest& request, TokenBytes token_bytes) {
  if (!request.answer.parses()) {
    return [](const ResponseDelta& delta, std::vector<AnswerPart>* parts) {
      if (!delta.text.empty()) parts->push_back({AnswerPart::Kind::kContent, 0, delta.text});
    };
  }
  return [parser = std::make_shared<AnswerParser>(request.answer), hides_eos = request.hides_eos,
          shows_reasoning = request.include_reasoning, token_bytes = std::move(token_bytes)](
             const ResponseDelta& delta, std::vector<AnswerPart>* parts) {
    const auto before = static_cast<std::ptrdiff_t>(parts->size());
    parser->Push(ShownText(delta, hides_eos, token_bytes), parts);
    if (delta.finish != FinishReason::kNone) parser->Finish(parts);
    if (shows_reasoning) return;
    const auto hidden = std::remove_if(
        parts->begin() + before, parts->end(),
        [](const AnswerPart& part) { return part.kind == AnswerPart::Kind::kReasoning; });
    parts->erase(hidden, parts->end());
  };
}

std::string_view ShownText(const ResponseDelta& delta, bool hides_eos,
                           const TokenBytes& token_bytes) {
  std::string_view text = delta.text;
  const bool by_eos = delta.finish == FinishReason::kStop &&
                      std::holds_alternative<std::monostate>(delta.stop_reason);
  if (!hides_eos || !by_eos || delta.tokens.empty()) return text;
  const std::string bytes = token_bytes(delta.tokens.back().token);
  if (text.ends_with(bytes)) text.remove_suffix(bytes.size());
  return text;
}

}  // namespace diffserve
