// SPDX-License-Identifier: Apache-2.0
//! The whitespace that may come between the tokens of a schema's JSON, as an expression for the
//! library: the usual one, or a client's pattern.

use regex_syntax::hir::{Class, Hir, HirKind};

/// A space, or a line end, an empty line at most, and an indent. Models that may write more of it
/// do not stop.
const USUAL: &str = r"(\x20|\x0A{1,2}[\x20\x09]{0,20})";
/// Matches nothing.
const NONE: &str = r"[\x20&&\x0A]";

const MAX_PATTERN_BYTES: usize = 100;
const MAX_REPEATS: u32 = 1000;
/// The parser finds the expression in the library's texts, which are this long at most.
const MAX_EXPRESSION_BYTES: usize = 400;

/// `pattern`: of the client; None: the usual. Whitespace may be absent everywhere, whatever the
/// pattern. Error: a reason that follows the name of the client's field.
pub fn expression(pattern: Option<&str>) -> Result<String, String> {
    let Some(pattern) = pattern else {
        return Ok(USUAL.into());
    };
    if pattern.len() > MAX_PATTERN_BYTES {
        let found = pattern.len();
        return Err(format!("has {found} bytes; allowed: at most {MAX_PATTERN_BYTES}"));
    }
    let parsed = regex_syntax::parse(pattern)
        .map_err(|e| format!("is not a regular expression: {}", last_line(&e.to_string())))?;
    let made = not_empty(&parsed)?.map_or(NONE.into(), |text| format!("({text})"));
    match made.len() {
        0..=MAX_EXPRESSION_BYTES => Ok(made),
        _ => Err("has too many parts".into()),
    }
}

/// The library's reason, without its drawing of the place.
fn last_line(text: &str) -> &str {
    let line = text.lines().last().unwrap_or(text);
    line.strip_prefix("error: ").unwrap_or(line)
}

/// How the library's expressions spell a character; None: it is no whitespace of JSON.
fn spelled(character: char) -> Option<&'static str> {
    match character {
        ' ' => Some(r"\x20"),
        '\n' => Some(r"\x0A"),
        '\r' => Some(r"\x0D"),
        '\t' => Some(r"\x09"),
        _ => None,
    }
}

fn literal(text: &str) -> Result<String, String> {
    let parts = text.chars().map(|c| {
        spelled(c).ok_or_else(|| format!("matches {c:?}; JSON has spaces, tabs and line ends only"))
    });
    parts.collect()
}

/// What is no whitespace of JSON is left out of a class.
fn class(class: &Class) -> Result<String, String> {
    let has = |c: char| match class {
        Class::Unicode(class) => {
            class.iter().any(|range| (range.start()..=range.end()).contains(&c))
        }
        Class::Bytes(class) => {
            class.iter().any(|range| (range.start()..=range.end()).contains(&(c as u8)))
        }
    };
    let members: String = " \n\r\t".chars().filter(|c| has(*c)).filter_map(spelled).collect();
    match members.is_empty() {
        true => Err("has a class without spaces, tabs and line ends".into()),
        false => Ok(format!("[{members}]")),
    }
}

fn may_be_empty(hir: &Hir) -> bool {
    hir.properties().minimum_len() == Some(0)
}

/// An expression for all texts of `hir`.
fn whole(hir: &Hir) -> Result<String, String> {
    Ok(match not_empty(hir)? {
        None => String::new(),
        Some(text) if may_be_empty(hir) => format!("({text})?"),
        Some(text) => format!("({text})"),
    })
}

fn joined(parts: &[Hir]) -> Result<String, String> {
    parts.iter().map(whole).collect()
}

/// An expression for the texts of `hir` but the empty one; None: there are none. The library skips
/// no empty text.
fn not_empty(hir: &Hir) -> Result<Option<String>, String> {
    match hir.kind() {
        HirKind::Empty => Ok(None),
        HirKind::Literal(bytes) => literal(&String::from_utf8_lossy(&bytes.0)).map(Some),
        HirKind::Class(members) => class(members).map(Some),
        HirKind::Look(_) => Err("has an anchor or a word boundary".into()),
        HirKind::Capture(capture) => not_empty(&capture.sub),
        HirKind::Repetition(repeat) => {
            let most = repeat.max.unwrap_or(repeat.min);
            if most > MAX_REPEATS {
                return Err(format!("repeats {most} times; allowed: at most {MAX_REPEATS}"));
            }
            let least = if may_be_empty(&repeat.sub) { 1 } else { repeat.min.max(1) };
            let max = repeat.max.map_or(String::new(), |max| max.to_string());
            let once = not_empty(&repeat.sub)?.filter(|_| repeat.max != Some(0));
            Ok(once.map(|text| format!("({text}){{{least},{max}}}")))
        }
        HirKind::Concat(parts) if parts.iter().all(may_be_empty) => {
            // One part is the first that is not empty.
            let mut ways = Vec::new();
            for (i, part) in parts.iter().enumerate() {
                if let Some(first) = not_empty(part)? {
                    ways.push(format!("({first}){}", joined(&parts[i + 1..])?));
                }
            }
            Ok(Some(ways.join("|")).filter(|text| !text.is_empty()))
        }
        HirKind::Concat(parts) => joined(parts).map(Some),
        HirKind::Alternation(parts) => {
            let ways: Result<Vec<_>, _> = parts.iter().map(not_empty).collect();
            let text = ways?.into_iter().flatten().collect::<Vec<_>>().join("|");
            Ok(Some(text).filter(|text| !text.is_empty()))
        }
    }
}
