// SPDX-License-Identifier: Apache-2.0
//! The filter pprint: Python's pprint.pformat in lines of 80 characters.

use std::cmp::Ordering;

use super::budget;
use super::characters::lines;
use super::dict::Dict;
use super::error::Result;
use super::lexer::is_space;
use super::operators::order;
use super::value::Value;
use super::write::repr;

const WIDTH: usize = 80;

/// Where a value is written.
#[derive(Clone, Copy)]
struct Place {
    indent: usize,
    /// Characters that follow the value in its last line.
    after: usize,
    is_outermost: bool,
}

pub fn pretty(value: &Value) -> Result<String> {
    let mut out = String::new();
    write(&in_order(value)?, Place { indent: 0, after: 0, is_outermost: true }, &mut out)?;
    Ok(out)
}

fn new_line(indent: usize, out: &mut String) -> Result<()> {
    budget::check_text(out.len() + indent)?;
    out.push('\n');
    out.push_str(&" ".repeat(indent));
    Ok(())
}

/// The same with the keys of all its dicts in their order.
fn in_order(value: &Value) -> Result<Value> {
    let all = |values: &[Value]| values.iter().map(in_order).collect::<Result<_>>();
    match value {
        Value::List(items) => Value::list(all(&items.values)?),
        Value::Tuple(items) => Value::tuple(all(&items.values)?),
        Value::Dict(mapping) => {
            let mut entries: Vec<(&Value, &Value)> = mapping.dict.iter().collect();
            entries.sort_by(|a, b| key_order(a.0, b.0));
            let mut dict = Dict::default();
            for (key, value) in entries {
                dict.insert(in_order(key)?, in_order(value)?)?;
            }
            Value::dict(dict)
        }
        _ => Ok(value.clone()),
    }
}

/// Keys that have no order are in that of their types' names.
fn key_order(a: &Value, b: &Value) -> Ordering {
    match order("<", a, b) {
        Ok(found) => found.unwrap_or(Ordering::Equal),
        Err(_) => a.type_name().cmp(b.type_name()),
    }
}

fn write(value: &Value, place: Place, out: &mut String) -> Result<()> {
    budget::check_stack()?;
    let whole = repr(value)?;
    let room = WIDTH.saturating_sub(place.indent + place.after);
    let is_short = whole.chars().count() <= room;
    match value {
        Value::List(items) if !is_short => write_items(&items.values, ("[", "]"), place, out),
        Value::Tuple(items) if !is_short => {
            let close = if items.values.len() == 1 { ",)" } else { ")" };
            write_items(&items.values, ("(", close), place, out)
        }
        Value::Dict(mapping) if !is_short => write_dict(&mapping.dict, place, out),
        Value::Str(text) if !is_short && !text.is_markup && !text.text.is_empty() => {
            write_text(&text.text, place, out)
        }
        _ => {
            out.push_str(&whole);
            budget::check_text(out.len())
        }
    }
}

fn write_items(
    items: &[Value],
    (open, close): (&str, &str),
    place: Place,
    out: &mut String,
) -> Result<()> {
    let indent = place.indent + 1;
    out.push_str(open);
    for (at, item) in items.iter().enumerate() {
        if at > 0 {
            out.push(',');
            new_line(indent, out)?;
        }
        let is_last = at + 1 == items.len();
        let after = if is_last { place.after + close.len() } else { 1 };
        write(item, Place { indent, after, is_outermost: false }, out)?;
    }
    out.push_str(close);
    Ok(())
}

fn write_dict(dict: &Dict, place: Place, out: &mut String) -> Result<()> {
    out.push('{');
    for (at, (key, value)) in dict.iter().enumerate() {
        if at > 0 {
            out.push(',');
            new_line(place.indent + 1, out)?;
        }
        let key = repr(key)?;
        out.push_str(&key);
        out.push_str(": ");
        let indent = place.indent + 1 + key.chars().count() + 2;
        let after = if at + 1 == dict.len() { place.after + 1 } else { 1 };
        write(value, Place { indent, after, is_outermost: false }, out)?;
    }
    out.push('}');
    Ok(())
}

fn quoted(text: &str) -> Result<String> {
    repr(&Value::str(text))
}

/// Words, each with the spaces after it.
fn words(line: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = line;
    while !rest.is_empty() {
        let word = rest.find(is_space).unwrap_or(rest.len());
        let end = rest[word..].find(|c| !is_space(c)).map_or(rest.len(), |at| word + at);
        found.push(&rest[..end]);
        rest = &rest[end..];
    }
    found
}

/// Literals for the parts of a line that fit in `room`, and in `last_room` at its end.
fn line_parts(line: &str, room: usize, last_room: usize) -> Result<Vec<String>> {
    let mut parts = Vec::new();
    let mut current = String::new();
    let words = words(line);
    for (at, word) in words.iter().enumerate() {
        let room = if at + 1 == words.len() { last_room } else { room };
        let candidate = format!("{current}{word}");
        if quoted(&candidate)?.chars().count() <= room {
            current = candidate;
            continue;
        }
        if !current.is_empty() {
            parts.push(quoted(&current)?);
        }
        current = word.to_string();
    }
    if !current.is_empty() {
        parts.push(quoted(&current)?);
    }
    Ok(parts)
}

/// As several literals, one below another.
fn write_text(text: &str, place: Place, out: &mut String) -> Result<()> {
    let brackets = usize::from(place.is_outermost);
    let (indent, after) = (place.indent + brackets, place.after + brackets);
    let room = WIDTH.saturating_sub(indent);
    let mut parts = Vec::new();
    let all = lines(text, true);
    for (at, line) in all.iter().enumerate() {
        let last_room = if at + 1 == all.len() { room.saturating_sub(after) } else { room };
        let whole = quoted(line)?;
        if whole.chars().count() <= last_room {
            parts.push(whole);
        } else {
            parts.extend(line_parts(line, room, last_room)?);
        }
    }
    let has_brackets = place.is_outermost && parts.len() > 1;
    out.push_str(if has_brackets { "(" } else { "" });
    for (at, part) in parts.iter().enumerate() {
        if at > 0 {
            new_line(indent, out)?;
        }
        out.push_str(part);
    }
    out.push_str(if has_brackets { ")" } else { "" });
    budget::check_text(out.len())
}
