// SPDX-License-Identifier: Apache-2.0
//! Python's operators.

use std::cmp::Ordering;
use std::rc::Rc;

use num_bigint::{BigInt, Sign};
use num_traits::{ToPrimitive, Zero};

use super::budget;
use super::error::{fail, Result};
use super::markup;
use super::number::{as_index, Number};
use super::percent_format;
use super::value::{Kind, Value, View};

/// What an integer may have; one with more digits than Python prints has less.
const MAX_BITS: u64 = 1 << 17;

fn no_operator<T>(operator: &str, left: &Value, right: &Value) -> Result<T> {
    for value in [left, right] {
        if let Value::Undefined(missing) = value {
            return Value::undefined_error(missing);
        }
    }
    let (left, right) = (left.type_name(), right.type_name());
    fail(format!("unsupported operand type(s) for {operator}: '{left}' and '{right}'"))
}

pub fn unary(operator: &str, value: &Value) -> Result<Value> {
    match Number::of(value) {
        Some(Number::Float(number)) => {
            Ok(Value::Float(if operator == "-" { -number } else { number }))
        }
        Some(number) => {
            let number = number.big().unwrap_or_default();
            Ok(Value::big(if operator == "-" { -number } else { number }))
        }
        None => match value {
            Value::Undefined(missing) => Value::undefined_error(missing),
            _ => fail(format!("bad operand type for unary {operator}: '{}'", value.type_name())),
        },
    }
}

pub fn binary(operator: &'static str, left: &Value, right: &Value) -> Result<Value> {
    match (operator, left, right) {
        (_, Value::Undefined(missing), _) => return Value::undefined_error(missing),
        ("%", Value::Str(format), _) => return percent_format::formatted(format, right),
        (_, _, Value::Undefined(missing)) => return Value::undefined_error(missing),
        ("+", Value::Str(a), Value::Str(b)) => return markup::joined(a, b),
        ("+", Value::List(a), Value::List(b)) => {
            return Value::list([a.values.clone(), b.values.clone()].concat())
        }
        ("+", Value::Tuple(a), Value::Tuple(b)) => {
            return Value::tuple([a.values.clone(), b.values.clone()].concat())
        }
        ("*", Value::Str(_) | Value::List(_) | Value::Tuple(_), _) => return repeated(left, right),
        ("*", _, Value::Str(_) | Value::List(_) | Value::Tuple(_)) => return repeated(right, left),
        _ => {}
    }
    match (Number::of(left), Number::of(right)) {
        (Some(a), Some(b)) => arithmetic(operator, a, b),
        _ => no_operator(operator, left, right),
    }
}

pub fn repeated(value: &Value, count: &Value) -> Result<Value> {
    let (Value::Bool(_) | Value::Int(_) | Value::Big(_)) = count else {
        return no_operator("*", value, count);
    };
    if let Value::Big(_) = count {
        return fail("cannot fit 'int' into an index-sized integer");
    }
    let count = as_index(count)?.max(0) as usize;
    match value {
        Value::Str(text) => {
            budget::spend_text(text.text.len().saturating_mul(count))?;
            Ok(Value::Str(super::value::Str {
                text: text.text.repeat(count).into(),
                is_markup: text.is_markup,
            }))
        }
        Value::List(items) | Value::Tuple(items) => {
            budget::spend_items(items.values.len().saturating_mul(count))?;
            let values = std::iter::repeat_n(&items.values, count).flatten().cloned().collect();
            if matches!(value, Value::List(_)) {
                Value::list(values)
            } else {
                Value::tuple(values)
            }
        }
        _ => no_operator("*", value, &Value::Int(0)),
    }
}

/// Rounded down, and what is left, which has the sign of `b`.
pub fn floor_division(a: &BigInt, b: &BigInt) -> (BigInt, BigInt) {
    let (quotient, rest) = (a / b, a % b);
    if !rest.is_zero() && (rest.sign() == Sign::Minus) != (b.sign() == Sign::Minus) {
        return (quotient - 1, rest + b);
    }
    (quotient, rest)
}

fn arithmetic(operator: &str, a: Number, b: Number) -> Result<Value> {
    if let (Number::Int(a), Number::Int(b)) = (&a, &b) {
        let small = match operator {
            "+" => a.checked_add(*b),
            "-" => a.checked_sub(*b),
            "*" => a.checked_mul(*b),
            _ => None,
        };
        if let Some(small) = small {
            return Ok(Value::Int(small));
        }
    }
    if operator == "/" {
        return true_division(a, b);
    }
    if matches!(a, Number::Float(_)) || matches!(b, Number::Float(_)) {
        return float_arithmetic(operator, a.float()?, b.float()?);
    }
    let (a, b) = (a.big().unwrap_or_default(), b.big().unwrap_or_default());
    if matches!(operator, "//" | "%") && b.is_zero() {
        return fail("integer division or modulo by zero");
    }
    budget::spend((a.bits() / 64 + 1) * (b.bits() / 64 + 1) / 256 + 1)?;
    let made = match operator {
        "+" => a + b,
        "-" => a - b,
        "*" => a * b,
        "//" => floor_division(&a, &b).0,
        "%" => floor_division(&a, &b).1,
        _ => return int_power(&a, &b),
    };
    if made.bits() > MAX_BITS {
        return fail(format!("an integer has more than {MAX_BITS} bits"));
    }
    Ok(Value::big(made))
}

fn true_division(a: Number, b: Number) -> Result<Value> {
    let divisor = b.float()?;
    if divisor == 0.0 {
        return fail("division by zero");
    }
    Ok(Value::Float(a.float()? / divisor))
}

fn int_power(a: &BigInt, b: &BigInt) -> Result<Value> {
    if b.sign() == Sign::Minus {
        let (a, b) = (Number::Big(a.clone()).float()?, Number::Big(b.clone()).float()?);
        return float_arithmetic("**", a, b);
    }
    if a.bits() <= 1 {
        let is_odd = b.bit(0);
        let is_one = b.is_zero() || (!a.is_zero() && (a.sign() == Sign::Plus || !is_odd));
        return Ok(Value::Int(if is_one {
            1
        } else if a.is_zero() {
            0
        } else {
            -1
        }));
    }
    match b.to_u32() {
        Some(exponent) if a.bits().saturating_mul(u64::from(exponent)) <= MAX_BITS => {
            budget::spend(a.bits() * u64::from(exponent) / 64 + 1)?;
            Ok(Value::big(a.pow(exponent)))
        }
        _ => fail(format!("an integer has more than {MAX_BITS} bits")),
    }
}

fn float_arithmetic(operator: &str, a: f64, b: f64) -> Result<Value> {
    let made = match operator {
        "+" => a + b,
        "-" => a - b,
        "*" => a * b,
        "**" => return float_power(a, b),
        _ if b == 0.0 => return fail("float floor division or modulo by zero"),
        _ => {
            let mut rest = a % b;
            let mut quotient = (a - rest) / b;
            if rest == 0.0 {
                rest = 0.0_f64.copysign(b);
            } else if (b < 0.0) != (rest < 0.0) {
                rest += b;
                quotient -= 1.0;
            }
            if operator == "%" {
                rest
            } else if quotient == 0.0 {
                0.0_f64.copysign(a / b)
            } else {
                let floor = quotient.floor();
                if quotient - floor > 0.5 {
                    floor + 1.0
                } else {
                    floor
                }
            }
        }
    };
    Ok(Value::Float(made))
}

fn float_power(a: f64, b: f64) -> Result<Value> {
    if a == 0.0 && b < 0.0 {
        return fail("0.0 cannot be raised to a negative power");
    }
    let made = a.powf(b);
    if a < 0.0 && a.is_finite() && b.is_finite() && b.fract() != 0.0 {
        return fail("a negative number has no real power with a fraction");
    }
    if made.is_infinite() && a.is_finite() && b.is_finite() {
        return fail("numerical result out of range");
    }
    Ok(Value::Float(made))
}

fn number_order(a: &Number, b: &Number) -> Option<Ordering> {
    match (a, b) {
        (Number::Int(a), Number::Int(b)) => Some(a.cmp(b)),
        (Number::Float(a), Number::Float(b)) => a.partial_cmp(b),
        (Number::Float(a), b) => number_order(b, &Number::Float(*a)).map(Ordering::reverse),
        (a, Number::Float(b)) => int_float_order(a, *b),
        (Number::Big(a), Number::Big(b)) => Some(a.cmp(b)),
        (Number::Int(a), Number::Big(b)) => Some(BigInt::from(*a).cmp(b)),
        (Number::Big(a), Number::Int(b)) => Some(a.cmp(&BigInt::from(*b))),
    }
}

/// Exactly: not every integer is a float.
fn int_float_order(a: &Number, b: f64) -> Option<Ordering> {
    if b.is_nan() {
        return None;
    }
    if b.is_infinite() {
        return Some(if b > 0.0 { Ordering::Less } else { Ordering::Greater });
    }
    let whole = num_traits::FromPrimitive::from_f64(b.trunc());
    let whole: BigInt = whole.unwrap_or_default();
    let a = match a {
        Number::Int(a) => BigInt::from(*a),
        Number::Big(a) => a.clone(),
        Number::Float(_) => return None,
    };
    let fraction = b.fract().partial_cmp(&0.0).map(Ordering::reverse)?;
    Some(a.cmp(&whole).then(fraction))
}

pub fn is_equal(a: &Value, b: &Value) -> bool {
    if let (Some(a), Some(b)) = (Number::of(a), Number::of(b)) {
        return number_order(&a, &b) == Some(Ordering::Equal);
    }
    let all = |a: &[Value], b: &[Value]| {
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_same(a, b) || is_equal(a, b))
    };
    if !budget::is_left(1) {
        return false;
    }
    match (a, b) {
        (Value::Undefined(_), Value::Undefined(_)) | (Value::None, Value::None) => true,
        (Value::Str(a), Value::Str(b)) if a.text.len() != b.text.len() => false,
        (Value::Str(a), Value::Str(b)) => {
            budget::is_left(budget::steps_of(a.text.len())) && a.text == b.text
        }
        (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => {
            Rc::ptr_eq(a, b) || all(&a.values, &b.values)
        }
        (Value::Dict(a), Value::Dict(b)) => a.dict.len() == b.dict.len()
            && a.dict.iter().all(
                |(key, value)| matches!(b.dict.get(key), Ok(Some(other)) if is_equal(value, other)),
            ),
        (Value::Object(a), Value::Object(b)) if Rc::ptr_eq(a, b) => true,
        (Value::Object(_), _) | (_, Value::Object(_)) => match (tuple_items(a), tuple_items(b)) {
            (Some(a), Some(b)) => all(&a, &b),
            _ => is_equal_object(a, b),
        },
        _ => false,
    }
}

fn tuple_items(value: &Value) -> Option<Vec<Value>> {
    match value {
        Value::Tuple(items) => Some(items.values.clone()),
        _ => match value.kind() {
            Some(Kind::Group { key, items }) => Some(vec![key.clone(), items.clone()]),
            _ => None,
        },
    }
}

fn is_equal_object(a: &Value, b: &Value) -> bool {
    match (a.kind(), b.kind()) {
        (Some(Kind::Range(a)), Some(Kind::Range(b))) => a.is_equal(b),
        (Some(Kind::View(a, first)), Some(Kind::View(b, second))) => {
            let has_all = first.dict.iter().all(|(key, value)| {
                matches!(second.dict.get(key), Ok(Some(other)) if *a == View::Keys
                    || is_equal(value, other))
            });
            a == b && *a != View::Values && first.dict.len() == second.dict.len() && has_all
        }
        (Some(Kind::Function(a)), Some(Kind::Function(b))) => a == b,
        (
            Some(Kind::Method { receiver: a, name }),
            Some(Kind::Method { receiver: b, name: other }),
        ) => name == other && is_same(a, b),
        _ => false,
    }
}

/// Python's `is`. Numbers and texts that are equal count as one.
pub fn is_same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::None, Value::None) => true,
        (Value::Bool(a), Value::Bool(b)) => a == b,
        (Value::Int(a), Value::Int(b)) => a == b,
        (Value::Float(a), Value::Float(b)) => a.to_bits() == b.to_bits(),
        (Value::Str(first), Value::Str(second)) => {
            first.is_markup == second.is_markup && is_equal(a, b)
        }
        (Value::List(a), Value::List(b)) => Rc::ptr_eq(a, b),
        (Value::Tuple(a), Value::Tuple(b)) => {
            Rc::ptr_eq(a, b) || (a.values.is_empty() && b.values.is_empty())
        }
        (Value::Dict(a), Value::Dict(b)) => Rc::ptr_eq(a, b),
        (Value::Object(a), Value::Object(b)) => Rc::ptr_eq(a, b),
        (Value::Undefined(a), Value::Undefined(b)) => Rc::ptr_eq(a, b),
        _ => false,
    }
}

/// None: neither is less, as with nan.
pub fn order(operator: &str, a: &Value, b: &Value) -> Result<Option<Ordering>> {
    if let (Some(a), Some(b)) = (Number::of(a), Number::of(b)) {
        return Ok(number_order(&a, &b));
    }
    let items = match (a, b) {
        (Value::Str(a), Value::Str(b)) => {
            budget::spend_text(a.text.len().min(b.text.len()))?;
            return Ok(Some(a.text.cmp(&b.text)));
        }
        (Value::List(a), Value::List(b)) => Some((a.values.clone(), b.values.clone())),
        _ => tuple_items(a).zip(tuple_items(b)),
    };
    let Some((left, right)) = items else {
        for value in [a, b] {
            if let Value::Undefined(missing) = value {
                return Value::undefined_error(missing);
            }
        }
        let (a, b) = (a.type_name(), b.type_name());
        return fail(format!("'{operator}' not supported between instances of '{a}' and '{b}'"));
    };
    budget::spend_items(left.len() + right.len())?;
    for (a, b) in left.iter().zip(&right) {
        if !is_equal(a, b) {
            return order(operator, a, b);
        }
    }
    Ok(Some(left.len().cmp(&right.len())))
}

pub fn compare(operator: &str, left: &Value, right: &Value) -> Result<bool> {
    Ok(match operator {
        "==" => is_equal(left, right),
        "!=" => !is_equal(left, right),
        "in" => contains(right, left)?,
        "not in" => !contains(right, left)?,
        _ => match order(operator, left, right)? {
            None => false,
            Some(found) => match operator {
                "<" => found == Ordering::Less,
                "<=" => found != Ordering::Greater,
                ">" => found == Ordering::Greater,
                _ => found != Ordering::Less,
            },
        },
    })
}

/// item in container
pub fn contains(container: &Value, item: &Value) -> Result<bool> {
    match (container, item) {
        (Value::Str(text), Value::Str(part)) => {
            budget::spend_text(text.text.len())?;
            Ok(text.text.contains(&*part.text))
        }
        (Value::Str(_), _) => {
            fail(format!("'in <string>' requires string as left operand, not {}", item.type_name()))
        }
        (Value::Dict(mapping), _) => Ok(mapping.dict.get(item)?.is_some()),
        _ => match container.kind() {
            Some(Kind::View(View::Keys, mapping)) => Ok(mapping.dict.get(item)?.is_some()),
            _ if !container.is_iterable() => {
                fail(format!("argument of type '{}' is not iterable", container.type_name()))
            }
            _ => Ok(container
                .iterate()?
                .iter()
                .any(|other| is_same(item, other) || is_equal(item, other))),
        },
    }
}

/// value % by, where a text is no format.
pub fn arithmetic_rest(value: &Value, by: &Value) -> Result<Value> {
    binary("%", value, by)
}
