// SPDX-License-Identifier: Apache-2.0
//! markupsafe: text that is safe in HTML, and the rest escaped.

use super::budget;
use super::error::Result;
use super::lexer::is_space;
use super::value::{Str, Value};
use super::write::text;

pub fn escape_text(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            c => out.push(c),
        }
    }
    out
}

/// escape(value), as text.
pub fn escape(value: &Value) -> Result<String> {
    match value {
        Value::Str(found) if found.is_markup => Ok(found.text.to_string()),
        Value::Str(found) => {
            budget::spend_text(found.text.len())?;
            Ok(escape_text(&found.text))
        }
        _ => Ok(escape_text(&text(value)?)),
    }
}

/// a + b
pub fn joined(a: &Str, b: &Str) -> Result<Value> {
    budget::spend_text(a.text.len() + b.text.len())?;
    if !a.is_markup && !b.is_markup {
        return Ok(Value::str([&*a.text, &*b.text].concat()));
    }
    let escaped = |part: &Str| {
        if part.is_markup {
            part.text.to_string()
        } else {
            escape_text(&part.text)
        }
    };
    Ok(Value::markup(escaped(a) + &escaped(b)))
}

/// Takes out what is between `open` and `close`.
fn without(text: &str, open: &str, close: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(start) = rest.find(open) {
        let Some(end) = rest[start..].find(close) else { break };
        out.push_str(&rest[..start]);
        rest = &rest[start + end + close.len()..];
    }
    out + rest
}

pub fn strip_tags(text: &str) -> String {
    let text = without(&without(text, "<!--", "-->"), "<", ">");
    let words: Vec<&str> = text.split(is_space).filter(|word| !word.is_empty()).collect();
    unescape(&words.join(" "))
}

/// The references by number, and the names that HTML's own characters have.
pub fn unescape(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(start) = rest.find('&') {
        out.push_str(&rest[..start]);
        rest = &rest[start..];
        let end = rest.bytes().take(12).position(|byte| byte == b';');
        match end.and_then(|end| Some((referred(&rest[1..end])?, end))) {
            Some((c, end)) => {
                out.push(c);
                rest = &rest[end + 1..];
            }
            None => {
                out.push('&');
                rest = &rest[1..];
            }
        }
    }
    out + rest
}

fn referred(name: &str) -> Option<char> {
    Some(match name {
        "amp" => '&',
        "lt" => '<',
        "gt" => '>',
        "quot" => '"',
        "apos" => '\'',
        "nbsp" => '\u{a0}',
        "copy" => '\u{a9}',
        "reg" => '\u{ae}',
        "raquo" => '\u{bb}',
        "laquo" => '\u{ab}',
        "hellip" => '\u{2026}',
        "mdash" => '\u{2014}',
        "ndash" => '\u{2013}',
        _ => {
            let digits = name.strip_prefix('#')?;
            let code = match digits.strip_prefix(['x', 'X']) {
                Some(digits) => u32::from_str_radix(digits, 16).ok()?,
                None => digits.parse().ok()?,
            };
            return char::from_u32(code);
        }
    })
}
