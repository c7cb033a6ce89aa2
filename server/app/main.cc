// SPDX-License-Identifier: Apache-2.0
// diffserve: reads the command line and runs one command.
#include "server/app/commands/commands.h"

int main(int argc, char** argv) { return diffserve::RunProgram(argc, argv); }
