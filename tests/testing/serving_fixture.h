// The whole server in one process: HTTP on a free port, routes, frontend, the real engine over
// FakeExecutor, and a small tokenizer.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/text/chat_template.h"
#include "engine/text/output_loop.h"
#include "engine/text/tokenizer.h"
#include "kernels/base/log.h"
#include "server/api_key.h"
#include "server/frontend.h"
#include "server/health.h"
#include "server/http/server.h"
#include "server/openai/routes.h"
#include "tests/testing/eventually.h"
#include "tests/testing/fake_executor.h"
#include "tests/testing/step_gate.h"
#include "tests/testing/text_fixture.h"

namespace diffserve::testing {

struct ServingOptions {
  EngineOptions engine{.page_size = 16,
                       .num_pages = 512,
                       .max_model_len = 512,
                       .max_num_seqs = 64,
                       .max_num_batched_tokens = 512,
                       .enable_prefix_caching = true,
                       .max_waiting_requests = 256,
                       .max_waiting_tokens = 1 << 20};
  FakeExecutor::Options executor;
  bool hold_steps = false;  // `steps` is closed at first
  FrontendOptions frontend;
  HttpServerOptions http;
  OpenAiRoutesOptions routes;
  std::vector<int32_t> eos_token_ids;
  std::string keys;  // the text of a key file
  bool with_template = true;

  ServingOptions() {
    http.port = 0;
    routes.model_root = "tiny-root";
    routes.fingerprint = "fp_test";
    frontend.served_model_name = "tiny";
  }
};

class ServingFixture {
 public:
  explicit ServingFixture(ServingOptions options = {})
      : steps(options.hold_steps ? StepGate::State::kClosed : StepGate::State::kOpen) {
    SetLogLevel(LogLevel::kError);
    tokenizer = LoadTokenizerFixture("byte_bpe");
    if (options.with_template) LoadTemplate();
    config.vocab_size = tokenizer->vocab_size();
    config.eos_token_ids = options.eos_token_ids;
    if (!options.keys.empty()) keys = ApiKeys::FromText(options.keys, "keys").value();
    output = std::make_unique<OutputLoop>(
        *tokenizer, 1024, [this](RequestId id, FinishReason as) { engine->Cancel(id, as); });
    engine = std::make_unique<Engine>(
        options.engine,
        std::make_unique<FakeExecutor>(options.engine, WithGate(options.executor, steps)),
        [this](TokenEvent event) { output->Post(std::move(event)); });
    frontend = std::make_unique<Frontend>(options.frontend, config, *tokenizer, chat_template.get(),
                                          *engine, *output);
    health = std::make_unique<Health>([this] { return engine->Snapshot(); });
    if (!options.routes.metrics_text)
      options.routes.metrics_text = [] { return std::string("diffserve_up 1\n"); };
    routes = std::make_unique<OpenAiRoutes>(options.routes, *frontend, *health, keys);
    http = std::make_unique<HttpServer>(options.http, routes->Service());
    const Status status = http->Start();
    EXPECT_TRUE(status.ok()) << status.message();
  }
  ~ServingFixture() { StopAll(); }

  void StopAll() {
    http.reset();
    frontend.reset();
    if (engine) engine->Fail("the test is over");  // from here on no event is delivered
    output.reset();
    steps.Open();
    engine.reset();
  }

  int port() const { return http->port(); }
  EngineStats Stats() const { return engine->Snapshot(); }

  uint64_t Refused(RefusalReason reason) const {
    return Stats().refused[static_cast<size_t>(reason)];
  }

  // Nothing runs, nothing waits, no page is held.
  bool EngineIsEmpty() const {
    return Eventually([this] {
      const EngineStats stats = Stats();
      return stats.running == 0 && stats.waiting == 0 && stats.pages_used == 0;
    });
  }

  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<ChatTemplate> chat_template;
  ModelConfig config;
  ApiKeys keys;
  StepGate steps;
  std::unique_ptr<OutputLoop> output;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Frontend> frontend;
  std::unique_ptr<Health> health;
  std::unique_ptr<OpenAiRoutes> routes;
  std::unique_ptr<HttpServer> http;

 private:
  void LoadTemplate() {
    TemporaryModelDir dir;
    for (const char* file : {"tokenizer.json", "tokenizer_config.json"}) {
      dir.Write(file, ReadTextFile(TextDataDir() + "/byte_bpe/" + file));
    }
    dir.Write("chat_template.jinja",
              "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content }}{% endfor %}"
              "{% if shout %}!{% endif %}{% if add_generation_prompt %}<|assistant|>{% endif %}");
    Result<std::unique_ptr<ChatTemplate>> loaded = ChatTemplate::Load(dir.path());
    EXPECT_TRUE(loaded.ok()) << loaded.status().message();
    if (loaded.ok()) chat_template = std::move(loaded).value();
  }
};

}  // namespace diffserve::testing
