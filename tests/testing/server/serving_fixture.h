// SPDX-License-Identifier: Apache-2.0
// The whole server in one process, HTTP and gRPC on free ports, with the real engine over
// FakeExecutor and a small tokenizer.
#pragma once

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "server/app/server.h"
#include "tests/testing/engine/fake_executor.h"
#include "tests/testing/engine/step_gate.h"
#include "tests/testing/kernels/eventually.h"
#include "tests/testing/text/text_fixture.h"

namespace diffserve::testing {

// For FakeExecutor::Options: any token may be allowed by a constraint.
inline constexpr int kWholeVocab = std::numeric_limits<int>::max();

struct ServingOptions : ServerOptions {
  FakeExecutor::Options executor;
  bool hold_steps = false;            // `steps` starts closed
  ModelConfig config;                 // the vocabulary is the tokenizer's, if there is one
  std::string keys;                   // the text of a key file; empty: none are needed
  KvEventPublisherOptions kv_events;  // an empty endpoint: nothing is published
  bool with_template = true;
  bool with_tokenizer = true;

  ServingOptions();
};

// A concrete path that the route of `path` answers.
std::string ExampleOf(std::string_view path);

class ServingFixture {
 public:
  explicit ServingFixture(ServingOptions options = {});
  ~ServingFixture() { StopAll(); }

  void StopAll();
  // Does what a signal does.
  void Drain(std::chrono::steady_clock::time_point deadline) { server_->Stop(deadline); }

  int port() const { return http->port(); }
  std::vector<BoundRoute> Routes() const { return server_->routes().routes(); }
  int health_port() const { return server_->health_http()->port(); }
  EngineStats Stats() const { return engine->Snapshot(); }

  uint64_t Refused(RefusalReason reason) const;

  // Waits until nothing runs, nothing waits, and no page is held.
  bool EngineIsEmpty() const;
  // The same while steps are held: each check lets one step pass, with which cancelled requests
  // leave.
  bool BecomesIdle();

  StepGate steps;
  // Parts of the server, until StopAll.
  const Tokenizer* tokenizer = nullptr;
  Engine* engine = nullptr;
  Frontend* frontend = nullptr;
  Health* health = nullptr;
  MetricsExporter* metrics = nullptr;
  HttpServer* http = nullptr;
  GrpcServer* grpc_server = nullptr;

 private:
  bool IsEmptyNow() const;
  static std::unique_ptr<ChatTemplate> LoadTemplate();

  std::unique_ptr<Server> server_;
};

}  // namespace diffserve::testing
