#include "engine/text/chat_template.h"

#include <utility>

#include "diffserve_text_ffi.h"
#include "engine/text/model_file.h"
#include "kernels/base/check.h"
#include "kernels/base/memory_reserve.h"

namespace diffserve {
namespace {

constexpr size_t kMaxConfigBytes = size_t{16} << 20;
constexpr size_t kMaxTemplateBytes = size_t{1} << 20;

// What the library takes at most while it parses and renders.
constexpr size_t kMemoryPerJsonByte = 32;

diffserve_ffi::FfiStr Borrow(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

struct FreeBytes {
  ~FreeBytes() { diffserve_ffi::ffi_bytes_free(bytes); }
  const diffserve_ffi::FfiBytes& bytes;
};

std::string Take(const diffserve_ffi::FfiBytes& bytes) {
  const FreeBytes freed{bytes};
  return std::string(reinterpret_cast<const char*>(bytes.data), bytes.size);
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

Result<std::unique_ptr<ChatTemplate>> ChatTemplate::Load(const std::string& model_dir) {
  const Result<std::string> jinja = ReadOptionalModelFile(model_dir, "chat_template.jinja",
                                                          kMaxTemplateBytes);
  if (!jinja.ok()) return jinja.status();
  const Result<std::string> config = ReadOptionalModelFile(model_dir, "tokenizer_config.json",
                                                           kMaxConfigBytes);
  if (!config.ok()) return config.status();
  diffserve_ffi::FfiBytes message{};
  diffserve_ffi::FfiTemplate* handle = diffserve_ffi::ffi_template_load(
      Borrow(jinja.value()), Borrow(config.value()), &message);
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

Result<RenderedChat> ChatTemplate::Render(const Conversation& conversation,
                                          const Tokenizer* tokenizer) const {
  RequireMemory((conversation.messages_json.size() + conversation.tools_json.size()) *
                kMemoryPerJsonByte);
  const WorksForAllRequests uses_the_reserve;  // without memory the library ends the process
  diffserve_ffi::FfiBytes text{};
  diffserve_ffi::FfiBytes message{};
  uint32_t guard = 0;
  if (!diffserve_ffi::ffi_template_render(
          impl_->handle, tokenizer == nullptr ? nullptr : tokenizer->ffi(),
          Borrow(conversation.messages_json), Borrow(conversation.kwargs_json),
          Borrow(conversation.tools_json), conversation.add_generation_prompt, &text, &guard,
          &message)) {
    return InvalidArgument(Take(message), "messages");
  }
  return RenderedChat{Take(text), guard};
}

}  // namespace diffserve
