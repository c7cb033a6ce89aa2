// SPDX-License-Identifier: Apache-2.0
//! Writes the bounds of numbers in the form that the library supports: inclusive, and with at most
//! `PLACES` digits after the point. No text between the bounds reads as a number outside the
//! schema's bounds.

use serde_json::{json, Map, Value};

/// Digits after the point of a bound, and of a number that a schema bounds.
pub const PLACES: usize = 17;
/// The largest float below 2^63, which is where the library's whole numbers end.
const MOST: f64 = 9_223_372_036_854_774_784.0;
/// A bound beyond this excludes no number that is written here.
const NO_BOUND: f64 = 1e308;
const LOW: [&str; 2] = ["minimum", "exclusiveMinimum"];
const HIGH: [&str; 2] = ["maximum", "exclusiveMaximum"];

/// The keyword at fault and the reason.
type Fault = (&'static str, String);

fn places(number: f64) -> usize {
    format!("{number}").split_once('.').map_or(0, |(_, digits)| digits.len())
}

/// The smallest number with at most `PLACES` places that is not below `number`; with `exclusive`,
/// above it.
fn at_or_above(number: f64, exclusive: bool) -> f64 {
    if !exclusive && places(number) <= PLACES {
        return number;
    }
    let unit = 10f64.powi(-(PLACES as i32));
    let least = if exclusive { number.next_up() } else { number };
    let rounded = |value: f64| format!("{value:.PLACES$}").parse::<f64>().unwrap_or(value);
    let mut found = rounded(least);
    let mut steps = 0.0;
    while found < least || places(found) > PLACES {
        steps += 1.0;
        found = rounded(number + steps * unit);
    }
    found
}

/// The value as a float that is not below it.
fn float_above(value: &Value) -> Result<f64, String> {
    let float = value.as_f64().filter(|float| float.is_finite()).ok_or("is not a number")?;
    let whole = value.as_i64().map(i128::from).or(value.as_u64().map(i128::from));
    Ok(match whole {
        Some(whole) if (float as i128) < whole => float.next_up(),
        _ => float,
    })
}

fn negated(value: &Value) -> Value {
    match (value.as_i64(), value.as_u64(), value.as_f64()) {
        (Some(whole), ..) => whole.checked_neg().map_or(json!(-(whole as f64)), Value::from),
        (_, Some(whole), _) => {
            i64::try_from(-i128::from(whole)).map_or(json!(-(whole as f64)), Value::from)
        }
        (.., Some(float)) => json!(-float),
        _ => value.clone(),
    }
}

/// The lower bound from `minimum` and `exclusiveMinimum` together. Upper bounds are read with their
/// signs flipped.
fn lower_bound(
    object: &Map<String, Value>,
    keys: [&'static str; 2],
    turned: bool,
) -> Result<Option<f64>, Fault> {
    let mut found: Option<f64> = None;
    for key in keys {
        let Some(value) = object.get(key) else {
            continue;
        };
        let read = if turned { negated(value) } else { value.clone() };
        let float = float_above(&read).map_err(|why| (key, why))?;
        if float > MOST {
            return Err((key, format!("is {value}; no number on its other side can be written")));
        }
        let exclusive = key.starts_with("exclusive");
        let bound = if float < -MOST { float } else { at_or_above(float, exclusive) };
        found = Some(found.map_or(bound, |other| other.max(bound)));
    }
    Ok(found)
}

/// The bounds of `object` as given to the library, and the schema that must hold in addition.
pub fn bounds(object: &Map<String, Value>) -> Result<(Map<String, Value>, Option<Value>), Fault> {
    let mut made = Map::new();
    let low = lower_bound(object, LOW, false)?;
    let high = lower_bound(object, HIGH, true)?.map(|high| -high);
    let steps = object.contains_key("multipleOf");
    let is_open = |bound: Option<f64>| bound.is_none_or(|bound| bound.abs() >= NO_BOUND);
    if is_open(low) && is_open(high) && !steps {
        return Ok((made, None));
    }
    let (low, high) = (low.unwrap_or(-MOST).max(-MOST), high.unwrap_or(MOST).min(MOST));
    if low > high {
        let key = LOW.into_iter().find(|key| object.contains_key(*key)).unwrap_or(LOW[0]);
        return Err((key, "and the upper bound contradict each other".into()));
    }
    made.insert("minimum".into(), json!(low));
    made.insert("maximum".into(), json!(high));
    Ok((made, around_zero(object, low, high)))
}

/// Gives negative numbers a bound of their own. Without it the library accepts any number below
/// zero, however small, with unlimited zeros after the point.
fn around_zero(object: &Map<String, Value>, low: f64, high: f64) -> Option<Value> {
    let types: Vec<&str> = match object.get("type") {
        Some(Value::String(name)) => vec![name],
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
        _ => vec!["null", "boolean", "number", "string", "array", "object"],
    };
    if low >= 0.0 || high < 0.0 || !types.contains(&"number") {
        return None;
    }
    let smallest = 10f64.powi(-(PLACES as i32));
    let mut parts = vec![json!({"type": "number", "minimum": 0.0, "maximum": high})];
    if low <= -smallest {
        parts.push(json!({"type": "number", "minimum": low, "maximum": -smallest}));
    }
    let others: Vec<&str> =
        types.into_iter().filter(|name| *name != "number" && *name != "integer").collect();
    if !others.is_empty() {
        parts.push(json!({"type": others}));
    }
    Some(json!({"anyOf": parts}))
}
