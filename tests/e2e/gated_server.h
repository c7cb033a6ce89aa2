// SPDX-License-Identifier: Apache-2.0
// diffserve with a gate before each step, so that a test decides what shares a batch and what still
// runs, on machines of any speed. The file named by DIFFSERVE_GATE has "ROUND STEPS": for each new
// ROUND the engine may launch STEPS more steps (-1: no limit) and then waits. With
// DIFFSERVE_HELD_READ, the first read of a tensor creates the named file and never returns. Step
// DIFFSERVE_CRASH_STEP raises a fatal signal; step DIFFSERVE_FAILED_CHECK_STEP fails a check; step
// DIFFSERVE_OVERFLOW_STEP uses up the stack.
// Without these variables it is diffserve.
#pragma once

namespace diffserve {

// The program's main function.
int RunGatedProgram(int argc, char** argv);

}  // namespace diffserve
