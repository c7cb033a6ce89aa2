// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iomanip>
#include <sstream>

#include "kernels/base/cuda/device.h"
#include "server/app/help_text.h"
#include "server/app/option_table.h"
#include "server/app/options.h"
#include "tests/testing/kernels/temporary_directory.h"

namespace diffserve {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> CommandsOf(const FlagSpec& flag) {
  std::vector<std::string> commands;
  for (size_t i = 0; i < CommandTable().size(); ++i) {
    if ((flag.commands & (1u << i)) != 0) commands.emplace_back(CommandTable()[i].name);
  }
  return commands;
}

bool IsOfModels(std::string_view name) {
  const auto flag = std::ranges::find(FlagTable(), name, &FlagSpec::name);
  return flag != FlagTable().end() && flag->group == kModelsGroup;
}

// The minimum arguments of a command besides the flag under test.
std::vector<std::string> Arguments(std::string_view command, std::string_view flag) {
  std::vector<std::string> args = {std::string(command)};
  for (const FlagSpec& argument : ArgumentTable()) {
    if (std::ranges::count(CommandsOf(argument), command) != 0)
      args.push_back(argument.value_name == "URL" ? "http://host:80" : "DIR");
  }
  if (command == "chat" && flag == "--url") args.pop_back();  // it replaces MODEL_DIR
  if (command == "serve" && IsOfModels(flag)) args.back() = "--models=x.json";
  if (command == "serve" && flag == "--models") args.pop_back();
  if (command == "chat" && flag == "--api-key-file") args.back() = "--url=http://host:80";
  if (command == "generate" && flag == "--chat") return {"generate", "DIR", "--prompt", "text"};
  const bool is_prompt = flag == "--prompt" || flag == "--tokens";
  if ((command == "logits" || command == "generate") && !is_prompt)
    args.insert(args.end(), {"--tokens", "1"});
  if (command == "logits" && flag != "--output") args.insert(args.end(), {"--output", "x.npy"});
  for (const char* file : {"--input", "--output"}) {
    if (command == "run-batch" && flag != file) args.insert(args.end(), {file, "x.jsonl"});
  }
  return args;
}

bool IsText(const FlagSpec& flag) {
  return flag.allowed.empty() && (flag.Is<std::string>() || flag.Is<std::vector<std::string>>());
}

std::string Number(const FlagSpec& flag, double value) {
  if (!flag.Is<float>()) return std::to_string(static_cast<int64_t>(value));
  std::ostringstream text;
  text << std::setprecision(17) << value;
  return text.str();
}

std::vector<std::string> GoodValues(const FlagSpec& flag) {
  if (!flag.allowed.empty()) return {flag.allowed.begin(), flag.allowed.end()};
  if (flag.Is<bool>()) return {"true", "false"};
  if (flag.is_share_allowed) return {"2G", "512MiB", "0.3", "1"};
  const bool has_range = flag.max > 0;
  if (flag.Is<MemorySize>() && !has_range) return {"2G", "512MiB", "0.5K"};
  if (flag.name == "--cors-origin") return {"*", "https://a.example,http://localhost:3000,null"};
  if (flag.name == "--url") return {"http://host:80", "http://[::1]:8000/v1"};
  if (IsText(flag)) return {"anything"};
  if (flag.Is<uint64_t>()) return {"0", "18446744073709551615"};
  return {Number(flag, flag.min), Number(flag, flag.max)};
}

std::vector<std::string> BadValues(const FlagSpec& flag) {
  if (!flag.allowed.empty() || flag.Is<bool>()) return {"nonsense", ""};
  if (flag.is_share_allowed) return {"2X", "-1", "", "G"};
  const bool has_range = flag.max > 0;
  if (flag.Is<MemorySize>() && !has_range) return {"2X", "-1G", "", "G", "0.3", "1"};
  if (IsText(flag)) return {""};
  if (flag.Is<uint64_t>()) return {"-1", "18446744073709551616", "x"};
  return {Number(flag, flag.min - 1), Number(flag, flag.max + 1), "x", "", "1x", "nan",
          "99999999999999999999999"};
}

Result<Options> Parse(std::vector<std::string> args, std::initializer_list<std::string> more = {}) {
  args.insert(args.end(), more);
  return ParseOptions(args);
}

class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& text) { WriteFile(path(), text); }
  std::string path() const { return directory_.path() / "options.json"; }

 private:
  const TemporaryDirectory directory_;
};

TEST(OptionTableTest, EveryFlagAcceptsItsAllowedValuesForItsCommands) {
  for (const FlagSpec& flag : FlagTable()) {
    for (const std::string& command : CommandsOf(flag)) {
      for (const std::string& value : GoodValues(flag)) {
        const std::string name(flag.name);
        const Result<Options> options = Parse(Arguments(command, flag.name), {name + "=" + value});
        EXPECT_TRUE(options.ok()) << command << " " << name << " " << value << ": "
                                  << options.status().message();
      }
    }
  }
}

TEST(OptionTableTest, EveryFlagRefusesOtherValuesAndNamesTheAllowed) {
  for (const FlagSpec& flag : FlagTable()) {
    const std::string command = CommandsOf(flag).front();
    for (const std::string& value : BadValues(flag)) {
      const std::string name(flag.name);
      const Result<Options> options = Parse(Arguments(command, flag.name), {name + "=" + value});
      ASSERT_FALSE(options.ok()) << command << " " << name << " \"" << value << "\"";
      EXPECT_EQ(options.status().code(), StatusCode::kInvalidArgument);
      EXPECT_EQ(options.status().param(), name);
      EXPECT_THAT(options.status().message(), HasSubstr(name));
      EXPECT_THAT(options.status().message(), HasSubstr("\"" + value + "\""));
      EXPECT_THAT(options.status().message(), HasSubstr(AllowedText(flag)));
    }
  }
}

TEST(OptionTableTest, EveryFlagIsRefusedForOtherCommands) {
  for (const FlagSpec& flag : FlagTable()) {
    for (size_t i = 0; i < CommandTable().size(); ++i) {
      const std::string command(CommandTable()[i].name);
      unsigned commands = 0;
      for (const FlagSpec& other : FlagTable())
        commands |= other.name == flag.name ? other.commands : 0;
      if ((commands & (1u << i)) != 0) continue;
      const Result<Options> options = Parse(Arguments(command, flag.name),
                                            {std::string(flag.name), "1"});
      ASSERT_FALSE(options.ok()) << command << " " << flag.name;
      EXPECT_THAT(options.status().message(),
                  HasSubstr(" is set for " + command + "; allowed: only for "));
    }
  }
}

TEST(OptionTableTest, EveryFlagNeedsAValueUnlessItIsASwitch) {
  for (const FlagSpec& flag : FlagTable()) {
    const std::string command = CommandsOf(flag).front();
    const Result<Options> options = Parse(Arguments(command, flag.name),
                                          {std::string(flag.name), "--log-level=error"});
    EXPECT_EQ(options.ok(), flag.Is<bool>()) << flag.name;
    if (options.ok()) continue;
    EXPECT_THAT(options.status().message(),
                HasSubstr(std::string(flag.name) + " has no value; allowed: " + AllowedText(flag)));
  }
}

TEST(OptionTableTest, UnsupportedValueIsRefusedWithItsReason) {
  int refused = 0;
  for (const FlagSpec& flag : FlagTable()) {
    for (const std::string_view value : flag.refused) {
      const Result<Options> options = Parse({"serve", "DIR"},
                                            {std::string(flag.name), std::string(value)});
      ASSERT_FALSE(options.ok()) << flag.name << " " << value;
      EXPECT_THAT(options.status().message(), HasSubstr(std::string(flag.refusal)));
      EXPECT_THAT(options.status().message(), HasSubstr("allowed: " + AllowedText(flag)));
      ++refused;
    }
  }
  EXPECT_EQ(refused, cuda::IsCompiledIn() ? 2 : 3);
}

TEST(OptionTableTest, HelpShowsEveryFlagWithItsDefault) {
  const std::string help = HelpText();
  for (const FlagSpec& flag : FlagTable()) {
    EXPECT_THAT(help, HasSubstr("  " + std::string(flag.name)));
    if (DefaultText(flag).empty()) continue;
    EXPECT_THAT(help, HasSubstr("(default " + DefaultText(flag) + ")")) << flag.name;
  }
  for (const CommandSpec& command : CommandTable())
    EXPECT_THAT(help, HasSubstr("  diffserve " + std::string(command.name)));
  EXPECT_THAT(help, HasSubstr("  diffserve convert MODEL_DIR NEW_DIR"));
}

TEST(OptionTableTest, HelpOfACommandHasItsFlagsOnly) {
  for (unsigned bit = 1; const CommandSpec& command : CommandTable()) {
    const std::string help = HelpText(command.name);
    for (const FlagSpec& flag : FlagTable()) {
      const bool is_of_command = std::ranges::any_of(FlagTable(), [&](const FlagSpec& other) {
        return other.name == flag.name && (other.commands & bit) != 0;
      });
      EXPECT_EQ(help.find("  " + std::string(flag.name) + " ") != std::string::npos, is_of_command)
          << command.name << flag.name;
    }
    EXPECT_THAT(help, HasSubstr("  diffserve " + std::string(command.name)));
    EXPECT_THAT(help, HasSubstr("\nDocuments: "));
    bit *= 2;
  }
}

TEST(OptionsTest, DefaultsMatchTheInterface) {
  const Result<Options> parsed = Parse({"serve", "DIR"});
  ASSERT_TRUE(parsed.ok());
  const Options& o = *parsed;
  EXPECT_EQ(o.command, "serve");
  EXPECT_EQ(o.session.model_dir, "DIR");
  EXPECT_EQ(o.serve.host, "127.0.0.1");
  EXPECT_EQ(o.serve.port, 8000);
  EXPECT_EQ(o.serve.grpc_port, 8001);
  EXPECT_EQ(o.session.engine.max_num_seqs, 256);
  EXPECT_EQ(o.session.engine.max_num_batched_tokens, 2048);
  EXPECT_EQ(o.session.engine.page_size, 0);
  EXPECT_EQ(o.serve.drain_timeout_s, 45);
  EXPECT_TRUE(o.session.engine.enable_prefix_caching);
  EXPECT_EQ(o.session.speculation, Speculation::kAuto);
  EXPECT_FALSE(o.session.dtype.has_value());
}

TEST(OptionsTest, ChatSamplesAsGenerateDoesWithItsOwnLength) {
  const Result<Options> chat = Parse({"chat", "DIR"});
  ASSERT_TRUE(chat.ok()) << chat.status().message();
  EXPECT_EQ(chat->chat.max_tokens, 0);
  EXPECT_EQ(chat->generate.sampling.temperature, 0);
  const Result<Options> server = Parse(
      {"chat", "--url", "http://host:80/v1"},
      {"--seed", "7", "--top-p", "0.5", "--max-tokens", "9", "--system", "Be brief."});
  ASSERT_TRUE(server.ok()) << server.status().message();
  EXPECT_EQ(server->session.seed, 7u);
  EXPECT_EQ(server->generate.sampling.top_p, 0.5f);
  EXPECT_EQ(server->chat.max_tokens, 9);
  EXPECT_EQ(server->generate.max_tokens, GenerateOptions().max_tokens);
}

TEST(OptionsTest, ValuesAreStoredInTheirOptions) {
  const Result<Options> parsed = Parse(
      {"bench", "--batch=2,8", "DIR", "--prompt", "32"},
      {"--dtype", "float16", "--kv-cache-dtype=float32", "--load-format", "dummy", "--seed",
       "18446744073709551615", "--json", "--threads", "3"});
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_THAT(parsed->bench.batch, ElementsAre(2, 8));
  EXPECT_THAT(parsed->bench.prompt, ElementsAre(32));
  EXPECT_TRUE(parsed->bench.depth.empty());
  EXPECT_TRUE(parsed->prompt.text.empty());
  EXPECT_EQ(parsed->session.dtype, DType::kFloat16);
  EXPECT_EQ(parsed->session.kv_cache_dtype, DType::kFloat32);
  EXPECT_TRUE(parsed->session.dummy_weights);
  EXPECT_TRUE(parsed->json);
  EXPECT_EQ(parsed->session.seed, ~uint64_t{0});
  EXPECT_EQ(parsed->session.threads, 3);
  const Result<Options> generate = Parse({"generate", "DIR", "--tokens", "1"},
                                         {"--kv-cache-dtype-skip-layers", "-1"});
  EXPECT_THAT(generate->session.kv_cache_skip_layers, ElementsAre(-1));
}

TEST(OptionsTest, PromptLookupIsChosenByItsName) {
  const Result<Options> parsed = Parse({"serve", "DIR"}, {"--speculative", "prompt-lookup"});
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ(parsed->session.speculation, Speculation::kPromptLookup);
  EXPECT_EQ(Parse({"serve", "DIR"}, {"--speculative=off"})->session.speculation, Speculation::kOff);
}

TEST(OptionsTest, DraftModelImpliesPromptLookup) {
  const Result<Options> parsed = Parse({"serve", "DIR"}, {"--speculative-model", "hf:A/B"});
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ(parsed->session.speculation, Speculation::kPromptLookup);
  EXPECT_EQ(parsed->session.draft_dir, "hf:A/B");
  EXPECT_FALSE(
      Parse({"serve", "DIR"}, {"--speculative-model", "DIR2", "--speculative", "off"}).ok());
}

TEST(OptionsTest, AttentionLogitsAreRoundedOnlyOnRequest) {
  const auto logits = [](std::initializer_list<std::string> flags) {
    return Parse({"serve", "DIR"}, flags)->session.logit_quant;
  };
  EXPECT_FALSE(logits({}).is_on());
  EXPECT_FALSE(logits({"--attention-logit-bits=none"}).is_on());
  EXPECT_EQ(logits({"--attention-logit-bits=4"}).bits, 4);
  EXPECT_EQ(logits({"--attention-logit-bits=4"}).scale, LogitScale::kRow);
  EXPECT_EQ(logits({"--attention-logit-bits", "6:anchored"}).bits, 6);
  EXPECT_EQ(logits({"--attention-logit-bits", "6:anchored"}).scale, LogitScale::kAnchored);
  EXPECT_EQ(logits({"--attention-logit-bits", "8:tile"}).scale, LogitScale::kTile);
  const Result<Options> refused = Parse({"serve", "DIR"}, {"--attention-logit-bits=5"});
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(), HasSubstr("--attention-logit-bits"));
}

TEST(OptionsTest, NoPrefixTurnsASwitchOff) {
  const auto caches = [](std::initializer_list<std::string> flags) {
    return Parse({"serve", "DIR"}, flags)->session.engine.enable_prefix_caching;
  };
  EXPECT_FALSE(caches({"--no-enable-prefix-caching"}));
  EXPECT_TRUE(caches({"--no-enable-prefix-caching", "--enable-prefix-caching"}));
  EXPECT_FALSE(Parse({"serve", "DIR"}, {"--no-enable-prefix-caching=true"}).ok());
  EXPECT_FALSE(Parse({"serve", "DIR"}, {"--no-port"}).ok());
}

TEST(OptionsTest, WrongUsageNamesTheError) {
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{}, "a command is missing"},
      {{"sevre", "DIR"},
       "\"sevre\" is not a command; allowed: serve, logits, generate, chat, bench, inspect, "
       "convert, probe, completion, models, run-batch, devices; see diffserve --help; did you mean "
       "serve?"},
      {{"models", "DIR"}, "found \"DIR\" after models; allowed: flags only"},
      {{"launch", "DIR"}, "\"launch\" is not a command; allowed: serve, logits"},
      {{"run", "DIR"}, "did you mean diffserve chat MODEL_DIR?"},
      {{"list"}, "did you mean diffserve models?"},
      {{"pull", "ORG/NAME"}, "did you mean diffserve inspect hf:ORG/NAME, which fetches it?"},
      {{"serve"},
       "MODEL_DIR is missing; allowed: diffserve serve MODEL_DIR; diffserve serve demo takes the "
       "bundled "
       "model"},
      {{"serve", ""}, "an argument is empty; allowed: MODEL_DIR"},
      {{"serve", "A", "B"}, "found \"B\" after MODEL_DIR \"A\""},
      {{"convert"}, "MODEL_DIR is missing"},
      {{"convert", "A"}, "NEW_DIR is missing; allowed: diffserve convert MODEL_DIR NEW_DIR"},
      {{"convert", "A", "B", "C"},
       "found \"C\" after NEW_DIR \"B\"; allowed: one MODEL_DIR NEW_DIR"},
      {{"completion"}, "SHELL is missing; allowed: diffserve completion SHELL"},
      {{"completion", "csh"}, "\"csh\"; allowed: bash, zsh, fish"},
      {{"probe"}, "URL is missing; allowed: diffserve probe URL"},
      {{"probe", "localhost:80"}, "URL is \"localhost:80\"; allowed: http://HOST:PORT[/PATH]"},
      {{"probe", "http://h:80", "more"}, "found \"more\" after URL \"http://h:80\""},
      {{"convert", "A", "B", "--port", "1"}, "--port is set for convert; allowed: only for serve"},
      {{"serve", "DIR", "--prot", "1"}, "--prot is not a flag: did you mean --port?"},
      {{"serve", "DIR", "--temprature", "1"}, "--temprature is not a flag; diffserve --help"},
      {{"generate", "DIR", "--temprature", "1"}, "did you mean --temperature?"},
      {{"serve", "DIR", "--no-enable-prefix-cachign"}, "did you mean --no-enable-prefix-caching?"},
      {{"serve", "DIR", "--hlep"}, "did you mean --help?"},
      {{"serve", "DIR", "-port", "1"}, "-port is not a flag: did you mean --port?"},
      {{"serve", "DIR", "-p", "1"}, "-p is not a flag; diffserve --help lists all flags"},
      {{"generate", "DIR"}, "exactly one of --prompt, --tokens"},
      {{"generate", "DIR", "--prompt", "a", "--tokens", "1"}, "found 2 prompts"},
      {{"generate", "DIR", "--tokens", "1", "--chat"},
       "--chat is set; allowed: only with --prompt"},
      {{"chat"}, "MODEL_DIR is missing; allowed: diffserve chat MODEL_DIR"},
      {{"chat", "DIR", "--url", "http://h:80"},
       "MODEL_DIR and --url are set; allowed: one of them"},
      {{"chat", "--url", "https://h:80"},
       "--url is \"https://h:80\": https is not offered; allowed: http://HOST:PORT"},
      {{"chat", "--url", "http://h:80/v2"}, "--url is \"http://h:80/v2\"; allowed: http://HOST"},
      {{"chat", "DIR", "--api-key-file", "keys"},
       "--api-key-file is set; allowed: only with --url"},
      {{"chat", "--url", "http://h:80", "--device", "cpu"},
       "--device is set with chat --url; allowed: only for the server"},
      {{"logits", "DIR", "--tokens", "1"}, "--output is missing"},
      {{"logits", "DIR", "--output", "x"}, "exactly one of --prompt, --tokens"},
  };
  for (const auto& [args, message] : cases) {
    const Result<Options> options = ParseOptions(args);
    ASSERT_FALSE(options.ok()) << message;
    EXPECT_EQ(options.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(options.status().message(), HasSubstr(message));
  }
}

TEST(OptionsTest, HelpAndVersionNeedNoOtherArgument) {
  EXPECT_EQ(Parse({"--help"})->command, "help");
  EXPECT_EQ(Parse({"serve", "--help"})->command, "help");
  EXPECT_EQ(Parse({"serve", "--prot", "--help"})->command, "help");
  EXPECT_EQ(Parse({"--version"})->command, "version");
  EXPECT_EQ(Parse({"--help"})->help_of, "");
  for (const auto& asked : {Parse({"bench", "--help"}), Parse({"bench", "DIR", "-h"}),
                            Parse({"help", "bench"}), Parse({"bench", "--prot", "--help"})}) {
    EXPECT_EQ(asked->command, "help");
    EXPECT_EQ(asked->help_of, "bench");
  }
}

TEST(OptionsTest, VersionIsLinesOfKeysAndValues) {
  std::vector<std::string> keys;
  std::istringstream text(VersionText());
  for (std::string line; std::getline(text, line);) {
    const size_t colon = line.find(": ");
    ASSERT_NE(colon, std::string::npos) << line;
    EXPECT_LT(colon + 2, line.size()) << line;
    if (line.substr(0, colon) != "cuda compiler") keys.push_back(line.substr(0, colon));
  }
  EXPECT_THAT(keys, ElementsAre("version", "commit", "c++ compiler", "kernel compiler", "backends",
                                "cpu levels", "cpu level"));
  EXPECT_THAT(VersionText(),
              HasSubstr(kBaseCpuIsa == CpuIsa::kNeon
                            ? "cpu levels: neon, neon_dot, neon_bf16\n"
                            : "cpu levels: plain, avx2, avx512, avx512_vnni, avx512_bf16\n"));
  EXPECT_EQ(VersionText().find("cuda compiler: ") != std::string::npos, cuda::IsCompiledIn());
}

TEST(OptionsTest, FlagsOverrideTheConfigFile) {
  const TemporaryFile file(
      R"({"port": 9000, "grpc_port": 9001, "enable-prefix-caching": false, "temperature": 0.5,
                               "batch": [1, 2], "host": "0.0.0.0"})");
  const Result<Options> serve = Parse({"serve", "DIR", "--port", "7000", "--config", file.path()});
  ASSERT_TRUE(serve.ok()) << serve.status().message();
  EXPECT_EQ(serve->serve.port, 7000);
  EXPECT_EQ(serve->serve.grpc_port, 9001);
  EXPECT_EQ(serve->serve.host, "0.0.0.0");
  EXPECT_FALSE(serve->session.engine.enable_prefix_caching);
  EXPECT_EQ(serve->generate.sampling.temperature, 0);  // belongs to generate
  const Result<Options> bench = Parse({"bench", "DIR", "--config=" + file.path()});
  ASSERT_TRUE(bench.ok());
  EXPECT_THAT(bench->bench.batch, ElementsAre(1, 2));
}

TEST(OptionsTest, ConfigFileMayNameTheArguments) {
  const TemporaryFile file(R"({"model_dir": "/models/a", "new-dir": "/models/b"})");
  EXPECT_EQ(Parse({"serve", "--config", file.path()})->session.model_dir, "/models/a");
  EXPECT_EQ(Parse({"serve", "DIR", "--config", file.path()})->session.model_dir, "DIR");
  EXPECT_EQ(Parse({"convert", "--config", file.path()})->conversion.new_dir, "/models/b");
  const TemporaryFile server(R"({"url": "http://host:80"})");
  EXPECT_EQ(Parse({"probe", "--config", server.path()})->probe.url, "http://host:80");
  EXPECT_EQ(Parse({"chat", "--config", server.path()})->chat.url, "http://host:80");
}

TEST(OptionsTest, ModelMayHaveSeveralNames) {
  const auto names = [](std::vector<std::string> args) {
    return Parse(std::move(args)).value().serve.served_model_names;
  };
  EXPECT_THAT(names({"serve", "DIR"}), ElementsAre());
  EXPECT_THAT(names({"serve", "DIR", "--served-model-name", "a"}), ElementsAre("a"));
  EXPECT_THAT(names({"serve", "DIR", "--served-model-name", "a", "b", "--no-ui"}),
              ElementsAre("a", "b"));
  EXPECT_THAT(
      names({"serve", "--served-model-name", "a", "DIR", "--served-model-name=b", "c", "a"}),
      ElementsAre("a", "b", "c"));
  const TemporaryFile file(R"({"served_model_name": ["x", "y"]})");
  EXPECT_THAT(names({"serve", "DIR", "--config", file.path()}), ElementsAre("x", "y"));
  EXPECT_THAT(names({"serve", "DIR", "--config", file.path(), "--served-model-name", "a"}),
              ElementsAre("a"));
  EXPECT_FALSE(Parse({"serve", "DIR", "b", "--served-model-name", "a"}).ok());
  EXPECT_FALSE(Parse({"serve", "DIR", "--served-model-name"}).ok());
}

TEST(OptionsTest, InvalidConfigFileIsRefusedByName) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"prot": 1})", "--prot is not a flag: did you mean --port?"},
      {R"({"temprature": 1})", "did you mean --temperature?"},  // of another command
      {R"({"model_dri": "x"})", "did you mean --model-dir?"},
      {R"({"flavour": 1})", "--flavour is not a flag; diffserve --help lists all flags"},
      {R"({"port": 70000})", "--port is \"70000\"; allowed: 0 to 65535"},
      {R"({"port": null})", "--port is a JSON null"},
      {R"({"port": {"a": 1}})", "--port is a JSON object"},
      {R"({"host": ["a", "b"]})", "--host is a JSON array; allowed: text, not empty"},
      {R"({"port": {"a": {"b": 1}}})", " holds nested JSON; allowed: one flat JSON object"},
      {R"({"model_dir": ""})", "--model-dir is \"\"; allowed: text, not empty"},
      {R"({"model_dir": 7})", "--model-dir is a JSON number; allowed: text, not empty"},
      {"[1]", " holds a JSON array; allowed: one flat JSON object"},
      {"{", " holds no valid JSON; allowed: one flat JSON object"},
      {R"({"kv_cache_dtype": "fp8_e5m2"})", "this build has no KV cache in this format; fp8_e4m3"},
  };
  for (const auto& [text, message] : cases) {
    const TemporaryFile file(text);
    const Result<Options> options = Parse({"serve", "DIR", "--config", file.path()});
    ASSERT_FALSE(options.ok()) << text;
    EXPECT_THAT(options.status().message(), HasSubstr(file.path()));
    EXPECT_THAT(options.status().message(), HasSubstr(message));
  }
  EXPECT_THAT(Parse({"serve", "DIR", "--config", "/nonexistent.json"}).status().message(),
              HasSubstr("/nonexistent.json"));
}

TEST(OptionsTest, MemorySizesHaveSuffixesOrAreShares) {
  EXPECT_EQ(ParseMemorySize("512")->bytes, 512);
  EXPECT_EQ(ParseMemorySize("2K")->bytes, 2000);
  EXPECT_EQ(ParseMemorySize("2KiB")->bytes, 2048);
  EXPECT_EQ(ParseMemorySize("1.5GiB")->bytes, int64_t{3} << 29);
  EXPECT_EQ(ParseMemorySize("3TB")->bytes, 3'000'000'000'000);
  EXPECT_EQ(ParseMemorySize("0.25")->share, 0.25);
  EXPECT_EQ(ParseMemorySize("1")->share, 1);
  for (const char* bad : {"", "0", "-1", "x", "1e3", "2gib", "99999999999T", "inf", "nan"})
    EXPECT_FALSE(ParseMemorySize(bad).has_value()) << bad;
}

TEST(OptionsTest, TokenIdsAreSeparatedByCommasOrWhiteSpace) {
  EXPECT_THAT(*ParseTokenIds("1,2,3", "--tokens"), ElementsAre(1, 2, 3));
  EXPECT_THAT(*ParseTokenIds(" 1\n2\t3\r\n", "--tokens"), ElementsAre(1, 2, 3));
  for (const char* bad : {"", " ", "1,x", "-1", "2147483648", "1.5"}) {
    const auto ids = ParseTokenIds(bad, "--tokens");
    ASSERT_FALSE(ids.ok()) << bad;
    EXPECT_EQ(ids.status().param(), "--tokens");
  }
}

}  // namespace
}  // namespace diffserve
