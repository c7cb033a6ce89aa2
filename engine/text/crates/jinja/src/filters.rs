// SPDX-License-Identifier: Apache-2.0
//! Jinja2's filters: the list of them, and those that convert one value.

use super::arguments::Args;
use super::dict::Dict;
use super::error::{fail, Result};
use super::interpreter::Interpreter;
use super::json::{json, JsonStyle};
use super::markup::{escape, escape_text, strip_tags};
use super::number::{as_index, float_of_text, int_of_float, int_of_text, rounded, Number};
use super::operators::{binary, unary};
use super::percent_format;
use super::pretty::pretty;
use super::sequence_filters;
use super::str_methods;
use super::subscript;
use super::text_filters;
use super::value::{Str, Value};
use super::wrapping::wrapped;
use super::write::text;

const NAMES: [&str; 54] = [
    "abs",
    "attr",
    "batch",
    "capitalize",
    "center",
    "count",
    "d",
    "default",
    "dictsort",
    "e",
    "escape",
    "filesizeformat",
    "first",
    "float",
    "forceescape",
    "format",
    "groupby",
    "indent",
    "int",
    "items",
    "join",
    "last",
    "length",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "pprint",
    "random",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "slice",
    "sort",
    "string",
    "striptags",
    "sum",
    "title",
    "tojson",
    "trim",
    "truncate",
    "unique",
    "upper",
    "urlencode",
    "urlize",
    "wordcount",
    "wordwrap",
    "xmlattr",
];

pub fn is_known(name: &str) -> bool {
    NAMES.contains(&name)
}

/// As a text; what is Markup stays it.
pub fn soft_str(value: &Value) -> Result<Str> {
    match value {
        Value::Str(text) => Ok(text.clone()),
        _ => Ok(Str::plain(text(value)?)),
    }
}

pub fn apply(interpreter: &Interpreter, name: &str, value: Value, args: Args) -> Result<Value> {
    match name {
        "abs" => {
            args.bind(name, "")?;
            absolute(&value)
        }
        "attr" => subscript::own_attribute(&value, args.bind(name, "name")?.str(0)?),
        "d" | "default" => {
            let bound = args.bind(name, "default_value? boolean?")?;
            let is_missing = value.is_undefined() || (bound.is_true(1) && !value.is_true());
            let default = || bound.get(0).cloned().unwrap_or_else(|| Value::str(""));
            Ok(if is_missing { default() } else { value })
        }
        "e" | "escape" => {
            args.bind(name, "")?;
            Ok(Value::markup(escape(&value)?))
        }
        "forceescape" => {
            args.bind(name, "")?;
            Ok(Value::markup(escape_text(&text(&value)?)))
        }
        "safe" => {
            args.bind(name, "")?;
            Ok(Value::markup(text(&value)?))
        }
        "string" => {
            args.bind(name, "")?;
            Ok(Value::Str(soft_str(&value)?))
        }
        "striptags" => {
            args.bind(name, "")?;
            Ok(Value::str(strip_tags(&text(&value)?)))
        }
        "float" => to_float(&value, args),
        "int" => to_int(&value, args),
        "round" => round(&value, args),
        "format" => format(&value, args),
        "tojson" => to_json(&value, args),
        "capitalize" | "lower" | "upper" => str_method(name, &value, args),
        "count" | "length" => {
            args.bind(name, "")?;
            match value.len() {
                Some(len) => Ok(Value::int(len as i64)),
                None => fail(format!("object of type '{}' has no len()", value.type_name())),
            }
        }
        "pprint" => {
            args.bind(name, "")?;
            Ok(Value::str(pretty(&value)?))
        }
        "wordwrap" => {
            let parameters = "width? break_long_words? wrapstring? break_on_hyphens?";
            wrapped(&value, &args.bind(name, parameters)?)
        }
        "random" | "urlize" => fail(format!("the filter '{name}' is not there for chat templates")),
        _ if !is_known(name) => fail(format!("no filter named '{name}'")),
        _ => match text_filters::apply(interpreter, name, &value, args)? {
            text_filters::Outcome::Made(made) => Ok(made),
            text_filters::Outcome::Other(args) => {
                sequence_filters::apply(interpreter, name, &value, args)
            }
        },
    }
}

fn str_method(name: &str, value: &Value, args: Args) -> Result<Value> {
    let method = match name {
        "capitalize" => "capitalize",
        "lower" => "lower",
        _ => "upper",
    };
    str_methods::call(&soft_str(value)?, method, args)
}

fn absolute(value: &Value) -> Result<Value> {
    match Number::of(value) {
        Some(Number::Float(number)) => Ok(Value::Float(number.abs())),
        Some(Number::Int(number)) if number >= 0 => Ok(Value::Int(number)),
        Some(Number::Big(number)) => Ok(Value::big(number.magnitude().clone().into())),
        Some(_) => unary("-", value),
        None => fail(format!("bad operand type for abs(): '{}'", value.type_name())),
    }
}

fn to_float(value: &Value, args: Args) -> Result<Value> {
    let bound = args.bind("float", "default?")?;
    let made = match value {
        Value::Undefined(missing) => return Value::undefined_error(missing),
        Value::Str(text) => float_of_text(&text.text),
        _ => match Number::of(value) {
            Some(number) => Some(number.float()?),
            None => None,
        },
    };
    Ok(match made {
        Some(made) => Value::Float(made),
        None => bound.get(0).cloned().unwrap_or(Value::Float(0.0)),
    })
}

fn to_int(value: &Value, args: Args) -> Result<Value> {
    let bound = args.bind("int", "default? base?")?;
    let made = match value {
        Value::Undefined(missing) => return Value::undefined_error(missing),
        Value::Str(text) => {
            let base = bound.int_or(1, 10)?;
            let whole = if (2..=36).contains(&base) || base == 0 {
                int_of_text(&text.text, base)?
            } else {
                None
            };
            whole.or_else(|| float_of_text(&text.text).and_then(int_of_float))
        }
        Value::Float(number) if number.is_infinite() => {
            return fail("cannot convert float infinity to integer")
        }
        Value::Float(number) => int_of_float(*number),
        _ => Number::of(value).and_then(Number::big).map(Value::big),
    };
    Ok(made.unwrap_or_else(|| bound.get(0).cloned().unwrap_or(Value::Int(0))))
}

fn round(value: &Value, args: Args) -> Result<Value> {
    let bound = args.bind("round", "precision? method?")?;
    let method = bound.str_or(1, "common")?;
    let Some(number) = Number::of(value) else {
        return fail(format!("type {} doesn't define __round__ method", value.type_name()));
    };
    let precision = bound.get(0).cloned().unwrap_or(Value::Int(0));
    if let ("common", Value::None) = (method, &precision) {
        return whole_of(&number);
    }
    if method == "common" {
        return rounded(&number, as_index(&precision)?);
    }
    let unit = binary("**", &Value::Int(10), &precision)?;
    let scaled = binary("*", value, &unit)?;
    let whole = match (&scaled, method) {
        (Value::Float(number), "ceil") => int_of_float(number.ceil()),
        (Value::Float(number), "floor") => int_of_float(number.floor()),
        (_, "ceil" | "floor") => Some(scaled),
        _ => return fail("method must be common, ceil or floor"),
    };
    match whole {
        Some(whole) => binary("/", &whole, &unit),
        None => fail("cannot convert a float that is not finite to integer"),
    }
}

/// round(value, None)
fn whole_of(number: &Number) -> Result<Value> {
    let rounded = rounded(number, 0)?;
    let Value::Float(whole) = rounded else { return Ok(rounded) };
    match int_of_float(whole) {
        Some(whole) => Ok(whole),
        None => fail("cannot convert a float that is not finite to integer"),
    }
}

fn format(value: &Value, args: Args) -> Result<Value> {
    let pattern = soft_str(value)?;
    if args.named.is_empty() {
        return percent_format::formatted(&pattern, &Value::tuple(args.positional)?);
    }
    if !args.positional.is_empty() {
        return fail("can't handle positional and keyword arguments at the same time");
    }
    let mut dict = Dict::default();
    for (name, value) in args.named {
        dict.insert_str(&name, value);
    }
    percent_format::formatted(&pattern, &Value::dict(dict)?)
}

/// transformers' own, which is json.dumps.
fn to_json(value: &Value, args: Args) -> Result<Value> {
    let bound = args.bind("tojson", "ensure_ascii? indent? separators? sort_keys?")?;
    let indent = match bound.given(1) {
        None => None,
        // It has no lines to indent.
        Some(_) if value.as_str().is_some() => None,
        Some(Value::Str(text)) => Some(text.text.to_string()),
        Some(_) => {
            let width = usize::try_from(bound.int_or(1, 0)?).unwrap_or(0);
            super::budget::check_text(width)?;
            Some(" ".repeat(width))
        }
    };
    let separators = match bound.given(2) {
        None => None,
        Some(pair) => match &pair.iterate()?[..] {
            [Value::Str(item), Value::Str(key)] => {
                Some((item.text.to_string(), key.text.to_string()))
            }
            _ => return fail("tojson: separators must be two strings"),
        },
    };
    let style = JsonStyle {
        ensure_ascii: bound.is_true(0),
        sort_keys: bound.is_true(3),
        indent,
        separators,
    };
    json(value, &style).map(Value::str)
}
