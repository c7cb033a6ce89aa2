// SPDX-License-Identifier: Apache-2.0
//! Python's dict: in order of insertion, with keys that are equal as Python has it, so 1, 1.0 and
//! True are one key.

use std::hash::{Hash, Hasher};
use std::rc::Rc;

use indexmap::{Equivalent, IndexMap};
use num_traits::ToPrimitive;

use super::budget;
use super::error::{fail, Result};
use super::operators::is_equal;
use super::value::{Kind, Value, View};

#[derive(Clone)]
struct Key(Value);

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        is_equal(&self.0, &other.0)
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        hash_value(&self.0, state);
    }
}

struct StrKey<'a>(&'a str);

impl Hash for StrKey<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl Equivalent<Key> for StrKey<'_> {
    fn equivalent(&self, key: &Key) -> bool {
        key.0.as_str() == Some(self.0)
    }
}

fn hash_value<H: Hasher>(value: &Value, state: &mut H) {
    match value {
        Value::Bool(value) => i64::from(*value).hash(state),
        Value::Int(value) => value.hash(state),
        Value::Float(value) if value.fract() == 0.0 && value.abs() < 9e18 => {
            (*value as i64).hash(state)
        }
        Value::Float(value) => value.to_bits().hash(state),
        // A float may be equal to it.
        Value::Big(value) => value.to_f64().map(f64::to_bits).hash(state),
        Value::Str(text) => text.text.hash(state),
        Value::Tuple(items) => {
            for item in &items.values {
                hash_value(item, state);
            }
        }
        Value::Object(object) => match &object.kind {
            Kind::Group { key, items } => {
                hash_value(key, state);
                hash_value(items, state);
            }
            _ => Rc::as_ptr(object).hash(state),
        },
        Value::Undefined(_) | Value::None | Value::List(_) | Value::Dict(_) => 0.hash(state),
    }
}

/// A TypeError unless the value can be a key.
pub fn check_hashable(value: &Value) -> Result<()> {
    budget::spend(1)?;
    match value {
        Value::Str(text) => budget::spend_text(text.text.len()),
        Value::List(_) | Value::Dict(_) => {
            fail(format!("unhashable type: '{}'", value.type_name()))
        }
        Value::Tuple(items) => items.values.iter().try_for_each(check_hashable),
        Value::Object(object) => match &object.kind {
            Kind::Group { .. } => fail("unhashable type: 'list'"),
            Kind::View(View::Keys | View::Items, _) => {
                fail(format!("unhashable type: '{}'", value.type_name()))
            }
            _ => Ok(()),
        },
        _ => Ok(()),
    }
}

#[derive(Clone, Default)]
pub struct Dict(IndexMap<Key, Value>);

impl Dict {
    pub fn insert(&mut self, key: Value, value: Value) -> Result<()> {
        check_hashable(&key)?;
        self.0.insert(Key(key), value);
        Ok(())
    }

    pub fn insert_str(&mut self, key: &str, value: Value) {
        self.0.insert(Key(Value::str(key)), value);
    }

    pub fn get(&self, key: &Value) -> Result<Option<&Value>> {
        check_hashable(key)?;
        Ok(self.0.get(&Key(key.clone())))
    }

    pub fn get_str(&self, key: &str) -> Option<&Value> {
        self.0.get(&StrKey(key))
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&Value, &Value)> {
        self.0.iter().map(|(key, value)| (&key.0, value))
    }

    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &Value> {
        self.0.keys().map(|key| &key.0)
    }

    pub fn values(&self) -> impl DoubleEndedIterator<Item = &Value> {
        self.0.values()
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }
}
