// SPDX-License-Identifier: Apache-2.0
//! The interface to the crate `chat_template`.

use chat_template::{sources, Conversation, Template};
use tokens::special_tokens::SpecialTokens;

use crate::counted_memory::held_bytes;
use crate::tokens::{FfiTokenFiles, FfiTokenizer};
use crate::values::{guard, FfiBytes, FfiStr};

pub struct FfiTemplate(Template);

/// A chat template's file; its path in the model directory.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FfiTemplateFile {
    path: FfiStr,
    text: FfiStr,
}

/// `jinja` are the template's files, and `processor` is chat_template.json, empty if there is none.
/// Null without error: the model has no chat template. `passed_over`: a file with other templates;
/// unchanged if there is none.
#[no_mangle]
pub unsafe extern "C" fn ffi_template_load(
    jinja: *const FfiTemplateFile,
    num_jinja: usize,
    processor: FfiStr,
    files: FfiTokenFiles,
    passed_over: *mut FfiBytes,
    error: *mut FfiBytes,
) -> *mut FfiTemplate {
    guard(error, std::ptr::null_mut(), || {
        let mut templates = Vec::new();
        for i in 0..num_jinja {
            let file = *jinja.add(i);
            let path = file.path.text("a template's name")?;
            templates.push((path, file.text.text(path)?));
        }
        let found = sources(&templates, files.files().tokenizer_config, processor.bytes())?;
        if let Some(file) = found.passed_over {
            passed_over.write(FfiBytes::new(file.as_bytes().to_vec()));
        }
        let tokens = SpecialTokens::read(&files.files())?;
        let loaded = Template::new(found.sources, tokens)?;
        Ok(loaded.map_or(std::ptr::null_mut(), |template| {
            Box::into_raw(Box::new(FfiTemplate(template)))
        }))
    })
}

/// The Jinja text of the templates.
#[no_mangle]
pub unsafe extern "C" fn ffi_template_sources(
    template: *const FfiTemplate,
    text: *mut FfiBytes,
    error: *mut FfiBytes,
) -> bool {
    guard(error, false, || {
        text.write(FfiBytes::new((*template).0.sources().into_bytes()));
        Ok(true)
    })
}

#[no_mangle]
pub unsafe extern "C" fn ffi_template_free(template: *mut FfiTemplate) {
    if !template.is_null() {
        guard(std::ptr::null_mut(), (), || {
            drop(Box::from_raw(template));
            Ok(())
        });
    }
}

/// `tools` is a list, or empty for none. With a tokenizer, special tokens that the messages, tools
/// and arguments spell are guarded; `*guard_char` is the guard character, 0 if there was none.
#[no_mangle]
pub unsafe extern "C" fn ffi_template_render(
    template: *const FfiTemplate,
    tokenizer: *const FfiTokenizer,
    messages: FfiStr,
    kwargs: FfiStr,
    tools: FfiStr,
    add_generation_prompt: bool,
    text: *mut FfiBytes,
    guard_char: *mut u32,
    error: *mut FfiBytes,
) -> bool {
    guard(error, false, || {
        let spellings = tokenizer.as_ref().map(|tokenizer| &tokenizer.0.spellings);
        let conversation = Conversation {
            messages: messages.bytes(),
            kwargs: kwargs.bytes(),
            tools: tools.bytes(),
            add_generation_prompt,
        };
        let (rendered, guarded_by) = (*template).0.render(&conversation, spellings, held_bytes)?;
        guard_char.write(guarded_by.map_or(0, u32::from));
        text.write(FfiBytes::new(rendered));
        Ok(true)
    })
}
