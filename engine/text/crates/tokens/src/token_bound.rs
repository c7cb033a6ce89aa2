// SPDX-License-Identifier: Apache-2.0
//! Bounds how many bytes of a text one token can cover, if tokenizer.json allows a bound. A text
//! longer than that times the context cannot fit, which is then known without tokenizing it.
//!
//! Each part of the pipeline is checked: one that may drop text, or may put any amount of text into
//! one token, has no bound.

use serde_json::Value;
use tokenizers::Tokenizer;

/// All forms of Unicode normalisation: at most four code points of at most four bytes are composed
/// to a character of at least two, and none is dropped.
const UNICODE_SHRINKS: usize = 8;
/// U+212A, three bytes, becomes "k".
const LOWERCASE_SHRINKS: usize = 3;
/// The longest character; it may become one unknown token.
const MAX_CHAR_BYTES: usize = 4;

fn kind(part: &Value) -> &str {
    part.get("type").and_then(Value::as_str).unwrap_or("")
}

fn is_true(part: &Value, key: &str) -> bool {
    part.get(key).and_then(Value::as_bool) == Some(true)
}

/// The maximum number of bytes that become one byte; None: no bound.
fn normalizer_shrinks(part: &Value) -> Option<usize> {
    if part.is_null() {
        return Some(1);
    }
    match kind(part) {
        "Sequence" => part
            .get("normalizers")?
            .as_array()?
            .iter()
            .try_fold(1usize, |all, part| all.checked_mul(normalizer_shrinks(part)?)),
        "NFC" | "NFD" | "NFKC" | "NFKD" => Some(UNICODE_SHRINKS),
        "Lowercase" => Some(LOWERCASE_SHRINKS),
        "Prepend" | "ByteLevel" => Some(1),
        "Replace" => {
            let pattern = part.get("pattern")?.get("String")?.as_str()?;
            match part.get("content")?.as_str()? {
                "" => None,
                content => Some(pattern.len().div_ceil(content.len()).max(1)),
            }
        }
        _ => None,
    }
}

/// Whether no byte is dropped.
fn pre_tokenizer_keeps(part: &Value) -> bool {
    let behavior = part.get("behavior").and_then(Value::as_str);
    match kind(part) {
        "Sequence" => part
            .get("pretokenizers")
            .and_then(Value::as_array)
            .is_some_and(|parts| parts.iter().all(pre_tokenizer_keeps)),
        "Split" | "Punctuation" => behavior.is_some_and(|b| b != "Removed"),
        "ByteLevel" | "Digits" | "Metaspace" | "UnicodeScripts" => true,
        _ => part.is_null(),
    }
}

/// Whether a `ByteLevel` part spells each byte as one character before the model runs.
fn spells_bytes(part: &Value) -> bool {
    let parts = part.get("pretokenizers").or_else(|| part.get("normalizers"));
    kind(part) == "ByteLevel"
        || parts.and_then(Value::as_array).is_some_and(|parts| parts.iter().any(spells_bytes))
}

/// The maximum bytes in a token outside the vocabulary; None: no limit, or the model drops unknown
/// text. `has` looks up the vocabulary.
fn unknown_bytes(model: &Value, spelled: bool, has: &dyn Fn(&str) -> bool) -> Option<usize> {
    let is_bpe = kind(model) == "BPE";
    if !is_bpe && kind(model) != "Unigram" {
        return None;
    }
    let has_bytes = || (0..=255u8).all(|byte| has(&format!("<0x{byte:02X}>")));
    if is_true(model, "byte_fallback") && has_bytes() {
        return Some(1);
    }
    if !is_bpe {
        return None;
    }
    let affixed = ["continuing_subword_prefix", "end_of_word_suffix"]
        .iter()
        .any(|key| model.get(key).and_then(Value::as_str).is_some_and(|affix| !affix.is_empty()));
    let alphabet = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet();
    if spelled && !affixed && alphabet.iter().all(|c| has(&c.to_string())) {
        return Some(1);
    }
    let one_by_one =
        model.get("unk_token").is_some_and(Value::is_string) && !is_true(model, "fuse_unk");
    one_by_one.then_some(MAX_CHAR_BYTES)
}

/// None: no bound. `json` is the tokenizer.json of the tokenizer.
pub fn max_token_bytes(json: &Value, tokenizer: &Tokenizer) -> Option<usize> {
    let part = |name: &str| json.get(name).unwrap_or(&Value::Null);
    let (normalizer, pre_tokenizer) = (part("normalizer"), part("pre_tokenizer"));
    let added = tokenizer.get_added_tokens_decoder();
    // Such a token absorbs any number of spaces around it.
    let strips = added.values().any(|token| token.lstrip || token.rstrip);
    if strips || !pre_tokenizer_keeps(pre_tokenizer) {
        return None;
    }
    let spelled = spells_bytes(normalizer) || spells_bytes(pre_tokenizer);
    let tokens = tokenizer.get_vocab(false);
    let unknown = unknown_bytes(part("model"), spelled, &|token| tokens.contains_key(token))?;
    let bytes = |token: &String| if spelled { token.chars().count() } else { token.len() };
    let longest = tokens.keys().map(bytes).chain(added.values().map(|t| t.content.len())).max()?;
    longest.max(unknown).checked_mul(normalizer_shrinks(normalizer)?)
}
