// SPDX-License-Identifier: Apache-2.0
#include "engine/text/chat_template.h"

#include <gtest/gtest.h>

#include <chrono>

#include "tests/testing/text/text_fixture.h"

namespace diffserve {
namespace {

using json = nlohmann::ordered_json;

Result<std::unique_ptr<ChatTemplate>> LoadTemplate(const json& chat_template) {
  TemporaryDirectory dir;
  const json config = {{"bos_token", "<s>"},
                       {"eos_token", {{"content", "</s>"}}},
                       {"pad_token", nullptr},
                       {"chat_template", chat_template}};
  dir.Write("tokenizer_config.json", config.dump());
  return ChatTemplate::Load(dir.path());
}

Result<std::string> Rendered(const ChatTemplate& chat_template, const std::string& messages,
                             const std::string& kwargs = "{}", bool add_generation_prompt = false) {
  const auto chat = chat_template.Render({messages, kwargs, add_generation_prompt}, nullptr);
  if (!chat.ok()) return chat.status();
  return chat->text;
}

Result<std::string> RenderSource(
    const std::string& source, const std::string& messages = R"([{"role":"user","content":"hi"}])",
    const std::string& kwargs = "{}") {
  const auto loaded = LoadTemplate(source);
  if (!loaded.ok()) return loaded.status();
  return Rendered(**loaded, messages, kwargs);
}

std::string RenderError(const std::string& source,
                        const std::string& messages = R"([{"role":"user","content":"hi"}])",
                        const std::string& kwargs = "{}") {
  const auto text = RenderSource(source, messages, kwargs);
  EXPECT_FALSE(text.ok()) << text.value();
  if (text.ok()) return "";
  EXPECT_EQ(text.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(text.status().message().find('\n'), std::string::npos) << text.status().message();
  return text.status().message();
}

TEST(ChatTemplateTest, RendersAsTransformersDoes) {
  int count = 0;
  for (const auto& item : TextGolden("template")) {
    const auto loaded = LoadTemplate(item["template"]);
    ASSERT_TRUE(loaded.ok()) << item["name"] << loaded.status().message();
    const json kwargs = item.value("kwargs", json::object());
    const auto text = Rendered(**loaded, item["messages"].dump(), kwargs.dump(),
                               item.value("add_generation_prompt", false));
    ASSERT_TRUE(text.ok()) << item["name"] << text.status().message();
    EXPECT_EQ(text.value(), item["text"].get<std::string>()) << item["name"];
    ++count;
  }
  EXPECT_GE(count, 12);
}

TEST(ChatTemplateTest, ModelWithoutTemplateHasNone) {
  TemporaryDirectory empty;
  const auto none = ChatTemplate::Load(empty.path());
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none.value(), nullptr);
  EXPECT_EQ(LoadTemplate(nullptr).value(), nullptr);
}

TEST(ChatTemplateTest, JinjaFileOverridesTheConfig) {
  TemporaryDirectory dir;
  dir.Write("tokenizer_config.json", R"({"bos_token": "<s>", "chat_template": "config"})");
  dir.Write("chat_template.jinja", "{{ bos_token }}file {{ messages[0].content }}\n");
  const auto text = Rendered(*ChatTemplate::Load(dir.path()).value(),
                             R"([{"role": "user", "content": "x"}])");
  EXPECT_EQ(text.value(), "<s>file x");
}

TEST(ChatTemplateTest, TemplateThatIsNotUsedIsLogged) {
  const auto logged = [](const char* jinja, const char* config, const char* processor) {
    TemporaryDirectory dir;
    if (jinja != nullptr) dir.Write("chat_template.jinja", jinja);
    if (config != nullptr) dir.Write("tokenizer_config.json", config);
    if (processor != nullptr) dir.Write("chat_template.json", processor);
    ::testing::internal::CaptureStderr();
    EXPECT_TRUE(ChatTemplate::Load(dir.path()).ok());
    const std::string log = ::testing::internal::GetCapturedStderr();
    const size_t at = log.find("chat_template_passed_over");
    return at == log.npos ? std::string() : log.substr(log.rfind('/') + 1);
  };
  const char* const kOther = R"({"chat_template": "other"})";
  EXPECT_EQ(logged("own", kOther, nullptr), "tokenizer_config.json used=chat_template.jinja\n");
  EXPECT_EQ(logged("own", nullptr, kOther), "chat_template.json used=chat_template.jinja\n");
  EXPECT_EQ(logged(nullptr, R"({"chat_template": "own"})", kOther),
            "chat_template.json used=tokenizer_config.json\n");
  EXPECT_EQ(logged("other", kOther, kOther), "");
  EXPECT_EQ(logged("own", R"({"chat_template": null})", nullptr), "");
  EXPECT_EQ(logged("own", R"({"chat_template": 7})", nullptr), "") << "it is not read";
}

TEST(ChatTemplateTest, CompileErrorIsOneLineWithItsPosition) {
  for (const std::string source :
       {"a\n{% if %}", "{{ 'a' ", "{% for x in y %}", "{{ x | no_such_filter }}{% bad %}"}) {
    const auto loaded = LoadTemplate(source);
    ASSERT_FALSE(loaded.ok()) << source;
    const std::string& message = loaded.status().message();
    EXPECT_NE(message.find("/tokenizer_config.json: chat_template: "), std::string::npos)
        << message;
    EXPECT_NE(message.find(source.starts_with("a") ? ":2)" : ":1)"), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

TEST(ChatTemplateTest, UnclosedTagOfAnotherTemplateIsRefused) {
  const auto loaded = LoadTemplate("{% import '' as 9 %}");
  ASSERT_FALSE(loaded.ok());
  const std::string& message = loaded.status().message();
  EXPECT_NE(message.find("chat_template: unexpected number (in chat template:1)"),
            std::string::npos)
      << message;
}

TEST(ChatTemplateTest, RaisedExceptionIsTheMessage) {
  EXPECT_EQ(RenderError("{{ raise_exception('Roles must alternate') }}"),
            "the chat template refuses this conversation: Roles must alternate");
  EXPECT_EQ(RenderError("{% macro m() %}{{ raise_exception('inside') }}{% endmacro %}{{ m() }}"),
            "the chat template refuses this conversation: inside");
}

TEST(ChatTemplateTest, EndlessTemplateRunsOutOfSteps) {
  const std::string message = RenderError(
      "{% for a in range(99999) %}{% for b in range(99999) %}{% set c = b %}{% endfor %}{% endfor "
      "%}");
  EXPECT_NE(message.find("steps"), std::string::npos) << message;
  EXPECT_FALSE(RenderSource("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}").ok());
}

// Each would take minutes, gigabytes or the whole stack.
TEST(ChatTemplateTest, WorkOnLongValuesIsCountedBySize) {
  const std::string doubled =
      "{% set n = namespace(a=(1,), b=(1,)) %}{% for i in range(99) %}"
      "{% set n.a = (n.a, n.a) %}{% set n.b = (n.b, n.b) %}{% endfor %}";
  const std::string long_text =
      "{% set a = 'a' * 30000000 %}{% set b = 'a' * 30000000 %}{% for i in range(99999) %}";
  for (const std::string& source :
       {doubled + "{{ n.a }}", doubled + "{{ n.a == n.b }}", doubled + "{{ n.a < n.b }}",
        doubled + "{{ {n.a: 1} }}", doubled + "{{ n.a | tojson }}",
        long_text + "{{ a == b }}{% endfor %}", long_text + "{{ a in [b] }}{% endfor %}",
        long_text + "{{ a | length }}{% endfor %}", long_text + "{{ a is lower }}{% endfor %}",
        long_text + "{{ {a: 1} | length }}{% endfor %}", std::string("{{ 'x' * 10 ** 30 }}"),
        std::string("{{ [1] * 10 ** 9 }}"), std::string("{{ 10 ** 9999999999 }}"),
        std::string("{{ '%99999999d' % 1 }}"), std::string("{{ ('<' * 9999999) | e | e }}"),
        std::string("{{ [1] | slice(999999999) | list }}"),
        std::string("{% for i in range(99999) %}{{ range(99999) | sort | length }}{% endfor %}"),
        "{{ " + std::string(100000, '(') + "1" + std::string(100000, ')') + " }}",
        "{{ " + std::string(100000, '-') + "1 }}"}) {
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_FALSE(RenderSource(source).ok()) << source.substr(0, 200);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20))
        << source.substr(0, 200);
  }
}

TEST(ChatTemplateTest, RenderedTextIsBounded) {
  const std::string message = RenderError(
      "{% for a in range(40000) %}{{ 'x' * 1000 }}{% endfor %}");
  EXPECT_NE(message.find("33554432"), std::string::npos) << message;
}

TEST(ChatTemplateTest, MemoryOfTheValuesIsBounded) {
  const std::string message = RenderError(
      "{% set ns = namespace(list=[]) %}"
      "{% for i in range(9) %}{% set ns.list = ns.list + ['x' * 33000000] %}{% endfor %}");
  EXPECT_NE(message.find("268435456"), std::string::npos) << message;
}

TEST(ChatTemplateTest, TemplateReachesNoFileAndNoOtherTemplate) {
  for (const std::string source :
       {"{% include '/etc/passwd' %}", "{% import 'x' as y %}{{ y }}",
        "{% extends 'tokenizer_config.json' %}", "{{ debug() }}",
        "{{ messages.__class__.__mro__[1] }}", "{{ ''.__class__.mro() }}"}) {
    EXPECT_FALSE(RenderSource(source).ok()) << source;
  }
}

TEST(ChatTemplateTest, MessagesMustBeAListAndArgumentsAnObject) {
  EXPECT_NE(RenderError("x", "{}").find("messages: "), std::string::npos);
  EXPECT_NE(RenderError("x", "[").find("messages: "), std::string::npos);
  EXPECT_NE(RenderError("x", "[]", "[]").find("the template's arguments: "), std::string::npos);
  EXPECT_NE(RenderError("x", std::string(100000, '[')).find("recursion limit"), std::string::npos);
}

TEST(ChatTemplateTest, ArgumentsDoNotReplaceTheMessages) {
  const std::string kwargs = R"({"messages": [], "add_generation_prompt": 7})";
  EXPECT_EQ(
      RenderSource("{{ messages | length }}{{ add_generation_prompt }}", "[1]", kwargs).value(),
      "1False");
}

TEST(ChatTemplateTest, TemplateMayBeRenderedAgainAfterAnError) {
  const auto loaded = LoadTemplate("{{ messages[0].content.strip() }}").value();
  EXPECT_FALSE(Rendered(*loaded, R"([{"content": 1}])").ok());
  EXPECT_EQ(Rendered(*loaded, R"([{"content": " ok "}])").value(), "ok");
}

}  // namespace
}  // namespace diffserve
