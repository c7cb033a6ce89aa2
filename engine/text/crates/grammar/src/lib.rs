// SPDX-License-Identifier: Apache-2.0
//! A client's grammar as a matcher over the model's tokens (crate `llguidance`). The work of a
//! grammar is bounded, both when it is compiled and at every token, so no grammar can stall the
//! thread that runs it.

mod forced_text;
mod gbnf;
mod lark_pieces;
mod lark_text;
mod number_guard;
mod regex_text;
mod row_check;
mod schema_alternatives;
mod schema_dialect;
mod schema_intersections;
mod schema_numbers;
mod schema_pattern;
mod schema_policy;
mod schema_references;
mod schema_sets;
mod schema_values;
mod structural_tag;
mod token_parser;
mod whitespace;

use std::sync::Arc;

use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::ParserFactory;
use serde_json::{json, Value};

use number_guard::{DigitTokens, Limits, NumberGuard};
use schema_policy::SchemaPolicy;
use token_parser::Parser;

/// The library's trie supports slightly longer tokens; a longer token than this is never drawn.
const MAX_TOKEN_BYTES: usize = 1000;
const MAX_CHOICES: usize = 1000;

const LIMITS: ParserLimits = ParserLimits {
    max_items_in_row: 4000, // 10 ms; row_check looks for longer ones before work starts
    initial_lexer_fuel: 1_000_000, // 20 ms
    step_lexer_fuel: 100_000, // 7 ms
    step_max_items: 50_000, // 3 ms, in the longest rows 120 ms
    max_lexer_states: 30_000, // of 1 to 2 KiB
    max_grammar_size: 300_000,
    precompute_large_lexemes: true,
    verbose_errors: false,
};

pub struct Tokens<'a> {
    /// Token `i` is `bytes[ends[i - 1] .. ends[i])`.
    pub bytes: &'a [u8],
    pub ends: &'a [u32],
    /// Per id: 1 = a token, 2 = a special one (bits).
    pub flags: &'a [u8],
}

pub struct GrammarFactory {
    factory: ParserFactory,
    digits: Arc<DigitTokens>,
    eos: Arc<[u32]>,
    vocab_size: usize,
    bytes: Arc<ByteTokens>,
}

/// [byte] The library's token that consists of this byte.
type ByteTokens = [u32; 256];

#[derive(Clone, Copy, PartialEq)]
pub enum Kind {
    JsonObject,
    JsonSchema,
    Regex,
    Choice,
    Lark,
    Ebnf,
    StructuralTag,
}

impl Kind {
    pub fn from_number(number: u32) -> Result<Kind, String> {
        use Kind::*;
        const KINDS: [Kind; 7] = [JsonObject, JsonSchema, Regex, Choice, Lark, Ebnf, StructuralTag];
        KINDS.get(number as usize).copied().ok_or_else(|| "no such kind of grammar".into())
    }
}

/// The library's spelling of all tokens. Special tokens start with a byte that no text contains.
fn words(tokens: &Tokens, vocab_size: usize) -> Vec<Vec<u8>> {
    let mut words = vec![Vec::new(); vocab_size];
    let mut begin = 0;
    for (id, end) in tokens.ends.iter().map(|end| *end as usize).enumerate() {
        let word = &tokens.bytes[begin..end];
        begin = end;
        let special = tokens.flags[id] & 2 != 0;
        let marked = !special && word.contains(&TokTrie::SPECIAL_TOKEN_MARKER);
        if id >= vocab_size || word.is_empty() || word.len() > MAX_TOKEN_BYTES || marked {
            continue;
        }
        if special {
            words[id].push(TokTrie::SPECIAL_TOKEN_MARKER);
        }
        words[id].extend_from_slice(word);
    }
    words
}

/// Appends a token for each byte that is not a token of the vocabulary. No mask shows these tokens;
/// they let the library accept single bytes.
fn add_bytes(words: &mut Vec<Vec<u8>>) -> ByteTokens {
    let mut ids = [u32::MAX; 256];
    for (id, word) in words.iter().enumerate() {
        if let [byte] = word[..] {
            ids[usize::from(byte)] = id as u32;
        }
    }
    for byte in (0..=255u8).filter(|byte| *byte != TokTrie::SPECIAL_TOKEN_MARKER) {
        if ids[usize::from(byte)] == u32::MAX {
            ids[usize::from(byte)] = words.len() as u32;
            words.push(vec![byte]);
        }
    }
    ids
}

fn lark_choice(text: &str) -> Result<String, String> {
    let value: Value = parse_json(text)?;
    let entries = value.as_array().ok_or("no list; allowed: a list of strings")?;
    if entries.is_empty() || entries.len() > MAX_CHOICES {
        return Err(format!("{} entries; allowed: 1 to {MAX_CHOICES}", entries.len()));
    }
    let mut options = Vec::new();
    for (i, entry) in entries.iter().enumerate() {
        match entry.as_str() {
            Some(text) if !text.is_empty() => options.push(lark_text::quoted(text)),
            _ => return Err(format!("[{i}] is not a string with text")),
        }
    }
    Ok(format!("start: CHOICE\nCHOICE: {}\n", options.join(" | ")))
}

fn lark_regex(pattern: &str) -> Result<String, String> {
    Ok(format!("start: EXPRESSION\nEXPRESSION: {}\n", regex_text::regex_terminal(pattern)?))
}

fn parse_json(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|e| format!("not JSON: {e}"))
}

/// The grammar, and the limits of its numbers where its texts contain JSON of a schema.
fn top_level(
    kind: Kind,
    text: &str,
    policy: &SchemaPolicy,
) -> Result<(TopLevelGrammar, Option<Limits>), String> {
    if text.trim().is_empty() && kind != Kind::JsonObject {
        return Err("it is empty".into());
    }
    let of_schema = |schema: Value| -> Result<_, String> {
        let made = policy.apply(&schema)?;
        Ok((TopLevelGrammar::from_json_schema(made), Some(Limits::of(&schema))))
    };
    let (lark, schemas) = match kind {
        Kind::JsonObject => return of_schema(json!({"type": "object"})),
        Kind::JsonSchema => return of_schema(parse_json(text)?),
        Kind::Lark => lark_text::with_checked_schemas(text, policy)?,
        Kind::Regex => (lark_regex(text)?, vec![]),
        Kind::Choice => (lark_choice(text)?, vec![]),
        Kind::Ebnf => (gbnf::to_lark(text)?, vec![]),
        Kind::StructuralTag => structural_tag::to_lark(&parse_json(text)?, policy)?,
    };
    lark_text::check_levels(&lark)?;
    let limits = (!schemas.is_empty()).then(|| Limits::of(&Value::Array(schemas)));
    Ok((TopLevelGrammar::from_lark(lark), limits))
}

/// Rewords library messages where a client needs to know what to do.
fn explained(message: String) -> String {
    // The library's numbers for classes of lexemes and for symbols have 8 and 16 bits.
    if ["class too large", "grammar.symbols.len()", "CSymIdx out of range"]
        .iter()
        .any(|limit| message.contains(limit))
    {
        return "it has too many parts: at most 254 schemas or grammars within a grammar with \
                max_tokens, and 65,000 symbols"
            .into();
    }
    // A panic's text may quote the client's text, and a backtrace does not help the client.
    if message.starts_with("panic: ") {
        return "the grammar library failed".into();
    }
    let message = message.replace("\n<non-verbose/>", "");
    if message.contains("oneOf constraints are not supported") {
        return "oneOf is enforced only where its alternatives have different types, or differ in \
                a required property that is a constant; use anyOf"
            .into();
    }
    if message.contains("patternProperty regexes") {
        return "patternProperties is enforced only where no name can match two of its patterns"
            .into();
    }
    if message.contains("lookarounds not supported") || message.contains("regex parse error") {
        return format!("a pattern is not supported: {message}");
    }
    if message.contains("NoExtension") {
        return "no text satisfies it".into();
    }
    message
}

/// Whether `pattern` may be used for the whitespace between JSON tokens.
pub fn check_whitespace(pattern: &str) -> Result<(), String> {
    whitespace::expression(Some(pattern)).map(|_| ())
}

impl GrammarFactory {
    pub fn new(tokens: &Tokens, vocab_size: usize, eos: &[u32]) -> Result<Self, String> {
        let first = *eos.first().ok_or("the model has no token that ends a text")?;
        if eos.iter().any(|id| *id as usize >= vocab_size) {
            return Err("a token that ends a text is outside the vocabulary".into());
        }
        let mut words = words(tokens, vocab_size);
        let bytes = Arc::new(add_bytes(&mut words));
        let info = TokRxInfo::new(words.len() as u32, first);
        let trie = TokTrie::from(&info, &words).with_eos_tokens(eos);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let slices = SlicedBiasComputer::general_slices();
        let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices)
            .map_err(|e| e.to_string())?;
        factory.quiet();
        *factory.limits_mut() = LIMITS;
        let digits = Arc::new(DigitTokens::new(&env));
        Ok(GrammarFactory { factory, digits, eos: eos.into(), vocab_size, bytes })
    }

    /// The matcher, and the reason if no first token is possible; empty: some are. `pattern`: of
    /// whitespace between JSON tokens; None: the usual.
    pub fn compile(
        &self,
        kind: Kind,
        text: &str,
        pattern: Option<&str>,
    ) -> Result<(TokenMatcher, String), String> {
        let policy = SchemaPolicy { whitespace: whitespace::expression(pattern)? };
        let (grammar, limits) = top_level(kind, text, &policy)?;
        let parser = self.factory.create_parser(grammar).map_err(|e| explained(e.to_string()))?;
        row_check::check(parser.parser.grammar(), LIMITS.max_items_in_row)?;
        let mut parser = Parser::new(parser, &policy.whitespace);
        let is_json = matches!(kind, Kind::JsonObject | Kind::JsonSchema);
        let begins = is_json || parser.is_in_schema();
        let made = TokenMatcher {
            parser,
            is_json,
            numbers: limits.map(|limits| NumberGuard::new(&self.digits, limits, begins)),
            eos: self.eos.clone(),
            vocab_size: self.vocab_size,
            bytes: self.bytes.clone(),
            filled: false,
        };
        // A matcher that was asked for a token and had none is unusable afterwards. The others and
        // their copies already know the first states.
        let mut asked = made.deep_clone();
        let mut mask = vec![0; self.vocab_size.div_ceil(32)];
        if let Err(why) = asked.fill(&mut mask) {
            return Ok((made, why));
        }
        self.eos.iter().for_each(|id| mask[*id as usize / 32] &= !(1 << (id % 32)));
        if mask.iter().all(|word| *word == 0) {
            return Err("no text but the empty one satisfies it".into());
        }
        Ok((asked, String::new()))
    }
}

pub struct TokenMatcher {
    parser: Parser,
    /// Whether the whole text is JSON.
    is_json: bool,
    numbers: Option<NumberGuard>,
    eos: Arc<[u32]>,
    vocab_size: usize,
    bytes: Arc<ByteTokens>,
    /// Whether the parser has made the mask of the next token.
    filled: bool,
}

impl TokenMatcher {
    fn check_stop(&self) -> Result<bool, String> {
        self.parser.is_at_end().map_err(explained)
    }

    fn take(&mut self, token: u32) -> Result<(), String> {
        self.filled = false;
        let Some(numbers) = &mut self.numbers else {
            return self.parser.accept(token).map_err(explained);
        };
        let bytes = numbers.bytes(token);
        let from = match numbers.is_in_schema() {
            true => 0,
            false => self.parser.schema_begin(bytes).map_err(explained)?,
        };
        self.parser.accept(token).map_err(explained)?;
        match self.is_json || self.parser.is_in_schema() {
            false => numbers.leave(),
            true if numbers.is_in_schema() => numbers.accept(token),
            true => numbers.enter(token, from),
        }
        Ok(())
    }

    pub fn fill(&mut self, mask: &mut [u32]) -> Result<(), String> {
        mask.fill(0);
        if self.check_stop()? {
            for id in self.eos.iter() {
                mask[*id as usize / 32] |= 1 << (id % 32);
            }
            return Ok(());
        }
        let allowed = self.parser.mask().map_err(explained)?;
        self.filled = true;
        let words = allowed.as_slice();
        let count = words.len().min(mask.len());
        mask[..count].copy_from_slice(&words[..count]);
        if self.vocab_size % 32 != 0 {
            mask[self.vocab_size / 32] &= (1 << (self.vocab_size % 32)) - 1;
        }
        if let Some(numbers) = &self.numbers {
            numbers.restrict(mask);
        }
        match mask.iter().all(|word| *word == 0) {
            true => Err("no text that the model's tokens can spell satisfies it".into()),
            false => Ok(()),
        }
    }

    /// Tokens of the text that must come next; often none.
    pub fn forced(&self) -> Result<Vec<u32>, String> {
        self.parser.forced(self.vocab_size).map_err(explained)
    }

    pub fn accept_bytes(&mut self, bytes: &[u8]) -> Result<(), String> {
        for byte in bytes {
            if self.check_stop()? {
                return Err("text comes after the end of the grammar".into());
            }
            self.take(self.bytes[usize::from(*byte)])?;
        }
        Ok(())
    }

    /// With `masked`, the parser makes the token's mask first, if `fill` did not. When it meets a
    /// limit then depends on the accepted tokens only.
    pub fn accept(&mut self, token: u32, masked: bool) -> Result<(), String> {
        if self.check_stop()? {
            return match self.eos.contains(&token) {
                true => Ok(()), // the parser accepts none once nothing can follow
                false => Err(format!("token {token} comes after the end of the grammar")),
            };
        }
        if masked && !self.filled {
            self.parser.mask().map_err(explained)?;
        }
        if self.numbers.as_ref().is_some_and(|numbers| !numbers.accepts(token)) {
            return Err(format!("with token {token} a number has too many digits"));
        }
        self.take(token)
    }

    pub fn deep_clone(&self) -> Self {
        TokenMatcher {
            parser: self.parser.deep_clone(),
            is_json: self.is_json,
            numbers: self.numbers.clone(),
            eos: self.eos.clone(),
            vocab_size: self.vocab_size,
            bytes: self.bytes.clone(),
            filled: self.filled,
        }
    }
}
