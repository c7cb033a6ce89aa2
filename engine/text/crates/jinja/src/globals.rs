// SPDX-License-Identifier: Apache-2.0
//! The functions that every template can call.

use std::cell::{Cell, RefCell};

use super::arguments::Args;
use super::dict::Dict;
use super::error::{fail, Error, Result};
use super::interpreter::Interpreter;
use super::methods::{dict_of, integers};
use super::range::Range;
use super::value::{Kind, Value};
use super::write::text;

const NAMES: [&str; 8] =
    ["range", "dict", "namespace", "cycler", "joiner", "lipsum", "raise_exception", "strftime_now"];

pub fn named(name: &str) -> Option<Value> {
    let name = NAMES.into_iter().find(|found| *found == name)?;
    Value::object(Kind::Function(name), &[]).ok()
}

pub fn call(interpreter: &Interpreter, name: &'static str, args: Args) -> Result<Value> {
    match name {
        "range" if args.named.is_empty() => {
            let range = Range::new(&integers(&args.positional)?)?;
            Value::object(Kind::Range(range), &[])
        }
        "range" => fail("range() takes no keyword arguments"),
        "dict" if args.positional.len() > 1 => fail("dict expected at most 1 argument"),
        "dict" => dict_of(args.positional.first(), args.named),
        "namespace" => {
            let Value::Dict(mapping) = dict_of(args.positional.first(), args.named)? else {
                return fail("expected a dict");
            };
            let made = Value::object(Kind::Namespace(RefCell::new(mapping.dict.clone())), &[])?;
            interpreter.hold_namespace(&made);
            Ok(made)
        }
        "cycler" => {
            let items = args.positional;
            if items.is_empty() || !args.named.is_empty() {
                return fail("at least one item has to be provided");
            }
            Value::object(Kind::Cycler { items: items.clone(), at: Cell::new(0) }, &items)
        }
        "joiner" => {
            let separator = args.bind(name, "sep?")?.get(0).cloned();
            let separator = separator.unwrap_or_else(|| Value::str(", "));
            let inside = [separator.clone()];
            Value::object(Kind::Joiner { separator, is_used: Cell::new(false) }, &inside)
        }
        "raise_exception" => {
            let message = args.bind(name, "message")?.value(0);
            Err(Error::Raised(text(&message)?))
        }
        "strftime_now" => strftime_now(args.bind(name, "format")?.str(0)?),
        _ => fail("lipsum makes random text, which a chat template has no use for"),
    }
}

fn strftime_now(format: &str) -> Result<Value> {
    let wrong = || Error::Failed("strftime_now: a format without result".into());
    let format = std::ffi::CString::new(format).map_err(|_| wrong())?;
    let mut text = [0u8; 256];
    let length = unsafe {
        let now = libc::time(std::ptr::null_mut());
        let mut local: libc::tm = std::mem::zeroed();
        if libc::localtime_r(&now, &mut local).is_null() {
            return Err(wrong());
        }
        libc::strftime(text.as_mut_ptr().cast(), text.len(), format.as_ptr(), &local)
    };
    if length == 0 && !format.is_empty() {
        return Err(wrong());
    }
    String::from_utf8(text[..length].to_vec()).map(Value::str).map_err(|_| wrong())
}

/// The client's variables and those of the tokenizer, from JSON.
pub fn from_json(json: &serde_json::Value) -> Result<Value> {
    Ok(match json {
        serde_json::Value::Null => Value::None,
        serde_json::Value::Bool(value) => Value::Bool(*value),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(value), _) => Value::Int(value),
            (None, Some(value)) => Value::big(value.into()),
            _ => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(text) => Value::str(text.as_str()),
        serde_json::Value::Array(items) => {
            Value::list(items.iter().map(from_json).collect::<Result<_>>()?)?
        }
        serde_json::Value::Object(items) => {
            let mut dict = Dict::default();
            for (name, value) in items {
                dict.insert_str(name, from_json(value)?);
            }
            Value::dict(dict)?
        }
    })
}
