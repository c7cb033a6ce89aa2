// SPDX-License-Identifier: Apache-2.0
//! Decides which JSON schemas a client may use (`schema_dialect` handles drafts). Each keyword is
//! enforced by the library, is an annotation, or is refused with its name and location. The library
//! gets a new schema that contains only enforced keywords. Each target of a reference becomes a
//! definition of it.

use serde_json::{json, Map, Value};

use crate::schema_alternatives;
use crate::schema_dialect::{restated, Dialect};
use crate::schema_intersections;
use crate::schema_numbers::bounds;
use crate::schema_pattern::{self, translated};
use crate::schema_references::{localized, percent_decoded};
use crate::schema_sets::{self, add_part};
use crate::schema_values::{
    check_bounds, check_constant, count, format_rule, list, number, FormatRule, TYPES,
};

/// The hostname format of RFC 1123, which the library lacks.
const MAX_HOSTNAME_LENGTH: usize = 253;
const MAX_DEPTH: usize = 64;
const MAX_VALUES: usize = 10_000;
const MAX_ENTRIES: usize = 1000; // of an enum, of alternatives, of required, of properties: the
                                 // library takes quadratic time for these
const MAX_REFERENCES: usize = 500; // to different places
/// Nesting levels of all targets of references together: the library follows them on one stack.
const MAX_TARGET_LEVELS: usize = 1000;
/// Limits for items, lengths and similar: the library spells them out and needs memory for each.
const MAX_ITEMS: usize = 4096;
const MAX_ITEMS_TOGETHER: usize = 20_000;
const MAX_LENGTH: usize = 65_536;
/// Name patterns in total: the library compares each with each.
const MAX_NAME_PATTERNS: usize = 20;
/// Alternatives times values of a schema with other keywords: each alternative gets copies of the
/// values.
const MAX_COPIES: usize = 1_000_000;

const ANNOTATIONS: [&str; 24] = [
    "title",
    "description",
    "default",
    "example",
    "examples",
    "$comment",
    "deprecated",
    "readOnly",
    "writeOnly",
    "contentEncoding",
    "contentMediaType",
    "contentSchema",
    "$anchor",
    "$dynamicAnchor",
    "$defs",
    "definitions",
    "components",
    "discriminator",
    "xml",
    "externalDocs",
    "$vocabulary",
    "markdownDescription",
    "enumNames",
    "enumDescriptions",
];
const ALTERNATIVES: [&str; 3] = ["anyOf", "oneOf", "allOf"];
pub struct SchemaPolicy {
    /// The expression for whitespace between JSON tokens.
    pub whitespace: String,
}

impl SchemaPolicy {
    pub fn apply(&self, schema: &Value) -> Result<Value, String> {
        let dialect = Dialect::of(schema).map_err(|why| refused("", "$schema", why))?;
        let schema = &localized(schema, dialect);
        let mut walk = Walk::new(schema, dialect);
        let mut made = match walk.schema(schema, "", 0)? {
            Value::Bool(true) => Map::new(),
            Value::Bool(false) => return Err("the schema is false: nothing satisfies it".into()),
            Value::Object(made) => made,
            _ => return Err("a schema is an object or a boolean".into()),
        };
        let definitions = walk.definitions()?;
        if !definitions.is_empty() {
            made.insert("$defs".into(), Value::Object(definitions));
        }
        schema_intersections::check(&made)?;
        // One spelling per character: a key that is spelled differently would pass for another key.
        let options = json!({
            "whitespace_pattern": self.whitespace,
            "json_allowed_escapes": "nrbtf\\\""
        });
        made.insert("x-guidance".into(), options);
        Ok(Value::Object(made))
    }
}

struct Walk<'a> {
    root: &'a Value,
    dialect: Dialect,
    /// Targets of references as JSON pointers; number i is the definition "ri".
    targets: Vec<String>,
    values: usize,
    items: usize,
    name_patterns: usize,
    target_levels: usize,
    /// The definition being made, and the number of members or items from it to here.
    current: usize,
    inner: usize,
    /// (from, to) pairs of references that apply to the same value.
    same_value: Vec<(usize, usize)>,
}

fn refused(path: &str, key: &str, why: impl AsRef<str>) -> String {
    format!("{}: {key} {}", if path.is_empty() { "#" } else { path }, why.as_ref())
}

fn size_of(value: &Value) -> usize {
    match value {
        Value::Array(list) => 1 + list.iter().map(size_of).sum::<usize>(),
        Value::Object(object) => 1 + object.values().map(size_of).sum::<usize>(),
        _ => 1,
    }
}

fn levels_of(value: &Value) -> usize {
    match value {
        Value::Array(list) => 1 + list.iter().map(levels_of).max().unwrap_or(0),
        Value::Object(object) => 1 + object.values().map(levels_of).max().unwrap_or(0),
        _ => 0,
    }
}

impl<'a> Walk<'a> {
    fn new(root: &'a Value, dialect: Dialect) -> Self {
        Walk {
            root,
            dialect,
            targets: Vec::new(),
            values: 0,
            items: 0,
            name_patterns: 0,
            target_levels: 0,
            current: usize::MAX,
            inner: 0,
            same_value: Vec::new(),
        }
    }

    /// The definitions of all targets, including targets of targets.
    fn definitions(&mut self) -> Result<Map<String, Value>, String> {
        let mut made = Map::new();
        let mut next = 0;
        while next < self.targets.len() {
            let pointer = self.targets[next].clone();
            let target = self.root.pointer(&pointer).unwrap_or(&Value::Null);
            self.target_levels += levels_of(target);
            if self.target_levels > MAX_TARGET_LEVELS {
                let limit = format!("references lead through more than {MAX_TARGET_LEVELS} levels");
                return Err(refused(&format!("#{pointer}"), "$ref:", limit));
            }
            self.current = next;
            let target = self.schema(target, &pointer, 0)?;
            made.insert(format!("r{next}"), target);
            next += 1;
        }
        self.check_circles()?;
        Ok(made)
    }

    /// Refuses a definition that only refers to itself: it has no meaning, and the library might
    /// look for its end without limit.
    fn check_circles(&self) -> Result<(), String> {
        let mut open: Vec<bool> = vec![true; self.targets.len()];
        let mut changed = true;
        while changed {
            changed = false;
            for number in (0..open.len()).rev() {
                let leads_on = |(from, to): &(usize, usize)| *from == number && open[*to];
                if open[number] && !self.same_value.iter().any(leads_on) {
                    open[number] = false;
                    changed = true;
                }
            }
        }
        match open.iter().position(|is_open| *is_open) {
            Some(number) => {
                let pointer = &self.targets[number];
                Err(refused(&format!("#{pointer}"), "$ref", "refers back to itself"))
            }
            None => Ok(()),
        }
    }

    fn schema(&mut self, schema: &Value, path: &str, depth: usize) -> Result<Value, String> {
        let shown = format!("#{path}");
        if depth > MAX_DEPTH {
            return Err(format!("{shown}: the schema is nested more than {MAX_DEPTH} deep"));
        }
        self.values += 1;
        if self.values > MAX_VALUES {
            return Err(format!("the schema has more than {MAX_VALUES} values"));
        }
        let object = match schema {
            Value::Bool(_) => return Ok(schema.clone()),
            Value::Object(object) => object,
            _ => return Err(format!("{shown}: a schema is an object or a boolean")),
        };
        let fail = |(key, why): (&str, String)| refused(&shown, key, why);
        let mut object = restated(object, self.dialect).map_err(fail)?;
        if self.leads_to_false(&object) {
            return Ok(Value::Bool(false));
        }
        if schema_sets::excludes_all(&mut object).map_err(fail)? {
            return Ok(Value::Bool(false));
        }
        schema_sets::restate(&mut object, self.root).map_err(fail)?;
        schema_pattern::restate(&mut object);
        check_bounds(&object).map_err(fail)?;
        self.check_copies(&object, &shown)?;
        let nullable = object.shift_remove("nullable") == Some(Value::Bool(true));
        let made = self.keywords(&object, &Place { path, shown: &shown, depth })?;
        Ok(match nullable && self.dialect.has_nullable() {
            true => json!({"anyOf": [made, {"type": "null"}]}),
            false => made,
        })
    }

    fn keywords(&mut self, object: &Map<String, Value>, at: &Place) -> Result<Value, String> {
        let (limits, beside) = bounds(object).map_err(|(key, why)| refused(at.shown, key, why))?;
        let (mut plain, mut applied) = (Map::new(), Map::new());
        for (key, value) in object {
            if let Some(value) = self.applied(key, value, at)? {
                applied.insert(key.clone(), value);
            } else if let Some(value) = self.plain(key, value, at)? {
                plain.insert(key.clone(), value);
            }
        }
        plain.extend(limits);
        add_format(object, &mut plain, &mut applied);
        if let Some(beside) = beside {
            add_part(&mut applied, beside);
        }
        // The library intersects in this order, and additionalProperties must come after all the
        // members that it excludes.
        plain.extend(applied);
        Ok(Value::Object(plain))
    }

    fn check_copies(&self, object: &Map<String, Value>, shown: &str) -> Result<(), String> {
        if object.keys().filter(|key| !ANNOTATIONS.contains(&key.as_str())).count() < 2 {
            return Ok(());
        }
        let mut options = 1usize;
        for key in ["anyOf", "oneOf", "enum"] {
            let entries = object.get(key).and_then(Value::as_array).map_or(1, Vec::len);
            options = options.saturating_mul(entries.max(1));
        }
        let all_of = object.get("allOf").and_then(Value::as_array);
        for part in all_of.into_iter().flatten() {
            for key in ["anyOf", "oneOf", "enum"] {
                let entries = part.get(key).and_then(Value::as_array).map_or(1, Vec::len);
                options = options.saturating_mul(entries.max(1));
            }
        }
        let values: usize = object.values().map(size_of).sum();
        if options > 1 && options.saturating_mul(values) > MAX_COPIES {
            let why = format!("has {options} alternatives beside {values} values: too many");
            return Err(refused(shown, "the schema", why));
        }
        Ok(())
    }

    /// Keywords that contain schemas of the same value.
    fn applied(&mut self, key: &str, value: &Value, at: &Place) -> Result<Option<Value>, String> {
        let fail = |why: String| refused(at.shown, key, why);
        if key == "const" {
            check_constant(value).map_err(fail)?;
            self.count_values(value)?;
            return Ok(Some(value.clone()));
        }
        if key == "enum" {
            let entries = list(value, MAX_ENTRIES).map_err(fail)?;
            entries.iter().try_for_each(check_constant).map_err(fail)?;
            self.count_values(value)?;
            return Ok(Some(value.clone()));
        }
        if key == "$ref" {
            return self.reference(value, at).map(Some);
        }
        if !ALTERNATIVES.contains(&key) {
            return Ok(None);
        }
        let entries = list(value, MAX_ENTRIES).map_err(fail)?;
        let mut made = Vec::new();
        for (i, entry) in entries.iter().enumerate() {
            let target = schema_alternatives::lone_reference(entry).filter(|_| key == "oneOf");
            let target = target.and_then(|pointer| self.root.pointer(&percent_decoded(pointer)?));
            let path = format!("{}/{key}/{i}", at.path);
            made.push(self.schema(target.unwrap_or(entry), &path, at.depth + 1)?);
        }
        if key == "oneOf" {
            let excluded = schema_alternatives::excluded_members(entries, self.root);
            for (made, names) in made.iter_mut().zip(excluded) {
                schema_alternatives::without_members(made, &names);
            }
        }
        Ok(Some(Value::Array(made)))
    }

    fn count_values(&mut self, value: &Value) -> Result<(), String> {
        self.values += size_of(value);
        if levels_of(value) > MAX_DEPTH || self.values > MAX_VALUES {
            return Err(format!(
                "the schema has more than {MAX_VALUES} values or {MAX_DEPTH} levels"
            ));
        }
        Ok(())
    }

    /// The library refuses a definition that is false, also where nothing needs it.
    fn leads_to_false(&self, object: &Map<String, Value>) -> bool {
        let reference = object.get("$ref").and_then(Value::as_str);
        let pointer = reference.and_then(|text| text.strip_prefix('#')).and_then(percent_decoded);
        pointer.and_then(|pointer| self.root.pointer(&pointer)) == Some(&Value::Bool(false))
    }

    fn reference(&mut self, value: &Value, at: &Place) -> Result<Value, String> {
        let fail = |why: &str| refused(at.shown, "$ref", why);
        let text = value.as_str().ok_or_else(|| fail("is not a string"))?;
        let pointer = text.strip_prefix('#').and_then(percent_decoded);
        let Some(pointer) = pointer.filter(|pointer| self.root.pointer(pointer).is_some()) else {
            return Err(fail(&format!("leads to {text}, which is not in the schema")));
        };
        let known = self.targets.iter().position(|target| *target == pointer);
        let number = known.unwrap_or(self.targets.len());
        if known.is_none() {
            if number == MAX_REFERENCES {
                let why = format!("leads to more than {MAX_REFERENCES} places");
                return Err(fail(&why));
            }
            self.targets.push(pointer);
        }
        if self.current != usize::MAX && self.inner == 0 {
            self.same_value.push((self.current, number));
        }
        Ok(Value::from(format!("#/$defs/r{number}")))
    }

    /// All other keywords; None for one that changes nothing.
    fn plain(&mut self, key: &str, value: &Value, at: &Place) -> Result<Option<Value>, String> {
        let fail = |why: String| refused(at.shown, key, why);
        match key {
            "type" => check_type(value).map_err(fail)?,
            "minLength" | "maxLength" => return count(value, MAX_LENGTH).map(Some).map_err(fail),
            "minProperties" | "maxProperties" => {
                return count(value, MAX_ITEMS).map(Some).map_err(fail);
            }
            "minItems" | "maxItems" => {
                let items = count(value, MAX_ITEMS).map_err(fail)?;
                self.items += items.as_u64().unwrap_or(0) as usize;
                if self.items > MAX_ITEMS_TOGETHER {
                    return Err(fail(format!("and the like are more than {MAX_ITEMS_TOGETHER}")));
                }
                return Ok(Some(items));
            }
            "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => return Ok(None),
            "multipleOf" => number(value).map_err(fail)?,
            "pattern" => {
                let pattern = value.as_str().ok_or_else(|| fail("is not a string".into()))?;
                return translated(pattern).map(|made| Some(made.into())).map_err(fail);
            }
            "format" => return Ok(format_rule(value).map_err(fail)?.kept(value)),
            "required" => check_names(value).map_err(fail)?,
            "properties" | "patternProperties" => {
                return self.property_map(key, value, at).map(Some);
            }
            "additionalProperties" | "items" => {
                return self.part(value, format!("{}/{key}", at.path), at).map(Some);
            }
            "prefixItems" => {
                let mut made = Vec::new();
                for (i, entry) in list(value, MAX_ENTRIES).map_err(fail)?.iter().enumerate() {
                    made.push(self.part(entry, format!("{}/{key}/{i}", at.path), at)?);
                }
                return Ok(Some(Value::Array(made)));
            }
            _ => return check_annotation(key, value, at).map(|()| None),
        }
        Ok(Some(value.clone()))
    }

    /// The schema of a member or an item.
    fn part(&mut self, schema: &Value, path: String, at: &Place) -> Result<Value, String> {
        self.inner += 1;
        let made = self.schema(schema, &path, at.depth + 1);
        self.inner -= 1;
        made
    }

    fn property_map(&mut self, key: &str, value: &Value, at: &Place) -> Result<Value, String> {
        let fail = |why: String| refused(at.shown, key, why);
        let object = value.as_object().ok_or_else(|| fail("is not an object".into()))?;
        if object.len() > MAX_ENTRIES {
            let found = object.len();
            return Err(fail(format!("has {found} entries; allowed: at most {MAX_ENTRIES}")));
        }
        if key == "patternProperties" {
            self.name_patterns += object.len();
            if self.name_patterns > MAX_NAME_PATTERNS {
                return Err(fail(format!("and the like are more than {MAX_NAME_PATTERNS}")));
            }
        }
        let mut made = Map::new();
        for (name, schema) in object {
            let checked = match key {
                "properties" => Ok(name.clone()),
                _ => translated(name),
            };
            let kept = checked.map_err(|why| fail(format!("{name:?} {why}")))?;
            let escaped = name.replace('~', "~0").replace('/', "~1");
            let path = format!("{}/{key}/{escaped}", at.path);
            let part = self.part(schema, path, at)?;
            if made.insert(kept, part).is_some() {
                return Err(fail(format!("{name:?} is the same as one before it")));
            }
        }
        Ok(Value::Object(made))
    }
}

struct Place<'a> {
    path: &'a str,
    shown: &'a str,
    depth: usize,
}

fn check_type(value: &Value) -> Result<(), String> {
    let single = [value.clone()];
    let types = value.as_array().map_or(&single[..], Vec::as_slice);
    let known = |entry: &Value| entry.as_str().is_some_and(|name| TYPES.contains(&name));
    if types.is_empty() || !types.iter().all(known) {
        return Err(format!("is not one of {TYPES:?} or a list of them"));
    }
    Ok(())
}

fn check_names(value: &Value) -> Result<(), String> {
    let names = value.as_array().ok_or("is not a list of strings")?;
    if names.len() > MAX_ENTRIES {
        return Err(format!("has {} entries; allowed: at most {MAX_ENTRIES}", names.len()));
    }
    match names.iter().all(Value::is_string) {
        true => Ok(()),
        false => Err("is not a list of strings".into()),
    }
}

fn check_annotation(key: &str, value: &Value, at: &Place) -> Result<(), String> {
    let changes_nothing = match key {
        "uniqueItems" => value == &Value::Bool(false),
        "unevaluatedProperties" | "unevaluatedItems" => value == &Value::Bool(true),
        "$schema" => at.path.is_empty(),
        "$id" | "id" => at.path.is_empty(),
        _ => ANNOTATIONS.contains(&key) || (key.starts_with("x-") && key != "x-guidance"),
    };
    if changes_nothing {
        return Ok(());
    }
    Err(refused(at.shown, key, "is not supported by this server"))
}

/// Formats that the library checks less exactly than their standard are replaced by our patterns.
fn add_format(
    object: &Map<String, Value>,
    plain: &mut Map<String, Value>,
    applied: &mut Map<String, Value>,
) {
    if object.get("format").is_some_and(|name| name == "hostname") {
        add_part(applied, json!({"maxLength": MAX_HOSTNAME_LENGTH}));
    }
    let Some(Ok(FormatRule::Pattern(pattern))) = object.get("format").map(format_rule) else {
        return;
    };
    if !plain.contains_key("pattern") {
        plain.insert("pattern".into(), Value::from(pattern));
        return;
    }
    add_part(applied, json!({"pattern": pattern}));
}
