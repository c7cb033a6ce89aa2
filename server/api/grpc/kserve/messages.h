// SPDX-License-Identifier: Apache-2.0
// Converts between the messages of the Open Inference Protocol v2 (KServe and Triton clients) and
// the Frontend's types. A request is a batch of one. Its input is `text_input` (BYTES [1] or [1,1])
// or `input_ids` (INT32 or INT64 [n] or [1,n]). Its outputs are `text_output` (BYTES [1]),
// `output_ids` (INT32 [n]) and `finish_reason` (BYTES [1]; empty until the last response). The
// parameters are in kserve_parameters.h. Unknown names are refused.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/serving/frontend.h"

namespace inference {
class ModelInferRequest;
class ModelInferResponse;
class ModelMetadataResponse;
class ModelStreamInferResponse;
}  // namespace inference

namespace diffserve {

// Settings of the responses to a request.
struct InferShape {
  std::string id, model;
  bool stream = false;                                 // one response per piece of the answer
  bool echo = false;                                   // the outputs begin with the prompt
  bool text = true, ids = true, finish_reason = true;  // the requested outputs
};

struct InferRequest {
  GenerateRequest generate;  // without the client's name
  InferShape shape;
  std::optional<std::chrono::microseconds> timeout;  // from its arrival
};

// OK if this model is served; an empty version means the only one. Error: kNotFound.
Status CheckModelName(std::string_view name, std::string_view version,
                      const FrontendOptions& limits);

// `streams`: the request came by ModelStreamInfer. The Frontend checks ranges later. Error:
// kNotFound as above, or kInvalidArgument with the tensor or the parameter.
Result<InferRequest> FromProto(const inference::ModelInferRequest& message,
                               const FrontendOptions& limits, const SamplingSpec& defaults,
                               bool streams);

void FillMetadata(const Frontend& frontend, inference::ModelMetadataResponse& out);

// Converts the events of one request to its responses. Only the last response has the parameter
// `triton_final_response` true and the token counts.
// Thread safety: one thread at a time.
class InferAnswer {
 public:
  explicit InferAnswer(InferShape shape) : shape_(std::move(shape)) {}

  // True if `out` is the next response. An error gives no response.
  bool Take(const ResponseEvent& event, inference::ModelInferResponse* out);
  bool done() const { return done_; }
  const Status& status() const { return status_; }  // how the request ended, once it is done

 private:
  bool TakeOne(const ResponseStarted& started, inference::ModelInferResponse* out);
  bool TakeOne(const ResponsePromptLogprobs&, inference::ModelInferResponse*) { return false; }
  bool TakeOne(const ResponseDelta& delta, inference::ModelInferResponse* out);
  bool TakeOne(const ResponseDone& done, inference::ModelInferResponse* out);
  void Fill(inference::ModelInferResponse& out);

  const InferShape shape_;
  std::string text_, finish_reason_;
  std::vector<int32_t> ids_;
  bool done_ = false;
  Status status_;
};

// The only or last response to a request of a stream that ends with an error.
void FillError(const Status& error, const std::string& id,
               inference::ModelStreamInferResponse& out);

}  // namespace diffserve
