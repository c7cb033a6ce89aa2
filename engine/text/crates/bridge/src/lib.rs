// SPDX-License-Identifier: Apache-2.0
//! The interface to C++: every function that engine/text/*.cc calls, a file per crate. cbindgen
//! makes the header from these files.
//!
//! The caller frees returned memory with the function named after its type. No panic crosses the
//! interface: each entry point runs inside `guard`, and a failure is a one-line message in
//! `*error`.

mod chat_template;
mod counted_memory;
mod grammar;
mod tokens;
mod values;
