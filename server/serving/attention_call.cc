// SPDX-License-Identifier: Apache-2.0
#include "server/serving/attention_call.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/text/detokenizer.h"
#include "kernels/base/refusal.h"
#include "kernels/process/check.h"
#include "server/serving/answer/answer_price.h"
#include "server/serving/request/context_overflow.h"
#include "server/serving/request/request_checks.h"

namespace diffserve {
namespace {

constexpr size_t kTokenTextBytes = 16;

// The indices in 0..count-1 that `asked` names, ascending and unique; `otherwise` if it is empty.
Result<std::vector<int>> Resolve(const std::vector<int>& asked, int count, const char* param,
                                 std::vector<int> otherwise) {
  if (asked.empty()) return otherwise;
  std::vector<int> found;
  for (int number : asked) {
    if (number < -count || number >= count) {
      return NotAllowed(std::string(param) + " has " + std::to_string(number),
                        RangeText(-count, count - 1), param);
    }
    found.push_back(number < 0 ? number + count : number);
  }
  std::ranges::sort(found);
  found.erase(std::ranges::unique(found).begin(), found.end());
  return found;
}

std::vector<int> UpTo(int count) {
  std::vector<int> numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

std::vector<AttentionSlot> TopOf(const AttentionMaps& maps, size_t count) {
  std::vector<int> slots = UpTo(static_cast<int>(maps.w.size()));
  const auto end = slots.begin() + static_cast<std::ptrdiff_t>(std::min(count, slots.size()));
  std::ranges::partial_sort(slots, end, [&maps](int a, int b) {
    const double of_a = std::abs(maps.w[static_cast<size_t>(a)]);
    const double of_b = std::abs(maps.w[static_cast<size_t>(b)]);
    return of_a != of_b ? of_a > of_b : a < b;
  });
  std::vector<AttentionSlot> top;
  for (auto it = slots.begin(); it != end; ++it) {
    const auto at = static_cast<size_t>(*it);
    const double p2 = maps.second.p.empty() ? 0 : maps.second.p[at];
    top.push_back({*it, static_cast<float>(maps.first.p[at]), static_cast<float>(p2),
                   static_cast<float>(maps.w[at])});
  }
  return top;
}

// None without a tokenizer.
std::vector<std::string> TextsOf(const std::vector<int32_t>& tokens, const Tokenizer& tokenizer) {
  if (tokenizer.is_missing()) return {};
  Detokenizer detokenizer(tokenizer, /*skip_special_tokens=*/false);
  std::vector<std::string> texts;
  for (int32_t id : tokens) texts.push_back(detokenizer.Push(id));
  if (!texts.empty()) texts.back() += detokenizer.Finish();
  return texts;
}

}  // namespace

AttentionMapsCall::AttentionMapsCall(Frontend& frontend, AttentionRequest request, Done done)
    : frontend_(frontend), request_(std::move(request)), done_(std::move(done)) {}

Result<std::shared_ptr<AttentionMapsCall>> AttentionMapsCall::Start(Frontend& frontend,
                                                                    AttentionRequest request,
                                                                    Done done) {
  auto call = std::make_shared<AttentionMapsCall>(frontend, std::move(request), std::move(done));
  DS_RETURN_IF_ERROR(call->Check());
  const bool is_text = std::holds_alternative<std::string>(call->request_.prompt);
  const Status queued = frontend.Tokenize(
      call->request_.client, std::move(call->request_.prompt),
      {.add_special_tokens = is_text, .names = call->request_.names},
      [call](Result<std::vector<int32_t>> tokens) {
        if (tokens.ok()) return call->TakeTokens(std::move(tokens).value());
        call->Finish(tokens.status());
      });
  if (!queued.ok()) return queued;
  return call;
}

// Checks all that needs no tokens, and resolves layers and heads.
Status AttentionMapsCall::Check() {
  const FrontendOptions& options = frontend_.options();
  if (options.attention == nullptr) {
    return InvalidArgument(
        "attention maps need a model whose layers all have their own K and V; this server runs "
        "another model");
  }
  DS_RETURN_IF_ERROR(options.names.Check(request_.model));
  if (request_.top_k && *request_.top_k < 0) {
    return BelowMin("top_k", *request_.top_k, 0);
  }
  AttentionAnswer& answer = *answer_;
  answer.num_maps = options.attention->num_maps();
  answer.num_layers = options.attention->num_layers();
  answer.num_heads = options.attention->spec.num_q1_heads;
  answer.has_span = request_.span.has_value();
  answer.top_k = request_.top_k;
  DS_RETURN_IF_ERROR(Assign(&request_.layers, Resolve(request_.layers, answer.num_layers, "layers",
                                                      UpTo(answer.num_layers))));
  return Assign(&request_.heads,
                Resolve(request_.heads, answer.num_heads, "heads", UpTo(answer.num_heads)));
}

void AttentionMapsCall::TakeTokens(std::vector<int32_t> tokens) {
  if (is_abandoned()) return;
  const Status status = Submit(std::move(tokens));
  if (!status.ok()) Finish(status);
}

Status AttentionMapsCall::Submit(std::vector<int32_t> tokens) {
  const char* const name = request_.names.prompt;
  const int count = static_cast<int>(tokens.size());
  if (tokens.empty()) return NotAllowed(std::string(name) + " has no tokens", "at least 1", name);
  if (count > frontend_.MaxTokens()) {
    frontend_.engine().CountRefusal(RefusalReason::kTooLong);
    return PromptTooLong(tokens.size(), frontend_.MaxTokens(), frontend_.MaxTokens(), "", name);
  }
  DS_RETURN_IF_ERROR(CheckTokenIds(tokens, frontend_.model_config().vocab_size, name));
  if (request_.span && (request_.span->first < 0 || request_.span->second > count ||
                        request_.span->first >= request_.span->second)) {
    return NotAllowed("span is [" + std::to_string(request_.span->first) + ", " +
                          std::to_string(request_.span->second) + ")",
                      "0 <= begin < end <= " + std::to_string(count) + ", the number of tokens",
                      "span");
  }
  AttentionCapture::Selection selection;
  selection.layers = request_.layers;
  DS_RETURN_IF_ERROR(Assign(&selection.positions,
                            request_.all_positions
                                ? UpTo(count)
                                : Resolve(request_.positions, count, "positions", {count - 1})));
  capture_ = std::make_shared<AttentionCapture>(*frontend_.options().attention,
                                                std::move(selection));
  const Result<size_t> price = Price(tokens.size());
  if (!price.ok()) return price.status();
  answer_->token_texts = TextsOf(tokens, frontend_.tokenizer());

  GenerateRequest generate;
  generate.request_id = request_.request_id;
  generate.client = request_.client;
  generate.prompts.emplace_back(
      std::vector<int32_t>(tokens.begin(), tokens.begin() + capture_->last() + 1));
  generate.max_tokens = 0;
  generate.names = request_.names;
  generate.capture = capture_;
  generate.capture_bytes = *price;
  generate.deadline = request_.deadline;
  answer_->tokens = std::move(tokens);
  const auto stream = std::make_shared<ResponseStream>(
      frontend_.options().max_stream_bytes, [weak = weak_from_this()] {
        const std::shared_ptr<AttentionMapsCall> call = weak.lock();
        if (call != nullptr) call->Drain();
      });
  {
    std::lock_guard lock(mutex_);
    if (abandoned_) return {};
    stream_ = stream;
  }
  const Result<ResponseId> id = frontend_.Generate(std::move(generate), stream);
  if (!id.ok()) return id.status();
  std::lock_guard lock(mutex_);
  response_ = *id;
  if (abandoned_) frontend_.Abandon(response_);
  return {};
}

// Bytes of the capture and of the answer; checks how many numbers the maps have.
Result<size_t> AttentionMapsCall::Price(size_t num_tokens) {
  const AttentionCapture::Selection& selection = capture_->selection();
  const size_t per_position = selection.layers.size() * request_.heads.size();
  const auto maps = static_cast<size_t>(answer_->num_maps);
  size_t slots = 0;
  for (int position : selection.positions) slots += static_cast<size_t>(position) + 1;
  num_numbers_ = slots * per_position * maps;
  const auto most = static_cast<size_t>(kMaxAttentionNumbers);
  if (num_numbers_ > most) {
    return NotAllowed(
        "the maps have " + std::to_string(num_numbers_) + " numbers (" +
            std::to_string(selection.layers.size()) + " layers, " +
            std::to_string(request_.heads.size()) + " heads, " +
            std::to_string(selection.positions.size()) + " positions that see " +
            std::to_string(slots) + " slots, " + std::to_string(maps) + " maps)",
        "at most " + std::to_string(most) + "; ask for fewer layers, heads or positions",
        "positions");
  }
  const size_t items = per_position * selection.positions.size();
  size_t bytes = capture_->bytes() + capture_->working_bytes() +
                 items * sizeof(AttentionQueryMaps) +
                 num_tokens * (sizeof(int32_t) + sizeof(std::string) + HeapBytes(kTokenTextBytes));
  if (!request_.top_k) {
    bytes += num_numbers_ * sizeof(float) + items * maps * HeapBytes(1);
  } else {
    const size_t top = std::min(static_cast<size_t>(*request_.top_k), num_tokens);
    bytes += items * HeapBytes(top * sizeof(AttentionSlot));
  }
  return bytes;
}

// On the output thread.
void AttentionMapsCall::Drain() {
  std::shared_ptr<ResponseStream> stream;
  {
    std::lock_guard lock(mutex_);
    stream = stream_;
  }
  while (std::optional<ResponseEvent> event = stream->TryPop()) {
    auto* const done = std::get_if<ResponseDone>(&*event);
    if (done == nullptr) continue;
    return done->status.ok() ? QueueMaps() : Finish(std::move(done->status));
  }
}

void AttentionMapsCall::QueueMaps() {
  const Status queued = frontend_.RunOnTextThread(
      request_.client, num_numbers_ * sizeof(float), [call = shared_from_this()](bool run) {
        if (run) return call->Compute();
        call->Finish(Status(StatusCode::kUnavailable, "the server is shutting down"));
      });
  if (!queued.ok()) Finish(queued);
}

void AttentionMapsCall::Compute() {
  DS_CHECK(capture_->is_complete(), "the engine has computed every position");
  answer_->items.reserve(capture_->selection().layers.size() * request_.heads.size() *
                         capture_->selection().positions.size());
  const DiffSpec& spec = frontend_.options().attention->spec;
  for (size_t layer = 0; layer < capture_->selection().layers.size(); ++layer) {
    GroupKeys keys = capture_->KeysOf(layer, GroupOf(spec, request_.heads.front()));
    for (int head : request_.heads) {
      if (is_abandoned()) return;
      if (keys.group != GroupOf(spec, head)) {
        keys = {};  // one group's at a time
        keys = capture_->KeysOf(layer, GroupOf(spec, head));
      }
      if (Status status = MakeItems(layer, head, keys); !status.ok()) return Finish(status);
    }
  }
  capture_ = nullptr;
  answer_->kept = stream_;
  Finish(SharedAttentionAnswer(std::move(answer_)));
}

Status AttentionMapsCall::MakeItems(size_t layer, int head, const GroupKeys& keys) {
  const AttentionCapture::Selection& selection = capture_->selection();
  for (size_t i = 0; i < selection.positions.size(); ++i) {
    const AttentionMaps maps = capture_->MapsOf(layer, i, head, keys);
    AttentionQueryMaps item;
    item.layer = selection.layers[layer];
    item.head = head;
    item.position = selection.positions[i];
    item.lambda = maps.lambda;
    item.entropy1 = Entropy(maps.first.p);
    item.entropy2 = Entropy(maps.second.p);
    item.cancelled = CancelledShare(maps);
    if (request_.span) item.on_span = SharesOn(maps, request_.span->first, request_.span->second);
    if (!std::isfinite(item.entropy1 + item.entropy2 + item.lambda)) {
      return Status(StatusCode::kInternal, "layer " + std::to_string(item.layer) + ", head " +
                                               std::to_string(head) +
                                               ": the attention logits of position " +
                                               std::to_string(item.position) + " are not finite");
    }
    if (request_.top_k) {
      item.top = TopOf(maps, static_cast<size_t>(*request_.top_k));
    } else {
      item.map1.assign(maps.first.p.begin(), maps.first.p.end());
      item.map2.assign(maps.second.p.begin(), maps.second.p.end());
    }
    answer_->items.push_back(std::move(item));
  }
  return {};
}

void AttentionMapsCall::Finish(Result<SharedAttentionAnswer> answer) {
  if (!is_abandoned()) done_(std::move(answer));
}

void AttentionMapsCall::Abandon() {
  std::shared_ptr<ResponseStream> stream;
  ResponseId response = 0;
  {
    std::lock_guard lock(mutex_);
    abandoned_ = true;
    stream = stream_;
    response = response_;
  }
  if (stream != nullptr) stream->Close();
  if (response != 0) frontend_.Abandon(response);
}

bool AttentionMapsCall::is_abandoned() const {
  std::lock_guard lock(mutex_);
  return abandoned_;
}

}  // namespace diffserve
