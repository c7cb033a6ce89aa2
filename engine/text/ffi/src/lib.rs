// SPDX-License-Identifier: Apache-2.0
//! The interface to C++: every function that engine/text/*.cc calls. cbindgen makes the header from
//! this file.
//!
//! The caller frees returned memory with the function named after its type. No panic crosses the
//! interface: each entry point runs inside `guard`, and a failure is a one-line message in
//! `*error`.

mod class_tokens;
mod client_text;
mod counted_memory;
mod ffi_values;
mod forced_text;
mod gbnf;
mod grammar;
mod jinja;
mod lark_pieces;
mod lark_text;
mod number_guard;
mod panics;
mod row_check;
mod schema_alternatives;
mod schema_dialect;
mod schema_intersections;
mod schema_numbers;
mod schema_pattern;
mod schema_policy;
mod schema_references;
mod schema_sets;
mod schema_values;
mod special_tokens;
mod structural_tag;
mod template;
mod template_files;
mod token_bound;
mod token_bytes;
mod token_parser;
mod tokenizer;
mod whitespace;

use panics::{one_line, without_panic};

/// Borrowed bytes of the caller, valid during the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FfiStr {
    data: *const u8,
    size: usize,
}

/// Bytes owned by this library: `ffi_bytes_free`. All zero is empty and need not be freed.
#[repr(C)]
pub struct FfiBytes {
    data: *mut u8,
    size: usize,
    capacity: usize,
}

/// Numbers owned by this library: `ffi_ids_free`. All zero is empty and need not be freed.
#[repr(C)]
pub struct FfiIds {
    data: *mut u32,
    size: usize,
    capacity: usize,
}

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

pub struct FfiTokenizer(tokenizer::TextTokenizer);
pub struct FfiTemplate(template::Template);
pub struct FfiGrammars(grammar::GrammarFactory);
/// May be used by one thread at a time.
pub struct FfiMatcher(grammar::TokenMatcher);

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

/// A chat template's file; its path in the model directory.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FfiTemplateFile {
    path: FfiStr,
    text: FfiStr,
}

/// Borrowed numbers of the caller, valid during the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FfiNumbers {
    data: *const u32,
    size: usize,
}

fn guard<T>(error: *mut FfiBytes, on_error: T, work: impl FnOnce() -> Result<T, String>) -> T {
    let message = match without_panic(work) {
        Ok(value) => return value,
        Err(message) => message,
    };
    if !error.is_null() {
        unsafe { error.write(FfiBytes::new(one_line(&message).into_bytes())) };
    }
    on_error
}

/// `handler` is called where an allocation fails, with its bytes, and must not return.
#[no_mangle]
pub extern "C" fn ffi_on_failed_allocation(handler: extern "C" fn(usize)) {
    counted_memory::on_failure(handler);
}

#[no_mangle]
pub unsafe extern "C" fn ffi_bytes_free(bytes: FfiBytes) {
    if !bytes.data.is_null() {
        drop(Vec::from_raw_parts(bytes.data, bytes.size, bytes.capacity));
    }
}

#[no_mangle]
pub unsafe extern "C" fn ffi_ids_free(ids: FfiIds) {
    if !ids.data.is_null() {
        drop(Vec::from_raw_parts(ids.data, ids.size, ids.capacity));
    }
}

/// Null on error.
#[no_mangle]
pub unsafe extern "C" fn ffi_tokenizer_load(
    files: FfiTokenFiles,
    error: *mut FfiBytes,
) -> *mut FfiTokenizer {
    guard(error, std::ptr::null_mut(), || {
        let tokenizer = tokenizer::TextTokenizer::new(&files.files())?;
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
        let options = tokenizer::EncodeOptions {
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

/// `jinja` are the template's files, and `processor` is chat_template.json, empty if there is none.
/// Null without error: the model has no chat template. `passed_over`: a file with other templates;
/// unchanged if there is none.
#[no_mangle]
pub unsafe extern "C" fn ffi_template_load(
    jinja: *const FfiTemplateFile,
    num_jinja: usize,
    processor: FfiStr,
    files: FfiTokenFiles,
    passed_over: *mut FfiBytes,
    error: *mut FfiBytes,
) -> *mut FfiTemplate {
    guard(error, std::ptr::null_mut(), || {
        let mut templates = Vec::new();
        for i in 0..num_jinja {
            let file = *jinja.add(i);
            let path = file.path.text("a template's name")?;
            templates.push((path, file.text.text(path)?));
        }
        let found =
            template_files::sources(&templates, files.files().tokenizer_config, processor.bytes())?;
        if let Some(file) = found.passed_over {
            passed_over.write(FfiBytes::new(file.as_bytes().to_vec()));
        }
        let tokens = special_tokens::SpecialTokens::read(&files.files())?;
        let loaded = template::Template::new(found.sources, tokens)?;
        Ok(loaded.map_or(std::ptr::null_mut(), |template| {
            Box::into_raw(Box::new(FfiTemplate(template)))
        }))
    })
}

/// The Jinja text of the templates.
#[no_mangle]
pub unsafe extern "C" fn ffi_template_sources(
    template: *const FfiTemplate,
    text: *mut FfiBytes,
    error: *mut FfiBytes,
) -> bool {
    guard(error, false, || {
        text.write(FfiBytes::new((*template).0.sources().into_bytes()));
        Ok(true)
    })
}

#[no_mangle]
pub unsafe extern "C" fn ffi_template_free(template: *mut FfiTemplate) {
    if !template.is_null() {
        guard(std::ptr::null_mut(), (), || {
            drop(Box::from_raw(template));
            Ok(())
        });
    }
}

/// `tools` is a list, or empty for none. With a tokenizer, special tokens that the messages, tools
/// and arguments spell are guarded; `*guard_char` is the guard character, 0 if there was none.
#[no_mangle]
pub unsafe extern "C" fn ffi_template_render(
    template: *const FfiTemplate,
    tokenizer: *const FfiTokenizer,
    messages: FfiStr,
    kwargs: FfiStr,
    tools: FfiStr,
    add_generation_prompt: bool,
    text: *mut FfiBytes,
    guard_char: *mut u32,
    error: *mut FfiBytes,
) -> bool {
    guard(error, false, || {
        let spellings = tokenizer.as_ref().map(|tokenizer| &tokenizer.0.spellings);
        let conversation = template::Conversation {
            messages: messages.bytes(),
            kwargs: kwargs.bytes(),
            tools: tools.bytes(),
            add_generation_prompt,
        };
        let (rendered, guarded_by) = (*template).0.render(&conversation, spellings)?;
        guard_char.write(guarded_by.map_or(0, u32::from));
        text.write(FfiBytes::new(rendered));
        Ok(true)
    })
}

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
        let tokens =
            grammar::Tokens { bytes: bytes.bytes(), ends: ends.slice(), flags: flags.bytes() };
        let made = grammar::GrammarFactory::new(&tokens, vocab_size, eos.slice())?;
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
    guard(error, false, || {
        whitespace::expression(Some(pattern.text("the whitespace pattern")?)).map(|_| true)
    })
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
        let kind = grammar::Kind::from_number(kind)?;
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
