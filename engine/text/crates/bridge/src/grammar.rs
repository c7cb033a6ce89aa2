// SPDX-License-Identifier: Apache-2.0
//! The interface to the crate `grammar`.

use grammar::{check_whitespace, GrammarFactory, Kind, TokenMatcher, Tokens};
use panics::one_line;

use crate::counted_memory;
use crate::values::{guard, FfiBytes, FfiNumbers, FfiStr};

pub struct FfiGrammars(GrammarFactory);
/// May be used by one thread at a time.
pub struct FfiMatcher(TokenMatcher);

/// `bytes`, `ends` and `flags` as in FfiTokenTable. A mask has a bit for each of `vocab_size`
/// tokens; `eos`: those that end a text. Null on error.
#[no_mangle]
pub unsafe extern "C" fn ffi_grammars_new(
    bytes: FfiStr,
    ends: FfiNumbers,
    flags: FfiStr,
    vocab_size: usize,
    eos: FfiNumbers,
    error: *mut FfiBytes,
) -> *mut FfiGrammars {
    guard(error, std::ptr::null_mut(), || {
        let tokens = Tokens { bytes: bytes.bytes(), ends: ends.slice(), flags: flags.bytes() };
        let made = GrammarFactory::new(&tokens, vocab_size, eos.slice())?;
        Ok(Box::into_raw(Box::new(FfiGrammars(made))))
    })
}

#[no_mangle]
pub unsafe extern "C" fn ffi_grammars_free(grammars: *mut FfiGrammars) {
    if !grammars.is_null() {
        guard(std::ptr::null_mut(), (), || {
            drop(Box::from_raw(grammars));
            Ok(())
        });
    }
}

/// Whether `pattern` may be used for the whitespace between JSON tokens.
#[no_mangle]
pub unsafe extern "C" fn ffi_whitespace_check(pattern: FfiStr, error: *mut FfiBytes) -> bool {
    guard(error, false, || check_whitespace(pattern.text("the whitespace pattern")?).map(|()| true))
}

/// `kind`: GrammarSpec::Kind. `whitespace`: a pattern of the client for the whitespace between JSON
/// tokens, or null. `*held_bytes`: the memory that the matcher holds. `*no_first_token`:
/// the reason if no first token is possible, else empty. Null on error. Many threads may compile at
/// once. Needs the stack of engine/text/large_stack.h.
#[no_mangle]
pub unsafe extern "C" fn ffi_grammars_compile(
    grammars: *const FfiGrammars,
    kind: u32,
    text: FfiStr,
    whitespace: *const FfiStr,
    held_bytes: *mut usize,
    no_first_token: *mut FfiBytes,
    error: *mut FfiBytes,
) -> *mut FfiMatcher {
    guard(error, std::ptr::null_mut(), || {
        let kind = Kind::from_number(kind)?;
        let text = text.text("the grammar")?;
        let factory = &(*grammars).0;
        let before = counted_memory::held_bytes();
        let pattern = match whitespace.as_ref() {
            Some(pattern) => Some(pattern.text("the whitespace pattern")?),
            None => None,
        };
        let (made, why) = factory.compile(kind, text, pattern)?;
        let made = Box::new(FfiMatcher(made));
        held_bytes.write((counted_memory::held_bytes() - before).max(0) as usize);
        no_first_token.write(FfiBytes::new(one_line(&why).into_bytes()));
        Ok(Box::into_raw(made))
    })
}

#[no_mangle]
pub unsafe extern "C" fn ffi_matcher_free(matcher: *mut FfiMatcher) {
    if !matcher.is_null() {
        guard(std::ptr::null_mut(), (), || Ok(drop(Box::from_raw(matcher))));
    }
}

/// An independent copy in the same state. Null on error.
#[no_mangle]
pub unsafe extern "C" fn ffi_matcher_clone(
    matcher: *const FfiMatcher,
    error: *mut FfiBytes,
) -> *mut FfiMatcher {
    guard(error, std::ptr::null_mut(), || {
        Ok(Box::into_raw(Box::new(FfiMatcher((*matcher).0.deep_clone()))))
    })
}

/// Sets the bits of the tokens that may come next in `mask` of `num_words` words, and clears the
/// others.
#[no_mangle]
pub unsafe extern "C" fn ffi_matcher_fill(
    matcher: *mut FfiMatcher,
    mask: *mut u32,
    num_words: usize,
    error: *mut FfiBytes,
) -> bool {
    guard(error, false, || {
        (*matcher).0.fill(std::slice::from_raw_parts_mut(mask, num_words))?;
        Ok(true)
    })
}

/// With `masked`, does the work of the token's mask first, if `ffi_matcher_fill` did not.
#[no_mangle]
pub unsafe extern "C" fn ffi_matcher_accept(
    matcher: *mut FfiMatcher,
    token: u32,
    masked: bool,
    error: *mut FfiBytes,
) -> bool {
    guard(error, false, || (*matcher).0.accept(token, masked).map(|()| true))
}

/// Accepts the bytes of a token that differ from the table's.
#[no_mangle]
pub unsafe extern "C" fn ffi_matcher_accept_bytes(
    matcher: *mut FfiMatcher,
    bytes: FfiStr,
    error: *mut FfiBytes,
) -> bool {
    guard(error, false, || (*matcher).0.accept_bytes(bytes.bytes()).map(|()| true))
}

/// Writes up to `limit` tokens of the text that must come next to `tokens`. Returns how many.
#[no_mangle]
pub unsafe extern "C" fn ffi_matcher_forced(
    matcher: *const FfiMatcher,
    tokens: *mut i32,
    limit: usize,
    error: *mut FfiBytes,
) -> usize {
    guard(error, 0, || {
        let forced = (*matcher).0.forced()?;
        let count = forced.len().min(limit);
        (0..count).for_each(|i| tokens.add(i).write(forced[i] as i32));
        Ok(count)
    })
}
