// SPDX-License-Identifier: Apache-2.0
//! Divides Lark text as the library's lexer does, as far as our checks need it: what is quoted, a
//! comment or JSON has no words and no brackets of the grammar.

use serde_json::Value;

pub enum Piece<'a> {
    Word(&'a str),
    /// `%json`, `%regex` or `%llguidance`, and the value after it.
    Json(&'a str, Value),
    /// A string, a regular expression, a special token, a comment or another `%keyword`.
    Opaque,
    Other(char),
}

/// Gives each piece with the position where it begins; `at` is the position where it ends.
pub struct Pieces<'a> {
    text: &'a str,
    pub at: usize,
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-'
}

fn end_of_word(text: &[u8], start: usize) -> usize {
    start + text[start..].iter().take_while(|b| is_word(**b)).count()
}

/// Where the string or the expression that begins at `start` ends. A string ends with its line.
fn end_of_quoted(text: &[u8], start: usize) -> usize {
    let quote = text[start];
    let mut at = start + 1;
    while at < text.len() && text[at] != quote && (quote == b'/' || text[at] != b'\n') {
        at += if text[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(text.len())
}

/// Where the special token that begins at `start` ends, if it is one.
fn end_of_special(text: &[u8], start: usize) -> Option<usize> {
    let stops = |b: &u8| matches!(b, b'<' | b'>') || b.is_ascii_whitespace();
    let end = start + 1 + text[start + 1..].iter().position(stops)?;
    (text[end] == b'>').then_some(end + 1)
}

fn end_of_line(text: &[u8], start: usize) -> usize {
    text[start..].iter().position(|b| *b == b'\n').map_or(text.len(), |n| start + n)
}

/// The JSON value at the beginning of `text`, and how many bytes it has.
fn leading_json(text: &str, keyword: &str) -> Result<(Value, usize), String> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    match values.next() {
        Some(Ok(value)) => Ok((value, values.byte_offset())),
        Some(Err(e)) => Err(format!("{keyword}: {e}")),
        None => Err(format!("{keyword}: a value is missing")),
    }
}

impl<'a> Pieces<'a> {
    pub fn new(text: &'a str) -> Self {
        Pieces { text, at: 0 }
    }

    fn opaque(&mut self, end: usize) -> Piece<'a> {
        self.at = end;
        while !self.text.is_char_boundary(self.at) {
            self.at += 1;
        }
        Piece::Opaque
    }

    fn keyword(&mut self, start: usize) -> Result<Piece<'a>, String> {
        let end = end_of_word(self.text.as_bytes(), start + 1);
        let keyword = &self.text[start..end];
        if !matches!(keyword, "%json" | "%regex" | "%llguidance") {
            return Ok(self.opaque(end));
        }
        let (value, size) = leading_json(&self.text[end..], keyword)?;
        self.at = end + size;
        Ok(Piece::Json(keyword, value))
    }
}

impl<'a> Iterator for Pieces<'a> {
    type Item = Result<(usize, Piece<'a>), String>;

    fn next(&mut self) -> Option<Self::Item> {
        let (bytes, start) = (self.text.as_bytes(), self.at);
        let piece = match bytes.get(start)? {
            b'#' => self.opaque(end_of_line(bytes, start)),
            b'/' if bytes.get(start + 1) == Some(&b'/') => self.opaque(end_of_line(bytes, start)),
            b'"' | b'/' => self.opaque(end_of_quoted(bytes, start)),
            b'%' => match self.keyword(start) {
                Ok(piece) => piece,
                Err(error) => return Some(Err(error)),
            },
            byte if is_word(*byte) => {
                self.at = end_of_word(bytes, start);
                Piece::Word(&self.text[start..self.at])
            }
            byte => match (*byte == b'<').then(|| end_of_special(bytes, start)).flatten() {
                Some(end) => self.opaque(end),
                None => {
                    let other = self.text[start..].chars().next()?;
                    self.at += other.len_utf8();
                    Piece::Other(other)
                }
            },
        };
        Some(Ok((start, piece)))
    }
}
