// SPDX-License-Identifier: Apache-2.0
#include "server/http/loop.h"

#include <unistd.h>

#include <boost/asio/post.hpp>
#include <thread>
#include <utility>

#include "kernels/process/thread_registry.h"
#include "server/http/session/session.h"

namespace diffserve {

namespace asio = boost::asio;
using Stream = asio::generic::stream_protocol;

struct HttpLoop::Impl {
  std::shared_ptr<HttpShared> shared;
  // Also held by threads that may still wake one of its sessions.
  std::shared_ptr<HttpSessions> loop = std::make_shared<HttpSessions>();
  std::thread thread;
};

HttpLoop::HttpLoop(std::shared_ptr<HttpShared> shared) : impl_(std::make_unique<Impl>()) {
  impl_->shared = std::move(shared);
  impl_->thread = std::thread([loop = impl_->loop] {
    const NamedThread named("http", "the network");
    const auto work = asio::make_work_guard(loop->context);
    loop->context.run();
  });
}

HttpLoop::~HttpLoop() {
  asio::io_context& context = impl_->loop->context;
  context.stop();
  impl_->thread.join();
  // Queued handlers hold sessions, which hold the loop, so the queue is run to its end here.
  context.restart();
  StopSessions(HttpEnding::kNow);
  context.poll();
}

void HttpLoop::Adopt(int socket_fd, int family, std::unique_ptr<ConnectionTable::Entry> entry) {
  Stream::socket socket(impl_->loop->context);
  boost::system::error_code error;
  socket.assign(Stream(family, 0), socket_fd, error);
  if (error) {
    close(socket_fd);
    return;
  }
  ++impl_->shared->connections;
  const auto session = std::make_shared<HttpSession>(std::move(socket), std::move(entry),
                                                     impl_->loop, impl_->shared);
  asio::post(impl_->loop->context, [loop = impl_->loop, session] {
    loop->sessions.insert(session);
    session->Start();
  });
}

void HttpLoop::StopSessions(HttpEnding ending) {
  asio::post(impl_->loop->context, [loop = impl_->loop, ending] {
    for (auto it = loop->sessions.begin(); it != loop->sessions.end();) {
      const std::shared_ptr<HttpSession> session = *it++;  // Stop may take it out
      session->Stop(ending);
    }
  });
}

}  // namespace diffserve
