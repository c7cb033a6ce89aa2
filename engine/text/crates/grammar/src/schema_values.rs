// SPDX-License-Identifier: Apache-2.0
//! Checks the values of a schema's keywords. A value that the library would read differently from
//! the standard, or cannot write, is refused.

use serde_json::{Map, Value};

const MAX_NAME_LENGTH: usize = 1000;
/// The largest whole number that every reader of JSON reads exactly.
const MAX_EXACT: u64 = 1 << 53;

pub const TYPES: [&str; 7] = ["null", "boolean", "integer", "number", "string", "array", "object"];

/// How a format is enforced.
pub enum FormatRule {
    Library,
    Pattern(String),
    /// Formats are annotations; an unknown one is ignored.
    Annotation,
}

impl FormatRule {
    /// The keyword's value as given to the library.
    pub fn kept(&self, value: &Value) -> Option<Value> {
        matches!(self, FormatRule::Library).then(|| value.clone())
    }
}

/// Dates limited to the years of Python and JavaScript, with February's days by the calendar.
fn date() -> String {
    let year = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)";
    let fours = "(?:0[48]|[2468][048]|[13579][26])";
    let long = "(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])";
    let short = "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)";
    let february = "02-(?:0[1-9]|1[0-9]|2[0-8])";
    let leap = format!("(?:[0-9]{{2}}{fours}|{fours}00)-02-29");
    format!("(?:{year}-(?:{long}|{short}|{february})|{leap})")
}

fn time() -> String {
    let minutes = "(?:[01][0-9]|2[0-3]):[0-5][0-9]";
    format!("{minutes}:[0-5][0-9](?:\\.[0-9]{{1,6}})?(?:Z|[+-]{minutes})")
}

pub fn format_rule(value: &Value) -> Result<FormatRule, String> {
    let name = value.as_str().ok_or("is not a string")?;
    Ok(match name {
        "date" => FormatRule::Pattern(format!("^{}$", date())),
        "time" => FormatRule::Pattern(format!("^{}$", time())),
        "date-time" => FormatRule::Pattern(format!("^{}T{}$", date(), time())),
        "duration" | "email" | "hostname" | "ipv4" | "ipv6" | "uuid" | "uri" => FormatRule::Library,
        _ => FormatRule::Annotation,
    })
}

/// A schema of names as one pattern; None: any name.
pub fn name_pattern(rules: &Map<String, Value>) -> Result<Option<String>, String> {
    let uuid = "^[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$";
    let length = |key: &str| rules.get(key).map(|value| count(value, MAX_NAME_LENGTH)).transpose();
    let (min, max) = (length("minLength")?, length("maxLength")?);
    let is_long = min.is_some() || max.is_some();
    let pattern = match (rules.get("pattern"), rules.get("format").map(format_rule).transpose()?) {
        (Some(pattern), _) => Some(pattern.as_str().ok_or("is not a string")?.to_string()),
        (_, Some(FormatRule::Pattern(pattern))) => Some(pattern),
        _ if rules.get("format").is_some_and(|name| name == "uuid") => Some(uuid.into()),
        _ => None,
    };
    let lengths = || {
        let least = min.clone().unwrap_or(Value::from(0));
        let most = max.map_or(String::new(), |max| max.to_string());
        format!("^[\\s\\S]{{{least},{most}}}$")
    };
    match pattern {
        Some(_) if is_long => Err("of a pattern and a length is not supported".into()),
        None if is_long => Ok(Some(lengths())),
        pattern => Ok(pattern),
    }
}

pub fn list(value: &Value, max: usize) -> Result<&[Value], String> {
    let entries = value.as_array().ok_or("is not a list")?;
    if entries.is_empty() || entries.len() > max {
        return Err(format!("has {} entries; allowed: 1 to {max}", entries.len()));
    }
    Ok(entries)
}

/// A whole number that is not negative; 2.0 is one.
pub fn count(value: &Value, max: usize) -> Result<Value, String> {
    let number = value.as_f64().ok_or("is not a number")?;
    if number < 0.0 || number.fract() != 0.0 || number > max as f64 {
        return Err(format!("is {value}; allowed: whole numbers of 0 to {max}"));
    }
    Ok(Value::from(number as u64))
}

/// A number that every reader of JSON reads exactly.
pub fn number(value: &Value) -> Result<(), String> {
    let number = value.as_f64().ok_or("is not a number")?;
    let size = value.as_i64().map(i64::unsigned_abs).or(value.as_u64());
    if size.is_some_and(|size| size > MAX_EXACT) || !number.is_finite() {
        return Err(format!("is {value}, which a float of 64 bits does not hold"));
    }
    Ok(())
}

/// Checks inside a constant: strings must have one spelling, numbers must be exact.
pub fn check_constant(value: &Value) -> Result<(), String> {
    match value {
        Value::Number(_) => number(value),
        Value::String(text) => {
            let named = ['\n', '\r', '\t', '\u{8}', '\u{c}'];
            let unnamed = |c: char| (c < ' ' && !named.contains(&c)) || c == '\u{7f}';
            match text.chars().find(|c| unnamed(*c)) {
                Some(c) => Err(format!("has the control character {:#04x}", u32::from(c))),
                None => Ok(()),
            }
        }
        Value::Array(entries) => entries.iter().try_for_each(check_constant),
        Value::Object(members) => members.iter().try_for_each(|(name, member)| {
            check_constant(&Value::from(name.as_str()))?;
            check_constant(member)
        }),
        _ => Ok(()),
    }
}

fn bound(object: &Map<String, Value>, key: &str) -> Option<f64> {
    object.get(key).and_then(Value::as_f64)
}

/// Contradictions that no value satisfies: the keyword at fault and the reason.
pub fn check_bounds(object: &Map<String, Value>) -> Result<(), (&'static str, String)> {
    const PAIRS: [(&str, &str, bool); 7] = [
        ("minLength", "maxLength", true),
        ("minItems", "maxItems", true),
        ("minProperties", "maxProperties", true),
        ("minimum", "maximum", true),
        ("exclusiveMinimum", "maximum", false),
        ("minimum", "exclusiveMaximum", false),
        ("exclusiveMinimum", "exclusiveMaximum", false),
    ];
    for (low, high, may_meet) in PAIRS {
        if let (Some(low_value), Some(high_value)) = (bound(object, low), bound(object, high)) {
            if low_value > high_value || (low_value == high_value && !may_meet) {
                let why = format!("{low_value} and {high} {high_value} contradict each other");
                return Err((low, why));
            }
        }
    }
    if bound(object, "multipleOf").is_some_and(|step| step <= 0.0) {
        return Err(("multipleOf", "is not above 0".into()));
    }
    check_distinct(object)
}

/// Unnamed members may repeat a name, so a minimum of them could not be enforced.
fn check_distinct(object: &Map<String, Value>) -> Result<(), (&'static str, String)> {
    let required = object.get("required").and_then(Value::as_array).map_or(0, Vec::len);
    let closed = object.get("additionalProperties") == Some(&Value::Bool(false))
        && !object.contains_key("patternProperties");
    match bound(object, "minProperties") {
        Some(min) if !closed && min > required as f64 + 1.0 => Err((
            "minProperties",
            format!("{min} is not supported beside {required} required properties"),
        )),
        _ => Ok(()),
    }
}
