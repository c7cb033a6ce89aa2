// Between the messages of the Open Inference Protocol v2, as KServe and Triton clients speak it,
// and the Frontend's own types. A request is a batch of one: its input is `text_input` (BYTES [1]
// or [1,1]) or `input_ids` (INT32 or INT64 [n] or [1,n]), its outputs are `text_output` (BYTES
// [1]), `output_ids` (INT32 [n]) and `finish_reason` (BYTES [1]; empty until the last response).
// The parameters are in kserve_parameters.h. What is not known is refused by name.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/frontend.h"

namespace inference {
class ModelInferRequest;
class ModelInferResponse;
class ModelMetadataResponse;
class ModelStreamInferResponse;
}  // namespace inference

namespace diffserve {

// What the responses to a request depend on beside its events.
struct InferShape {
  std::string id, model;
  bool stream = false;                                 // a response for each piece of the answer
  bool echo = false;                                   // the outputs begin with the prompt
  bool text = true, ids = true, finish_reason = true;  // the outputs that were asked for
};

struct InferRequest {
  GenerateRequest generate;  // without who asks
  InferShape shape;
  std::optional<std::chrono::microseconds> timeout;  // from its arrival
};

// Ok if this is the model that is served; an empty version is the only one. Error: kNotFound.
Status CheckModelName(std::string_view name, std::string_view version,
                      const FrontendOptions& limits);

// `streams`: of ModelStreamInfer. The Frontend checks ranges later. Error: kNotFound as above, or
// kInvalidArgument with the tensor or the parameter.
Result<InferRequest> FromProto(const inference::ModelInferRequest& message,
                               const FrontendOptions& limits, const SamplingParams& defaults,
                               bool streams);

void FillMetadata(const Frontend& frontend, inference::ModelMetadataResponse& out);

// The events of one request made its responses. The last one, and no other, has the parameter
// `triton_final_response` true, and the counts of tokens.
// Thread safety: one thread at a time.
class InferAnswer {
 public:
  explicit InferAnswer(InferShape shape) : shape_(std::move(shape)) {}

  // True if `out` is the next response. An error makes none.
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

// A request of a stream that ends with an error, as its only or last response.
void FillError(const Status& error, const std::string& id,
               inference::ModelStreamInferResponse& out);

}  // namespace diffserve
