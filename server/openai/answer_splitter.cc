#include "server/openai/answer_splitter.h"

#include <string>

namespace diffserve {

AnswerSplitter SplitterOf(const OpenAiRequest&) {
  return [](std::string_view text, bool, std::vector<AnswerPart>* parts) {
    if (!text.empty()) parts->push_back({AnswerPart::Kind::kContent, 0, std::string(text)});
  };
}

}  // namespace diffserve
