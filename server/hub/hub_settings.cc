// SPDX-License-Identifier: Apache-2.0
#include "server/hub/hub_settings.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <string_view>

#include "kernels/base/refusal.h"
#include "models/regular_file.h"

namespace diffserve {
namespace {

namespace fs = std::filesystem;

constexpr char kDefaultEndpoint[] = "https://huggingface.co";
constexpr size_t kMaxTokenFileBytes = 4096;
constexpr int kMaxEtagTimeoutS = 3600;
constexpr const char* kCaVariables[] = {"SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE"};
// The files of Debian and Alpine, Fedora and Red Hat, SUSE, and others.
constexpr const char* kCaFiles[] = {"/etc/ssl/certs/ca-certificates.crt",
                                    "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem",
                                    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
                                    "/etc/ssl/cert.pem"};

// The home directory of a user; empty: the calling one. Empty if the system knows none.
std::string AccountHome(const std::string& user) {
  passwd entry{};
  passwd* found = nullptr;
  std::array<char, 16384> texts{};
  const int failed = user.empty()
                         ? getpwuid_r(getuid(), &entry, texts.data(), texts.size(), &found)
                         : getpwnam_r(user.c_str(), &entry, texts.data(), texts.size(), &found);
  return failed == 0 && found != nullptr ? found->pw_dir : "";
}

class Variables {
 public:
  explicit Variables(const VariableReader& get) : get_(get) {}

  // An empty value counts as none.
  std::string Text(const char* name) const {
    const char* const value = get_(name);
    return value == nullptr ? "" : value;
  }
  static bool IsOn(std::string value) {
    std::ranges::transform(value, value.begin(), [](unsigned char c) { return std::toupper(c); });
    return value == "1" || value == "ON" || value == "YES" || value == "TRUE";
  }
  // A path as huggingface_hub expands it: first ~ and ~USER at its head, then $NAME and ${NAME}.
  // What is unknown stays as it is.
  std::string Path(const char* name) const { return WithValues(WithHome(Text(name))); }
  // Empty: it is not known.
  std::string Home() const {
    const char* const home = get_("HOME");
    return home != nullptr ? home : AccountHome("");
  }

 private:
  std::string WithHome(std::string path) const {
    if (!path.starts_with('~')) return path;
    const size_t slash = std::min(path.find('/'), path.size());
    const std::string user = path.substr(1, slash - 1);
    std::string home = user.empty() ? Home() : AccountHome(user);
    if (home.empty()) return path;
    while (home.ends_with('/')) home.pop_back();
    home += path.substr(slash);
    return home.empty() ? "/" : home;
  }
  std::string WithValues(std::string_view path) const {
    constexpr std::string_view kNameCharacters =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
    std::string text;
    while (!path.empty()) {
      const bool braced = path.starts_with("${");
      const size_t begin = braced ? 2 : 1;
      const size_t end = std::min(
          braced ? path.find('}') : path.find_first_not_of(kNameCharacters, begin), path.size());
      const bool is_name = path.front() == '$' && end > begin && (!braced || end < path.size());
      const char* const value = is_name ? get_(std::string(path.substr(begin, end - begin)).c_str())
                                        : nullptr;
      text += value != nullptr ? value : std::string(1, path.front());
      path.remove_prefix(value != nullptr ? end + (braced ? 1 : 0) : 1);
    }
    return text;
  }

  const VariableReader& get_;
};

// With %XX replaced; what is no such number stays.
std::string Unescaped(std::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned byte = 0;
    const char* const digits = text.data() + i + 1;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2) {
      plain += static_cast<char>(byte);
      i += 2;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

// Moves USER:PASSWORD out of the endpoint, which is printed.
void TakeCredentials(HubSettings* settings) {
  std::string& endpoint = settings->endpoint;
  const size_t begin = endpoint.find("://") + 3;
  const size_t end = std::min(endpoint.find('/', begin), endpoint.size());
  const size_t at = endpoint.rfind('@', end);
  if (at == std::string::npos || at < begin) return;
  const std::string_view both = std::string_view(endpoint).substr(begin, at - begin);
  const size_t colon = std::min(both.find(':'), both.size());
  settings->user = Unescaped(both.substr(0, colon));
  settings->password = Unescaped(both.substr(std::min(colon + 1, both.size())));
  endpoint.erase(begin, at + 1 - begin);
}

Status ReadEndpoint(const Variables& variables, HubSettings* settings) {
  std::string& endpoint = settings->endpoint;
  endpoint = variables.Text("HF_ENDPOINT");
  if (endpoint.empty()) endpoint = kDefaultEndpoint;
  while (endpoint.ends_with('/')) endpoint.pop_back();
  const bool has_scheme = endpoint.starts_with("https://") || endpoint.starts_with("http://");
  const bool is_printable = std::ranges::all_of(endpoint,
                                                [](char c) { return c > ' ' && c < 127; });
  if (has_scheme) TakeCredentials(settings);
  const bool is_address = endpoint.find_first_of("?@") == std::string::npos;
  if (has_scheme && is_printable && is_address) return {};
  const size_t at = endpoint.rfind('@');  // what is before it may be a password
  const std::string shown = at == std::string::npos ? endpoint : "..." + endpoint.substr(at);
  return NotAllowed("HF_ENDPOINT is \"" + shown + "\"",
                    "https://[USER:PASSWORD@]HOST[:PORT][/PATH], with %XX for the characters / ? @ "
                    "of a password");
}

Status ReadEtagTimeout(const Variables& variables, HubSettings* settings) {
  const std::string text = variables.Text("HF_HUB_ETAG_TIMEOUT");
  if (text.empty()) return {};
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, settings->etag_timeout_s);
  if (read.ec == std::errc() && read.ptr == end && settings->etag_timeout_s >= 1 &&
      settings->etag_timeout_s <= kMaxEtagTimeoutS)
    return {};
  return NotAllowed("HF_HUB_ETAG_TIMEOUT is " + QuotedText(text),
                    RangeText(1, kMaxEtagTimeoutS) + " seconds");
}

// Empty: none of the variables says where it is.
std::string HomeOf(const Variables& variables) {
  const std::string home = variables.Path("HF_HOME");
  if (!home.empty()) return home;
  std::string cache = variables.Path("XDG_CACHE_HOME");
  if (cache.empty() && !variables.Home().empty()) cache = variables.Home() + "/.cache";
  return cache.empty() ? "" : cache + "/huggingface";
}

// Without ends of lines, also inside.
std::string TokenOf(std::string text) {
  std::erase_if(text, [](char c) { return c == '\r' || c == '\n'; });
  return Trimmed(text);
}

Status ReadToken(const Variables& variables, const std::string& home, HubSettings* settings) {
  if (Variables::IsOn(variables.Text("HF_HUB_DISABLE_IMPLICIT_TOKEN"))) return {};
  settings->token_source = variables.Text("HF_TOKEN").empty() ? "HUGGING_FACE_HUB_TOKEN"
                                                              : "HF_TOKEN";
  settings->token = TokenOf(variables.Text(settings->token_source.c_str()));
  if (settings->token.empty()) {
    std::string& path = settings->token_source;
    path = variables.Path("HF_TOKEN_PATH");
    if (path.empty() && home.empty()) return {};
    if (path.empty()) path = home + "/token";
    const Result<std::string> text = ReadRegularFile(path, kMaxTokenFileBytes);
    if (!text.ok() && text.status().code() == StatusCode::kNotFound) return {};
    if (!text.ok()) return text.status();
    settings->token = TokenOf(*text);
  }
  if (std::ranges::all_of(settings->token, [](char c) { return c > ' ' && c < 127; })) return {};
  return InvalidArgument(settings->token_source +
                         ": is no token: it has a blank or a character "
                         "that is not ASCII");
}

Status ReadCertificates(const Variables& variables, HubSettings* settings) {
  std::error_code ignored;
  for (const char* const name : kCaVariables) {
    settings->ca_file = variables.Path(name);
    if (settings->ca_file.empty()) continue;
    if (fs::is_regular_file(settings->ca_file, ignored)) return {};
    return InvalidArgument(std::string(name) + " is \"" + settings->ca_file +
                           "\", which is not a file");
  }
  for (const char* const path : kCaFiles) {
    if (fs::is_regular_file(path, ignored)) return settings->ca_file = path, Status();
  }
  return {};
}

}  // namespace

std::string Trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return "";
  return std::string(text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1));
}

Result<HubSettings> ReadHubSettings(const VariableReader& get) {
  const Variables variables(get);
  HubSettings settings;
  const std::string offline = variables.Text("HF_HUB_OFFLINE");
  settings.offline = Variables::IsOn(offline.empty() ? variables.Text("TRANSFORMERS_OFFLINE")
                                                     : offline);
  DS_RETURN_IF_ERROR(ReadEndpoint(variables, &settings));
  DS_RETURN_IF_ERROR(ReadEtagTimeout(variables, &settings));
  const std::string home = HomeOf(variables);
  for (const char* const name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (settings.cache_dir.empty()) settings.cache_dir = variables.Path(name);
  }
  if (settings.cache_dir.empty() && home.empty())
    return InvalidArgument("HOME is not set: set HF_HOME to the folder for models of the hub");
  if (settings.cache_dir.empty()) settings.cache_dir = home + "/hub";
  DS_RETURN_IF_ERROR(ReadToken(variables, home, &settings));
  DS_RETURN_IF_ERROR(ReadCertificates(variables, &settings));
  return settings;
}

}  // namespace diffserve
