// SPDX-License-Identifier: Apache-2.0
//! Rewrites the references of a schema to JSON pointers into it. `$id` gives a part a name of its
//! own, to which the references below it are relative; `$anchor` names a place. The tree keeps its
//! shape, so that pointers stay valid.

use std::collections::HashMap;

use serde_json::{Map, Value};

use crate::schema_dialect::Dialect;

/// Keywords whose values are data.
const DATA: [&str; 5] = ["const", "enum", "default", "example", "examples"];
/// Keywords whose members are schemas by name.
const NAMED: [&str; 5] =
    ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];

/// A schema's name without its fragment, in parts. All are empty for a schema without a name.
#[derive(Clone, Default)]
struct Uri {
    scheme: String,
    authority: String,
    path: String,
}

impl Uri {
    /// `text` has no fragment.
    fn parse(text: &str) -> Uri {
        let name = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
        let (scheme, rest) = match text.split_once(':') {
            Some((scheme, rest)) if !scheme.is_empty() && scheme.chars().all(name) => {
                (scheme.to_string(), rest)
            }
            _ => (String::new(), text),
        };
        let Some(rest) = rest.strip_prefix("//") else {
            return Uri { scheme, authority: String::new(), path: rest.into() };
        };
        let end = rest.find('/').unwrap_or(rest.len());
        Uri { scheme, authority: rest[..end].into(), path: rest[end..].into() }
    }

    /// RFC 3986, section 5.2.
    fn joined(&self, text: &str) -> Uri {
        let other = Uri::parse(text);
        if text.is_empty() {
            return self.clone();
        }
        if !other.scheme.is_empty() {
            return other;
        }
        if text.starts_with("//") {
            return Uri { scheme: self.scheme.clone(), ..other };
        }
        let path = match other.path.starts_with('/') {
            true => other.path,
            false => {
                let folder = self.path.rfind('/').map_or("", |end| &self.path[..=end]);
                format!("{folder}{}", other.path)
            }
        };
        Uri { path: without_dots(&path), ..self.clone() }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        if !self.scheme.is_empty() {
            text.push_str(&format!("{}:", self.scheme.to_ascii_lowercase()));
        }
        if !self.authority.is_empty() {
            text.push_str(&format!("//{}", self.authority.to_ascii_lowercase()));
        }
        text + &self.path
    }
}

fn without_dots(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let parts: Vec<&str> = path.split('/').collect();
    for (i, part) in parts.iter().enumerate() {
        let is_last = i + 1 == parts.len();
        match *part {
            "." if is_last => kept.push(""),
            "." => {}
            ".." => {
                if kept.len() > 1 {
                    kept.pop();
                }
                if is_last {
                    kept.push("");
                }
            }
            _ => kept.push(part),
        }
    }
    kept.join("/")
}

fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

pub fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).ok()
}

/// The name that a schema object gives itself, and its anchor.
fn names_of(object: &Map<String, Value>, dialect: Dialect) -> (Option<&str>, Vec<&str>) {
    let text = |key: &str| object.get(key).and_then(Value::as_str);
    if dialect == Dialect::Old && object.contains_key("$ref") {
        return (None, vec![]); // ignored beside it
    }
    let id = text("$id").or_else(|| text("id").filter(|_| dialect == Dialect::Old));
    let mut anchors: Vec<&str> =
        ["$anchor", "$dynamicAnchor"].iter().filter_map(|key| text(key)).collect();
    let (id, anchor) = match id.and_then(|id| id.split_once('#')) {
        Some((id, anchor)) => (Some(id), Some(anchor).filter(|anchor| !anchor.is_empty())),
        None => (id, None),
    };
    anchors.extend(anchor);
    (id.filter(|id| !id.is_empty()), anchors)
}

/// Calls `found` for each schema within `value`, with its pointer and the name that its references
/// are relative to.
fn visit(
    value: &mut Value,
    pointer: &str,
    base: &Uri,
    dialect: Dialect,
    found: &mut impl FnMut(&mut Map<String, Value>, &str, &Uri),
) {
    let inner = |name: &str| format!("{pointer}/{}", escaped(name));
    match value {
        Value::Array(entries) => {
            for (i, entry) in entries.iter_mut().enumerate() {
                visit(entry, &format!("{pointer}/{i}"), base, dialect, found);
            }
        }
        Value::Object(object) => {
            let own = names_of(object, dialect).0.map(|id| base.joined(id));
            let base = own.as_ref().unwrap_or(base);
            found(object, pointer, base);
            for (key, member) in object.iter_mut() {
                match member {
                    Value::Object(members) if NAMED.contains(&key.as_str()) => {
                        for (name, member) in members {
                            let pointer = format!("{}/{}", inner(key), escaped(name));
                            visit(member, &pointer, base, dialect, found);
                        }
                    }
                    _ if DATA.contains(&key.as_str()) => {}
                    _ => visit(member, &inner(key), base, dialect, found),
                }
            }
        }
        _ => {}
    }
}

/// Where the parts of a schema are that have names, as JSON pointers.
#[derive(Default)]
struct Names {
    parts: HashMap<String, String>,
    /// By the part's name and the anchor.
    anchors: HashMap<(String, String), String>,
    /// How often each dynamic anchor is there.
    dynamic: HashMap<String, usize>,
}

impl Names {
    fn of(schema: &mut Value, dialect: Dialect) -> Names {
        let mut names = Names::default();
        visit(schema, "", &Uri::default(), dialect, &mut |object, pointer, base| {
            let (id, anchors) = names_of(object, dialect);
            if id.is_some() || pointer.is_empty() {
                names.parts.insert(base.text(), pointer.into());
            }
            for anchor in anchors {
                names.anchors.insert((base.text(), anchor.into()), pointer.into());
            }
            if let Some(anchor) = object.get("$dynamicAnchor").and_then(Value::as_str) {
                *names.dynamic.entry(anchor.into()).or_default() += 1;
            }
        });
        names
    }

    /// The reference as a pointer into the whole schema; None: it leads out of it.
    fn local(&self, reference: &str, base: &Uri) -> Option<Value> {
        let (name, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let name = base.joined(name).text();
        let part = self.parts.get(&name)?;
        let fragment = percent_decoded(fragment)?;
        let pointer = match fragment.is_empty() || fragment.starts_with('/') {
            true => format!("{part}{fragment}"),
            false => self.anchors.get(&(name, fragment))?.clone(),
        };
        Some(Value::from(format!("#{}", pointer.replace('%', "%25"))))
    }
}

/// The schema with each reference within it as a JSON pointer, and without `$id` below its root.
pub fn localized(schema: &Value, dialect: Dialect) -> Value {
    let mut made = schema.clone();
    let names = Names::of(&mut made, dialect);
    visit(&mut made, "", &Uri::default(), dialect, &mut |object, pointer, base| {
        let text = |key: &str| object.get(key).and_then(Value::as_str);
        // A dynamic reference with one target is a plain one.
        let is_plain = |reference: &&str| {
            let anchor = reference.rsplit('#').next().unwrap_or("");
            names.dynamic.get(anchor).is_none_or(|count| *count == 1)
        };
        let dynamic = text("$dynamicRef").filter(|_| text("$ref").is_none()).filter(is_plain);
        if let Some(found) = text("$ref").and_then(|reference| names.local(reference, base)) {
            object.insert("$ref".into(), found);
        } else if let Some(found) = dynamic.and_then(|reference| names.local(reference, base)) {
            object.shift_remove("$dynamicRef");
            object.insert("$ref".into(), found);
        }
        for key in ["$id", "id"].iter().take(if dialect == Dialect::Old { 2 } else { 1 }) {
            if !pointer.is_empty() && object.get(*key).is_some_and(Value::is_string) {
                object.shift_remove(*key);
            }
        }
    });
    made
}
