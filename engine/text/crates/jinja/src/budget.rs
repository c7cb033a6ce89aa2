// SPDX-License-Identifier: Apache-2.0
//! Limits of a rendering: steps, memory and the size of one text. Exceeding one is an error.

use std::cell::Cell;

use super::error::{fail, Result};

/// The bytes that this thread holds allocated, as the caller counts them. Only differences matter.
pub type HeldBytes = fn() -> isize;

/// Maximum steps per rendering: hundreds of times those of a long conversation, and less than a
/// second.
pub const MAX_STEPS: u64 = 5_000_000;
pub const MAX_TEXT_BYTES: usize = 32 << 20;
/// Maximum memory of a rendering's values at any time.
const MAX_HELD_BYTES: isize = 256 << 20;
/// Bytes of text that one step processes.
const BYTES_PER_STEP: usize = 64;
/// A thread has 8 MiB of stack.
const MAX_STACK_BYTES: usize = 3 << 20;

thread_local! {
    static STEPS: Cell<u64> = const { Cell::new(0) };
    static HELD_BYTES: Cell<HeldBytes> = const { Cell::new(|| 0) };
    static HELD_AT_START: Cell<isize> = const { Cell::new(0) };
    static STACK_AT_START: Cell<usize> = const { Cell::new(0) };
}

/// Resets the budget for this thread's next rendering.
pub fn begin(held_bytes: HeldBytes) {
    STEPS.with(|steps| steps.set(0));
    HELD_BYTES.with(|held| held.set(held_bytes));
    HELD_AT_START.with(|held| held.set(held_bytes()));
    begin_stack();
}

/// Only for `check_stack`: parsing spends no steps.
pub fn begin_stack() {
    STACK_AT_START.with(|start| start.set(stack_now()));
}

pub fn spend(count: u64) -> Result<()> {
    let taken = STEPS.with(|steps| {
        steps.set(steps.get().saturating_add(count));
        steps.get()
    });
    if taken > MAX_STEPS {
        return fail(format!("the template took more than {MAX_STEPS} steps"));
    }
    let held_bytes = HELD_BYTES.with(|held| held.get());
    if held_bytes() - HELD_AT_START.with(|held| held.get()) > MAX_HELD_BYTES {
        return fail(format!("the template's values take more than {MAX_HELD_BYTES} bytes"));
    }
    Ok(())
}

/// Like spend, for code that cannot fail: false once the budget is used up; the next step then
/// fails.
pub fn is_left(count: u64) -> bool {
    spend(count).is_ok()
}

/// The number of steps for a text of `bytes` bytes.
pub fn steps_of(bytes: usize) -> u64 {
    (bytes / BYTES_PER_STEP) as u64 + 1
}

/// Call before a text grows to `bytes` bytes.
pub fn check_text(bytes: usize) -> Result<()> {
    if bytes > MAX_TEXT_BYTES {
        return fail(format!("the text is above {MAX_TEXT_BYTES} bytes"));
    }
    Ok(())
}

/// Call before a text of `bytes` bytes is read or made.
pub fn spend_text(bytes: usize) -> Result<()> {
    check_text(bytes)?;
    spend(steps_of(bytes))
}

/// Call before a list of `items` items is read or made.
pub fn spend_items(items: usize) -> Result<()> {
    spend(items as u64 + 1)
}

/// Call for each nested macro, block, loop or expression, which uses stack.
pub fn check_stack() -> Result<()> {
    let start = STACK_AT_START.with(|start| start.get());
    if start.abs_diff(stack_now()) > MAX_STACK_BYTES {
        return fail("the template's calls or expressions are nested too deep");
    }
    Ok(())
}

#[inline(never)]
fn stack_now() -> usize {
    let marker = 0u8;
    std::hint::black_box(&marker) as *const u8 as usize
}
