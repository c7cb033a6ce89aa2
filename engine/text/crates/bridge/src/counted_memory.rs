// SPDX-License-Identifier: Apache-2.0
//! Measures how much memory a piece of work leaves allocated: what its thread has allocated and not
//! freed. Forwards to the system's allocator, and reports an allocation that fails: Rust ends the
//! process then, without the numbers.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::OnceLock;

struct Counted;

static ON_FAILURE: OnceLock<extern "C" fn(usize)> = OnceLock::new();

/// `handler` is called where an allocation fails, with its bytes, and must not return. Only the
/// first handler counts.
#[no_mangle]
pub extern "C" fn ffi_on_failed_allocation(handler: extern "C" fn(usize)) {
    let _ = ON_FAILURE.set(handler);
}

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
}

fn add(bytes: isize) {
    HELD.with(|held| held.set(held.get().wrapping_add(bytes)));
}

/// Counts an allocation of `size` bytes in the place of `old` ones.
fn counted(memory: *mut u8, old: usize, size: usize) -> *mut u8 {
    if !memory.is_null() {
        add(size as isize - old as isize);
    } else if let Some(handler) = ON_FAILURE.get() {
        handler(size);
    }
    memory
}

unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        counted(System.alloc(layout), 0, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        counted(System.alloc_zeroed(layout), 0, layout.size())
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        System.dealloc(memory, layout);
        add(-(layout.size() as isize));
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        counted(System.realloc(memory, layout, size), layout.size(), size)
    }
}

#[global_allocator]
static ALLOCATOR: Counted = Counted;

/// The bytes that this thread has allocated minus those it has freed. Only differences are
/// meaningful.
pub fn held_bytes() -> isize {
    HELD.with(|held| held.get())
}
