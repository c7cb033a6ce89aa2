// SPDX-License-Identifier: Apache-2.0
#include "server/hub/blob_file.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

namespace diffserve {
namespace {

constexpr size_t kReadBytes = size_t{1} << 20;

struct EndContext {
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
};

}  // namespace

// The hash of the file's content. Git's SHA-1 is of a header and the content.
class BlobFile::Hash {
 public:
  explicit Hash(const HubFile& file) : context_(EVP_MD_CTX_new()) {
    const bool is_sha256 = IsSha256(file.etag);
    DS_CHECK(
        context_ != nullptr &&
            EVP_DigestInit_ex(context_.get(), is_sha256 ? EVP_sha256() : EVP_sha1(), nullptr) == 1,
        "OpenSSL has SHA-1 and SHA-256");
    if (is_sha256) return;
    const std::string header = "blob " + std::to_string(file.size);
    Add({header.c_str(), header.size() + 1});  // with the zero at its end
  }
  void Add(std::string_view bytes) {
    DS_CHECK(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1, "hash");
  }
  // In hexadecimal digits. Call once.
  std::string Digits() {
    unsigned char bytes[EVP_MAX_MD_SIZE];
    unsigned size = 0;
    DS_CHECK(EVP_DigestFinal_ex(context_.get(), bytes, &size) == 1, "hash");
    std::string digits;
    for (unsigned i = 0; i < size; ++i) {
      constexpr char kDigits[] = "0123456789abcdef";
      digits += kDigits[bytes[i] >> 4];
      digits += kDigits[bytes[i] & 15];
    }
    return digits;
  }

 private:
  const std::unique_ptr<EVP_MD_CTX, EndContext> context_;
};

BlobFile::BlobFile(std::filesystem::path blob, HubFile file)
    : blob_(std::move(blob)),
      incomplete_(blob_.string() + ".incomplete"),
      file_(std::move(file)),
      hash_(std::make_unique<Hash>(file_)) {}

BlobFile::~BlobFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

Result<std::unique_ptr<BlobFile>> BlobFile::Open(std::filesystem::path blob, HubFile file) {
  std::unique_ptr<BlobFile> opened(new BlobFile(std::move(blob), std::move(file)));
  // A link in its place would lead elsewhere.
  opened->descriptor_ = open(opened->incomplete_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW,
                             0666);
  if (opened->descriptor_ < 0) return opened->Failed("cannot be opened");
  DS_RETURN_IF_ERROR(opened->ReadEarlier());
  return opened;
}

Status BlobFile::ReadEarlier() {
  struct stat status{};
  if (fstat(descriptor_, &status) != 0) return Failed("cannot be read");
  // A pipe would never end, and a file with a second name belongs elsewhere too.
  if (!S_ISREG(status.st_mode) || status.st_nlink > 1) {
    return InvalidArgument(incomplete_.string() +
                           ": is no regular file with this name alone, which a download needs; "
                           "remove it");
  }
  if (static_cast<uint64_t>(status.st_size) > file_.size) return Restart();
  std::vector<char> bytes(kReadBytes);
  for (;;) {
    const ssize_t count = read(descriptor_, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Failed("cannot be read");
    if (count == 0) return {};
    hash_->Add({bytes.data(), static_cast<size_t>(count)});
    written_ += static_cast<uint64_t>(count);
  }
}

Status BlobFile::Append(std::string_view bytes) {
  DS_CHECK(bytes.size() <= missing(), "no byte beyond the file's size");
  while (!bytes.empty()) {
    const ssize_t count = write(descriptor_, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Failed("cannot be written");
    const std::string_view done = bytes.substr(0, static_cast<size_t>(count));
    hash_->Add(done);
    written_ += done.size();
    bytes.remove_prefix(done.size());
  }
  return {};
}

Status BlobFile::Restart() {
  if (ftruncate(descriptor_, 0) != 0 || lseek(descriptor_, 0, SEEK_SET) != 0)
    return Failed("cannot be emptied");
  written_ = 0;
  hash_ = std::make_unique<Hash>(file_);
  return {};
}

Result<bool> BlobFile::Finish() {
  DS_CHECK(missing() == 0, "all bytes");
  if (file_.is_hash && hash_->Digits() != file_.etag) {
    DS_RETURN_IF_ERROR(Restart());
    return false;
  }
  // A name without its bytes after a crash would be taken for a whole file.
  if (fsync(descriptor_) != 0) return Failed("cannot be written");
  if (rename(incomplete_.c_str(), blob_.c_str()) != 0) return Failed("cannot be renamed");
  return true;
}

Status BlobFile::Failed(const char* doing) const {
  return Status(StatusCode::kResourceExhausted,
                incomplete_.string() + ": " + doing + ": " + std::strerror(errno) + ", after " +
                    std::to_string(written_) + " of " + std::to_string(file_.size) +
                    " bytes; make room there, or name another folder in HF_HUB_CACHE; the next "
                    "start goes on where this one stopped");
}

}  // namespace diffserve
