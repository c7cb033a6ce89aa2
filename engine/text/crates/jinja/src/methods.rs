// SPDX-License-Identifier: Apache-2.0
//! The attributes that values have, and the methods of all but strings.

use std::rc::Rc;

use num_traits::ToPrimitive;

use super::arguments::Args;
use super::ast::Name;
use super::dict::Dict;
use super::error::{fail, Result};
use super::number::{as_index, int_of_float, Number};
use super::operators::{is_equal, is_same};
use super::str_methods;
use super::value::{Kind, Mapping, Value, View};

pub enum Found {
    Nothing,
    Value(Value),
    Method(&'static str),
    /// The attribute exists, but a template may not access it.
    Unsafe,
}

const DICT_METHODS: [&str; 6] = ["get", "keys", "values", "items", "copy", "fromkeys"];
const DICT_CHANGES: [&str; 5] = ["clear", "pop", "popitem", "setdefault", "update"];
const LIST_METHODS: [&str; 3] = ["index", "count", "copy"];
const LIST_CHANGES: [&str; 8] =
    ["append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"];
const SEQUENCE_METHODS: [&str; 2] = ["index", "count"];
const INT_METHODS: [&str; 4] = ["bit_length", "bit_count", "conjugate", "as_integer_ratio"];
const FLOAT_METHODS: [&str; 3] = ["is_integer", "conjugate", "as_integer_ratio"];
const LOOP_METHODS: [&str; 2] = ["cycle", "changed"];
const CYCLER_METHODS: [&str; 2] = ["next", "reset"];

fn method(name: &str, names: &[&'static str]) -> Found {
    names.iter().find(|found| **found == name).map_or(Found::Nothing, |name| Found::Method(name))
}

fn method_or_change(name: &str, methods: &[&'static str], changes: &[&str]) -> Found {
    if changes.contains(&name) {
        Found::Unsafe
    } else {
        method(name, methods)
    }
}

/// What getattr finds.
pub fn attribute(value: &Value, name: &str) -> Result<Found> {
    Ok(match value {
        Value::Str(text) if text.is_markup && matches!(name, "striptags" | "unescape") => {
            Found::Method(if name == "unescape" { "unescape" } else { "striptags" })
        }
        Value::Str(_) => method(name, &str_methods::NAMES),
        Value::Dict(_) => method_or_change(name, &DICT_METHODS, &DICT_CHANGES),
        Value::List(_) => method_or_change(name, &LIST_METHODS, &LIST_CHANGES),
        Value::Tuple(_) => method(name, &SEQUENCE_METHODS),
        Value::Bool(_) | Value::Int(_) | Value::Big(_) => int_attribute(value, name),
        Value::Float(number) => match name {
            "real" => Found::Value(Value::Float(*number)),
            "imag" => Found::Value(Value::Float(0.0)),
            _ => method(name, &FLOAT_METHODS),
        },
        Value::Object(object) => object_attribute(&object.kind, name)?,
        Value::Undefined(_) | Value::None => Found::Nothing,
    })
}

fn int_attribute(value: &Value, name: &str) -> Found {
    match name {
        "real" | "numerator" => Found::Value(as_int(value)),
        "imag" => Found::Value(Value::Int(0)),
        "denominator" => Found::Value(Value::Int(1)),
        _ => method(name, &INT_METHODS),
    }
}

fn as_int(value: &Value) -> Value {
    match value {
        Value::Bool(value) => Value::Int(i64::from(*value)),
        _ => value.clone(),
    }
}

fn object_attribute(kind: &Kind, name: &str) -> Result<Found> {
    let found = match kind {
        Kind::Range(range) => match name {
            "start" => Some(Value::Int(range.start)),
            "stop" => Some(Value::Int(range.stop)),
            "step" => Some(Value::Int(range.step)),
            _ => return Ok(method(name, &SEQUENCE_METHODS)),
        },
        Kind::Group { key, items } => match name {
            "grouper" => Some(key.clone()),
            "list" => Some(items.clone()),
            _ => return Ok(method(name, &SEQUENCE_METHODS)),
        },
        Kind::Loop(state) => match state.attribute(name)? {
            Some(found) => Some(found),
            None => return Ok(method(name, &LOOP_METHODS)),
        },
        Kind::Namespace(dict) => dict.borrow().get_str(name).cloned(),
        Kind::Macro(found) => found.attribute(name),
        Kind::Cycler { items, at } => match name {
            "current" => Some(items[at.get()].clone()),
            "pos" => Some(Value::int(at.get() as i64)),
            "items" => Some(Value::tuple(items.clone())?),
            _ => return Ok(method(name, &CYCLER_METHODS)),
        },
        Kind::Joiner { separator, is_used } => match name {
            "sep" => Some(separator.clone()),
            "used" => Some(Value::Bool(is_used.get())),
            _ => None,
        },
        Kind::Blocks(names) => match names.iter().find(|block| ***block == *name) {
            Some(block) => Some(Value::object(Kind::Block(block.clone()), &[])?),
            None => None,
        },
        Kind::Block(_) if name == "super" => Some(Value::hint("there is no parent block")),
        Kind::Function("dict") => return Ok(method(name, &["fromkeys"])),
        _ => None,
    };
    Ok(found.map_or(Found::Nothing, Found::Value))
}

pub fn call(receiver: &Value, name: &'static str, args: Args) -> Result<Value> {
    match receiver {
        Value::Str(text) => str_methods::call(text, name, args),
        Value::Dict(mapping) => call_of_dict(mapping, name, args),
        Value::List(items) if name == "copy" => {
            args.bind(name, "")?;
            Value::list(items.values.clone())
        }
        Value::Bool(_) | Value::Int(_) | Value::Big(_) | Value::Float(_) => {
            args.bind(name, "")?;
            call_of_number(receiver, name)
        }
        _ => match receiver.kind() {
            Some(Kind::Loop(state)) if name == "cycle" => state.cycle(&args.positional),
            Some(Kind::Loop(state)) => Ok(Value::Bool(state.changed(args.positional))),
            Some(Kind::Cycler { items, at }) => {
                args.bind(name, "")?;
                let before = at.get();
                at.set(if name == "reset" { 0 } else { (before + 1) % items.len() });
                Ok(if name == "reset" { Value::None } else { items[before].clone() })
            }
            Some(Kind::Function("dict")) => from_keys(args),
            _ => call_of_sequence(receiver, name, args),
        },
    }
}

fn call_of_sequence(receiver: &Value, name: &'static str, args: Args) -> Result<Value> {
    let is_range = matches!(receiver.kind(), Some(Kind::Range(_)));
    let parameters = match (name, is_range) {
        ("index", false) => "value start? stop? /",
        _ => "value /",
    };
    let bound = args.bind(name, parameters)?;
    let wanted = bound.value(0);
    let values = receiver.iterate()?;
    let is_it = |value: &&Value| is_same(value, &wanted) || is_equal(value, &wanted);
    if name == "count" {
        return Ok(Value::int(values.iter().filter(is_it).count() as i64));
    }
    let len = values.len() as i64;
    let place = |at: i64| if at < 0 { (at + len).max(0) } else { at.min(len) } as usize;
    let (start, stop) = if is_range {
        (0, values.len())
    } else {
        (
            place(bound.get(1).map_or(Ok(0), as_index)?),
            place(bound.get(2).map_or(Ok(len), as_index)?),
        )
    };
    let part = values.get(start..stop).unwrap_or(&[]);
    match part.iter().position(|value| is_it(&value)) {
        Some(at) => Ok(Value::int((start + at) as i64)),
        None => fail("the value is not in the sequence"),
    }
}

fn call_of_dict(mapping: &Rc<Mapping>, name: &'static str, args: Args) -> Result<Value> {
    let view = |view: View| {
        Value::object(Kind::View(view, mapping.clone()), &[Value::Dict(mapping.clone())])
    };
    match name {
        "get" => {
            let bound = args.bind(name, "key default? /")?;
            let default = || bound.get(1).cloned().unwrap_or(Value::None);
            Ok(mapping.dict.get(&bound.value(0))?.cloned().unwrap_or_else(default))
        }
        "fromkeys" => from_keys(args),
        _ => {
            args.bind(name, "")?;
            match name {
                "keys" => view(View::Keys),
                "values" => view(View::Values),
                "items" => view(View::Items),
                _ => Value::dict(mapping.dict.clone()),
            }
        }
    }
}

fn from_keys(args: Args) -> Result<Value> {
    let bound = args.bind("fromkeys", "iterable value? /")?;
    let value = bound.get(1).cloned().unwrap_or(Value::None);
    let mut dict = Dict::default();
    for key in bound.value(0).iterate()? {
        dict.insert(key, value.clone())?;
    }
    Value::dict(dict)
}

/// dict(mapping or pairs, **named)
pub fn dict_of(first: Option<&Value>, named: Vec<(Name, Value)>) -> Result<Value> {
    let mut dict = Dict::default();
    match first {
        None => {}
        Some(Value::Dict(mapping)) => dict = mapping.dict.clone(),
        Some(Value::Undefined(missing)) => return Value::undefined_error(missing),
        Some(pairs) => {
            for pair in pairs.iterate()? {
                let pair = pair.iterate()?;
                let [key, value] = &pair[..] else {
                    return fail("dictionary update sequence element has not the length 2");
                };
                dict.insert(key.clone(), value.clone())?;
            }
        }
    }
    for (name, value) in named {
        dict.insert_str(&name, value);
    }
    Value::dict(dict)
}

fn call_of_number(receiver: &Value, name: &str) -> Result<Value> {
    let number = match (receiver, name) {
        (_, "conjugate") => return Ok(as_int(receiver)),
        (Value::Float(number), "is_integer") => {
            return Ok(Value::Bool(number.is_finite() && number.fract() == 0.0))
        }
        (Value::Float(number), _) => return ratio(*number),
        _ => Number::of(receiver).and_then(Number::big).unwrap_or_default(),
    };
    let magnitude = number.magnitude();
    match name {
        "bit_length" => Ok(Value::int(number.bits())),
        "bit_count" => Ok(Value::int(magnitude.count_ones())),
        _ => Value::tuple(vec![Value::big(number), Value::Int(1)]),
    }
}

fn ratio(number: f64) -> Result<Value> {
    let Some(_) = int_of_float(number) else {
        return fail("cannot convert infinity or nan to an integer ratio");
    };
    let (mut numerator, mut denominator) = (number, 0u32);
    while numerator.fract() != 0.0 {
        (numerator, denominator) = (numerator * 2.0, denominator + 1);
    }
    let whole = int_of_float(numerator).unwrap_or(Value::Int(0));
    let power = num_bigint::BigInt::from(2).pow(denominator);
    Value::tuple(vec![whole, Value::big(power)])
}

/// The items of a sequence of small integers, such as range's arguments.
pub fn integers(values: &[Value]) -> Result<Vec<i64>> {
    values.iter().map(as_index).collect()
}

/// An item of str.translate's table: None takes the character out.
pub fn translated(value: &Value) -> Result<String> {
    match value {
        Value::None => Ok(String::new()),
        Value::Str(text) => Ok(text.text.to_string()),
        _ => {
            let code = as_index(value)?.to_u32().and_then(char::from_u32);
            code.map_or_else(
                || fail("character mapping must be in range(0x110000)"),
                |c| Ok(c.to_string()),
            )
        }
    }
}
