// SPDX-License-Identifier: Apache-2.0
// Descriptors 0, 1 and 2 of the process. In a program that calls this, those that are closed at the
// start are opened on /dev/null before any library opens a file. So no socket or file gets a number
// to which lines are written.
#pragma once

namespace diffserve {

// False: one was closed, and /dev/null could not be opened in its place.
bool StandardStreamsAreOpen();

}  // namespace diffserve
