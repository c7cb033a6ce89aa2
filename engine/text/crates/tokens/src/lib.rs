// SPDX-License-Identifier: Apache-2.0
//! A model's tokens: its tokenizer (crate `tokenizers`), the bytes of each token, its special
//! tokens, and their spellings in a client's text.

mod class_tokens;
pub mod client_text;
pub mod special_tokens;
mod token_bound;
mod token_bytes;
mod tokenizer;

pub use tokenizer::{EncodeOptions, TextTokenizer};
