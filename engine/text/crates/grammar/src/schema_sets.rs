// SPDX-License-Identifier: Apache-2.0
//! Expresses `uniqueItems` and `propertyNames`, which the library lacks, with keywords that it has.
//! Lists of a few constants are enumerated; names become members or a pattern of names.

use serde_json::{json, Map, Value};

use crate::schema_values::{name_pattern, TYPES};

/// The maximum number of enumerated lists.
const MAX_LISTS: usize = 130;
const MAX_HOPS: usize = 16; // of references

type Fault = (&'static str, String);

fn says_all(schema: &Value) -> bool {
    schema.as_object().map_or(schema == &Value::Bool(true), Map::is_empty)
}

/// Removes `not` from the object and returns whether it excludes everything. A `not` of a number's
/// constants, or of a schema that allows all values or none, is expressed by other keywords. Any
/// other one is an error.
pub fn excludes_all(object: &mut Map<String, Value>) -> Result<bool, Fault> {
    let Some(not) = object.shift_remove("not") else {
        return Ok(false);
    };
    if says_all(&not) || not == Value::Bool(false) {
        return Ok(not != Value::Bool(false));
    }
    let is_number = object.get("type").is_some_and(|name| name == "integer" || name == "number");
    let only_constants =
        not.as_object().is_some_and(|not| not.keys().all(|key| key == "const" || key == "enum"));
    match values_of(&not, &Value::Null).filter(|_| is_number && only_constants) {
        Some(values) => {
            for value in values.into_iter().filter(Value::is_number) {
                let sides =
                    [json!({"exclusiveMaximum": value}), json!({"exclusiveMinimum": value})];
                let kind = object["type"].clone();
                let sides = sides.map(|mut side| {
                    side["type"] = kind.clone();
                    side
                });
                add_part(object, json!({"anyOf": sides}));
            }
            Ok(false)
        }
        None => Err(("not", "is supported only of {}, booleans and a number's constants".into())),
    }
}

/// Follows the schema's references; the schema itself if it has none.
pub fn resolved<'a>(schema: &'a Value, root: &'a Value) -> &'a Value {
    let mut found = schema;
    for _ in 0..MAX_HOPS {
        let pointer = found.get("$ref").and_then(Value::as_str).and_then(|r| r.strip_prefix('#'));
        match pointer.and_then(|pointer| root.pointer(pointer)) {
            Some(target) => found = target,
            None => break,
        }
    }
    found
}

/// All values of a schema that lists them.
pub fn values_of(schema: &Value, root: &Value) -> Option<Vec<Value>> {
    let object = resolved(schema, root).as_object()?;
    let mut found = Vec::new();
    for key in ["anyOf", "oneOf"] {
        for part in object.get(key).and_then(Value::as_array).into_iter().flatten() {
            found.extend(values_of(part, root)?);
        }
    }
    match (object.get("const"), object.get("enum"), object.get("type").and_then(Value::as_str)) {
        (Some(value), ..) => found.push(value.clone()),
        (_, Some(Value::Array(values)), _) => found.extend(values.iter().cloned()),
        (.., Some("boolean")) => found.extend([json!(true), json!(false)]),
        (.., Some("null")) => found.push(Value::Null),
        _ if found.is_empty() => return None,
        _ => {}
    }
    Some(found)
}

/// Equality as in JSON Schema: 1 and 1.0 are equal.
pub fn is_same(one: &Value, other: &Value) -> bool {
    match (one.as_f64(), other.as_f64()) {
        (Some(one), Some(other)) => one == other,
        _ => one == other,
    }
}

pub fn restate(object: &mut Map<String, Value>, root: &Value) -> Result<(), Fault> {
    if object.get("unevaluatedProperties") == Some(&Value::Bool(false)) {
        restate_unevaluated(object, root).map_err(|why| ("unevaluatedProperties", why))?;
    }
    if object.get("uniqueItems") == Some(&Value::Bool(true)) {
        restate_unique(object, root).map_err(|why| ("uniqueItems", why))?;
    }
    if let Some(names) = object.shift_remove("propertyNames") {
        restate_names(object, &names, root).map_err(|why| ("propertyNames", why))?;
    }
    Ok(())
}

/// Lists of `min` to `max` of the values without repetition: in any order if there are few,
/// otherwise in the given order.
fn lists_of(values: &[Value], min: usize, max: usize) -> Option<Vec<Value>> {
    [true, false].into_iter().find_map(|any_order| {
        let mut made = Vec::new();
        let mut open: Vec<Vec<usize>> = vec![Vec::new()];
        while let Some(list) = open.pop() {
            if made.len() + open.len() > MAX_LISTS {
                return None;
            }
            if list.len() < max {
                let first = if any_order { 0 } else { list.last().map_or(0, |last| last + 1) };
                let next = (first..values.len()).filter(|i| !list.contains(i));
                open.extend(next.map(|i| [list.as_slice(), &[i]].concat()));
            }
            if list.len() >= min {
                made.push(list.iter().map(|i| values[*i].clone()).collect());
            }
        }
        Some(made)
    })
}

fn restate_unique(object: &mut Map<String, Value>, root: &Value) -> Result<(), String> {
    let types: Vec<Value> = match object.get("type") {
        Some(Value::Array(names)) => names.clone(),
        Some(name) => vec![name.clone()],
        None => TYPES.into_iter().map(Value::from).collect(),
    };
    let count = |key: &str| object.get(key).and_then(Value::as_f64).map(|count| count as usize);
    let prefix = object.get("prefixItems").and_then(Value::as_array).map_or(0, Vec::len);
    let closed = object.get("items") == Some(&Value::Bool(false));
    let longest =
        count("maxItems").unwrap_or(usize::MAX).min(if closed { prefix } else { usize::MAX });
    if longest <= 1 || !types.contains(&json!("array")) {
        object.shift_remove("uniqueItems");
        return Ok(());
    }
    let items = object.get("items").filter(|_| prefix == 0);
    let mut values: Vec<Value> = Vec::new();
    for value in items.and_then(|items| values_of(items, root)).unwrap_or_default() {
        if !values.iter().any(|known| is_same(known, &value)) {
            values.push(value);
        }
    }
    let lists = if values.is_empty() {
        None
    } else {
        lists_of(&values, count("minItems").unwrap_or(0), longest)
    };
    let lists = lists.ok_or(
        "is enforced only where one item can come at most, or items that are a few constants",
    )?;
    let others: Vec<Value> = types.into_iter().filter(|name| name != "array").collect();
    let part = json!({"anyOf": [{"enum": lists}, {"type": others}]});
    let part = if others.is_empty() { part["anyOf"][0].clone() } else { part };
    object.shift_remove("uniqueItems");
    add_part(object, part);
    Ok(())
}

/// Adds a schema that must hold too.
pub fn add_part(object: &mut Map<String, Value>, part: Value) {
    let all_of = object.entry("allOf").or_insert_with(|| Value::Array(Vec::new()));
    if let Some(parts) = all_of.as_array_mut() {
        parts.push(part);
    }
}

fn restate_names(
    object: &mut Map<String, Value>,
    names: &Value,
    root: &Value,
) -> Result<(), String> {
    let names = resolved(names, root);
    if says_all(names) {
        return Ok(());
    }
    if let Some(values) = values_of(names, root) {
        return restate_listed(object, &values);
    }
    let empty = Map::new();
    let rules = match names {
        Value::Bool(_) => return restate_listed(object, &[]),
        _ => names.as_object().unwrap_or(&empty),
    };
    let known = ["type", "pattern", "format", "minLength", "maxLength"];
    let notes = ["$schema", "$comment", "title", "description", "examples", "default"];
    let unknown =
        rules.keys().find(|key| !known.contains(&key.as_str()) && !notes.contains(&key.as_str()));
    if let Some(key) = unknown {
        return Err(format!("has {key}; supported are lists of names, {known:?}"));
    }
    let pattern = match name_pattern(rules)? {
        None => return Ok(()),
        Some(pattern) => pattern,
    };
    if ["properties", "patternProperties"].iter().any(|key| object.contains_key(*key)) {
        return Err("of a pattern is not supported beside properties or patternProperties".into());
    }
    let rest = object.shift_remove("additionalProperties").unwrap_or(Value::Bool(true));
    object.insert("patternProperties".into(), json!({pattern: rest}));
    object.insert("additionalProperties".into(), Value::Bool(false));
    Ok(())
}

fn restate_listed(object: &mut Map<String, Value>, names: &[Value]) -> Result<(), String> {
    if object.contains_key("patternProperties") {
        return Err("is not supported beside patternProperties".into());
    }
    let rest = object.shift_remove("additionalProperties").unwrap_or(Value::Bool(true));
    let known = object.shift_remove("properties").unwrap_or_default();
    let members = names
        .iter()
        .filter_map(Value::as_str)
        .map(|name| (name.to_string(), known.get(name).unwrap_or(&rest).clone()));
    object.insert("properties".into(), Value::Object(members.collect()));
    object.insert("additionalProperties".into(), Value::Bool(false));
    Ok(())
}

/// The members named by a schema and by the parts that apply with it.
fn named_members(schema: &Value, root: &Value, hops: usize) -> Result<Vec<String>, String> {
    const OPEN: [&str; 8] = [
        "anyOf",
        "oneOf",
        "patternProperties",
        "if",
        "not",
        "dependentSchemas",
        "unevaluatedProperties",
        "$dynamicRef",
    ];
    let object = schema.as_object().ok_or("is supported only beside schemas with properties")?;
    let is_open = object.get("additionalProperties").is_some_and(|rest| rest != false);
    if hops == 0 || is_open || OPEN.iter().any(|key| object.contains_key(*key)) {
        return Err("is supported only beside properties, allOf and $ref of such".into());
    }
    let members = object.get("properties").and_then(Value::as_object);
    let mut names: Vec<String> = members.into_iter().flat_map(Map::keys).cloned().collect();
    for part in object.get("allOf").and_then(Value::as_array).into_iter().flatten() {
        names.extend(named_members(part, root, hops - 1)?);
    }
    if let Some(target) = object.get("$ref").and_then(Value::as_str) {
        let target = target.strip_prefix('#').and_then(|pointer| root.pointer(pointer));
        names.extend(named_members(target.unwrap_or(&Value::Null), root, hops - 1)?);
    }
    Ok(names)
}

fn restate_unevaluated(object: &mut Map<String, Value>, root: &Value) -> Result<(), String> {
    object.shift_remove("unevaluatedProperties");
    let names = named_members(&Value::Object(object.clone()), root, MAX_HOPS)?;
    let members = object.entry("properties").or_insert_with(|| Value::Object(Map::new()));
    if let Some(members) = members.as_object_mut() {
        for name in names {
            members.entry(name).or_insert(Value::Bool(true));
        }
    }
    object.insert("additionalProperties".into(), Value::Bool(false));
    Ok(())
}
