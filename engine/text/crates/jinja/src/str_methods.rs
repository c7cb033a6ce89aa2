// SPDX-License-Identifier: Apache-2.0
//! The methods of str, and of Markup, which escapes what it is given.

use super::arguments::{Args, Bound};
use super::budget;
use super::characters::*;
use super::dict::Dict;
use super::error::{fail, Result};
use super::lexer::is_space;
use super::markup::{escape, strip_tags, unescape};
use super::methods::translated;
use super::str_format;
use super::value::{Str, Value};

pub const NAMES: [&str; 46] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "format_map",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "maketrans",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "translate",
    "upper",
    "zfill",
];

fn parameters(name: &str) -> &'static str {
    match name {
        "center" | "ljust" | "rjust" => "width fillchar? /",
        "count" | "find" | "index" | "rfind" | "rindex" | "startswith" | "endswith" => {
            "sub start? end? /"
        }
        "expandtabs" => "tabsize?",
        "join" | "partition" | "rpartition" | "removeprefix" | "removesuffix" | "format_map"
        | "translate" | "zfill" => "value /",
        "lstrip" | "rstrip" | "strip" => "chars? /",
        "maketrans" => "x y? z? /",
        "replace" => "old new count? /",
        "split" | "rsplit" => "sep? maxsplit?",
        "splitlines" => "keepends?",
        _ => "",
    }
}

/// Those whose arguments Markup escapes.
const ESCAPING: [&str; 12] = [
    "replace",
    "ljust",
    "rjust",
    "lstrip",
    "rstrip",
    "center",
    "strip",
    "removeprefix",
    "removesuffix",
    "partition",
    "rpartition",
    "join",
];

pub fn call(text: &Str, name: &'static str, mut args: Args) -> Result<Value> {
    if name == "format" {
        return str_format::formatted(text, args);
    }
    budget::spend_text(text.text.len())?;
    if !text.is_markup {
        return plain_call(&text.text, name, args.bind(name, parameters(name))?);
    }
    if ESCAPING.contains(&name) {
        for (at, value) in args.positional.iter_mut().enumerate() {
            // The replacement is always escaped.
            *value = match (name, at) {
                ("replace", 1) => Value::str(escape(value)?),
                _ => escaped(value, name)?,
            };
        }
    }
    match name {
        "unescape" => return Ok(Value::str(unescape(&text.text))),
        "striptags" => return Ok(Value::str(strip_tags(&text.text))),
        "format_map" => return str_format::formatted_by_map(text, &args.bind(name, "m")?.value(0)),
        _ => {}
    }
    as_markup(plain_call(&text.text, name, args.bind(name, parameters(name))?)?)
}

fn escaped(value: &Value, name: &str) -> Result<Value> {
    match value {
        Value::Str(text) if !text.is_markup => Ok(Value::str(escape(value)?)),
        _ if name == "join" => {
            let items: Result<Vec<_>> =
                value.iterate()?.iter().map(|item| escape(item).map(Value::str)).collect();
            Value::list(items?)
        }
        _ => Ok(value.clone()),
    }
}

fn as_markup(value: Value) -> Result<Value> {
    match &value {
        Value::Str(text) => Ok(Value::markup(text.text.clone())),
        Value::List(items) => {
            Value::list(items.values.iter().cloned().map(as_markup).collect::<Result<_>>()?)
        }
        Value::Tuple(items) => {
            Value::tuple(items.values.iter().cloned().map(as_markup).collect::<Result<_>>()?)
        }
        _ => Ok(value),
    }
}

fn plain_call(text: &str, name: &'static str, bound: Bound) -> Result<Value> {
    if let Some(is_so) = predicate(text, name) {
        return Ok(Value::Bool(is_so));
    }
    let made: String = match name {
        "capitalize" => capitalized(text),
        "casefold" => casefolded(text),
        "lower" => text.to_lowercase(),
        "upper" => text.to_uppercase(),
        "swapcase" => swapped_case(text),
        "title" => titled(text),
        "center" | "ljust" | "rjust" => justified(text, name, &bound)?,
        "zfill" => zero_filled(text, bound.int_or(0, 0)?)?,
        "expandtabs" => with_spaces(text, bound.int_or(0, 8)?)?,
        "join" => joined(text, &bound.value(0))?,
        "lstrip" | "rstrip" | "strip" => stripped(text, name, bound.given(0))?,
        "removeprefix" => text.strip_prefix(bound.str(0)?).unwrap_or(text).to_string(),
        "removesuffix" => text.strip_suffix(bound.str(0)?).unwrap_or(text).to_string(),
        "replace" => replaced(text, bound.str(0)?, bound.str(1)?, bound.int_or(2, -1)?)?,
        "translate" => translate(text, &bound.value(0))?,
        "maketrans" => return translation_table(&bound),
        "partition" | "rpartition" => return partitioned(text, name, bound.str(0)?),
        "split" | "rsplit" => {
            let (sep, max) = (bound.given(0).map(|_| bound.str(0)), bound.int_or(1, -1)?);
            let parts = split(text, sep.transpose()?, max, name == "rsplit")?;
            return strings(&parts);
        }
        "splitlines" => return strings(&lines(text, bound.flag(0)?)),
        "format_map" => return str_format::formatted_by_map(&Str::plain(text), &bound.value(0)),
        "startswith" | "endswith" => return starts_or_ends(text, name, &bound),
        _ => return found(text, name, &bound),
    };
    Ok(Value::str(made))
}

pub fn strings(parts: &[&str]) -> Result<Value> {
    Value::list(parts.iter().map(|part| Value::str(*part)).collect())
}

fn justified(text: &str, name: &str, bound: &Bound) -> Result<String> {
    let fill = bound.str_or(1, " ")?;
    if fill.chars().count() != 1 {
        return fail("The fill character must be exactly one character long");
    }
    justify(text, name, bound.int_or(0, 0)?, fill)
}

pub fn justify(text: &str, name: &str, width: i64, fill: &str) -> Result<String> {
    let width = usize::try_from(width).unwrap_or(0);
    let missing = width.saturating_sub(text.chars().count());
    budget::spend_text(missing.saturating_mul(fill.len()).saturating_add(text.len()))?;
    let left = match name {
        "ljust" => 0,
        "rjust" => missing,
        _ => missing / 2 + (missing & width & 1),
    };
    Ok(fill.repeat(left) + text + &fill.repeat(missing - left))
}

fn zero_filled(text: &str, width: i64) -> Result<String> {
    let missing = usize::try_from(width).unwrap_or(0).saturating_sub(text.chars().count());
    budget::spend_text(missing + text.len())?;
    let (sign, digits) = text.split_at(usize::from(text.starts_with(['+', '-'])));
    Ok([sign, &"0".repeat(missing), digits].concat())
}

fn with_spaces(text: &str, size: i64) -> Result<String> {
    let size = usize::try_from(size).unwrap_or(0);
    let mut out = String::new();
    let mut column = 0;
    for c in text.chars() {
        if c == '\t' {
            let count = if size > 0 { size - column % size } else { 0 };
            budget::check_text(out.len().saturating_add(count))?;
            out.push_str(&" ".repeat(count));
            column += count;
        } else {
            out.push(c);
            column = if matches!(c, '\n' | '\r') { 0 } else { column + 1 };
        }
    }
    Ok(out)
}

fn joined(separator: &str, items: &Value) -> Result<String> {
    let mut out = String::new();
    for (at, item) in items.iterate()?.iter().enumerate() {
        let Some(item) = item.as_str() else {
            return fail(format!(
                "sequence item {at}: expected str instance, {} found",
                item.type_name()
            ));
        };
        if at > 0 {
            out.push_str(separator);
        }
        out.push_str(item);
        budget::check_text(out.len())?;
    }
    budget::spend_text(out.len())?;
    Ok(out)
}

fn stripped(text: &str, name: &str, characters: Option<&Value>) -> Result<String> {
    let wanted = match characters {
        None => None,
        Some(Value::Str(text)) => Some(text.text.clone()),
        Some(_) => return fail(format!("{name} arg must be None or str")),
    };
    Ok(strip(text, name, wanted.as_deref()).to_string())
}

pub fn strip<'a>(text: &'a str, name: &str, characters: Option<&str>) -> &'a str {
    let is_out = |c: char| characters.map_or_else(|| is_space(c), |all| all.contains(c));
    match name {
        "lstrip" => text.trim_start_matches(is_out),
        "rstrip" => text.trim_end_matches(is_out),
        _ => text.trim_matches(is_out),
    }
}

pub fn replaced(text: &str, old: &str, new: &str, count: i64) -> Result<String> {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let found = if old.is_empty() { text.chars().count() + 1 } else { text.matches(old).count() };
    let grown = new.len().saturating_sub(old.len()).saturating_mul(found.min(count));
    budget::spend_text(text.len().saturating_add(grown))?;
    Ok(text.replacen(old, new, count))
}

fn translation_table(bound: &Bound) -> Result<Value> {
    let mut dict = Dict::default();
    if bound.get(1).is_none() {
        let Value::Dict(mapping) = bound.value(0) else {
            return fail("if you give only one argument to maketrans it must be a dict");
        };
        for (key, value) in mapping.dict.iter() {
            let code = match key {
                Value::Str(text) if text.text.chars().count() == 1 => {
                    Value::int(text.text.chars().next().map_or(0, u32::from))
                }
                Value::Int(_) => key.clone(),
                _ => return fail("keys in translate table must be strings or integers"),
            };
            dict.insert(code, value.clone())?;
        }
        return Value::dict(dict);
    }
    let (from, to) = (bound.str(0)?, bound.str(1)?);
    if from.chars().count() != to.chars().count() {
        return fail("the first two maketrans arguments must have equal length");
    }
    for (from, to) in from.chars().zip(to.chars()) {
        dict.insert(Value::int(from as u32), Value::int(to as u32))?;
    }
    for out in bound.str_or(2, "")?.chars() {
        dict.insert(Value::int(out as u32), Value::None)?;
    }
    Value::dict(dict)
}

fn translate(text: &str, table: &Value) -> Result<String> {
    let Value::Dict(mapping) = table else { return fail("translate() needs a mapping") };
    let mut out = String::new();
    for c in text.chars() {
        match mapping.dict.get(&Value::int(c as u32))? {
            Some(value) => out.push_str(&translated(value)?),
            None => out.push(c),
        }
        budget::check_text(out.len())?;
    }
    Ok(out)
}

fn partitioned(text: &str, name: &str, separator: &str) -> Result<Value> {
    if separator.is_empty() {
        return fail("empty separator");
    }
    let is_last = name == "rpartition";
    let parts = match if is_last { text.rsplit_once(separator) } else { text.split_once(separator) }
    {
        Some((before, after)) => [before, separator, after],
        None if is_last => ["", "", text],
        None => [text, "", ""],
    };
    Value::tuple(parts.iter().map(|part| Value::str(*part)).collect())
}

pub fn split<'a>(
    text: &'a str,
    separator: Option<&str>,
    max: i64,
    is_from_end: bool,
) -> Result<Vec<&'a str>> {
    let max = usize::try_from(max).unwrap_or(usize::MAX - 1);
    let mut parts: Vec<&str> = match separator {
        Some("") => return fail("empty separator"),
        Some(separator) if is_from_end => text.rsplitn(max + 1, separator).collect(),
        Some(separator) => text.splitn(max + 1, separator).collect(),
        None => split_by_space(text, max, is_from_end),
    };
    if is_from_end {
        parts.reverse();
    }
    budget::spend_items(parts.len())?;
    Ok(parts)
}

/// From the end, the last part is the first.
fn split_by_space(text: &str, max: usize, is_from_end: bool) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text;
    loop {
        rest = if is_from_end {
            rest.trim_end_matches(is_space)
        } else {
            rest.trim_start_matches(is_space)
        };
        if rest.is_empty() {
            return parts;
        }
        if parts.len() == max {
            parts.push(rest);
            return parts;
        }
        let (part, after) = if is_from_end {
            let at = rest.char_indices().rev().find(|(_, c)| is_space(*c));
            let at = at.map_or(0, |(at, c)| at + c.len_utf8());
            (&rest[at..], &rest[..at])
        } else {
            let at = rest.find(is_space).unwrap_or(rest.len());
            (&rest[..at], &rest[at..])
        };
        parts.push(part);
        rest = after;
    }
}

/// The part of the text from `start` to `end`, in characters; None: it lies beyond the text.
fn part<'a>(text: &'a str, bound: &Bound) -> Result<Option<(usize, &'a str)>> {
    if bound.given(1).is_none() && bound.given(2).is_none() {
        return Ok(Some((0, text)));
    }
    let len = text.chars().count() as i64;
    let place = |at: usize, default: i64| -> Result<i64> {
        let at = bound.given(at).map_or(Ok(default), super::number::as_index)?;
        Ok(if at < 0 { at.saturating_add(len).max(0) } else { at })
    };
    let (start, end) = (place(1, 0)?, place(2, len)?.min(len));
    if start > end {
        return Ok(None);
    }
    let byte = |at: i64| text.char_indices().nth(at as usize).map_or(text.len(), |(at, _)| at);
    Ok(Some((start as usize, &text[byte(start)..byte(end)])))
}

fn starts_or_ends(text: &str, name: &str, bound: &Bound) -> Result<Value> {
    let text = part(text, bound)?;
    let wanted = bound.value(0);
    let all = match &wanted {
        Value::Tuple(items) => items.values.clone(),
        _ => vec![wanted.clone()],
    };
    for one in &all {
        let Some(one) = one.as_str() else {
            return fail(format!(
                "{name} first arg must be str or a tuple of str, not {}",
                one.type_name()
            ));
        };
        let is_there = text.is_some_and(|(_, text)| {
            if name == "startswith" {
                text.starts_with(one)
            } else {
                text.ends_with(one)
            }
        });
        if is_there {
            return Ok(Value::Bool(true));
        }
    }
    Ok(Value::Bool(false))
}

/// count, find, index, rfind and rindex
fn found(text: &str, name: &str, bound: &Bound) -> Result<Value> {
    let wanted = bound.str(0)?;
    let part = part(text, bound)?;
    if name == "count" {
        let count = part.map_or(0, |(_, text)| match wanted {
            "" => text.chars().count() + 1,
            _ => text.matches(wanted).count(),
        });
        return Ok(Value::int(count as i64));
    }
    let place = part.and_then(|(start, text)| {
        let at = if name.starts_with('r') { text.rfind(wanted) } else { text.find(wanted) };
        at.map(|at| start + text[..at].chars().count())
    });
    match place {
        Some(at) => Ok(Value::int(at as i64)),
        None if name.ends_with("index") => fail("substring not found"),
        None => Ok(Value::Int(-1)),
    }
}
