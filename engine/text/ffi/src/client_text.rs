// SPDX-License-Identifier: Apache-2.0
//! Keeps text that a client wrote in a conversation plain text, even if it spells a special token.
//! Before a template is rendered, a guard is put into each such spelling: a private-use character
//! that occurs nowhere else. The tokenizer then finds no special token there, and removes the
//! guards before it splits the text into words. A conversation without such spellings is not
//! changed at all.

use std::collections::{BTreeSet, HashSet};

use aho_corasick::AhoCorasick;
use serde_json::Value as Json;

/// Private-use characters: not spaces, without case, and in no tokenizer's patterns.
const GUARDS: std::ops::RangeInclusive<char> = '\u{F0000}'..='\u{FFFFD}';

/// Whether the beginning of a spelling is guarded too, at the end of a string. Not in the
/// template's arguments: those are words that the template compares, such as "high".
#[derive(Clone, Copy, PartialEq)]
enum Ends {
    Guarded,
    Free,
}

/// The spellings of a tokenizer's special tokens. Case is ignored, since a template may change it.
/// A token of one character cannot be guarded.
pub struct Spellings {
    automaton: AhoCorasick,
    /// All beginnings of a spelling, in lower case: another string may complete them.
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

    /// The positions of guards: after the first character of each spelling, and of each beginning
    /// of one at the end of the text, with or without the spaces that a template may trim there.
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

/// The role of a part of a conversation in its template.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    Messages,
    Tools,
    Arguments,
}

impl Part {
    /// A member's name is also a word that a template compares.
    fn ends(self, is_name: bool) -> Ends {
        match self {
            Part::Messages | Part::Tools if !is_name => Ends::Guarded,
            _ => Ends::Free,
        }
    }
}

/// Calls `visit` on each string inside, and on each member's name with `true`. Skips the roles of
/// messages and the type of text parts: they are a few fixed words, which templates compare.
fn for_each_string(value: &mut Json, roles: bool, visit: &mut dyn FnMut(&mut String, bool)) {
    match value {
        Json::String(text) => visit(text, false),
        Json::Array(values) => {
            values.iter_mut().for_each(|value| for_each_string(value, roles, visit));
        }
        Json::Object(members) => {
            for (mut name, mut value) in std::mem::take(members) {
                let is_fixed = (roles && name == "role") || (name == "type" && value == "text");
                if !is_fixed {
                    for_each_string(&mut value, false, visit);
                }
                visit(&mut name, true);
                members.insert(name, value);
            }
        }
        _ => {}
    }
}

/// A private-use character that does not occur in the strings.
fn free_guard(parts: &mut [(&mut Json, Part)]) -> Result<char, String> {
    let mut taken = HashSet::new();
    for (value, part) in parts.iter_mut() {
        for_each_string(value, *part == Part::Messages, &mut |text, _| {
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
    tools: &mut Json,
    kwargs: &mut Json,
) -> Result<Option<char>, String> {
    let mut parts = [(messages, Part::Messages), (tools, Part::Tools), (kwargs, Part::Arguments)];
    let mut needed = false;
    for (value, part) in parts.iter_mut() {
        for_each_string(value, *part == Part::Messages, &mut |text, is_name| {
            needed |= !spellings.places(text, part.ends(is_name)).is_empty();
        });
    }
    if !needed {
        return Ok(None);
    }
    let guard = free_guard(&mut parts)?;
    for (value, part) in parts.iter_mut() {
        for_each_string(value, *part == Part::Messages, &mut |text, is_name| {
            let mut guarded = String::with_capacity(text.len() + 16);
            let mut begin = 0;
            for place in spellings.places(text, part.ends(is_name)) {
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
