// SPDX-License-Identifier: Apache-2.0
// GrpcStack: the server of serving_fixture.h with room for long contexts, and ways to call its gRPC
// port.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "diffserve/v1/inference.grpc.pb.h"
#include "tests/testing/server/serving_fixture.h"

namespace diffserve::testing {

struct GrpcStackOptions : ServingOptions {
  GrpcStackOptions();
};

class GrpcStack : public ServingFixture {
 public:
  explicit GrpcStack(GrpcStackOptions options = {}) : ServingFixture(std::move(options)) {}

  std::shared_ptr<grpc::Channel> NewChannel() const;
  std::unique_ptr<v1::Inference::Stub> NewStub() const;
};

// Steps wait for the test, so that a client can act while its request runs.
GrpcStackOptions WithHeldSteps();

// The greedy continuation of `prompt`.
std::vector<int32_t> ExpectedTokens(const GrpcStack& stack, const std::vector<int32_t>& prompt,
                                    int count);

// Waits until the metrics count one call of `method` that ended with `code`.
bool CallIsCounted(const GrpcStack& stack, const std::string& method, int code);

// All that came of one Generate call.
struct Generated {
  grpc::Status status;
  std::string param, retry_after;  // trailing metadata
  std::vector<v1::GenerateResponse> messages;

  std::vector<int32_t> TokensOf(int choice) const;
  std::string TextOf(int choice) const;
};

// A field of the metadata after the answer; empty if there is none.
std::string TrailerOf(const grpc::ClientContext& context, const char* name);

Generated Finish(grpc::ClientContext& context, grpc::ClientReader<v1::GenerateResponse>& reader);
Generated Generate(v1::Inference::Stub& stub, const v1::GenerateRequest& request);
v1::GenerateRequest RequestOf(const std::vector<int32_t>& ids, int max_tokens);

inline constexpr char kReflection[] =
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
inline const std::string kListServices("\x3a\x01*");  // a ServerReflectionRequest

// Sends one message of bytes to any method and returns the first reply's bytes: for services whose
// messages are not generated here.
std::pair<grpc::Status, std::string> CallWithBytes(const std::shared_ptr<grpc::Channel>& channel,
                                                   const std::string& method,
                                                   const std::string& bytes,
                                                   const std::string& api_key = {});

}  // namespace diffserve::testing
