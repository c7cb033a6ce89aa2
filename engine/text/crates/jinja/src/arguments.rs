// SPDX-License-Identifier: Apache-2.0
//! The arguments of a call, assigned to the parameters of the callee.

use super::ast::Name;
use super::error::{fail, Result};
use super::number::as_index;
use super::value::Value;

#[derive(Clone, Default)]
pub struct Args {
    pub positional: Vec<Value>,
    pub named: Vec<(Name, Value)>,
}

/// One value for each parameter; None: it is not given.
pub struct Bound {
    function: String,
    values: Vec<Option<Value>>,
}

impl Args {
    /// `parameters`: names. A `?` marks an optional one; a `/` follows the positional-only ones.
    pub fn bind(self, function: &str, parameters: &str) -> Result<Bound> {
        let (unnamed, rest) = parameters.split_once('/').unwrap_or(("", parameters));
        let num_unnamed = unnamed.split_whitespace().count();
        let all: Vec<&str> = unnamed.split_whitespace().chain(rest.split_whitespace()).collect();
        if self.positional.len() > all.len() {
            return fail(format!(
                "{function}() takes at most {} arguments ({} given)",
                all.len(),
                self.positional.len()
            ));
        }
        let mut values: Vec<Option<Value>> = self.positional.into_iter().map(Some).collect();
        values.resize_with(all.len(), || None);
        for (name, value) in self.named {
            let place = all
                .iter()
                .skip(num_unnamed)
                .position(|other| other.strip_suffix('?').unwrap_or(other) == &*name);
            let Some(place) = place.map(|at| at + num_unnamed) else {
                return fail(format!("{function}() got an unexpected keyword argument '{name}'"));
            };
            if values[place].is_some() {
                return fail(format!("{function}() got multiple values for argument '{name}'"));
            }
            values[place] = Some(value);
        }
        for (name, value) in all.iter().zip(&values) {
            if value.is_none() && !name.ends_with('?') {
                return fail(format!("{function}() missing 1 required argument: '{name}'"));
            }
        }
        Ok(Bound { function: function.to_string(), values })
    }
}

impl Bound {
    pub fn get(&self, at: usize) -> Option<&Value> {
        self.values[at].as_ref()
    }

    /// Like get, but treats None as not given.
    pub fn given(&self, at: usize) -> Option<&Value> {
        self.get(at).filter(|value| !matches!(value, Value::None))
    }

    /// The value of a required parameter.
    pub fn value(&self, at: usize) -> Value {
        self.values[at].clone().unwrap_or(Value::None)
    }

    pub fn is_true(&self, at: usize) -> bool {
        self.get(at).is_some_and(Value::is_true)
    }

    pub fn str(&self, at: usize) -> Result<&str> {
        match self.get(at) {
            Some(Value::Str(text)) => Ok(&text.text),
            other => fail(format!(
                "{}() argument {} must be str, not {}",
                self.function,
                at + 1,
                other.map_or("missing", Value::type_name)
            )),
        }
    }

    pub fn str_or<'a>(&'a self, at: usize, default: &'a str) -> Result<&'a str> {
        match self.get(at) {
            None => Ok(default),
            Some(_) => self.str(at),
        }
    }

    /// A width or a count: one that is too large is an error.
    pub fn int_or(&self, at: usize, default: i64) -> Result<i64> {
        match self.get(at) {
            Some(Value::Big(_)) => fail("Python int too large to convert to C ssize_t"),
            Some(value) => as_index(value),
            None => Ok(default),
        }
    }

    /// The truth value of an integer parameter, as in Python's own functions.
    pub fn flag(&self, at: usize) -> Result<bool> {
        Ok(self.int_or(at, 0)? != 0)
    }
}
