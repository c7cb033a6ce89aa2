// SPDX-License-Identifier: Apache-2.0
//! The part of the parser for macros, call blocks and blocks.

use std::sync::Arc;

use super::ast::{Expr, Macro, Name, Node, Statement};
use super::error::{fail, Result};
use super::lexer;
use super::parser::Parser;

/// Which special names a macro's body uses, which makes it accept them.
#[derive(Clone, Copy, Default)]
pub struct Uses {
    pub caller: bool,
    pub kwargs: bool,
    pub varargs: bool,
}

impl Parser {
    /// Parameters with their defaults, from `(` to `)`.
    fn signature(&mut self) -> Result<(Vec<Name>, Vec<Expr>)> {
        let (mut names, mut defaults) = (Vec::<Name>::new(), Vec::new());
        self.expect("(")?;
        while !self.is(")") {
            if !names.is_empty() {
                self.expect(",")?;
            }
            let name = self.expect_name()?;
            if self.take("=") {
                defaults.push(self.expression()?);
            } else if !defaults.is_empty() {
                return fail("non-default argument follows default argument");
            }
            if names.iter().any(|other| **other == *name) {
                return fail(format!("the parameter {name} occurs twice"));
            }
            names.push(name.into());
        }
        self.expect(")")?;
        Ok((names, defaults))
    }

    fn macro_of(
        &mut self,
        name: Option<Name>,
        (parameters, defaults): (Vec<Name>, Vec<Expr>),
        end: &str,
    ) -> Result<Arc<Macro>> {
        self.uses.push(Uses::default());
        let body = self.function_scope(end)?;
        let uses = self.uses.pop().unwrap_or_default();
        let position = |name: &str| parameters.iter().position(|parameter| &**parameter == name);
        let first_default = parameters.len() - defaults.len();
        if uses.caller && position("caller").is_some_and(|at| at < first_default) {
            return fail("the special parameter \"caller\" needs a default");
        }
        Ok(Arc::new(Macro {
            takes_caller: uses.caller,
            takes_kwargs: uses.kwargs && position("kwargs").is_none(),
            takes_varargs: uses.varargs && position("varargs").is_none(),
            name,
            parameters,
            defaults,
            body,
        }))
    }

    pub fn macro_tag(&mut self) -> Result<Node> {
        let name = self.expect_name()?;
        let signature = self.signature()?;
        Ok(Node::Macro(self.macro_of(Some(name.into()), signature, "endmacro")?))
    }

    pub fn call_tag(&mut self) -> Result<Node> {
        let signature = if self.is("(") { self.signature()? } else { (Vec::new(), Vec::new()) };
        let call = self.expression()?;
        if !matches!(call, Expr::Call(..)) {
            return fail("expected call");
        }
        Ok(Node::CallBlock { call, body: self.macro_of(None, signature, "endcall")? })
    }

    pub fn block_tag(&mut self) -> Result<Node> {
        let name = self.expect_name()?;
        let is_scoped = self.take_name("scoped");
        let is_required = self.take_name("required");
        if self.blocks.iter().any(|(other, _)| **other == *name) {
            return fail(format!("block '{name}' defined twice"));
        }
        let name: Name = name.into();
        let place = self.blocks.len();
        self.blocks.push((name.clone(), Arc::new(Vec::new())));
        let body = self.function_scope("endblock")?;
        if is_required && !body.iter().all(is_blank) {
            return fail("required blocks can only contain comments or whitespace");
        }
        self.take_name(&name);
        self.blocks[place].1 = Arc::new(body);
        if is_required {
            return fail(format!("required block '{name}' not found"));
        }
        Ok(Node::Block { name, is_scoped })
    }
}

fn is_blank(statement: &Statement) -> bool {
    match &statement.node {
        Node::Data(text) => text.chars().all(lexer::is_space),
        _ => false,
    }
}
