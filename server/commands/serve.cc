// `diffserve serve`: loads, listens on both ports, prints the ready line, waits for a signal and
// drains.
#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>

#include "engine/engine.h"
#include "engine/text/chat_template.h"
#include "engine/text/output_loop.h"
#include "engine/text/tokenizer.h"
#include "server/api_key.h"
#include "server/commands/commands.h"
#include "server/commands/model_session.h"
#include "server/frontend.h"
#include "server/grpc/server.h"
#include "server/health.h"
#include "server/http/server.h"
#include "server/kv_event_publisher.h"
#include "server/metrics_exporter.h"
#include "server/openai/routes.h"

namespace diffserve {
namespace {

using std::chrono::steady_clock;

constexpr size_t kOutboxEvents = 8192;
constexpr std::chrono::seconds kLastReplies{2};  // for answers under way when the drain is over
constexpr timespec kHealthPeriod{.tv_sec = 1, .tv_nsec = 0};  // how often gRPC's health service
                                                              // follows Health

// What is read from the model directory beside the weights.
struct TextFiles {
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<ChatTemplate> chat_template;  // nullptr: the model has none
};

Result<TextFiles> LoadTextFiles(const std::string& model_dir) {
  Result<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Load(model_dir);
  if (!tokenizer.ok()) return tokenizer.status();
  Result<std::unique_ptr<ChatTemplate>> chat_template = ChatTemplate::Load(model_dir);
  if (!chat_template.ok()) return chat_template.status();
  return TextFiles{std::move(tokenizer).value(), std::move(chat_template).value()};
}

std::string ServedName(const Options& options) {
  if (!options.served_model_name.empty()) return options.served_model_name;
  std::error_code error;
  std::filesystem::path path = std::filesystem::canonical(options.model_dir, error);
  if (error) path = options.model_dir;
  return path.filename().string();
}

// Blocks the signals in this thread and in those it starts, so that WaitForSignal alone takes them.
sigset_t BlockSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  return signals;
}

// Debian's gRPC stops listening for good once file descriptors run out, so the process takes all
// that it may.
void RaiseFileLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

bool IsLoopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

// All parts of a running server, in the order in which they depend on one another.
class Server {
 public:
  static Result<std::unique_ptr<Server>> Start(const Options& options, const ExecutorWrapper& wrap);
  ~Server() { Stop(steady_clock::now()); }

  // Returns when one of the signals has come, or with an error when the engine has failed: nothing
  // will ever be answered again.
  Status WaitForSignal(const sigset_t& signals) {
    while (sigtimedwait(&signals, nullptr, &kHealthPeriod) < 0) {
      grpc_->SetServing(health_.Ready().ok());
      if (engine_.Snapshot().failed) return Status(StatusCode::kInternal, "the engine has failed");
    }
    return {};
  }

  // Not ready at once; running work goes on until `deadline`, then ends with an error event.
  void Stop(steady_clock::time_point deadline) {
    if (stopped_) return;
    stopped_ = true;
    health_.BeginDrain();
    if (grpc_ != nullptr) grpc_->SetServing(false);
    engine_.Drain(deadline);
    engine_.Fail("the server has stopped");  // a step that still runs delivers nothing any more
    if (http_ != nullptr) http_->Stop(kLastReplies);
    if (grpc_ != nullptr) grpc_->Shutdown(steady_clock::now() + kLastReplies);
    grpc_.reset();
    http_.reset();
    routes_.reset();
    frontend_.reset();
    output_.reset();  // before the engine, which it cancels into
  }

  std::string ReadyLine(const std::string& host) const {
    const std::string shown = host.find(':') == std::string::npos ? host : "[" + host + "]";
    return "ready http=" + shown + ":" + std::to_string(http_->port()) + " grpc=" + shown + ":" +
           std::to_string(grpc_->port()) + " model=" + frontend_->options().served_model_name;
  }

 private:
  Server(const Options& options, std::unique_ptr<ModelSession> session, const ExecutorWrapper& wrap,
         std::unique_ptr<KvEventPublisher> kv_events, TextFiles text, ApiKeys keys,
         ServedModelInfo info)
      : session_(std::move(session)),
        config_(session_->plan().summary.config),
        text_(std::move(text)),
        keys_(std::move(keys)),
        kv_events_(std::move(kv_events)),
        engine_(
            session_->MakeEngineOptions(options),
            wrap ? wrap(session_->MakeExecutor()) : session_->MakeExecutor(),
            [this](TokenEvent event) { output_->Post(std::move(event)); },
            kv_events_ == nullptr
                ? Engine::KvEventSink()
                : [this](std::vector<KvEvent> events) { kv_events_->Publish(std::move(events)); }),
        health_([this] { return engine_.Snapshot(); }),
        metrics_(std::move(info), [this] { return Stats(); }) {
    output_ = std::make_unique<OutputLoop>(
        *text_.tokenizer, kOutboxEvents,
        [this](RequestId id, FinishReason as) { engine_.Cancel(id, as); });
  }

  Status Listen(const Options& options);
  EngineStats Stats() const {
    EngineStats stats = engine_.Snapshot();
    const KvEventCounts counts = kv_events_ == nullptr ? KvEventCounts() : kv_events_->counts();
    stats.kv_events_published = counts.published;
    stats.kv_events_dropped = counts.dropped;
    return stats;
  }

  const std::unique_ptr<ModelSession> session_;
  const ModelConfig& config_;
  const TextFiles text_;
  const ApiKeys keys_;
  const std::unique_ptr<KvEventPublisher> kv_events_;  // nullptr: no KV event is published
  std::unique_ptr<OutputLoop> output_;  // made once there is an engine; no event comes before a
                                        // request does
  Engine engine_;
  Health health_;
  MetricsExporter metrics_;
  std::unique_ptr<Frontend> frontend_;
  std::unique_ptr<OpenAiRoutes> routes_;
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<GrpcServer> grpc_;
  bool stopped_ = false;
};

ServedModelInfo MakeInfo(const Options& options, const std::string& name, ModelSession& session) {
  const SessionPlan& plan = session.plan();
  ServedModelInfo info;
  info.model_name = name;
  info.version = BuildVersion();
  info.commit = BuildCommit();
  info.device = plan.device_name;
  info.cpu_isa = NameOf(plan.isa);
  info.dtype = NameOf(plan.summary.weight_format);
  info.kv_cache_dtype = NameOf(plan.layout.codec.dtype);
  info.page_size = plan.layout.page_size;
  info.num_pages = plan.num_pages;
  info.max_model_len = plan.max_model_len;
  info.prefix_caching = options.enable_prefix_caching;
  info.lambdas = session.model().Lambdas();
  info.lambda_inits = plan.summary.config.lambda_init;
  return info;
}

Result<std::unique_ptr<KvEventPublisher>> StartKvEvents(const Options& options, int page_size) {
  constexpr char kFlag[] = "--kv-events-endpoint";
  if (options.kv_events_endpoint.empty()) {
    if (options.kv_events_replay_endpoint.empty() && options.kv_events_topic.empty())
      return std::unique_ptr<KvEventPublisher>();
    return InvalidArgument("--kv-events-endpoint is missing: without it no KV event is published",
                           kFlag);
  }
  if (!options.enable_prefix_caching) {
    return InvalidArgument(
        "--kv-events-endpoint needs the prefix cache, which --no-enable-prefix-caching turns off",
        kFlag);
  }
  KvEventPublisherOptions publisher;
  publisher.endpoint = options.kv_events_endpoint;
  publisher.replay_endpoint = options.kv_events_replay_endpoint;
  publisher.topic = options.kv_events_topic;
  publisher.page_size = page_size;
  Result<std::unique_ptr<KvEventPublisher>> started = KvEventPublisher::Start(std::move(publisher));
  if (started.ok()) {
    const KvEventPublisher& kv_events = **started;
    Log(LogLevel::kInfo, "kv_events",
        {{"endpoint", kv_events.endpoint()}, {"replay_endpoint", kv_events.replay_endpoint()}});
  }
  return started;
}

Result<std::unique_ptr<Server>> Server::Start(const Options& options, const ExecutorWrapper& wrap) {
  ApiKeys keys;
  if (!options.api_key_file.empty()) {
    Result<ApiKeys> loaded = ApiKeys::Load(options.api_key_file);
    if (!loaded.ok()) return loaded.status();
    keys = std::move(loaded).value();
  }
  Result<SessionPlan> plan = PlanSession(options, &ServeDemand);
  if (!plan.ok()) return plan.status();
  Result<std::unique_ptr<KvEventPublisher>> kv_events = StartKvEvents(options,
                                                                      plan->layout.page_size);
  if (!kv_events.ok()) return kv_events.status();
  Result<TextFiles> text = LoadTextFiles(options.model_dir);
  if (!text.ok()) return text.status();
  Result<std::unique_ptr<ModelSession>> session = ModelSession::Load(options,
                                                                     std::move(plan).value());
  if (!session.ok()) return session.status();
  ServedModelInfo info = MakeInfo(options, ServedName(options), **session);
  std::unique_ptr<Server> server(new Server(options, std::move(session).value(), wrap,
                                            std::move(kv_events).value(), std::move(text).value(),
                                            std::move(keys), std::move(info)));
  DS_RETURN_IF_ERROR(server->Listen(options));
  return server;
}

Status Server::Listen(const Options& options) {
  FrontendOptions frontend;
  frontend.served_model_name = ServedName(options);
  frontend.text_threads = std::max(1, AvailableCpus() / 4);
  frontend_ = std::make_unique<Frontend>(frontend, config_, *text_.tokenizer,
                                         text_.chat_template.get(), engine_, *output_);

  OpenAiRoutesOptions routes;
  routes.model_root = options.model_dir;
  routes.strict = options.strict;
  routes.loopback_hosts_only = IsLoopback(options.host) && !keys_.required();
  routes.metrics_text = [this] { return metrics_.Render(); };
  routes.on_reply = [this](std::string_view route, int status) {
    metrics_.CountHttp(route, status);
  };
  routes_ = std::make_unique<OpenAiRoutes>(std::move(routes), *frontend_, health_, keys_);

  HttpServerOptions http;
  http.host = options.host;
  http.port = options.port;
  http_ = std::make_unique<HttpServer>(http, routes_->Service());
  DS_RETURN_IF_ERROR(http_->Start());

  GrpcServerOptions grpc;
  grpc.host = options.host;
  grpc.port = options.grpc_port;
  Result<std::unique_ptr<GrpcServer>> started = GrpcServer::Start(grpc, *frontend_, keys_,
                                                                  &metrics_);
  if (!started.ok()) return started.status();
  grpc_ = std::move(started).value();
  return {};
}

}  // namespace

Status RunServe(const Options& options, const ExecutorWrapper& wrap) {
  const sigset_t signals = BlockSignals();
  RaiseFileLimit();
  Result<std::unique_ptr<Server>> server = Server::Start(options, wrap);
  if (!server.ok()) return server.status();
  std::printf("%s\n", (*server)->ReadyLine(options.host).c_str());
  std::fflush(stdout);

  const Status ended = (*server)->WaitForSignal(signals);
  Log(LogLevel::kInfo, "draining", {{"timeout_s", std::to_string(options.drain_timeout_s)}});
  // From here on a second signal has its default effect: it ends the process.
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  (*server)->Stop(steady_clock::now() + std::chrono::seconds(options.drain_timeout_s));
  Log(LogLevel::kInfo, "stopped");
  return ended;
}

}  // namespace diffserve
