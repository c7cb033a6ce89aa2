// SPDX-License-Identifier: Apache-2.0
//! Limits the keywords that apply to one value together, through allOf and the like. The library
//! combines all patterns of a string into one expression, whose first step takes time exponential
//! in their number. It also combines all steps of a number into their least common multiple, which
//! takes time by its size. The library's fuel bounds neither.

use std::collections::HashMap;

use serde_json::{Map, Value};

const MAX_PATTERNS: usize = 10;
const MAX_STEP: u64 = 10_000;

/// `made`: a schema whose references all point into its `$defs`.
pub fn check(made: &Map<String, Value>) -> Result<(), String> {
    let definitions = made.get("$defs").and_then(Value::as_object);
    let found = Counter { definitions, known: HashMap::new() }.of_object(made);
    if found.patterns > MAX_PATTERNS {
        return Err(format!(
            "#: pattern and format: up to {} of them may hold for one string, through allOf and \
             the like; allowed: at most {MAX_PATTERNS}",
            found.patterns
        ));
    }
    if found.step > MAX_STEP {
        return Err(format!(
            "#: multipleOf: the digits of the steps that may hold for one number come to {}, \
             multiplied; allowed: at most {MAX_STEP} beside powers of ten",
            found.step
        ));
    }
    Ok(())
}

/// An upper bound of the keywords that apply to any one value at or below a schema.
#[derive(Clone, Copy)]
struct Load {
    patterns: usize,
    step: u64,
}

const NOTHING: Load = Load { patterns: 0, step: 1 };

impl Load {
    fn or(self, other: Load) -> Load {
        Load { patterns: self.patterns.max(other.patterns), step: self.step.max(other.step) }
    }

    fn and(self, other: Load) -> Load {
        let step = self.step.saturating_mul(other.step);
        Load { patterns: self.patterns + other.patterns, step }
    }
}

/// The digits of a step as a whole number; 1 for a power of ten, which costs nothing.
fn digits_of(step: f64) -> u64 {
    let shown = format!("{:e}", step.abs());
    let (digits, exponent) = shown.split_once('e').unwrap_or((&shown, "0"));
    let places = digits.len().saturating_sub(2) as i32; // behind the point
    let zeros = exponent.parse::<i32>().unwrap_or(0) - places;
    let digits = digits.replace('.', "").parse::<u64>().unwrap_or(u64::MAX);
    if digits == 1 {
        return 1;
    }
    digits.saturating_mul(10u64.checked_pow(zeros.max(0) as u32).unwrap_or(u64::MAX))
}

struct Counter<'a> {
    definitions: Option<&'a Map<String, Value>>,
    /// The loads of definitions. A definition that is being counted has load zero, so a reference
    /// back to it adds nothing.
    known: HashMap<&'a str, Load>,
}

impl<'a> Counter<'a> {
    fn of(&mut self, schema: &'a Value) -> Load {
        schema.as_object().map_or(NOTHING, |object| self.of_object(object))
    }

    fn of_object(&mut self, object: &'a Map<String, Value>) -> Load {
        let keys = ["pattern", "format"];
        let patterns = keys.iter().filter(|key| object.contains_key(**key)).count();
        let step = object.get("multipleOf").and_then(Value::as_f64).map_or(1, digits_of);
        let mut members = self.any(object.get("properties"));
        if let Some(names) = object.get("patternProperties") {
            members = members.and(self.all(names));
        }
        let mut here = Load { patterns, step }.or(members);
        for key in ["additionalProperties", "items"] {
            here = here.or(object.get(key).map_or(NOTHING, |part| self.of(part)));
        }
        here = here.or(self.any(object.get("prefixItems")));
        if let Some(parts) = object.get("allOf") {
            here = here.and(self.all(parts));
        }
        for key in ["anyOf", "oneOf"] {
            here = here.and(self.any(object.get(key)));
        }
        match object.get("$ref").and_then(Value::as_str) {
            Some(reference) => here.and(self.of_reference(reference)),
            None => here,
        }
    }

    fn any(&mut self, parts: Option<&'a Value>) -> Load {
        let parts = parts.map_or(Vec::new(), parts_of);
        parts.into_iter().fold(NOTHING, |load, part| load.or(self.of(part)))
    }

    fn all(&mut self, parts: &'a Value) -> Load {
        parts_of(parts).into_iter().fold(NOTHING, |load, part| load.and(self.of(part)))
    }

    fn of_reference(&mut self, reference: &'a str) -> Load {
        let name = reference.trim_start_matches("#/$defs/");
        if let Some(load) = self.known.get(name) {
            return *load;
        }
        let target = self.definitions.and_then(|all| all.get(name));
        self.known.insert(name, NOTHING);
        let load = target.map_or(NOTHING, |target| self.of(target));
        self.known.insert(name, load);
        load
    }
}

fn parts_of(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(list) => list.iter().collect(),
        Value::Object(object) => object.values().collect(),
        _ => Vec::new(),
    }
}
