// SPDX-License-Identifier: Apache-2.0
//! What str's methods say of characters, and how they change them.

use super::lexer::is_space;

fn is_cased(c: char) -> bool {
    c.is_lowercase() || c.is_uppercase() || is_title_case(c)
}

/// The digraphs that have a form for titles.
fn is_title_case(c: char) -> bool {
    matches!(c, '\u{1c5}' | '\u{1c8}' | '\u{1cb}' | '\u{1f2}' | '\u{1f88}'..='\u{1f8f}'
        | '\u{1f98}'..='\u{1f9f}' | '\u{1fa8}'..='\u{1faf}' | '\u{1fbc}' | '\u{1fcc}' | '\u{1ffc}')
}

/// Digits of the scripts: ten in a row each.
fn is_decimal(c: char) -> bool {
    const ZEROS: [u32; 20] = [
        0x30, 0x660, 0x6f0, 0x7c0, 0x966, 0x9e6, 0xa66, 0xae6, 0xb66, 0xbe6, 0xc66, 0xce6, 0xd66,
        0xe50, 0xed0, 0xf20, 0x1040, 0x17e0, 0x1810, 0xff10,
    ];
    ZEROS.iter().any(|zero| (*zero..*zero + 10).contains(&u32::from(c)))
}

fn is_digit(c: char) -> bool {
    is_decimal(c)
        || matches!(c, '\u{b2}' | '\u{b3}' | '\u{b9}' | '\u{2070}' | '\u{2074}'..='\u{2079}'
            | '\u{2080}'..='\u{2089}' | '\u{2460}'..='\u{2468}')
}

fn is_identifier(text: &str) -> bool {
    let mut characters = text.chars();
    characters.next().is_some_and(|c| c.is_alphabetic() || c == '_')
        && characters.all(|c| c.is_alphanumeric() || c == '_')
}

pub fn is_lower(text: &str) -> bool {
    text.chars().any(char::is_lowercase)
        && !text.chars().any(|c| c.is_uppercase() || is_title_case(c))
}

pub fn is_upper(text: &str) -> bool {
    text.chars().any(char::is_uppercase)
        && !text.chars().any(|c| c.is_lowercase() || is_title_case(c))
}

fn is_title(text: &str) -> bool {
    let (mut has_cased, mut is_inside) = (false, false);
    for c in text.chars() {
        let starts = c.is_uppercase() || is_title_case(c);
        if (starts && is_inside) || (c.is_lowercase() && !is_inside) {
            return false;
        }
        is_inside = starts || c.is_lowercase();
        has_cased |= is_inside;
    }
    has_cased
}

/// None: `name` is no such method.
pub fn predicate(text: &str, name: &str) -> Option<bool> {
    let all = |is: fn(char) -> bool| !text.is_empty() && text.chars().all(is);
    Some(match name {
        "isalnum" => all(char::is_alphanumeric),
        "isalpha" => all(char::is_alphabetic),
        "isascii" => text.is_ascii(),
        "isdecimal" => all(is_decimal),
        "isdigit" => all(is_digit),
        "isidentifier" => is_identifier(text),
        "islower" => is_lower(text),
        "isnumeric" => all(char::is_numeric),
        "isprintable" => text.chars().all(super::write::is_printable),
        "isspace" => all(is_space),
        "istitle" => is_title(text),
        "isupper" => is_upper(text),
        _ => return None,
    })
}

/// A sigma at a word's end has a form of its own, so the whole is changed at once.
pub fn capitalized(text: &str) -> String {
    let Some(first) = text.chars().next() else { return String::new() };
    let lower = text.to_lowercase();
    let first_lower: usize = first.to_lowercase().map(char::len_utf8).sum();
    title_case(first) + &lower[first_lower..]
}

fn title_case(c: char) -> String {
    let own = match c {
        '\u{1c4}'..='\u{1c6}' => '\u{1c5}',
        '\u{1c7}'..='\u{1c9}' => '\u{1c8}',
        '\u{1ca}'..='\u{1cc}' => '\u{1cb}',
        '\u{1f1}'..='\u{1f3}' => '\u{1f2}',
        // An apostrophe and a letter.
        '\u{149}' => return "\u{2bc}N".into(),
        '\u{1f80}'..='\u{1faf}' => char::from_u32(u32::from(c) | 8).unwrap_or(c),
        '\u{1fb3}' | '\u{1fc3}' | '\u{1ff3}' => char::from_u32(u32::from(c) + 9).unwrap_or(c),
        c if is_title_case(c) => c,
        _ => '\0',
    };
    if own != '\0' {
        return own.into();
    }
    let upper: String = c.to_uppercase().collect();
    let mut rest = upper.chars();
    let first = rest.next().map(String::from).unwrap_or_default();
    // A ligature's second letter stays small.
    first + &rest.as_str().to_lowercase()
}

pub fn casefolded(text: &str) -> String {
    text.to_lowercase().replace('\u{df}', "ss").replace('\u{3c2}', "\u{3c3}")
}

pub fn swapped_case(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        if c.is_uppercase() {
            out.extend(c.to_lowercase());
        } else {
            out.extend(c.to_uppercase());
        }
    }
    out
}

pub fn titled(text: &str) -> String {
    let mut out = String::new();
    let mut is_inside = false;
    for c in text.chars() {
        if is_inside {
            out.extend(c.to_lowercase());
        } else {
            out.push_str(&title_case(c));
        }
        is_inside = is_cased(c);
    }
    out
}

/// str.splitlines
pub fn lines(text: &str, keeps_ends: bool) -> Vec<&str> {
    let is_end = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(is_end) {
        let size = match &rest[at..] {
            end if end.starts_with("\r\n") => 2,
            end => end.chars().next().map_or(1, char::len_utf8),
        };
        found.push(&rest[..if keeps_ends { at + size } else { at }]);
        rest = &rest[at + size..];
    }
    if !rest.is_empty() {
        found.push(rest);
    }
    found
}
