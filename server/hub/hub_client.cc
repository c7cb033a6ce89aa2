// SPDX-License-Identifier: Apache-2.0
#include "server/hub/hub_client.h"

#include <curl/curl.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <chrono>

#include "kernels/base/refusal.h"
#include "kernels/process/check.h"
#include "kernels/process/log.h"
#include "server/hub/hub_errors.h"
#include "server/json/json.h"
#include "server/serving/build_version.h"

namespace diffserve {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr size_t kMaxAtOnce = 4;                    // transfers
constexpr size_t kMaxTextBytes = size_t{32} << 20;  // of Read
constexpr size_t kMaxEtagBytes = 128;
constexpr size_t kMaxHeadBytes = size_t{256} << 10;     // of a try, with all redirects
constexpr int kMaxWaitS = 60;                           // for a whole text, or a file's first byte
constexpr long kMinBytesPerSecond = 1024;               // of a file, over kStallS
constexpr int kMaxTries = 6;                            // of a transfer that brings too little
constexpr uint64_t kProgressBytes = uint64_t{1} << 20;  // a try that brings as many is not counted
constexpr int kMaxWrongContents = 2;                    // per file
constexpr milliseconds kFirstWait{250};                 // doubled for each further try
constexpr int kMaxRetryAfterS = 120;                    // a longer wait is left to the user
constexpr long kConnectTimeoutS = 10, kStallS = 30, kMaxRedirects = 5;
constexpr milliseconds kMaxPoll{1000};
constexpr long kReceiveBytes = 256 << 10;

bool IsCertificateError(CURLcode code) {
  return code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE;
}
// Whether a transfer ended since it may not follow where its answer leads: from https to http, for
// example. An answer that is no HTTP has the same code as another protocol.
bool IsBadLocation(CURLcode code, std::string_view url, std::string_view last_url) {
  if (code == CURLE_UNSUPPORTED_PROTOCOL)
    return !last_url.starts_with(url.starts_with("https:") ? "https:" : "http");
  return code == CURLE_URL_MALFORMAT || code == CURLE_TOO_MANY_REDIRECTS;
}

// The seconds in "5", or in the t= of `"api";r=0;t=55`; nullopt: neither.
std::optional<int> SecondsIn(std::string_view value) {
  const size_t at = value.find(";t=");
  if (at != std::string_view::npos) value.remove_prefix(at + 3);
  int seconds = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), seconds);
  if (error != std::errc() || seconds < 0) return std::nullopt;
  return seconds;
}

std::optional<uint64_t> NumberIn(const std::string& value) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  return error == std::errc() && end == value.data() + value.size() ? std::optional(number)
                                                                    : std::nullopt;
}

// Without the mark of a weak one and the quotes.
std::string EtagIn(std::string_view value) {
  if (value.starts_with("W/")) value.remove_prefix(2);
  if (value.size() >= 2 && value.front() == '"' && value.back() == '"')
    value = value.substr(1, value.size() - 2);
  return std::string(value);
}

bool IsBlobName(std::string_view etag) {
  return !etag.empty() && etag.size() <= kMaxEtagBytes && etag.front() != '.' &&
         std::ranges::all_of(etag, [](char c) { return c > ' ' && c < 127 && c != '/'; });
}

// For a path below the hub's address; slashes stay.
std::string Escaped(std::string_view path) {
  std::string escaped;
  for (const char c : path) {
    const bool is_plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
                          (c >= 'A' && c <= 'Z') || c == '-' || c == '_' || c == '.' || c == '~' ||
                          c == '/';
    constexpr char kDigits[] = "0123456789ABCDEF";
    const auto byte = static_cast<unsigned char>(c);
    if (is_plain)
      escaped += c;
    else
      escaped.append({'%', kDigits[byte >> 4], kDigits[byte & 15]});
  }
  return escaped;
}

struct EndEasy {
  void operator()(CURL* easy) const { curl_easy_cleanup(easy); }
};
struct EndList {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};

}  // namespace

// One GET or HEAD, with all its tries. Its bytes go to a text or to a blob.
class HubClient::Transfer {
 public:
  // `max_wait_s`: for a whole text, or the first byte of a blob.
  Transfer(std::string url, const HubSettings& settings, int max_wait_s)
      : url(std::move(url)), max_wait_(max_wait_s), easy_(curl_easy_init()) {
    DS_CHECK(easy_ != nullptr, "libcurl has a handle");
    Set(CURLOPT_URL, this->url.c_str());
    Set(CURLOPT_PRIVATE, this);
    Set(CURLOPT_HTTP_VERSION, long{CURL_HTTP_VERSION_1_1});  // a connection per transfer
    Set(CURLOPT_NOSIGNAL, 1L);
    Set(CURLOPT_FOLLOWLOCATION, 1L);
    Set(CURLOPT_MAXREDIRS, kMaxRedirects);
    // From https only to https.
    const char* const protocols = this->url.starts_with("https:") ? "https" : "http,https";
    Set(CURLOPT_PROTOCOLS_STR, protocols);
    Set(CURLOPT_REDIR_PROTOCOLS_STR, protocols);
    Set(CURLOPT_CONNECTTIMEOUT, kConnectTimeoutS);
    Set(CURLOPT_LOW_SPEED_LIMIT, kMinBytesPerSecond);
    Set(CURLOPT_LOW_SPEED_TIME, kStallS);
    Set(CURLOPT_BUFFERSIZE, kReceiveBytes);
    Set(CURLOPT_ERRORBUFFER, error_);
    Set(CURLOPT_HEADERFUNCTION, &Transfer::TakeHeader);
    Set(CURLOPT_HEADERDATA, this);
    Set(CURLOPT_WRITEFUNCTION, &Transfer::TakeBody);
    Set(CURLOPT_WRITEDATA, this);
    Set(CURLOPT_NOPROGRESS, 0L);
    Set(CURLOPT_XFERINFOFUNCTION, &Transfer::Watch);
    Set(CURLOPT_XFERINFODATA, this);
    // libcurl sends them, as the token, to the hub's own host only.
    if (!settings.user.empty()) Set(CURLOPT_USERNAME, settings.user.c_str());
    if (!settings.password.empty()) Set(CURLOPT_PASSWORD, settings.password.c_str());
    if (!settings.ca_file.empty()) Set(CURLOPT_CAINFO, settings.ca_file.c_str());
    const std::string agent = "diffserve/" + std::string(BuildVersion());
    Set(CURLOPT_USERAGENT, agent.c_str());
    Set(CURLOPT_ACCEPT_ENCODING, "identity");  // another coding is decoded all the same
    // libcurl drops it when a redirect leads to another host, port or protocol.
    if (!settings.token.empty()) AddHeader("Authorization: Bearer " + settings.token);
    Set(CURLOPT_HTTPHEADER, headers_.get());
  }

  CURL* easy() const { return easy_.get(); }

  // Prepares the next try.
  void Begin() {
    is_running = true;
    failure_ = {};
    answer_ = {};
    has_body_ = is_refusal_ = false;
    head_bytes_ = 0;
    begun_ = Clock::now();
    error_[0] = '\0';
    first_byte_ = blob == nullptr ? 0 : blob->written();
    if (text != nullptr) text->clear();
    Set(CURLOPT_TIMEOUT, blob == nullptr ? long{max_wait_.count()} : 0L);
    Set(CURLOPT_NOBODY, describes ? 1L : 0L);
    const std::string range = std::to_string(first_byte_) + "-";
    Set(CURLOPT_RANGE, first_byte_ > 0 ? range.c_str() : nullptr);
  }

  // After a try that ended with `code`. True: all bytes are there and right. False: another try is
  // due at not_before.
  Result<bool> End(CURLcode code, const HubName& name, const HubSettings& settings,
                   bool is_patient) {
    is_running = false;
    curl_easy_getinfo(easy_.get(), CURLINFO_RESPONSE_CODE, &answer_.status);
    DS_RETURN_IF_ERROR(failure_);
    if (describes && HasLinked()) return true;
    if (code == CURLE_BAD_CONTENT_ENCODING) DS_RETURN_IF_ERROR(LoseCoded());
    if (code != CURLE_OK && !is_refusal_) {
      if (answer_.transport_error.empty()) answer_.transport_error = WordsOf(code);
      answer_.is_certificate_error = IsCertificateError(code);
      const char* last_url = nullptr;
      curl_easy_getinfo(easy_.get(), CURLINFO_EFFECTIVE_URL, &last_url);
      answer_.is_bad_location = IsBadLocation(code, url, last_url != nullptr ? last_url : "");
    } else if (answer_.is_success()) {
      if (blob == nullptr) return true;
      if (blob->missing() == 0) return Finish();
      answer_.transport_error = "ended " + std::to_string(blob->missing()) + " bytes early";
    }
    const bool has_brought = blob != nullptr && blob->written() >= first_byte_ + kProgressBytes;
    if (!has_brought) ++tries_;
    if (answer_.status != 429 && answer_.status != 503) answer_.retry_after_s.reset();
    const int wait_s = answer_.retry_after_s.value_or(0);
    if (!is_patient || !MayPass(answer_) || tries_ >= kMaxTries || wait_s > kMaxRetryAfterS)
      return ErrorOf(answer_, url, name, settings);
    const milliseconds wait = answer_.retry_after_s ? std::chrono::seconds(wait_s)
                                                    : kFirstWait * (1 << std::max(0, tries_ - 1));
    not_before = Clock::now() + wait;
    Log(LogLevel::kWarning, "download_retried",
        {{"url", url},
         {"reason", answer_.transport_error.empty() ? "answered " + std::to_string(answer_.status)
                                                    : answer_.transport_error},
         {"wait_ms", std::to_string(wait.count())}});
    return false;
  }

  // After a HEAD that is done: the file's etag and whether it is its hash. The size is nullopt if
  // it is not known.
  Result<std::optional<uint64_t>> Describe(HubFile* file) const {
    const bool is_linked = !answer_.linked_etag.empty();
    file->etag = is_linked ? answer_.linked_etag : answer_.etag;
    file->is_hash = is_linked && IsSha256(file->etag);
    if (!IsBlobName(file->etag)) {
      return NotAllowed(url + ": ETag is " + QuotedText(file->etag),
                        "one that can name a file in the cache");
    }
    if (answer_.linked_size || !answer_.content_encoding.empty()) return answer_.linked_size;
    return answer_.length;
  }

  const std::string url;
  std::string* text = nullptr;       // or:
  BlobFile* blob = nullptr;          // or:
  bool describes = false;            // HEAD
  LoadProgress* progress = nullptr;  // for a blob
  bool is_running = false, is_done = false;
  Clock::time_point not_before;

 private:
  template <typename Value>
  void Set(CURLoption option, Value value) {
    DS_CHECK(curl_easy_setopt(easy_.get(), option, value) == CURLE_OK, "libcurl has the option");
  }
  void AddHeader(const std::string& header) {
    curl_slist* const longer = curl_slist_append(headers_.get(), header.c_str());
    DS_CHECK(longer != nullptr, "memory for a header");
    static_cast<void>(headers_.release());
    headers_.reset(longer);
  }

  // libcurl's words. Only an address with a password has an @ in them, such as that of a proxy.
  std::string WordsOf(CURLcode code) const {
    const std::string_view words = error_;
    const bool is_shown = !words.empty() && words.find('@') == std::string_view::npos;
    return is_shown ? error_ : curl_easy_strerror(code);
  }

  Result<bool> Finish() {
    Result<bool> finished = blob->Finish();
    if (!finished.ok() || *finished || ++wrong_contents_ < kMaxWrongContents) return finished;
    return InvalidArgument(url + ": came " + std::to_string(kMaxWrongContents) +
                           " times with another content than the hash that the hub lists, " +
                           blob->file().etag);
  }

  // Where a hub leads to another host for a large file, it says all about the file itself. The
  // other host may allow only GET.
  bool HasLinked() const { return !answer_.linked_etag.empty() && answer_.linked_size; }

  // After a coding that cannot be decoded, which is that of a whole file if its middle came.
  Status LoseCoded() {
    if (first_byte_ > 0) return blob->Restart();
    return InvalidArgument(url + ": Content-Encoding is \"" + ShownJson(answer_.content_encoding) +
                           "\", which cannot be decoded; identity was asked for; use another "
                           "HF_ENDPOINT");
  }

  // A line of the head; a redirect has heads of its own.
  static size_t TakeHeader(char* data, size_t, size_t size, void* self) {
    auto& transfer = *static_cast<Transfer*>(self);
    HubAnswer& answer = transfer.answer_;
    const std::string_view line(data, size);
    if (line.starts_with("HTTP/")) answer = {};
    transfer.head_bytes_ += size;
    if (transfer.head_bytes_ > kMaxHeadBytes) return transfer.Refuse("sends a head without end"), 0;
    if (line == "\r\n" && transfer.describes && transfer.HasLinked()) return 0;  // ends the try
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) return size;
    std::string name(line.substr(0, colon));
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
    const std::string value = Trimmed(line.substr(colon + 1));
    if (name == "x-error-code") answer.error_code = value;
    if (name == "x-error-message") answer.error_message = value;
    if (name == "content-range") answer.content_range = value;
    if (name == "content-encoding" && value != "identity") answer.content_encoding = value;
    if (name == "content-length") answer.length = NumberIn(value);
    if (name == "x-linked-size") answer.linked_size = NumberIn(value);
    if (name == "etag") answer.etag = EtagIn(value);
    if (name == "x-linked-etag") answer.linked_etag = EtagIn(value);
    if (name == "retry-after" || (name == "ratelimit" && !answer.retry_after_s))
      answer.retry_after_s = SecondsIn(value);
    return size;
  }

  // Returns another number than `size` to end the try.
  static size_t TakeBody(char* data, size_t, size_t size, void* self) {
    return static_cast<Transfer*>(self)->Take({data, size}) ? size : CURL_WRITEFUNC_ERROR;
  }

  // libcurl calls it about once a second.
  static int Watch(void* self, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
    auto& transfer = *static_cast<Transfer*>(self);
    if (transfer.blob == nullptr || transfer.has_body_ ||
        Clock::now() < transfer.begun_ + transfer.max_wait_)
      return 0;
    transfer.Refuse("sends no byte of the file within " +
                    std::to_string(transfer.max_wait_.count()) + " s");
    return 1;  // ends the try
  }

  bool Take(std::string_view bytes) {
    curl_easy_getinfo(easy_.get(), CURLINFO_RESPONSE_CODE, &answer_.status);
    is_refusal_ = !answer_.is_success();
    if (is_refusal_) return false;  // the words of an error are not shown, and may have no end
    if (text != nullptr) {
      if (text->size() + bytes.size() > kMaxTextBytes) return Refuse("sends more than 32 MiB");
      text->append(bytes);
      return true;
    }
    if (!has_body_ && !TakeFirst()) return false;
    if (bytes.size() > blob->missing()) {
      failure_ = blob->Restart();
      return Refuse("sends more bytes than the " + std::to_string(blob->file().size) + " it lists");
    }
    failure_ = blob->Append(bytes);
    progress->Add(bytes.size());
    return failure_.ok();
  }

  // Checks where the body of this answer begins.
  bool TakeFirst() {
    has_body_ = true;
    if (answer_.status == 200) {  // the whole file, whatever was asked
      if (first_byte_ > 0) failure_ = blob->Restart();
      return failure_.ok();
    }
    const std::optional<ByteRange> range = ParseContentRange(answer_.content_range);
    if (!answer_.content_encoding.empty()) {  // its bytes are counted after the coding
      failure_ = blob->Restart();
      return Refuse("sends a range of a file in the coding " + ShownJson(answer_.content_encoding));
    }
    if (range && range->first == first_byte_ && range->size == blob->file().size) return true;
    failure_ = blob->Restart();
    return Refuse("sends the range \"" + ShownJson(answer_.content_range) + "\", asked for " +
                  std::to_string(first_byte_) + "- of " + std::to_string(blob->file().size));
  }

  bool Refuse(std::string why) {
    answer_.transport_error = std::move(why);
    return false;
  }

  const std::chrono::seconds max_wait_;
  const std::unique_ptr<CURL, EndEasy> easy_;
  std::unique_ptr<curl_slist, EndList> headers_;
  int tries_ = 0, wrong_contents_ = 0;
  // The try that runs:
  HubAnswer answer_;
  Status failure_;  // of the blob
  bool has_body_ = false;
  bool is_refusal_ = false;  // the body of an error came, and ended the try
  size_t head_bytes_ = 0;
  Clock::time_point begun_;
  uint64_t first_byte_ = 0;
  char error_[CURL_ERROR_SIZE] = {};
};

class HubClient::Multi {
 public:
  Multi() {
    DS_CHECK(curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK, "libcurl starts");
    handle_ = curl_multi_init();
    DS_CHECK(handle_ != nullptr, "libcurl has a handle");
  }
  ~Multi() { curl_multi_cleanup(handle_); }
  Multi(const Multi&) = delete;
  Multi& operator=(const Multi&) = delete;

  void Add(CURL* easy) { curl_multi_add_handle(handle_, easy); }
  // Works for up to `wait`, then calls `end(transfer, code)` for each one that has ended.
  template <typename End>
  void Work(milliseconds wait, const End& end) {
    int running = 0;
    curl_multi_perform(handle_, &running);
    int messages = 0;
    bool has_ended = false;
    while (const CURLMsg* const message = curl_multi_info_read(handle_, &messages)) {
      if (message->msg != CURLMSG_DONE) continue;
      CURL* const easy = message->easy_handle;
      const CURLcode code = message->data.result;
      Transfer* transfer = nullptr;
      curl_easy_getinfo(easy, CURLINFO_PRIVATE, &transfer);
      curl_multi_remove_handle(handle_, easy);  // `message` ends here
      end(*transfer, code);
      has_ended = true;
    }
    if (!has_ended) curl_multi_poll(handle_, nullptr, 0, static_cast<int>(wait.count()), nullptr);
  }
  void Remove(CURL* easy) { curl_multi_remove_handle(handle_, easy); }

 private:
  CURLM* handle_;
};

HubClient::HubClient(const HubSettings& settings, const HubName& name)
    : settings_(settings), name_(name), multi_(std::make_unique<Multi>()) {}
HubClient::~HubClient() = default;

std::unique_ptr<HubClient::Transfer> HubClient::NewTransfer(const std::string& path) const {
  return std::make_unique<Transfer>(settings_.endpoint + path, settings_,
                                    has_fallback_ ? settings_.etag_timeout_s : kMaxWaitS);
}

Result<std::string> HubClient::Read(const std::string& path) {
  std::string text;
  std::vector<std::unique_ptr<Transfer>> transfers;
  transfers.push_back(NewTransfer(path));
  transfers.back()->text = &text;
  DS_RETURN_IF_ERROR(Run(transfers, /*is_patient=*/!has_fallback_));
  return text;
}

std::string HubClient::PathOf(const std::string& commit, const std::string& file) const {
  return "/" + name_.repository + "/resolve/" + commit + "/" + Escaped(file);
}

Status HubClient::Describe(const std::string& commit, std::vector<HubFile>* files) {
  std::vector<HubFile*> unknown;
  std::vector<std::unique_ptr<Transfer>> transfers;
  for (HubFile& file : *files) {
    if (!file.etag.empty()) continue;
    unknown.push_back(&file);
    transfers.push_back(NewTransfer(PathOf(commit, file.name)));
    transfers.back()->describes = true;
  }
  DS_RETURN_IF_ERROR(Run(transfers, /*is_patient=*/!has_fallback_));
  for (size_t i = 0; i < unknown.size(); ++i) {
    Result<std::optional<uint64_t>> size = transfers[i]->Describe(unknown[i]);
    if (!size.ok()) return size.status();
    if (!*size) {  // such files are texts, which the answer has in a coding
      const Result<std::string> text = Read(PathOf(commit, unknown[i]->name));
      if (!text.ok()) return text.status();
      *size = text->size();
    }
    unknown[i]->size = **size;
  }
  return {};
}

Status HubClient::Fetch(const std::string& commit,
                        const std::vector<std::unique_ptr<BlobFile>>& blobs,
                        LoadProgress& progress) {
  std::vector<std::unique_ptr<Transfer>> transfers;
  for (const std::unique_ptr<BlobFile>& blob : blobs) {
    if (blob->missing() == 0) {  // an earlier attempt ended before its name was given
      const Result<bool> finished = blob->Finish();
      if (!finished.ok()) return finished.status();
      if (*finished) continue;
    }
    transfers.push_back(NewTransfer(PathOf(commit, blob->file().name)));
    transfers.back()->blob = blob.get();
    transfers.back()->progress = &progress;
  }
  return Run(transfers, /*is_patient=*/true);
}

Status HubClient::Run(std::vector<std::unique_ptr<Transfer>>& transfers, bool is_patient) {
  Status status;
  size_t num_running = 0, num_left = transfers.size();
  const auto end = [&](Transfer& transfer, CURLcode code) {
    --num_running;
    const Result<bool> ended = transfer.End(code, name_, settings_, is_patient);
    if (!ended.ok() && status.ok()) status = ended.status();
    transfer.is_done = ended.ok() && *ended;
    num_left -= transfer.is_done;
  };
  while (status.ok() && num_left > 0) {
    milliseconds wait = kMaxPoll;
    for (const std::unique_ptr<Transfer>& transfer : transfers) {
      if (transfer->is_done || transfer->is_running || num_running == kMaxAtOnce) continue;
      const auto until = std::chrono::ceil<milliseconds>(transfer->not_before - Clock::now());
      if (until > milliseconds(0)) {
        wait = std::min(wait, until);
        continue;
      }
      transfer->Begin();
      multi_->Add(transfer->easy());
      ++num_running;
    }
    multi_->Work(wait, end);
  }
  for (const std::unique_ptr<Transfer>& transfer : transfers) {
    if (transfer->is_running) multi_->Remove(transfer->easy());
  }
  return status;
}

}  // namespace diffserve
