// SPDX-License-Identifier: Apache-2.0
//! `oneOf` of objects. The library enforces it if the alternatives differ in a constant. It looks
//! for the constant in the alternatives themselves, not through references.

use serde_json::{Map, Value};

use crate::schema_sets::{is_same, resolved, values_of};

/// Keywords that mean nothing beside `$ref`.
const NOTES: [&str; 5] = ["$ref", "title", "description", "$comment", "default"];

/// The target of an alternative that is only a reference, as a JSON pointer.
pub fn lone_reference(schema: &Value) -> Option<&str> {
    let object = schema.as_object()?;
    let alone = object.keys().all(|key| NOTES.contains(&key.as_str()));
    object.get("$ref").filter(|_| alone)?.as_str()?.strip_prefix('#')
}

fn required(schema: &Value) -> Vec<&str> {
    let names = schema.get("required").and_then(Value::as_array);
    names.into_iter().flatten().filter_map(Value::as_str).collect()
}

fn member<'a>(schema: &'a Value, name: &str) -> Option<&'a Value> {
    schema.get("properties").and_then(|members| members.get(name))
}

fn is_object(schema: &Value) -> bool {
    schema.get("type").is_some_and(|name| name == "object")
}

/// Whether some required member has no value that both allow.
fn differ_in_a_constant(one: &Value, other: &Value, root: &Value) -> bool {
    required(one).iter().filter(|name| required(other).contains(name)).any(|name| {
        let values = |schema| member(schema, name).and_then(|schema| values_of(schema, root));
        match (values(one), values(other)) {
            (Some(one), Some(other)) => {
                !one.iter().any(|value| other.iter().any(|known| is_same(value, known)))
            }
            _ => false,
        }
    })
}

/// For each alternative, the members that it must not have so that no other alternative matches
/// too.
pub fn excluded_members(entries: &[Value], root: &Value) -> Vec<Vec<String>> {
    let entries: Vec<&Value> = entries.iter().map(|entry| resolved(entry, root)).collect();
    let mut excluded = vec![Vec::new(); entries.len()];
    for (i, one) in entries.iter().enumerate() {
        for other in entries.iter().filter(|other| is_object(one) && is_object(other)) {
            let own = |name: &&str| member(one, name).is_some() || required(one).contains(name);
            if std::ptr::eq(*one, *other) || differ_in_a_constant(one, other, root) {
                continue;
            }
            if let Some(name) = required(other).into_iter().find(|name| !own(name)) {
                excluded[i].push(name.to_string());
            }
        }
    }
    excluded
}

/// Forbids the members in the schema made from an alternative.
pub fn without_members(made: &mut Value, names: &[String]) {
    let Some(object) = made.as_object_mut().filter(|_| !names.is_empty()) else {
        return;
    };
    let members = object.entry("properties").or_insert_with(|| Value::Object(Map::new()));
    if let Some(members) = members.as_object_mut() {
        members.extend(names.iter().map(|name| (name.clone(), Value::Bool(false))));
    }
}
