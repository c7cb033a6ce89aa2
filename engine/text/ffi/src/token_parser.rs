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
    /// Err: why it failed.
    parser: Result<TokenParser, String>,
}

impl Parser {
    pub fn new(mut parser: TokenParser) -> Self {
        parser.start_without_prompt();
        Parser { parser: Ok(parser) }
    }

    fn guarded<T, E: Display>(
        &mut self,
        work: impl FnOnce(&mut TokenParser) -> Result<T, E>,
    ) -> Result<T, String> {
        let parser = self.parser.as_mut().map_err(|error| error.clone())?;
        let made = without_panic(|| work(parser).map_err(|e| e.to_string()));
        if let Err(error) = &made {
            self.parser = Err(error.clone());
        }
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
    pub fn forced(&self, vocab_size: usize) -> Result<Vec<u32>, String> {
        self.deep_clone().guarded(|parser| Ok::<_, String>(tokens_after(parser, vocab_size)))
    }

    pub fn rollback(&mut self, count: usize) -> Result<(), String> {
        self.guarded(|parser| parser.rollback(count))
    }

    /// Whether nothing can follow.
    pub fn is_at_end(&self) -> Result<bool, String> {
        let reason = self.parser.as_ref().map_err(|error| error.clone())?.stop_reason();
        match reason.is_ok() {
            true => Ok(reason != StopReason::NotStopped),
            false => Err(reason.to_string()),
        }
    }

    /// Whether the next text may be JSON of a schema.
    pub fn is_in_schema(&self) -> bool {
        self.parser.as_ref().is_ok_and(|parser| parser.temperature().is_some())
    }

    pub fn deep_clone(&self) -> Self {
        let copy = self.parser.as_ref().map(TokenParser::deep_clone);
        Parser { parser: copy.map_err(|error| error.clone()) }
    }
}
