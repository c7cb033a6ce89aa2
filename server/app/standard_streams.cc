// SPDX-License-Identifier: Apache-2.0
#include "server/app/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <initializer_list>

namespace diffserve {
namespace {

bool are_open = true;

void Open() {
  for (int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) >= 0) continue;
    are_open = are_open && open("/dev/null", O_RDWR) == stream;  // open returns the lowest free
                                                                 // descriptor
  }
}

// Runs before the initialisers of shared libraries: gRPC's opens a descriptor.
[[gnu::section(".preinit_array"), gnu::used]] void (*const open_first)() = Open;

}  // namespace

bool StandardStreamsAreOpen() { return are_open; }

}  // namespace diffserve
