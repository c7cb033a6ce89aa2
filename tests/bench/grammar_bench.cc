// SPDX-License-Identifier: Apache-2.0
// grammar_bench [VOCAB]: the time of one mask over a vocabulary of VOCAB tokens (default 128,000),
// on one thread, along texts that each grammar allows. Prints for each grammar the time to compile
// it, and the median and 99th percentile of the time before each token of a mask, a copy and a look
// ahead at what is forced. The vocabulary is made up: every byte, and words, numbers and pieces of
// JSON of the lengths that byte-level BPE has.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "engine/text/grammar.h"

namespace diffserve {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kWalks = 40;
constexpr int kMaxTokens = 120;
constexpr int kMaxForced = 7;

double MicrosecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

std::string JsonEscaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

// GPT-2's alphabet for a byte.
std::string Letter(int byte) {
  const bool prints = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) ||
                      byte >= 0xAE;
  int code = byte;
  if (!prints) {
    code = 0x100;
    for (int b = 0; b < byte; ++b)
      code += !((b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE);
  }
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
}

std::string MadeUpTokenizer(int vocab_size) {
  std::mt19937_64 random(7);
  std::vector<std::string> tokens = {"<|end|>"};
  std::set<std::string> known;
  const auto add = [&](const std::string& text) {
    std::string letters;
    for (const char c : text) letters += Letter(static_cast<unsigned char>(c));
    if (known.insert(letters).second) tokens.push_back(letters);
  };
  for (int byte = 0; byte < 256; ++byte) add(std::string(1, static_cast<char>(byte)));
  for (const char* piece : {"{\"", "\":", "\",", "\"}", "\": \"", "\", \"", "},", "}]", "[{", ": ",
                            ", ", "\n  ", "    ", "\":\"", "\"\n", "true", "false", "null"})
    add(piece);
  for (int number = 0; number < 1000; ++number) add(std::to_string(number));
  while (tokens.size() < static_cast<size_t>(vocab_size)) {
    std::string word = random() % 2 == 0 ? " " : "";
    const size_t length = 2 + random() % 8;
    for (size_t i = 0; i < length; ++i) {
      const uint64_t draw = random() % 100;
      word += draw < 90   ? static_cast<char>('a' + random() % 26)
              : draw < 97 ? static_cast<char>('A' + random() % 26)
                          : "_-.,:/\"({"[random() % 9];
    }
    add(word);
  }
  std::string json =
      R"({"added_tokens":[{"id":0,"content":"<|end|>","special":true,)"
      R"("single_word":false,"lstrip":false,"rstrip":false,"normalized":false}],)"
      R"("decoder":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,)"
      R"("use_regex":true},"model":{"type":"BPE","merges":[],"vocab":{)";
  for (size_t i = 0; i < tokens.size(); ++i)
    json += (i > 0 ? ",\"" : "\"") + JsonEscaped(tokens[i]) + "\":" + std::to_string(i);
  return json + "}}}";
}

void Print(const char* name, std::vector<double>& times) {
  std::ranges::sort(times);
  std::printf("  %-6s median %8.1f us   p99 %8.1f us   max %8.1f us   (%zu)\n", name,
              times[times.size() / 2], times[times.size() * 99 / 100], times.back(), times.size());
}

void Measure(GrammarCompiler& compiler, int vocab_size, const char* name, const GrammarSpec& spec) {
  const Clock::time_point begin = Clock::now();
  const auto made = compiler.Compile(spec);
  std::printf("%s: compiled in %.1f ms\n", name, MicrosecondsSince(begin) / 1000);
  if (!made.ok()) {
    std::printf("  %s\n", made.status().message().c_str());
    return;
  }
  std::vector<double> masks, copies, guesses;
  std::vector<uint32_t> mask(MaskWords(vocab_size));
  for (int i = 0; i < kWalks; ++i) {
    std::mt19937_64 random(static_cast<uint64_t>(i));
    const auto constraint = (*made)->Clone();
    for (int k = 0; k < kMaxTokens; ++k) {
      const Clock::time_point copying = Clock::now();
      const auto copy = constraint->Clone();
      copies.push_back(MicrosecondsSince(copying));
      const Clock::time_point guessing = Clock::now();
      constraint->Forced(kMaxForced);
      guesses.push_back(MicrosecondsSince(guessing));
      const Clock::time_point filling = Clock::now();
      if (!constraint->Fill(mask).ok()) break;
      masks.push_back(MicrosecondsSince(filling));
      std::vector<int32_t> allowed;
      for (int32_t id = 0; id < vocab_size; ++id) {
        if ((mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0) allowed.push_back(id);
      }
      const int32_t token = allowed[random() % allowed.size()];
      if (token == 0 || !constraint->Accept(token).ok()) break;
    }
  }
  Print("mask", masks);
  Print("copy", copies);
  Print("guess", guesses);
}

int Run(int vocab_size) {
  const auto directory = std::filesystem::temp_directory_path() / "diffserve_grammar_bench";
  std::filesystem::create_directories(directory);
  std::ofstream(directory / "tokenizer.json") << MadeUpTokenizer(vocab_size);
  const auto tokenizer = Tokenizer::Load(directory.string());
  std::filesystem::remove_all(directory);
  if (!tokenizer.ok()) {
    std::printf("%s\n", tokenizer.status().message().c_str());
    return 1;
  }
  const Clock::time_point begin = Clock::now();
  const auto compiler = GrammarCompiler::Make(**tokenizer, vocab_size, {0}).value();
  std::printf("%d tokens: tables made in %.0f ms\n", vocab_size, MicrosecondsSince(begin) / 1000);
  using Kind = GrammarSpec::Kind;
  const std::pair<const char*, GrammarSpec> grammars[] = {
      {"json object", {Kind::kJsonObject, "", "bench"}},
      {"schema",
       {Kind::kJsonSchema,
        R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer",)"
        R"("minimum":0,"maximum":150},"mail":{"type":"string","format":"email"},"tags":{"type":)"
        R"("array","items":{"enum":["red","green","blue"]},"maxItems":5},"when":{"type":"string",)"
        R"("format":"date-time"},"note":{"type":"string","maxLength":200}},)"
        R"("required":["name","age","tags"],"additionalProperties":false})",
        "bench"}},
      {"regex", {Kind::kRegex, "[A-Z][a-z]+ [A-Z][a-z]+, [0-9]{1,3}", "bench"}},
      {"choice", {Kind::kChoice, R"(["positive","negative","neutral"])", "bench"}},
      {"ebnf",
       {Kind::kEbnf,
        "root ::= expr\nexpr ::= term ([-+*/] term)*\nterm ::= num | \"(\" expr \")\"\n"
        "num ::= [0-9]+ ws\nws ::= [ ]*\n",
        "bench"}}};
  for (const auto& [name, spec] : grammars) Measure(*compiler, vocab_size, name, spec);
  return 0;
}

}  // namespace
}  // namespace diffserve

int main(int argc, char** argv) { return diffserve::Run(argc > 1 ? std::atoi(argv[1]) : 128000); }
