// SPDX-License-Identifier: Apache-2.0
//! The filters that make texts.

use super::arguments::{Args, Bound};
use super::budget;
use super::characters::lines;
use super::error::{fail, Result};
use super::filters::soft_str;
use super::interpreter::Interpreter;
use super::lexer::is_space;
use super::markup::{self, escape};
use super::number::{as_index, float_of_text, int_of_float, Number};
use super::operators::binary;
use super::sequence_filters::{attribute_of, pairs};
use super::str_methods::{self, replaced};
use super::value::{Str, Value};
use super::write::text;

pub enum Outcome {
    Made(Value),
    /// It is no filter of these.
    Other(Args),
}

pub fn apply(interpreter: &Interpreter, name: &str, value: &Value, args: Args) -> Result<Outcome> {
    let made = match name {
        "center" => {
            let width = args.bind(name, "width?")?.get(0).cloned().unwrap_or(Value::Int(80));
            let args = Args { positional: vec![width], named: Vec::new() };
            str_methods::call(&soft_str(value)?, "center", args)?
        }
        "trim" => {
            let characters = args.bind(name, "chars?")?.value(0);
            let args = Args { positional: vec![characters], named: Vec::new() };
            str_methods::call(&soft_str(value)?, "strip", args)?
        }
        "filesizeformat" => file_size(value, &args.bind(name, "binary?")?)?,
        "indent" => indented(value, &args.bind(name, "width? first? blank?")?)?,
        "join" => joined(interpreter, value, &args.bind(name, "d? attribute?")?)?,
        "replace" => replace(interpreter, value, &args.bind(name, "old new count?")?)?,
        "title" => {
            args.bind(name, "")?;
            titled(&soft_str(value)?)?
        }
        "truncate" => truncated(value, &args.bind(name, "length? killwords? end? leeway?")?)?,
        "urlencode" => {
            args.bind(name, "")?;
            Value::str(url_encoded(value)?)
        }
        "wordcount" => {
            args.bind(name, "")?;
            let text = soft_str(value)?;
            budget::spend_text(text.text.len())?;
            let words = text.text.split(|c: char| !c.is_alphanumeric() && c != '_');
            Value::int(words.filter(|word| !word.is_empty()).count() as i64)
        }
        "xmlattr" => {
            let made = xml_attributes(value, &args.bind(name, "autospace?")?)?;
            let is_markup = interpreter.is_escaping.get();
            if is_markup {
                Value::markup(made)
            } else {
                Value::str(made)
            }
        }
        _ => return Ok(Outcome::Other(args)),
    };
    Ok(Outcome::Made(made))
}

fn file_size(value: &Value, bound: &Bound) -> Result<Value> {
    let bytes = match value {
        Value::Str(text) => float_of_text(&text.text),
        Value::Undefined(missing) => return Value::undefined_error(missing),
        _ => Number::of(value).map(|number| number.float()).transpose()?,
    };
    let Some(bytes) = bytes else {
        return fail(format!("filesizeformat: '{}' is not a number", value.type_name()));
    };
    let (base, mark) = if bound.is_true(0) { (1024.0, "iB") } else { (1000.0, "B") };
    if bytes == 1.0 {
        return Ok(Value::str("1 Byte"));
    }
    if bytes < base {
        let Some(whole) = int_of_float(bytes) else {
            return fail("cannot convert a float that is not finite to integer");
        };
        return Ok(Value::str(text(&whole)? + " Bytes"));
    }
    let mut unit: f64 = base * base;
    let letters: &[u8] = if bound.is_true(0) { b"KMGTPEZY" } else { b"kMGTPEZY" };
    let mut at = 0;
    while bytes >= unit && at + 1 < letters.len() {
        unit *= base;
        at += 1;
    }
    let size = base * bytes / unit;
    Ok(Value::str(format!("{size:.1} {}{mark}", char::from(letters[at]))))
}

fn indented(value: &Value, bound: &Bound) -> Result<Value> {
    let Value::Str(whole) = binary("+", value, &Value::str("\n"))? else {
        return fail("indent: the value is not a string");
    };
    let indention = match bound.get(0) {
        Some(Value::Str(text)) => text.text.to_string(),
        None => " ".repeat(4),
        Some(_) => {
            let width = usize::try_from(bound.int_or(0, 4)?).unwrap_or(0);
            budget::check_text(width)?;
            " ".repeat(width)
        }
    };
    let indents_blank = bound.is_true(2);
    let mut out = String::new();
    for (at, line) in lines(&whole.text, false).into_iter().enumerate() {
        if at > 0 {
            out.push('\n');
        }
        let is_indented =
            if at == 0 { bound.is_true(1) } else { indents_blank || !line.is_empty() };
        if is_indented {
            out.push_str(&indention);
        }
        out.push_str(line);
        budget::spend_text(out.len().min(indention.len() + line.len()))?;
        budget::check_text(out.len())?;
    }
    Ok(if whole.is_markup { Value::markup(out) } else { Value::str(out) })
}

fn joined(interpreter: &Interpreter, value: &Value, bound: &Bound) -> Result<Value> {
    let mut items = value.iterate()?;
    if let Some(path) = bound.given(1) {
        for item in &mut items {
            *item = attribute_of(item, path, None)?;
        }
    }
    let separator = match bound.get(0) {
        Some(separator) => soft_str(separator)?,
        None => Str::plain(""),
    };
    let is_escaping = interpreter.is_escaping.get();
    let is_markup = is_escaping && (separator.is_markup || items.iter().any(Value::is_markup));
    let written = |value: &Value| if is_markup { escape(value) } else { text(value) };
    let separator = written(&Value::Str(separator))?;
    let mut out = String::new();
    for (at, item) in items.iter().enumerate() {
        if at > 0 {
            out.push_str(&separator);
        }
        out.push_str(&written(item)?);
        budget::check_text(out.len())?;
        budget::spend_text(separator.len())?;
    }
    Ok(if is_markup { Value::markup(out) } else { Value::str(out) })
}

fn replace(interpreter: &Interpreter, value: &Value, bound: &Bound) -> Result<Value> {
    let (old, new) = (bound.value(0), bound.value(1));
    let count = bound.given(2).map_or(Ok(-1), |_| bound.int_or(2, -1))?;
    if !interpreter.is_escaping.get() {
        let made = replaced(&text(value)?, &text(&old)?, &text(&new)?, count)?;
        return Ok(Value::str(made));
    }
    let escapes = old.is_markup() || (new.is_markup() && !value.is_markup());
    let whole = if escapes {
        Str { text: escape(value)?.into(), is_markup: true }
    } else {
        soft_str(value)?
    };
    let args = Args {
        positional: vec![
            Value::Str(soft_str(&old)?),
            Value::Str(soft_str(&new)?),
            Value::Int(count),
        ],
        named: Vec::new(),
    };
    str_methods::call(&whole, "replace", args)
}

/// Words begin behind spaces, hyphens and opening brackets.
fn titled(whole: &Str) -> Result<Value> {
    budget::spend_text(whole.text.len())?;
    let is_gap = |c: char| is_space(c) || matches!(c, '-' | '(' | '{' | '[' | '<');
    let mut out = String::new();
    let mut rest = &*whole.text;
    while let Some(first) = rest.chars().next() {
        let end = rest.find(|c: char| is_gap(c) != is_gap(first)).unwrap_or(rest.len());
        out.extend(first.to_uppercase());
        out.push_str(&rest[first.len_utf8()..end].to_lowercase());
        rest = &rest[end..];
    }
    Ok(Value::str(out))
}

fn truncated(value: &Value, bound: &Bound) -> Result<Value> {
    let (length, leeway) =
        (bound.get(0).map_or(Ok(255), as_index)?, bound.given(3).map_or(Ok(5), as_index)?);
    let end = match bound.get(2) {
        None => Str::plain("..."),
        Some(Value::Str(end)) => end.clone(),
        Some(other) => {
            return fail(format!("truncate: end must be a string, not {}", other.type_name()))
        }
    };
    let end_length = end.text.chars().count() as i64;
    if length < end_length {
        return fail(format!("expected length >= {end_length}, got {length}"));
    }
    if leeway < 0 {
        return fail(format!("expected leeway >= 0, got {leeway}"));
    }
    let Some(len) = value.len() else {
        return fail(format!("object of type '{}' has no len()", value.type_name()));
    };
    if len as i64 <= length.saturating_add(leeway) {
        return Ok(value.clone());
    }
    let Value::Str(whole) = value else {
        return fail(format!("truncate: '{}' is not a string", value.type_name()));
    };
    budget::spend_text(whole.text.len())?;
    let kept: String = whole.text.chars().take((length - end_length) as usize).collect();
    let kept = match kept.rsplit_once(' ') {
        Some((before, _)) if !bound.is_true(1) => before.to_string(),
        _ => kept,
    };
    markup::joined(&Str { text: kept.into(), is_markup: whole.is_markup }, &end)
}

fn url_quoted(value: &Value, is_query: bool) -> Result<String> {
    let text = text(value)?;
    budget::spend_text(text.len().saturating_mul(3))?;
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' => {
                out.push(char::from(byte));
            }
            b'/' if !is_query => out.push('/'),
            b' ' if is_query => out.push('+'),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    Ok(out)
}

fn url_encoded(value: &Value) -> Result<String> {
    if value.as_str().is_some() || !value.is_iterable() {
        return url_quoted(value, false);
    }
    let pairs = match value {
        Value::Dict(_) => pairs(value)?,
        _ => value.iterate()?,
    };
    let mut written = Vec::new();
    for pair in pairs {
        let [key, value] = &pair.iterate()?[..] else {
            return fail("urlencode: an item is not a pair");
        };
        written.push(url_quoted(key, true)? + "=" + &url_quoted(value, true)?);
    }
    Ok(written.join("&"))
}

fn xml_attributes(value: &Value, bound: &Bound) -> Result<String> {
    let mut written = Vec::new();
    for pair in pairs(value)? {
        let [key, value] = &pair.iterate()?[..] else { return fail("expected a pair") };
        if matches!(value, Value::None | Value::Undefined(_)) {
            continue;
        }
        let Value::Str(name) = key else { return fail("an attribute's name is not a string") };
        let is_wrong = |c: char| matches!(c, ' ' | '\t'..='\r' | '/' | '>' | '=');
        if name.text.contains(is_wrong) {
            return fail(format!("Invalid character in attribute name: '{}'", name.text));
        }
        written.push(format!("{}=\"{}\"", escape(key)?, escape(value)?));
    }
    let made = written.join(" ");
    let has_space = bound.get(0).is_none_or(Value::is_true) && !made.is_empty();
    Ok(if has_space { format!(" {made}") } else { made })
}
