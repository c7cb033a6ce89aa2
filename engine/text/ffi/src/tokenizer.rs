//! A tokenizer.json, with the special tokens that tokenizer_config.json names. As in transformers
//! the file alone decides what post-processing adds: add_bos_token and add_eos_token of the
//! configuration are ignored beside it.

use serde_json::Value;
use tokenizers::{AddedToken, Tokenizer};

use crate::token_bytes::{self, TokenTable};

/// Ids are kept in tables of this length at most: a file's one huge id must not take all memory.
const MAX_VOCAB: u32 = 1 << 22;

const NAMED_TOKENS: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

pub struct TextTokenizer {
    tokenizer: Tokenizer,
    decoder: Value,
}

/// tokenizer_config.json as an object; empty bytes are an empty object.
pub fn parse_config(config: &[u8]) -> Result<serde_json::Map<String, Value>, String> {
    if config.is_empty() {
        return Ok(serde_json::Map::new());
    }
    match serde_json::from_slice(config) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err("tokenizer_config.json: not a JSON object".into()),
        Err(e) => Err(format!("tokenizer_config.json: {e}")),
    }
}

/// A token is written as a string or as an object with "content".
pub fn token_content(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value.get("content")?.as_str())
}

/// bos_token, eos_token and so on, as far as the configuration names them.
pub fn named_tokens(config: &serde_json::Map<String, Value>) -> Vec<(&'static str, &str)> {
    NAMED_TOKENS
        .iter()
        .filter_map(|name| Some((*name, token_content(config.get(*name)?)?)))
        .collect()
}

impl TextTokenizer {
    pub fn new(json: &[u8], config: &[u8]) -> Result<Self, String> {
        let parsed: Value =
            serde_json::from_slice(json).map_err(|e| format!("tokenizer.json: {e}"))?;
        let config = parse_config(config)?;
        let decoder = parsed.get("decoder").cloned().unwrap_or(Value::Null);
        drop(parsed);
        let mut tokenizer =
            Tokenizer::from_bytes(json).map_err(|e| format!("tokenizer.json: {e}"))?;
        // A prompt is refused when it is too long, never cut or filled up.
        tokenizer.with_truncation(None).map_err(|e| format!("tokenizer.json: {e}"))?;
        tokenizer.with_padding(None);
        let mut made = TextTokenizer { tokenizer, decoder };
        made.mark_special(&config)?;
        Ok(made)
    }

    /// The tokens that the configuration names are special even where tokenizer.json does not say
    /// so. Ones that the vocabulary lacks stay unknown: the model has no row for them.
    fn mark_special(&mut self, config: &serde_json::Map<String, Value>) -> Result<(), String> {
        let extra = config.get("additional_special_tokens").and_then(Value::as_array);
        let extra = extra.into_iter().flatten().filter_map(token_content);
        let names: Vec<&str> =
            named_tokens(config).into_iter().map(|(_, content)| content).chain(extra).collect();
        let added = self.tokenizer.get_added_tokens_decoder();
        let mut missing = Vec::new();
        for name in names {
            let Some(id) = self.tokenizer.token_to_id(name) else { continue };
            match added.get(&id) {
                Some(token) if token.special => {}
                Some(token) => missing.push(token.clone().special(true)),
                None => missing.push(AddedToken::from(name, true).normalized(false)),
            }
        }
        self.tokenizer
            .add_special_tokens(missing)
            .map(|_| ())
            .map_err(|e| format!("tokenizer_config.json: {e}"))
    }

    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, String> {
        let encoding =
            self.tokenizer.encode_fast(text, add_special_tokens).map_err(|e| e.to_string())?;
        Ok(encoding.get_ids().to_vec())
    }

    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String, String> {
        self.tokenizer.decode(ids, skip_special_tokens).map_err(|e| e.to_string())
    }

    pub fn table(&self) -> Result<TokenTable, String> {
        let vocab = self.tokenizer.get_vocab(true);
        let added = self.tokenizer.get_added_tokens_decoder();
        let last = vocab
            .values()
            .chain(added.keys())
            .max()
            .copied()
            .ok_or("tokenizer.json: the vocabulary is empty")?;
        if last >= MAX_VOCAB {
            return Err(format!(
                "tokenizer.json: token id {last} is above the limit of {}",
                MAX_VOCAB - 1
            ));
        }
        let mut tokens: Vec<Option<(String, bool)>> = vec![None; last as usize + 1];
        for (content, id) in vocab {
            tokens[id as usize] = Some((content, false));
        }
        for (id, token) in added {
            tokens[id as usize] = Some((token.content, token.special));
        }
        Ok(token_bytes::make_table(&self.decoder, &tokens))
    }
}
