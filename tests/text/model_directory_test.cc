// SPDX-License-Identifier: Apache-2.0
// Model directories as transformers reads them: directories.json has the directories of
// directory_cases.py and the results of two versions. If they differ, the newer one counts, except
// for what only the older one knows.
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "engine/text/chat_template.h"
#include "tests/testing/text/text_fixture.h"

namespace diffserve {
namespace {

using json = nlohmann::ordered_json;

const json& Golden() {
  static const json golden = [] {
    std::ifstream file(TextDataDir() + "/directories.json");
    json found = json::parse(file);
    EXPECT_GT(found.at("cases").size(), 10u);
    return found;
  }();
  return golden;
}

class ModelDirectory {
 public:
  explicit ModelDirectory(const json& files) {
    dir_.Write("tokenizer.json", FileBytes(TextDataDir() + "/byte_bpe/tokenizer.json"));
    for (const auto& [path, text] : files.items()) dir_.Write(path, text.get<std::string>());
  }
  std::string path() const { return dir_.path(); }

 private:
  TemporaryDirectory dir_;
};

// The newer version's result, unless it refuses the directory.
const json& Expected(const json& item) {
  const json& results = item["results"];
  return results["5"].is_null() ? results["4"] : results["5"];
}

int RowsOf(const json& item) {
  return json::parse(item["files"]["config.json"].get<std::string>())["vocab_size"];
}

// Empty: there is no template, or none for this conversation.
std::string Rendered(const std::string& dir, const std::string& tools) {
  const auto chat_template = ChatTemplate::Load(dir);
  EXPECT_TRUE(chat_template.ok()) << chat_template.status().message();
  if (!chat_template.ok() || *chat_template == nullptr) return {};
  const std::string messages = Golden()["messages"].dump();
  const auto text = (*chat_template)->Render({messages, "{}", false, tools}, nullptr);
  return text.ok() ? text->text : std::string();
}

TEST(ModelDirectoryTest, ConversationsAreRenderedAsTransformersDoes) {
  for (const json& item : Golden()["cases"]) {
    const ModelDirectory dir(item["files"]);
    const json& expected = Expected(item);
    EXPECT_EQ(expected["plain"].is_null() ? "" : expected["plain"], Rendered(dir.path(), ""))
        << item["name"];
    EXPECT_EQ(expected["tools"].is_null() ? "" : expected["tools"],
              Rendered(dir.path(), Golden()["tools"].dump()))
        << item["name"];
  }
}

TEST(ModelDirectoryTest, AdditionalSpecialTokensAreAVariable) {
  int count = 0;
  for (const json& item : Golden()["cases"]) {
    const json& older = item["results"]["4"];
    if (older.is_null()) continue;
    json files = item["files"];
    files["additional_chat_templates/default.jinja"] =
        "{{ (additional_special_tokens or []) | tojson }}";
    const ModelDirectory dir(files);
    EXPECT_EQ(json::parse(Rendered(dir.path(), "")), older["additional_special_tokens"])
        << item["name"];
    ++count;
  }
  EXPECT_GE(count, 100);
}

TEST(ModelDirectoryTest, TextsAreEncodedAsTransformersDoes) {
  int count = 0;
  for (const json& item : Golden()["cases"]) {
    const ModelDirectory dir(item["files"]);
    const auto tokenizer = Tokenizer::Load(dir.path());
    ASSERT_TRUE(tokenizer.ok()) << item["name"] << tokenizer.status().message();
    EXPECT_LE((*tokenizer)->vocab_size(), RowsOf(item)) << item["name"];
    // Other classes have pre-tokenizers of their own.
    if (Expected(item)["class"] != "TokenizersBackend") continue;
    const auto ids = Expected(item)["ids"].get<std::vector<int32_t>>();
    if (std::ranges::max(ids) >= RowsOf(item)) continue;  // transformers would fail in the model
    EXPECT_EQ((*tokenizer)->Encode(Golden()["text"].get<std::string>(), false).value(), ids)
        << item["name"];
    ++count;
  }
  EXPECT_GE(count, 100);
}

constexpr char kUtf8Mark[] = "\xEF\xBB\xBF";

// transformers refuses such files.
TEST(ModelDirectoryTest, ByteOrderMarkBeforeJsonIsSkipped) {
  for (const json& item : Golden()["cases"]) {
    json files = item["files"];
    files["tokenizer.json"] = files.value("tokenizer.json",
                                          FileBytes(TextDataDir() + "/byte_bpe/tokenizer.json"));
    json marked = files;
    for (auto& [path, text] : marked.items()) {
      if (path.ends_with(".json")) text = kUtf8Mark + text.get<std::string>();
    }
    const ModelDirectory dir(files), marked_dir(marked);
    EXPECT_EQ(Rendered(marked_dir.path(), ""), Rendered(dir.path(), "")) << item["name"];
    const auto tokenizer = Tokenizer::Load(dir.path()).value();
    const auto same = Tokenizer::Load(marked_dir.path());
    ASSERT_TRUE(same.ok()) << item["name"] << same.status().message();
    const auto text = Golden()["text"].get<std::string>();
    EXPECT_EQ((*same)->Encode(text, false).value(), tokenizer->Encode(text, false).value());
    EXPECT_EQ((*same)->eos_token_id(), tokenizer->eos_token_id()) << item["name"];
  }
}

// As in transformers 4.57 and 5.
TEST(ModelDirectoryTest, ByteOrderMarkOfATemplateFileIsText) {
  const ModelDirectory dir(json{{"chat_template.jinja", std::string(kUtf8Mark) + "T"}});
  EXPECT_EQ(Rendered(dir.path(), ""), std::string(kUtf8Mark) + "T");
}

TEST(ModelDirectoryTest, TokenIsSpecialIfEitherFileMarksIt) {
  for (const json& item : Golden()["cases"]) {
    const ModelDirectory dir(item["files"]);
    const auto tokenizer = Tokenizer::Load(dir.path()).value();
    std::set<int32_t> expected, found;
    for (const char* version : {"4", "5"}) {
      const json& result = item["results"][version];
      if (result.is_null() || result["class"] == "LlamaTokenizerFast") continue;
      for (const int32_t id : result["special"]) {
        if (id < RowsOf(item)) expected.insert(id);
      }
    }
    for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
      if (tokenizer->IsSpecial(id)) found.insert(id);
    }
    EXPECT_EQ(found, expected) << item["name"];
  }
}

TEST(ModelDirectoryTest, NamedEndTokenIsTheTokenizersEnd) {
  int count = 0;
  for (const json& item : Golden()["cases"]) {
    const ModelDirectory dir(item["files"]);
    const auto tokenizer = Tokenizer::Load(dir.path()).value();
    std::optional<int32_t> expected;
    const json& eos = Expected(item)["eos"];
    if (!eos.is_null() && eos < RowsOf(item)) expected = eos.get<int32_t>();
    EXPECT_EQ(tokenizer->eos_token_id(), expected) << item["name"];
    count += expected.has_value();
  }
  EXPECT_GE(count, 40);
}

TEST(ModelDirectoryTest, WithoutADefaultTheErrorNamesTheTemplates) {
  TemporaryDirectory dir;
  dir.Write("tokenizer_config.json",
            R"({"chat_template": [{"name": "tool_use", "template": "a"}]})");
  const auto text =
      ChatTemplate::Load(dir.path()).value()->Render({.messages_json = "[]"}, nullptr);
  EXPECT_EQ(text.status().message(),
            "this conversation needs the chat template \"default\"; the model has only: tool_use");
}

TEST(ModelDirectoryTest, ProcessorTemplateIsUsedIfThereIsNoOther) {
  TemporaryDirectory dir;
  dir.Write("chat_template.json", R"({"chat_template": "processor"})");
  EXPECT_EQ(Rendered(dir.path(), ""), "processor");
  dir.Write("tokenizer_config.json", R"({"chat_template": "tokenizer"})");
  EXPECT_EQ(Rendered(dir.path(), ""), "tokenizer");
}

TEST(ModelDirectoryTest, FaultsAreNamedWithTheirFileAndKey) {
  const std::pair<const char*, const char*> kFaults[] = {
      {R"({"bos_token": 5})",
       "tokenizer_config.json: bos_token is 5; allowed: a string or an "
       "object with \"content\""},
      {R"({"extra_special_tokens": {"image_token": []}})",
       "tokenizer_config.json: image_token is []; allowed: a string or an object with "
       "\"content\""},
      {R"({"added_tokens_decoder": []})",
       "tokenizer_config.json: added_tokens_decoder is []; allowed: an object"},
      {R"({"added_tokens_decoder": {"x": {"content": "a"}}})",
       "tokenizer_config.json: added_tokens_decoder: x: not an id"},
      {R"({"added_tokens_decoder": {"7": {}}})",
       "tokenizer_config.json: added_tokens_decoder: 7: has no \"content\""},
  };
  for (const auto& [config, message] : kFaults) {
    const ModelDirectory dir(json{{"tokenizer_config.json", config}});
    const auto tokenizer = Tokenizer::Load(dir.path());
    ASSERT_FALSE(tokenizer.ok()) << config;
    EXPECT_EQ(tokenizer.status().message(), dir.path() + "/" + message);
  }
}

}  // namespace
}  // namespace diffserve
