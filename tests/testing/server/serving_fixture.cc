// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/server/serving_fixture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/process/log.h"
#include "server/api/reply/tokenizer_info.h"

namespace diffserve::testing {

ServingOptions::ServingOptions() {
  engine = {.page_size = 16,
            .num_pages = 512,
            .max_model_len = 512,
            .max_num_seqs = 64,
            .max_num_batched_tokens = 512,
            .max_waiting_requests = 256,
            .max_waiting_tokens = 1 << 20};
  http.port = 0;
  routes.model_root = "tiny-root";
  routes.fingerprint = "fp_test";
  routes.tokenizer_info = TokenizerInfoBody(TextDataDir() + "/byte_bpe", {}).value();
  frontend.names.name = "tiny";
  frontend.text_threads = 1;  // so that one text can occupy them all
}

std::string ExampleOf(std::string_view path) {
  if (const size_t id = path.find("{id}"); id != std::string_view::npos)
    return std::string(path).replace(id, 4, "resp_none");
  if (path.size() == 1 || path.back() != '/') return std::string(path);
  return std::string(path) + (path == "/ui/" ? "main.js" : "tiny");
}

ServingFixture::ServingFixture(ServingOptions options)
    : steps(options.hold_steps ? StepGate::State::kClosed : StepGate::State::kOpen) {
  SetLogLevel(LogLevel::kError);
  ServerParts parts;
  parts.tokenizer = options.with_tokenizer ? LoadTokenizerFixture("byte_bpe")
                                           : Tokenizer::Missing();
  if (!options.kv_events.endpoint.empty())
    parts.kv_events = KvEventPublisher::Start(options.kv_events).value();
  if (options.with_template) parts.chat_template = LoadTemplate();
  parts.config = options.config;
  if (options.with_tokenizer) parts.config.vocab_size = parts.tokenizer->vocab_size();
  if (!options.keys.empty()) parts.keys = ApiKeys::FromText(options.keys, "keys").value();
  options.executor.vocab_size = std::min(options.executor.vocab_size, parts.config.vocab_size);
  auto executor = std::make_unique<FakeExecutor>(options.engine, WithGate(options.executor, steps));
  server_ = std::make_unique<Server>(options, std::move(parts), std::move(executor));
  const Status status = server_->Listen();
  EXPECT_TRUE(status.ok()) << status.message();
  tokenizer = &server_->tokenizer();
  engine = &server_->engine();
  frontend = &server_->frontend();
  health = &server_->health();
  metrics = &server_->metrics();
  http = &server_->http();
  grpc_server = server_->grpc();
}

void ServingFixture::StopAll() {
  steps.Open();
  Drain(std::chrono::steady_clock::now());
}

uint64_t ServingFixture::Refused(RefusalReason reason) const {
  return Stats().refused[static_cast<size_t>(reason)];
}

bool ServingFixture::EngineIsEmpty() const {
  return Eventually([this] { return IsEmptyNow(); });
}

bool ServingFixture::BecomesIdle() {
  return Eventually([this] {
    if (IsEmptyNow()) return true;
    steps.Allow(1);
    return false;
  });
}

bool ServingFixture::IsEmptyNow() const {
  const EngineStats stats = Stats();
  return stats.running == 0 && stats.waiting == 0 && stats.pages_used == 0;
}

std::unique_ptr<ChatTemplate> ServingFixture::LoadTemplate() {
  TemporaryDirectory dir;
  for (const char* file : {"tokenizer.json", "tokenizer_config.json"}) {
    dir.Write(file, FileBytes(TextDataDir() + "/byte_bpe/" + file));
  }
  dir.Write("chat_template.jinja",
            "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content }}{% endfor %}"
            "{% if shout %}!{% endif %}{% if add_generation_prompt %}<|assistant|>"
            "{% if reasoning_effort == 'high' %}<think>\n{% endif %}{% endif %}");
  Result<std::unique_ptr<ChatTemplate>> loaded = ChatTemplate::Load(dir.path());
  EXPECT_TRUE(loaded.ok()) << loaded.status().message();
  return loaded.ok() ? std::move(loaded).value() : nullptr;
}

}  // namespace diffserve::testing
