//! What a client wrote inside a conversation is text, also where it spells a special token. Before
//! a template is rendered, a guard is put into each such spelling: a private character that occurs
//! nowhere else. The tokenizer finds no special token there and takes the guards out before it
//! looks at the words, so a conversation without such spellings is not touched at all.

use std::collections::{BTreeSet, HashSet};

use aho_corasick::AhoCorasick;
use serde_json::Value as Json;

/// Private characters: not spaces, without case, and in no tokenizer's patterns.
const GUARDS: std::ops::RangeInclusive<char> = '\u{F0000}'..='\u{FFFFD}';

/// Whether the beginning of a spelling at the end of a string is guarded, too. Arguments are words
/// with which a template compares them, such as "high", so theirs are free.
#[derive(Clone, Copy, PartialEq)]
enum Ends {
    Guarded,
    Free,
}

/// The spellings of a tokenizer's special tokens. Letters of either case count, since a template
/// may change the case of what it is given. A token of one character cannot be guarded.
pub struct Spellings {
    automaton: AhoCorasick,
    /// All beginnings of a spelling, in lower case: what another string may complete.
    beginnings: HashSet<String>,
    longest: usize,
}

impl Spellings {
    pub fn new(tokens: &[String]) -> Result<Self, String> {
        let automaton = AhoCorasick::builder()
            .ascii_case_insensitive(true)
            .build(tokens.iter().filter(|token| token.chars().count() > 1))
            .map_err(|e| format!("special tokens: {e}"))?;
        let mut beginnings = HashSet::new();
        for token in tokens {
            for (end, _) in token.char_indices().skip(1) {
                beginnings.insert(token[..end].to_ascii_lowercase());
            }
        }
        let longest = tokens.iter().map(String::len).max().unwrap_or(0);
        Ok(Spellings { automaton, beginnings, longest })
    }

    /// Where guards belong: behind the first character of each spelling, and of each beginning of
    /// one at the end of the text, with or without the spaces that a template may trim there.
    fn places(&self, text: &str, ends: Ends) -> BTreeSet<usize> {
        let behind = |start: usize| start + text[start..].chars().next().map_or(0, char::len_utf8);
        let mut places: BTreeSet<usize> =
            self.automaton.find_overlapping_iter(text).map(|found| behind(found.start())).collect();
        if ends == Ends::Free {
            return places;
        }
        for end in [text.len(), text.trim_end().len()] {
            let first = end.saturating_sub(self.longest);
            for start in (first..end).filter(|start| text.is_char_boundary(*start)) {
                if self.beginnings.contains(&text[start..end].to_ascii_lowercase()) {
                    places.insert(behind(start));
                }
            }
        }
        places
    }
}

/// Calls `visit` on each string inside but roles: they are one of a few words, with which a
/// template compares them.
fn for_each_string(value: &mut Json, visit: &mut dyn FnMut(&mut String)) {
    match value {
        Json::String(text) => visit(text),
        Json::Array(values) => values.iter_mut().for_each(|value| for_each_string(value, visit)),
        Json::Object(members) => {
            for (_, value) in members.iter_mut().filter(|(name, _)| *name != "role") {
                for_each_string(value, visit);
            }
        }
        _ => {}
    }
}

/// A private character that the strings do not hold.
fn free_guard(parts: &mut [(&mut Json, Ends)]) -> Result<char, String> {
    let mut taken = HashSet::new();
    for (part, _) in parts.iter_mut() {
        for_each_string(part, &mut |text| {
            taken.extend(text.chars().filter(|c| GUARDS.contains(c)));
        });
    }
    GUARDS
        .clone()
        .find(|c| !taken.contains(c))
        .ok_or("the conversation holds every private character of plane 15".into())
}

/// Puts guards into all strings; returns the character, or None if there was nothing to guard.
pub fn guard(
    spellings: &Spellings,
    messages: &mut Json,
    kwargs: &mut Json,
) -> Result<Option<char>, String> {
    let mut parts = [(messages, Ends::Guarded), (kwargs, Ends::Free)];
    let mut needed = false;
    for (part, ends) in parts.iter_mut() {
        for_each_string(part, &mut |text| needed |= !spellings.places(text, *ends).is_empty());
    }
    if !needed {
        return Ok(None);
    }
    let guard = free_guard(&mut parts)?;
    for (part, ends) in parts.iter_mut() {
        for_each_string(part, &mut |text| {
            let mut guarded = String::with_capacity(text.len() + 16);
            let mut begin = 0;
            for place in spellings.places(text, *ends) {
                guarded.push_str(&text[begin..place]);
                guarded.push(guard);
                begin = place;
            }
            guarded.push_str(&text[begin..]);
            *text = guarded;
        });
    }
    Ok(Some(guard))
}
