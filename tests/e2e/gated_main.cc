// SPDX-License-Identifier: Apache-2.0
#include "tests/e2e/gated_server.h"

int main(int argc, char** argv) { return diffserve::RunGatedProgram(argc, argv); }
