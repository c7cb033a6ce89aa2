// SPDX-License-Identifier: Apache-2.0
// Texts that come from outside to server/hub: the argument MODEL_DIR, environment variables, and
// what a hub answers.
#include "server/hub/model_name.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pwd.h>
#include <unistd.h>

#include <map>

#include "server/hub/hub_errors.h"
#include "server/hub/hub_settings.h"
#include "server/hub/repository.h"
#include "tests/testing/kernels/temporary_directory.h"

namespace diffserve {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ModelNameTest, HubNamesAreSplit) {
  const std::pair<const char*, HubName> cases[] = {
      {"hf:kajuma/DiffLlama-1B", {"kajuma/DiffLlama-1B", "main"}},
      {"hf:a/b_c.d@v1.0", {"a/b_c.d", "v1.0"}},
      {"hf:a/b@refs/pr/1", {"a/b", "refs/pr/1"}},
  };
  for (const auto& [text, name] : cases) {
    const Result<ModelName> parsed = ParseModelName(text);
    ASSERT_TRUE(parsed.ok()) << text;
    EXPECT_EQ(std::get<HubName>(*parsed), name) << text;
  }
}

TEST(ModelNameTest, EverythingElseIsADirectory) {
  for (const char* text : {"models/demo/diff", "./hf:a/b", "a/b", "HF:a/b", "/x/bundled:y"}) {
    const Result<ModelName> parsed = ParseModelName(text);
    ASSERT_TRUE(parsed.ok()) << text;
    EXPECT_EQ(std::get<std::string>(*parsed), text);
  }
}

TEST(ModelNameTest, NamesThatCouldLeaveTheCacheAreRefused) {
  const std::string long_name(96, 'a');
  for (const std::string& text :
       {std::string("hf:"),         std::string("hf:a"),
        std::string("hf:a/b/c"),    std::string("hf:a/.."),
        std::string("hf:../b"),     std::string("hf:a--b/c"),
        std::string("hf:a/b.git"),  std::string("hf:a/b@"),
        std::string("hf:a/b@../c"), std::string("hf:a/b@c/../d"),
        std::string("hf:a/b@/c"),   std::string("hf:a/b@c//d"),
        std::string("hf:a/b@.c"),   std::string("hf:a/b\n"),
        std::string("hf:a /b"),     std::string("hf:-a/b"),
        "hf:a/" + long_name,        "hf:a/b@" + long_name + long_name + long_name,
        std::string("hf://a/b"),    std::string("bundled:"),
        std::string("bundled:../x")}) {
    const Result<ModelName> parsed = ParseModelName(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_THAT(parsed.status().message(), HasSubstr("allowed"));
  }
}

class HubSettingsTest : public ::testing::Test {
 protected:
  Result<HubSettings> Read(const std::map<std::string, std::string>& variables) const {
    return ReadHubSettings([&](const char* name) {
      const auto found = variables.find(name);
      return found == variables.end() ? nullptr : found->second.c_str();
    });
  }
  std::string home() const { return directory_.path().string(); }

  const TemporaryDirectory directory_;
};

TEST_F(HubSettingsTest, FoldersFollowHuggingFacesOrder) {
  std::map<std::string, std::string> variables = {{"HOME", home()}};
  const auto cache = [&] { return Read(variables)->cache_dir; };
  EXPECT_EQ(cache(), home() + "/.cache/huggingface/hub");
  variables["XDG_CACHE_HOME"] = "/xdg";
  EXPECT_EQ(cache(), "/xdg/huggingface/hub");
  variables["HF_HOME"] = "~/hf";
  EXPECT_EQ(cache(), home() + "/hf/hub");
  variables["HUGGINGFACE_HUB_CACHE"] = "/older";
  EXPECT_EQ(cache(), "/older");
  variables["HF_HUB_CACHE"] = "/newer";
  EXPECT_EQ(cache(), "/newer");
}

// What huggingface_hub makes of the same values: test_hub.py asks it.
TEST_F(HubSettingsTest, HomeAndVariablesInPathsAreExpanded) {
  const auto cache = [&](const std::string& value) {
    return Read({{"HOME", "/home/me/"},
                 {"SCRATCH", "/scratch"},
                 {"USER_1", "me"},
                 {"LOOP", "$SCRATCH"},
                 {"EMPTY", ""},
                 {"HF_HUB_CACHE", value}})
        ->cache_dir;
  };
  EXPECT_EQ(cache("~"), "/home/me");
  EXPECT_EQ(cache("~/hub"), "/home/me/hub");
  EXPECT_EQ(cache("a/~/b"), "a/~/b");
  EXPECT_EQ(cache("~no-such-user/hub"), "~no-such-user/hub");
  EXPECT_EQ(cache("$SCRATCH/hub"), "/scratch/hub");
  EXPECT_EQ(cache("${SCRATCH}/hub-$USER_1"), "/scratch/hub-me");
  EXPECT_EQ(cache("/a/$LOOP/$UNKNOWN/${UNKNOWN}/b"), "/a/$SCRATCH/$UNKNOWN/${UNKNOWN}/b");
  EXPECT_EQ(cache("/a$EMPTY/$/${/$$"), "/a/$/${/$$");
}

TEST_F(HubSettingsTest, WithoutHomeTheAccountHasOne) {
  const Result<HubSettings> settings = Read({});
  ASSERT_TRUE(settings.ok()) << settings.status().message();
  EXPECT_EQ(settings->cache_dir,
            std::string(getpwuid(getuid())->pw_dir) + "/.cache/huggingface/hub");
}

TEST_F(HubSettingsTest, TokenIsTheVariableOrTheFile) {
  EXPECT_EQ(Read({{"HF_HOME", home()}})->token, "");
  directory_.Write("token", " hf_file\n");
  EXPECT_EQ(Read({{"HF_HOME", home()}})->token, "hf_file");
  EXPECT_EQ(Read({{"HF_HOME", home()}, {"HF_TOKEN", "hf_variable\n"}})->token, "hf_variable");
  const std::map<std::string, std::string> older = {{"HF_HOME", home()},
                                                    {"HUGGING_FACE_HUB_TOKEN", "hf_\r\nolder "}};
  EXPECT_EQ(Read(older)->token, "hf_older");
  const auto with = [&older](const char* name, const char* value) {
    std::map<std::string, std::string> variables = older;
    variables[name] = value;
    return variables;
  };
  EXPECT_EQ(Read(with("HF_TOKEN", ""))->token, "hf_older");
  EXPECT_EQ(Read(with("HF_TOKEN", "hf_newer"))->token, "hf_newer");
  EXPECT_EQ(Read(with("HF_TOKEN", " "))->token, "hf_file");
  EXPECT_EQ(Read(with("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1"))->token, "");
}

TEST_F(HubSettingsTest, ValuesThatCannotBeUsedAreNamed) {
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {"HF_TOKEN", "two words", "HF_TOKEN"},
      {"HF_TOKEN", "a\r\nHost: evil", "HF_TOKEN"},
      {"HF_ENDPOINT", "huggingface.co", "HF_ENDPOINT"},
      {"HF_ENDPOINT", "https://a b", "HF_ENDPOINT"},
      {"SSL_CERT_FILE", "/nonexistent", "SSL_CERT_FILE"},
  };
  for (const auto& [name, value, named] : cases) {
    std::map<std::string, std::string> variables = {{"HF_HOME", home()}};
    variables[name] = value;
    const Result<HubSettings> settings = Read(variables);
    ASSERT_FALSE(settings.ok()) << name << " " << value;
    EXPECT_THAT(settings.status().message(), HasSubstr(named));
  }
}

TEST_F(HubSettingsTest, OfflineTakesTheWordsOfHuggingFace) {
  for (const char* on : {"1", "true", "Yes", "ON"})
    EXPECT_TRUE(Read({{"HF_HOME", home()}, {"HF_HUB_OFFLINE", on}})->offline) << on;
  for (const char* off : {"", "0", "false", "2"})
    EXPECT_FALSE(Read({{"HF_HOME", home()}, {"HF_HUB_OFFLINE", off}})->offline) << off;
  const auto both = [&](const char* hub, const char* transformers) {
    return Read({{"HF_HOME", home()},
                 {"HF_HUB_OFFLINE", hub},
                 {"TRANSFORMERS_OFFLINE", transformers}})
        ->offline;
  };
  EXPECT_TRUE(both("", "1"));
  EXPECT_FALSE(both("0", "1"));
}

constexpr char kListedCommit[] = "0123456789abcdef0123456789abcdef01234567";
constexpr char kLargeHash[] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

std::string AnswerWith(const std::string& siblings) {
  return std::string(R"({"sha": ")") + kListedCommit + R"(", "siblings": [)" + siblings + "]}";
}
std::string SmallFile(const std::string& name) {
  return R"({"rfilename": ")" + name + R"(", "size": 9, "blobId": ")" + kListedCommit + R"("})";
}

std::vector<std::string> FileNamesOf(const std::vector<HubFile>& files) {
  std::vector<std::string> names;
  for (const HubFile& file : files) names.push_back(file.name);
  return names;
}

TEST(RepositoryTest, LargeFilesHaveTheSizeAndHashOfTheirContent) {
  const Result<Repository> repository = ParseRepository(
      AnswerWith(SmallFile("config.json") +
                 R"(, {"rfilename": "model.safetensors", "size": 134, "blobId": ")" +
                 kListedCommit + R"(", "lfs": {"sha256": ")" + kLargeHash +
                 R"(", "size": 5000000000}})"),
      "hub");
  ASSERT_TRUE(repository.ok()) << repository.status().message();
  EXPECT_EQ(repository->commit, kListedCommit);
  const HubFile* const weights = repository->Find("model.safetensors");
  ASSERT_NE(weights, nullptr);
  EXPECT_EQ(weights->size, 5'000'000'000u);
  EXPECT_EQ(weights->etag, kLargeHash);
  EXPECT_EQ(repository->Find("config.json")->etag, kListedCommit);
}

TEST(RepositoryTest, OnlyNamesThatTheLoaderOpensAreTaken) {
  std::string files = SmallFile("config.json");
  for (const char* name : {"../x", "/x", "a/b", ".x", "", "additional_chat_templates/../x.jinja",
                           "additional_chat_templates/x.txt", "a\\\\b", "a\\u0000b"}) {
    files += ", " + SmallFile(name);
  }
  const Result<Repository> repository = ParseRepository(
      AnswerWith(files + ", " + SmallFile("additional_chat_templates/tool.jinja")), "hub");
  ASSERT_TRUE(repository.ok()) << repository.status().message();
  EXPECT_THAT(FileNamesOf(repository->files),
              ElementsAre("additional_chat_templates/tool.jinja", "config.json"));
}

TEST(RepositoryTest, AnswersThatAreNoListAreRefused) {
  for (const std::string& text :
       {std::string("<html>"), std::string("[]"), std::string("{}"), AnswerWith(""),
        R"({"sha": "../../evil", "siblings": [)" + SmallFile("config.json") + "]}",
        AnswerWith(R"({"rfilename": ".gitattributes"})"),
        AnswerWith(R"({"rfilename": 1, "size": 1})"), std::string(200, '[')}) {
    EXPECT_FALSE(ParseRepository(text, "hub").ok()) << text;
  }
}

// As mirrors list them; the client asks for what is missing.
TEST(RepositoryTest, FilesWithoutSizeOrHashHaveNoEtag) {
  for (const std::string& members :
       {std::string(), std::string(R"(, "size": 1)"),
        R"(, "blobId": ")" + std::string(kListedCommit) + "\"",
        R"(, "size": -1, "blobId": ")" + std::string(kListedCommit) + "\"",
        std::string(R"(, "size": 1, "blobId": "../../../../../evil")"),
        std::string(R"(, "size": 1, "lfs": {"sha256": "abc"})"),
        std::string(R"(, "size": null)")}) {
    const Result<Repository> repository = ParseRepository(
        AnswerWith(R"({"rfilename": "config.json")" + members + "}"), "hub");
    ASSERT_TRUE(repository.ok()) << members << ": " << repository.status().message();
    EXPECT_EQ(repository->Find("config.json")->etag, "") << members;
  }
}

TEST(RepositoryTest, WeightsAreTheSingleFileBeforeShardsAndNeverPickles) {
  const Result<Repository> both = ParseRepository(
      AnswerWith(SmallFile("config.json") + ", " + SmallFile("model.safetensors") + ", " +
                 SmallFile("model.safetensors.index.json") + ", " + SmallFile("pytorch_model.bin")),
      "hub");
  EXPECT_THAT(FileNamesOf(ConfigFiles(*both, FileUse::kRun)), ElementsAre("config.json"));
  EXPECT_THAT(FileNamesOf(*WeightFiles(*both, FileUse::kRun, "")),
              ElementsAre("model.safetensors"));

  const Result<Repository> pickled = ParseRepository(
      AnswerWith(SmallFile("config.json") + ", " + SmallFile("pytorch_model.bin")), "hub");
  const auto weights = WeightFiles(*pickled, FileUse::kRun, "");
  ASSERT_FALSE(weights.ok());
  EXPECT_THAT(weights.status().message(), HasSubstr("pickled weights (pytorch_model.bin)"));

  const Result<Repository> one = ParseRepository(
      AnswerWith(SmallFile("config.json") + ", " + SmallFile("adam.safetensors")), "hub");
  EXPECT_FALSE(WeightFiles(*one, FileUse::kRun, "").ok());
  EXPECT_THAT(FileNamesOf(*WeightFiles(*one, FileUse::kConvert, "")),
              ElementsAre("adam.safetensors"));
}

TEST(HubErrorsTest, ContentRangeIsReadWholeOrNotAtAll) {
  const std::optional<ByteRange> range = ParseContentRange("bytes 5-9/10");
  ASSERT_TRUE(range.has_value());
  EXPECT_EQ(range->first, 5u);
  EXPECT_EQ(range->size, 10u);
  for (const char* text : {"", "bytes", "bytes 5-9", "bytes 5-9/*", "bytes */10", "bytes -5-9/10",
                           "items 5-9/10", "bytes 5-9/10 ", "bytes 99999999999999999999-1/2"})
    EXPECT_FALSE(ParseContentRange(text).has_value()) << text;
}

}  // namespace
}  // namespace diffserve
