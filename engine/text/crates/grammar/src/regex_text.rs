// SPDX-License-Identifier: Apache-2.0
//! A client's regular expression as text of Lark.

use llguidance::regex_to_lark;

fn ends_in_escape(text: &str) -> bool {
    text.bytes().rev().take_while(|b| *b == b'\\').count() % 2 == 1
}

/// Removes anchors at both ends: the pattern has to match the whole text anyway.
fn without_anchors(pattern: &str) -> &str {
    let inner = pattern.strip_prefix('^').unwrap_or(pattern);
    match inner.strip_suffix('$') {
        Some(rest) if !ends_in_escape(rest) => rest,
        _ => inner,
    }
}

/// A regular expression as a terminal of Lark.
pub fn regex_terminal(pattern: &str) -> Result<String, String> {
    let inner = without_anchors(pattern);
    // Anchors of some alternatives stay, and the library refuses them.
    let inner = if inner.contains('|') { pattern } else { inner };
    if inner.is_empty() {
        return Err("the expression is empty".into());
    }
    if ends_in_escape(inner) {
        return Err("the expression ends with a \\ that escapes nothing".into());
    }
    Ok(format!("/{}/", regex_to_lark(inner, "")))
}
