// SPDX-License-Identifier: Apache-2.0
// Counts this program's opens and reads of files (the program defines them in place of the C
// library's), and calls a function before one of them.
//
// Thread safety: WatchFiles on the test's thread, while no other thread opens or reads a file that
// matters.
#pragma once

#include <functional>

namespace diffserve::testing {

// `act` is called before the call with this number, from 1; 0: before none. The calls that `act`
// makes do not count.
void WatchFiles(int call, std::function<void()> act);
// Ends the watch. Returns the number of calls that it saw.
int UnwatchFiles();

}  // namespace diffserve::testing
