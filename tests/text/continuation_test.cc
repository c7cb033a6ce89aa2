// SPDX-License-Identifier: Apache-2.0
// The text after a prompt, from the engine's events to a response: decoded as the prompt's
// continuation for stop strings, choices and log-probabilities.
#include <gtest/gtest.h>

#include <random>

#include "engine/text/responses.h"
#include "tests/testing/text/response_client.h"
#include "tests/testing/text/text_fixture.h"

namespace diffserve {
namespace {

using Ids = std::vector<int32_t>;

class ContinuationTest : public ::testing::TestWithParam<std::string> {
 protected:
  // One continuation of each prompt; the engine gives `ids` to all, cut at random.
  void Answer(Client& client, const std::vector<Ids>& prompts, const Ids& ids,
              TokenizedRequest asked) {
    for (const Ids& prompt : prompts) {
      Request request;
      request.prompt = prompt;
      asked.prompts.push_back({request.prompt, ""});
      asked.continuations.push_back(request);
    }
    responses_.Open({.id = ++last_response_, .request_id = "", .stream = client.stream});
    const RequestId first = last_request_ + 1;
    responses_.Submit(last_response_, std::move(asked));
    std::vector<size_t> given(prompts.size(), 0);
    for (size_t left = prompts.size() * ids.size(); left > 0;) {
      const size_t choice = random_() % prompts.size();
      const size_t count = std::min(1 + random_() % 3, ids.size() - given[choice]);
      if (count == 0) continue;
      const auto begin = ids.begin() + static_cast<ptrdiff_t>(given[choice]);
      given[choice] += count;
      left -= count;
      responses_.Take(
          Event(first + choice, {begin, begin + static_cast<ptrdiff_t>(count)},
                given[choice] == ids.size() ? FinishReason::kLength : FinishReason::kNone));
    }
    client.Read();
  }

  std::mt19937 random_{7};
  ResponseId last_response_ = 0;
  RequestId last_request_ = 0;
  const std::unique_ptr<Tokenizer> tokenizer_ = std::move(TokenizerForms().at(GetParam()));
  Responses responses_{*tokenizer_,
                       {.submit =
                            [this](const Request& request) {
                              last_request_ = request.id;
                              return Status();
                            },
                        .cancel = [](RequestId, FinishReason) {},
                        .ended = [](const OpenedResponse&) {}}};
};

std::vector<std::string> FormNames() {
  std::vector<std::string> names;
  const nlohmann::ordered_json forms = Continuations("forms");
  for (const auto& [name, form] : forms.items()) names.push_back(name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Decoders, ContinuationTest, ::testing::ValuesIn(FormNames()),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, ' ');
                           return name;
                         });

TEST_P(ContinuationTest, EachChoiceContinuesItsOwnPrompt) {
  std::map<Ids, std::vector<nlohmann::ordered_json>> by_ids;
  for (const auto& item : Continuations("cases")) {
    if (item["form"] == GetParam() && item["skip_special_tokens"] && !item["ids"].empty())
      by_ids[item["ids"]].push_back(item);
  }
  for (const auto& [ids, items] : by_ids) {
    std::vector<Ids> prompts;
    for (const auto& item : items) prompts.push_back(item["prompt"]);
    Client client;
    Answer(client, prompts, ids, {});
    for (size_t i = 0; i < items.size(); ++i)
      EXPECT_EQ(client.text[static_cast<int>(i)], items[i]["text"].get<std::string>()) << items[i];
  }
}

TEST_P(ContinuationTest, StopStringIsFoundInTheOutputAndNotInThePrompt) {
  for (const auto& item : Continuations("cases")) {
    const std::string text = item["text"], before = item["before"];
    if (item["form"] != GetParam() || text.size() < 4) continue;
    TokenizedRequest asked;
    asked.skip_special_tokens = item["skip_special_tokens"];
    // A stop string at the text's start ends it at once; one that begins in the prompt does not.
    for (const std::string& stop : {text.substr(0, 1), before + text}) {
      if (!IsValidUtf8(stop)) continue;
      Client client;
      asked.stop = {stop};
      Answer(client, {item["prompt"]}, item["ids"], asked);
      const bool stops = text.find(stop) != std::string::npos;
      EXPECT_EQ(client.text[0], stops ? text.substr(0, text.find(stop)) : text) << item;
    }
  }
}

}  // namespace
}  // namespace diffserve
