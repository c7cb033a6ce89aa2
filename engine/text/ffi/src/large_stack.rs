// SPDX-License-Identifier: Apache-2.0
//! A stack that is large enough for each grammar.

use crate::panics::without_panic;

/// The library calls itself once per level of a grammar, which takes up to 4 KiB. What is not used
/// costs no memory.
const STACK_BYTES: usize = 64 << 20;

/// Runs `work` on a thread of its own.
pub fn on_large_stack<T: Send>(
    work: impl FnOnce() -> Result<T, String> + Send,
) -> Result<T, String> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("grammar".into()).stack_size(STACK_BYTES);
        let thread = thread.spawn_scoped(scope, || without_panic(work));
        let thread = thread.map_err(|e| format!("no thread for the grammar: {e}"))?;
        thread.join().unwrap_or_else(|_| Err("the grammar's thread failed".into()))
    })
}
