// SPDX-License-Identifier: Apache-2.0
//! Values as Python writes them: str() and repr().

use super::budget;
use super::error::Result;
use super::number::{float_text, int_text};
use super::value::{Kind, Value, View};

/// str(value)
pub fn text(value: &Value) -> Result<String> {
    match value {
        Value::Undefined(_) => Ok(String::new()),
        Value::Str(text) => {
            budget::spend_text(text.text.len())?;
            Ok(text.text.to_string())
        }
        _ => repr(value),
    }
}

/// repr(value)
pub fn repr(value: &Value) -> Result<String> {
    let mut out = String::new();
    write_repr(value, &mut out)?;
    Ok(out)
}

/// The private characters that guard a client's spellings stay as they are.
pub fn is_printable(c: char) -> bool {
    let is_format = matches!(c,
        '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{8e2}'
        | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{e000}'..='\u{f8ff}' | '\u{feff}' | '\u{fff0}'..='\u{fffb}' | '\u{fffe}'..='\u{ffff}'
        | '\u{110bd}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e007f}');
    c == ' ' || !(c.is_control() || c.is_whitespace() || is_format)
}

pub fn write_quoted(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            c if is_printable(c) => out.push(c),
            c => match c as u32 {
                code @ 0..=0xff => out.push_str(&format!("\\x{code:02x}")),
                code @ 0..=0xffff => out.push_str(&format!("\\u{code:04x}")),
                code => out.push_str(&format!("\\U{code:08x}")),
            },
        }
    }
    out.push(quote);
}

fn write_items(values: &[Value], (open, close): (&str, &str), out: &mut String) -> Result<()> {
    out.push_str(open);
    for (at, value) in values.iter().enumerate() {
        if at > 0 {
            out.push_str(", ");
        }
        write_repr(value, out)?;
    }
    out.push_str(close);
    Ok(())
}

fn write_tuple(values: &[Value], out: &mut String) -> Result<()> {
    write_items(values, ("(", if values.len() == 1 { ",)" } else { ")" }), out)
}

fn write_dict(dict: &super::dict::Dict, out: &mut String) -> Result<()> {
    out.push('{');
    for (at, (key, value)) in dict.iter().enumerate() {
        if at > 0 {
            out.push_str(", ");
        }
        write_repr(key, out)?;
        out.push_str(": ");
        write_repr(value, out)?;
    }
    out.push('}');
    Ok(())
}

fn write_repr(value: &Value, out: &mut String) -> Result<()> {
    budget::spend(1)?;
    budget::check_text(out.len())?;
    budget::check_stack()?;
    match value {
        Value::Undefined(_) => out.push_str("Undefined"),
        Value::None => out.push_str("None"),
        Value::Bool(value) => out.push_str(if *value { "True" } else { "False" }),
        Value::Int(value) => out.push_str(&value.to_string()),
        Value::Big(value) => out.push_str(&int_text(value)?),
        Value::Float(value) => out.push_str(&float_text(*value)),
        Value::Str(text) => {
            budget::spend_text(text.text.len())?;
            if text.is_markup {
                out.push_str("Markup(");
            }
            write_quoted(&text.text, out);
            if text.is_markup {
                out.push(')');
            }
        }
        Value::List(items) => write_items(&items.values, ("[", "]"), out)?,
        Value::Tuple(items) => write_tuple(&items.values, out)?,
        Value::Dict(mapping) => write_dict(&mapping.dict, out)?,
        Value::Object(object) => write_object(value, &object.kind, out)?,
    }
    Ok(())
}

fn write_object(value: &Value, kind: &Kind, out: &mut String) -> Result<()> {
    match kind {
        Kind::Range(range) => out.push_str(&range.text()),
        Kind::View(view, _) => {
            let open = match view {
                View::Keys => "dict_keys([",
                View::Values => "dict_values([",
                View::Items => "dict_items([",
            };
            write_items(&value.iterate()?, (open, "])"), out)?;
        }
        Kind::Group { key, items } => write_tuple(&[key.clone(), items.clone()], out)?,
        Kind::Macro(found) => match &found.node.name {
            Some(name) => {
                out.push_str("<Macro ");
                write_quoted(name, out);
                out.push('>');
            }
            None => out.push_str("<Macro anonymous>"),
        },
        Kind::Loop(state) => {
            let index = state.attribute("index")?.unwrap_or(Value::None);
            out.push_str("<LoopContext ");
            write_repr(&index, out)?;
            out.push_str(&format!("/{}>", state.items.len()));
        }
        Kind::Namespace(dict) => {
            out.push_str("<Namespace ");
            write_dict(&dict.borrow().clone(), out)?;
            out.push('>');
        }
        Kind::Blocks(_) => out.push_str("<TemplateReference None>"),
        Kind::Function("dict") => out.push_str("<class 'dict'>"),
        Kind::Function(name @ ("namespace" | "cycler" | "joiner")) => {
            let (first, rest) = name.split_at(1);
            out.push_str(&format!("<class 'jinja2.utils.{}{rest}'>", first.to_uppercase()));
        }
        // Python has an address there.
        _ => out.push_str(&format!("<{} object>", value.type_name())),
    }
    Ok(())
}
