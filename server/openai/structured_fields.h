// The members of a body that say what form the answer has: response_format, and vLLM's and SGLang's
// structured_outputs, guided_json, regex, ebnf and the like; and the budget of the reasoning before
// it.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "server/frontend.h"
#include "server/openai/json.h"

namespace diffserve {

std::span<const std::string_view> StructuredFieldNames();

// `body`: the text that `fields` was parsed of; a schema is taken from it as it is written, since
// the order of properties says in which order they are answered. More than one form is refused.
void ReadStructuredFields(JsonFields& fields, std::string_view body, GenerateRequest* request);
// The same of `structured_outputs` alone.
void ReadStructuredOutputs(JsonFields& fields, std::string_view body, GenerateRequest* request);
// The text of a `structured_outputs` that asks for this form; empty if there is none that would be
// read as the same.
std::string StructuredOutputsText(const GrammarSpec& grammar);

// Which of the two a grammar's text is: GBNF defines by "name ::=", Lark by "name:".
GrammarSpec::Kind GrammarKindOf(std::string_view text);

// The text of a member of an object, as it is written there; empty if it is absent. Of repeated
// ones the last. REQUIRES: `object` is the text of a valid JSON object.
std::string_view MemberText(std::string_view object, std::string_view name);

}  // namespace diffserve
