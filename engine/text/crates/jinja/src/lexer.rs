// SPDX-License-Identifier: Apache-2.0
//! A template's source as tokens, by the rules of Jinja2's lexer with trim_blocks and
//! lstrip_blocks.

use num_bigint::BigInt;
use num_traits::Num;

use super::error::{fail, Result};

#[derive(Clone, Debug, PartialEq)]
pub enum Token {
    Data(String),
    VariableBegin,
    VariableEnd,
    BlockBegin,
    BlockEnd,
    Name(String),
    Str(String),
    Int(BigInt),
    Float(f64),
    Operator(&'static str),
    End,
}

#[derive(Clone, Copy, PartialEq)]
enum Place {
    Block,
    Variable,
}

/// The longer ones first.
const OPERATORS: [&str; 26] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}",
    ">", "<", "=", ".", ":", "|", ",", ";",
];

/// As str.isspace() has it.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

pub fn with_plain_newlines(text: &str) -> String {
    text.replace("\r\n", "\n").replace('\r', "\n")
}

struct Lexer<'a> {
    source: &'a str,
    at: usize,
    tokens: Vec<(Token, u32)>,
    line: u32,
    /// How many bytes `line` counts.
    counted: usize,
    is_line_start: bool,
}

/// The tokens, and the line of each.
pub fn tokens(source: &str) -> std::result::Result<Vec<(Token, u32)>, (String, u32)> {
    let source = with_plain_newlines(source);
    let source = source.strip_suffix('\n').unwrap_or(&source);
    let mut lexer =
        Lexer { source, at: 0, tokens: Vec::new(), line: 1, counted: 0, is_line_start: true };
    match lexer.root() {
        Ok(()) => Ok(lexer.tokens),
        Err(error) => Err((error.message().to_string(), lexer.line_here())),
    }
}

/// A tag's first characters after `{%`: its sign, and whether it is `raw`.
struct Opening<'a> {
    kind: &'a str,
    sign: char,
    /// Where the tag's inside begins.
    inside: usize,
    /// Where the text of a raw block begins.
    raw: Option<usize>,
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        &self.source[self.at..]
    }

    fn line_here(&mut self) -> u32 {
        let passed = &self.source.as_bytes()[self.counted..self.at];
        self.line += passed.iter().filter(|byte| **byte == b'\n').count() as u32;
        self.counted = self.at;
        self.line
    }

    fn push(&mut self, token: Token) {
        let line = self.line_here();
        self.tokens.push((token, line));
    }

    fn skip_space(&mut self) {
        self.at = self.source.len() - self.rest().trim_start_matches(is_space).len();
    }

    fn next_opening(&self) -> Option<(usize, Opening<'a>)> {
        let mut from = self.at;
        while let Some(found) = self.source[from..].find('{') {
            let start = from + found;
            let kind = self.source.get(start..start + 2).unwrap_or("");
            if matches!(kind, "{%" | "{{" | "{#") {
                let after = &self.source[start + 2..];
                let sign = after.chars().next().filter(|c| matches!(c, '-' | '+'));
                let inside = start + 2 + sign.map_or(0, char::len_utf8);
                let sign = sign.unwrap_or(' ');
                let raw = if kind == "{%" { self.raw_text(inside) } else { None };
                return Some((start, Opening { kind, sign, inside, raw }));
            }
            from = start + 1;
        }
        None
    }

    fn raw_text(&self, inside: usize) -> Option<usize> {
        let after = self.source[inside..].trim_start_matches(is_space).strip_prefix("raw")?;
        let after = after.trim_start_matches(is_space);
        let text = match after.strip_prefix("-%}") {
            Some(text) => text.trim_start_matches(is_space),
            None => after.strip_prefix("%}")?,
        };
        Some(self.source.len() - text.len())
    }

    /// The text before a tag as the tag's sign has it.
    fn before_tag(&self, text: &'a str, sign: char, is_variable: bool) -> &'a str {
        if sign == '-' {
            return text.trim_end_matches(is_space);
        }
        if sign == '+' || is_variable {
            return text;
        }
        let line = text.rfind('\n').map_or(0, |at| at + 1);
        if (line > 0 || self.is_line_start) && text[line..].chars().all(is_space) {
            return &text[..line];
        }
        text
    }

    fn push_data(&mut self, text: &str) {
        if !text.is_empty() {
            self.push(Token::Data(text.to_string()));
        }
    }

    fn root(&mut self) -> Result<()> {
        while let Some((start, opening)) = self.next_opening() {
            let text = &self.source[self.at..start];
            let text = self.before_tag(text, opening.sign, opening.kind == "{{");
            self.push_data(text);
            self.at = opening.inside;
            self.is_line_start = false;
            match (opening.kind, opening.raw) {
                ("{#", _) => self.comment()?,
                ("{{", _) => {
                    self.push(Token::VariableBegin);
                    self.inside(Place::Variable)?;
                }
                (_, Some(raw)) => {
                    self.is_line_start = self.source[..raw].ends_with('\n');
                    self.at = raw;
                    self.raw()?;
                }
                _ => {
                    self.push(Token::BlockBegin);
                    self.inside(Place::Block)?;
                }
            }
        }
        let text = self.rest();
        self.push_data(text);
        self.at = self.source.len();
        self.push(Token::End);
        Ok(())
    }

    /// Goes past a tag's end: `sign` is the character before it.
    fn pass_end(&mut self, end: usize, sign: char) {
        self.at = end;
        if sign == '-' {
            self.skip_space();
        } else if sign != '+' && self.rest().starts_with('\n') {
            self.at += 1;
        }
        self.is_line_start = self.source[..self.at].ends_with('\n');
    }

    fn comment(&mut self) -> Result<()> {
        let Some(found) = self.rest().find("#}") else {
            return fail("missing end of comment tag");
        };
        let sign = self.rest()[..found].chars().next_back().unwrap_or(' ');
        self.pass_end(self.at + found + 2, sign);
        Ok(())
    }

    fn raw(&mut self) -> Result<()> {
        let mut from = self.at;
        while let Some(found) = self.source[from..].find("{%") {
            let start = from + found;
            if let Some((sign, end, end_sign)) = self.raw_end(start + 2) {
                let text = self.before_tag(&self.source[self.at..start], sign, false);
                self.push_data(text);
                self.pass_end(end, end_sign);
                return Ok(());
            }
            from = start + 2;
        }
        fail("missing end of raw directive")
    }

    /// The sign, where the tag ends, and the sign there.
    fn raw_end(&self, inside: usize) -> Option<(char, usize, char)> {
        let text = &self.source[inside..];
        let sign = text.chars().next().filter(|c| matches!(c, '-' | '+'));
        let text = &text[sign.map_or(0, char::len_utf8)..];
        let text = text.trim_start_matches(is_space).strip_prefix("endraw")?;
        let text = text.trim_start_matches(is_space);
        let end_sign = text.chars().next().filter(|c| matches!(c, '-' | '+'));
        let text = text[end_sign.map_or(0, char::len_utf8)..].strip_prefix("%}")?;
        Some((sign.unwrap_or(' '), self.source.len() - text.len(), end_sign.unwrap_or(' ')))
    }

    /// The tag's end, if it is here.
    fn tag_end(&self, place: Place) -> Option<(usize, char)> {
        let rest = self.rest();
        let sign = rest.chars().next()?;
        let (end, after) = match place {
            Place::Block => ("%}", &rest[sign.len_utf8()..]),
            Place::Variable => ("}}", &rest[sign.len_utf8()..]),
        };
        if rest.starts_with(end) {
            return Some((2, ' '));
        }
        let is_sign = sign == '-' || (sign == '+' && place == Place::Block);
        (is_sign && after.starts_with(end)).then_some((3, sign))
    }

    fn inside(&mut self, place: Place) -> Result<()> {
        let mut open = Vec::new();
        loop {
            self.skip_space();
            if self.rest().is_empty() {
                return fail("unexpected end of template");
            }
            if let (true, Some((size, sign))) = (open.is_empty(), self.tag_end(place)) {
                self.push(match place {
                    Place::Block => Token::BlockEnd,
                    Place::Variable => Token::VariableEnd,
                });
                match place {
                    Place::Variable if sign == ' ' => {
                        self.at += size;
                        self.is_line_start = false;
                    }
                    _ => self.pass_end(self.at + size, sign),
                }
                return Ok(());
            }
            let (token, size) = self.token()?;
            if let Token::Operator(operator) = token {
                balance(&mut open, operator)?;
            }
            self.push(token);
            self.at += size;
        }
    }

    /// A token of an expression, and its bytes.
    fn token(&self) -> Result<(Token, usize)> {
        let rest = self.rest();
        let is_after_dot = self.source[..self.at].ends_with('.');
        if let Some(found) = number(rest, is_after_dot)? {
            return Ok(found);
        }
        let name = rest.find(|c: char| !is_name(c)).unwrap_or(rest.len());
        if name > 0 {
            let begins = |c: char| c.is_alphabetic() || "_\u{2118}\u{212e}".contains(c);
            if !rest.starts_with(begins) {
                return fail("invalid character in identifier");
            }
            return Ok((Token::Name(rest[..name].to_string()), name));
        }
        if let Some(quote) = rest.chars().next().filter(|c| matches!(c, '"' | '\'')) {
            let mut is_escaped = false;
            for (at, c) in rest.char_indices().skip(1) {
                match c {
                    _ if is_escaped => is_escaped = false,
                    '\\' => is_escaped = true,
                    c if c == quote => {
                        let text = unescaped(&rest[1..at])?;
                        return Ok((Token::Str(text), at + 1));
                    }
                    _ => {}
                }
            }
            return fail(format!("unexpected char {quote}: the string has no end"));
        }
        match OPERATORS.into_iter().find(|operator| rest.starts_with(operator)) {
            Some(operator) => Ok((Token::Operator(operator), operator.len())),
            None => fail(format!("unexpected char {:?}", rest.chars().next().unwrap_or(' '))),
        }
    }
}

/// Letters, digits and what Python takes as one.
fn is_name(c: char) -> bool {
    let is_other = matches!(
        c,
        '_' | '\u{b7}' | '\u{387}' | '\u{1369}'..='\u{1371}' | '\u{19da}' | '\u{2118}' | '\u{212e}'
    );
    c.is_alphanumeric() || is_other
}

fn balance(open: &mut Vec<&'static str>, operator: &'static str) -> Result<()> {
    match operator {
        "{" => open.push("}"),
        "(" => open.push(")"),
        "[" => open.push("]"),
        "}" | ")" | "]" => match open.pop() {
            Some(expected) if expected == operator => {}
            Some(expected) => {
                return fail(format!("unexpected '{operator}', expected '{expected}'"))
            }
            None => return fail(format!("unexpected '{operator}'")),
        },
        _ => {}
    }
    Ok(())
}

/// The end of digits at the beginning, with single underscores between them.
fn digits(text: &str, is_digit: impl Fn(u8) -> bool) -> usize {
    let bytes = text.as_bytes();
    let mut end = 0;
    while end < bytes.len() {
        let skip = usize::from(end > 0 && bytes[end] == b'_');
        match bytes.get(end + skip) {
            Some(byte) if is_digit(*byte) => end += skip + 1,
            _ => break,
        }
    }
    end
}

fn float_end(text: &str) -> Option<usize> {
    let decimal = |at: usize| digits(text.get(at..).unwrap_or(""), |byte| byte.is_ascii_digit());
    let mut end = decimal(0);
    if end == 0 {
        return None;
    }
    let mut is_float = false;
    if text[end..].starts_with('.') {
        let fraction = decimal(end + 1);
        if fraction > 0 {
            (end, is_float) = (end + 1 + fraction, true);
        }
    }
    if text[end..].starts_with(['e', 'E']) {
        let sign = usize::from(text[end + 1..].starts_with(['+', '-']));
        let exponent = decimal(end + 1 + sign);
        if exponent > 0 {
            (end, is_float) = (end + 1 + sign + exponent, true);
        }
    }
    is_float.then_some(end)
}

fn number(text: &str, is_after_dot: bool) -> Result<Option<(Token, usize)>> {
    if !text.starts_with(|c: char| c.is_ascii_digit()) {
        return Ok(None);
    }
    if let Some(end) = float_end(text).filter(|_| !is_after_dot) {
        let value: f64 = text[..end].replace('_', "").parse().unwrap_or(f64::NAN);
        return Ok(Some((Token::Float(value), end)));
    }
    let (prefix, base) = match text.get(..2).unwrap_or("").to_ascii_lowercase().as_str() {
        "0b" => (2, 2),
        "0o" => (2, 8),
        "0x" => (2, 16),
        _ => (0, 10),
    };
    // An underscore may follow the prefix, too.
    let after = prefix + usize::from(prefix > 0 && text[prefix..].starts_with('_'));
    let end = digits(&text[after..], |byte| char::from(byte).is_digit(base));
    let (from, end, base) = match (prefix, end) {
        (2, 0) => (0, 1, 10),
        (2, end) => (after, after + end, base),
        _ if text.starts_with('0') => (0, digits(text, |byte| byte == b'0'), 10),
        (_, end) => (0, end, 10),
    };
    let written = text[from..end].replace('_', "");
    if base == 10 && written.len() > super::number::MAX_DIGITS {
        return fail(format!("a number has more than {} digits", super::number::MAX_DIGITS));
    }
    match BigInt::from_str_radix(&written, base) {
        Ok(value) => Ok(Some((Token::Int(value), end))),
        Err(_) => fail("a number without digits"),
    }
}

/// The text that a literal stands for.
fn unescaped(text: &str) -> Result<String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let Some(c) = rest.chars().next() else { break };
        let after = &rest[c.len_utf8()..];
        let simple = match c {
            '\n' => Some(""),
            '\\' => Some("\\"),
            '\'' => Some("'"),
            '"' => Some("\""),
            'a' => Some("\x07"),
            'b' => Some("\x08"),
            'f' => Some("\x0c"),
            'n' => Some("\n"),
            'r' => Some("\r"),
            't' => Some("\t"),
            'v' => Some("\x0b"),
            _ => None,
        };
        if let Some(simple) = simple {
            out.push_str(simple);
            rest = after;
            continue;
        }
        let (digits, base, from) = match c {
            'x' => (2, 16, after),
            'u' => (4, 16, after),
            'U' => (8, 16, after),
            '0'..='7' => {
                let octal = rest.bytes().take(3).take_while(|b| (b'0'..=b'7').contains(b));
                (octal.count(), 8, rest)
            }
            'N' => return fail("a string's escape \\N{...} is not known here"),
            c => {
                out.extend(['\\', c]);
                rest = after;
                continue;
            }
        };
        let written = from.get(..digits).filter(|text| text.chars().all(|c| c.is_digit(base)));
        let code = written.and_then(|written| u32::from_str_radix(written, base).ok());
        match code.and_then(char::from_u32) {
            Some(c) => out.push(c),
            None => return fail(format!("a string's escape \\{c} stands for no character")),
        }
        rest = &from[digits..];
    }
    out.push_str(rest);
    Ok(out)
}
