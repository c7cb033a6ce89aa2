// SPDX-License-Identifier: Apache-2.0
// Failpoints of the test program: the socket calls go through them (the program defines them in
// place of the C library's), and one call of the armed kind on the armed thread fails.
//
// Thread safety: Arm and Disarm on the test's thread, while no call is in a failpoint that matters.
#pragma once

#include <string>

namespace diffserve::testing {

enum class Failpoint { kAccept, kReceive, kSend };

struct Armed {
  Failpoint point = Failpoint::kAccept;
  std::string thread;  // its name
  int call = 1;        // which one fails, from 1
  int error = 0;       // of the call; 0: it takes or gives a single byte
};

void Arm(const Armed& armed);
// Whether the call that was to fail has come.
bool Disarm();

}  // namespace diffserve::testing
