// SPDX-License-Identifier: Apache-2.0
//! Keeps text that a client wrote in a conversation plain text, even if it spells a special token.
//! Before a template is rendered, a guard is put into each such spelling: a private-use character
//! that occurs nowhere else. The tokenizer then finds no special token there, and removes the
//! guards before it splits the text into words. A conversation without such spellings is not
//! changed at all.

use std::collections::{BTreeSet, HashSet, VecDeque};

use aho_corasick::AhoCorasick;
use serde_json::Value as Json;
use tokenizers::tokenizer::normalizer::Range;
use tokenizers::{NormalizedString, Normalizer, NormalizerWrapper};

/// Private-use characters: not spaces, without case, and in no tokenizer's patterns.
const GUARDS: std::ops::RangeInclusive<char> = '\u{F0000}'..='\u{FFFFD}';

/// Whether beginnings of a spelling are guarded too. Not in the template's arguments: those are
/// words that the template compares, such as "high".
#[derive(Clone, Copy, PartialEq)]
enum Ends {
    Guarded,
    Free,
}

/// The string constants of a template. It may cut a text where one of them is, as in
/// `content.split('</think>')`, and join what is left. Spaces do not count: every text has them.
pub struct Cuts {
    /// In lower case, by their first byte.
    by_first: Vec<Vec<String>>,
    automaton: AhoCorasick,
}

impl Cuts {
    pub fn new(constants: &[String]) -> Result<Self, String> {
        let mut words: Vec<String> = constants
            .iter()
            .filter(|constant| !constant.trim().is_empty())
            .map(|constant| constant.to_ascii_lowercase())
            .collect();
        words.sort();
        words.dedup();
        let automaton = AhoCorasick::new(&words).map_err(|e| format!("chat template: {e}"))?;
        let mut by_first = vec![Vec::new(); 256];
        for word in words {
            by_first[usize::from(word.as_bytes()[0])].push(word);
        }
        Ok(Cuts { by_first, automaton })
    }

    fn begins(&self, text: &str) -> bool {
        let first = text.bytes().next().unwrap_or(0);
        self.by_first[usize::from(first)].iter().any(|word| text.starts_with(word))
    }
}

/// The spellings of a tokenizer's special tokens. Case is ignored, since a template may change it.
/// A token of one character cannot be guarded.
pub struct Spellings {
    automaton: AhoCorasick,
    /// All beginnings of a spelling, in lower case: another string may complete them.
    beginnings: HashSet<String>,
    /// First bytes of the beginnings.
    first_bytes: [bool; 256],
    normalizer: Option<NormalizerWrapper>,
}

impl Spellings {
    /// `normalizer`: the tokenizer's own, which may make a spelling of other characters.
    pub fn new(tokens: &[String], normalizer: Option<NormalizerWrapper>) -> Result<Self, String> {
        let automaton = AhoCorasick::builder()
            .ascii_case_insensitive(true)
            .build(tokens.iter().filter(|token| token.chars().count() > 1))
            .map_err(|e| format!("special tokens: {e}"))?;
        let mut beginnings = HashSet::new();
        let mut first_bytes = [false; 256];
        for token in tokens {
            if let Some(first) = token.bytes().next() {
                first_bytes[usize::from(first.to_ascii_lowercase())] = true;
            }
            for (end, _) in token.char_indices().skip(1) {
                beginnings.insert(token[..end].to_ascii_lowercase());
            }
        }
        Ok(Spellings { automaton, beginnings, first_bytes, normalizer })
    }

    /// The positions of guards: after the first character of each spelling, and of each beginning
    /// of one that another text may follow in the prompt.
    fn places(&self, text: &str, ends: Ends, cuts: &Cuts) -> Result<BTreeSet<usize>, String> {
        let mut starts = self.starts(text, ends, cuts);
        if let Some(normalizer) = &self.normalizer {
            let mut normalized = NormalizedString::from(text);
            normalizer.normalize(&mut normalized).map_err(|e| format!("normalizer: {e}"))?;
            let made = self.starts(normalized.get(), ends, cuts);
            starts.extend(made.into_iter().filter_map(|start| {
                normalized.convert_offsets(Range::Normalized(start..start + 1)).map(|at| at.start)
            }));
        }
        let behind = |start: usize| start + text[start..].chars().next().map_or(0, char::len_utf8);
        Ok(starts.into_iter().map(behind).collect())
    }

    /// Where the spellings begin, and the beginnings of spellings.
    fn starts(&self, text: &str, ends: Ends, cuts: &Cuts) -> Vec<usize> {
        let found = self.automaton.find_overlapping_iter(text);
        let mut starts: Vec<usize> = found.map(|found| found.start()).collect();
        if ends == Ends::Guarded {
            self.add_beginnings(&text.to_ascii_lowercase(), cuts, &mut starts);
        }
        starts
    }

    /// Adds each beginning that is at the end of the text or where the template may cut, with
    /// or without the spaces that it may trim there.
    fn add_beginnings(&self, text: &str, cuts: &Cuts, starts: &mut Vec<usize>) {
        let is_open = |start: usize| {
            if !self.first_bytes[usize::from(text.as_bytes()[start])] {
                return false;
            }
            let ends = text[start..].char_indices().skip(1).map(|(offset, _)| start + offset);
            ends.chain([text.len()])
                .take_while(|end| self.beginnings.contains(&text[start..*end]))
                .any(|end| {
                    let rest = text[end..].trim_start();
                    rest.is_empty() || cuts.begins(rest)
                })
        };
        let open = text.char_indices().map(|(start, _)| start).filter(|start| is_open(*start));
        let mut open = open.peekable();
        if open.peek().is_none() {
            return;
        }
        // A word that the template may look for stays whole.
        let words: Vec<_> = cuts
            .automaton
            .find_overlapping_iter(text)
            .map(|found| found.range())
            .filter(|word| !self.beginnings.contains(&text[word.clone()]))
            .collect();
        starts.extend(open.filter(|start| {
            !words.iter().any(|word| word.start <= *start && *start + 1 < word.end)
        }));
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
    cuts: &Cuts,
    messages: &mut Json,
    tools: &mut Json,
    kwargs: &mut Json,
) -> Result<Option<char>, String> {
    let mut parts = [(messages, Part::Messages), (tools, Part::Tools), (kwargs, Part::Arguments)];
    let mut places = VecDeque::new();
    let mut failure = None;
    for (value, part) in parts.iter_mut() {
        for_each_string(value, *part == Part::Messages, &mut |text, is_name| {
            let found = spellings.places(text, part.ends(is_name), cuts);
            places.push_back(found.unwrap_or_else(|message| {
                failure = Some(message);
                BTreeSet::new()
            }));
        });
    }
    if let Some(message) = failure {
        return Err(message);
    }
    if places.iter().all(BTreeSet::is_empty) {
        return Ok(None);
    }
    let guard = free_guard(&mut parts)?;
    for (value, part) in parts.iter_mut() {
        for_each_string(value, *part == Part::Messages, &mut |text, _| {
            let mut guarded = String::with_capacity(text.len() + 16);
            let mut begin = 0;
            for place in places.pop_front().unwrap_or_default() {
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
