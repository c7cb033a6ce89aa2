// SPDX-License-Identifier: Apache-2.0
// Calls of tools, both ways. The first byte says what the rest is, the second in which formats: a
// model's answer, read by an AnswerParser in random pieces; or the body of a chat, messages or
// responses request, whose tools are planned, compiled to a constraint, drawn from at random and
// read again: what a constraint lets through is a call of one of the tools.
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "engine/text/grammar.h"
#include "engine/text/utf8_repair.h"
#include "server/api/anthropic/request.h"
#include "server/api/openai/encoder.h"
#include "server/api/openai/request.h"
#include "server/api/responses/request.h"
#include "server/serving/answer/answer_message.h"
#include "server/serving/tools/json_scanner.h"
#include "tests/fuzz/checked_request.h"
#include "tests/testing/kernels/source_directory.h"

namespace diffserve {
namespace {

using testing::CheckPromises;
using testing::FuzzedLimits;

constexpr int kMaxTokens = 96;

// What an answer came to: its parts, joined where they are neighbours of one kind and call.
struct Reading {
  std::vector<AnswerPart> parts;
  int num_calls = 0;
  bool in_reasoning = false;
};

Reading Read(const AnswerForm& form, const std::vector<std::string_view>& pieces) {
  AnswerParser parser(form);
  Reading reading;
  const auto take = [&reading](std::vector<AnswerPart> parts) {
    for (AnswerPart& part : parts) {
      AnswerPart* const last = reading.parts.empty() ? nullptr : &reading.parts.back();
      const bool joins = last != nullptr && last->kind == part.kind && last->call == part.call &&
                         part.kind != AnswerPart::Kind::kToolCall;
      if (joins)
        last->text += part.text;
      else
        reading.parts.push_back(std::move(part));
    }
  };
  for (const std::string_view piece : pieces) {
    std::vector<AnswerPart> parts;
    parser.Push(piece, &parts);
    take(std::move(parts));
  }
  std::vector<AnswerPart> parts;
  parser.Finish(/*cut=*/false, &parts);
  take(std::move(parts));
  reading.num_calls = parser.num_calls();
  reading.in_reasoning = parser.in_reasoning();
  return reading;
}

void CheckSame(const Reading& a, const Reading& b) {
  DS_CHECK(a.num_calls == b.num_calls && a.in_reasoning == b.in_reasoning, "pieces do not show");
  DS_CHECK(a.parts.size() == b.parts.size(), "pieces do not show");
  for (size_t i = 0; i < a.parts.size(); ++i) {
    const bool same = a.parts[i].kind == b.parts[i].kind && a.parts[i].call == b.parts[i].call &&
                      a.parts[i].text == b.parts[i].text;
    DS_CHECK(same, "pieces do not show");
  }
}

// Text that was broken off, but begins as a JSON object does.
bool BeginsAnObject(std::string_view text) {
  JsonScanner scanner;
  for (size_t i = 0; i < text.size(); ++i) {
    if (i == 0 && text[i] != '{') return false;
    const JsonScanner::Step step = scanner.Push(text[i]);
    if (step == JsonScanner::Step::kEnd) return i + 1 == text.size();
    if (step != JsonScanner::Step::kMore) return false;
  }
  return true;
}

AnswerMessage MessageOf(const Reading& reading) {
  AnswerMessage message;
  message.Add(reading.parts);
  return message;
}

void CheckAnswer(const AnswerForm& form, const std::string& text, uint64_t seed) {
  const Reading whole = Read(form, {text});
  std::vector<std::string_view> bytes, pieces;
  for (size_t i = 0; i < text.size(); ++i) bytes.emplace_back(&text[i], 1);
  CheckSame(Read(form, bytes), whole);
  std::mt19937_64 random(seed);
  for (size_t at = 0; at < text.size(); at += pieces.back().size())
    pieces.push_back(std::string_view(text).substr(at, 1 + random() % 12));
  CheckSame(Read(form, pieces), whole);
  size_t size = 0;
  for (const AnswerPart& part : whole.parts) size += part.text.size();
  DS_CHECK(size <= 8 * text.size(), "parts are not larger than their text, escapes aside");
  const AnswerMessage message = MessageOf(whole);
  DS_CHECK(message.calls.size() == static_cast<size_t>(whole.num_calls), "each call has a part");
  DS_CHECK(whole.num_calls <= AnswerParser::kMaxCalls, "calls are bounded");
  for (const AnswerCall& call : message.calls) {
    DS_CHECK(!call.name.empty(), "a call has a name");
    const bool named = form.forced_call && !form.forced_name.empty();
    DS_CHECK(named || BeginsAnObject(call.arguments), call.arguments);
  }
  if (form.reasoning == nullptr && whole.num_calls == 0 && !form.forced_call)
    DS_CHECK(message.content == text, "what is no call is content");
}

AnswerForm FormOf(uint8_t bits) {
  AnswerForm form;
  const size_t tools = bits % 6u, reasoning = bits / 6u % 4u;
  if (tools < ToolFormats().size()) form.tools = &ToolFormats()[tools];
  if (reasoning < ReasoningFormats().size()) form.reasoning = &ReasoningFormats()[reasoning];
  form.forced_call = bits / 24u % 3u != 0;
  if (bits / 24u % 3u == 1) form.forced_name = "f";
  form.parallel = bits / 72u % 2u == 0;
  form.parameter_types = std::make_shared<ParameterTypes>(ParameterTypes{
      {{"f", "zip"}, ParameterType::kString}, {{"f", "n"}, ParameterType::kInteger}});
  return form;
}

// Draws of the constraint until it ends the text; false: it did not within kMaxTokens.
bool Draw(TokenConstraint& constraint, const Tokenizer& tokenizer, uint64_t seed,
          std::string* text) {
  std::mt19937_64 random(seed);
  std::vector<uint32_t> mask(MaskWords(tokenizer.vocab_size()));
  for (int i = 0; i < kMaxTokens; ++i) {
    if (!constraint.Fill(mask).ok()) return false;
    std::vector<int32_t> allowed;
    for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
      if ((mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0) allowed.push_back(id);
    }
    DS_CHECK(!allowed.empty(), "a mask allows a token");
    const bool may_end = allowed.front() == 0;
    const int32_t token = may_end && random() % 3 == 0 ? 0 : allowed[random() % allowed.size()];
    if (!constraint.Accept(token).ok()) return false;
    if (token == 0) return true;
    *text += tokenizer.TokenBytes(token);
  }
  return false;
}

void CheckConstrained(const AnswerRequest& request, uint64_t seed) {
  static const auto tokenizer =
      Tokenizer::Load(SourceDirectory() + "/tests/text/data/byte_bpe").value();
  static const auto compiler =
      GrammarCompiler::Make(*tokenizer, tokenizer->vocab_size(), {0}).value();
  const auto made = compiler->Compile(*request.generate.grammar);
  if (!made.ok()) {
    DS_CHECK(made.status().code() == StatusCode::kInvalidArgument, made.status().message());
    return;
  }
  std::string text;
  const bool ended = Draw(**made, *tokenizer, seed, &text);
  const Reading reading = Read(request.answer, {text});
  const AnswerMessage message = MessageOf(reading);
  if (!ended) return;
  DS_CHECK(!request.answer.forced_call || !message.calls.empty(), "a call was asked for: " + text);
  const std::string tools =
      TemplateJsonOf(std::get<Conversation>(request.generate.prompts.front())).tools;
  for (const AnswerCall& call : message.calls) {
    DS_CHECK(tools.find("\"name\":\"" + call.name + '"') != tools.npos, "a tool's name: " + text);
    DS_CHECK(IsJsonObject(call.arguments), "arguments: " + text);
  }
}

template <typename Request>
void CheckParsed(const Result<Request>& parsed, const FrontendOptions& limits, uint64_t seed) {
  if (!parsed.ok()) {
    const std::string& message = parsed.status().message();
    DS_CHECK(!message.empty() && message.size() < 1000, "a refusal is a line");
    DS_CHECK(!OpenAiErrorBody(parsed.status()).empty(), "a refusal has a body");
    return;
  }
  if (!CheckRequest(parsed->generate, FuzzedLimits(limits.names)).ok()) return;
  CheckPromises(parsed->generate);
  const auto& chat = std::get<Conversation>(parsed->generate.prompts.front());
  const TemplateJson json = TemplateJsonOf(chat);
  DS_CHECK(IsJson(json.messages), "what a template gets is JSON: " + json.messages);
  DS_CHECK(json.tools.empty() || IsJson(json.tools), json.tools);
  DS_CHECK(IsJson(json.kwargs), json.kwargs);
  if (parsed->generate.grammar) CheckConstrained(*parsed, seed);
}

Result<AnswerRequest> ParseResponses(std::string_view body, const ReadContext& context) {
  const Result<ResponsesRequest> parsed = ParseResponsesRequest(body, context);
  if (!parsed.ok()) return parsed.status();
  const Result<ResponsesChat> chat = ChatOf(*parsed, nullptr, context);
  if (!chat.ok()) return chat.status();
  return chat->request;
}

void Take(const uint8_t* head, std::string_view body) {
  const AnswerForm form = FormOf(head[1]);
  const uint64_t seed = head[2] + body.size();
  FrontendOptions limits;
  limits.formats.tools = form.tools;
  limits.formats.reasoning = form.reasoning;
  const ReadContext context{&limits, SamplingSpec()};
  switch (head[0] & 3) {
    case 0: {
      std::string text;
      Utf8Repair repair(Utf8Repair::Unit::kCharacter);  // as every answer is
      repair.Push(body, text);
      repair.Finish(text);
      return CheckAnswer(form, text, seed);
    }
    case 1:
      return CheckParsed(ParseChatRequest(body, context), limits, seed);
    case 2:
      return CheckParsed(ParseMessagesRequest(body, context), limits, seed);
    default:
      return CheckParsed(ParseResponses(body, context), limits, seed);
  }
}

}  // namespace
}  // namespace diffserve

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t kHead = 3;
  if (size < kHead) return 0;
  diffserve::Take(data,
                  std::string_view(reinterpret_cast<const char*>(data) + kHead, size - kHead));
  return 0;
}
