// SPDX-License-Identifier: Apache-2.0
//! Python's range.

use super::error::{fail, Result};
use super::value::Value;

/// The limit of Jinja2's sandbox.
const MAX_ITEMS: usize = 100_000;

#[derive(Clone, Copy)]
pub struct Range {
    pub start: i64,
    pub stop: i64,
    pub step: i64,
}

impl Range {
    /// A range from one, two or three numbers.
    pub fn new(numbers: &[i64]) -> Result<Self> {
        let (start, stop, step) = match numbers {
            [stop] => (0, *stop, 1),
            [start, stop] => (*start, *stop, 1),
            [start, stop, step] => (*start, *stop, *step),
            _ => return fail("range expected 1 to 3 arguments"),
        };
        if step == 0 {
            return fail("range() arg 3 must not be zero");
        }
        let range = Range { start, stop, step };
        if range.len() > MAX_ITEMS {
            return fail(format!("a range has more than {MAX_ITEMS} items"));
        }
        Ok(range)
    }

    pub fn len(&self) -> usize {
        let (start, stop, step) =
            (i128::from(self.start), i128::from(self.stop), i128::from(self.step));
        let count = if step > 0 {
            (stop - start + step - 1).div_euclid(step)
        } else {
            (start - stop - step - 1).div_euclid(-step)
        };
        usize::try_from(count.max(0)).unwrap_or(usize::MAX)
    }

    pub fn at(&self, index: usize) -> Value {
        Value::Int(self.start + index as i64 * self.step)
    }

    pub fn iter(&self) -> impl Iterator<Item = Value> + '_ {
        (0..self.len()).map(|index| self.at(index))
    }

    /// Whether both have the same items.
    pub fn is_equal(&self, other: &Self) -> bool {
        let len = self.len();
        len == other.len()
            && (len == 0 || self.start == other.start)
            && (len <= 1 || self.step == other.step)
    }

    pub fn text(&self) -> String {
        match self.step {
            1 => format!("range({}, {})", self.start, self.stop),
            _ => format!("range({}, {}, {})", self.start, self.stop, self.step),
        }
    }
}
