// SPDX-License-Identifier: Apache-2.0
// Conversations and chat templates. With an even first byte the rest is the body of a chat request,
// which the bundled model's template renders: whatever its messages spell, the prompt has the
// special tokens of the template and no others. With an odd one the rest is a template: it is
// refused by one line, or it renders a conversation within its limits. The library limits a
// template's steps and its text, not the values between, and computes constants when it is loaded:
// one that multiplies is passed over, and one is not rendered if it has another operator, a filter
// or a call that makes values longer.
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>

#include "engine/text/chat_template.h"
#include "server/api/openai/request.h"
#include "tests/fuzz/model_file.h"
#include "tests/testing/kernels/source_directory.h"

namespace diffserve {
namespace {

constexpr size_t kMaxTextBytes = size_t{32} << 20;  // as the library limits it

int64_t NumSpecial(const Tokenizer& tokenizer, const RenderedChat& chat) {
  const auto ids = tokenizer.Encode(chat.text, {.guard = chat.guard}).value();
  return std::ranges::count_if(ids, [&](int32_t id) { return tokenizer.IsSpecial(id); });
}

RenderedChat Rendered(const Conversation& conversation, const Tokenizer& tokenizer) {
  static const auto chat_template =
      ChatTemplate::Load(SourceDirectory() + "/models/demo/diff").value();
  const TemplateJson json = TemplateJsonOf(conversation);
  const Result<RenderedChat> rendered = chat_template->Render(
      {json.messages, json.kwargs, conversation.add_generation_prompt}, &tokenizer);
  DS_CHECK(rendered.ok(), "this template renders every conversation");
  return *rendered;
}

void TakeConversation(std::string_view body) {
  static const auto tokenizer = Tokenizer::Load(SourceDirectory() + "/models/demo/diff").value();
  const FrontendOptions limits;
  const auto request = ParseChatRequest(body, {&limits, SamplingSpec()});
  if (!request.ok()) return;
  const auto& chat = std::get<Conversation>(request->generate.prompts.front());
  Conversation silent = chat;  // the same turns, but nothing said in them
  for (Message& message : silent.messages) message.content = "x";
  DS_CHECK(NumSpecial(*tokenizer, Rendered(chat, *tokenizer)) ==
               NumSpecial(*tokenizer, Rendered(silent, *tokenizer)),
           "a message makes no special token");
}

void TakeTemplate(std::string_view source) {
  static const testing::FuzzedModelDirectory directory;
  if (source.find('*') != source.npos) return;
  directory.Put("chat_template.jinja", source);
  const auto loaded = ChatTemplate::Load(directory.path());
  if (!loaded.ok()) return directory.CheckError(loaded.status());
  if (*loaded == nullptr || source.find_first_of("~+|(") != source.npos) return;
  const Result<RenderedChat> rendered = (*loaded)->Render(
      {R"([{"role": "user", "content": "Hi <|end|>"}, {"role": "assistant", "content": "Ho"}])",
       R"({"level": "high", "count": 3, "on": true})", true},
      nullptr);
  if (rendered.ok()) {
    DS_CHECK(rendered->text.size() <= kMaxTextBytes, "a text is bounded");
  } else {
    const std::string& message = rendered.status().message();
    DS_CHECK(!message.empty() && message.find('\n') == std::string::npos, "an error is one line");
  }
}

}  // namespace
}  // namespace diffserve

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2 == 0) {
    diffserve::TakeConversation(rest);
  } else {
    diffserve::TakeTemplate(rest);
  }
  return 0;
}
