// SPDX-License-Identifier: Apache-2.0
//! Translates a schema's regular expressions (ECMA-262) to the library's. Parts that the library
//! reads differently are written out; parts that would mean something else are refused.

use serde_json::{json, Map, Value};

use crate::schema_sets::add_part;

const MAX_PATTERN_BYTES: usize = 2048;
/// The meaning of \s in ECMA-262, as the inside of a class.
const SPACES: &str =
    "\\t\\n\\x0B\\x0C\\r \\u00A0\\u1680\\u2000-\\u200A\\u2028\\u2029\\u202F\\u205F\\u3000\\uFEFF";
/// The characters that "." does not match in ECMA-262.
const LINE_ENDS: &str = "\\n\\r\\u2028\\u2029";

/// Expressions with lookarounds that generators write, and their equivalents without.
const WITHOUT_LOOKAROUNDS: [(&str, &str); 3] = [
    // zod's email until 4.3
    (
        "^(?!\\.)(?!.*\\.\\.)([A-Za-z0-9_'+\\-\\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\
         \\-]*\\.)+[A-Za-z]{2,}$",
        "^([A-Za-z0-9_'+\\-]+\\.)*[A-Za-z0-9_'+\\-]*[A-Za-z0-9_+\\-]@([A-Za-z0-9][A-Za-z0-9\
         \\-]*\\.)+[A-Za-z]{2,}$",
    ),
    // zod's duration
    (
        "^P(?:(\\d+W)|(?!.*W)(?=\\d|T\\d)(\\d+Y)?(\\d+M)?(\\d+D)?(T(?=\\d)(\\d+H)?(\\d+M)?(\
         \\d+([.,]\\d+)?S)?)?)$",
        "^P(\\d+W|(\\d+Y(\\d+M)?(\\d+D)?|\\d+M(\\d+D)?|\\d+D)(T(\\d+H(\\d+M)?(\\d+([.,]\\d+\
         )?S)?|\\d+M(\\d+([.,]\\d+)?S)?|\\d+([.,]\\d+)?S))?|T(\\d+H(\\d+M)?(\\d+([.,]\\d+)?\
         S)?|\\d+M(\\d+([.,]\\d+)?S)?|\\d+([.,]\\d+)?S))$",
    ),
    // valibot's BIC
    (
        "^[A-Z]{6}(?!00)[\\dA-Z]{2}(?:[\\dA-Z]{3})?$",
        "^[A-Z]{6}(0[1-9A-Z]|[1-9A-Z][\\dA-Z])([\\dA-Z]{3})?$",
    ),
];

/// Where the group that opens at `start` closes, and whether a `|` lies outside all groups.
fn end_of_group(pattern: &str, start: usize) -> (Option<usize>, bool) {
    let (mut depth, mut in_class, mut escaped, mut end, mut split) = (0, false, false, None, false);
    for (i, byte) in pattern.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b']' => in_class = false,
            _ if in_class => {}
            b'[' => in_class = true,
            b'(' => depth += 1,
            b')' => {
                depth -= 1;
                if depth == 0 && end.is_none() && i > start {
                    end = Some(i);
                }
            }
            b'|' => split |= depth == 0,
            _ => {}
        }
    }
    (end, split)
}

/// A lookahead at the start of the whole text becomes a second pattern that must hold as well.
pub fn restate(object: &mut Map<String, Value>) {
    const AHEAD: &str = "^(?=";
    let Some(Value::String(pattern)) = object.get("pattern") else {
        return;
    };
    let known = WITHOUT_LOOKAROUNDS.iter().find(|(found, _)| found == pattern);
    let mut pattern = known.map_or(pattern.clone(), |(_, same)| same.to_string());
    while pattern.starts_with(AHEAD) {
        let (Some(end), false) = end_of_group(&pattern, 1) else {
            break;
        };
        let ahead = format!("^(?:{})", &pattern[AHEAD.len()..end]);
        add_part(object, json!({"pattern": ahead}));
        pattern = format!("^{}", &pattern[end + 1..]);
    }
    object.insert("pattern".into(), pattern.into());
}

/// The pattern for the library. Error: which character of it is not supported.
pub fn translated(pattern: &str) -> Result<String, String> {
    if pattern.len() > MAX_PATTERN_BYTES {
        let found = pattern.len();
        return Err(format!("has {found} bytes; allowed: at most {MAX_PATTERN_BYTES}"));
    }
    let chars: Vec<char> = pattern.chars().collect();
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let mut made = String::new();
    let mut class_start = None;
    let mut i = 0;
    while i < chars.len() {
        let (c, next) = (chars[i], at(i + 1));
        if differs(&chars, i, class_start) {
            return Err(format!("{pattern:?} has at character {i} what is not supported"));
        }
        match (c, class_start) {
            ('\\', None) if next == 's' => made.push_str(&format!("[{SPACES}]")),
            ('\\', Some(_)) if next == 's' => made.push_str(SPACES),
            ('\\', _) if next == 'S' => made.push_str(&format!("[^{SPACES}]")),
            ('\\', _) => {
                made.push(c);
                made.extend(chars.get(i + 1));
            }
            ('.', None) => made.push_str(&format!("[^{LINE_ENDS}]")),
            _ => made.push(c),
        }
        match c {
            '\\' => i += 1,
            '[' => class_start = Some(i),
            ']' => class_start = None,
            _ => {}
        }
        i += 1;
    }
    Ok(made)
}

/// Whether the text at `i`, in the class that begins at `class_start`, means something else to the
/// library, or nothing.
fn differs(chars: &[char], i: usize, class_start: Option<usize>) -> bool {
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let next = at(i + 1);
    match (chars[i], class_start) {
        ('\\', _) => next.is_alphanumeric() && !"dDwWsSnrtfvupPx".contains(next),
        ('[', Some(_)) => true,
        ('&' | '-' | '~', Some(start)) => next == chars[i] && i > start,
        (']', Some(start)) => i == start + 1 || (i == start + 2 && at(start + 1) == '^'),
        ('(', None) => {
            let named = at(i + 2) == '<' && !matches!(at(i + 3), '=' | '!');
            next == '?' && at(i + 2) != ':' && !named
        }
        ('^', None) => i > 0 && !matches!(at(i - 1), '(' | '|' | ':'),
        ('$', None) => !matches!(next, '\0' | ')' | '|'),
        ('{', None) => next == ',',
        _ => false,
    }
}
