// SPDX-License-Identifier: Apache-2.0
// Members of a body for the answer's format: response_format, vLLM's and SGLang's
// structured_outputs, guided_json, regex, ebnf and so on; and the token budget of the reasoning.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "server/json/json.h"
#include "server/serving/frontend.h"

namespace diffserve {

// `body`: the text that `fields` was parsed from. Schemas are copied from it unchanged, because the
// order of properties is the order in which they are generated. More than one format is refused.
void ReadStructuredFields(JsonFields& fields, std::string_view body, GenerateRequest* request);
// The same for only `structured_outputs`.
void ReadStructuredOutputs(JsonFields& fields, std::string_view body, GenerateRequest* request);
// A `structured_outputs` text that requests this format; empty if none would be read as the same
// format. `whitespace`: GenerateRequest's.
std::string StructuredOutputsText(const GrammarSpec& grammar,
                                  const std::optional<std::string>& whitespace = {});

// Which syntax a grammar has: GBNF defines with "name ::=", Lark with "name:".
GrammarSpec::Kind GrammarKindOf(std::string_view text);

// The text of a member of an object, as it is written there; empty if it is absent. If a member is
// repeated, the last one counts. REQUIRES: `object` is the text of a valid JSON object.
std::string_view MemberText(std::string_view object, std::string_view name);

}  // namespace diffserve
