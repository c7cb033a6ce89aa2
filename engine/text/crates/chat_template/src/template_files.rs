// SPDX-License-Identifier: Apache-2.0
//! Finds the chat templates of a model directory, with the precedence of transformers.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use tokens::special_tokens::{parse_config, parse_object};

/// The template for most conversations.
pub const DEFAULT: &str = "default";
/// The template for a conversation with tools.
pub const TOOL_USE: &str = "tool_use";

pub struct Source {
    pub name: String,
    /// Where it was found, for errors.
    pub file: String,
    pub text: String,
}

/// Template files: chat_template.jinja, additional_chat_templates/NAME.jinja, or one that the
/// operator gives.
fn name_of(path: &str) -> &str {
    let named = path.strip_prefix("additional_chat_templates/");
    named.and_then(|file| file.strip_suffix(".jinja")).unwrap_or(DEFAULT)
}

/// Jinja2 reads every line ending as a newline, even inside strings.
fn source(name: &str, file: String, text: &str) -> Source {
    Source { name: name.into(), file, text: text.replace("\r\n", "\n").replace('\r', "\n") }
}

/// The value of a key chat_template: one template, a list of named ones, or an object of them. If
/// two have one name, the last one counts.
fn in_value(file: &str, value: Option<&Value>) -> Result<Vec<Source>, String> {
    let file = format!("{file}: chat_template");
    let mut named = Map::new();
    match value {
        None | Some(Value::Null) => {}
        Some(text @ Value::String(_)) => {
            named.insert(DEFAULT.into(), text.clone());
        }
        Some(Value::Object(templates)) => named = templates.clone(),
        Some(Value::Array(templates)) => {
            for (i, entry) in templates.iter().enumerate() {
                let name = entry.get("name").and_then(Value::as_str);
                let name = name.ok_or_else(|| format!("{file}: entry {i} has no \"name\""))?;
                named.insert(name.into(), entry.get("template").cloned().unwrap_or(Value::Null));
            }
        }
        Some(_) => return Err(format!("{file}: neither a string nor a list nor an object")),
    }
    let mut sources = Vec::new();
    for (name, text) in &named {
        let text = text.as_str();
        let text = text.ok_or_else(|| format!("{file}: \"{name}\" has no template"))?;
        sources.push(source(name, file.clone(), text));
    }
    Ok(sources)
}

const CONFIG: &str = "tokenizer_config.json";
const PROCESSOR: &str = "chat_template.json";

fn in_config(config: &[u8]) -> Result<Vec<Source>, String> {
    in_value(CONFIG, parse_config(config)?.get("chat_template"))
}

fn in_processor(processor: &[u8]) -> Result<Vec<Source>, String> {
    in_value(PROCESSOR, parse_object(processor, PROCESSOR)?.get("chat_template"))
}

pub struct Found {
    pub sources: Vec<Source>,
    /// A file with other templates, which are not used. An invalid file is passed over too.
    pub passed_over: Option<&'static str>,
}

impl Found {
    fn beside(sources: Vec<Source>, later: &[(&'static str, Result<Vec<Source>, String>)]) -> Self {
        let texts = |sources: &[Source]| -> BTreeMap<String, String> {
            sources.iter().map(|one| (one.name.clone(), one.text.clone())).collect()
        };
        let own = texts(&sources);
        let differs = |found: &Result<Vec<Source>, String>| {
            found.as_ref().is_ok_and(|found| !found.is_empty() && texts(found) != own)
        };
        let other = later.iter().find(|(_, found)| differs(found));
        let passed_over = other.map(|(file, _)| *file);
        Found { sources, passed_over }
    }
}

/// `jinja` are files (paths and texts); if there is one, only these are used. chat_template.json,
/// the place of processors, is used if no other place has a template.
pub fn sources(
    jinja: &[(&str, &str)],
    tokenizer_config: &[u8],
    processor: &[u8],
) -> Result<Found, String> {
    let files = jinja.iter().map(|(path, text)| source(name_of(path), path.to_string(), text));
    let found: Vec<Source> = files.collect();
    let last = (PROCESSOR, in_processor(processor));
    if !found.is_empty() {
        return Ok(Found::beside(found, &[(CONFIG, in_config(tokenizer_config)), last]));
    }
    let found = in_config(tokenizer_config)?;
    if !found.is_empty() {
        return Ok(Found::beside(found, &[last]));
    }
    Ok(Found { sources: last.1?, passed_over: None })
}
