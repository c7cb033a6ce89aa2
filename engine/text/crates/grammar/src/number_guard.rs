// SPDX-License-Identifier: Apache-2.0
//! Bounds the digits of numbers in JSON. A schema's expression for a number may accept digits
//! without end, and JSON readers round a number with too many. This follows the JSON of a schema in
//! a text token by token, and removes from a mask the tokens that would make a number too long.

use std::sync::Arc;

use llguidance::toktrie::TokEnv;
use serde_json::Value;

use crate::schema_numbers::PLACES;

const MAX_WHOLE_DIGITS: usize = 20;
/// Limit for the digits before the point plus the exponent: the range of a 64-bit number.
const MAX_MAGNITUDE: usize = 308;
const MAX_EXPONENT_DIGITS: usize = 3;

/// How many digits a number may have before its point and after it.
#[derive(Clone, Copy)]
pub struct Limits {
    whole: usize,
    places: usize,
}

impl Limits {
    /// The limits of every number, widened for the constants of the schema.
    pub fn of(schema: &Value) -> Self {
        let mut limits = Limits { whole: MAX_WHOLE_DIGITS, places: PLACES };
        limits.take_constants(schema, false);
        limits
    }

    fn take_constants(&mut self, value: &Value, is_constant: bool) {
        match value {
            Value::Number(number) if is_constant => {
                let text = number.as_f64().map_or(String::new(), |number| format!("{number}"));
                let (whole, places) = text.split_once('.').unwrap_or((&text, ""));
                self.whole = self.whole.max(whole.trim_start_matches('-').len());
                self.places = self.places.max(places.len());
            }
            Value::Array(entries) => {
                entries.iter().for_each(|entry| self.take_constants(entry, is_constant));
            }
            Value::Object(members) => {
                for (name, member) in members {
                    let constant = is_constant || name == "const" || name == "enum";
                    self.take_constants(member, constant);
                }
            }
            _ => {}
        }
    }
}

#[derive(Clone, Copy, Default, PartialEq)]
enum Part {
    #[default]
    None,
    Whole,
    Places,
    Exponent,
}

/// The position in the JSON at which a text ends.
#[derive(Clone, Copy, Default)]
pub struct Place {
    in_string: bool,
    escaped: bool,
    part: Part,
    digits: usize,
    whole_digits: usize,
    exponent: usize,
}

impl Place {
    /// None: a number has too many digits.
    pub fn after(mut self, byte: u8, limits: &Limits) -> Option<Place> {
        if self.in_string {
            self.in_string = self.escaped || byte != b'"';
            self.escaped = !self.escaped && byte == b'\\';
            return Some(self);
        }
        let enter = |part, digits| Place { part, digits, ..Place::default() };
        Some(match (self.part, byte) {
            (_, b'"') => Place { in_string: true, ..Place::default() },
            (Part::None, b'-') => enter(Part::Whole, 0),
            (Part::None, b'0'..=b'9') => enter(Part::Whole, 1),
            (Part::Whole, b'.') => Place { whole_digits: self.digits, ..enter(Part::Places, 0) },
            (Part::Whole, b'e' | b'E') => {
                Place { whole_digits: self.digits, ..enter(Part::Exponent, 0) }
            }
            (Part::Places, b'e' | b'E') => {
                Place { whole_digits: self.whole_digits, ..enter(Part::Exponent, 0) }
            }
            (Part::Exponent, b'+' | b'-') => self,
            (_, b'0'..=b'9') => return self.after_digit(byte, limits),
            _ => Place::default(),
        })
    }

    fn after_digit(mut self, byte: u8, limits: &Limits) -> Option<Place> {
        self.digits += 1;
        let fits = match self.part {
            Part::Exponent => {
                self.exponent = 10 * self.exponent + usize::from(byte - b'0');
                let magnitude = self.whole_digits + self.exponent;
                self.digits <= MAX_EXPONENT_DIGITS && magnitude <= MAX_MAGNITUDE
            }
            Part::Places => self.digits <= limits.places,
            _ => self.digits <= limits.whole,
        };
        fits.then_some(self)
    }

    /// How many more digits are certainly allowed.
    fn room(&self, limits: &Limits) -> usize {
        match self.part {
            Part::None => limits.whole.min(limits.places),
            Part::Whole => limits.whole.saturating_sub(self.digits).min(limits.places),
            Part::Places => limits.places.saturating_sub(self.digits),
            Part::Exponent => 0,
        }
    }
}

/// The tokens that contain digits, longest runs first.
pub struct DigitTokens {
    env: TokEnv,
    by_run: Vec<(usize, u32)>,
}

impl DigitTokens {
    pub fn new(env: &TokEnv) -> Self {
        let trie = env.tok_trie();
        let run =
            |token: &[u8]| token.split(|b| !b.is_ascii_digit()).map(<[u8]>::len).max().unwrap_or(0);
        let ids = 0..trie.vocab_size() as u32;
        let mut by_run: Vec<(usize, u32)> = ids.map(|id| (run(trie.token(id)), id)).collect();
        by_run.retain(|(run, _)| *run > 0);
        by_run.sort_unstable_by(|one, other| other.cmp(one));
        DigitTokens { env: env.clone(), by_run }
    }
}

#[derive(Clone)]
pub struct NumberGuard {
    tokens: Arc<DigitTokens>,
    limits: Limits,
    /// None: outside of a schema's JSON.
    place: Option<Place>,
}

impl NumberGuard {
    pub fn new(tokens: &Arc<DigitTokens>, limits: Limits, begins: bool) -> Self {
        NumberGuard { tokens: tokens.clone(), limits, place: begins.then(Place::default) }
    }

    pub fn is_in_schema(&self) -> bool {
        self.place.is_some()
    }

    pub fn bytes(&self, token: u32) -> &[u8] {
        self.tokens.env.tok_trie().token(token)
    }

    /// None: a number has too many digits.
    fn after(&self, place: Place, token: u32) -> Option<Place> {
        let bytes = self.bytes(token);
        bytes.iter().try_fold(place, |place, byte| place.after(*byte, &self.limits))
    }

    pub fn accepts(&self, token: u32) -> bool {
        self.place.is_none_or(|place| self.after(place, token).is_some())
    }

    /// Accepts a token inside a schema's JSON.
    pub fn accept(&mut self, token: u32) {
        let next = self.place.and_then(|place| self.after(place, token));
        self.place = Some(next.unwrap_or_default());
    }

    /// Begins a schema's JSON with the bytes of a token from `from` on.
    pub fn enter(&mut self, token: u32, from: usize) {
        let step = |place: Place, byte: &u8| place.after(*byte, &self.limits).unwrap_or_default();
        self.place = Some(self.bytes(token)[from..].iter().fold(Place::default(), step));
    }

    /// Accepts a token after which no schema's JSON continues.
    pub fn leave(&mut self) {
        self.place = None;
    }

    pub fn restrict(&self, mask: &mut [u32]) {
        let Some(place) = self.place else {
            return;
        };
        let room = place.room(&self.limits);
        for (_, id) in self.tokens.by_run.iter().take_while(|(run, _)| *run > room) {
            let (word, bit) = (*id as usize / 32, 1 << (id % 32));
            if mask.get(word).is_some_and(|bits| bits & bit != 0) && !self.accepts(*id) {
                mask[word] &= !bit;
            }
        }
    }
}
