// SPDX-License-Identifier: Apache-2.0
// The report of a fatal signal, a failed DS_CHECK, an uncaught exception or memory that ran out:
// one line on stderr. It has version, commit, thread, the numbers of the last step and glibc's
// backtrace as module+offset for addr2line; never text of a request. Then the signal has its
// default effect.
//
// The handler allocates nothing and takes no lock of ours. POSIX does not promise that glibc's
// backtrace and dladdr are safe in a signal handler: a crash inside the dynamic loader may lack its
// line. So does a stack overflow on a thread that is no NamedThread: the handler needs a
// SignalStack.
#pragma once

#include <cstdint>
#include <string_view>

namespace diffserve {

// Active for the rest of the process; the texts must live as long.
void InstallCrashReport(const char* version, const char* commit);

// From now on an allocation that fails ends the process with the report. Nothing in a server
// handles that: limits at admission keep its memory bounded, and a restart is fast. Before this
// call a failed allocation throws, so that a failed start is reported with its numbers.
void CrashWhenMemoryRunsOut();

// The step that is being launched.
void NoteStep(uint64_t step, int num_sequences, int num_tokens);

// Called by DS_CHECK before it aborts. False: no report is installed, so the caller must print.
bool NoteFailedCheck(const char* file, int line, const char* condition, std::string_view reason);

}  // namespace diffserve
