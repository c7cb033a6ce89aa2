// SPDX-License-Identifier: Apache-2.0
//! Jinja2's tests: what may follow `is`.

use super::arguments::Args;
use super::characters::{is_lower, is_upper};
use super::error::{fail, Result};
use super::filters;
use super::operators::{arithmetic_rest, compare, is_equal, is_same};
use super::value::{Kind, Value};
use super::write::text;

const NAMES: [&str; 39] = [
    "odd",
    "even",
    "divisibleby",
    "defined",
    "undefined",
    "filter",
    "test",
    "none",
    "boolean",
    "false",
    "true",
    "integer",
    "float",
    "lower",
    "upper",
    "string",
    "mapping",
    "number",
    "sequence",
    "iterable",
    "callable",
    "sameas",
    "escaped",
    "in",
    "==",
    "eq",
    "equalto",
    "!=",
    "ne",
    ">",
    "gt",
    "greaterthan",
    "ge",
    ">=",
    "<",
    "lt",
    "lessthan",
    "<=",
    "le",
];

pub fn is_known(name: &str) -> bool {
    NAMES.contains(&name)
}

pub fn apply(name: &str, value: &Value, args: Args) -> Result<bool> {
    let has_argument = !matches!(
        name,
        "odd"
            | "even"
            | "defined"
            | "undefined"
            | "filter"
            | "test"
            | "none"
            | "boolean"
            | "false"
            | "true"
            | "integer"
            | "float"
            | "lower"
            | "upper"
            | "string"
            | "mapping"
            | "number"
            | "sequence"
            | "iterable"
            | "callable"
            | "escaped"
    );
    if !is_known(name) {
        return fail(format!("no test named '{name}'"));
    }
    let parameter = match name {
        _ if !has_argument => "",
        "divisibleby" => "num",
        "sameas" => "other",
        "in" => "seq",
        _ => "other /",
    };
    let bound = args.bind(name, parameter)?;
    if !has_argument {
        return plain(name, value);
    }
    let other = bound.value(0);
    Ok(match name {
        "divisibleby" => is_equal(&arithmetic_rest(value, &other)?, &Value::Int(0)),
        "sameas" => is_same(value, &other),
        "in" => compare("in", value, &other)?,
        "==" | "eq" | "equalto" => is_equal(value, &other),
        "!=" | "ne" => !is_equal(value, &other),
        ">" | "gt" | "greaterthan" => compare(">", value, &other)?,
        ">=" | "ge" => compare(">=", value, &other)?,
        "<" | "lt" | "lessthan" => compare("<", value, &other)?,
        _ => compare("<=", value, &other)?,
    })
}

fn plain(name: &str, value: &Value) -> Result<bool> {
    let is_int = matches!(value, Value::Int(_) | Value::Big(_));
    Ok(match name {
        "odd" => is_equal(&arithmetic_rest(value, &Value::Int(2))?, &Value::Int(1)),
        "even" => is_equal(&arithmetic_rest(value, &Value::Int(2))?, &Value::Int(0)),
        "defined" => !value.is_undefined(),
        "undefined" => value.is_undefined(),
        "filter" | "test" => {
            super::dict::check_hashable(value)?;
            value.as_str().is_some_and(|text| {
                if name == "filter" {
                    filters::is_known(text)
                } else {
                    is_known(text)
                }
            })
        }
        "none" => matches!(value, Value::None),
        "boolean" => matches!(value, Value::Bool(_)),
        "false" => matches!(value, Value::Bool(false)),
        "true" => matches!(value, Value::Bool(true)),
        "integer" => is_int,
        "float" => matches!(value, Value::Float(_)),
        "lower" => is_lower(&text(value)?),
        "upper" => is_upper(&text(value)?),
        "string" => matches!(value, Value::Str(_)),
        "mapping" => matches!(value, Value::Dict(_)),
        "number" => is_int || matches!(value, Value::Float(_) | Value::Bool(_)),
        "sequence" => match value.kind() {
            Some(kind) => matches!(kind, Kind::Range(_) | Kind::Group { .. }),
            None => value.len().is_some(),
        },
        "iterable" => value.is_iterable(),
        "escaped" => value.is_markup(),
        _ => matches!(value, Value::Undefined(_)) || value.kind().is_some_and(is_callable),
    })
}

fn is_callable(kind: &Kind) -> bool {
    matches!(
        kind,
        Kind::Method { .. }
            | Kind::Function(_)
            | Kind::Macro(_)
            | Kind::Loop(_)
            | Kind::Joiner { .. }
            | Kind::Block(_)
    )
}
