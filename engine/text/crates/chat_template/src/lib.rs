// SPDX-License-Identifier: Apache-2.0
//! A model's chat templates: chooses the one for a conversation and renders it with the variables
//! that transformers provides.

mod template_files;

use jinja::{Failure, HeldBytes};
use panics::without_panic;
use serde_json::Value as Json;
use tokens::client_text::{self, Cuts, Spellings};
use tokens::special_tokens::SpecialTokens;

pub use template_files::{sources, Source};
use template_files::{DEFAULT, TOOL_USE};

/// Templates that conversations use.
const SERVED: [&str; 2] = [DEFAULT, TOOL_USE];

struct Served {
    name: String,
    source: String,
    template: jinja::Template,
    cuts: Cuts,
}

pub struct Template {
    served: Vec<Served>,
    /// Names of all templates.
    names: Vec<String>,
    tokens: SpecialTokens,
}

/// A client's conversation.
pub struct Conversation<'a> {
    pub messages: &'a [u8],
    pub kwargs: &'a [u8],
    /// A list, or empty for none.
    pub tools: &'a [u8],
    pub add_generation_prompt: bool,
}

fn parse_object(json: &[u8], what: &str) -> Result<serde_json::Map<String, Json>, String> {
    serde_json::from_slice(json).map_err(|e| format!("{what}: {e}"))
}

impl Template {
    /// None: there is no template. If two have one name, the last one counts. Templates that no
    /// conversation uses may be invalid.
    pub fn new(sources: Vec<Source>, tokens: SpecialTokens) -> Result<Option<Self>, String> {
        let names: Vec<String> = sources.iter().map(|source| source.name.clone()).collect();
        let mut served: Vec<Served> = Vec::new();
        for Source { name, file, text } in sources {
            if SERVED.contains(&name.as_str()) {
                let template = without_panic(|| jinja::Template::new(&text))
                    .map_err(|e| format!("{file}: {e}"))?;
                let cuts = Cuts::new(template.constants())?;
                served.retain(|known| known.name != name);
                served.push(Served { name, source: text, template, cuts });
            }
        }
        Ok(Some(Template { served, names, tokens }).filter(|t| !t.names.is_empty()))
    }

    /// Chooses the template of a conversation.
    fn choose(&self, has_tools: bool) -> Result<&Served, String> {
        let find = |name: &str| self.served.iter().find(|served| served.name == name);
        let with_tools = if has_tools { find(TOOL_USE) } else { None };
        let chosen = with_tools.or_else(|| find(DEFAULT)).ok_or_else(|| {
            format!(
                "this conversation needs the chat template \"{DEFAULT}\"; the model has only: {}",
                self.names.join(", ")
            )
        })?;
        Ok(chosen)
    }

    /// The templates themselves, one after the other.
    pub fn sources(&self) -> String {
        self.served.iter().map(|served| served.source.as_str()).collect()
    }

    /// The text, and the character that guards the `spellings` in it.
    pub fn render(
        &self,
        conversation: &Conversation,
        spellings: Option<&Spellings>,
        held_bytes: HeldBytes,
    ) -> Result<(Vec<u8>, Option<char>), String> {
        let Served { template, cuts, .. } = self.choose(!conversation.tools.is_empty())?;
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
                client_text::guard(spellings, cuts, &mut messages, &mut tools, &mut kwargs)?
            }
            None => None,
        };
        let mut variables = serde_json::Map::new();
        variables.extend(self.tokens.named.clone());
        if !self.tokens.additional_special_tokens.is_empty() {
            variables.insert(
                "additional_special_tokens".into(),
                Json::from(self.tokens.additional_special_tokens.clone()),
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

        let text = template.render(&variables, held_bytes).map_err(|failure| match failure {
            Failure::Raised(message) => {
                format!("the chat template refuses this conversation: {message}")
            }
            Failure::Failed(message) => message,
        })?;
        Ok((text.into_bytes(), guard))
    }
}
