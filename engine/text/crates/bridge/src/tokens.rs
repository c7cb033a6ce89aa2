// SPDX-License-Identifier: Apache-2.0
//! The interface to the crate `tokens`.

use tokens::special_tokens::TokenFiles;
use tokens::{EncodeOptions, TextTokenizer};

use crate::values::{guard, FfiBytes, FfiIds, FfiStr};

#[repr(C)]
#[derive(Clone, Copy)]
pub struct FfiEncodeOptions {
    add_special_tokens: bool,
    /// The guard character from `ffi_template_render`; 0: none.
    guard: u32,
    /// Once there are more tokens, the rest of the text is skipped. 0: no limit.
    max_tokens: usize,
}

/// The bytes of each id. Token `i` is `bytes[ends[i - 1] .. ends[i])`.
#[repr(C)]
pub struct FfiTokenTable {
    bytes: FfiBytes,
    ends: FfiIds,
    /// The bytes of a token at the start of a text; empty if they never differ.
    first_bytes: FfiBytes,
    first_ends: FfiIds,
    /// Per id: 1 = a token, 2 = a special one (bits).
    flags: FfiBytes,
    /// Maximum number of text bytes that one token covers; 0: no bound is known.
    max_token_bytes: usize,
    /// The id of the eos_token that the model's files name; -1: they name none.
    eos: i64,
    /// 0: only `ffi_tokenizer_decode` can decode; 1: the text is the bytes of the tokens, each
    /// broken character one U+FFFD; 2: each byte of a broken character one U+FFFD.
    decoding: u32,
}

pub struct FfiTokenizer(pub(crate) TextTokenizer);

/// Files of a model directory; empty if missing.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FfiTokenFiles {
    /// tokenizer.json.
    tokenizer: FfiStr,
    tokenizer_config: FfiStr,
    special_tokens_map: FfiStr,
    added_tokens: FfiStr,
    /// config.json.
    model_config: FfiStr,
}

impl FfiTokenFiles {
    pub(crate) unsafe fn files<'a>(self) -> TokenFiles<'a> {
        TokenFiles {
            tokenizer: self.tokenizer.bytes(),
            tokenizer_config: self.tokenizer_config.bytes(),
            special_tokens_map: self.special_tokens_map.bytes(),
            added_tokens: self.added_tokens.bytes(),
            model_config: self.model_config.bytes(),
        }
    }
}

/// Null on error.
#[no_mangle]
pub unsafe extern "C" fn ffi_tokenizer_load(
    files: FfiTokenFiles,
    error: *mut FfiBytes,
) -> *mut FfiTokenizer {
    guard(error, std::ptr::null_mut(), || {
        let tokenizer = TextTokenizer::new(&files.files())?;
        Ok(Box::into_raw(Box::new(FfiTokenizer(tokenizer))))
    })
}

#[no_mangle]
pub unsafe extern "C" fn ffi_tokenizer_free(tokenizer: *mut FfiTokenizer) {
    if !tokenizer.is_null() {
        guard(std::ptr::null_mut(), (), || {
            drop(Box::from_raw(tokenizer));
            Ok(())
        });
    }
}

#[no_mangle]
pub unsafe extern "C" fn ffi_tokenizer_encode(
    tokenizer: *const FfiTokenizer,
    text: FfiStr,
    options: FfiEncodeOptions,
    ids: *mut FfiIds,
    error: *mut FfiBytes,
) -> bool {
    guard(error, false, || {
        let options = EncodeOptions {
            add_special_tokens: options.add_special_tokens,
            guard: char::from_u32(options.guard).filter(|guard| *guard != '\0'),
            max_tokens: Some(options.max_tokens).filter(|max| *max > 0),
        };
        let encoded = (*tokenizer).0.encode(text.text("the text")?, &options)?;
        ids.write(FfiIds::new(encoded));
        Ok(true)
    })
}

#[no_mangle]
pub unsafe extern "C" fn ffi_tokenizer_decode(
    tokenizer: *const FfiTokenizer,
    ids: *const u32,
    num_ids: usize,
    skip_special_tokens: bool,
    text: *mut FfiBytes,
    error: *mut FfiBytes,
) -> bool {
    guard(error, false, || {
        let ids: &[u32] = if num_ids == 0 { &[] } else { std::slice::from_raw_parts(ids, num_ids) };
        let decoded = (*tokenizer).0.decode(ids, skip_special_tokens)?;
        text.write(FfiBytes::new(decoded.into_bytes()));
        Ok(true)
    })
}

#[no_mangle]
pub unsafe extern "C" fn ffi_tokenizer_table(
    tokenizer: *const FfiTokenizer,
    table: *mut FfiTokenTable,
    error: *mut FfiBytes,
) -> bool {
    guard(error, false, || {
        let made = (*tokenizer).0.table()?;
        table.write(FfiTokenTable {
            bytes: FfiBytes::new(made.tokens.bytes),
            ends: FfiIds::new(made.tokens.ends),
            first_bytes: FfiBytes::new(made.first_tokens.bytes),
            first_ends: FfiIds::new(made.first_tokens.ends),
            flags: FfiBytes::new(made.flags),
            max_token_bytes: (*tokenizer).0.max_token_bytes.unwrap_or(0),
            eos: (*tokenizer).0.eos.map_or(-1, i64::from),
            decoding: made.decoding,
        });
        Ok(true)
    })
}
