// SPDX-License-Identifier: Apache-2.0
//! The special tokens of a model directory, from the files in which transformers (4.57 and 5) looks
//! for them, and the names under which templates see them.

use serde_json::{Map, Value};
use tokenizers::AddedToken;

use crate::class_tokens::class_tokens;

const STANDARD_NAMES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
const CONFIG: &str = "tokenizer_config.json";
const MAP: &str = "special_tokens_map.json";
const ADDED: &str = "added_tokens.json";

/// Files of a model directory; empty if missing.
pub struct TokenFiles<'a> {
    /// tokenizer.json.
    pub tokenizer: &'a [u8],
    pub tokenizer_config: &'a [u8],
    pub special_tokens_map: &'a [u8],
    pub added_tokens: &'a [u8],
    /// config.json.
    pub model_config: &'a [u8],
}

/// A token that is added to those of tokenizer.json, or replaces one.
pub struct ListedToken {
    pub id: u32,
    pub token: AddedToken,
    /// tokenizer.json's own token with this id takes precedence.
    pub yields: bool,
}

#[derive(Default)]
pub struct SpecialTokens {
    /// bos_token and similar variables of a template. The standard names come first.
    pub named: Map<String, Value>,
    /// The variable of this name.
    pub additional_special_tokens: Vec<String>,
    /// Special tokens without a name, the additional ones among them.
    pub unnamed: Vec<String>,
    /// Tokens that are special even if tokenizer.json adds them as ordinary ones.
    pub marked: Vec<String>,
    /// In the order of their ids.
    pub listed: Vec<ListedToken>,
    /// Rows of the model's embedding: a token with a higher id cannot be computed.
    pub model_rows: Option<usize>,
}

/// The file as an object; empty bytes are an empty object.
pub fn parse_object(bytes: &[u8], file: &str) -> Result<Map<String, Value>, String> {
    if bytes.is_empty() {
        return Ok(Map::new());
    }
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(format!("{file}: not a JSON object")),
        Err(e) => Err(format!("{file}: {e}")),
    }
}

/// tokenizer_config.json.
pub fn parse_config(config: &[u8]) -> Result<Map<String, Value>, String> {
    parse_object(config, CONFIG)
}

/// A token is written as a string or as an object with "content".
fn content_of(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value.get("content")?.as_str())
}

fn named_content(name: &str, value: &Value) -> Result<String, String> {
    content_of(value).map(str::to_string).ok_or_else(|| {
        format!("{CONFIG}: {name} is {value}; allowed: a string or an object with \"content\"")
    })
}

/// Further names are those that end with _token and hold a string or a token object.
fn is_token_of_its_own(name: &str, value: &Value) -> bool {
    let is_token = value.is_string() || value.get("__type").is_some_and(|t| t == "AddedToken");
    name.ends_with("_token") && is_token && !STANDARD_NAMES.contains(&name)
}

/// special_tokens_map.json is older than added_tokens_decoder. It precedes the configuration if
/// that has no added_tokens_decoder, and is ignored otherwise.
fn merge_map(config: &mut Map<String, Value>, map: Map<String, Value>) {
    for (key, mut value) in map {
        if let Value::Object(token) = &mut value {
            if token.contains_key("content") {
                token.insert("__type".into(), "AddedToken".into());
            }
        }
        let before = config.get(&key).and_then(Value::as_array);
        if let (Value::Array(tokens), Some(before)) = (&mut value, before) {
            let mut all = before.clone();
            all.extend(tokens.drain(..).filter(|token| {
                !before.iter().any(|known| content_of(known) == content_of(token))
            }));
            *tokens = all;
        }
        config.insert(key, value);
    }
}

/// Removes and returns the configuration's own further names: strings, or entries of
/// extra_special_tokens. Without either, model_specific_special_tokens is used.
fn take_own_names(config: &mut Map<String, Value>) -> Result<Map<String, Value>, String> {
    let mut own = Map::new();
    config.retain(|name, value| {
        let is_own = is_token_of_its_own(name, value) && value.is_string();
        if is_own {
            own.insert(name.clone(), value.clone());
        }
        !is_own
    });
    take_extra_names(config, &mut own)?;
    if own.is_empty() {
        if let Some(Value::Object(names)) = config.get("model_specific_special_tokens") {
            for (name, value) in names {
                own.insert(name.clone(), named_content(name, value)?.into());
            }
        }
    }
    Ok(own)
}

/// extra_special_tokens as an object.
fn take_extra_names(
    config: &mut Map<String, Value>,
    own: &mut Map<String, Value>,
) -> Result<(), String> {
    if !config.get("extra_special_tokens").is_some_and(Value::is_object) {
        return Ok(());
    }
    let Some(Value::Object(names)) = config.shift_remove("extra_special_tokens") else {
        return Ok(());
    };
    for (name, value) in &names {
        own.insert(name.clone(), named_content(name, value)?.into());
    }
    Ok(())
}

/// All names in order: the standard ones, further ones at the configuration's top level, then its
/// `own`.
fn names_of(
    config: &Map<String, Value>,
    own: Map<String, Value>,
) -> Result<Map<String, Value>, String> {
    let mut named = Map::new();
    for name in STANDARD_NAMES {
        let Some(value) = config.get(name).filter(|value| !value.is_null()) else { continue };
        named.insert(name.into(), named_content(name, value)?.into());
    }
    for (name, value) in config.iter().filter(|(name, value)| is_token_of_its_own(name, value)) {
        named.insert(name.clone(), named_content(name, value)?.into());
    }
    named.extend(own);
    Ok(named)
}

/// Tokens whose object in the configuration says "special".
fn marked_objects(config: &Map<String, Value>) -> Vec<String> {
    let is_marked = |value: &&Value| value.get("special") == Some(&Value::Bool(true));
    config.values().filter(is_marked).filter_map(content_of).map(str::to_string).collect()
}

fn contents_of(config: &Map<String, Value>, key: &str) -> Vec<String> {
    let tokens = config.get(key).and_then(Value::as_array).into_iter().flatten();
    tokens.filter_map(content_of).map(str::to_string).collect()
}

/// An entry of added_tokens_decoder.
fn listed_token(id: &str, value: &Value) -> Result<ListedToken, String> {
    let wrong = |what: &str| format!("{CONFIG}: added_tokens_decoder: {id}: {what}");
    let number = id.parse().map_err(|_| wrong("not an id"))?;
    let content = value.get("content").and_then(Value::as_str);
    let content = content.ok_or_else(|| wrong("has no \"content\""))?;
    let flag = |name: &str| value.get(name).and_then(Value::as_bool);
    let special = flag("special").unwrap_or(false);
    let token = AddedToken::from(content, special)
        .single_word(flag("single_word").unwrap_or(false))
        .lstrip(flag("lstrip").unwrap_or(false))
        .rstrip(flag("rstrip").unwrap_or(false))
        .normalized(flag("normalized").unwrap_or(!special));
    Ok(ListedToken { id: number, token, yields: false })
}

impl SpecialTokens {
    pub fn read(files: &TokenFiles) -> Result<Self, String> {
        let mut config = parse_config(files.tokenizer_config)?;
        let mut own = take_own_names(&mut config)?;
        let decoder = config.get("added_tokens_decoder").cloned();
        if decoder.is_none() {
            merge_map(&mut config, parse_object(files.special_tokens_map, MAP)?);
            take_extra_names(&mut config, &mut own)?;
        }
        let class = config.get("tokenizer_class").and_then(Value::as_str).unwrap_or("").to_string();
        for (name, content) in class_tokens(&class, files.tokenizer) {
            config.entry(*name).or_insert_with(|| (*content).into());
        }
        let model_config = parse_object(files.model_config, "config.json")?;
        let mut unnamed = contents_of(&config, "additional_special_tokens");
        let additional_special_tokens = unnamed.clone();
        unnamed.extend(contents_of(&config, "extra_special_tokens"));
        let objects = marked_objects(&config);
        let named = names_of(&config, own)?;
        let marked = match decoder {
            Some(_) => objects,
            None => {
                let named = named.values().filter_map(Value::as_str).map(str::to_string);
                named.chain(additional_special_tokens.clone()).collect()
            }
        };
        let mut tokens = SpecialTokens {
            named,
            additional_special_tokens,
            unnamed,
            marked,
            listed: Vec::new(),
            model_rows: model_config
                .get("vocab_size")
                .and_then(Value::as_u64)
                .map(|rows| rows as usize),
        };
        match decoder {
            Some(Value::Object(decoder)) => {
                for (id, token) in &decoder {
                    tokens.listed.push(listed_token(id, token)?);
                }
            }
            Some(other) => {
                return Err(format!(
                    "{CONFIG}: added_tokens_decoder is {other}; allowed: an object"
                ));
            }
            None => tokens.list_added(&parse_object(files.added_tokens, ADDED)?)?,
        }
        tokens.listed.sort_by_key(|listed| listed.id);
        Ok(tokens)
    }

    fn list_added(&mut self, added: &Map<String, Value>) -> Result<(), String> {
        for (content, id) in added {
            let number = id.as_u64().and_then(|id| u32::try_from(id).ok());
            let id =
                number.ok_or_else(|| format!("{ADDED}: {content} is {id}; allowed: a token id"))?;
            let special = self.contains(content);
            let token = AddedToken::from(content.as_str(), special);
            self.listed.push(ListedToken { id, token, yields: true });
        }
        Ok(())
    }

    /// All of them, the named ones first.
    pub fn contents(&self) -> impl Iterator<Item = &str> {
        let named = self.named.values().filter_map(Value::as_str);
        named.chain(self.unnamed.iter().map(String::as_str))
    }

    pub fn contains(&self, content: &str) -> bool {
        self.contents().any(|known| known == content)
    }

    pub fn eos(&self) -> Option<&str> {
        self.named.get("eos_token").and_then(Value::as_str)
    }
}
