// SPDX-License-Identifier: Apache-2.0
//! Translates one schema object to draft 2020-12: `$schema` may name another draft, or the
//! generator wrote OpenAPI. Only keywords of the object itself change, so pointers into it stay
//! valid.

use serde_json::{Map, Value};

#[derive(Clone, Copy, PartialEq)]
pub enum Dialect {
    /// No `$schema`: 2020-12, plus keywords that only earlier drafts or OpenAPI have.
    Unnamed,
    OpenApi,
    /// Drafts 4 to 7: keywords beside `$ref` are ignored.
    Old,
    Of2019,
    Of2020,
}

const DIALECTS: [(&str, Dialect); 6] = [
    ("json-schema.org/draft/2020-12/schema", Dialect::Of2020),
    ("json-schema.org/draft/2019-09/schema", Dialect::Of2019),
    ("json-schema.org/draft-07/schema", Dialect::Old),
    ("json-schema.org/draft-06/schema", Dialect::Old),
    ("json-schema.org/draft-04/schema", Dialect::Old),
    ("json-schema.org/schema", Dialect::Unnamed),
];
const OPEN_API: &str = "spec.openapis.org/oas/3.";

impl Dialect {
    pub fn named(value: &Value) -> Option<Dialect> {
        let name = value.as_str()?;
        let name = name.strip_prefix("https://").or_else(|| name.strip_prefix("http://"))?;
        if let Some(version) = name.strip_prefix(OPEN_API) {
            return Some(if version.starts_with('0') { Dialect::OpenApi } else { Dialect::Of2020 });
        }
        let name = name.trim_end_matches('#');
        DIALECTS.iter().find(|(known, _)| *known == name).map(|(_, dialect)| *dialect)
    }

    /// The dialect of a whole schema. Error: the keyword at fault and the reason.
    pub fn of(schema: &Value) -> Result<Dialect, String> {
        match schema.get("$schema") {
            None | Some(Value::Null) => Ok(Dialect::Unnamed),
            Some(name) => Dialect::named(name).ok_or_else(|| {
                format!("is {name}; known are JSON Schema's drafts 4 to 2020-12 and OpenAPI's 3")
            }),
        }
    }

    pub fn has_nullable(self) -> bool {
        matches!(self, Dialect::Unnamed | Dialect::OpenApi)
    }
}

/// A null member means nothing, except as a constant.
fn says_nothing(key: &str, value: &Value) -> bool {
    value.is_null() && key != "const"
}

/// Error: the keyword at fault and why.
pub fn restated(
    object: &Map<String, Value>,
    dialect: Dialect,
) -> Result<Map<String, Value>, (&'static str, String)> {
    let only_reference =
        dialect == Dialect::Old && object.get("$ref").is_some_and(Value::is_string);
    let mut made = Map::new();
    for (key, value) in object {
        // A type beside `$ref` repeats the target's, or states what a tool's arguments must be.
        let counts = !only_reference || key == "$ref" || (key == "type" && value == "object");
        if says_nothing(key, value) || !counts {
            continue;
        }
        made.insert(key.clone(), value.clone());
    }
    restate_bound(&mut made, "exclusiveMinimum", "minimum");
    restate_bound(&mut made, "exclusiveMaximum", "maximum");
    restate_tuple(&mut made, dialect)?;
    Ok(made)
}

/// In draft 4 and OpenAPI 3.0 a boolean makes the other bound exclusive.
fn restate_bound(made: &mut Map<String, Value>, exclusive: &str, inclusive: &str) {
    let Some(Value::Bool(is_exclusive)) = made.get(exclusive) else {
        return;
    };
    let bound = if *is_exclusive { made.shift_remove(inclusive) } else { None };
    made.shift_remove(exclusive);
    if let Some(bound) = bound {
        made.insert(exclusive.into(), bound);
    }
}

/// Before 2020-12 a list under `items` was a tuple, and `additionalItems` described the items after
/// it.
fn restate_tuple(
    made: &mut Map<String, Value>,
    dialect: Dialect,
) -> Result<(), (&'static str, String)> {
    let is_tuple = made.get("items").is_some_and(Value::is_array);
    if dialect == Dialect::Of2020 {
        return match is_tuple {
            true => Err(("items", "is a list, which prefixItems is for in draft 2020-12".into())),
            false => Ok(()),
        };
    }
    let is_old = matches!(dialect, Dialect::Old | Dialect::Of2019);
    if made.contains_key("prefixItems") && (is_tuple || is_old) {
        return Err(("prefixItems", "is not of the draft that the schema is written in".into()));
    }
    let rest = made.shift_remove("additionalItems");
    if !is_tuple {
        return Ok(());
    }
    let items = made.shift_remove("items").unwrap_or_default();
    if items.as_array().is_some_and(|items| !items.is_empty()) {
        made.insert("prefixItems".into(), items);
    }
    if let Some(rest) = rest {
        made.insert("items".into(), rest);
    }
    Ok(())
}
