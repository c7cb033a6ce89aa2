//! Values as Python writes them: str(), repr() and json.dumps(). Chat templates were written and
//! tested with Python's Jinja.

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

pub struct JsonStyle {
    pub ensure_ascii: bool,
    pub sort_keys: bool,
    pub indent: Option<String>,
    /// Between items, and between key and value.
    pub separators: Option<(String, String)>,
}

/// str(value); nothing for an undefined one.
pub fn text(value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(String::new()),
        ValueKind::String => Ok(value.to_string()),
        _ => repr(value),
    }
}

/// repr(float): 17 digits at most, an exponent below 1e-4 and from 1e16.
fn float(number: f64) -> String {
    if number.is_nan() {
        return "nan".into();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let size = number.abs();
    if size != 0.0 && !(1e-4..1e16).contains(&size) {
        let scientific = format!("{number:e}");
        let (digits, exponent) = scientific.split_once('e').expect("an exponent");
        let (sign, exponent) = exponent.strip_prefix('-').map_or(("+", exponent), |e| ("-", e));
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    let plain = number.to_string();
    if plain.contains('.') {
        plain
    } else {
        plain + ".0"
    }
}

fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    f64::try_from(value.clone()).map_or_else(|_| value.to_string(), float)
}

fn quoted(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::from(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            c if c.is_control() => out.push_str(&format!("\\x{:02x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push(quote);
    out
}

fn repr(value: &Value) -> Result<String, Error> {
    Ok(match value.kind() {
        ValueKind::None => "None".into(),
        ValueKind::Bool => if value.is_true() { "True" } else { "False" }.into(),
        ValueKind::Number => number(value),
        ValueKind::String => quoted(value.as_str().unwrap_or_default()),
        ValueKind::Seq => {
            let items: Vec<String> =
                value.try_iter()?.map(|item| repr(&item)).collect::<Result<_, _>>()?;
            match (value.is_tuple(), items.len()) {
                (true, 1) => format!("({},)", items[0]),
                (true, _) => format!("({})", items.join(", ")),
                (false, _) => format!("[{}]", items.join(", ")),
            }
        }
        ValueKind::Map => {
            let mut items = Vec::new();
            for key in value.try_iter()? {
                items.push(format!("{}: {}", repr(&key)?, repr(&value.get_item(&key)?)?));
            }
            format!("{{{}}}", items.join(", "))
        }
        _ => value.to_string(),
    })
}

/// json.dumps(value)
pub fn json(value: &Value, style: &JsonStyle) -> Result<String, Error> {
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

fn json_key(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.as_str().unwrap_or_default().to_string()),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.into()),
        ValueKind::None => Ok("null".into()),
        ValueKind::Number => Ok(number(key)),
        kind => {
            Err(Error::new(ErrorKind::InvalidOperation, format!("tojson: a key of type {kind}")))
        }
    }
}

/// Writes `[` or `{`, the items by `write_item`, and the closing bracket.
fn write_items<T>(
    items: &[T],
    (open, close): (char, char),
    (style, depth): (&JsonStyle, usize),
    out: &mut String,
    mut write_item: impl FnMut(&T, &mut String) -> Result<(), Error>,
) -> Result<(), Error> {
    let default_separator = if style.indent.is_some() { "," } else { ", " };
    let separator = style.separators.as_ref().map_or(default_separator, |(item, _)| item);
    let new_line = |depth: usize, out: &mut String| {
        if let Some(indent) = &style.indent {
            out.push('\n');
            out.push_str(&indent.repeat(depth));
        }
    };
    out.push(open);
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            out.push_str(separator);
        }
        new_line(depth + 1, out);
        write_item(item, out)?;
    }
    if !items.is_empty() {
        new_line(depth, out);
    }
    out.push(close);
    Ok(())
}

fn write_json(
    value: &Value,
    style: &JsonStyle,
    depth: usize,
    out: &mut String,
) -> Result<(), Error> {
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push_str(&number(value)),
        ValueKind::String => write_string(value.as_str().unwrap_or_default(), style, out),
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter()?.collect();
            write_items(&items, ('[', ']'), (style, depth), out, |item, out| {
                write_json(item, style, depth + 1, out)
            })?;
        }
        ValueKind::Map => {
            let mut items = Vec::new();
            for key in value.try_iter()? {
                items.push((json_key(&key)?, value.get_item(&key)?));
            }
            if style.sort_keys {
                items.sort_by(|a, b| a.0.cmp(&b.0));
            }
            let colon = style.separators.as_ref().map_or(": ", |(_, key)| key);
            write_items(&items, ('{', '}'), (style, depth), out, |(key, item), out| {
                write_string(key, style, out);
                out.push_str(colon);
                write_json(item, style, depth + 1, out)
            })?;
        }
        kind => {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                format!("tojson: a value of type {kind}"),
            ))
        }
    }
    Ok(())
}
