// SPDX-License-Identifier: Apache-2.0
//! str.format and str.format_map

use super::arguments::Args;
use super::budget;
use super::dict::Dict;
use super::error::{fail, Result};
use super::format_spec::format;
use super::markup::escape_text;
use super::percent_format::as_ascii;
use super::subscript;
use super::value::{Str, Value};
use super::write::{repr, text};

/// Fields within the formats of fields.
const MAX_DEPTH: usize = 3;

struct Fields<'a> {
    positional: &'a [Value],
    named: &'a Dict,
    /// The number of the next `{}`; None: fields have numbers.
    next: Option<usize>,
    is_markup: bool,
}

pub fn formatted(pattern: &Str, args: Args) -> Result<Value> {
    let mut named = Dict::default();
    for (name, value) in args.named {
        named.insert_str(&name, value);
    }
    with_fields(pattern, &args.positional, &named)
}

pub fn formatted_by_map(pattern: &Str, map: &Value) -> Result<Value> {
    let Value::Dict(mapping) = map else { return fail("format_map() needs a mapping") };
    with_fields(pattern, &[], &mapping.dict)
}

fn with_fields(pattern: &Str, positional: &[Value], named: &Dict) -> Result<Value> {
    let mut fields = Fields { positional, named, next: Some(0), is_markup: pattern.is_markup };
    let out = fields.fill(&pattern.text, MAX_DEPTH)?;
    Ok(Value::Str(Str { text: out.into(), is_markup: pattern.is_markup }))
}

impl Fields<'_> {
    fn fill(&mut self, pattern: &str, depth: usize) -> Result<String> {
        if depth == 0 {
            return fail("Max string recursion exceeded");
        }
        budget::spend_text(pattern.len())?;
        let mut out = String::new();
        let mut rest = pattern;
        while let Some(at) = rest.find(['{', '}']) {
            out.push_str(&rest[..at]);
            let brace = &rest[at..at + 1];
            rest = &rest[at + 1..];
            if let Some(after) = rest.strip_prefix(brace) {
                out.push_str(brace);
                rest = after;
                continue;
            }
            if brace == "}" {
                return fail("Single '}' encountered in format string");
            }
            let end = field_end(rest)?;
            out.push_str(&self.field(&rest[..end], depth)?);
            budget::check_text(out.len())?;
            rest = &rest[end + 1..];
        }
        out.push_str(rest);
        Ok(out)
    }

    /// A field without its braces.
    fn field(&mut self, field: &str, depth: usize) -> Result<String> {
        let mut is_in_brackets = false;
        let name_end = field.find(|c| {
            is_in_brackets = (is_in_brackets || c == '[') && c != ']';
            !is_in_brackets && (c == '!' || c == ':')
        });
        let (name, rest) = field.split_at(name_end.unwrap_or(field.len()));
        let (conversion, spec) = match rest.strip_prefix('!') {
            Some(after) => match after.split_once(':') {
                Some((conversion, spec)) => (Some(conversion), spec),
                None => (Some(after), ""),
            },
            None => (None, rest.strip_prefix(':').unwrap_or("")),
        };
        let value = self.value(name)?;
        let value = match conversion {
            None => value,
            Some("s") => Value::str(text(&value)?),
            Some("r") => Value::str(repr(&value)?),
            Some("a") => Value::str(as_ascii(&repr(&value)?)),
            Some(other) => return fail(format!("Unknown conversion specifier '{other}'")),
        };
        let spec = self.fill(spec, depth - 1)?;
        if self.is_markup {
            return Ok(match value {
                Value::Str(found) if found.is_markup => found.text.to_string(),
                value => escape_text(&format(&value, &spec)?),
            });
        }
        format(&value, &spec)
    }

    fn value(&mut self, name: &str) -> Result<Value> {
        let first_end = name.find(['.', '[']).unwrap_or(name.len());
        let (first, mut rest) = name.split_at(first_end);
        let mut value = self.first(first, rest.is_empty())?;
        while !rest.is_empty() {
            if let Some(after) = rest.strip_prefix('.') {
                let end = after.find(['.', '[']).unwrap_or(after.len());
                if end == 0 {
                    return fail("Empty attribute in format string");
                }
                value = subscript::attribute(&value, &after[..end])?;
                rest = &after[end..];
            } else {
                let Some(end) = rest.find(']') else {
                    return fail("Missing ']' in format string");
                };
                let key = &rest[1..end];
                let index = key.parse::<i64>().ok().filter(|_| !key.starts_with(['-', '+']));
                let key = index.map_or_else(|| Value::str(key), Value::Int);
                value = subscript::item(&value, &key)?;
                rest = &rest[end + 1..];
                if !rest.is_empty() && !rest.starts_with(['.', '[']) {
                    return fail("Only '.' or '[' may follow ']' in format field specifier");
                }
            }
        }
        Ok(value)
    }

    fn first(&mut self, name: &str, is_whole: bool) -> Result<Value> {
        let is_number = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
        let index = if name.is_empty() && is_whole {
            let Some(next) = self.next else {
                return fail(
                    "cannot switch from manual field specification to automatic field \
                             numbering",
                );
            };
            self.next = Some(next + 1);
            next
        } else if is_number {
            if self.next.is_some_and(|next| next > 0) {
                return fail(
                    "cannot switch from automatic field numbering to manual field \
                             specification",
                );
            }
            self.next = None;
            name.parse().unwrap_or(usize::MAX)
        } else {
            return match self.named.get_str(name) {
                Some(value) => Ok(value.clone()),
                None => fail(format!("no value for the field '{name}'")),
            };
        };
        match self.positional.get(index) {
            Some(value) => Ok(value.clone()),
            None => fail(format!("replacement index {index} out of range for positional args")),
        }
    }
}

/// Where the field ends that begins here.
fn field_end(text: &str) -> Result<usize> {
    let mut open = 1;
    let mut is_in_brackets = false;
    for (at, c) in text.char_indices() {
        match c {
            '[' => is_in_brackets = true,
            ']' => is_in_brackets = false,
            '{' if !is_in_brackets => open += 1,
            '}' if !is_in_brackets => open -= 1,
            _ => {}
        }
        if open == 0 {
            return Ok(at);
        }
    }
    fail("expected '}' before end of string")
}
