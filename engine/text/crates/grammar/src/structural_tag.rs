// SPDX-License-Identifier: Apache-2.0
//! Structural tags: text in which some parts must have a required form. `{"structures",
//! "triggers"}` is the older form, `{"format": {"type", ...}}` the nested one; both become Lark.

use serde_json::{json, Value};

use crate::gbnf;
use crate::lark_text::quoted;
use crate::regex_text::regex_terminal;
use crate::schema_policy::SchemaPolicy;

const MAX_ENTRIES: usize = 1024;
const MAX_DEPTH: usize = 16;
const MAX_FORMATS: usize = 5000;
const MAX_REPEAT: u64 = 1000;
const FORMATS: [&str; 14] = [
    "const_string",
    "json_schema",
    "regex",
    "grammar",
    "any_text",
    "sequence",
    "or",
    "tag",
    "triggered_tags",
    "tags_with_separator",
    "optional",
    "star",
    "plus",
    "repeat",
];

fn entries<'a>(value: &'a Value, name: &str, path: &str) -> Result<&'a [Value], String> {
    let list = value.get(name).and_then(Value::as_array);
    let list = list.ok_or(format!("{path}.{name} is not a list"))?;
    if list.is_empty() || list.len() > MAX_ENTRIES {
        let found = list.len();
        return Err(format!("{path}.{name} has {found} entries; allowed: 1 to {MAX_ENTRIES}"));
    }
    Ok(list)
}

fn check_members(value: &Value, known: &[&str], path: &str) -> Result<(), String> {
    let object = value.as_object().ok_or(format!("{path} is not an object"))?;
    match object.keys().find(|key| !known.contains(&key.as_str())) {
        Some(key) => Err(format!("{path} has the member '{key}'; allowed: {known:?}")),
        None => Ok(()),
    }
}

fn text_of<'a>(value: &'a Value, name: &str, path: &str) -> Result<&'a str, String> {
    let text = value.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    text.ok_or(format!("{path}.{name} is not a string with text"))
}

fn flag(value: &Value, name: &str, path: &str) -> Result<bool, String> {
    match value.get(name) {
        None | Some(Value::Null) => Ok(false),
        Some(flag) => flag.as_bool().ok_or(format!("{path}.{name} is not true or false")),
    }
}

/// One string or a list of them.
fn texts_of(value: &Value, name: &str, path: &str) -> Result<Vec<String>, String> {
    if value.get(name).is_some_and(Value::is_string) {
        return Ok(vec![text_of(value, name, path)?.into()]);
    }
    let list = entries(value, name, path)?.iter();
    let text = |entry: &Value| entry.as_str().filter(|text| !text.is_empty()).map(String::from);
    list.map(text)
        .collect::<Option<Vec<String>>>()
        .ok_or(format!("{path}.{name} is not a list of strings with text"))
}

fn pattern_of(text: &str) -> String {
    text.chars().map(|c| format!("\\x{{{:X}}}", u32::from(c))).collect()
}

/// The text after a format, which ends a part that could be anything.
enum Until {
    /// Another format.
    Other,
    EndOfText,
    /// One of these texts, which the format consumes.
    Strings(Vec<String>),
}

impl Until {
    fn taken(&self) -> String {
        match self {
            Until::Strings(ends) => {
                format!("({})", ends.iter().map(|end| quoted(end)).collect::<Vec<_>>().join(" | "))
            }
            _ => String::new(),
        }
    }
}

struct Writer<'a> {
    policy: &'a SchemaPolicy,
    rules: String,
    count: usize,
    schemas: Vec<Value>,
}

impl Writer<'_> {
    fn name(&mut self, prefix: &str) -> String {
        self.count += 1;
        format!("{prefix}{}", self.count)
    }

    /// The format and its part of `until`, as a Lark expression.
    fn format(
        &mut self,
        value: &Value,
        path: &str,
        until: &Until,
        depth: usize,
    ) -> Result<String, String> {
        if depth > MAX_DEPTH || self.count > MAX_FORMATS {
            return Err(format!("{path}: more than {MAX_FORMATS} formats, or {MAX_DEPTH} levels"));
        }
        let kind = value.get("type").and_then(Value::as_str).unwrap_or("");
        let end = until.taken();
        let made = match kind {
            "const_string" => {
                check_members(value, &["type", "value"], path)?;
                quoted(text_of(value, "value", path)?)
            }
            "json_schema" => self.json_schema(value, path)?,
            "regex" => {
                check_members(value, &["type", "pattern"], path)?;
                let name = self.name("X");
                let terminal = regex_terminal(text_of(value, "pattern", path)?);
                let terminal = terminal.map_err(|e| format!("{path}.pattern: {e}"))?;
                self.rules.push_str(&format!("{name}: {terminal}\n"));
                name
            }
            "grammar" => {
                check_members(value, &["type", "grammar"], path)?;
                let lark = gbnf::to_lark(text_of(value, "grammar", path)?);
                let lark = lark.map_err(|e| format!("{path}.grammar: {e}"))?;
                format!("%lark {{\n{lark}\n}}")
            }
            "any_text" => return self.any_text(value, path, until),
            "sequence" | "or" => return self.elements(value, path, until, depth),
            "tag" => self.tag(value, path, "", depth)?,
            "triggered_tags" => return self.triggered_tags(value, path, until, depth),
            "tags_with_separator" => self.tags_with_separator(value, path, depth)?,
            "optional" | "star" | "plus" => {
                check_members(value, &["type", "content"], path)?;
                let sign = [("optional", "?"), ("star", "*"), ("plus", "+")];
                let sign = sign.iter().find(|(name, _)| *name == kind).map_or("", |(_, sign)| sign);
                format!("{}{sign}", self.content(value, path, depth)?)
            }
            "repeat" => self.repeat(value, path, depth)?,
            _ => {
                let found = value.get("type").unwrap_or(&Value::Null);
                return Err(format!("{path}.type is {found}; supported are {FORMATS:?}"));
            }
        };
        Ok(format!("{made} {end}"))
    }

    fn json_schema(&mut self, value: &Value, path: &str) -> Result<String, String> {
        check_members(value, &["type", "json_schema", "style"], path)?;
        if value.get("style").is_some_and(|style| !style.is_null() && style != "json") {
            return Err(format!("{path}.style is {}; supported is json", value["style"]));
        }
        let schema = value.get("json_schema").ok_or(format!("{path}.json_schema is missing"))?;
        let made = self.policy.apply(schema).map_err(|e| format!("{path}.json_schema: {e}"))?;
        self.schemas.push(schema.clone());
        let name = self.name("j");
        self.rules.push_str(&format!("{name}: %json {made}\n"));
        Ok(name)
    }

    /// Text up to the first occurrence of one of `ends`.
    fn text_until(&mut self, ends: &[String]) -> String {
        let name = self.name("t");
        let ends = ends.iter().map(|end| pattern_of(end)).collect::<Vec<_>>().join("|");
        self.rules.push_str(&format!("{name}[lazy]: /(?s:.*)({ends})/\n"));
        name
    }

    /// Text up to the end without any of `excluded`, or no text.
    fn text_without(&mut self, excluded: &[String]) -> String {
        let name = self.name("T");
        let mut rule = String::from("/(?s:.+)/");
        for text in excluded {
            rule.push_str(&format!(" & ~/(?s:.*){}(?s:.*)/", pattern_of(text)));
        }
        self.rules.push_str(&format!("{name}: {rule}\n"));
        format!("{name}?")
    }

    fn any_text(&mut self, value: &Value, path: &str, until: &Until) -> Result<String, String> {
        check_members(value, &["type", "excludes"], path)?;
        let excluded = match value.get("excludes") {
            None | Some(Value::Null) => Vec::new(),
            Some(list) if list.as_array().is_some_and(Vec::is_empty) => Vec::new(),
            Some(_) => texts_of(value, "excludes", path)?,
        };
        match until {
            Until::EndOfText => Ok(self.text_without(&excluded)),
            Until::Strings(ends) if excluded.is_empty() => Ok(self.text_until(ends)),
            Until::Strings(_) => Err(format!("{path}.excludes is not supported within a tag")),
            Until::Other => Err(format!("{path}: any_text must come last, or last within a tag")),
        }
    }

    /// One after the other, the last before `until`; or one of them, before `until`.
    fn elements(
        &mut self,
        value: &Value,
        path: &str,
        until: &Until,
        depth: usize,
    ) -> Result<String, String> {
        check_members(value, &["type", "elements"], path)?;
        let is_choice = value["type"] == "or";
        let elements = entries(value, "elements", path)?;
        let mut parts = Vec::new();
        for (i, part) in elements.iter().enumerate() {
            let ends = is_choice || i + 1 == elements.len();
            let follows = if ends { until } else { &Until::Other };
            parts.push(self.format(part, &format!("{path}.elements[{i}]"), follows, depth + 1)?);
        }
        match is_choice {
            true => Ok(format!("({})", parts.join(" | "))),
            false => Ok(parts.join(" ")),
        }
    }

    /// The rule of a content that may come several times.
    fn content(&mut self, value: &Value, path: &str, depth: usize) -> Result<String, String> {
        let place = format!("{path}.content");
        let inner = self.format(&value["content"], &place, &Until::Other, depth + 1)?;
        let name = self.name("p");
        self.rules.push_str(&format!("{name}: {inner}\n"));
        Ok(name)
    }

    /// The rest of the tag once `trigger`, its beginning, has been written.
    fn tag(
        &mut self,
        value: &Value,
        path: &str,
        trigger: &str,
        depth: usize,
    ) -> Result<String, String> {
        check_members(value, &["type", "begin", "content", "end"], path)?;
        let begin = &text_of(value, "begin", path)?[trigger.len()..];
        let begin = if begin.is_empty() { String::new() } else { quoted(begin) };
        let content = value.get("content").ok_or(format!("{path}.content is missing"))?;
        let until = Until::Strings(texts_of(value, "end", path)?);
        let content = self.format(content, &format!("{path}.content"), &until, depth + 1)?;
        let name = self.name("g");
        self.rules.push_str(&format!("{name}: {begin} {content}\n"));
        Ok(name)
    }

    fn repeat(&mut self, value: &Value, path: &str, depth: usize) -> Result<String, String> {
        check_members(value, &["type", "content", "min", "max"], path)?;
        let count =
            |name: &str| value.get(name).and_then(Value::as_u64).filter(|n| *n <= MAX_REPEAT);
        let (min, max) = (count("min").unwrap_or(0), count("max"));
        if max.is_none_or(|max| max < min.max(1)) {
            return Err(format!("{path}: max is from min, and 1, to {MAX_REPEAT}"));
        }
        let name = self.content(value, path, depth)?;
        Ok(format!("{name}{{{min},{}}}", max.unwrap_or(min)))
    }

    fn tags_with_separator(
        &mut self,
        value: &Value,
        path: &str,
        depth: usize,
    ) -> Result<String, String> {
        let known = ["type", "tags", "separator", "at_least_one", "stop_after_first"];
        check_members(value, &known, path)?;
        let mut tags = Vec::new();
        for (i, tag) in entries(value, "tags", path)?.iter().enumerate() {
            tags.push(self.tag(tag, &format!("{path}.tags[{i}]"), "", depth + 1)?);
        }
        let one = format!("({})", tags.join(" | "));
        let separator = value.get("separator").and_then(Value::as_str);
        let separator = separator.ok_or(format!("{path}.separator is not a string"))?;
        let separator = if separator.is_empty() { String::new() } else { quoted(separator) };
        let more = match flag(value, "stop_after_first", path)? {
            true => String::new(),
            false => format!("({separator} {one})*"),
        };
        let sign = if flag(value, "at_least_one", path)? { "" } else { "?" };
        Ok(format!("({one} {more}){sign}"))
    }

    fn triggered_tags(
        &mut self,
        value: &Value,
        path: &str,
        until: &Until,
        depth: usize,
    ) -> Result<String, String> {
        let known = ["type", "triggers", "tags", "at_least_one", "stop_after_first"];
        check_members(value, &known, path)?;
        let (at_least_one, stop_after_first) =
            (flag(value, "at_least_one", path)?, flag(value, "stop_after_first", path)?);
        let triggers = texts_of(value, "triggers", path)?;
        let mut bodies: Vec<Vec<String>> = vec![Vec::new(); triggers.len()];
        let mut whole = Vec::new();
        for (i, tag) in entries(value, "tags", path)?.iter().enumerate() {
            let place = format!("{path}.tags[{i}]");
            let begin = text_of(tag, "begin", &place)?;
            let found = triggers.iter().position(|trigger| begin.starts_with(trigger.as_str()));
            let trigger = found.ok_or(format!("{place}.begin begins with none of the triggers"))?;
            bodies[trigger].push(self.tag(tag, &place, &triggers[trigger], depth + 1)?);
            if at_least_one {
                whole.push(self.tag(tag, &place, "", depth + 1)?);
            }
        }
        let first = format!("({})", whole.join(" | "));
        if at_least_one && stop_after_first {
            return Ok(format!("{first} {}", until.taken()));
        }
        let mut options = Vec::new();
        for (i, trigger) in triggers.iter().enumerate() {
            if bodies[i].is_empty() {
                return Err(format!("{path}.triggers[{i}] begins no tag"));
            }
            let head = self.text_until(std::slice::from_ref(trigger));
            options.push(format!("{head} ({})", bodies[i].join(" | ")));
        }
        let options = format!("({})", options.join(" | "));
        let rest = match until {
            Until::EndOfText => self.text_without(&triggers),
            Until::Strings(ends) => self.text_until(ends),
            Until::Other => {
                return Err(format!("{path}: triggered_tags must come last, or last within a tag"));
            }
        };
        Ok(match (stop_after_first, at_least_one) {
            (true, _) => format!("({options} {} | {rest})", until.taken()),
            (_, true) => format!("{first} ({options})* {rest}"),
            _ => format!("({options})* {rest}"),
        })
    }
}

/// The older form, converted to a format.
fn of_structures(tag: &Value) -> Result<Value, String> {
    check_members(tag, &["type", "structures", "triggers"], "the structural tag")?;
    let mut tags = Vec::new();
    for (i, structure) in entries(tag, "structures", "the structural tag")?.iter().enumerate() {
        let path = format!("structures[{i}]");
        check_members(structure, &["begin", "schema", "end"], &path)?;
        let schema = structure.get("schema").ok_or(format!("{path}.schema is missing"))?;
        let content = json!({"type": "json_schema", "json_schema": schema});
        tags.push(
            json!({"begin": structure["begin"], "content": content, "end": structure["end"]}),
        );
    }
    Ok(json!({"type": "triggered_tags", "triggers": tag["triggers"], "tags": tags}))
}

/// The text for the library, and the schemas in it.
pub fn to_lark(tag: &Value, policy: &SchemaPolicy) -> Result<(String, Vec<Value>), String> {
    let mut writer = Writer { policy, rules: String::new(), count: 0, schemas: Vec::new() };
    let (format, path) = match tag.get("format") {
        Some(format) => {
            check_members(tag, &["type", "format"], "the structural tag")?;
            (format.clone(), "format")
        }
        None => (of_structures(tag)?, "structures"),
    };
    // The older form calls tags structures, and its lists have no keyword before them.
    let in_its_words =
        |e: String| e.replace("structures.tags", "structures").replace("structures.trig", "trig");
    let start = writer.format(&format, path, &Until::EndOfText, 0).map_err(in_its_words)?;
    Ok((format!("start: {start}\n{}", writer.rules), writer.schemas))
}
