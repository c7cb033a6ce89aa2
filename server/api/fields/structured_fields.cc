// SPDX-License-Identifier: Apache-2.0
#include "server/api/fields/structured_fields.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "kernels/base/refusal.h"
#include "server/api/fields/chat_fields.h"
#include "server/json/json_writer.h"
#include "server/serving/request/request_checks.h"

namespace diffserve {
namespace {

using GrammarKind = GrammarSpec::Kind;

size_t SkipSpace(std::string_view text, size_t at) {
  return std::min(text.find_first_not_of(" \t\r\n", at), text.size());
}

size_t SkipString(std::string_view text, size_t at) {
  for (++at; at < text.size() && text[at] != '"'; ++at) at += text[at] == '\\';
  return std::min(at + 1, text.size());
}

// The end of the value that begins at `at`.
size_t SkipValue(std::string_view text, size_t at) {
  int depth = 0;
  while (at < text.size()) {
    const char c = text[at];
    if (c == '"') {
      at = SkipString(text, at);
    } else if (depth == 0 && (c == ',' || c == '}' || c == ']')) {
      return at;
    } else {
      depth += (c == '{' || c == '[') - (c == '}' || c == ']');
      ++at;
      if (depth > 0 || (c != '}' && c != ']')) continue;
    }
    if (depth == 0) return at;
  }
  return at;
}

bool IsName(std::string_view quoted, std::string_view name) {
  if (quoted.find('\\') == quoted.npos) return quoted.substr(1, quoted.size() - 2) == name;
  return nlohmann::json::parse(quoted).get<std::string>() == name;
}

// Reads the formats in turn; a second one is an error.
class FormReader {
 public:
  FormReader(JsonFields& fields, GenerateRequest* request) : fields_(fields), request_(request) {}

  void Take(GrammarKind kind, std::string text, const char* param) {
    if (request_->grammar && fields_.status().ok()) {
      fields_.Fail(NotBoth(request_->grammar->param, param));
    }
    request_->grammar = GrammarSpec{kind, std::move(text), param};
  }

  // A member with a format: a string or, if allowed, any JSON. Null, false and "" mean none.
  void Read(JsonFields& object, std::string_view text, const char* name, GrammarKind kind,
            const char* param) {
    if (!object.Has(name)) return;
    const std::string_view member = MemberText(text, name);
    if (member == "false" || member == "\"\"") return;
    const bool is_json = kind == GrammarKind::kJsonSchema || kind == GrammarKind::kStructuralTag;
    std::string value;
    if (kind == GrammarKind::kChoice || (is_json && !object.IsString(name))) {
      value = member;
    } else {
      object.String(name, kMaxTextBytes, &value);
      if (kind == GrammarKind::kLark) kind = GrammarKindOf(value);
    }
    if (object.status().ok()) Take(kind, std::move(value), param);
  }

  // The two members for whitespace in JSON.
  void ReadWhitespace(JsonFields& object, const char* pattern, const char* pattern_param,
                      const char* none_param);

  void ReadResponseFormat(std::string_view body);
  void ReadStructuredOutputs(std::string_view body);
  // Refuses whitespace for a form that has no JSON of a schema.
  void CheckWhitespace();

 private:
  JsonFields& fields_;
  GenerateRequest* const request_;
};

void FormReader::ReadWhitespace(JsonFields& object, const char* pattern, const char* pattern_param,
                                const char* none_param) {
  const auto take = [&](std::string text, const char* param) {
    if (request_->whitespace) {
      object.Fail(NotBoth(request_->names.whitespace, param));
    }
    request_->whitespace = std::move(text);
    request_->names.whitespace = param;
  };
  if (object.Has(pattern)) {
    std::string text;
    object.String(pattern, kMaxTextBytes, &text);
    take(std::move(text), pattern_param);
  }
  bool none = false;
  object.Bool("disable_any_whitespace", &none);
  if (none) take("", none_param);
}

void FormReader::CheckWhitespace() {
  if (!request_->whitespace || !request_->grammar) return;
  const GrammarKind kind = request_->grammar->kind;
  if (kind != GrammarKind::kRegex && kind != GrammarKind::kChoice && kind != GrammarKind::kEbnf)
    return;
  const char* const param = request_->names.whitespace;
  fields_.Fail(NotAllowed(std::string(param) + " is set with " + request_->grammar->param,
                          "only with a format of JSON", param));
}

void FormReader::ReadResponseFormat(std::string_view body) {
  for (JsonFields& format : fields_.Object("response_format")) {
    const std::string_view text = MemberText(body, "response_format");
    std::string type;
    format.String("type", kMaxNameBytes, &type);
    if (type == "json_object") {
      Take(GrammarKind::kJsonObject, "", "response_format");
    } else if (type == "structural_tag") {
      Take(GrammarKind::kStructuralTag, std::string(text), "response_format");
    } else if (type == "json_schema") {
      const std::string_view inner = MemberText(text, "json_schema");
      std::string name;
      bool strict = false, found = false;
      for (JsonFields& schema : format.Object("json_schema")) {
        schema.String("name", kMaxNameBytes, &name);
        schema.Bool("strict", &strict);  // the schema is enforced either way
        found = schema.Has("schema");
        format.Fail(schema.status());
      }
      if (!found) {
        format.Fail(Missing("response_format.json_schema.schema"));
      } else {
        Take(GrammarKind::kJsonSchema, std::string(MemberText(inner, "schema")),
             "response_format.json_schema.schema");
      }
    } else if (type != "text") {
      format.Fail(NotAllowed("response_format.type is " + QuotedText(type),
                             "text, json_object, json_schema, structural_tag", "response_format"));
    }
    fields_.Fail(format.status());
  }
}

void FormReader::ReadStructuredOutputs(std::string_view body) {
  for (JsonFields& outputs : fields_.Object("structured_outputs")) {
    const std::string_view text = MemberText(body, "structured_outputs");
    Read(outputs, text, "json", GrammarKind::kJsonSchema, "structured_outputs.json");
    Read(outputs, text, "regex", GrammarKind::kRegex, "structured_outputs.regex");
    Read(outputs, text, "choice", GrammarKind::kChoice, "structured_outputs.choice");
    Read(outputs, text, "grammar", GrammarKind::kLark, "structured_outputs.grammar");
    Read(outputs, text, "structural_tag", GrammarKind::kStructuralTag,
         "structured_outputs.structural_tag");
    bool object = false;
    outputs.Bool("json_object", &object);
    if (object) Take(GrammarKind::kJsonObject, "", "structured_outputs.json_object");
    ReadWhitespace(outputs, "whitespace_pattern", "structured_outputs.whitespace_pattern",
                   "structured_outputs.disable_any_whitespace");
    constexpr std::string_view kKnown[] = {"json",
                                           "regex",
                                           "choice",
                                           "grammar",
                                           "structural_tag",
                                           "json_object",
                                           "whitespace_pattern",
                                           "disable_any_whitespace"};
    for (const std::string& name : outputs.Names()) {
      if (std::ranges::find(kKnown, name) == std::end(kKnown) && !outputs.IsOff(name))
        outputs.Fail(Unsupported("structured_outputs." + name.substr(0, 64)));
    }
    fields_.Fail(outputs.status());
  }
}

}  // namespace

std::string_view MemberText(std::string_view object, std::string_view name) {
  std::string_view found;
  size_t at = SkipSpace(object, SkipSpace(object, 0) + 1);
  while (at < object.size() && object[at] == '"') {
    const size_t end = SkipString(object, at);
    const bool is_named = IsName(object.substr(at, end - at), name);
    const size_t value = SkipSpace(object, SkipSpace(object, end) + 1);
    const size_t value_end = SkipValue(object, value);
    if (is_named) {
      found = object.substr(value, value_end - value);
      found = found.substr(0, found.find_last_not_of(" \t\r\n") + 1);
    }
    at = SkipSpace(object, SkipSpace(object, value_end) + 1);
  }
  return found;
}

GrammarSpec::Kind GrammarKindOf(std::string_view text) {
  for (size_t at = text.find("::="); at != text.npos; at = text.find("::=", at + 1)) {
    const size_t line = text.rfind('\n', at) + 1;  // 0 if there is no newline before
    std::string_view name = text.substr(line, at - line);
    name = name.substr(0, name.find_last_not_of(" \t") + 1);
    if (!name.empty() && name.find_first_of("\"'/:#()|") == name.npos) return GrammarKind::kEbnf;
  }
  return GrammarKind::kLark;
}

void ReadStructuredOutputs(JsonFields& fields, std::string_view body, GenerateRequest* request) {
  FormReader forms(fields, request);
  forms.ReadStructuredOutputs(body);
  forms.CheckWhitespace();
}

std::string StructuredOutputsText(const GrammarSpec& grammar,
                                  const std::optional<std::string>& whitespace) {
  std::string text;
  JsonWriter json(&text);
  json.Begin('{');
  if (whitespace) json.Add("whitespace_pattern", *whitespace);
  switch (grammar.kind) {
    case GrammarKind::kJsonObject:
      json.Add("json_object", true);
      break;
    case GrammarKind::kJsonSchema:
      json.Add("json", grammar.text);
      break;
    case GrammarKind::kRegex:
      json.Add("regex", grammar.text);
      break;
    case GrammarKind::kChoice:
      json.Key("choice").Json(grammar.text);
      break;
    case GrammarKind::kStructuralTag:
      json.Add("structural_tag", grammar.text);
      break;
    case GrammarKind::kLark:
    case GrammarKind::kEbnf:
      if (GrammarKindOf(grammar.text) != grammar.kind) return "";
      json.Add("grammar", grammar.text);
      break;
  }
  json.End('}');
  return text;
}

void ReadStructuredFields(JsonFields& fields, std::string_view body, GenerateRequest* request) {
  FormReader forms(fields, request);
  forms.ReadResponseFormat(body);
  forms.ReadStructuredOutputs(body);
  forms.Read(fields, body, "guided_json", GrammarKind::kJsonSchema, "guided_json");
  forms.Read(fields, body, "guided_regex", GrammarKind::kRegex, "guided_regex");
  forms.Read(fields, body, "guided_choice", GrammarKind::kChoice, "guided_choice");
  forms.Read(fields, body, "guided_grammar", GrammarKind::kLark, "guided_grammar");
  forms.Read(fields, body, "regex", GrammarKind::kRegex, "regex");
  forms.Read(fields, body, "ebnf", GrammarKind::kEbnf, "ebnf");
  forms.Read(fields, body, "json_schema", GrammarKind::kJsonSchema, "json_schema");
  forms.ReadWhitespace(fields, "guided_whitespace_pattern", "guided_whitespace_pattern",
                       "disable_any_whitespace");
  forms.CheckWhitespace();
  for (const char* name : {"max_reasoning_tokens", "thinking_token_budget"}) {
    if (!fields.Has(name)) continue;
    fields.Int(name, &request->max_reasoning_tokens);
    if (request->max_reasoning_tokens < 0)
      fields.Fail(BelowMin(name, request->max_reasoning_tokens, 0));
  }
}

}  // namespace diffserve
