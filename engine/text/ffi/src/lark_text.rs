// SPDX-License-Identifier: Apache-2.0
//! Checks Lark text from clients. Schemas inside it follow the same rules as any other schema.
//! Parts that would be ignored or would reach outside are refused.

use serde_json::Value;

use crate::schema_policy::SchemaPolicy;
use crate::token_parser::SCHEMA_ATTRIBUTE;

/// Rule attributes that have no effect here, or that would take back text that was already sent.
const REFUSED_ATTRIBUTES: [&str; 3] = ["temperature", "stop", "stop_capture"];
const REFUSED_OPTIONS: [&str; 1] = ["allow_invalid_utf8"];
/// The library's first step through an intersection takes time exponential in its parts.
const MAX_INTERSECTIONS: usize = 8;

/// `text` as a string literal of the grammar.
pub fn quoted(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// Where the string or expression that begins at `start` ends.
fn end_of_quoted(text: &[u8], start: usize) -> usize {
    let quote = text[start];
    let mut at = start + 1;
    while at < text.len() && text[at] != quote && text[at] != b'\n' {
        at += if text[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(text.len())
}

fn end_of_line(text: &[u8], start: usize) -> usize {
    text[start..].iter().position(|b| *b == b'\n').map_or(text.len(), |n| start + n)
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-'
}

/// The JSON value at the beginning of `text`, and how many bytes it has.
fn leading_json(text: &str) -> Result<(Value, usize), String> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    match values.next() {
        Some(Ok(value)) => Ok((value, values.byte_offset())),
        Some(Err(e)) => Err(format!("%json: {e}")),
        None => Err("%json: a value is missing".into()),
    }
}

fn check_options(options: &Value) -> Result<(), String> {
    for name in REFUSED_OPTIONS {
        if options.get(name).is_some_and(|value| value != &Value::Bool(false)) {
            return Err(format!("%llguidance: {name} is not supported by this server"));
        }
    }
    Ok(())
}

fn check_word(word: &str, rest: &str) -> Result<(), String> {
    if REFUSED_ATTRIBUTES.contains(&word) && rest.trim_start().starts_with('=') {
        return Err(format!("the attribute {word} is not supported by this server"));
    }
    Ok(())
}

/// Whether a schema after `text` can be a rule of its own. It cannot in a rule with `max_tokens`,
/// where the library accepts only a schema, nor in a nested grammar.
fn can_be_a_rule(text: &str) -> bool {
    let line = text.rsplit('\n').next().unwrap_or("");
    !line.contains("max_tokens") && !text.contains("%lark")
}

/// The text for the library, and the schemas in it that became rules of their own.
pub fn with_checked_schemas(
    text: &str,
    policy: &SchemaPolicy,
) -> Result<(String, Vec<Value>), String> {
    let (mut schemas, mut rules) = (Vec::new(), String::new());
    let bytes = text.as_bytes();
    let mut out = String::new();
    let mut copied = 0;
    let mut intersections = 0;
    let mut at = 0;
    while at < bytes.len() {
        let rest = &text[at..];
        if rest.starts_with("//") || bytes[at] == b'#' {
            at = end_of_line(bytes, at);
        } else if bytes[at] == b'"' || bytes[at] == b'/' {
            at = end_of_quoted(bytes, at);
            while !text.is_char_boundary(at) {
                at += 1;
            }
        } else if bytes[at] == b'%' {
            let name = at + 1 + bytes[at + 1..].iter().take_while(|b| is_word(**b)).count();
            let is_schema = &text[at..name] == "%json";
            if !is_schema && &text[at..name] != "%llguidance" {
                at = name;
                continue;
            }
            let (value, size) = leading_json(&text[name..])?;
            if is_schema {
                out.push_str(&text[copied..at]);
                let made = policy.apply(&value)?;
                if !can_be_a_rule(&out) {
                    out.push_str(&format!("%json {made}"));
                } else {
                    let rule = format!("schema_of_the_server_{}", schemas.len());
                    rules.push_str(&format!("\n{rule}{SCHEMA_ATTRIBUTE}: %json {made}"));
                    out.push_str(&rule);
                    schemas.push(value);
                }
                copied = name + size;
            } else {
                check_options(&value)?;
            }
            at = name + size;
        } else if is_word(bytes[at]) {
            let end = at + bytes[at..].iter().take_while(|b| is_word(**b)).count();
            check_word(&text[at..end], &text[end..])?;
            at = end;
        } else {
            intersections += usize::from(bytes[at] == b'&');
            if intersections > MAX_INTERSECTIONS {
                return Err(format!("more than {MAX_INTERSECTIONS} intersections (&)"));
            }
            at += rest.chars().next().map_or(1, char::len_utf8);
        }
    }
    out.push_str(&text[copied..]);
    out.push_str(&rules);
    Ok((out, schemas))
}
