// SPDX-License-Identifier: Apache-2.0
//! The text that a grammar leaves no choice about, but for whitespace: what a step may propose
//! before the model has drawn it.

use llguidance::earley::ParserRecognizer;
use llguidance::toktrie::{Recognizer, TokTrie};
use llguidance::TokenParser;

/// Bounds the work of a look ahead.
const MAX_BYTES: usize = 64;
/// How much of the text before is read for its whitespace.
const STYLE_BYTES: usize = 512;

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\n' | b'\r' | b'\t')
}

/// The only byte that may come next, and whether whitespace may come before it.
fn only_byte(parser: &mut ParserRecognizer) -> Option<(u8, bool)> {
    let state = parser.lexer_state();
    let likely = parser.lexer_mut().next_byte(state);
    let (mut spaces, mut others) = (Vec::new(), None);
    // The lexer's examples come first, as two of them already answer.
    for byte in likely.some_bytes().iter().copied().chain(0..=u8::MAX) {
        let known = others == Some(byte) || spaces.contains(&byte);
        if known || !parser.try_push_byte(byte) {
            continue;
        }
        parser.pop_bytes(1);
        if is_space(byte) {
            spaces.push(byte);
        } else if others.replace(byte).is_some() {
            return None;
        }
    }
    match (others, &spaces[..]) {
        (Some(TokTrie::SPECIAL_TOKEN_MARKER), _) => None,
        (Some(byte), _) => Some((byte, !spaces.is_empty())),
        (None, [space]) => Some((*space, false)),
        _ => None,
    }
}

/// The whitespace between the end of `text` and `next`, as the text has it elsewhere or as most
/// JSON has it.
fn spaces_before(text: &[u8], next: u8) -> &[u8] {
    let recent = &text[text.len().saturating_sub(STYLE_BYTES)..];
    let Some((last, before)) = recent.split_last() else {
        return b"";
    };
    if matches!(next, b'}' | b']') || !matches!(last, b',' | b':' | b'{' | b'[') {
        return b"";
    }
    let latest = |wanted: u8| before.iter().rposition(|byte| *byte == wanted);
    // A text with spaces after its colons mostly has them after its commas.
    let like = latest(*last).or_else(|| latest(b':').filter(|_| *last == b','));
    let Some(same) = like else {
        return if *last == b':' { b" " } else { b"" };
    };
    let after = &before[same + 1..];
    &after[..after.iter().take_while(|byte| is_space(**byte)).count()]
}

fn push_all(parser: &mut ParserRecognizer, text: &mut Vec<u8>, bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| {
        let pushed = parser.try_push_byte(*byte);
        if pushed {
            text.push(*byte);
        }
        pushed
    })
}

/// The bytes that come next; none where the text may end.
fn bytes_after(parser: &mut TokenParser) -> Vec<u8> {
    if parser.stopped() || parser.is_accepting() {
        return Vec::new();
    }
    let mut text = parser.parser.get_bytes().to_vec();
    let begin = text.len();
    parser.parser.with_recognizer(|parser| {
        parser.trie_started("forced");
        while text.len() < begin + MAX_BYTES {
            let Some((byte, after_space)) = only_byte(parser) else {
                break;
            };
            let mut next = if after_space { spaces_before(&text, byte).to_vec() } else { vec![] };
            next.push(byte);
            if !push_all(parser, &mut text, &next) {
                break;
            }
        }
        parser.trie_finished();
    });
    text.split_off(begin)
}

/// Spells `bytes` with as few tokens of the vocabulary as possible, the longest first. Bytes at the
/// end that no token fits are left out.
fn spelling(trie: &TokTrie, vocab_size: usize, bytes: &[u8]) -> Vec<u32> {
    // [i]: how many tokens spell bytes[i..], and the first of them with its length.
    let mut best = vec![None; bytes.len()];
    best.push(Some((0, 0, 0)));
    for begin in (0..bytes.len()).rev() {
        let mut node = trie.root();
        for (i, byte) in bytes[begin..].iter().enumerate() {
            let Some(child) = trie.child_at_byte(node, *byte) else {
                break;
            };
            node = child;
            let token = child.token_id().filter(|token| (*token as usize) < vocab_size);
            let Some((count, ..)) = token.and(best[begin + i + 1]) else {
                continue;
            };
            if best[begin].is_none_or(|(least, ..)| count < least) {
                best[begin] = Some((count + 1, token.unwrap_or_default(), i + 1));
            }
        }
    }
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some((1.., token, length)) = best[at] {
        tokens.push(token);
        at += length;
    }
    tokens
}

/// The tokens that come next if the text is spelled as usual. The parser keeps its position, but
/// the work counts towards its limits.
pub fn tokens_after(parser: &mut TokenParser, vocab_size: usize) -> Vec<u32> {
    let bytes = bytes_after(parser);
    spelling(parser.token_env.tok_trie(), vocab_size, &bytes)
}
