// SPDX-License-Identifier: Apache-2.0
//! A tokenizer.json together with the special tokens of the other files. As in transformers, only
//! this file defines the post-processing: add_bos_token and add_eos_token of the configuration are
//! ignored.

use std::collections::HashSet;

use panics::without_panic;
use serde_json::Value;
use tokenizers::models::bpe::BPE;
use tokenizers::{AddedToken, Model, NormalizedString, OffsetType, PreTokenizer, Token, Tokenizer};
use tokenizers::{ModelWrapper, TruncationDirection};

use crate::client_text::Spellings;
use crate::special_tokens::{SpecialTokens, TokenFiles};
use crate::token_bound;
use crate::token_bytes::{self, TokenTable};

/// The maximum length of tables by id, so that one huge id in a file cannot exhaust memory.
const MAX_VOCAB: u32 = 1 << 22;

pub struct TextTokenizer {
    tokenizer: Tokenizer,
    decoder: Value,
    /// Ids of special tokens but the unknown one.
    special: HashSet<u32>,
    /// The id of the named eos_token.
    pub eos: Option<u32>,
    pub spellings: Spellings,
    /// See token_bound.rs.
    pub max_token_bytes: Option<usize>,
}

pub struct EncodeOptions {
    pub add_special_tokens: bool,
    /// Occurs in spellings of special tokens that are plain text; see client_text.rs.
    pub guard: Option<char>,
    /// Once there are more tokens, the rest of the text is skipped.
    pub max_tokens: Option<usize>,
}

/// The id that the crate gives to a token that the vocabulary lacks.
fn next_id(tokenizer: &Tokenizer) -> usize {
    let words = tokenizer.get_model().get_vocab_size();
    let last = tokenizer.get_added_vocabulary().get_vocab().values().max().copied();
    last.map_or(words, |last| words.max(last as usize + 1))
}

/// Adds the tokens that the model's other files name, as transformers does: listed tokens with
/// their flags in id order, then the other special ones. A token that the vocabulary lacks gets the
/// next id if the model has a row for it, and stays unknown otherwise.
fn add_named(tokenizer: &mut Tokenizer, tokens: &SpecialTokens) -> Result<(), String> {
    let added = tokenizer.get_added_tokens_decoder();
    let mut wanted = Vec::new();
    for listed in &tokens.listed {
        if listed.yields && added.contains_key(&listed.id) {
            continue;
        }
        let content = &listed.token.content;
        let special = listed.token.special || tokens.contains(content);
        wanted.push(listed.token.clone().special(special));
    }
    for content in tokens.contents() {
        if wanted.iter().any(|token| token.content == content) {
            continue;
        }
        let is_marked = tokens.marked.iter().any(|known| known == content);
        match tokenizer.token_to_id(content).and_then(|id| added.get(&id)) {
            None => wanted.push(AddedToken::from(content, true)),
            Some(token) if is_marked && !token.special => {
                wanted.push(token.clone().special(true));
            }
            Some(_) => {}
        }
    }
    for token in wanted {
        let is_known = tokenizer.token_to_id(&token.content).is_some();
        if is_known || tokens.model_rows.is_some_and(|rows| next_id(tokenizer) < rows) {
            tokenizer.add_tokens([token]).map_err(|e| format!("tokenizer_config.json: {e}"))?;
        }
    }
    Ok(())
}

/// Dropout between 0 and 1 is for training: it skips merges at random, so a served text would have
/// different tokens each time.
fn check_repeats(tokenizer: &Tokenizer) -> Result<(), String> {
    let ModelWrapper::BPE(BPE { dropout: Some(dropout), .. }) = tokenizer.get_model() else {
        return Ok(());
    };
    if *dropout > 0.0 && *dropout < 1.0 {
        return Err(format!(
            "tokenizer.json: model: dropout is {dropout}, which makes tokens random; allowed: \
             null, 0 and 1"
        ));
    }
    Ok(())
}

impl TextTokenizer {
    pub fn new(files: &TokenFiles) -> Result<Self, String> {
        let json = files.tokenizer;
        let parsed: Value =
            serde_json::from_slice(json).map_err(|e| format!("tokenizer.json: {e}"))?;
        let tokens = SpecialTokens::read(files)?;
        let decoder = parsed.get("decoder").cloned().unwrap_or(Value::Null);
        let mut tokenizer =
            without_panic(|| Tokenizer::from_bytes(json).map_err(|e| e.to_string()))
                .map_err(|e| format!("tokenizer.json: {e}"))?;
        check_repeats(&tokenizer)?;
        // A prompt that is too long is refused, never truncated or padded.
        tokenizer.with_truncation(None).map_err(|e| format!("tokenizer.json: {e}"))?;
        tokenizer.with_padding(None);
        add_named(&mut tokenizer, &tokens)?;
        let added = tokenizer.get_added_tokens_decoder();
        let unknown = parsed["model"]["unk_token"].as_str().and_then(|t| tokenizer.token_to_id(t));
        let unknown = unknown.or(parsed["model"]["unk_id"].as_u64().map(|id| id as u32));
        let special = added.iter().filter(|(_, token)| token.special);
        let names: Vec<String> = special.clone().map(|(_, token)| token.content.clone()).collect();
        Ok(TextTokenizer {
            special: special.map(|(id, _)| *id).filter(|id| Some(*id) != unknown).collect(),
            eos: tokens.eos().and_then(|content| tokenizer.token_to_id(content)),
            spellings: Spellings::new(&names, tokenizer.get_normalizer().cloned())?,
            max_token_bytes: token_bound::max_token_bytes(&parsed, &tokenizer),
            tokenizer,
            decoder,
        })
    }

    pub fn encode(&self, text: &str, options: &EncodeOptions) -> Result<Vec<u32>, String> {
        let encoding = self.encode_text(text, options).map_err(|e| e.to_string())?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The crate's encode_fast step by step; the guards are removed between its first two steps.
    fn encode_text(
        &self,
        text: &str,
        options: &EncodeOptions,
    ) -> tokenizers::Result<tokenizers::Encoding> {
        let crate_ = &self.tokenizer;
        let mut pieces =
            crate_.get_added_vocabulary().extract_and_normalize(crate_.get_normalizer(), text);
        if let Some(guard) = options.guard {
            pieces.normalize(|piece| {
                piece.filter(|c| c != guard);
                Ok(())
            })?;
        }
        if let Some(pre_tokenizer) = crate_.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut pieces)?;
        }
        let words = |word: &NormalizedString| match options.guard {
            None => crate_.get_model().tokenize(word.get()),
            Some(_) => self.plain_tokens(word.get()),
        };
        let limit = options.max_tokens.map_or(usize::MAX, |max| max.saturating_add(1));
        pieces.tokenize_with_limit(words, limit, TruncationDirection::Right)?;
        let encoding = pieces.into_encoding(None, 0, OffsetType::None)?;
        crate_.post_process(encoding, None, options.add_special_tokens)
    }

    /// A model whose words include special tokens would find them in text, so such a word is
    /// spelled out.
    fn plain_tokens(&self, word: &str) -> tokenizers::Result<Vec<Token>> {
        let model = self.tokenizer.get_model();
        let tokens = model.tokenize(word)?;
        if !tokens.iter().any(|token| self.special.contains(&token.id)) {
            return Ok(tokens);
        }
        let mut spelled = Vec::new();
        for (start, c) in word.char_indices() {
            spelled.extend(model.tokenize(&word[start..start + c.len_utf8()])?);
        }
        Ok(spelled)
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
