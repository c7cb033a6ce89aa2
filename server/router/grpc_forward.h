// SPDX-License-Identifier: Apache-2.0
// GrpcForwardCall: a gRPC call that a model's process answers. Messages pass as bytes, each read
// only when the one before is written; metadata, the deadline, a cancellation and the final status
// pass too. The first message names the model.
//
// Thread safety: as a reactor, on gRPC's threads; it deletes itself when gRPC is done with it.
#pragma once

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "server/api/grpc/call_context.h"
#include "server/api/grpc/call_record.h"
#include "server/api/grpc/call_watch.h"
#include "server/api/grpc/port/options.h"
#include "server/http/request_memory.h"
#include "server/router/children/model_children.h"
#include "server/router/grpc_channels.h"
#include "server/router/grpc_model_field.h"
#include "server/router/models_file.h"

namespace diffserve {

// Shared by all forwarded calls, which it outlives.
struct GrpcForwarding {
  // The references outlive it.
  GrpcForwarding(const GrpcServerOptions& options, const RoutedModels& models_in,
                 ModelChildren& children_in, const CallWatch& watch_in);

  const RoutedModels& models;
  ModelChildren& children;
  const CallWatch& watch;
  OpenCalls open_calls;
  RequestMemory held_bytes;  // of messages on their way to the models
  GrpcChannels channels;
  WriteStarter write_starter;  // ends calls whose client does not read
};

class GrpcForwardCall : public WatchedCall,
                        public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  // `method`: "/SERVICE/METHOD". It and the field outlive the call.
  static GrpcForwardCall* New(GrpcForwarding& forwarding, const std::string& method,
                              const RequestModelField& field, grpc::CallbackServerContext* context);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;
  void Advance() override {}  // each write is started by what it writes
  void EndIfStalled(std::chrono::steady_clock::time_point begin) override;

 private:
  class Upstream : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
   public:
    explicit Upstream(GrpcForwardCall& call) : call_(call) {}
    void OnReadInitialMetadataDone(bool ok) override;
    void OnReadDone(bool ok) override;
    void OnWriteDone(bool ok) override;
    void OnDone(const grpc::Status& status) override { call_.OnUpstreamDone(status); }

   private:
    GrpcForwardCall& call_;
  };

  GrpcForwardCall(GrpcForwarding& forwarding, const std::string& method,
                  const RequestModelField& field, grpc::CallbackServerContext* context)
      : forwarding_(forwarding),
        method_(method),
        field_(field),
        context_(context),
        client_(forwarding.watch.ClientOf(*context)),
        held_bytes_(forwarding.held_bytes),
        upstream_(*this) {}

  void Begin();
  std::string NameOfModel();
  void FindUse();
  void OnUse();
  void Start(ChildUse use);
  void Refuse(const Status& status);
  void RefuseMessage();
  void End(const grpc::Status& status);
  void OnUpstreamDone(const grpc::Status& status);

  GrpcForwarding& forwarding_;
  const std::string& method_;
  const RequestModelField& field_;
  grpc::CallbackServerContext* const context_;
  const std::string client_;               // CallWatch::ClientOf
  std::shared_ptr<GrpcForwardCall> self_;  // until gRPC is done with it

  std::mutex mutex_;  // guards the states below; gRPC calls the reactors from several threads
  bool is_first_read_ = true;
  bool half_closed_ = false;       // the client sends no more
  bool started_ = false;           // the upstream call
  bool takes_messages_ = false;    // the upstream call
  bool ended_ = false;             // Finish was called
  bool is_open_ = false;           // counted among the open calls
  std::optional<Status> refused_;  // the reason why the upstream call is cancelled
  std::optional<std::chrono::steady_clock::time_point> write_begin_;  // of a running write
  RequestMemory::Part held_bytes_;                                    // of request_
  size_t model_ = 0;
  std::shared_ptr<ModelChildren::Wait> wait_;
  ChildUse use_;

  grpc::ByteBuffer request_, reply_;
  grpc::ClientContext client_context_;
  std::unique_ptr<grpc::GenericStub> stub_;
  Upstream upstream_;
};

}  // namespace diffserve
