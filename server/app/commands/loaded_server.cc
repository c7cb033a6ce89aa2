// SPDX-License-Identifier: Apache-2.0
#include "server/app/commands/loaded_server.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "kernels/base/cuda/device.h"
#include "kernels/base/refusal.h"
#include "kernels/process/log.h"
#include "models/diagnostics/attention_capture.h"
#include "server/api/reply/tokenizer_info.h"
#include "server/app/serve_ports.h"
#include "server/app/session/kv_disk.h"
#include "server/app/session/kv_host.h"
#include "server/hub/model_place.h"
#include "server/serving/answer/answer_formats.h"
#include "server/serving/build_version.h"

namespace diffserve {
namespace {

// Silence in an event stream after which a comment is sent, so that proxies keep it open.
constexpr std::chrono::seconds kPingInterval{30};
constexpr size_t kMinAnswersInMemory = 8;  // each of the maximum size

// The files of the model directory besides the weights.
Status LoadTextFiles(const SessionOptions& options, ServerParts* parts) {
  const std::string& model_dir = options.model_dir;
  DS_RETURN_IF_ERROR(Assign(&parts->tokenizer, Tokenizer::LoadIfPresent(model_dir)));
  if (parts->tokenizer->is_missing()) {
    if (options.chat_template.empty()) return {};
    return InvalidArgument(
        "--chat-template needs a tokenizer: " + model_dir + "/tokenizer.json: no such file",
        "--chat-template");
  }
  Result<std::unique_ptr<ChatTemplate>> chat_template = ChatTemplate::Load(model_dir,
                                                                           options.chat_template);
  if (!chat_template.ok()) return chat_template.status();
  parts->chat_template = std::move(chat_template).value();
  return {};
}

ServedModelInfo MakeInfo(const std::string& name, ModelSession& session) {
  const SessionPlan& plan = session.plan();
  ServedModelInfo info;
  info.model_name = name;
  info.version = BuildVersion();
  info.commit = BuildCommit();
  info.device = plan.device_name;
  info.gpu_uuid = plan.gpu_uuid;
  info.cpu_isa = NameOf(plan.model.isa);
  info.dtype = NameOf(plan.summary.weight_format);
  info.kv_cache_dtype = NameOf(plan.layout.codec.dtype);
  info.page_size = plan.engine.page_size;
  info.num_pages = plan.engine.num_pages;
  info.max_model_len = plan.engine.max_model_len;
  info.prefix_caching = plan.engine.enable_prefix_caching;
  info.lambdas = session.model().Lambdas();
  info.lambda_inits = plan.summary.config.lambda_init;
  return info;
}

// `feed` is set if something is published and there is a gRPC port.
Result<std::unique_ptr<KvEventPublisher>> StartKvEvents(const ServeOptions& serve,
                                                        const EngineOptions& engine,
                                                        std::shared_ptr<KvEventFeed>& feed) {
  constexpr char kFlag[] = "--kv-events-endpoint";
  if (serve.kv_events_endpoint.empty()) {
    if (serve.kv_events_replay_endpoint.empty() && serve.kv_events_topic.empty())
      return std::unique_ptr<KvEventPublisher>();
    return OnlyWith(
        serve.kv_events_topic.empty() ? "--kv-events-replay-endpoint" : "--kv-events-topic",
        "--kv-events-endpoint: without it no KV event is published");
  }
  if (!engine.enable_prefix_caching) {
    return InvalidArgument(
        "--kv-events-endpoint needs the prefix cache, which --no-enable-prefix-caching turns off, "
        "and --state-snapshot-interval 0 too where a model has states",
        kFlag);
  }
  KvEventPublisherOptions publisher;
  publisher.endpoint = serve.kv_events_endpoint;
  publisher.replay_endpoint = serve.kv_events_replay_endpoint;
  publisher.topic = serve.kv_events_topic;
  publisher.page_size = engine.page_size;
  if (serve.grpc)
    feed = std::make_shared<KvEventFeed>(KvEventFeedOptions{.page_size = engine.page_size});
  publisher.feed = feed;
  Result<std::unique_ptr<KvEventPublisher>> started = KvEventPublisher::Start(std::move(publisher));
  if (started.ok()) {
    const KvEventPublisher& kv_events = **started;
    Log(LogLevel::kInfo, "kv_events",
        {{"endpoint", kv_events.endpoint()}, {"replay_endpoint", kv_events.replay_endpoint()}});
  }
  return started;
}

Status SetPorts(const ServeOptions& serve, const ApiKeys& keys, ServerOptions& server) {
  server.routes.ui = serve.ui;
  DS_RETURN_IF_ERROR(Assign(&server.routes.cross_origin, CrossOrigin::Parse(serve.cors_origins)));
  server.routes.loopback_hosts_only = ChecksHosts(serve, keys);
  server.routes.parent_secret = server.grpc.parent_secret = serve.parent_secret;
  server.http = HttpPortOptions(serve);
  server.http.ping_interval = kPingInterval;
  server.routes.max_body_bytes = server.http.limits.max_body_bytes;
  if (serve.health_port >= 0) server.health_port = serve.health_port;
  server.serves_grpc = serve.grpc;
  server.grpc.host = serve.host;
  server.grpc.port = serve.grpc_port;
  server.grpc.max_receive_bytes = static_cast<int>(serve.max_body_size.bytes);
  server.grpc.max_metadata_bytes = MaxMetadataBytes(serve);
  return {};
}

template <typename Format>
std::string NameOfFormat(const Format* format) {
  return format == nullptr ? "none" : std::string(format->name);
}

std::string WholeMiB(size_t bytes) { return std::to_string((bytes + (1 << 19)) >> 20); }

}  // namespace

void LogServing(const LoadedServer& loaded) {
  const SessionPlan& plan = loaded.session->plan();
  const FrontendOptions& frontend = loaded.server->frontend().options();
  const AnswerFormats& formats = frontend.formats;
  Log(LogLevel::kInfo, "serving",
      {{"served_model_name", frontend.names.name},
       {"version", std::string(BuildVersion())},
       {"commit", std::string(BuildCommit())},
       {"device", plan.device_name},
       {"gpu", plan.on_gpu() ? cuda::NameOfDevice(plan.model.gpu) : "none"},
       {"gpu_uuid", plan.on_gpu() ? plan.gpu_uuid : "none"},
       {"driver", plan.on_gpu() ? plan.driver : "none"},
       {"cpu_isa", std::string(NameOf(plan.model.isa))},
       {"threads", std::to_string(loaded.session->pool().num_threads())},
       {"load_format", plan.model.dummy_weights ? "dummy" : "auto"},
       {"dtype", std::string(NameOf(plan.summary.weight_format))},
       {"weights_mib", WholeMiB(plan.weight_memory_bytes())},
       {"kv_cache_dtype", std::string(NameOf(plan.layout.codec.dtype))},
       {"kv_pages", std::to_string(plan.engine.num_pages)},
       {"kv_mib", WholeMiB(plan.kv_bytes())},
       {"max_model_len", std::to_string(plan.engine.max_model_len)},
       {"max_num_seqs", std::to_string(plan.engine.max_num_seqs)},
       {"tool_call_parser", NameOfFormat(formats.tools)},
       {"tool_call_parser_by", std::string(formats.tools_by)},
       {"reasoning_parser", NameOfFormat(formats.reasoning)},
       {"reasoning_parser_by", std::string(formats.reasoning_by)}});
}

Result<LoadedServer> LoadServer(const SessionOptions& options, const ServeOptions& serve,
                                const ExecutorWrapper& wrap, ProgressLine::Form form) {
  ServerParts parts;
  if (!serve.api_key_file.empty()) {
    Result<ApiKeys> keys = ApiKeys::Load(serve.api_key_file);
    if (!keys.ok()) return keys.status();
    parts.keys = std::move(keys).value();
  }
  Result<SessionPlan> plan = PlanSession(options, ServerNeeds(options.engine));
  if (!plan.ok()) return plan.status();
  std::shared_ptr<KvEventFeed> kv_event_feed;
  Result<std::unique_ptr<KvEventPublisher>> kv_events = StartKvEvents(serve, plan->engine,
                                                                      kv_event_feed);
  if (!kv_events.ok()) return kv_events.status();
  parts.kv_events = std::move(kv_events).value();
  DS_RETURN_IF_ERROR(LoadTextFiles(options, &parts));
  if (!serve.kv_cache_dir.empty()) plan->model.digest = std::make_shared<WeightDigest>();
  Result<std::unique_ptr<ModelSession>> session = ModelSession::Load(options,
                                                                     std::move(plan).value(), form);
  if (!session.ok()) return session.status();
  parts.config = (*session)->plan().summary.config;
  parts.config.AddEndOfText(parts.tokenizer->eos_token_id());
  std::vector<std::string> names = serve.served_model_names;
  if (names.empty()) names = NamesOfDirectory(options.model_dir);
  const std::string name = names.front();
  parts.info = MakeInfo(name, **session);

  ServerOptions server;
  server.engine = (*session)->plan().engine;
  server.frontend.names.name = name;
  server.frontend.names.further.assign(names.begin() + 1, names.end());
  const SessionPlan& loaded = (*session)->plan();
  if (loaded.summary.config.num_kv_layers() == loaded.summary.config.num_layers) {
    server.frontend.attention = std::make_shared<AttentionSource>(loaded.summary.config.attention,
                                                                  loaded.layouts);
  }
  server.frontend.formats = ChooseFormats({serve.tool_call_parser, serve.reasoning_parser},
                                          parts.chat_template.get(), *parts.tokenizer);
  server.frontend.content_forms = ChooseContentForms(serve.content_format,
                                                     parts.chat_template.get());
  server.frontend.text_threads = TextThreads();
  server.routes.model_root = options.model_dir;
  // Clients of the gRPC port read its files from directories of their own.
  server.grpc.model_root = std::filesystem::absolute(options.model_dir).lexically_normal().string();
  server.routes.fingerprint = "diffserve-" + parts.info.version + "-" + parts.info.commit;
  if (!parts.tokenizer->is_missing()) {
    DS_RETURN_IF_ERROR(
        Assign(&server.routes.tokenizer_info,
               TokenizerInfoBody(options.model_dir,
                                 {parts.chat_template.get(), options.chat_template.empty()})));
  }
  DS_RETURN_IF_ERROR(SetPorts(serve, parts.keys, server));
  server.grpc.kv_events = std::move(kv_event_feed);
  server.frontend.max_answers_bytes = static_cast<size_t>(serve.max_answers_memory.bytes);
  server.frontend.max_answer_bytes = server.frontend.max_answers_bytes / kMinAnswersInMemory;
  DS_RETURN_IF_ERROR(Assign(&parts.tier, serve.kv_cache_dir.empty()
                                             ? OpenKvHost(serve, **session)
                                             : OpenKvDisk(serve, **session)));
  std::unique_ptr<Executor> executor = (*session)->MakeExecutor();
  if (wrap) executor = wrap(std::move(executor));
  return LoadedServer{
      std::move(session).value(),
      std::make_unique<Server>(std::move(server), std::move(parts), std::move(executor))};
}

}  // namespace diffserve
