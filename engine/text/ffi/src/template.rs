//! A chat template in the environment that transformers gives it: its whitespace rules, filters and
//! functions, and no way to files, other templates or the network.

use std::fmt;
use std::io;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde_json::Value as Json;

use crate::client_text::{self, Spellings};
use crate::python_format::{self, JsonStyle};
use crate::special_tokens::SpecialTokens;
use crate::template_files::{Source, DEFAULT, TOOL_USE};
use crate::without_panic;

/// Instructions a rendering may take: hundreds of times what a long conversation needs, and below a
/// second.
const MAX_FUEL: u64 = 5_000_000;
const MAX_TEXT_BYTES: usize = 32 << 20;

/// Templates that conversations get, and what messages call them.
const SERVED: [(&str, &str); 2] =
    [(DEFAULT, "chat template"), (TOOL_USE, "chat template tool_use")];

pub struct Template {
    environment: Environment<'static>,
    /// Names of all templates.
    names: Vec<String>,
    tokens: SpecialTokens,
}

/// What a client sent.
pub struct Conversation<'a> {
    pub messages: &'a [u8],
    pub kwargs: &'a [u8],
    /// A list, or empty: there are none.
    pub tools: &'a [u8],
    pub add_generation_prompt: bool,
}

/// What a template said by raise_exception.
#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

/// Takes the text up to a limit.
struct BoundedText(Vec<u8>);

impl io::Write for BoundedText {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_TEXT_BYTES {
            return Err(io::Error::other(format!("the text is above {MAX_TEXT_BYTES} bytes")));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// transformers' {% generation %} marks the assistant's text for training; for a prompt it is an
/// empty bracket.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let inside = &rest[at + 2..];
        let Some(end) = inside.find("%}") else { break };
        let words = inside[..end].trim_matches(|c: char| c == '-' || c == '+' || c.is_whitespace());
        out.push_str(&rest[..at + 2]);
        match words {
            "generation" => out.push_str(&inside[..end].replace("generation", "if true")),
            "endgeneration" => out.push_str(&inside[..end].replace("endgeneration", "endif")),
            _ => out.push_str(&inside[..end]),
        }
        out.push_str("%}");
        rest = &inside[end + 2..];
    }
    out.push_str(rest);
    out
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, "raised").with_source(Raised(message)))
}

fn strftime_now(format: String) -> Result<String, Error> {
    let wrong = || Error::new(ErrorKind::InvalidOperation, "strftime_now: a format without result");
    let format = std::ffi::CString::new(format).map_err(|_| wrong())?;
    let mut text = [0u8; 256];
    let length = unsafe {
        let now = libc::time(std::ptr::null_mut());
        let mut local: libc::tm = std::mem::zeroed();
        if libc::localtime_r(&now, &mut local).is_null() {
            return Err(wrong());
        }
        libc::strftime(text.as_mut_ptr().cast(), text.len(), format.as_ptr(), &local)
    };
    if length == 0 && !format.is_empty() {
        return Err(wrong());
    }
    String::from_utf8(text[..length].to_vec()).map_err(|_| wrong())
}

fn tojson(value: Value, options: Kwargs) -> Result<String, Error> {
    let separators: Option<Vec<String>> = options.get("separators")?;
    let indent: Option<Value> = options.get("indent")?;
    let style = JsonStyle {
        ensure_ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        indent: match indent.filter(|indent| !indent.is_none()) {
            None => None,
            Some(indent) => Some(indent.as_str().map_or_else(
                || " ".repeat(indent.as_usize().unwrap_or(0).min(64)),
                str::to_string,
            )),
        },
        separators: separators
            .filter(|pair| pair.len() == 2)
            .map(|mut pair| (pair.remove(0), pair.remove(0))),
    };
    options.assert_all_used()?;
    python_format::json(&value, &style)
}

fn make_environment() -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_fuel(Some(MAX_FUEL));
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(unknown_method_callback);
    environment.set_formatter(|out, _, value| {
        out.write_str(&python_format::text(value)?)?;
        Ok(())
    });
    environment.add_filter("tojson", tojson);
    environment.add_filter("string", |value: Value| python_format::text(&value));
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    environment.remove_global("debug");
    Ok(environment)
}

/// One line that says what went wrong: what the template raised, or the engine's words with the
/// template's line.
fn describe(error: &Error) -> String {
    let mut deepest: &dyn std::error::Error = error;
    while let Some(source) = deepest.source() {
        deepest = source;
        if let Some(Raised(message)) = deepest.downcast_ref::<Raised>() {
            return format!("the chat template refuses this conversation: {message}");
        }
    }
    if error.kind() == ErrorKind::OutOfFuel {
        return format!("the chat template took more than {MAX_FUEL} steps for this conversation");
    }
    let cause = if std::ptr::eq(deepest, error as &dyn std::error::Error) {
        String::new()
    } else {
        format!(": {deepest}")
    };
    format!("{error}{cause}")
}

fn parse_object(json: &[u8], what: &str) -> Result<serde_json::Map<String, Json>, String> {
    serde_json::from_slice(json).map_err(|e| format!("{what}: {e}"))
}

impl Template {
    /// None: there is no template. Those that no conversation gets may be wrong.
    pub fn new(sources: Vec<Source>, tokens: SpecialTokens) -> Result<Option<Self>, String> {
        let mut environment = make_environment().map_err(|e| describe(&e))?;
        let names: Vec<String> = sources.iter().map(|source| source.name.clone()).collect();
        for Source { name, file, text } in sources {
            let Some((_, key)) = SERVED.iter().find(|(served, _)| *served == name) else {
                continue;
            };
            let text = without_generation_tags(&text);
            without_panic(|| environment.add_template_owned(*key, text).map_err(|e| describe(&e)))
                .map_err(|e| format!("{file}: {e}"))?;
        }
        Ok(Some(Template { environment, names, tokens }).filter(|t| !t.names.is_empty()))
    }

    /// The one of several templates that a conversation gets.
    fn choose(&self, has_tools: bool) -> Result<minijinja::Template<'_, '_>, String> {
        let has = |name: &str| self.names.iter().any(|known| known == name);
        let name = if has_tools && has(TOOL_USE) { TOOL_USE } else { DEFAULT };
        let Some((_, key)) = SERVED.iter().find(|(served, _)| *served == name && has(name)) else {
            return Err(format!(
                "this conversation needs the chat template \"{DEFAULT}\"; the model has only: {}",
                self.names.join(", ")
            ));
        };
        self.environment.get_template(key).map_err(|e| describe(&e))
    }

    /// The templates themselves, one after the other.
    pub fn sources(&self) -> String {
        self.environment.templates().map(|(_, template)| template.source().to_string()).collect()
    }

    /// The text, and the character that guards what `spellings` has in it.
    pub fn render(
        &self,
        conversation: &Conversation,
        spellings: Option<&Spellings>,
    ) -> Result<(Vec<u8>, Option<char>), String> {
        let template = self.choose(!conversation.tools.is_empty())?;
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

        let mut text = BoundedText(Vec::new());
        template
            .render_captured_to(Value::from(Serde(&variables)), &mut text)
            .map_err(|e| describe(&e))?;
        Ok((text.0, guard))
    }
}
