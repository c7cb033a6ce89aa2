// SPDX-License-Identifier: Apache-2.0
//! Wraps the library's parser. After a failure, including a panic inside it, it accepts nothing
//! more.

use std::fmt::Display;

use llguidance::api::StopReason;
use llguidance::toktrie::SimpleVob;
use llguidance::TokenParser;

use crate::forced_text::tokens_after;
use crate::panics::without_panic;

/// The attribute of a rule whose text is JSON of a schema. The library passes it on to everything
/// inside the rule, and it has no other use here.
pub const SCHEMA_ATTRIBUTE: &str = "[temperature=1]";

pub struct Parser {
    parser: TokenParser,
    error: Option<String>,
}

impl Parser {
    pub fn new(mut parser: TokenParser) -> Self {
        parser.start_without_prompt();
        Parser { parser, error: None }
    }

    fn guarded<T, E: Display>(
        &mut self,
        work: impl FnOnce(&mut TokenParser) -> Result<T, E>,
    ) -> Result<T, String> {
        if let Some(error) = &self.error {
            return Err(error.clone());
        }
        let made = without_panic(|| work(&mut self.parser).map_err(|e| e.to_string()));
        self.error = made.as_ref().err().cloned();
        made
    }

    pub fn mask(&mut self) -> Result<SimpleVob, String> {
        self.guarded(TokenParser::compute_mask)
    }

    pub fn accept(&mut self, token: u32) -> Result<(), String> {
        self.guarded(|parser| {
            parser.consume_token(token)?;
            parser.check_stop().map(|_| ())
        })
    }

    /// See forced_text.
    pub fn forced(&mut self, vocab_size: usize) -> Result<Vec<u32>, String> {
        self.guarded(|parser| Ok::<_, String>(tokens_after(parser, vocab_size)))
    }

    pub fn rollback(&mut self, count: usize) -> Result<(), String> {
        self.guarded(|parser| parser.rollback(count))
    }

    /// Whether nothing can follow.
    pub fn is_at_end(&self) -> Result<bool, String> {
        let reason = self.parser.stop_reason();
        match &self.error {
            Some(error) => Err(error.clone()),
            None if reason.is_ok() => Ok(reason != StopReason::NotStopped),
            None => Err(reason.to_string()),
        }
    }

    /// Whether the next text may be JSON of a schema.
    pub fn is_in_schema(&self) -> bool {
        self.error.is_none() && self.parser.temperature().is_some()
    }

    pub fn deep_clone(&self) -> Self {
        Parser { parser: self.parser.deep_clone(), error: self.error.clone() }
    }
}
