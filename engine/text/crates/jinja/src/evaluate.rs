// SPDX-License-Identifier: Apache-2.0
//! Expressions of a template.

use std::rc::Rc;
use std::sync::Arc;

use super::arguments::Args;
use super::ast::{Arguments, Condition, Expr, Name};
use super::budget;
use super::checks;
use super::dict::Dict;
use super::error::{fail, Result};
use super::filters;
use super::globals;
use super::interpreter::Interpreter;
use super::markup::escape;
use super::operators;
use super::scope::Scope;
use super::subscript;
use super::value::{Kind, Missing, Str, Value};
use super::write::text;

impl Interpreter<'_> {
    pub fn variable(&self, name: &Name, scope: &Rc<Scope>) -> Value {
        if let Some(value) = scope.get(name) {
            return value;
        }
        if **name == *"self" {
            let names = self.template.blocks.iter().map(|(name, _)| name.clone()).collect();
            return Value::object(Kind::Blocks(names), &[]).unwrap_or(Value::None);
        }
        globals::named(name)
            .unwrap_or_else(|| Value::Undefined(Rc::new(Missing::Name(name.clone()))))
    }

    fn all(&self, expressions: &[Expr], scope: &Rc<Scope>) -> Result<Vec<Value>> {
        expressions.iter().map(|expression| self.evaluate(expression, scope)).collect()
    }

    pub fn evaluate(&self, expression: &Expr, scope: &Rc<Scope>) -> Result<Value> {
        budget::spend(1)?;
        Ok(match expression {
            Expr::None => Value::None,
            Expr::Bool(value) => Value::Bool(*value),
            Expr::Int(value) => Value::Int(*value),
            Expr::Big(value) => Value::big(value.clone()),
            Expr::Float(value) => Value::Float(*value),
            Expr::Str(text) => Value::Str(Str { text: text.clone(), is_markup: false }),
            Expr::Name(name) => self.variable(name, scope),
            _ => {
                budget::check_stack()?;
                return self.evaluate_inner(expression, scope);
            }
        })
    }

    fn evaluate_inner(&self, expression: &Expr, scope: &Rc<Scope>) -> Result<Value> {
        match expression {
            Expr::Tuple(items) => Value::tuple(self.all(items, scope)?),
            Expr::List(items) => Value::list(self.all(items, scope)?),
            Expr::Dict(items) => {
                let mut dict = Dict::default();
                for (key, value) in items {
                    dict.insert(self.evaluate(key, scope)?, self.evaluate(value, scope)?)?;
                }
                Value::dict(dict)
            }
            Expr::Attribute(inner, name) => {
                subscript::attribute(&self.evaluate(inner, scope)?, name)
            }
            Expr::Item(inner, item) => {
                let inner = self.evaluate(inner, scope)?;
                if let Expr::Slice(parts) = &**item {
                    return self.slice(&inner, parts, scope);
                }
                subscript::item(&inner, &self.evaluate(item, scope)?)
            }
            Expr::Slice(_) => fail("a slice is no key"),
            Expr::Call(..) => self.call_with(expression, None, scope),
            Expr::Filter(filter) => {
                let input = match &filter.input {
                    Some(input) => self.evaluate(input, scope)?,
                    None => Value::None,
                };
                let args = self.arguments(&filter.arguments, scope)?;
                filters::apply(self, &filter.name, input, args)
            }
            Expr::Test(inner, name, arguments) => {
                let inner = self.evaluate(inner, scope)?;
                let args = self.arguments(arguments, scope)?;
                checks::apply(name, &inner, args).map(Value::Bool)
            }
            Expr::Not(inner) => Ok(Value::Bool(!self.evaluate(inner, scope)?.is_true())),
            Expr::And(both) => {
                let left = self.evaluate(&both.0, scope)?;
                if left.is_true() {
                    self.evaluate(&both.1, scope)
                } else {
                    Ok(left)
                }
            }
            Expr::Or(both) => {
                let left = self.evaluate(&both.0, scope)?;
                if left.is_true() {
                    Ok(left)
                } else {
                    self.evaluate(&both.1, scope)
                }
            }
            Expr::Unary(operator, inner) => {
                operators::unary(operator, &self.evaluate(inner, scope)?)
            }
            Expr::Binary(operator, both) => {
                let left = self.evaluate(&both.0, scope)?;
                operators::binary(operator, &left, &self.evaluate(&both.1, scope)?)
            }
            Expr::Compare(first, rest) => self.comparison(first, rest, scope),
            Expr::Concat(parts) => self.concatenation(parts, scope),
            Expr::Condition(condition) => self.condition(condition, scope),
            _ => self.evaluate(expression, scope),
        }
    }

    fn condition(&self, condition: &Condition, scope: &Rc<Scope>) -> Result<Value> {
        if self.evaluate(&condition.test, scope)?.is_true() {
            return self.evaluate(&condition.then, scope);
        }
        match &condition.otherwise {
            Some(otherwise) => self.evaluate(otherwise, scope),
            None => Ok(Value::hint(
                "the inline if-expression evaluated to false and no else section was defined.",
            )),
        }
    }

    fn comparison(
        &self,
        first: &Expr,
        rest: &[(&'static str, Expr)],
        scope: &Rc<Scope>,
    ) -> Result<Value> {
        let mut left = self.evaluate(first, scope)?;
        for (operator, right) in rest {
            let right = self.evaluate(right, scope)?;
            if !operators::compare(operator, &left, &right)? {
                return Ok(Value::Bool(false));
            }
            left = right;
        }
        Ok(Value::Bool(true))
    }

    fn concatenation(&self, parts: &[Expr], scope: &Rc<Scope>) -> Result<Value> {
        let parts = self.all(parts, scope)?;
        let is_markup = self.is_escaping.get() && parts.iter().any(Value::is_markup);
        let mut out = String::new();
        for part in &parts {
            out.push_str(&if is_markup { escape(part)? } else { text(part)? });
            budget::check_text(out.len())?;
        }
        budget::spend_text(out.len())?;
        Ok(if is_markup { Value::markup(out) } else { Value::str(out) })
    }

    fn slice(&self, inner: &Value, parts: &[Option<Expr>; 3], scope: &Rc<Scope>) -> Result<Value> {
        let mut bounds = [Value::None, Value::None, Value::None];
        for (bound, part) in bounds.iter_mut().zip(parts) {
            if let Some(part) = part {
                *bound = self.evaluate(part, scope)?;
            }
        }
        subscript::slice(inner, &bounds)
    }

    pub fn arguments(&self, arguments: &Arguments, scope: &Rc<Scope>) -> Result<Args> {
        let mut args = Args { positional: self.all(&arguments.positional, scope)?, named: vec![] };
        for (name, value) in &arguments.named {
            args.named.push((name.clone(), self.evaluate(value, scope)?));
        }
        if let Some(more) = &arguments.more_positional {
            args.positional.extend(self.evaluate(more, scope)?.iterate()?);
        }
        if let Some(more) = &arguments.more_named {
            let more = self.evaluate(more, scope)?;
            let Value::Dict(mapping) = &more else {
                return fail(format!(
                    "argument after ** must be a mapping, not {}",
                    more.type_name()
                ));
            };
            for (key, value) in mapping.dict.iter() {
                let Some(key) = key.as_str() else { return fail("keywords must be strings") };
                if args.named.iter().any(|(name, _)| **name == *key) {
                    return fail(format!("got multiple values for keyword argument '{key}'"));
                }
                args.named.push((Arc::from(key), value.clone()));
            }
        }
        Ok(args)
    }

    /// A call, with what its call block passes.
    pub fn call_with(
        &self,
        call: &Expr,
        caller: Option<Value>,
        scope: &Rc<Scope>,
    ) -> Result<Value> {
        let Expr::Call(callee, arguments) = call else { return fail("expected call") };
        let callee = self.evaluate(callee, scope)?;
        let mut args = self.arguments(arguments, scope)?;
        if let Some(caller) = caller {
            args.named.push((Arc::from("caller"), caller));
        }
        self.call(&callee, args)
    }
}
