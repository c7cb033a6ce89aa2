// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "engine/text/given_template.h"
#include "server/app/option_table.h"
#include "server/serving/tools/tool_format.h"

namespace diffserve {
namespace {

template <typename Format>
std::vector<std::string_view> ParserNames(std::span<const Format> formats) {
  std::vector<std::string_view> names = {"auto", "none"};
  for (const Format& format : formats) names.push_back(format.name);
  return names;
}

}  // namespace

std::vector<FlagSpec> ConversationFlags() {
  static const std::string template_help =
      "Jinja file to use in place of the model's own chat template, or a form that is built in: " +
      BuiltInTemplateNames();
  return {
      FlagSpec("--chat-template FILE", kServe | kGenerate | kChat | kRunBatch,
               At<&Options::session, &SessionOptions::chat_template>(), template_help)
          .Default("the model's own"),
      FlagSpec("--tool-call-parser NAME", kServe | kRunBatch,
               At<&Options::serve, &ServeOptions::tool_call_parser>(),
               "how the model writes tool calls; auto: as its chat template says, generic if that "
               "shows no tools")
          .OneOf(ParserNames(ToolFormats())),
      FlagSpec("--reasoning-parser NAME", kServe | kRunBatch,
               At<&Options::serve, &ServeOptions::reasoning_parser>(),
               "how the model marks its reasoning, which is returned apart from the answer")
          .OneOf(ParserNames(ReasoningFormats())),
      FlagSpec(
          "--chat-template-content-format FORM", kServe | kRunBatch,
          At<&Options::serve, &ServeOptions::content_format>(),
          "content as a string, or as openai's list of parts; auto: as the chat template takes it")
          .OneOf({"auto", "string", "openai"}),
  };
}

}  // namespace diffserve
