// SPDX-License-Identifier: Apache-2.0
//! format(value, spec), and the digits of floats that percent_format.rs needs as well.

use num_bigint::{BigInt, Sign};

use super::budget;
use super::error::{fail, Result};
use super::number::{float_text, int_text, with_python_exponent, Number};
use super::value::Value;
use super::write::text;

/// Digits after the point that are worth writing.
const MAX_PRECISION: usize = 1100;

/// A float that is not negative, in the form `e`, `f` or `g`.
pub fn float_digits(value: f64, form: char, precision: usize, keeps_zeros: bool) -> String {
    if !value.is_finite() {
        return if value.is_nan() { "nan".into() } else { "inf".into() };
    }
    let point = |text: String| {
        if keeps_zeros && !text.contains('.') {
            match text.split_once('e') {
                Some((digits, exponent)) => format!("{digits}.e{exponent}"),
                None => text + ".",
            }
        } else {
            text
        }
    };
    match form {
        'f' => point(format!("{value:.precision$}")),
        'e' => point(with_python_exponent(&format!("{value:.precision$e}"))),
        _ => {
            let precision = precision.max(1);
            let scientific = format!("{value:.*e}", precision - 1);
            let exponent: i64 =
                scientific.split_once('e').and_then(|(_, e)| e.parse().ok()).unwrap_or(0);
            let is_fixed = (-4..precision as i64).contains(&exponent);
            let made = if is_fixed {
                format!("{value:.*}", (precision as i64 - 1 - exponent) as usize)
            } else {
                with_python_exponent(&scientific)
            };
            if keeps_zeros {
                return point(made);
            }
            let (digits, exponent) = made.split_once('e').unwrap_or((&made, ""));
            let digits = match digits.contains('.') {
                true => digits.trim_end_matches('0').trim_end_matches('.'),
                false => digits,
            };
            if exponent.is_empty() {
                digits.to_string()
            } else {
                format!("{digits}e{exponent}")
            }
        }
    }
}

/// Digits of an integer that is not negative.
pub fn int_digits(value: &BigInt, form: char) -> Result<String> {
    Ok(match form {
        'b' => value.to_str_radix(2),
        'o' => value.to_str_radix(8),
        'x' => value.to_str_radix(16),
        'X' => value.to_str_radix(16).to_uppercase(),
        _ => int_text(value)?,
    })
}

#[derive(Default)]
struct Spec {
    fill: Option<char>,
    align: Option<char>,
    sign: Option<char>,
    /// A negative number that is written as zero has no sign.
    has_plain_zero: bool,
    is_alternate: bool,
    is_zero_padded: bool,
    width: usize,
    grouping: Option<char>,
    precision: Option<usize>,
    form: Option<char>,
}

/// Digits at `at`, as a number within the limits of a text.
pub fn take_number(text: &[char], at: &mut usize) -> Result<Option<usize>> {
    let start = *at;
    let mut value = 0usize;
    while let Some(digit) = text.get(*at).and_then(|c| c.to_digit(10)) {
        value = value.saturating_mul(10).saturating_add(digit as usize);
        *at += 1;
    }
    budget::check_text(value)?;
    Ok((*at > start).then_some(value))
}

fn parse(text: &str) -> Result<Spec> {
    let text: Vec<char> = text.chars().collect();
    let mut spec = Spec::default();
    let mut at = 0;
    let is_align = |c: Option<&char>| matches!(c, Some('<' | '>' | '=' | '^'));
    if is_align(text.get(1)) {
        (spec.fill, spec.align, at) = (Some(text[0]), Some(text[1]), 2);
    } else if is_align(text.first()) {
        (spec.align, at) = (Some(text[0]), 1);
    }
    let taken = |at: &mut usize, allowed: &str| {
        let found = text.get(*at).copied().filter(|c| allowed.contains(*c));
        *at += usize::from(found.is_some());
        found
    };
    spec.sign = taken(&mut at, "+- ");
    spec.has_plain_zero = taken(&mut at, "z").is_some();
    spec.is_alternate = taken(&mut at, "#").is_some();
    spec.is_zero_padded = taken(&mut at, "0").is_some();
    spec.width = take_number(&text, &mut at)?.unwrap_or(0);
    spec.grouping = taken(&mut at, ",_");
    if taken(&mut at, ".").is_some() {
        let Some(precision) = take_number(&text, &mut at)? else {
            return fail("Format specifier missing precision");
        };
        spec.precision = Some(precision);
    }
    spec.form = text.get(at).copied();
    if at + 1 < text.len() {
        return fail("Invalid format specifier");
    }
    Ok(spec)
}

/// `body` in the field, after `sign`.
fn padded(spec: &Spec, sign: &str, body: &str, default_align: char) -> Result<String> {
    let size = sign.chars().count() + body.chars().count();
    let missing = spec.width.saturating_sub(size);
    let fill = spec.fill.unwrap_or(if spec.is_zero_padded { '0' } else { ' ' });
    budget::spend_text(missing.saturating_mul(fill.len_utf8()) + size)?;
    let default_align =
        if spec.is_zero_padded && default_align == '>' { '=' } else { default_align };
    let fill = |count: usize| fill.to_string().repeat(count);
    Ok(match spec.align.unwrap_or(default_align) {
        '<' => format!("{sign}{body}{}", fill(missing)),
        '^' => format!("{}{sign}{body}{}", fill(missing / 2), fill(missing - missing / 2)),
        '=' => format!("{sign}{}{body}", fill(missing)),
        _ => format!("{}{sign}{body}", fill(missing)),
    })
}

fn sign_of(spec: &Spec, is_negative: bool) -> &'static str {
    match (is_negative, spec.sign) {
        (true, _) => "-",
        (_, Some('+')) => "+",
        (_, Some(' ')) => " ",
        _ => "",
    }
}

/// Separators between the digits before the point. Zeros that pad a number are digits, too.
fn grouped(spec: &Spec, digits: &str, group: usize, around: usize) -> String {
    let Some(separator) = spec.grouping else { return digits.to_string() };
    let end = digits.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(digits.len());
    let end = if digits.contains("inf") || digits.contains("nan") { 0 } else { end };
    let (whole, rest) = digits.split_at(end);
    let mut whole = whole.to_string();
    let is_padded = spec.is_zero_padded && spec.fill.is_none() && spec.align.is_none();
    let width = spec.width.saturating_sub(around + rest.len());
    let with_separators = |count: usize| count + count.saturating_sub(1) / group;
    while is_padded && with_separators(whole.len()) < width {
        whole.insert(0, '0');
    }
    let mut out = String::new();
    for (at, c) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at) % group == 0 {
            out.push(separator);
        }
        out.push(c);
    }
    out + rest
}

fn format_text(text: &str, spec: &Spec) -> Result<String> {
    if spec.form.is_some_and(|form| form != 's') || spec.has_plain_zero {
        return fail("Unknown format code for object of type 'str'");
    }
    if spec.sign.is_some()
        || spec.is_alternate
        || spec.grouping.is_some()
        || spec.align == Some('=')
    {
        return fail("a string's format has no sign, '#', separator or '='");
    }
    let taken: String = text.chars().take(spec.precision.unwrap_or(usize::MAX)).collect();
    padded(spec, "", &taken, '<')
}

fn format_int(value: &BigInt, spec: &Spec) -> Result<String> {
    let form = spec.form.unwrap_or('d');
    if "eEfFgG%".contains(form) {
        return format_float(Number::Big(value.clone()).float()?, spec);
    }
    if !"bcdoxXn".contains(form) || spec.precision.is_some() || spec.has_plain_zero {
        return fail("Unknown format code or a precision for object of type 'int'");
    }
    if form == 'c' {
        let code = num_traits::ToPrimitive::to_u32(value).and_then(char::from_u32);
        let Some(c) = code.filter(|_| spec.sign.is_none()) else {
            return fail("%c arg not in range(0x110000)");
        };
        return padded(spec, "", &c.to_string(), '<');
    }
    if spec.grouping == Some(',') && form != 'd' {
        return fail(format!("Cannot specify ',' with '{form}'."));
    }
    let prefix = match (spec.is_alternate, form) {
        (true, 'b' | 'o' | 'x' | 'X') => format!("0{form}"),
        _ => String::new(),
    };
    let sign = format!("{}{prefix}", sign_of(spec, value.sign() == Sign::Minus));
    let digits = int_digits(&value.magnitude().clone().into(), form)?;
    let group = if "boxX".contains(form) { 4 } else { 3 };
    padded(spec, &sign, &grouped(spec, &digits, group, sign.len()), '>')
}

fn format_float(value: f64, spec: &Spec) -> Result<String> {
    let form = spec.form.unwrap_or(' ');
    if !"eEfFgGn% ".contains(form) {
        return fail(format!("Unknown format code '{form}' for object of type 'float'"));
    }
    let precision = spec.precision.unwrap_or(6);
    if precision > MAX_PRECISION {
        return fail(format!("a precision is above {MAX_PRECISION}"));
    }
    let size = value.abs();
    let is_alternate = spec.is_alternate;
    let digits = match form {
        '%' => float_digits(size * 100.0, 'f', precision, is_alternate) + "%",
        ' ' if spec.precision.is_none() => float_text(size),
        ' ' => with_a_fraction(size, precision),
        'n' => float_digits(size, 'g', precision, is_alternate),
        _ => float_digits(size, form.to_ascii_lowercase(), precision, is_alternate),
    };
    let digits = if form.is_ascii_uppercase() { digits.to_uppercase() } else { digits };
    let is_zero = size.is_finite() && digits.chars().all(|c| !c.is_ascii_digit() || c == '0');
    let is_negative = value.is_sign_negative() && !value.is_nan();
    let sign = sign_of(spec, is_negative && !(is_zero && spec.has_plain_zero));
    padded(spec, sign, &grouped(spec, &digits, 3, sign.len()), '>')
}

/// As `g`, but a number without exponent has a digit after its point.
fn with_a_fraction(size: f64, precision: usize) -> String {
    let made = float_digits(size, 'g', precision, false);
    if made.contains(['.', 'e', 'n']) {
        return made;
    }
    if made.len() >= precision.max(1) {
        return float_digits(size, 'e', precision.max(1) - 1, false);
    }
    made + ".0"
}

/// format(value, spec)
pub fn format(value: &Value, spec: &str) -> Result<String> {
    if spec.is_empty() {
        return text(value);
    }
    match (value, Number::of(value)) {
        (Value::Str(text), _) => format_text(&text.text, &parse(spec)?),
        (_, Some(Number::Float(number))) => format_float(number, &parse(spec)?),
        (_, Some(number)) => format_int(&number.big().unwrap_or_default(), &parse(spec)?),
        _ => fail(format!("unsupported format string passed to {}.__format__", value.type_name())),
    }
}
