// SPDX-License-Identifier: Apache-2.0
//! Calls: macros, and everything else that a template may call.

use std::rc::Rc;
use std::sync::Arc;

use super::arguments::Args;
use super::ast;
use super::dict::Dict;
use super::error::{fail, Result};
use super::globals;
use super::interpreter::Interpreter;
use super::methods;
use super::scope::Scope;
use super::value::{Kind, Value};

/// A macro, or the body of a call block.
pub struct Macro {
    pub node: Arc<ast::Macro>,
    /// That of its definition.
    pub scope: Rc<Scope>,
}

impl Macro {
    pub fn attribute(&self, name: &str) -> Option<Value> {
        Some(match name {
            "name" => self.node.name.clone().map_or(Value::None, Value::str),
            "arguments" => {
                let names = self.node.parameters.iter().map(|name| Value::str(name.clone()));
                Value::tuple(names.collect()).ok()?
            }
            "catch_kwargs" => Value::Bool(self.node.takes_kwargs),
            "catch_varargs" => Value::Bool(self.node.takes_varargs),
            "caller" => Value::Bool(self.node.takes_caller),
            "explicit_caller" => {
                Value::Bool(self.node.parameters.iter().any(|name| **name == *"caller"))
            }
            _ => return None,
        })
    }
}

impl Interpreter<'_> {
    pub fn call(&self, callee: &Value, args: Args) -> Result<Value> {
        if let Value::Undefined(missing) = callee {
            return Value::undefined_error(missing);
        }
        match callee.kind() {
            Some(Kind::Method { receiver, name }) => methods::call(receiver, name, args),
            Some(Kind::Function(name)) => globals::call(self, name, args),
            Some(Kind::Macro(called)) => self.call_macro(called, args),
            Some(Kind::Loop(state)) => self.call_loop(state, args),
            Some(Kind::Joiner { separator, is_used }) => {
                args.bind("joiner", "")?;
                Ok(if is_used.replace(true) { separator.clone() } else { Value::str("") })
            }
            Some(Kind::Block(name)) => {
                args.bind("block", "")?;
                let mut out = String::new();
                self.run_block(name, &self.root, &mut out)?;
                Ok(if self.is_escaping.get() { Value::markup(out) } else { Value::str(out) })
            }
            _ => fail(format!("'{}' object is not callable", callee.type_name())),
        }
    }

    fn call_macro(&self, called: &Macro, mut args: Args) -> Result<Value> {
        let node = &called.node;
        let scope = Scope::new(Some(&called.scope));
        let name = node.name.as_deref().unwrap_or("caller");
        let num_positional = node.parameters.len().min(args.positional.len());
        let varargs = args.positional.split_off(num_positional);
        let mut positional = args.positional.into_iter();
        let mut has_caller = false;
        let mut given = Vec::new();
        for parameter in &node.parameters {
            let value = positional.next().or_else(|| {
                let at = args.named.iter().position(|(other, _)| other == parameter)?;
                Some(args.named.remove(at).1)
            });
            has_caller |= **parameter == *"caller";
            given.push(value);
        }
        let mut take_caller = || {
            let at = args.named.iter().position(|(other, _)| **other == *"caller")?;
            Some(args.named.remove(at).1).filter(|caller| !matches!(caller, Value::None))
        };
        if node.takes_caller && !has_caller {
            let caller = take_caller().unwrap_or_else(|| Value::hint("No caller defined"));
            scope.set(&Arc::from("caller"), caller);
        }
        if node.takes_kwargs {
            let mut kwargs = Dict::default();
            for (name, value) in args.named {
                kwargs.insert_str(&name, value);
            }
            scope.set(&Arc::from("kwargs"), Value::dict(kwargs)?);
        } else if let Some((unknown, _)) = args.named.first() {
            return fail(format!("macro '{name}' takes no keyword argument '{unknown}'"));
        }
        if node.takes_varargs {
            scope.set(&Arc::from("varargs"), Value::tuple(varargs)?);
        } else if !varargs.is_empty() {
            return fail(format!(
                "macro '{name}' takes not more than {} argument(s)",
                node.parameters.len()
            ));
        }
        let first_default = node.parameters.len() - node.defaults.len();
        for (at, (parameter, value)) in node.parameters.iter().zip(given).enumerate() {
            let value = match value {
                Some(value) => value,
                None if at >= first_default => {
                    self.evaluate(&node.defaults[at - first_default], &scope)?
                }
                None => Value::hint(format!("parameter '{parameter}' was not provided")),
            };
            scope.set(parameter, value);
        }
        self.captured(&node.body, &scope)
    }
}
