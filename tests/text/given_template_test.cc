// SPDX-License-Identifier: Apache-2.0
// Chat templates that the operator gives in place of the model's own.
#include "engine/text/given_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "engine/text/chat_template.h"
#include "tests/testing/kernels/source_directory.h"
#include "tests/testing/text/text_fixture.h"

namespace diffserve {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kTalk[] =
    R"([{"role":"system","content":"Be brief."},{"role":"user","content":" hi "},
        {"role":"assistant","content":"yes"},{"role":"user","content":"why?"}])";

std::string RenderTalk(const ChatTemplate& chat_template) {
  const auto rendered = chat_template.Render(
      {.messages_json = kTalk, .add_generation_prompt = true}, nullptr);
  EXPECT_TRUE(rendered.ok()) << rendered.status().message();
  return rendered.ok() ? rendered->text : "";
}

std::string RenderTalk(const std::string& given) {
  TemporaryDirectory dir;
  dir.Write("tokenizer_config.json", R"({"bos_token":"<s>","chat_template":"own"})");
  const auto loaded = ChatTemplate::Load(dir.path(), given);
  EXPECT_TRUE(loaded.ok()) << loaded.status().message();
  return loaded.ok() ? RenderTalk(**loaded) : "";
}

std::string LoadError(const std::string& given) {
  const Status status = ChatTemplate::Check(given);
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.param(), "--chat-template");
  EXPECT_EQ(status.message().find('\n'), std::string::npos) << status.message();
  EXPECT_THAT(status.message(), StartsWith("--chat-template " + given));
  return status.message();
}

TEST(GivenTemplateTest, FileWinsOverTheModelsOwn) {
  TemporaryDirectory dir;
  dir.Write("mine.txt", "{{ bos_token }}{% for m in messages %}[{{ m.content }}]{% endfor %}");
  EXPECT_EQ(RenderTalk((dir.path() / "mine.txt").string()), "<s>[Be brief.][ hi ][yes][why?]");
}

TEST(GivenTemplateTest, FileInAnAdditionalFolderIsTheDefaultToo) {
  TemporaryDirectory dir;
  dir.Write("tool_use.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}");
  EXPECT_EQ(RenderTalk((dir.path() / "tool_use.jinja").string()), "Be brief. hi yeswhy?");
}

TEST(GivenTemplateTest, BuiltInFormsAreThoseOfTheirModels) {
  EXPECT_EQ(RenderTalk("chatml"),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n hi <|im_end|>\n"
            "<|im_start|>assistant\nyes<|im_end|>\n<|im_start|>user\nwhy?<|im_end|>\n"
            "<|im_start|>assistant\n");
  EXPECT_EQ(RenderTalk("llama3"),
            "<s><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\nyes<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nwhy?<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n");
  const std::string demo = SourceDirectory() + "/models/demo/diff";
  EXPECT_EQ(RenderTalk(*ChatTemplate::Load(demo, "demo").value()),
            RenderTalk(*ChatTemplate::Load(demo).value()));
}

TEST(GivenTemplateTest, BadTemplateIsRefusedInOneLine) {
  TemporaryDirectory dir;
  const auto error_of = [&dir](const std::string& text) {
    dir.Write("given.jinja", text);
    return LoadError((dir.path() / "given.jinja").string());
  };
  EXPECT_THAT(LoadError("no_such"), HasSubstr("no such file; allowed: a Jinja file, "
                                              "chatml, llama3, demo"));
  EXPECT_THAT(LoadError(dir.path().string()), HasSubstr("directory"));
  EXPECT_THAT(error_of(""), HasSubstr("is empty"));
  EXPECT_THAT(error_of("\n{% for m in messages %}"), HasSubstr("chat template:2"));
  EXPECT_THAT(error_of("hello"), HasSubstr("does not show a user's message"));
  EXPECT_THAT(error_of("{{ raise_exception('no users') }}"), HasSubstr("no users"));
  EXPECT_THAT(error_of(R"({"chat_template": "{{ messages }}"})"), HasSubstr("is JSON"));
}

TEST(GivenTemplateTest, TemplateOfPartsIsTaken) {
  TemporaryDirectory dir;
  dir.Write("parts.jinja", "{% for m in messages %}{{ m.content[0].text }}{% endfor %}");
  EXPECT_TRUE(ChatTemplate::Check((dir.path() / "parts.jinja").string()).ok());
}

}  // namespace
}  // namespace diffserve
