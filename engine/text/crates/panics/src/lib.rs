// SPDX-License-Identifier: Apache-2.0
//! Turns panics of the libraries into errors, and messages into one line.

use std::cell::Cell;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Once;

const MAX_MESSAGE_BYTES: usize = 600;

thread_local! {
    static PANIC_LINE: Cell<u32> = const { Cell::new(0) };
}

/// A panic's message may quote the tokenized text, so only its source line is reported.
fn silence_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        std::panic::set_hook(Box::new(|info| {
            PANIC_LINE.with(|line| line.set(info.location().map_or(0, |at| at.line())))
        }));
    });
}

pub fn one_line(message: &str) -> String {
    let mut out = String::new();
    for c in message.chars() {
        if out.len() + c.len_utf8() > MAX_MESSAGE_BYTES {
            out.push_str("...");
            break;
        }
        out.push(if c.is_control() { ' ' } else { c });
    }
    out
}

/// The result of `work`; a panic becomes an error.
pub fn without_panic<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    silence_panics();
    let payload = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => return result,
        Err(payload) => payload,
    };
    let line = PANIC_LINE.with(|line| line.get());
    if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(second); // its destructor might panic again
    }
    Err(format!("the text library failed (line {line})"))
}
