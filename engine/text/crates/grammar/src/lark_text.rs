// SPDX-License-Identifier: Apache-2.0
//! Checks Lark text. Schemas inside a client's text follow the same rules as any other schema;
//! parts that would be ignored or would reach outside are refused.

use serde_json::Value;

use crate::lark_pieces::{Piece, Pieces};
use crate::schema_policy::SchemaPolicy;

/// Rule attributes that have no effect here, or that would take back text that was already sent.
const REFUSED_ATTRIBUTES: [&str; 3] = ["temperature", "stop", "stop_capture"];
const REFUSED_OPTIONS: [&str; 1] = ["allow_invalid_utf8"];
/// The library's first step through an intersection takes time exponential in its parts.
const MAX_INTERSECTIONS: usize = 8;
/// The library calls itself for each rule in a rule and for each group in a group. The stack of
/// engine/text/large_stack.h is enough for this number of calls.
const MAX_LEVELS: usize = 10_000;
const MAX_NESTING: usize = 64;

/// `text` as a string literal of the grammar.
pub fn quoted(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
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

/// Bounds the library's recursion: each rule counts one level and those of its groups, as if all
/// rules were in one another.
pub fn check_levels(text: &str) -> Result<(), String> {
    let (mut levels, mut nesting, mut deepest) = (0, 0_usize, 0);
    for piece in Pieces::new(text) {
        match piece?.1 {
            Piece::Other('(' | '[' | '{') => nesting += 1,
            Piece::Other(')' | ']' | '}') => nesting = nesting.saturating_sub(1),
            Piece::Other(':') => {
                levels += 1 + deepest;
                deepest = nesting;
            }
            _ => {}
        }
        deepest = deepest.max(nesting);
        if deepest > MAX_NESTING {
            return Err(format!("groups are nested more than {MAX_NESTING} deep"));
        }
    }
    levels += deepest;
    if levels > MAX_LEVELS {
        return Err(format!(
            "its rules and the levels of their groups are {levels}; allowed: at most {MAX_LEVELS}"
        ));
    }
    Ok(())
}

/// The text for the library, and the schemas in it.
pub fn with_checked_schemas(
    text: &str,
    policy: &SchemaPolicy,
) -> Result<(String, Vec<Value>), String> {
    let (mut out, mut schemas) = (String::new(), Vec::new());
    let mut copied = 0;
    let mut intersections = 0;
    let mut pieces = Pieces::new(text);
    while let Some(piece) = pieces.next() {
        match piece? {
            (at, Piece::Json("%json", value)) => {
                out.push_str(&text[copied..at]);
                out.push_str(&format!("%json {}", policy.apply(&value)?));
                schemas.push(value);
                copied = pieces.at;
            }
            (_, Piece::Json("%llguidance", options)) => check_options(&options)?,
            (_, Piece::Word(word)) => check_word(word, &text[pieces.at..])?,
            (_, Piece::Other('&')) => {
                intersections += 1;
                if intersections > MAX_INTERSECTIONS {
                    return Err(format!("more than {MAX_INTERSECTIONS} intersections (&)"));
                }
            }
            _ => {}
        }
    }
    out.push_str(&text[copied..]);
    Ok((out, schemas))
}
