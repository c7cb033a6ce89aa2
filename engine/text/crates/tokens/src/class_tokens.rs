// SPDX-License-Identifier: Apache-2.0
//! Special tokens that a tokenizer class has in transformers if the configuration does not name
//! them.

use aho_corasick::AhoCorasick;

const LLAMA: &[(&str, &str)] =
    &[("bos_token", "<s>"), ("eos_token", "</s>"), ("unk_token", "<unk>")];
const GPT2: &[(&str, &str)] = &[
    ("bos_token", "<|endoftext|>"),
    ("eos_token", "<|endoftext|>"),
    ("unk_token", "<|endoftext|>"),
];
const GPT_NEO_X: &[(&str, &str)] = &[
    ("bos_token", "<|endoftext|>"),
    ("eos_token", "<|endoftext|>"),
    ("unk_token", "<|endoftext|>"),
    ("pad_token", "<|padding|>"),
];
const QWEN2: &[(&str, &str)] = &[
    ("eos_token", "<|endoftext|>"),
    ("unk_token", "<|endoftext|>"),
    ("pad_token", "<|endoftext|>"),
];
const GEMMA: &[(&str, &str)] = &[
    ("bos_token", "<bos>"),
    ("eos_token", "<eos>"),
    ("unk_token", "<unk>"),
    ("pad_token", "<pad>"),
    ("mask_token", "<mask>"),
];
const COHERE: &[(&str, &str)] = &[
    ("bos_token", "<BOS_TOKEN>"),
    ("eos_token", "<|END_OF_TURN_TOKEN|>"),
    ("unk_token", "<UNK>"),
    ("sep_token", "<SEP>"),
    ("pad_token", "<PAD>"),
    ("cls_token", "<CLS>"),
    ("mask_token", "<MASK_TOKEN>"),
];

/// Whether tokenizer.json is byte-level, judged by its text.
fn is_byte_level(tokenizer: &[u8]) -> bool {
    let is_type = |at: usize| {
        let before = tokenizer[..at].trim_ascii_end();
        before.strip_suffix(b":").is_some_and(|key| key.trim_ascii_end().ends_with(b"\"type\""))
    };
    let name = AhoCorasick::new(["\"ByteLevel\""]).expect("one short pattern");
    let found = name.find_iter(tokenizer).any(|found| is_type(found.start()));
    found
}

/// The names and texts of the class's special tokens. `tokenizer` is tokenizer.json: a byte-level
/// one that claims the class of Llama is not Llama's, and has no such tokens.
pub fn class_tokens(class: &str, tokenizer: &[u8]) -> &'static [(&'static str, &'static str)] {
    match class.strip_suffix("Fast").unwrap_or(class) {
        "LlamaTokenizer" if !is_byte_level(tokenizer) => LLAMA,
        "GPT2Tokenizer" | "CodeGenTokenizer" => GPT2,
        "GPTNeoXTokenizer" => GPT_NEO_X,
        "Qwen2Tokenizer" => QWEN2,
        "GemmaTokenizer" => GEMMA,
        "CohereTokenizer" => COHERE,
        _ => &[],
    }
}
