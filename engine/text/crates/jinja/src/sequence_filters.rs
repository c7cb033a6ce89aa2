// SPDX-License-Identifier: Apache-2.0
//! The filters of iterable values.

use super::arguments::{Args, Bound};
use super::budget;
use super::checks;
use super::dict::Dict;
use super::error::{fail, Result};
use super::filters;
use super::interpreter::Interpreter;
use super::number::as_index;
use super::operators::{binary, compare, is_equal};
use super::subscript;
use super::value::{Kind, Value};

pub fn apply(interpreter: &Interpreter, name: &str, value: &Value, args: Args) -> Result<Value> {
    match name {
        "batch" => batches(value, &args.bind(name, "linecount fill_with?")?),
        "slice" => slices(value, &args.bind(name, "slices fill_with?")?),
        "dictsort" => dict_sorted(value, &args.bind(name, "case_sensitive? by? reverse?")?),
        "first" | "last" => {
            args.bind(name, "")?;
            end_of(value, name)
        }
        "groupby" => groups(value, &args.bind(name, "attribute default? case_sensitive?")?),
        "items" => {
            args.bind(name, "")?;
            match value {
                Value::Undefined(_) => Value::generator(Vec::new()),
                Value::Dict(_) => Value::generator(pairs(value)?),
                _ => fail("Can only get item pairs from a mapping."),
            }
        }
        "list" => {
            args.bind(name, "")?;
            Value::list(value.iterate()?)
        }
        "map" => mapped(interpreter, value, args),
        "max" | "min" => extreme(value, name, &args.bind(name, "case_sensitive? attribute?")?),
        "reverse" => {
            args.bind(name, "")?;
            reversed(value)
        }
        "select" | "reject" | "selectattr" | "rejectattr" => selected(value, name, args),
        "sort" => {
            let bound = args.bind(name, "reverse? case_sensitive? attribute?")?;
            let keys = SortKeys { attribute: bound.get(2), is_cased: bound.is_true(1) };
            let items = value.iterate()?;
            let keyed = items.into_iter().map(|item| Ok((keys.all_of(&item)?, item)));
            let sorted = sorted(keyed.collect::<Result<_>>()?, bound.flag(0)?)?;
            Value::list(sorted.into_iter().map(|(_, item)| item).collect())
        }
        "sum" => sum(value, &args.bind(name, "attribute? start?")?),
        _ => unique(value, &args.bind(name, "case_sensitive? attribute?")?),
    }
}

/// The keys and values of a dict.
pub fn pairs(value: &Value) -> Result<Vec<Value>> {
    match value {
        Value::Dict(mapping) => {
            budget::spend_items(mapping.dict.len())?;
            let pair =
                |(key, value): (&Value, &Value)| Value::tuple(vec![key.clone(), value.clone()]);
            mapping.dict.iter().map(pair).collect()
        }
        Value::Undefined(missing) => Value::undefined_error(missing),
        _ => fail(format!("'{} object' has no attribute 'items'", value.type_name())),
    }
}

/// Follows a path such as `function.name`; a missing attribute gives `default`.
pub fn attribute_of(item: &Value, path: &Value, default: Option<&Value>) -> Result<Value> {
    let or_default = |found: Value| match default {
        Some(default) if found.is_undefined() => default.clone(),
        _ => found,
    };
    let Value::Str(path) = path else {
        return match path {
            Value::None => Ok(item.clone()),
            _ => Ok(or_default(subscript::item(item, path)?)),
        };
    };
    let mut found = item.clone();
    for part in path.text.split('.') {
        let is_number = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        let key = match part.parse() {
            Ok(number) if is_number => Value::Int(number),
            _ => Value::str(part),
        };
        found = or_default(subscript::item(&found, &key)?);
    }
    Ok(found)
}

/// The keys by which items are compared.
struct SortKeys<'a> {
    attribute: Option<&'a Value>,
    is_cased: bool,
}

impl SortKeys<'_> {
    fn without_case(&self, value: Value) -> Result<Value> {
        match &value {
            Value::Str(text) if !self.is_cased => {
                budget::spend_text(text.text.len())?;
                Ok(Value::str(text.text.to_lowercase()))
            }
            _ => Ok(value),
        }
    }

    fn of(&self, item: &Value, default: Option<&Value>) -> Result<Value> {
        let path = self.attribute.unwrap_or(&Value::None);
        self.without_case(attribute_of(item, path, default)?)
    }

    /// The key from several attributes, separated by commas.
    fn all_of(&self, item: &Value) -> Result<Value> {
        let Some(Value::Str(paths)) = self.attribute else {
            return Value::list(vec![self.of(item, None)?]);
        };
        let keys = paths
            .text
            .split(',')
            .map(|path| self.without_case(attribute_of(item, &Value::str(path), None)?));
        Value::list(keys.collect::<Result<_>>()?)
    }
}

/// Sorts by the first of each pair; the sort is stable.
pub fn sorted<T>(mut items: Vec<(Value, T)>, is_reverse: bool) -> Result<Vec<(Value, T)>> {
    if is_reverse {
        items.reverse();
    }
    let mut runs: Vec<Vec<(Value, T)>> = items.into_iter().map(|item| vec![item]).collect();
    while runs.len() > 1 {
        let mut merged = Vec::with_capacity(runs.len().div_ceil(2));
        let mut rest = runs.into_iter();
        while let Some(left) = rest.next() {
            merged.push(match rest.next() {
                Some(right) => merge(left, right)?,
                None => left,
            });
        }
        runs = merged;
    }
    let mut sorted = runs.pop().unwrap_or_default();
    if is_reverse {
        sorted.reverse();
    }
    Ok(sorted)
}

fn merge<T>(left: Vec<(Value, T)>, right: Vec<(Value, T)>) -> Result<Vec<(Value, T)>> {
    let mut out = Vec::with_capacity(left.len() + right.len());
    let (mut left, mut right) = (left.into_iter().peekable(), right.into_iter().peekable());
    while let (Some(a), Some(b)) = (left.peek(), right.peek()) {
        budget::spend(1)?;
        let is_right = compare("<", &b.0, &a.0)?;
        out.extend(if is_right { right.next() } else { left.next() });
    }
    out.extend(left);
    out.extend(right);
    Ok(out)
}

fn batches(value: &Value, bound: &Bound) -> Result<Value> {
    let size = bound.value(0);
    let is_full = |batch: &[Value]| is_equal(&size, &Value::int(batch.len() as i64));
    let mut found = Vec::new();
    let mut batch = Vec::new();
    for item in value.iterate()? {
        if is_full(&batch) {
            found.push(Value::list(std::mem::take(&mut batch))?);
        }
        batch.push(item);
    }
    if !batch.is_empty() {
        if let Some(fill) = bound.given(1) {
            let size = usize::try_from(as_index(&size)?).unwrap_or(0);
            budget::spend_items(size.saturating_sub(batch.len()))?;
            batch.resize(size.max(batch.len()), fill.clone());
        }
        found.push(Value::list(batch)?);
    }
    Value::generator(found)
}

fn slices(value: &Value, bound: &Bound) -> Result<Value> {
    let items = value.iterate()?;
    let count = as_index(&bound.value(0))?;
    if count == 0 {
        return fail("integer division or modulo by zero");
    }
    let Ok(count) = usize::try_from(count) else { return Value::generator(Vec::new()) };
    budget::spend_items(count)?;
    let (size, longer) = (items.len() / count, items.len() % count);
    let mut rest = items.into_iter();
    let mut found = Vec::new();
    for at in 0..count {
        let mut slice: Vec<Value> = rest.by_ref().take(size + usize::from(at < longer)).collect();
        if let Some(fill) = bound.given(1).filter(|_| at >= longer) {
            slice.push(fill.clone());
        }
        found.push(Value::list(slice)?);
    }
    Value::generator(found)
}

fn dict_sorted(value: &Value, bound: &Bound) -> Result<Value> {
    let part = match bound.str_or(1, "key")? {
        "key" => 0,
        "value" => 1,
        _ => return fail("You can only sort by either \"key\" or \"value\""),
    };
    let keys = SortKeys { attribute: Some(&Value::Int(part)), is_cased: bound.is_true(0) };
    let keyed = pairs(value)?.into_iter().map(|pair| Ok((keys.of(&pair, None)?, pair)));
    let sorted = sorted(keyed.collect::<Result<_>>()?, bound.flag(2)?)?;
    Value::list(sorted.into_iter().map(|(_, pair)| pair).collect())
}

fn end_of(value: &Value, name: &str) -> Result<Value> {
    let is_last = name == "last";
    let found = match value.kind() {
        Some(Kind::Iterator { .. }) if is_last => {
            return fail(format!("'{}' object is not reversible", value.type_name()))
        }
        Some(Kind::Iterator { items, .. }) => items.borrow_mut().pop_front(),
        _ => {
            let mut items = value.iterate()?.into_iter();
            if is_last {
                items.next_back()
            } else {
                items.next()
            }
        }
    };
    Ok(found.unwrap_or_else(|| Value::hint(format!("No {name} item, sequence was empty."))))
}

fn groups(value: &Value, bound: &Bound) -> Result<Value> {
    let default = bound.given(1);
    let attribute = bound.value(0);
    let keys = SortKeys { attribute: Some(&attribute), is_cased: bound.is_true(2) };
    let items = value.iterate()?;
    let keyed = items.into_iter().map(|item| Ok((keys.of(&item, default)?, item)));
    let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
    for (key, item) in sorted(keyed.collect::<Result<_>>()?, false)? {
        match groups.last_mut() {
            Some((last, items)) if is_equal(last, &key) => items.push(item),
            _ => groups.push((key, vec![item])),
        }
    }
    let group = |(_, items): (Value, Vec<Value>)| {
        let key = attribute_of(&items[0], &attribute, default)?;
        let items = Value::list(items)?;
        let inside = [key.clone(), items.clone()];
        Value::object(Kind::Group { key, items }, &inside)
    };
    Value::list(groups.into_iter().map(group).collect::<Result<_>>()?)
}

fn mapped(interpreter: &Interpreter, value: &Value, mut args: Args) -> Result<Value> {
    if !value.is_true() {
        return Value::generator(Vec::new());
    }
    let items = value.iterate()?;
    let is_attribute = args.named.iter().any(|(name, _)| **name == *"attribute");
    if args.positional.is_empty() && is_attribute {
        let bound = args.bind("map", "/attribute default?")?;
        let path = bound.value(0);
        let found = items.iter().map(|item| attribute_of(item, &path, bound.given(1)));
        return Value::generator(found.collect::<Result<_>>()?);
    }
    if args.positional.is_empty() {
        return fail("map requires a filter argument");
    }
    let name = args.positional.remove(0);
    let apply = |item| match name.as_str() {
        Some(name) => filters::apply(interpreter, name, item, args.clone()),
        None => fail("map: the filter's name is not a string"),
    };
    Value::generator(items.into_iter().map(apply).collect::<Result<_>>()?)
}

fn selected(value: &Value, name: &str, mut args: Args) -> Result<Value> {
    if !value.is_true() {
        return Value::generator(Vec::new());
    }
    let items = value.iterate()?;
    if name.ends_with("attr") && args.positional.is_empty() {
        return fail("Missing parameter for attribute name");
    }
    let path = if name.ends_with("attr") { args.positional.remove(0) } else { Value::None };
    let has_test = !args.positional.is_empty();
    let test = if has_test { args.positional.remove(0) } else { Value::None };
    let mut found = Vec::new();
    for item in items {
        let looked_at = attribute_of(&item, &path, None)?;
        let is_so = match test.as_str() {
            _ if !has_test => looked_at.is_true(),
            Some(test) => checks::apply(test, &looked_at, args.clone())?,
            None => return fail(format!("{name}: the test's name is not a string")),
        };
        if is_so == name.starts_with("select") {
            found.push(item);
        }
    }
    Value::generator(found)
}

fn extreme(value: &Value, name: &str, bound: &Bound) -> Result<Value> {
    let keys = SortKeys { attribute: bound.get(1), is_cased: bound.is_true(0) };
    let operator = if name == "max" { ">" } else { "<" };
    let mut best: Option<(Value, Value)> = None;
    for item in value.iterate()? {
        let key = keys.of(&item, None)?;
        let is_better = match &best {
            Some((best, _)) => compare(operator, &key, best)?,
            None => true,
        };
        if is_better {
            best = Some((key, item));
        }
    }
    Ok(best
        .map_or_else(|| Value::hint("No aggregated item, sequence was empty."), |(_, item)| item))
}

fn reversed(value: &Value) -> Result<Value> {
    let mut items = match value {
        Value::Str(text) => {
            budget::spend_text(text.text.len())?;
            let made: String = text.text.chars().rev().collect();
            return Ok(if text.is_markup { Value::markup(made) } else { Value::str(made) });
        }
        _ => value.iterate()?,
    };
    items.reverse();
    match value {
        Value::List(_) => Value::iterator("list_reverseiterator", items),
        Value::Dict(_) => Value::iterator("dict_reversekeyiterator", items),
        _ => match value.kind() {
            Some(Kind::Range(_)) => Value::iterator("range_iterator", items),
            Some(Kind::Iterator { .. }) => Value::list(items),
            _ => Value::iterator("reversed", items),
        },
    }
}

fn sum(value: &Value, bound: &Bound) -> Result<Value> {
    let start = bound.get(1).cloned().unwrap_or(Value::Int(0));
    if start.as_str().is_some() {
        return fail("sum() can't sum strings [use ''.join(seq) instead]");
    }
    let path = bound.value(0);
    value
        .iterate()?
        .iter()
        .try_fold(start, |sum, item| binary("+", &sum, &attribute_of(item, &path, None)?))
}

fn unique(value: &Value, bound: &Bound) -> Result<Value> {
    let keys = SortKeys { attribute: bound.get(1), is_cased: bound.is_true(0) };
    let mut seen = Dict::default();
    let mut found = Vec::new();
    for item in value.iterate()? {
        let key = keys.of(&item, None)?;
        if seen.get(&key)?.is_none() {
            seen.insert(key, Value::None)?;
            found.push(item);
        }
    }
    Value::generator(found)
}
