// SPDX-License-Identifier: Apache-2.0
//! Measures how much memory a piece of work leaves allocated: what its thread has allocated and not
//! freed. Forwards to the system's allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counted;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
}

fn add(bytes: isize) {
    HELD.with(|held| held.set(held.get().wrapping_add(bytes)));
}

unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let memory = System.alloc(layout);
        if !memory.is_null() {
            add(layout.size() as isize);
        }
        memory
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let memory = System.alloc_zeroed(layout);
        if !memory.is_null() {
            add(layout.size() as isize);
        }
        memory
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        System.dealloc(memory, layout);
        add(-(layout.size() as isize));
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let moved = System.realloc(memory, layout, size);
        if !moved.is_null() {
            add(size as isize - layout.size() as isize);
        }
        moved
    }
}

#[global_allocator]
static ALLOCATOR: Counted = Counted;

/// The bytes that this thread has allocated minus those it has freed. Only differences are
/// meaningful.
pub fn held_bytes() -> isize {
    HELD.with(|held| held.get())
}
