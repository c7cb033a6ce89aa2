// SPDX-License-Identifier: Apache-2.0
#include "server/hub/hub_errors.h"

#include <charconv>
#include <string_view>

#include "models/config_reader.h"

namespace diffserve {
namespace {

// What to do about a token, in the given state.
std::string TokenAdvice(const HubSettings& settings, const std::string& wanted) {
  if (settings.token.empty()) return "set HF_TOKEN to " + wanted;
  return "the token of " + settings.token_source + " does not allow it: use " + wanted;
}

Status Refused(const HubAnswer& answer, const HubName& name, const HubSettings& settings) {
  const std::string page = settings.endpoint + "/" + name.repository;
  if (answer.error_code == "GatedRepo") {
    return InvalidArgument(name.Text() + ": is gated: accept its terms at " + page + ", then " +
                           TokenAdvice(settings, "a token of that account (" + settings.endpoint +
                                                     "/settings/tokens)"));
  }
  if (answer.error_code == "RevisionNotFound") {
    return Status(StatusCode::kNotFound, name.Text() + ": " + page + " has no revision " +
                                             name.revision + ": name a branch, a tag or a commit");
  }
  if (answer.error_message == "Invalid credentials in Authorization header") {
    return InvalidArgument(name.Text() + ": the token of " + settings.token_source +
                           " is not valid: make one at " + settings.endpoint +
                           "/settings/tokens, or unset it for a public model");
  }
  return InvalidArgument(name.Text() + ": " + page + " does not exist, or is private: check the " +
                         "name; for a private one, " +
                         TokenAdvice(settings, "a token that may read it"));
}

}  // namespace

std::optional<ByteRange> ParseContentRange(const std::string& text) {
  constexpr std::string_view kUnit = "bytes ";
  if (!text.starts_with(kUnit)) return std::nullopt;
  const char* const end = text.data() + text.size();
  uint64_t last = 0;
  ByteRange range;
  const auto first = std::from_chars(text.data() + kUnit.size(), end, range.first);
  if (first.ec != std::errc() || first.ptr == end || *first.ptr != '-') return std::nullopt;
  const auto middle = std::from_chars(first.ptr + 1, end, last);
  if (middle.ec != std::errc() || middle.ptr == end || *middle.ptr != '/') return std::nullopt;
  const auto size = std::from_chars(middle.ptr + 1, end, range.size);
  if (size.ec != std::errc() || size.ptr != end) return std::nullopt;
  return range;
}

bool MayPass(const HubAnswer& answer) {
  if (answer.is_certificate_error || answer.is_bad_location) return false;
  return !answer.transport_error.empty() || answer.status == 408 || answer.status == 429 ||
         answer.status >= 500;
}

Status ErrorOf(const HubAnswer& answer, const std::string& url, const HubName& name,
               const HubSettings& settings) {
  if (answer.is_certificate_error) {
    return Status(StatusCode::kUnavailable,
                  name.Text() + ": " + url + ": " + answer.transport_error +
                      "; certificates are read from " +
                      (settings.ca_file.empty() ? "no file" : settings.ca_file) +
                      "; SSL_CERT_FILE names another one");
  }
  if (!answer.transport_error.empty()) {
    return Status(StatusCode::kUnavailable, name.Text() + ": " + url + ": " +
                                                answer.transport_error +
                                                "; check the network, HTTPS_PROXY and HF_ENDPOINT");
  }
  if (answer.status == 429) {
    const std::string wait = answer.retry_after_s
                                 ? " for " + std::to_string(*answer.retry_after_s) + " s"
                                 : "";
    return Status(
        StatusCode::kUnavailable,
        name.Text() + ": " + settings.endpoint + " takes no more requests" + wait +
            " (429): try later" +
            (settings.token.empty() ? ", or set HF_TOKEN, which has limits of its own" : ""));
  }
  const std::string code = answer.error_code.empty() ? "" : ", " + answer.error_code;
  if (answer.status == 401 || answer.status == 403 ||
      (answer.status == 404 && answer.error_code != "EntryNotFound"))
    return Refused(answer, name, settings);
  return Status(StatusCode::kUnavailable, name.Text() + ": " + url + ": answered " +
                                              std::to_string(answer.status) +
                                              ConfigReader::OneLine(code) + "; try later");
}

}  // namespace diffserve
