// SPDX-License-Identifier: Apache-2.0
//! Attributes, items and slices.

use std::rc::Rc;

use super::budget;
use super::error::{fail, Result};
use super::methods::{self, Found};
use super::number::{as_index, Number};
use super::value::{Kind, Missing, Str, Value};

fn no_attribute(value: &Value, name: &str) -> Value {
    let type_name = value.type_name();
    Value::Undefined(Rc::new(Missing::Attribute { type_name, name: name.to_string() }))
}

/// getattr(value, name); None: it has no such attribute.
fn python_attribute(value: &Value, name: &str) -> Result<Option<Value>> {
    let is_special = name.len() > 4 && name.starts_with("__") && name.ends_with("__");
    if let Value::Undefined(missing) = value {
        if !is_special || matches!(**missing, Missing::Unsafe { .. }) {
            return Value::undefined_error(missing);
        }
    }
    let found = if is_special { Found::Unsafe } else { methods::attribute(value, name)? };
    Ok(match found {
        Found::Nothing => None,
        Found::Value(value) => Some(value),
        Found::Method(name) => Some(Value::object(
            Kind::Method { receiver: value.clone(), name },
            std::slice::from_ref(value),
        )?),
        Found::Unsafe => Some(Value::Undefined(Rc::new(Missing::Unsafe {
            type_name: value.type_name(),
            name: name.to_string(),
        }))),
    })
}

/// value.name: the attribute, otherwise the item.
pub fn attribute(value: &Value, name: &str) -> Result<Value> {
    if let Some(found) = python_attribute(value, name)? {
        return Ok(found);
    }
    if let Value::Dict(mapping) = value {
        if let Some(found) = mapping.dict.get_str(name) {
            return Ok(found.clone());
        }
    }
    Ok(no_attribute(value, name))
}

/// The attribute only.
pub fn own_attribute(value: &Value, name: &str) -> Result<Value> {
    Ok(python_attribute(value, name)?.unwrap_or_else(|| no_attribute(value, name)))
}

/// value[key]; None: Python has no such item.
fn python_item(value: &Value, key: &Value) -> Result<Option<Value>> {
    if let Value::Undefined(missing) = value {
        return Value::undefined_error(missing);
    }
    if let Value::Dict(mapping) = value {
        return Ok(mapping.dict.get(key).unwrap_or(None).cloned());
    }
    let is_index = matches!(key, Value::Int(_) | Value::Bool(_) | Value::Big(_));
    if !is_index {
        return Ok(None);
    }
    let at = |len: usize| {
        let index = as_index(key).unwrap_or(i64::MAX);
        let index = if index < 0 { index.saturating_add(len as i64) } else { index };
        usize::try_from(index).ok().filter(|index| *index < len)
    };
    Ok(match value {
        Value::Str(text) => {
            budget::spend_text(text.text.len())?;
            let is_from_end = matches!(key, Value::Int(index) if *index < 0);
            let found = if text.text.is_ascii() {
                at(text.text.len()).map(|at| char::from(text.text.as_bytes()[at]))
            } else if is_from_end {
                let back = as_index(key)?.unsigned_abs() as usize - 1;
                text.text.chars().rev().nth(back)
            } else {
                usize::try_from(as_index(key)?).ok().and_then(|at| text.text.chars().nth(at))
            };
            found.map(|c| like(text, &c.to_string()))
        }
        Value::List(items) | Value::Tuple(items) => {
            at(items.values.len()).map(|at| items.values[at].clone())
        }
        _ => match value.kind() {
            Some(Kind::Range(range)) => at(range.len()).map(|at| range.at(at)),
            Some(Kind::Group { key, items }) => {
                at(2).map(|at| if at == 0 { key.clone() } else { items.clone() })
            }
            _ => None,
        },
    })
}

fn like(text: &Str, made: &str) -> Value {
    Value::Str(Str { text: made.into(), is_markup: text.is_markup })
}

/// value[key]: the item, otherwise the attribute.
pub fn item(value: &Value, key: &Value) -> Result<Value> {
    if let Some(found) = python_item(value, key)? {
        return Ok(found);
    }
    if let Value::Str(name) = key {
        if let Some(found) = python_attribute(value, &name.text)? {
            return Ok(found);
        }
        return Ok(no_attribute(value, &name.text));
    }
    let hint = format!("{} object has no such element", value.type_name());
    Ok(Value::Undefined(Rc::new(Missing::Hint(hint))))
}

/// Where a slice begins, ends and how far it steps, in a sequence of `len` items.
fn bounds(parts: &[Value; 3], len: usize) -> Result<(i64, i64, i64)> {
    let number = |part: &Value| match part {
        Value::None => Ok(None),
        Value::Undefined(_) | Value::Float(_) | Value::Str(_) => {
            fail("slice indices must be integers or None or have an __index__ method")
        }
        _ => as_index(part).map(Some),
    };
    let len = len as i64;
    let step = number(&parts[2])?.unwrap_or(1);
    if step == 0 {
        return fail("slice step cannot be zero");
    }
    let (low, high) = if step > 0 { (0, len) } else { (-1, len - 1) };
    let clamp = |part: &Value, default: i64| {
        Ok(match number(part)? {
            None => default,
            Some(at) if at < 0 => at.saturating_add(len).max(low),
            Some(at) => at.min(high),
        })
    };
    let (first, last) = if step > 0 { (low, high) } else { (high, low) };
    Ok((clamp(&parts[0], first)?, clamp(&parts[1], last)?, step))
}

fn positions((start, stop, step): (i64, i64, i64)) -> impl Iterator<Item = usize> {
    let mut at = start;
    std::iter::from_fn(move || {
        let is_inside = if step > 0 { at < stop } else { at > stop };
        is_inside.then(|| {
            let found = at;
            at = at.saturating_add(step);
            found as usize
        })
    })
}

pub fn slice(value: &Value, parts: &[Value; 3]) -> Result<Value> {
    match value {
        Value::Undefined(missing) => Value::undefined_error(missing),
        Value::Str(text) => {
            budget::spend_text(text.text.len())?;
            if text.text.is_ascii() {
                let bytes = text.text.as_bytes();
                let taken = positions(bounds(parts, bytes.len())?);
                let made: String = taken.map(|at| char::from(bytes[at])).collect();
                return Ok(like(text, &made));
            }
            let characters: Vec<char> = text.text.chars().collect();
            let taken = positions(bounds(parts, characters.len())?);
            Ok(like(text, &taken.map(|at| characters[at]).collect::<String>()))
        }
        Value::List(items) => {
            let taken = positions(bounds(parts, items.values.len())?);
            Value::list(taken.map(|at| items.values[at].clone()).collect())
        }
        Value::Tuple(items) => {
            let taken = positions(bounds(parts, items.values.len())?);
            Value::tuple(taken.map(|at| items.values[at].clone()).collect())
        }
        _ => match value.kind() {
            Some(Kind::Range(range)) => {
                let (start, stop, step) = bounds(parts, range.len())?;
                let at = |index: i64| range.start + index * range.step;
                let numbers = [at(start), at(stop), range.step * step];
                Value::object(Kind::Range(super::range::Range::new(&numbers)?), &[])
            }
            Some(Kind::Group { .. }) => slice(&Value::tuple(value.iterate()?)?, parts),
            _ if Number::of(value).is_some() => {
                fail(format!("'{}' object is not subscriptable", value.type_name()))
            }
            _ => fail(format!("'{}' object has no slices", value.type_name())),
        },
    }
}
