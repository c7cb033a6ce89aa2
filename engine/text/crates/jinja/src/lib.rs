// SPDX-License-Identifier: Apache-2.0
#![doc = include_str!("../README.md")]

mod arguments;
mod ast;
mod budget;
mod calls;
mod characters;
mod checks;
mod dict;
mod error;
mod evaluate;
mod expressions;
mod filters;
mod format_spec;
mod globals;
mod interpreter;
mod json;
mod lexer;
mod loops;
mod markup;
mod methods;
mod number;
mod operators;
mod parser;
mod parser_functions;
mod percent_format;
mod pretty;
mod range;
mod scope;
mod sequence_filters;
mod str_format;
mod str_methods;
mod subscript;
mod text_filters;
mod value;
mod wrapping;
mod write;

use std::sync::Arc;

pub use budget::HeldBytes;
use interpreter::Interpreter;
use scope::Scope;

/// A parsed template.
pub struct Template(ast::Template);

/// Why a rendering failed.
#[derive(Debug)]
pub enum Failure {
    /// The template's own message, from raise_exception.
    Raised(String),
    /// The engine's message, with the template's line.
    Failed(String),
}

fn with_line(message: &str, line: u32) -> String {
    format!("{message} (in chat template:{line})")
}

impl Template {
    /// The error is a message with the template's line.
    pub fn new(source: &str) -> Result<Self, String> {
        match parser::parse(source) {
            Ok(template) => Ok(Template(template)),
            Err((message, line)) => Err(with_line(&message, line)),
        }
    }

    /// All string constants in the template's code.
    pub fn constants(&self) -> &[String] {
        &self.0.constants
    }

    /// `held_bytes` bounds the memory of the template's values; `|| 0` leaves it unbounded.
    pub fn render(
        &self,
        variables: &serde_json::Map<String, serde_json::Value>,
        held_bytes: HeldBytes,
    ) -> Result<String, Failure> {
        budget::begin(held_bytes);
        let root = Scope::new(None);
        let interpreter = Interpreter::new(&self.0, root.clone());
        let made = || {
            for (name, value) in variables {
                root.set(&Arc::from(name.as_str()), globals::from_json(value)?);
            }
            interpreter.render()
        };
        made().map_err(|error| match error {
            error::Error::Raised(message) => Failure::Raised(message),
            error::Error::Failed(message) => {
                Failure::Failed(with_line(&message, interpreter.error_line.get()))
            }
        })
    }
}
