// SPDX-License-Identifier: Apache-2.0
#include "server/api/reply/answer_splitter.h"

#include <memory>
#include <string>
#include <utility>
#include <variant>

namespace diffserve {

AnswerSplitter SplitterOf(const AnswerRequest& request, TokenBytes token_bytes) {
  if (!request.answer.parses()) {
    return {[](const PromptInfo&) {},
            [](const ResponseDelta& delta, std::vector<AnswerPart>* parts) {
              if (!delta.text.empty())
                parts->push_back({AnswerPart::Kind::kContent, 0, delta.text});
            }};
  }
  const auto parser = std::make_shared<AnswerParser>(request.answer);
  AnswerSplitter splitter;
  splitter.begin = [parser, form = request.answer](const PromptInfo& prompt) {
    *parser = AnswerParser(form, prompt.reasoning);
  };
  splitter.read = [parser, hides_eos = request.hides_eos, token_bytes = std::move(token_bytes)](
                      const ResponseDelta& delta, std::vector<AnswerPart>* parts) {
    parser->Push(ShownText(delta, hides_eos, token_bytes), parts);
    if (delta.finish != FinishReason::kNone) parser->Finish(IsCut(delta), parts);
  };
  return splitter;
}

bool IsCut(const ResponseDelta& last) {
  return last.finish != FinishReason::kStop ||
         !std::holds_alternative<std::monostate>(last.stop_reason);
}

std::string_view ShownText(const ResponseDelta& delta, bool hides_eos,
                           const TokenBytes& token_bytes) {
  std::string_view text = delta.text;
  if (!hides_eos || IsCut(delta) || delta.tokens.empty()) return text;
  const std::string bytes = token_bytes(delta.tokens.back().token);
  if (text.ends_with(bytes)) text.remove_suffix(bytes.size());
  return text;
}

}  // namespace diffserve
