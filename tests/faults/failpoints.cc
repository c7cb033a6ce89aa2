// SPDX-License-Identifier: Apache-2.0
#include "tests/faults/failpoints.h"

#include <dlfcn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

namespace diffserve::testing {
namespace {

constexpr int kMaxDescriptors = 1 << 16;

std::atomic<bool> is_armed{false};
Failpoint armed_point = Failpoint::kAccept;
char armed_thread[16] = "";
int armed_error = 0;
std::atomic<int> calls_left{0};
std::atomic<bool> accepted_for_grpc[kMaxDescriptors];  // by the listener of the gRPC port

bool IsOnThread(const char* name) {
  char own[16] = "";
  prctl(PR_GET_NAME, own);
  return std::strcmp(own, name) == 0;
}

bool Fails(Failpoint point) {
  if (!is_armed.load(std::memory_order_acquire) || point != armed_point) return false;
  return IsOnThread(armed_thread) && --calls_left == 0;
}

// gRPC reads and writes on its own threads, which its clients in this process share. So the
// server's gRPC connections are recognised by their descriptors, and armed by the name of the
// thread that accepted them.
bool FailsAt(Failpoint point, int fd) {
  if (!is_armed.load(std::memory_order_acquire) || point != armed_point) return false;
  const bool of_grpc = fd >= 0 && fd < kMaxDescriptors && accepted_for_grpc[fd].load();
  if (of_grpc) return std::strcmp(armed_thread, "grpc-accept") == 0 && --calls_left == 0;
  return IsOnThread(armed_thread) && --calls_left == 0;
}

template <typename Function>
Function* Real(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

void Arm(const Armed& armed) {
  armed_point = armed.point;
  armed_thread[armed.thread.copy(armed_thread, sizeof(armed_thread) - 1)] = 0;
  armed_error = armed.error;
  calls_left = armed.call;
  is_armed.store(true, std::memory_order_release);
}

bool Disarm() {
  is_armed = false;
  return calls_left.load() <= 0;
}

// -1 with errno, or what the real call gives of `bytes` or of one.
template <typename Call>
ssize_t Transfer(Failpoint point, int fd, size_t bytes, const Call& call) {
  if (!FailsAt(point, fd)) return call(bytes);
  if (armed_error == 0) return call(std::min<size_t>(bytes, 1));
  errno = armed_error;
  return -1;
}

// Messages of several pieces are cut to the first byte.
template <typename Call>
ssize_t TransferMessage(Failpoint point, int fd, const msghdr* message, const Call& call) {
  if (!FailsAt(point, fd)) return call(message);
  errno = armed_error;
  if (armed_error != 0) return -1;
  iovec first = message->msg_iovlen > 0 ? message->msg_iov[0] : iovec{};
  first.iov_len = std::min<size_t>(first.iov_len, 1);
  msghdr cut = *message;
  cut.msg_iov = &first;
  cut.msg_iovlen = std::min<size_t>(message->msg_iovlen, 1);
  return call(&cut);
}

}  // namespace diffserve::testing

using diffserve::testing::Failpoint;

extern "C" {

int accept(int fd, sockaddr* address, socklen_t* size) {
  static auto* const real = diffserve::testing::Real<decltype(accept)>("accept");
  if (!diffserve::testing::Fails(Failpoint::kAccept)) return real(fd, address, size);
  errno = diffserve::testing::armed_error;
  return -1;
}

int accept4(int fd, sockaddr* address, socklen_t* size, int flags) {
  static auto* const real = diffserve::testing::Real<decltype(accept4)>("accept4");
  if (diffserve::testing::Fails(Failpoint::kAccept)) {
    errno = diffserve::testing::armed_error;
    return -1;
  }
  const int accepted = real(fd, address, size, flags);
  if (accepted >= 0 && accepted < diffserve::testing::kMaxDescriptors)
    diffserve::testing::accepted_for_grpc[accepted] = diffserve::testing::IsOnThread("grpc-accept");
  return accepted;
}

int close(int fd) {
  static auto* const real = diffserve::testing::Real<decltype(close)>("close");
  if (fd >= 0 && fd < diffserve::testing::kMaxDescriptors)
    diffserve::testing::accepted_for_grpc[fd] = false;
  return real(fd);
}

ssize_t recv(int fd, void* buffer, size_t bytes, int flags) {
  static auto* const real = diffserve::testing::Real<decltype(recv)>("recv");
  return diffserve::testing::Transfer(Failpoint::kReceive, fd, bytes,
                                      [&](size_t count) { return real(fd, buffer, count, flags); });
}

ssize_t send(int fd, const void* buffer, size_t bytes, int flags) {
  static auto* const real = diffserve::testing::Real<decltype(send)>("send");
  return diffserve::testing::Transfer(Failpoint::kSend, fd, bytes,
                                      [&](size_t count) { return real(fd, buffer, count, flags); });
}

ssize_t recvmsg(int fd, msghdr* message, int flags) {
  static auto* const real = diffserve::testing::Real<decltype(recvmsg)>("recvmsg");
  return diffserve::testing::TransferMessage(
      Failpoint::kReceive, fd, message,
      [&](const msghdr* cut) { return real(fd, const_cast<msghdr*>(cut), flags); });
}

ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  static auto* const real = diffserve::testing::Real<decltype(sendmsg)>("sendmsg");
  return diffserve::testing::TransferMessage(
      Failpoint::kSend, fd, message, [&](const msghdr* cut) { return real(fd, cut, flags); });
}

}  // extern "C"
