// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/shim/fiber_context.h"

asm(R"(
.text
.globl DiffserveShimSwitch
.type DiffserveShimSwitch, @function
DiffserveShimSwitch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq (%rsi), %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size DiffserveShimSwitch, . - DiffserveShimSwitch
)");
