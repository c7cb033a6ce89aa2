// Descriptors 0, 1 and 2 of the process. In a program that asks for this, those that are closed at
// the start are opened on /dev/null before any library opens something, so that no socket or file
// gets a number that lines are written to.
#pragma once

namespace diffserve {

// False: one was closed, and /dev/null could not be opened in its place.
bool StandardStreamsAreOpen();

}  // namespace diffserve
