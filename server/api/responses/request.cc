// SPDX-License-Identifier: Apache-2.0
#include "server/api/responses/request.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "kernels/base/refusal.h"
#include "server/api/fields/chat_fields.h"
#include "server/api/fields/sampling_fields.h"
#include "server/api/fields/tool_fields.h"
#include "server/api/responses/encoder.h"
#include "server/api/responses/input.h"
#include "server/json/json_writer.h"
#include "server/serving/request/request_checks.h"

namespace diffserve {
namespace {

constexpr size_t kMaxMetadata = 16;

constexpr std::string_view kLogprobs = "message.output_text.logprobs";
// Other values of `include`: parts of items that no answer here has, so nothing is omitted.
constexpr std::string_view kIncluded[] = {
    "reasoning.encrypted_content",   "web_search_call.action.sources",
    "web_search_call.results",       "file_search_call.results",
    "code_interpreter_call.outputs", "computer_call_output.output.image_url",
    "message.input_image.image_url"};
constexpr size_t kMaxIncluded = 32;

void ReadIncluded(JsonFields& fields, AnswerRequest* request) {
  std::vector<std::string> included;
  fields.StringOrStrings("include", kMaxIncluded, &included);
  for (const std::string& part : included) {
    if (part == kLogprobs)
      request->logprobs = true;
    else if (std::ranges::find(kIncluded, part) == std::end(kIncluded))
      fields.Fail(Unsupported("include", ": '" + part.substr(0, 64) + "'"));
  }
}

// Reads the members of a body into `request`, and writes its echo.
class ResponsesReader {
 public:
  ResponsesReader(JsonFields& fields, ResponsesRequest* request)
      : fields_(fields),
        request_(*request),
        generate_(request->request.generate),
        echo_(&request->echo) {}

  void Read(const FindResponseItem& find);

 private:
  void ReadInstructions();
  void ReadSmallMembers();
  void ReadTopLogprobs();
  void ReadTools();
  void ReadToolChoice();
  void ReadText();
  void ReadReasoning();
  void ReadTruncation();
  Conversation& conversation() { return std::get<Conversation>(generate_.prompts.front()); }
  // Repeats a member as it was sent.
  void Echo(const char* name) { echo_.Key(name).Json(fields_.JsonText(name)); }

  JsonFields& fields_;
  ResponsesRequest& request_;
  GenerateRequest& generate_;
  JsonWriter echo_;
};

void ResponsesReader::ReadInstructions() {
  if (!fields_.IsOff("instructions")) {
    Message message{.role = "system", .content = {}};
    fields_.String("instructions", kMaxTextBytes, &message.content);
    request_.instructions = std::move(message);
  }
  Echo("instructions");
}

void ResponsesReader::ReadSmallMembers() {
  if (fields_.Has("max_output_tokens"))
    generate_.max_tokens = IntAtLeast(fields_, "max_output_tokens", 1, 0);
  fields_.Bool("store", &request_.store);
  fields_.String("previous_response_id", kMaxNameBytes, &request_.previous_response_id);
  std::string metadata = "{}";
  fields_.Scalars("metadata", kMaxMetadata, &metadata);
  fields_.Bool("parallel_tool_calls", &request_.tool_choice.parallel);
  std::string user;
  for (const char* name : {"user", "safety_identifier", "prompt_cache_key"})
    fields_.String(name, 4 * kMaxNameBytes, &user);
  echo_.Add("background", false);
  Echo("max_output_tokens");
  echo_.Add("max_tool_calls", nullptr).Key("metadata").Json(metadata);
  echo_.Add("parallel_tool_calls", request_.tool_choice.parallel);
  for (const char* name : {"previous_response_id", "prompt_cache_key", "safety_identifier"})
    Echo(name);
  echo_.Add("service_tier", "default").Add("store", request_.store);
  Echo("user");
}

void ResponsesReader::ReadTopLogprobs() {
  int top_logprobs = 0;
  ReadLogprobs(fields_, "top_logprobs", &top_logprobs);
  if (top_logprobs > 0 && !request_.request.logprobs) {
    fields_.Fail(OnlyWith("top_logprobs", QuotedText(kLogprobs) + " in include"));
  }
  if (request_.request.logprobs) generate_.sampling.num_logprobs = top_logprobs;
  echo_.Add("top_logprobs", top_logprobs);
}

// {"type": "function", "name", "description", "parameters", "strict"}
void ResponsesReader::ReadTools() {
  std::vector<JsonFields> tools = fields_.Objects("tools", kMaxTools);
  echo_.Key("tools").Begin('[');
  for (size_t i = 0; i < tools.size() && fields_.status().ok(); ++i) {
    JsonFields& tool = tools[i];
    const std::string path = "tools[" + std::to_string(i) + "]";
    if (IsToolOfOthers(tool, "function")) continue;
    if (!tool.Has("name")) tool.Fail(Missing(path + ".name"));
    Tool read = ReadFunction(tool, "parameters", path);
    echo_.Begin('{').Add("type", "function").Add("name", read.name);
    for (const char* name : {"description", "parameters", "strict"})
      echo_.Key(name).Json(tool.JsonText(name));
    echo_.End('}');
    tool.Fail(AddTool(std::move(read), path + ".name", &conversation().tools));
    fields_.Fail(tool.status());
  }
  echo_.End(']');
}

void ResponsesReader::ReadToolChoice() {
  using Kind = ToolChoice::Kind;
  ToolChoice& choice = request_.tool_choice;
  choice.kind = conversation().tools.empty() ? Kind::kNone : Kind::kAuto;
  if (fields_.IsOff("tool_choice")) {
    echo_.Add("tool_choice", "auto");
    return;
  }
  Echo("tool_choice");
  if (fields_.IsString("tool_choice")) {
    std::string word;
    fields_.String("tool_choice", kMaxNameBytes, &word);
    if (word == "none")
      choice.kind = Kind::kNone;
    else if (word == "required")
      choice.kind = Kind::kRequired;
    else if (word != "auto")
      fields_.Fail(NotOneOf("tool_choice", word,
                            "auto, none, required, {\"type\": \"function\", \"name\"}, an object "
                            "of the type allowed_tools"));
    return;
  }
  for (JsonFields& named : fields_.Object("tool_choice")) {
    std::string type;
    named.String("type", kMaxNameBytes, &type);
    if (type == "allowed_tools") {
      ReadAllowedTools(named, /*in_chat=*/false, conversation().tools, &choice);
      fields_.Fail(named.status());
      return;
    }
    if (named.status().ok() && type != "function") {
      named.Fail(NotOneOf("tool_choice.type", type, "function, allowed_tools"));
    }
    named.String("name", kMaxNameBytes, &choice.name);
    if (named.status().ok() && choice.name.empty())
      named.Fail(named.Has("name") ? IsEmpty("tool_choice.name", "a name")
                                   : Missing("tool_choice.name"));
    choice.kind = Kind::kNamed;
    fields_.Fail(named.status());
  }
}

void ResponsesReader::ReadText() {
  using Kind = GrammarSpec::Kind;
  std::string echo;
  JsonWriter(&echo).Begin('{').Add("type", "text").End('}');
  for (JsonFields& text : fields_.Object("text")) {
    for (JsonFields& format : text.Object("format")) {
      std::string type, name;
      bool strict = false;  // the schema is enforced either way
      format.String("type", kMaxNameBytes, &type);
      format.String("name", kMaxNameBytes, &name);
      format.Bool("strict", &strict);
      echo = text.JsonText("format");
      if (type == "json_object") {
        generate_.grammar = GrammarSpec{Kind::kJsonObject, "", "text.format"};
      } else if (type == "json_schema") {
        if (format.Object("schema").empty()) format.Fail(Missing("text.format.schema"));
        generate_.grammar = GrammarSpec{Kind::kJsonSchema, format.JsonText("schema"),
                                        "text.format.schema"};
      } else if (type != "text") {
        format.Fail(NotOneOf("text.format.type", type, "text, json_object, json_schema"));
      }
      text.Fail(format.status());
    }
    fields_.Fail(text.status());
  }
  echo_.Key("text").Begin('{').Key("format").Json(echo).End('}');
}

void ResponsesReader::ReadReasoning() {
  std::string effort, summary = "auto";
  for (JsonFields& reasoning : fields_.Object("reasoning")) {
    reasoning.String("effort", kMaxNameBytes, &effort);
    reasoning.String("summary", kMaxNameBytes, &summary);
    constexpr std::string_view kSummaries[] = {"auto", "concise", "detailed", "none"};
    if (reasoning.status().ok() && std::ranges::find(kSummaries, summary) == std::end(kSummaries)) {
      reasoning.Fail(NotOneOf("reasoning.summary", summary, "auto, concise, detailed, none"));
    }
    fields_.Fail(reasoning.status());
  }
  echo_.Key("reasoning").Begin('{').Key("effort");
  effort.empty() ? echo_.Value(nullptr) : echo_.Value(effort);
  echo_.Add("summary", nullptr).End('}');
  SetReasoningEffort(std::move(effort), /*thinking_is_set=*/false, &conversation());
}

void ResponsesReader::ReadTruncation() {
  std::string truncation = "disabled";
  fields_.String("truncation", kMaxNameBytes, &truncation);
  if (truncation == "auto")
    generate_.truncate_prompt_tokens = -1;
  else if (truncation != "disabled")
    fields_.Fail(NotOneOf("truncation", truncation, "auto, disabled"));
  echo_.Add("truncation", truncation);
}

void ResponsesReader::Read(const FindResponseItem& find) {
  FieldNames& names = generate_.names;
  names.prompt = names.messages = "input";
  names.max_tokens = "max_output_tokens";
  names.logprobs = "top_logprobs";
  generate_.prompts.emplace_back(Conversation());
  ReadInstructions();
  ReadResponsesInput(fields_, find, &request_);
  fields_.String("model", kMaxTextBytes, &generate_.model);
  fields_.Bool("stream", &request_.request.stream);
  ReadStops(fields_, &generate_);
  fields_.Int("priority", &generate_.priority);
  fields_.String("cache_salt", kMaxCacheSaltBytes, &generate_.cache_salt);
  ReadSampling(fields_, &generate_);
  ReadSmallMembers();
  ReadTopLogprobs();
  ReadTools();
  ReadToolChoice();
  ReadText();
  ReadReasoning();
  ReadTruncation();
}

}  // namespace

size_t ResponsesRequest::HeldBytes() const {
  size_t bytes = echo.size() + std::get<Conversation>(request.generate.prompts.front()).TextBytes();
  if (instructions) bytes += instructions->HeldBytes();
  for (const Message& message : messages) bytes += message.HeldBytes();
  return bytes;
}

Result<ResponsesRequest> ParseResponsesRequest(std::string_view body, const ReadContext& context,
                                               const FindResponseItem& find) {
  Result<JsonFields> parsed = JsonFields::Parse(body);
  if (!parsed.ok()) return parsed.status();
  JsonFields& fields = *parsed;
  CheckMembers(fields, members::kResponsesTables, members::kChatTables);
  ResponsesRequest request;
  ReadIncluded(fields, &request.request);
  request.request.chat = true;
  request.request.generate.sampling = context.default_sampling;
  ResponsesReader(fields, &request).Read(find);
  if (!fields.status().ok()) return fields.status();
  return request;
}

Result<ResponsesChat> ChatOf(const ResponsesRequest& request, const StoredResponse* previous,
                             const ReadContext& context) {
  TurnList said;
  if (previous != nullptr) {
    said.Append(previous->input->messages);
    for (const ResponseItem& item : previous->object->items) {
      if (item.kind == AnswerPart::Kind::kContent)
        said.Say("assistant", {item.text});
      else if (item.kind == AnswerPart::Kind::kToolCall)
        said.Call(item.call_id, item.name, item.text);
    }
  }
  said.Append(request.messages);
  ResponsesChat chat;
  auto input = std::make_shared<ResponseInput>(request.input);
  input->messages = said.Take();
  chat.request = request.request;
  auto& conversation = std::get<Conversation>(chat.request.generate.prompts.front());
  if (request.instructions) conversation.messages.push_back(*request.instructions);
  std::ranges::copy(input->messages, std::back_inserter(conversation.messages));
  if (conversation.messages.empty()) return IsEmpty("input", "at least 1 item");
  if (conversation.messages.size() > kMaxMessages) {
    return TooMany("input", conversation.messages.size(), "messages with those before",
                   kMaxMessages);
  }
  FitRoles(context.options->template_roles, &conversation.messages);
  chat.input = std::move(input);
  DS_RETURN_IF_ERROR(PlanTools(request.tool_choice, context.options->formats, &chat.request));
  // The last event repeats all of a stream.
  chat.request.generate.holds = chat.request.logprobs ? AnswerHolds::kTokens : AnswerHolds::kText;
  auto echo = std::make_shared<std::string>();
  JsonWriter(echo.get())
      .Members(request.echo)
      .Add("temperature", double{chat.request.generate.sampling.temperature})
      .Add("top_p", double{chat.request.generate.sampling.top_p});
  chat.echo = std::move(echo);
  return chat;
}

}  // namespace diffserve
