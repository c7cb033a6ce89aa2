// SPDX-License-Identifier: Apache-2.0
//! json.dumps(value)

use super::budget;
use super::error::{fail, Result};
use super::number::{float_text, int_text};
use super::sequence_filters::sorted;
use super::value::{Kind, Value};

pub struct JsonStyle {
    pub ensure_ascii: bool,
    pub sort_keys: bool,
    pub indent: Option<String>,
    /// Between items, and between key and value.
    pub separators: Option<(String, String)>,
}

pub fn json(value: &Value, style: &JsonStyle) -> Result<String> {
    let mut out = String::new();
    write_json(value, style, 0, &mut out)?;
    Ok(out)
}

fn write_string(text: &str, style: &JsonStyle, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' => out.push_str(&format!("\\u{:04x}", c as u32)),
            c if style.ensure_ascii && !c.is_ascii() => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

fn float(number: f64) -> String {
    match number {
        _ if number.is_nan() => "NaN".into(),
        _ if number.is_infinite() => if number > 0.0 { "Infinity" } else { "-Infinity" }.into(),
        _ => float_text(number),
    }
}

fn json_key(key: &Value) -> Result<String> {
    Ok(match key {
        Value::Str(text) => text.text.to_string(),
        Value::Bool(value) => value.to_string(),
        Value::None => "null".into(),
        Value::Int(value) => value.to_string(),
        Value::Big(value) => int_text(value)?,
        Value::Float(value) => float(*value),
        _ => {
            return fail(format!(
                "keys must be str, int, float, bool or None, not {}",
                key.type_name()
            ))
        }
    })
}

/// Writes `[` or `{`, the items by `write_item`, and the closing bracket.
fn write_items<T>(
    items: &[T],
    (open, close): (char, char),
    (style, depth): (&JsonStyle, usize),
    out: &mut String,
    mut write_item: impl FnMut(&T, &mut String) -> Result<()>,
) -> Result<()> {
    let default_separator = if style.indent.is_some() { "," } else { ", " };
    let separator = style.separators.as_ref().map_or(default_separator, |(item, _)| item);
    let new_line = |depth: usize, out: &mut String| {
        let Some(indent) = &style.indent else { return Ok(()) };
        budget::check_text(out.len() + indent.len().saturating_mul(depth))?;
        out.push('\n');
        out.push_str(&indent.repeat(depth));
        Ok(())
    };
    out.push(open);
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            out.push_str(separator);
        }
        new_line(depth + 1, out)?;
        write_item(item, out)?;
    }
    if !items.is_empty() {
        new_line(depth, out)?;
    }
    out.push(close);
    Ok(())
}

fn write_dict(
    dict: &super::dict::Dict,
    style: &JsonStyle,
    depth: usize,
    out: &mut String,
) -> Result<()> {
    let mut entries: Vec<(&Value, &Value)> = dict.iter().collect();
    if style.sort_keys {
        let keyed = entries.into_iter().map(|entry| (entry.0.clone(), entry)).collect();
        entries = sorted(keyed, false)?.into_iter().map(|(_, entry)| entry).collect();
    }
    let colon = style.separators.as_ref().map_or(": ", |(_, key)| key);
    write_items(&entries, ('{', '}'), (style, depth), out, |(key, item), out| {
        write_string(&json_key(key)?, style, out);
        out.push_str(colon);
        write_json(item, style, depth + 1, out)
    })
}

fn write_json(value: &Value, style: &JsonStyle, depth: usize, out: &mut String) -> Result<()> {
    budget::spend(1)?;
    budget::check_text(out.len())?;
    budget::check_stack()?;
    match value {
        Value::None => out.push_str("null"),
        Value::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
        Value::Int(value) => out.push_str(&value.to_string()),
        Value::Big(value) => out.push_str(&int_text(value)?),
        Value::Float(value) => out.push_str(&float(*value)),
        Value::Str(text) => {
            budget::spend_text(text.text.len())?;
            write_string(&text.text, style, out);
        }
        Value::List(items) | Value::Tuple(items) => {
            write_items(&items.values, ('[', ']'), (style, depth), out, |item, out| {
                write_json(item, style, depth + 1, out)
            })?;
        }
        Value::Dict(mapping) => write_dict(&mapping.dict, style, depth, out)?,
        _ => match value.kind() {
            Some(Kind::Group { key, items }) => {
                let pair = Value::tuple(vec![key.clone(), items.clone()])?;
                write_json(&pair, style, depth, out)?;
            }
            _ => {
                return fail(format!(
                    "Object of type {} is not JSON serializable",
                    value.type_name()
                ))
            }
        },
    }
    Ok(())
}
