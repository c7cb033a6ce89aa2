//! What a rendering may take: steps, memory and the size of one text. Each limit is an error.

use std::cell::Cell;

use super::error::{fail, Result};
use crate::counted_memory::held_bytes;

/// Steps a rendering may take: hundreds of times what a long conversation needs, and below a
/// second.
pub const MAX_STEPS: u64 = 5_000_000;
pub const MAX_TEXT_BYTES: usize = 32 << 20;
/// Values that a rendering holds at once.
const MAX_HELD_BYTES: isize = 256 << 20;
/// What one step does to a text.
const BYTES_PER_STEP: usize = 64;
/// A thread has 8 MiB.
const MAX_STACK_BYTES: usize = 3 << 20;

thread_local! {
    static STEPS: Cell<u64> = const { Cell::new(0) };
    static HELD_AT_START: Cell<isize> = const { Cell::new(0) };
    static STACK_AT_START: Cell<usize> = const { Cell::new(0) };
}

/// Gives this thread's next template all of it.
pub fn begin() {
    STEPS.with(|steps| steps.set(0));
    HELD_AT_START.with(|held| held.set(held_bytes()));
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
    if held_bytes() - HELD_AT_START.with(|held| held.get()) > MAX_HELD_BYTES {
        return fail(format!("the template's values take more than {MAX_HELD_BYTES} bytes"));
    }
    Ok(())
}

/// The same where nothing can fail: false once all is spent, and the next step fails.
pub fn is_left(count: u64) -> bool {
    spend(count).is_ok()
}

/// For a text of so many bytes.
pub fn steps_of(bytes: usize) -> u64 {
    (bytes / BYTES_PER_STEP) as u64 + 1
}

/// Before a text has so many bytes.
pub fn check_text(bytes: usize) -> Result<()> {
    if bytes > MAX_TEXT_BYTES {
        return fail(format!("the text is above {MAX_TEXT_BYTES} bytes"));
    }
    Ok(())
}

/// Before a text of so many bytes is read or made.
pub fn spend_text(bytes: usize) -> Result<()> {
    check_text(bytes)?;
    spend(steps_of(bytes))
}

/// Before a list of so many items is read or made.
pub fn spend_items(items: usize) -> Result<()> {
    spend(items as u64 + 1)
}

/// A macro, block, loop or expression within others takes stack.
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
