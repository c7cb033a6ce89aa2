// SPDX-License-Identifier: Apache-2.0
// The model of `diffserve chat MODEL_DIR`: the engine, the frontend and the text path of serve in
// this process, without sockets.
#include <condition_variable>
#include <mutex>
#include <optional>
#include <utility>

#include "server/app/chat/chat_model.h"
#include "server/app/session/model_session.h"
#include "server/app/session/session_cost.h"
#include "server/hub/model_place.h"
#include "server/serving/frontend.h"

namespace diffserve {
namespace {

constexpr size_t kChatOutboxEvents = 64;
constexpr int kSequences = 4;  // an answer, and stopped ones whose step still runs

// Rings when the stream has an event.
class EventBell {
 public:
  void Ring() {
    const std::lock_guard lock(mutex_);
    rung_ = true;
    changed_.notify_one();
  }
  // False: a stop was requested.
  bool Wait(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    const bool rang = changed_.wait(lock, stop, [&] { return rung_; });
    rung_ = false;
    return rang && !stop.stop_requested();
  }

 private:
  std::mutex mutex_;
  std::condition_variable_any changed_;
  bool rung_ = false;
};

struct ModelText {
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<ChatTemplate> chat_template;
};

Result<ModelText> LoadText(const SessionOptions& options) {
  const std::string& model_dir = options.model_dir;
  ModelText text;
  Result<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Load(model_dir);
  if (!tokenizer.ok()) return tokenizer.status();
  text.tokenizer = std::move(tokenizer).value();
  Result<std::unique_ptr<ChatTemplate>> chat_template = ChatTemplate::Load(model_dir,
                                                                           options.chat_template);
  if (!chat_template.ok()) return chat_template.status();
  text.chat_template = std::move(chat_template).value();
  if (text.chat_template != nullptr) return text;
  return InvalidArgument(
      model_dir +
      ": the model has no chat template, so it cannot chat: add chat_template.jinja to the "
      "directory or start with --chat-template FILE; diffserve generate continues a text");
}

GenerateRequest RequestTemplate(const SessionOptions& options, const GenerateOptions& generate,
                                const ChatOptions& chat) {
  GenerateRequest request;
  request.client = "chat";
  if (chat.max_tokens > 0) request.max_tokens = chat.max_tokens;
  request.names.max_tokens = "--max-tokens";
  request.sampling = generate.sampling;
  request.sampling.seed = options.seed;
  if (!generate.stop.empty()) request.stop = {generate.stop};
  return request;
}

class LocalChat : public ChatModel {
 public:
  // `name`: of the model, for the first line.
  LocalChat(std::string name, GenerateRequest request, ModelText text,
            std::unique_ptr<ModelSession> session, std::unique_ptr<Executor> executor)
      : name_(std::move(name)),
        request_(std::move(request)),
        text_(std::move(text)),
        session_(std::move(session)),
        config_(session_->plan().summary.config),
        engine_(session_->plan().engine, std::move(executor),
                [this](TokenEvent event) { output_->Post(std::move(event)); }) {
    output_ = std::make_unique<OutputLoop>(*text_.tokenizer, kChatOutboxEvents, CallsTo(engine_));
    FrontendOptions frontend;
    frontend.text_threads = 1;
    frontend.content_forms = ContentFormsOf(text_.chat_template.get());
    config_.AddEndOfText(text_.tokenizer->eos_token_id());
    frontend_ = std::make_unique<Frontend>(frontend, config_, *text_.tokenizer,
                                           text_.chat_template.get(), engine_, *output_);
  }
  ~LocalChat() override {
    engine_.Fail("the conversation has ended");
    frontend_.reset();
    output_.reset();  // before the engine, which it uses
  }

  const std::string& name() const override { return name_; }

  Result<ChatAnswer> Answer(const Conversation& conversation, const TakeText& take,
                            const std::stop_token& stop) override {
    GenerateRequest request = request_;
    request.prompts = {conversation};
    const auto bell = std::make_shared<EventBell>();
    const auto stream = std::make_shared<ResponseStream>(frontend_->options().max_stream_bytes,
                                                         [bell] { bell->Ring(); });
    const Result<ResponseId> id = frontend_->Generate(std::move(request), stream);
    if (!id.ok()) return id.status();
    ChatAnswer answer;
    while (bell->Wait(stop)) {
      while (std::optional<ResponseEvent> event = stream->TryPop()) {
        if (const auto* delta = std::get_if<ResponseDelta>(&*event)) {
          answer.text += delta->text;
          if (!delta->text.empty()) take(delta->text);
          if (delta->finish != FinishReason::kNone)
            answer.finish_reason = OpenAiNameOf(delta->finish);
        } else if (const auto* done = std::get_if<ResponseDone>(&*event)) {
          if (!done->status.ok()) return done->status;
          return answer;
        }
      }
    }
    stream->Close();
    frontend_->Abandon(*id);
    answer.finish_reason.clear();
    return answer;
  }

 private:
  const std::string name_;
  const GenerateRequest request_;  // without its prompt
  const ModelText text_;
  const std::unique_ptr<ModelSession> session_;
  ModelConfig config_;                  // with the tokenizer's end of a text
  std::unique_ptr<OutputLoop> output_;  // made once there is an engine; no event comes before a
                                        // request does
  Engine engine_;
  std::unique_ptr<Frontend> frontend_;
};

}  // namespace

Result<std::unique_ptr<ChatModel>> LoadChatModel(const SessionOptions& options,
                                                 const GenerateOptions& generate,
                                                 const ChatOptions& chat,
                                                 const ExecutorWrapper& wrap) {
  Result<ModelText> text = LoadText(options);
  if (!text.ok()) return text.status();
  SessionOptions session_options = options;
  session_options.engine.max_num_seqs = kSequences;
  SessionNeeds needs;
  needs.kv = [](int, int max_model_len) {
    return KvDemand{max_model_len, int64_t{2} * max_model_len};
  };
  Result<SessionPlan> plan = PlanSession(session_options, needs);
  if (!plan.ok()) return plan.status();
  Result<std::unique_ptr<ModelSession>> session = ModelSession::Load(session_options,
                                                                     std::move(plan).value());
  if (!session.ok()) return session.status();
  const ModelSummary& model = (*session)->plan().summary;
  std::string name = NamesOfDirectory(options.model_dir).front() + ": " + model.config.family +
                     ", " + ParametersText(model.num_parameters) + " parameters, " +
                     std::to_string((*session)->plan().engine.max_model_len) + " tokens";
  std::unique_ptr<Executor> executor = (*session)->MakeExecutor();
  if (wrap) executor = wrap(std::move(executor));
  return std::unique_ptr<ChatModel>(std::make_unique<LocalChat>(
      std::move(name), RequestTemplate(options, generate, chat), std::move(text).value(),
      std::move(session).value(), std::move(executor)));
}

}  // namespace diffserve
