#include "server/http/loop.h"

#include <boost/asio/post.hpp>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/base/thread_registry.h"
#include "server/http/session.h"

namespace diffserve {

namespace asio = boost::asio;
using tcp = asio::ip::tcp;

void HttpShared::ConnectionEnded() {
  --connections;
  std::lock_guard lock(mutex);
  ended.notify_all();
  if (on_ended) on_ended();
}

struct HttpLoop::Impl {
  std::shared_ptr<HttpShared> shared;
  // Also held by those who may still wake a session of it.
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
  // What is still queued holds sessions, and they hold the loop: it is run to its end here.
  context.restart();
  StopSessions(HttpEnding::kNow);
  context.poll();
}

void HttpLoop::Adopt(int socket_fd, bool ipv6) {
  ++impl_->shared->connections;
  tcp::socket socket(impl_->loop->context, ipv6 ? tcp::v6() : tcp::v4(), socket_fd);
  auto session = std::make_shared<HttpSession>(std::move(socket), impl_->loop, impl_->shared);
  asio::post(impl_->loop->context, [loop = impl_->loop, session] {
    loop->sessions.insert(session);
    session->Start();
  });
}

void HttpLoop::StopSessions(HttpEnding ending) {
  asio::post(impl_->loop->context, [loop = impl_->loop, ending] {
    const std::vector<std::shared_ptr<HttpSession>> sessions(loop->sessions.begin(),
                                                             loop->sessions.end());
    for (const auto& session : sessions) session->Stop(ending);
  });
}

}  // namespace diffserve
