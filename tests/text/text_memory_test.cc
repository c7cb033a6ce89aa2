// SPDX-License-Identifier: Apache-2.0
#include "engine/text/text_memory.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdlib>
#include <string>

#include "tests/testing/text/text_fixture.h"

namespace diffserve {
namespace {

TEST(TextMemoryTest, FailedAllocationReachesItsHandlerWithTheBytes) {
  for (const char* sanitizer : {"__asan_init", "__tsan_init"}) {
    if (dlsym(RTLD_DEFAULT, sanitizer) != nullptr) GTEST_SKIP() << "it ends the process first";
  }
  const auto tokenizer = LoadTokenizerFixture("byte_bpe");
  const std::string text(size_t{16} << 20, 'a');
  const auto encode_without_memory = [&] {
    OnFailedTextAllocation([](size_t bytes) { std::_Exit(bytes > 0 ? 7 : 8); });
    const rlimit none = {.rlim_cur = 1 << 20, .rlim_max = 1 << 20};  // below what is in use
    if (setrlimit(RLIMIT_AS, &none) == 0) static_cast<void>(tokenizer->Encode(text, false));
    std::_Exit(0);
  };
  EXPECT_EXIT(encode_without_memory(), ::testing::ExitedWithCode(7), "");
}

}  // namespace
}  // namespace diffserve
