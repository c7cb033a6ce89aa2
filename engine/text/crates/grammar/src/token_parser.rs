// SPDX-License-Identifier: Apache-2.0
//! Wraps the library's parser. After a failure, including a panic inside it, it accepts nothing
//! more.

use std::fmt::Display;
use std::sync::Arc;

use llguidance::api::StopReason;
use llguidance::earley::ParserRecognizer;
use llguidance::toktrie::{Recognizer, SimpleVob};
use llguidance::TokenParser;
use panics::without_panic;

use crate::forced_text::tokens_after;

pub struct Parser {
    /// Err: why it failed.
    parser: Result<TokenParser, String>,
    /// [class of lexemes] Whether they are of a schema's JSON.
    in_schema: Arc<[bool]>,
}

/// Which classes are of a schema's JSON: those whose skipped text is `whitespace`. Schemas share a
/// class, as there are at most 255, except in a grammar with `max_tokens`.
fn classes_of_schemas(parser: &TokenParser, whitespace: &str) -> Arc<[bool]> {
    let spec = parser.parser.grammar().lexer_spec();
    let skips = spec.skip_by_class.iter().map(|skip| spec.lexeme_spec(*skip).to_string(512, None));
    skips.map(|skip| skip.contains(whitespace)).collect()
}

/// Whether the next text may be JSON of a schema.
fn is_in_schema(at: &ParserRecognizer, in_schema: &[bool]) -> bool {
    let spec = at.lexer().lexer_spec();
    let mut possible = at.lexer().possible_lexemes(at.lexer_state()).iter();
    possible.any(|lexeme| in_schema[spec.lexeme_spec(lexeme).class().as_usize()])
}

impl Parser {
    /// `whitespace`: the expression that schemas have for it.
    pub fn new(mut parser: TokenParser, whitespace: &str) -> Self {
        parser.start_without_prompt();
        let in_schema = classes_of_schemas(&parser, whitespace);
        Parser { parser: Ok(parser), in_schema }
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

    /// Whether nothing can follow.
    pub fn is_at_end(&self) -> Result<bool, String> {
        let reason = self.parser.as_ref().map_err(|error| error.clone())?.stop_reason();
        match reason.is_ok() {
            true => Ok(reason != StopReason::NotStopped),
            false => Err(reason.to_string()),
        }
    }

    /// Whether the next text may be JSON of a schema.
    pub fn is_in_schema(&mut self) -> bool {
        let classes = self.in_schema.clone();
        let look = |parser: &mut TokenParser| {
            Ok::<_, String>(parser.parser.with_recognizer(|at| is_in_schema(at, &classes)))
        };
        self.guarded(look).unwrap_or(false)
    }

    /// The position in the next token's `bytes` where a schema's JSON begins.
    pub fn schema_begin(&mut self, bytes: &[u8]) -> Result<usize, String> {
        let classes = self.in_schema.clone();
        self.guarded(|parser| {
            Ok::<_, String>(parser.parser.with_recognizer(|at| {
                at.trie_started("schema");
                let (mut pushed, mut found) = (0, false);
                while !found && pushed < bytes.len() && at.try_push_byte(bytes[pushed]) {
                    pushed += 1;
                    found = is_in_schema(at, &classes);
                }
                at.pop_bytes(pushed);
                at.trie_finished();
                // The byte that ends the previous element may be the JSON's first byte.
                let is_first = |byte: u8| matches!(byte, b'"' | b'-' | b'0'..=b'9');
                match found {
                    true if is_first(bytes[pushed - 1]) => pushed - 1,
                    true => pushed,
                    false => bytes.len(),
                }
            }))
        })
    }

    pub fn deep_clone(&self) -> Self {
        let copy = self.parser.as_ref().map(TokenParser::deep_clone);
        Parser { parser: copy.map_err(|error| error.clone()), in_schema: self.in_schema.clone() }
    }
}
