// SPDX-License-Identifier: Apache-2.0
// `diffserve serve --models FILE`: owns both ports, and runs a process of this program per model.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/text/chat_template.h"
#include "kernels/base/cuda/device.h"
#include "kernels/process/crash_report.h"
#include "kernels/process/line_writer.h"
#include "kernels/process/log.h"
#include "kernels/process/machine_memory.h"
#include "kernels/process/thread_registry.h"
#include "models/regular_file.h"
#include "server/api/apis.h"
#include "server/api/grpc/server.h"
#include "server/app/commands/commands.h"
#include "server/app/environment.h"
#include "server/app/serve_ports.h"
#include "server/app/session/model_session.h"
#include "server/app/session/progress_line.h"
#include "server/app/session/session_cost.h"
#include "server/app/stop_signals.h"
#include "server/http/server.h"
#include "server/hub/model_place.h"
#include "server/router/children/gpu_places.h"
#include "server/router/children/model_children.h"
#include "server/router/children/visible_gpus.h"
#include "server/router/grpc_router.h"
#include "server/router/http_router.h"
#include "server/router/models_file.h"
#include "server/serving/build_version.h"

namespace diffserve {
namespace {

using std::chrono::steady_clock;

constexpr size_t kMaxModelsFileBytes = 1 << 20;
// After the time that a process has for its requests: for its last replies, the pages that it keeps
// on disk, and its end.
constexpr std::chrono::seconds kEndGrace{15};
constexpr std::chrono::seconds kLastBytes{2};
constexpr timespec kReadyPeriod{.tv_sec = 0, .tv_nsec = 250'000'000};  // as RunServe's

Status OfFile(const ModelsOptions& options, const Status& status, const std::string& model = {}) {
  return InvalidArgument("--models " + options.file + ": " + model + status.message(), "--models");
}

Result<RoutedModels> ReadModels(const ModelsOptions& options) {
  const Result<std::string> text = ReadRegularFile(options.file, kMaxModelsFileBytes);
  if (!text.ok()) return InvalidArgument("--models " + text.status().message(), "--models");
  Result<RoutedModels> models = RoutedModels::Parse(*text);
  return models.ok() ? std::move(models) : OfFile(options, models.status());
}

// The command line of a model's process. Later flags win, so the parent's own come last. It needs
// no keys: it serves only its parent, which has checked them.
std::vector<std::string> ArgumentsFor(const RoutedModel& model, const Options& options) {
  const ServeOptions& serve = options.serve;
  std::vector<std::string> arguments = {"serve", model.model};
  const auto append = [&](const std::vector<std::string>& flags) {
    arguments.insert(arguments.end(), flags.begin(), flags.end());
  };
  append(options.models.inherited_flags);
  append(model.flags);
  append({"--host=127.0.0.1", "--port=0", "--grpc-port=0", serve.grpc ? "--grpc" : "--no-grpc",
          "--no-ui", "--drain-timeout=" + std::to_string(serve.drain_timeout_s),
          "--served-model-name=" + model.name});
  if (options.log_format == LogFormat::kJson) append({"--log-format=json"});
  for (const std::string& alias : model.aliases) append({"--served-model-name=" + alias});
  for (const std::string& origins : serve.cors_origins) append({"--cors-origin=" + origins});
  return arguments;
}

// A variable of a flag reaches a model as a flag, or is the parent's own.
std::vector<std::string> FlagVariables() {
  std::vector<std::string> names = {VariableOf("--config")};
  for (const FlagSpec& flag : FlagTable()) names.push_back(VariableOf(flag.name));
  return names;
}

// Memory that a model needs, whose files are fetched if need be.
Result<int64_t> BytesOf(SessionOptions session) {
  ProgressLine line(ProgressLine::Form::kLog);
  LoadProgress progress(line.report(), line.pace());
  const FileUse use = session.dummy_weights ? FileUse::kConfig : FileUse::kRun;
  for (std::string* const dir : {&session.model_dir, &session.draft_dir}) {
    if (!dir->empty()) DS_RETURN_IF_ERROR(Assign(dir, FindModel(*dir, use, progress)));
  }
  session.device = {.kind = DeviceChoice::Kind::kCpu};  // as no GPU was found for it
  const Result<SessionPlan> plan = PlanSession(session, ServerNeeds(session.engine));
  if (!plan.ok()) return plan.status();
  return static_cast<int64_t>(TotalBytes(*plan));
}

// A model that is a path must be one that its process can load. One of a hub is fetched later.
Status CheckPath(std::string name) {
  const Result<ModelName> parsed = ParseModelName(name);
  if (parsed.ok() && std::holds_alternative<HubName>(*parsed)) return {};
  LoadProgress none({}, {});
  DS_RETURN_IF_ERROR(Assign(&name, FindModel(name, FileUse::kConfig, none)));
  return CheckModelDirectory(name);
}

// What a model's process is, and its flags.
struct PlannedChild {
  ChildModel child;
  SessionOptions session;
};

// Checks the model's flags and path.
Result<PlannedChild> PlanChild(const RoutedModel& model, const Options& options) {
  ChildModel child = {
      .name = model.name, .arguments = ArgumentsFor(model, options), .pinned = model.pinned};
  Result<Options> parsed = ParseOptions(child.arguments);
  if (!parsed.ok()) return OfFile(options.models, parsed.status(), model.name + ": ");
  for (const std::string* const path : {&parsed->session.model_dir, &parsed->session.draft_dir}) {
    const Status status = path->empty() ? Status() : CheckPath(*path);
    if (!status.ok())
      return Status(status.code(), OfFile(options.models, status, model.name + ": ").message());
  }
  const Result<ModelName> name = ParseModelName(parsed->session.model_dir);
  child.is_fetched = name.ok() && std::holds_alternative<HubName>(*name);
  if (const std::string& given = parsed->session.chat_template; !given.empty()) {
    if (Status bad = ChatTemplate::Check(given); !bad.ok())
      return OfFile(options.models, bad, model.name + ": ");
  }
  return PlannedChild{std::move(child), std::move(parsed->session)};
}

// Why the model cannot run on the GPU that its flags name; OK: it can, or it names none.
Status CheckGpu(const DeviceChoice& device, const VisibleGpus& gpus) {
  if (device.kind != DeviceChoice::Kind::kGpu) return {};
  if (gpus.all.empty()) return Status(StatusCode::kDeviceLost, "--device cuda: " + gpus.reason);
  const size_t asked = static_cast<size_t>(device.gpu.value_or(0));
  if (asked < gpus.all.size()) {
    const std::string& refusal = gpus.all[asked].refusal;
    return refusal.empty() ? Status() : InvalidArgument("--device cuda: " + refusal);
  }
  std::string message = "--device cuda:" + std::to_string(asked) + "; CUDA shows ";
  for (size_t i = 0; i < gpus.all.size(); ++i)
    message += (i == 0 ? "cuda:" : ", cuda:") + std::to_string(i) + " " + gpus.all[i].name;
  return Status(StatusCode::kDeviceLost, std::move(message));
}

// Bytes of weights and a step on a GPU; 0: not known, as the model is of a hub or needs the CPU.
int64_t GpuBytesOf(const PlannedChild& planned) {
  if (planned.child.is_fetched) return 0;
  SessionOptions session = planned.session;
  LoadProgress none({}, {});
  const Status found = Assign(&session.model_dir,
                              FindModel(session.model_dir, FileUse::kConfig, none));
  const Result<int64_t> bytes = found.ok() ? EstimateGpuBytes(session) : found;
  return bytes.ok() ? *bytes : 0;
}

bool MayUseGpu(const PlannedChild& planned) {
  return planned.session.device.kind != DeviceChoice::Kind::kCpu;
}

// The process gets the GPU and the share as flags.
void SetPlace(const UsableGpu& gpu, double gpu_share, PlannedChild& planned) {
  ChildModel& child = planned.child;
  const bool is_auto = planned.session.device.kind == DeviceChoice::Kind::kAuto;
  const std::string number = std::to_string(gpu.number);
  char share[16];
  std::snprintf(share, sizeof(share), "%.4f", gpu_share);
  child.arguments.push_back((is_auto ? "--device=auto:" : "--device=cuda:") + number);
  child.arguments.push_back(std::string("--gpu-memory-utilization=") + share);
  child.gpu = gpu.number;
  child.gpu_share = gpu_share;
  child.bytes = static_cast<int64_t>(gpu_share * static_cast<double>(gpu.bytes));
  Log(LogLevel::kInfo, "model_placed",
      {{"model", child.name}, {"gpu", "cuda:" + number}, {"gpu_memory_utilization", share}});
}

// Gives each model that may run on a GPU its GPU and its share of the memory.
Status PlaceOnGpus(const ModelsOptions& options, std::vector<PlannedChild>& planned) {
  if (!cuda::IsCompiledIn() || std::ranges::none_of(planned, MayUseGpu)) return {};
  const Result<VisibleGpus> visible = ListVisibleGpus(FlagVariables());
  if (!visible.ok()) return visible.status();
  std::vector<UsableGpu> gpus;
  for (size_t i = 0; i < visible->all.size(); ++i) {
    const VisibleGpu& gpu = visible->all[i];
    if (gpu.refusal.empty()) gpus.push_back({i, int64_t{gpu.memory_mib} << 20});
  }
  std::vector<GpuDemand> demands;
  std::vector<PlannedChild*> placed;
  for (PlannedChild& each : planned) {
    const DeviceChoice& device = each.session.device;
    if (const Status status = CheckGpu(device, *visible); !status.ok()) {
      return Status(status.code(), OfFile(options, status, each.child.name + ": ").message(),
                    "--models");
    }
    GpuDemand demand = {.bytes = GpuBytesOf(each),
                        .pinned = each.child.pinned,
                        .share = each.session.gpu_memory_utilization};
    if (device.gpu) demand.gpu = static_cast<size_t>(*device.gpu);
    const auto is_usable = [&](const UsableGpu& gpu) {
      return !demand.gpu || gpu.number == *demand.gpu;
    };
    if (!MayUseGpu(each) || std::ranges::none_of(gpus, is_usable)) continue;
    demands.push_back(demand);
    placed.push_back(&each);
  }
  if (placed.empty()) return {};
  const std::vector<GpuPlace> places = SpreadOverGpus(demands, gpus, options.max_loaded);
  for (size_t i = 0; i < placed.size(); ++i)
    SetPlace(gpus[places[i].gpu], places[i].share, *placed[i]);
  return {};
}

// Checks each model, and with a limit of memory what those on the CPU need.
Result<std::vector<ChildModel>> PlanChildren(const RoutedModels& models, const Options& options) {
  std::vector<PlannedChild> planned;
  for (const RoutedModel& model : models.all()) {
    Result<PlannedChild> each = PlanChild(model, options);
    if (!each.ok()) return each.status();
    planned.push_back(*std::move(each));
  }
  DS_RETURN_IF_ERROR(PlaceOnGpus(options.models, planned));
  std::vector<ChildModel> children;
  for (PlannedChild& each : planned) {
    if (!options.models.memory.text.empty() && !each.child.gpu) {
      const Result<int64_t> bytes = BytesOf(each.session);
      if (!bytes.ok()) {
        return Status(bytes.status().code(), each.child.name + ": " + bytes.status().message(),
                      bytes.status().param());
      }
      each.child.bytes = *bytes;
    }
    children.push_back(std::move(each.child));
  }
  return children;
}

Result<ResidencyLimits> LimitsFor(const std::vector<ChildModel>& children,
                                  const ModelsOptions& options) {
  ResidencyLimits limits = {.max_loaded = options.max_loaded,
                            .idle_timeout = std::chrono::seconds(options.idle_timeout_s)};
  const MemorySize& memory = options.memory;
  if (!memory.text.empty()) {
    limits.max_bytes = memory.share > 0 ? static_cast<int64_t>(
                                              memory.share * static_cast<double>(FreeMemoryBytes()))
                                        : memory.bytes;
  }
  std::vector<ResidentModel> needs;
  for (const ChildModel& child : children)
    needs.push_back({.bytes = child.gpu ? 0 : child.bytes,
                     .gpu = child.gpu,
                     .gpu_share = child.gpu_share,
                     .pinned = child.pinned});
  const std::optional<ResidencyMisfit> misfit = FindMisfit(needs, limits);
  if (!misfit) return limits;
  std::string what = children[misfit->model].name +
                     " does not fit beside the pinned models: " + "--max-loaded is " +
                     std::to_string(limits.max_loaded);
  if (misfit->gpu_share > 1) {
    what += ", and together they take more than the memory of cuda:" +
            std::to_string(children[misfit->model].gpu.value_or(0)) + " (gpu-memory-utilization)";
  } else if (limits.max_bytes > 0) {
    what += ", --models-memory is " + MiB(static_cast<double>(limits.max_bytes)) +
            ", and together they need " + MiB(static_cast<double>(misfit->bytes));
  }
  return InvalidArgument(what, limits.max_bytes > 0 ? "--models-memory" : "--max-loaded");
}

// The parts of the parent, in the order of their dependencies.
struct ModelsServer {
  RoutedModels models;
  ApiKeys keys;
  std::unique_ptr<ModelChildren> children = {};
  std::unique_ptr<HttpRouter> router = {};
  std::unique_ptr<HttpServer> http = {};
  std::unique_ptr<GrpcRouter> grpc = {};  // nullptr with --no-grpc

  std::string Names() const {
    std::string names;
    for (const RoutedModel& model : models.all()) names += (names.empty() ? "" : ",") + model.name;
    return names;
  }

  void Stop(std::chrono::seconds drain_timeout) {
    router->BeginDrain();
    if (grpc != nullptr) grpc->SetServing(false);
    children->Drain(steady_clock::now() + drain_timeout + kEndGrace);
    http->Stop(kLastBytes);
    if (grpc != nullptr) grpc->Shutdown(steady_clock::now() + kLastBytes);
    grpc.reset();
    http.reset();
  }
};

Status StartParts(const Options& options, ModelsServer& server) {
  const ServeOptions& serve = options.serve;
  Result<std::vector<ChildModel>> children = PlanChildren(server.models, options);
  if (!children.ok()) return children.status();
  Result<ResidencyLimits> limits = LimitsFor(*children, options.models);
  if (!limits.ok()) return limits.status();
  HttpRoutesOptions of_models;
  of_models.ui = serve.ui;
  HttpServerOptions http = HttpPortOptions(serve);
  http.files_per_connection = 2;  // its own, and that to the model's process
  HttpRouterOptions routes = {.ui = serve.ui,
                              .text_threads = TextThreads(),
                              .max_body_bytes = http.limits.max_body_bytes,
                              .max_held_bytes = http.max_held_bytes,
                              .loopback_hosts_only = ChecksHosts(serve, server.keys),
                              .apis = AllApis(of_models)};
  DS_RETURN_IF_ERROR(Assign(&routes.cross_origin, CrossOrigin::Parse(serve.cors_origins)));
  server.children = std::make_unique<ModelChildren>(
      *std::move(children),
      ModelChildrenOptions{.limits = *limits,
                           .load_wait = std::chrono::seconds(options.models.load_wait_s),
                           .stop_grace = std::chrono::seconds(serve.drain_timeout_s) + kEndGrace,
                           .hidden_variables = FlagVariables()});
  server.router = std::make_unique<HttpRouter>(std::move(routes), server.models, *server.children,
                                               server.keys);
  server.http = std::make_unique<HttpServer>(http, server.router->Service());
  DS_RETURN_IF_ERROR(server.http->Start());
  if (!serve.grpc) return {};
  GrpcServerOptions grpc;
  grpc.host = serve.host;
  grpc.port = serve.grpc_port;
  grpc.max_receive_bytes = static_cast<int>(serve.max_body_size.bytes);
  Result<std::unique_ptr<GrpcRouter>> started = GrpcRouter::Start(
      grpc, GrpcServiceNames(), server.models, *server.children, server.keys);
  if (!started.ok()) return started.status();
  server.grpc = std::move(started).value();
  return {};
}

}  // namespace

Status RunServeModels(const Options& options) {
  const NamedThread named("main", "the start");
  const sigset_t signals = BlockStopSignals();
  std::signal(SIGPIPE, SIG_IGN);
  RaiseFileLimit();
  ReturnFreedMemory();
  std::optional<EndsOnSignal> ends_on_signal(std::in_place, "loading");
  const ServeOptions& serve = options.serve;
  std::optional<StopsWithInput> stops_with_input;
  if (serve.stop_with_stdin) stops_with_input.emplace();
  Result<RoutedModels> models = ReadModels(options.models);
  if (!models.ok()) return models.status();
  ModelsServer server = {.models = std::move(models).value(), .keys = {}};
  if (!serve.api_key_file.empty())
    DS_RETURN_IF_ERROR(Assign(&server.keys, ApiKeys::Load(serve.api_key_file)));
  DS_RETURN_IF_ERROR(StartParts(options, server));
  CrashWhenMemoryRunsOut();
  ends_on_signal.reset();
  Log(LogLevel::kInfo, "serving",
      {{"models", server.Names()},
       {"version", std::string(BuildVersion())},
       {"commit", std::string(BuildCommit())}});
  LineWriter out({.descriptor = STDOUT_FILENO});
  out.Push("ready http=" + HttpAddress(serve, server.http->port()) +
           (server.grpc == nullptr ? "" : " grpc=" + Address(serve.host, server.grpc->port())) +
           " model=" + server.Names() + "\n");
  {
    const ScopedThreadActivity activity("a signal");
    do {
      if (server.grpc != nullptr) server.grpc->SetServing(server.children->Ready().ok());
    } while (sigtimedwait(&signals, nullptr, &kReadyPeriod) < 0);
  }
  BeginDrain(serve.drain_timeout_s, ends_on_signal);
  const ScopedThreadActivity activity("the end of running requests");
  server.Stop(std::chrono::seconds(serve.drain_timeout_s));
  Log(LogLevel::kInfo, "stopped");
  return {};
}

}  // namespace diffserve
