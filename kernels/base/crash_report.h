// What is said of a fatal signal or a failed DS_CHECK: one line on stderr with version, commit,
// thread, the numbers of the last step and a backtrace by glibc's backtrace, as module+offset for
// addr2line; never text of a request. Then the signal has its default effect.
//
// The handler allocates nothing and takes no lock of ours. glibc's backtrace and dladdr are not
// among the functions that POSIX promises to be safe there: a crash inside the dynamic loader may
// go without its line. So does an overflow of a stack, on which the handler would run.
#pragma once

#include <cstdint>
#include <string_view>

namespace diffserve {

// For the rest of the process. The texts live as long.
void InstallCrashReport(const char* version, const char* commit);

// The step that is being launched.
void NoteStep(uint64_t step, int num_sequences, int num_tokens);

// Of DS_CHECK, before it aborts. False: no report is installed, and nobody has told it.
bool NoteFailedCheck(const char* file, int line, const char* condition, std::string_view reason);

}  // namespace diffserve
