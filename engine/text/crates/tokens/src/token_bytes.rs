// SPDX-License-Identifier: Apache-2.0
//! The bytes of each token, if the decoder of tokenizer.json works token by token. A text is then
//! the concatenation of its tokens' bytes and can be streamed exactly.

use serde_json::Value;
use tokenizers::decoders::wordpiece;

#[derive(Default)]
pub struct Blob {
    pub bytes: Vec<u8>,
    pub ends: Vec<u32>,
}

impl Blob {
    fn push(&mut self, token: &[u8]) {
        self.bytes.extend_from_slice(token);
        self.ends.push(self.bytes.len() as u32);
    }
}

/// See FfiTokenTable, in the bridge.
pub struct TokenTable {
    pub tokens: Blob,
    pub first_tokens: Blob,
    pub flags: Vec<u8>,
    pub decoding: u32,
}

const IS_TOKEN: u8 = 1;
const IS_SPECIAL: u8 = 2;

const DECODE_BY_CRATE: u32 = 0;
const DECODE_CHARACTERS: u32 = 1;
const DECODE_BYTES: u32 = 2;

/// How one token is turned into bytes.
#[derive(Default)]
struct Rule {
    byte_level: bool,
    byte_fallback: bool,
    replace: Vec<(String, String)>,
    /// Metaspace: the replacement of a space, and whether the first token drops it.
    metaspace: Option<(char, bool)>,
    fused: bool,
    /// A byte that is dropped at the start of a text.
    strip: Option<u8>,
    word_piece: Option<WordPiece>,
}

struct WordPiece {
    /// The prefix of a token that continues a word; other tokens begin with a space.
    prefix: String,
    cleanup: bool,
}

impl WordPiece {
    fn text_of(&self, token: &str, first: bool) -> String {
        let text = match token.strip_prefix(&self.prefix) {
            _ if first => token.to_string(),
            Some(rest) => rest.to_string(),
            None => format!(" {token}"),
        };
        if self.cleanup {
            wordpiece::cleanup(&text)
        } else {
            text
        }
    }
}

/// None: more than one character is stripped, which may affect several tokens.
fn stripped(step: &Value) -> Option<Option<u8>> {
    let content = step.get("content")?.as_str()?;
    match (step.get("start")?.as_u64()?, step.get("stop")?.as_u64()?, content.as_bytes()) {
        (0, 0, _) => Some(None),
        (1, 0, [byte]) => Some(Some(*byte)),
        _ => None,
    }
}

/// None: a decoder whose text is not made token by token.
fn rule_of(decoder: &Value) -> Option<Rule> {
    let mut rule = Rule::default();
    let single = [decoder.clone()];
    let steps: &[Value] = match decoder.get("type").and_then(Value::as_str) {
        Some("Sequence") => decoder.get("decoders")?.as_array()?,
        Some(_) => &single,
        None => return None,
    };
    for step in steps {
        if rule.byte_level || rule.metaspace.is_some() || rule.strip.is_some() {
            return None; // nothing may follow these
        }
        match step.get("type")?.as_str()? {
            "ByteLevel" if steps.len() == 1 => rule.byte_level = true,
            "WordPiece" if steps.len() == 1 => {
                let prefix = step.get("prefix")?.as_str()?.to_string();
                let cleanup = step.get("cleanup")?.as_bool()?;
                rule.word_piece = Some(WordPiece { prefix, cleanup });
            }
            "Replace" if !rule.fused && !rule.byte_fallback => {
                let pattern = step.get("pattern")?.get("String")?.as_str()?;
                rule.replace
                    .push((pattern.to_string(), step.get("content")?.as_str()?.to_string()));
            }
            "ByteFallback" if !rule.fused => rule.byte_fallback = true,
            "Fuse" => rule.fused = true,
            "Strip" if rule.fused => rule.strip = stripped(step)?,
            "Metaspace" if !rule.fused => {
                let replacement = step.get("replacement")?.as_str()?.chars().next()?;
                let add_prefix = step.get("add_prefix_space").and_then(Value::as_bool);
                let never = add_prefix == Some(false)
                    || step.get("prepend_scheme").and_then(Value::as_str) == Some("never");
                rule.metaspace = Some((replacement, !never));
            }
            _ => return None,
        }
    }
    Some(rule)
}

/// GPT-2's alphabet: printable bytes represent themselves; the others map to U+0100 and up.
fn byte_of_char() -> std::collections::HashMap<char, u8> {
    let prints = |b: u8| (b'!'..=b'~').contains(&b) || (0xA1..=0xAC).contains(&b) || b >= 0xAE;
    let mut shifted = 0x100;
    (0..=255u8)
        .map(|b| {
            if prints(b) {
                return (b as char, b);
            }
            shifted += 1;
            (char::from_u32(shifted - 1).expect("below the surrogates"), b)
        })
        .collect()
}

fn fallback_byte(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if hex.len() == 2 && token.is_ascii() {
        return u8::from_str_radix(hex, 16).ok();
    }
    None
}

fn bytes_of(
    token: &str,
    rule: &Rule,
    alphabet: &std::collections::HashMap<char, u8>,
    first: bool,
) -> Vec<u8> {
    if rule.byte_level {
        let bytes: Option<Vec<u8>> = token.chars().map(|c| alphabet.get(&c).copied()).collect();
        return bytes.unwrap_or_else(|| token.as_bytes().to_vec());
    }
    if let Some(word_piece) = &rule.word_piece {
        return word_piece.text_of(token, first).into_bytes();
    }
    let mut text = token.to_string();
    for (from, to) in &rule.replace {
        text = text.replace(from.as_str(), to);
    }
    let mut bytes = match fallback_byte(&text).filter(|_| rule.byte_fallback) {
        Some(byte) => vec![byte],
        None => {
            if let Some((replacement, drops)) = rule.metaspace {
                text = text.replace(replacement, if first && drops { "" } else { " " });
            }
            text.into_bytes()
        }
    };
    if first && rule.strip.is_some() && bytes.first().copied() == rule.strip {
        bytes.remove(0);
    }
    bytes
}

pub fn make_table(decoder: &Value, tokens: &[Option<(String, bool)>]) -> TokenTable {
    let rule = rule_of(decoder);
    let decoding = match &rule {
        None => DECODE_BY_CRATE,
        Some(rule) if rule.byte_fallback => DECODE_BYTES,
        Some(_) => DECODE_CHARACTERS,
    };
    let rule = rule.unwrap_or_default();
    let alphabet = byte_of_char();
    let first_differs = matches!(rule.metaspace, Some((_, true)))
        || rule.strip.is_some()
        || rule.word_piece.is_some();
    let mut table = TokenTable {
        tokens: Blob::default(),
        first_tokens: Blob::default(),
        flags: Vec::new(),
        decoding,
    };
    for token in tokens {
        let content = token.as_ref().map_or("", |(content, _)| content);
        table.tokens.push(&bytes_of(content, &rule, &alphabet, false));
        if first_differs {
            table.first_tokens.push(&bytes_of(content, &rule, &alphabet, true));
        }
        table.flags.push(match token {
            None => 0,
            Some((_, special)) => IS_TOKEN | if *special { IS_SPECIAL } else { 0 },
        });
    }
    table
}
