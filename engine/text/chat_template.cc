// SPDX-License-Identifier: Apache-2.0
#include "engine/text/chat_template.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "engine/text/bytes_ffi.h"
#include "engine/text/given_template.h"
#include "engine/text/model_file.h"
#include "engine/text/token_files.h"
#include "kernels/base/refusal.h"
#include "kernels/process/check.h"
#include "kernels/process/log.h"

namespace diffserve {
namespace {

constexpr size_t kMaxProcessorBytes = size_t{16} << 20;
constexpr size_t kMaxTemplateFiles = 64;
constexpr char kFurtherTemplates[] = "additional_chat_templates";

// Cuts the text at the mark after the last message's content. A template that trims the content
// also trims the text before the mark.
Status CutAtMark(std::string* text) {
  const std::string_view trimmed = kContinuationMark.substr(0, kContinuationMark.size() - 1);
  const size_t at = text->rfind(trimmed);
  if (at == text->npos) {
    return InvalidArgument(
        "continue_final_message: the chat template does not show the content of the last message");
  }
  const bool kept = std::string_view(*text).substr(at).starts_with(kContinuationMark);
  text->resize(at);
  if (!kept) text->resize(text->find_last_not_of(" \t\n\v\f\r") + 1);
  return {};
}

struct TemplateFile {
  std::string path;  // relative to the model directory
  std::string text;
};

// chat_template.jinja, then additional_chat_templates/*.jinja in sorted order.
Result<std::vector<TemplateFile>> ReadTemplateFiles(const std::string& model_dir) {
  std::vector<std::string> paths;
  std::error_code error;
  std::filesystem::directory_iterator entries(std::filesystem::path(model_dir) / kFurtherTemplates,
                                              error);
  for (; !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    const std::string name = entries->path().filename().string();
    if (name.ends_with(".jinja")) paths.push_back(std::string(kFurtherTemplates) + "/" + name);
    if (paths.size() > kMaxTemplateFiles) {
      return NotAllowed(model_dir + "/" + kFurtherTemplates + ": has too many templates",
                        "at most " + std::to_string(kMaxTemplateFiles));
    }
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    return InvalidArgument(model_dir + "/" + kFurtherTemplates +
                           ": cannot be read: " + error.message());
  }
  std::ranges::sort(paths);
  paths.insert(paths.begin(), "chat_template.jinja");
  std::vector<TemplateFile> files;
  for (const std::string& path : paths) {
    Result<std::string> text = ReadOptionalModelFile(model_dir, path, kMaxTemplateBytes);
    if (!text.ok()) return text.status();
    if (!text->empty()) files.push_back({path, std::move(text).value()});
  }
  return files;
}

// Error: the template renders, but without a user's message, or it refuses one. A template may take
// a text or a list of parts.
Status ShowsUser(const ChatTemplate& chat_template) {
  Status refusal;
  for (const char* content : {R"("probe-1")", R"([{"type": "text", "text": "probe-1"}])"}) {
    const std::string messages = R"([{"role": "user", "content": )" + std::string(content) + "}]";
    const Result<RenderedChat> rendered = chat_template.Render(
        {.messages_json = messages, .add_generation_prompt = true}, nullptr);
    if (rendered.ok() && rendered->text.find("probe-1") != std::string::npos) return {};
    if (!rendered.ok() && refusal.ok()) refusal = rendered.status();
  }
  if (!refusal.ok()) return refusal;
  return InvalidArgument("the template does not show a user's message");
}

}  // namespace

struct ChatTemplate::Impl {
  explicit Impl(diffserve_ffi::FfiTemplate* loaded) : handle(loaded) {}
  ~Impl() { diffserve_ffi::ffi_template_free(handle); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  diffserve_ffi::FfiTemplate* const handle;
};

ChatTemplate::ChatTemplate(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ChatTemplate::~ChatTemplate() = default;

Result<std::unique_ptr<ChatTemplate>> ChatTemplate::LoadGiven(const std::string& given,
                                                              const TokenFiles& files) {
  const Result<std::string> text = ReadGivenTemplate(given);
  if (!text.ok()) return text.status();
  const diffserve_ffi::FfiTemplateFile file{Borrow(given), Borrow(text.value())};
  diffserve_ffi::FfiBytes message{}, passed_over{};
  diffserve_ffi::FfiTemplate* handle = diffserve_ffi::ffi_template_load(
      &file, 1, Borrow(std::string_view()), files.ffi(), &passed_over, &message);
  if (passed_over.size > 0) Take(passed_over);  // it is not used because the operator says so
  const std::string flag = std::string(kChatTemplateFlag) + " ";
  if (message.size > 0) return InvalidArgument(flag + Take(message), kChatTemplateFlag);
  std::unique_ptr<ChatTemplate> loaded(new ChatTemplate(std::make_unique<Impl>(handle)));
  if (Status shows = ShowsUser(*loaded); !shows.ok())
    return InvalidArgument(flag + given + ": " + shows.message(), kChatTemplateFlag);
  return loaded;
}

Status ChatTemplate::Check(const std::string& given) { return LoadGiven(given, {}).status(); }

Result<std::unique_ptr<ChatTemplate>> ChatTemplate::Load(const std::string& model_dir,
                                                         const std::string& given) {
  if (!given.empty()) {
    const Result<TokenFiles> files = TokenFiles::Read(model_dir);
    return files.ok() ? LoadGiven(given, *files) : files.status();
  }
  const Result<std::vector<TemplateFile>> jinja = ReadTemplateFiles(model_dir);
  if (!jinja.ok()) return jinja.status();
  const Result<std::string> processor = ReadOptionalModelFile(model_dir, "chat_template.json",
                                                              kMaxProcessorBytes);
  if (!processor.ok()) return processor.status();
  const Result<TokenFiles> files = TokenFiles::Read(model_dir);
  if (!files.ok()) return files.status();
  std::vector<diffserve_ffi::FfiTemplateFile> borrowed;
  for (const TemplateFile& file : *jinja)
    borrowed.push_back({Borrow(file.path), Borrow(file.text)});
  diffserve_ffi::FfiBytes message{}, passed_over{};
  diffserve_ffi::FfiTemplate* handle = diffserve_ffi::ffi_template_load(
      borrowed.data(), borrowed.size(), Borrow(processor.value()), files->ffi(), &passed_over,
      &message);
  if (passed_over.size > 0) {
    Log(LogLevel::kWarning, "chat_template_passed_over",
        {{"file", model_dir + "/" + Take(passed_over)},
         {"used", borrowed.empty() ? "tokenizer_config.json" : jinja->front().path}});
  }
  if (message.size > 0) return InvalidArgument(model_dir + "/" + Take(message));
  if (handle == nullptr) return std::unique_ptr<ChatTemplate>();
  return std::unique_ptr<ChatTemplate>(new ChatTemplate(std::make_unique<Impl>(handle)));
}

std::string ChatTemplate::Sources() const {
  diffserve_ffi::FfiBytes text{};
  diffserve_ffi::FfiBytes message{};
  const bool copied = diffserve_ffi::ffi_template_sources(impl_->handle, &text, &message);
  DS_CHECK(copied, "a template that was loaded has a text");
  return Take(text);
}

Result<RenderedChat> ChatTemplate::Render(const TemplateInput& conversation,
                                          const Tokenizer* tokenizer) const {
  diffserve_ffi::FfiBytes text{};
  diffserve_ffi::FfiBytes message{};
  uint32_t guard = 0;
  if (!diffserve_ffi::ffi_template_render(
          impl_->handle, tokenizer == nullptr ? nullptr : tokenizer->ffi(),
          Borrow(conversation.messages_json), Borrow(conversation.kwargs_json),
          Borrow(conversation.tools_json), conversation.add_generation_prompt, &text, &guard,
          &message)) {
    return InvalidArgument(Take(message));
  }
  RenderedChat rendered{Take(text), guard};
  if (conversation.continues_final_message) DS_RETURN_IF_ERROR(CutAtMark(&rendered.text));
  return rendered;
}

}  // namespace diffserve
