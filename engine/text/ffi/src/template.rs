//! A chat template in the environment that transformers gives it: its whitespace rules, filters and
//! functions, and no way to files, other templates or the network.

use serde_json::Value as Json;

use crate::client_text::{self, Spellings};
use crate::jinja::{self, Failure};
use crate::tokenizer::{named_tokens, parse_config, token_content};
use crate::without_panic;

pub struct Template {
    template: jinja::Template,
    /// bos_token and the like.
    variables: Vec<(&'static str, String)>,
    additional_special_tokens: Vec<String>,
}

/// What a client sent.
pub struct Conversation<'a> {
    pub messages: &'a [u8],
    pub kwargs: &'a [u8],
    /// A list, or empty: there are none.
    pub tools: &'a [u8],
    pub add_generation_prompt: bool,
}

/// The template of the configuration: a string, or the one named "default" of a list.
fn template_of(config: &serde_json::Map<String, Json>) -> Result<Option<String>, String> {
    let named = match config.get("chat_template") {
        None | Some(Json::Null) => return Ok(None),
        Some(Json::String(source)) => return Ok(Some(source.clone())),
        Some(Json::Array(named)) => named,
        Some(_) => {
            return Err("tokenizer_config.json: chat_template: neither a string nor a list".into())
        }
    };
    let name = |entry: &Json| entry.get("name").and_then(Json::as_str).unwrap_or("?").to_string();
    let Some(entry) = named.iter().find(|entry| name(entry) == "default") else {
        let names: Vec<String> = named.iter().map(name).collect();
        return Err(format!(
            "tokenizer_config.json: chat_template: none of [{}] is named \"default\"",
            names.join(", ")
        ));
    };
    let source = entry.get("template").and_then(Json::as_str);
    source
        .map(|s| Some(s.to_string()))
        .ok_or("tokenizer_config.json: chat_template: \"default\" has no template".into())
}

fn parse_object(json: &[u8], what: &str) -> Result<serde_json::Map<String, Json>, String> {
    serde_json::from_slice(json).map_err(|e| format!("{what}: {e}"))
}

impl Template {
    /// None: neither file has a template. chat_template.jinja comes before the configuration, as in
    /// transformers.
    pub fn new(jinja: &str, config: &[u8]) -> Result<Option<Self>, String> {
        let config = parse_config(config)?;
        let (file, source) = match jinja {
            "" => ("tokenizer_config.json: chat_template", template_of(&config)?),
            _ => ("chat_template.jinja", Some(jinja.to_string())),
        };
        let Some(source) = source else { return Ok(None) };
        let template =
            without_panic(|| jinja::Template::new(&source)).map_err(|e| format!("{file}: {e}"))?;
        let extra = config.get("additional_special_tokens").and_then(Json::as_array);
        Ok(Some(Template {
            template,
            variables: named_tokens(&config)
                .into_iter()
                .map(|(name, content)| (name, content.to_string()))
                .collect(),
            additional_special_tokens: extra
                .into_iter()
                .flatten()
                .filter_map(token_content)
                .map(str::to_string)
                .collect(),
        }))
    }

    /// The text, and the character that guards what `spellings` has in it.
    pub fn render(
        &self,
        conversation: &Conversation,
        spellings: Option<&Spellings>,
    ) -> Result<(Vec<u8>, Option<char>), String> {
        let messages: Vec<Json> =
            serde_json::from_slice(conversation.messages).map_err(|e| format!("messages: {e}"))?;
        let mut messages = Json::from(messages);
        let mut kwargs = Json::from(parse_object(conversation.kwargs, "the template's arguments")?);
        let mut tools = match conversation.tools {
            b"" => Json::Null,
            tools => Json::from(
                serde_json::from_slice::<Vec<Json>>(tools).map_err(|e| format!("tools: {e}"))?,
            ),
        };
        let guard = match spellings {
            Some(spellings) => {
                client_text::guard(spellings, &mut messages, &mut tools, &mut kwargs)?
            }
            None => None,
        };
        let mut variables = serde_json::Map::new();
        for (name, content) in &self.variables {
            variables.insert(name.to_string(), Json::from(content.as_str()));
        }
        if !self.additional_special_tokens.is_empty() {
            variables.insert(
                "additional_special_tokens".into(),
                Json::from(self.additional_special_tokens.clone()),
            );
        }
        variables.insert("tools".into(), tools);
        variables.insert("documents".into(), Json::Null);
        if let Json::Object(kwargs) = kwargs {
            variables.extend(kwargs);
        }
        variables.insert("messages".into(), messages);
        variables
            .insert("add_generation_prompt".into(), Json::from(conversation.add_generation_prompt));

        let text = self.template.render(&variables).map_err(|failure| match failure {
            Failure::Raised(message) => {
                format!("the chat template refuses this conversation: {message}")
            }
            Failure::Failed(message) => message,
        })?;
        Ok((text.into_bytes(), guard))
    }
}
