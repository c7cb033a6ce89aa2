// SPDX-License-Identifier: Apache-2.0
//! Python's int and float: as text, from text, and rounded.

use num_bigint::{BigInt, Sign};
use num_traits::{FromPrimitive, Num, ToPrimitive, Zero};

use super::budget;
use super::error::{fail, Result};
use super::lexer::is_space;
use super::value::Value;

/// Python's limit of int() and str().
pub const MAX_DIGITS: usize = 4300;

pub enum Number {
    Int(i64),
    Big(BigInt),
    Float(f64),
}

impl Number {
    pub fn of(value: &Value) -> Option<Self> {
        Some(match value {
            Value::Bool(value) => Number::Int(i64::from(*value)),
            Value::Int(value) => Number::Int(*value),
            Value::Big(value) => Number::Big((**value).clone()),
            Value::Float(value) => Number::Float(*value),
            _ => return None,
        })
    }

    pub fn float(&self) -> Result<f64> {
        let value = match self {
            Number::Int(value) => *value as f64,
            Number::Big(value) => value.to_f64().unwrap_or(f64::INFINITY),
            Number::Float(value) => return Ok(*value),
        };
        if value.is_infinite() {
            return fail("int too large to convert to float");
        }
        Ok(value)
    }

    /// None: it is a float.
    pub fn big(self) -> Option<BigInt> {
        match self {
            Number::Int(value) => Some(value.into()),
            Number::Big(value) => Some(value),
            Number::Float(_) => None,
        }
    }
}

/// An integer of ordinary size, as an index or a width.
pub fn as_index(value: &Value) -> Result<i64> {
    match Number::of(value) {
        Some(Number::Int(value)) => Ok(value),
        Some(Number::Big(value)) => {
            Ok(if value.sign() == Sign::Minus { i64::MIN / 4 } else { i64::MAX / 4 })
        }
        _ => fail(format!("'{}' object cannot be interpreted as an integer", value.type_name())),
    }
}

/// repr(float): 17 digits at most, an exponent below 1e-4 and from 1e16.
pub fn float_text(number: f64) -> String {
    if number.is_nan() {
        return "nan".into();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let size = number.abs();
    if size != 0.0 && !(1e-4..1e16).contains(&size) {
        return with_python_exponent(&format!("{number:e}"));
    }
    let plain = number.to_string();
    if plain.contains('.') {
        plain
    } else {
        plain + ".0"
    }
}

/// Two digits at least, and a sign.
pub fn with_python_exponent(written: &str) -> String {
    let Some((digits, exponent)) = written.split_once('e') else { return written.to_string() };
    let (sign, exponent) = exponent.strip_prefix('-').map_or(("+", exponent), |e| ("-", e));
    format!("{digits}e{sign}{exponent:0>2}")
}

pub fn int_text(value: &BigInt) -> Result<String> {
    // A digit is more than 3.3 bits.
    budget::spend(value.bits() / 64 + 1)?;
    let is_long = value.bits() as usize > MAX_DIGITS * 34 / 10;
    let text = if is_long { String::new() } else { value.to_string() };
    if is_long || text.trim_start_matches('-').len() > MAX_DIGITS {
        return fail(format!("an integer has more than {MAX_DIGITS} digits"));
    }
    Ok(text)
}

/// Without the underscores that may be between digits; None: one is elsewhere.
fn without_underscores(text: &str) -> Option<String> {
    let is_between = |at: usize| {
        let bytes = text.as_bytes();
        let is_digit = |at: Option<&u8>| at.is_some_and(u8::is_ascii_alphanumeric);
        at > 0 && is_digit(bytes.get(at - 1)) && is_digit(bytes.get(at + 1))
    };
    text.match_indices('_').all(|(at, _)| is_between(at)).then(|| text.replace('_', ""))
}

/// int(text, base)
pub fn int_of_text(text: &str, base: i64) -> Result<Option<Value>> {
    if base != 0 && !(2..=36).contains(&base) {
        return fail("int() base must be >= 2 and <= 36, or 0");
    }
    budget::spend_text(text.len())?;
    budget::spend((text.len().min(MAX_DIGITS) / 16) as u64)?;
    let text = text.trim_matches(is_space);
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let prefix = digits.get(..2).unwrap_or("").to_ascii_lowercase();
    let prefixed = match prefix.as_str() {
        "0b" => 2,
        "0o" => 8,
        "0x" => 16,
        _ => 0,
    };
    let (digits, base) = match (prefixed, base) {
        (0, 0) if digits.starts_with('0') && digits.chars().any(|c| !matches!(c, '0' | '_')) => {
            return Ok(None)
        }
        (0, 0) => (digits, 10),
        (0, base) => (digits, base),
        (prefixed, base) if base == 0 || base == prefixed => {
            (digits[2..].strip_prefix('_').unwrap_or(&digits[2..]), prefixed)
        }
        (_, base) => (digits, base),
    };
    let Some(digits) = without_underscores(digits) else { return Ok(None) };
    let is_number = !digits.is_empty() && digits.chars().all(|c| c.is_digit(base as u32));
    if !is_number || digits.len() > MAX_DIGITS {
        return Ok(None);
    }
    let found = BigInt::from_str_radix(&digits, base as u32).ok();
    Ok(found.map(|value| Value::big(if is_negative { -value } else { value })))
}

/// float(text)
pub fn float_of_text(text: &str) -> Option<f64> {
    without_underscores(text.trim_matches(is_space))?.parse().ok()
}

/// int(float); None: it is not finite.
pub fn int_of_float(value: f64) -> Option<Value> {
    BigInt::from_f64(value.trunc()).map(Value::big)
}

/// round(value, digits): a half goes to the even one.
pub fn rounded(value: &Number, digits: i64) -> Result<Value> {
    let float = match value {
        Number::Float(value) => *value,
        Number::Int(value) if digits >= 0 => return Ok(Value::Int(*value)),
        Number::Big(value) if digits >= 0 => return Ok(Value::big(value.clone())),
        Number::Int(value) => return Ok(Value::big(rounded_int(&(*value).into(), -digits))),
        Number::Big(value) => return Ok(Value::big(rounded_int(value, -digits))),
    };
    if !float.is_finite() || digits > 320 {
        return Ok(Value::Float(float));
    }
    if digits < -308 {
        return Ok(Value::Float(0.0_f64.copysign(float)));
    }
    let rounded = if digits >= 0 {
        format!("{float:.*}", digits as usize).parse().unwrap_or(float)
    } else {
        let unit = 10f64.powi(-digits as i32);
        (float / unit).round_ties_even() * unit
    };
    if rounded.is_infinite() {
        return fail("rounded value too large to represent");
    }
    Ok(Value::Float(rounded))
}

/// To a multiple of 10 to the power of `zeros`.
fn rounded_int(value: &BigInt, zeros: i64) -> BigInt {
    if zeros > MAX_DIGITS as i64 {
        return BigInt::zero();
    }
    let unit = BigInt::from(10).pow(zeros as u32);
    let (below, rest) = super::operators::floor_division(value, &unit);
    let twice: BigInt = &rest * 2;
    let is_odd = !(&below % 2i32).is_zero();
    let is_up = twice > unit || (twice == unit && is_odd);
    (below + i32::from(is_up)) * unit
}
