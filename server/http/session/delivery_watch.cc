// SPDX-License-Identifier: Apache-2.0
#include "server/http/session/delivery_watch.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>

#include <utility>

namespace diffserve {

bool DeliveryWatch::IsStalled(size_t undelivered, TimePoint now) {
  const uint64_t delivered = given_bytes_ - undelivered;
  if (delivered != std::exchange(delivered_bytes_, delivered)) last_delivery_ = now;
  return now - last_delivery_ >= stall_timeout_;
}

size_t UndeliveredBytes(int socket_fd) {
  int bytes = 0;
  return ioctl(socket_fd, SIOCOUTQ, &bytes) == 0 && bytes > 0 ? static_cast<size_t>(bytes) : 0;
}

}  // namespace diffserve
