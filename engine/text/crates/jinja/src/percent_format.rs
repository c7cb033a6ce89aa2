// SPDX-License-Identifier: Apache-2.0
//! text % values

use num_bigint::{BigInt, Sign};

use super::budget;
use super::error::{fail, Result};
use super::format_spec::{float_digits, int_digits, take_number};
use super::markup::{escape, escape_text};
use super::number::{as_index, int_of_float, Number};
use super::value::{Kind, Str, Value};
use super::write::{repr, text};

const MAX_PRECISION: usize = 1100;

#[derive(Default)]
struct Directive {
    flags: Vec<char>,
    width: usize,
    precision: Option<usize>,
    form: char,
}

impl Directive {
    fn has(&self, flag: char) -> bool {
        self.flags.contains(&flag)
    }
}

/// What the directives take one after another, or by name.
struct Values<'a> {
    whole: &'a Value,
    at: usize,
}

impl Values<'_> {
    fn next(&mut self) -> Result<Value> {
        let found = match self.whole {
            Value::Tuple(items) => items.values.get(self.at).cloned(),
            whole => (self.at == 0).then(|| whole.clone()),
        };
        self.at += 1;
        match found {
            Some(found) => Ok(found),
            None => fail("not enough arguments for format string"),
        }
    }

    fn named(&mut self, name: &str) -> Result<Value> {
        let Value::Dict(mapping) = self.whole else { return fail("format requires a mapping") };
        match mapping.dict.get_str(name) {
            Some(found) => Ok(found.clone()),
            None => fail(format!("no value for '{name}'")),
        }
    }

    fn check_all_taken(&self) -> Result<()> {
        let is_open = match self.whole {
            Value::Tuple(items) => self.at < items.values.len(),
            Value::List(_) | Value::Dict(_) | Value::Undefined(_) => false,
            whole => self.at == 0 && !matches!(whole.kind(), Some(Kind::Range(_))),
        };
        if is_open {
            return fail("not all arguments converted during string formatting");
        }
        Ok(())
    }
}

/// `values`: a tuple, or one value.
pub fn formatted(format: &Str, values: &Value) -> Result<Value> {
    budget::spend_text(format.text.len())?;
    let characters: Vec<char> = format.text.chars().collect();
    let mut values = Values { whole: values, at: 0 };
    let mut out = String::new();
    let mut at = 0;
    while at < characters.len() {
        if characters[at] != '%' {
            out.push(characters[at]);
            at += 1;
            continue;
        }
        at += 1;
        let (directive, value) = directive(&characters, &mut at, &mut values)?;
        out.push_str(&match value {
            Some(value) => padded(&directive, converted(&directive, &value, format.is_markup)?)?,
            None => "%".to_string(),
        });
        budget::check_text(out.len())?;
    }
    values.check_all_taken()?;
    budget::spend_text(out.len())?;
    Ok(Value::Str(Str { text: out.into(), is_markup: format.is_markup }))
}

/// What follows `%`; without value it is `%` itself.
fn directive(
    text: &[char],
    at: &mut usize,
    values: &mut Values,
) -> Result<(Directive, Option<Value>)> {
    let mut found = Directive::default();
    let mut named = None;
    let begin = *at;
    if text.get(*at) == Some(&'(') {
        let start = *at + 1;
        let mut open = 1;
        while open > 0 {
            *at += 1;
            match text.get(*at) {
                Some('(') => open += 1,
                Some(')') => open -= 1,
                Some(_) => {}
                None => return fail("incomplete format key"),
            }
        }
        let name: String = text[start..*at].iter().collect();
        named = Some(values.named(&name)?);
        *at += 1;
    }
    while let Some(flag) = text.get(*at).filter(|c| "#0- +".contains(**c)) {
        found.flags.push(*flag);
        *at += 1;
    }
    let number = |at: &mut usize, values: &mut Values| {
        if text.get(*at) != Some(&'*') {
            return Ok(take_number(text, at)?.map(|number| number as i64));
        }
        *at += 1;
        match values.next()? {
            value @ (Value::Int(_) | Value::Bool(_)) => Ok(Some(as_index(&value)?)),
            _ => fail("* wants int"),
        }
    };
    if let Some(width) = number(at, values)? {
        if width < 0 {
            found.flags.push('-');
        }
        found.width = width.unsigned_abs() as usize;
    }
    if text.get(*at) == Some(&'.') {
        *at += 1;
        found.precision = Some(number(at, values)?.unwrap_or(0).max(0) as usize);
    }
    if text.get(*at).is_some_and(|c| "hlL".contains(*c)) {
        *at += 1;
    }
    let Some(form) = text.get(*at) else { return fail("incomplete format") };
    *at += 1;
    found.form = *form;
    if *form == '%' && *at == begin + 1 {
        return Ok((found, None));
    }
    let value = match named {
        Some(value) => value,
        None => values.next()?,
    };
    Ok((found, Some(value)))
}

/// The sign or prefix, and the rest.
type Parts = (String, String);

fn converted(directive: &Directive, value: &Value, is_markup: bool) -> Result<Parts> {
    let form = directive.form;
    let cut = |text: String| match directive.precision {
        Some(precision) => text.chars().take(precision).collect(),
        None => text,
    };
    match form {
        's' if is_markup => Ok((String::new(), cut(escape(value)?))),
        's' => Ok((String::new(), cut(text(value)?))),
        'r' | 'a' => {
            let mut made = repr(value)?;
            if form == 'a' {
                made = as_ascii(&made);
            }
            Ok((String::new(), cut(if is_markup { escape_text(&made) } else { made })))
        }
        'c' => character(value).map(|c| (String::new(), c)),
        'd' | 'i' | 'u' | 'o' | 'x' | 'X' => integer(directive, value),
        'e' | 'E' | 'f' | 'F' | 'g' | 'G' => float(directive, value),
        _ => fail(format!("unsupported format character '{form}'")),
    }
}

pub fn as_ascii(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c as u32 {
            0..=0x7f => out.push(c),
            code @ 0x80..=0xff => out.push_str(&format!("\\x{code:02x}")),
            code @ 0x100..=0xffff => out.push_str(&format!("\\u{code:04x}")),
            code => out.push_str(&format!("\\U{code:08x}")),
        }
    }
    out
}

fn character(value: &Value) -> Result<String> {
    if let Value::Str(text) = value {
        if text.text.chars().count() == 1 {
            return Ok(text.text.to_string());
        }
        return fail("%c requires int or char");
    }
    let code = match value {
        Value::Int(_) | Value::Bool(_) => u32::try_from(as_index(value)?).ok(),
        _ => return fail("%c requires int or char"),
    };
    match code.and_then(char::from_u32) {
        Some(c) => Ok(c.to_string()),
        None => fail("%c arg not in range(0x110000)"),
    }
}

fn sign_of(directive: &Directive, is_negative: bool) -> &'static str {
    if is_negative {
        "-"
    } else if directive.has('+') {
        "+"
    } else if directive.has(' ') {
        " "
    } else {
        ""
    }
}

fn integer(directive: &Directive, value: &Value) -> Result<Parts> {
    let form = directive.form;
    let is_decimal = matches!(form, 'd' | 'i' | 'u');
    let number: Option<BigInt> = match Number::of(value) {
        Some(Number::Float(number)) if is_decimal => {
            let whole = int_of_float(number);
            whole.and_then(|whole| Number::of(&whole)).and_then(Number::big)
        }
        Some(number) => number.big(),
        None => None,
    };
    let Some(number) = number else {
        return fail(format!("%{form} format: a number is required, not {}", value.type_name()));
    };
    let mut digits = int_digits(&number.magnitude().clone().into(), form)?;
    if let Some(precision) = directive.precision {
        budget::spend_text(precision)?;
        digits = format!("{digits:0>precision$}");
    }
    let prefix = match form {
        'o' | 'x' | 'X' if directive.has('#') => format!("0{form}"),
        _ => String::new(),
    };
    Ok((format!("{}{prefix}", sign_of(directive, number.sign() == Sign::Minus)), digits))
}

fn float(directive: &Directive, value: &Value) -> Result<Parts> {
    let Some(number) = Number::of(value) else {
        return fail(format!("must be real number, not {}", value.type_name()));
    };
    let number = number.float()?;
    let precision = directive.precision.unwrap_or(6);
    if precision > MAX_PRECISION {
        return fail(format!("a precision is above {MAX_PRECISION}"));
    }
    let form = directive.form.to_ascii_lowercase();
    let digits = float_digits(number.abs(), form, precision, directive.has('#'));
    let digits = if directive.form == form { digits } else { digits.to_uppercase() };
    Ok((sign_of(directive, number.is_sign_negative() && !number.is_nan()).to_string(), digits))
}

fn padded(directive: &Directive, (sign, body): Parts) -> Result<String> {
    let size = sign.chars().count() + body.chars().count();
    let missing = directive.width.saturating_sub(size);
    budget::spend_text(missing)?;
    let is_number = !matches!(directive.form, 's' | 'r' | 'a' | 'c');
    Ok(if directive.has('-') {
        format!("{sign}{body}{}", " ".repeat(missing))
    } else if directive.has('0') && is_number {
        format!("{sign}{}{body}", "0".repeat(missing))
    } else {
        format!("{}{sign}{body}", " ".repeat(missing))
    })
}
