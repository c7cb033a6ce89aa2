// SPDX-License-Identifier: Apache-2.0
//! The filter wordwrap: Python's textwrap for each line of a text.

use super::arguments::Bound;
use super::budget;
use super::characters::lines;
use super::error::{fail, Result};
use super::value::Value;

struct Style {
    width: usize,
    breaks_words: bool,
    breaks_at_hyphens: bool,
}

pub fn wrapped(value: &Value, bound: &Bound) -> Result<Value> {
    let Value::Str(text) = value else {
        return fail(format!("wordwrap: '{}' is not a string", value.type_name()));
    };
    let style = Style {
        width: usize::try_from(bound.int_or(0, 79)?).unwrap_or(0),
        breaks_words: bound.get(1).is_none_or(Value::is_true),
        breaks_at_hyphens: bound.get(3).is_none_or(Value::is_true),
    };
    let separator = match bound.given(2) {
        Some(_) => bound.str(2)?,
        None => "\n",
    };
    budget::spend_items(text.text.len())?;
    let mut made = Vec::new();
    for line in lines(&text.text, false) {
        if style.width == 0 {
            return fail("wordwrap: width must be above 0");
        }
        let characters: Vec<char> = line.chars().collect();
        let chunks = chunks(&characters, style.breaks_at_hyphens);
        let lines = wrapped_line(chunks, &style);
        budget::spend_text(lines.len().saturating_mul(separator.len()))?;
        made.push(lines.join(separator));
    }
    let size = made.iter().map(String::len).sum::<usize>() + made.len() * separator.len();
    budget::spend_text(size)?;
    Ok(Value::str(made.join(separator)))
}

fn is_blank(c: char) -> bool {
    matches!(c, '\t'..='\r' | ' ')
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn is_letter(c: char) -> bool {
    is_word(c) && !c.is_numeric()
}

/// A letter, a digit or a mark that is part of words.
fn is_word_mark(c: char) -> bool {
    is_word(c) || "!\"'&.,?".contains(c)
}

/// Words, what is between them, and the parts of words that hyphens join.
fn chunks(text: &[char], at_hyphens: bool) -> Vec<&[char]> {
    let mut found = Vec::new();
    let mut start = 0;
    while start < text.len() {
        let end = if is_blank(text[start]) {
            (start..text.len()).find(|at| !is_blank(text[*at])).unwrap_or(text.len())
        } else if at_hyphens {
            dashes_end(text, start).unwrap_or_else(|| part_end(text, start))
        } else {
            (start..text.len()).find(|at| is_blank(text[*at])).unwrap_or(text.len())
        };
        found.push(&text[start..end]);
        start = end;
    }
    found
}

/// The end of two or more hyphens between words.
fn dashes_end(text: &[char], start: usize) -> Option<usize> {
    let before = start.checked_sub(1).filter(|_| text[start] == '-')?;
    if !is_word_mark(text[before]) {
        return None;
    }
    let end = (start..text.len()).find(|at| text[*at] != '-')?;
    (end - start >= 2 && is_word(text[end])).then_some(end)
}

fn part_end(text: &[char], start: usize) -> usize {
    let is = |at: Option<usize>, check: fn(char) -> bool| {
        at.and_then(|at| text.get(at)).is_some_and(|c| check(*c))
    };
    for at in start + 1..text.len() {
        if is_blank(text[at]) || dashes_end(text, at).is_some() {
            return at;
        }
        if text[at] != '-' {
            continue;
        }
        let follows = (is(at.checked_sub(2), is_letter) && is(at.checked_sub(1), is_letter))
            || (is(at.checked_sub(3), is_letter)
                && is(at.checked_sub(2), |c| c == '-')
                && is(at.checked_sub(1), is_word_mark));
        let second = if is(Some(at + 2), |c| c == '-') { at + 3 } else { at + 2 };
        if follows && is(Some(at + 1), is_letter) && is(Some(second), is_letter) {
            return at + 1;
        }
    }
    text.len()
}

fn wrapped_line(mut chunks: Vec<&[char]>, style: &Style) -> Vec<String> {
    let is_blank_chunk = |chunk: &[char]| chunk.iter().all(|c| is_blank(*c));
    let mut lines: Vec<String> = Vec::new();
    chunks.reverse();
    while !chunks.is_empty() {
        let mut line: Vec<&[char]> = Vec::new();
        let mut size = 0;
        if !lines.is_empty() {
            chunks.pop_if(|chunk| is_blank_chunk(chunk));
        }
        while let Some(chunk) = chunks.pop_if(|chunk| size + chunk.len() <= style.width) {
            size += chunk.len();
            line.push(chunk);
        }
        if chunks.last().is_some_and(|chunk| chunk.len() > style.width) {
            break_word(&mut chunks, &mut line, style.width - size, style);
        }
        line.pop_if(|chunk| is_blank_chunk(chunk));
        if !line.is_empty() {
            lines.push(line.concat().into_iter().collect());
        }
    }
    lines
}

/// The next word is longer than a line.
fn break_word<'a>(
    chunks: &mut Vec<&'a [char]>,
    line: &mut Vec<&'a [char]>,
    room: usize,
    style: &Style,
) {
    let Some(word) = chunks.pop() else { return };
    if style.breaks_words {
        let mut end = room;
        if style.breaks_at_hyphens {
            let hyphen = word[..room].iter().rposition(|c| *c == '-').unwrap_or(0);
            if word[..hyphen].iter().any(|c| *c != '-') {
                end = hyphen + 1;
            }
        }
        line.push(&word[..end]);
        chunks.push(&word[end..]);
    } else if line.is_empty() {
        line.push(word);
    } else {
        chunks.push(word);
    }
}
