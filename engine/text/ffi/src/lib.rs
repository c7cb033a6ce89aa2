//! The border to C++: every function that engine/text/*.cc calls. The header is made from this file
//! by cbindgen.
//!
//! Memory handed out is freed by the function named after it. No panic crosses: each entry runs
//! behind `guard`, and a failure is a message of one line in `*error`.

mod client_text;
mod counted_memory;
mod gbnf;
mod grammar;
mod jinja;
mod lark_text;
mod schema_intersections;
mod schema_pattern;
mod schema_policy;
mod schema_values;
mod structural_tag;
mod template;
mod token_bound;
mod token_bytes;
mod tokenizer;

use std::cell::Cell;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Once;

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
    /// A character as `ffi_template_render` gives it; 0: none.
    guard: u32,
    /// Once there are more tokens, the rest of the text is left out. 0: no limit.
    max_tokens: usize,
}

/// What each id stands for. Token `i` is `bytes[ends[i - 1] .. ends[i])`.
#[repr(C)]
pub struct FfiTokenTable {
    bytes: FfiBytes,
    ends: FfiIds,
    /// The same for a token that opens a text; empty if that makes no difference.
    first_bytes: FfiBytes,
    first_ends: FfiIds,
    /// Per id: 1 = a token, 2 = a special one (bits).
    flags: FfiBytes,
    /// Bytes of a text that one token stands for at most; 0: no bound is known.
    max_token_bytes: usize,
    /// 0: only `ffi_tokenizer_decode` can decode; 1: the text is the bytes of the tokens, each
    /// broken character one U+FFFD; 2: each byte of a broken character one U+FFFD.
    decoding: u32,
    /// How many of `strip_char` to leave out where a text begins.
    strip_max: u32,
    strip_char: u32,
}

pub struct FfiTokenizer(tokenizer::TextTokenizer);
pub struct FfiTemplate(template::Template);
pub struct FfiGrammars(grammar::GrammarFactory);
/// One thread at a time.
pub struct FfiMatcher(grammar::TokenMatcher);

/// Borrowed numbers of the caller, valid during the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FfiNumbers {
    data: *const u32,
    size: usize,
}

const MAX_MESSAGE_BYTES: usize = 600;

impl FfiBytes {
    fn new(mut bytes: Vec<u8>) -> Self {
        let out =
            FfiBytes { data: bytes.as_mut_ptr(), size: bytes.len(), capacity: bytes.capacity() };
        std::mem::forget(bytes);
        out
    }
}

impl FfiIds {
    fn new(mut ids: Vec<u32>) -> Self {
        let out = FfiIds { data: ids.as_mut_ptr(), size: ids.len(), capacity: ids.capacity() };
        std::mem::forget(ids);
        out
    }
}

impl FfiStr {
    unsafe fn bytes<'a>(self) -> &'a [u8] {
        if self.size == 0 {
            return &[];
        }
        std::slice::from_raw_parts(self.data, self.size)
    }

    unsafe fn text<'a>(self, what: &str) -> Result<&'a str, String> {
        std::str::from_utf8(self.bytes())
            .map_err(|e| format!("{what} is not UTF-8 at byte {}", e.valid_up_to()))
    }
}

impl FfiNumbers {
    unsafe fn slice<'a>(self) -> &'a [u32] {
        if self.size == 0 {
            return &[];
        }
        std::slice::from_raw_parts(self.data, self.size)
    }
}

thread_local! {
    static PANIC_LINE: Cell<u32> = const { Cell::new(0) };
}

/// A panic's own message may quote the text that was tokenized, so it is neither printed nor handed
/// on: only its line is.
fn silence_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        std::panic::set_hook(Box::new(|info| {
            PANIC_LINE.with(|line| line.set(info.location().map_or(0, |at| at.line())))
        }));
    });
}

fn one_line(message: &str) -> String {
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

/// What `work` gives; a panic is an error.
fn without_panic<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
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

/// `config` is tokenizer_config.json, empty if there is none. Null on error.
#[no_mangle]
pub unsafe extern "C" fn ffi_tokenizer_load(
    json: FfiStr,
    config: FfiStr,
    error: *mut FfiBytes,
) -> *mut FfiTokenizer {
    guard(error, std::ptr::null_mut(), || {
        let tokenizer = tokenizer::TextTokenizer::new(json.bytes(), config.bytes())?;
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
            decoding: made.decoding,
            strip_max: made.strip_max,
            strip_char: made.strip_char as u32,
        });
        Ok(true)
    })
}

/// `jinja` is chat_template.jinja and `config` tokenizer_config.json, empty where there is none.
/// Null without error: the model has no chat template.
#[no_mangle]
pub unsafe extern "C" fn ffi_template_load(
    jinja: FfiStr,
    config: FfiStr,
    error: *mut FfiBytes,
) -> *mut FfiTemplate {
    guard(error, std::ptr::null_mut(), || {
        let loaded = template::Template::new(jinja.text("chat_template.jinja")?, config.bytes())?;
        Ok(loaded.map_or(std::ptr::null_mut(), |template| {
            Box::into_raw(Box::new(FfiTemplate(template)))
        }))
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

/// `tools` is a list, or empty: there are none.
/// With a tokenizer, special tokens that the messages, tools and arguments spell are guarded, and
/// `*guard_char` is the character that does it, 0 if there was none.
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

/// `kind`: GrammarSpec::Kind. `*held_bytes`: the memory that the matcher holds. Null on error. Many
/// threads may compile at once.
#[no_mangle]
pub unsafe extern "C" fn ffi_grammars_compile(
    grammars: *const FfiGrammars,
    kind: u32,
    text: FfiStr,
    max_whitespace: usize,
    held_bytes: *mut usize,
    error: *mut FfiBytes,
) -> *mut FfiMatcher {
    guard(error, std::ptr::null_mut(), || {
        let before = counted_memory::held_bytes();
        let kind = grammar::Kind::from_number(kind)?;
        let text = text.text("the grammar")?;
        let made = Box::new(FfiMatcher((*grammars).0.compile(kind, text, max_whitespace)?));
        held_bytes.write((counted_memory::held_bytes() - before).max(0) as usize);
        Ok(Box::into_raw(made))
    })
}

#[no_mangle]
pub unsafe extern "C" fn ffi_matcher_free(matcher: *mut FfiMatcher) {
    if !matcher.is_null() {
        guard(std::ptr::null_mut(), (), || {
            drop(Box::from_raw(matcher));
            Ok(())
        });
    }
}

/// One in the same state that shares none of it. Null on error.
#[no_mangle]
pub unsafe extern "C" fn ffi_matcher_clone(
    matcher: *const FfiMatcher,
    error: *mut FfiBytes,
) -> *mut FfiMatcher {
    guard(error, std::ptr::null_mut(), || {
        Ok(Box::into_raw(Box::new(FfiMatcher((*matcher).0.deep_clone()))))
    })
}

/// Sets the bits of the tokens that may come next in `mask`, of `num_words`, and clears the others.
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

#[no_mangle]
pub unsafe extern "C" fn ffi_matcher_accept(
    matcher: *mut FfiMatcher,
    token: u32,
    error: *mut FfiBytes,
) -> bool {
    guard(error, false, || (*matcher).0.accept(token).map(|()| true))
}

#[no_mangle]
pub unsafe extern "C" fn ffi_matcher_rollback(
    matcher: *mut FfiMatcher,
    count: usize,
    error: *mut FfiBytes,
) -> bool {
    guard(error, false, || (*matcher).0.rollback(count).map(|()| true))
}
