// SPDX-License-Identifier: Apache-2.0
#include "engine/text/large_stack.h"

#include <pthread.h>

#include <cstddef>
#include <cstring>
#include <string>

#include "kernels/process/check.h"
#include "kernels/process/thread_registry.h"

namespace diffserve {
namespace {

// The library calls itself once per level of a grammar, which takes up to 4 KiB. lark_text.rs
// limits the levels to 10,000.
constexpr size_t kStackBytes = size_t{64} << 20;
constexpr int kRetryAfterS = 1;

void* RunWork(void* work) {
  const NamedThread named("grammar", "a grammar");
  (*static_cast<const std::function<void()>*>(work))();
  return nullptr;
}

}  // namespace

Status RunOnLargeStack(const std::function<void()>& work) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  DS_CHECK(pthread_attr_setstacksize(&attributes, kStackBytes) == 0, "a stack may be this large");
  pthread_t thread;
  const int failure = pthread_create(&thread, &attributes, RunWork,
                                     const_cast<std::function<void()>*>(&work));
  pthread_attr_destroy(&attributes);
  if (failure != 0) {
    return Status(StatusCode::kResourceExhausted,
                  std::string("no thread could be started for the grammar: ") + strerror(failure) +
                      "; retry later")
        .WithRetryAfter(kRetryAfterS);
  }
  pthread_join(thread, nullptr);
  return {};
}

}  // namespace diffserve
