// SPDX-License-Identifier: Apache-2.0
//! Values that cross the interface: what C++ lends is read, what it gets is handed over.

use crate::{special_tokens, FfiBytes, FfiIds, FfiNumbers, FfiStr, FfiTokenFiles};

impl FfiBytes {
    pub(crate) fn new(mut bytes: Vec<u8>) -> Self {
        let out =
            FfiBytes { data: bytes.as_mut_ptr(), size: bytes.len(), capacity: bytes.capacity() };
        std::mem::forget(bytes);
        out
    }
}

impl FfiIds {
    pub(crate) fn new(mut ids: Vec<u32>) -> Self {
        let out = FfiIds { data: ids.as_mut_ptr(), size: ids.len(), capacity: ids.capacity() };
        std::mem::forget(ids);
        out
    }
}

impl FfiStr {
    pub(crate) unsafe fn bytes<'a>(self) -> &'a [u8] {
        if self.size == 0 {
            return &[];
        }
        std::slice::from_raw_parts(self.data, self.size)
    }

    pub(crate) unsafe fn text<'a>(self, what: &str) -> Result<&'a str, String> {
        std::str::from_utf8(self.bytes())
            .map_err(|e| format!("{what} is not UTF-8 at byte {}", e.valid_up_to()))
    }
}

impl FfiTokenFiles {
    pub(crate) unsafe fn files<'a>(self) -> special_tokens::TokenFiles<'a> {
        special_tokens::TokenFiles {
            tokenizer: self.tokenizer.bytes(),
            tokenizer_config: self.tokenizer_config.bytes(),
            special_tokens_map: self.special_tokens_map.bytes(),
            added_tokens: self.added_tokens.bytes(),
            model_config: self.model_config.bytes(),
        }
    }
}

impl FfiNumbers {
    pub(crate) unsafe fn slice<'a>(self) -> &'a [u32] {
        if self.size == 0 {
            return &[];
        }
        std::slice::from_raw_parts(self.data, self.size)
    }
}
