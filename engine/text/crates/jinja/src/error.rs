// SPDX-License-Identifier: Apache-2.0
//! What goes wrong in a template.

#[derive(Debug)]
pub enum Error {
    /// The template called raise_exception.
    Raised(String),
    Failed(String),
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub fn message(&self) -> &str {
        match self {
            Error::Raised(message) | Error::Failed(message) => message,
        }
    }
}

pub fn fail<T>(message: impl Into<String>) -> Result<T> {
    Err(Error::Failed(message.into()))
}
