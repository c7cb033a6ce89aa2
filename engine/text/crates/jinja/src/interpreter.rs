// SPDX-License-Identifier: Apache-2.0
//! Renders a template: its statements. evaluate.rs has the expressions.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use super::arguments::Args;
use super::ast::{Expr, Node, Statement, Target, Template};
use super::budget;
use super::calls::Macro;
use super::error::{fail, Result};
use super::markup::escape;
use super::scope::Scope;
use super::value::{Kind, Object, Value};
use super::write::text;

/// Where execution continues after a body.
#[derive(Clone, Copy, PartialEq)]
pub enum Flow {
    Next,
    Break,
    Continue,
}

pub struct Interpreter<'a> {
    pub template: &'a Template,
    /// The client's variables, and those that the template sets outside all loops and macros.
    pub root: Rc<Scope>,
    pub is_escaping: Cell<bool>,
    /// The line of the statement that failed; 0: none has.
    pub error_line: Cell<u32>,
    /// Objects that may contain themselves; they are cleared at the end to break the cycles.
    scopes: RefCell<Vec<Rc<Scope>>>,
    namespaces: RefCell<Vec<Rc<Object>>>,
}

impl Drop for Interpreter<'_> {
    fn drop(&mut self) {
        let scopes = self.scopes.take();
        let mut values: Vec<_> = scopes.iter().flat_map(|scope| scope.clear()).collect();
        values.extend(self.root.clear());
        for object in self.namespaces.take() {
            if let Kind::Namespace(dict) = &object.kind {
                dict.borrow_mut().clear();
            }
        }
    }
}

impl<'a> Interpreter<'a> {
    pub fn new(template: &'a Template, root: Rc<Scope>) -> Self {
        Interpreter {
            template,
            root,
            is_escaping: Cell::new(false),
            error_line: Cell::new(0),
            scopes: RefCell::default(),
            namespaces: RefCell::default(),
        }
    }

    pub fn hold_scope(&self, scope: &Rc<Scope>) {
        if !self.scopes.borrow().last().is_some_and(|last| Rc::ptr_eq(last, scope)) {
            self.scopes.borrow_mut().push(scope.clone());
        }
    }

    pub fn hold_namespace(&self, namespace: &Value) {
        if let Value::Object(object) = namespace {
            self.namespaces.borrow_mut().push(object.clone());
        }
    }

    pub fn render(&self) -> Result<String> {
        let mut out = String::new();
        self.run(&self.template.body, &self.root, &mut out)?;
        Ok(out)
    }

    fn push(&self, text: &str, out: &mut String) -> Result<()> {
        budget::spend_text(text.len())?;
        budget::check_text(out.len() + text.len())?;
        out.push_str(text);
        Ok(())
    }

    pub fn run(&self, body: &[Statement], scope: &Rc<Scope>, out: &mut String) -> Result<Flow> {
        budget::check_stack()?;
        for statement in body {
            budget::spend(1)?;
            let flow = self.run_one(&statement.node, scope, out).inspect_err(|_| {
                if self.error_line.get() == 0 {
                    self.error_line.set(statement.line);
                }
            })?;
            if flow != Flow::Next {
                return Ok(flow);
            }
        }
        Ok(Flow::Next)
    }

    /// Renders a body to a value.
    pub fn captured(&self, body: &[Statement], scope: &Rc<Scope>) -> Result<Value> {
        let mut out = String::new();
        self.run(body, scope, &mut out)?;
        Ok(if self.is_escaping.get() { Value::markup(out) } else { Value::str(out) })
    }

    fn run_one(&self, node: &Node, scope: &Rc<Scope>, out: &mut String) -> Result<Flow> {
        match node {
            Node::Data(text) => self.push(text, out)?,
            Node::Print(expression) => {
                let value = self.evaluate(expression, scope)?;
                self.print(&value, out)?;
            }
            Node::If { branches, otherwise } => {
                for (test, body) in branches {
                    if self.evaluate(test, scope)?.is_true() {
                        return self.run(body, scope, out);
                    }
                }
                return self.run(otherwise, scope, out);
            }
            Node::For(node) => return self.run_for(node, scope, out),
            Node::Set(target, expression) => {
                let value = self.evaluate(expression, scope)?;
                self.assign(target, value, scope)?;
            }
            Node::SetBlock { target, filter, body } => {
                let value = self.filtered_block(filter.as_ref(), body, scope)?;
                self.assign(target, value, scope)?;
            }
            Node::With { targets, body } => {
                let inner = Scope::new(Some(scope));
                for (target, expression) in targets {
                    let value = self.evaluate(expression, scope)?;
                    self.assign(target, value, &inner)?;
                }
                return self.run(body, &inner, out);
            }
            Node::FilterBlock { filter, body } => {
                let value = self.filtered_block(Some(filter), body, scope)?;
                self.print(&value, out)?;
            }
            Node::Macro(node) => {
                let made = self.macro_value(Macro { node: node.clone(), scope: scope.clone() })?;
                if let Some(name) = &node.name {
                    scope.set(name, made);
                }
            }
            Node::CallBlock { call, body } => {
                let caller = Macro { node: body.clone(), scope: scope.clone() };
                let value = self.call_with(call, Some(self.macro_value(caller)?), scope)?;
                self.print(&value, out)?;
            }
            Node::Generation(body) => {
                return self.run(body, &Scope::new(Some(scope)), out);
            }
            Node::AutoEscape { is_on, body } => {
                let is_on = self.evaluate(is_on, scope)?.is_true();
                let before = self.is_escaping.replace(is_on);
                let flow = self.run(body, &Scope::new(Some(scope)), out);
                self.is_escaping.set(before);
                return flow;
            }
            Node::Block { name, is_scoped } => {
                let around = if *is_scoped { scope } else { &self.root };
                self.run_block(name, around, out)?;
            }
            Node::OtherTemplate(name) => {
                let name = self.evaluate(name, scope)?;
                return fail(format!("there is no other template, such as {}", text(&name)?));
            }
            Node::Break => return Ok(Flow::Break),
            Node::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::Next)
    }

    fn filtered_block(
        &self,
        filter: Option<&Expr>,
        body: &[Statement],
        scope: &Rc<Scope>,
    ) -> Result<Value> {
        let inner = Scope::new(Some(scope));
        let value = self.captured(body, &inner)?;
        match filter {
            Some(filter) => self.filtered(filter, Some(&value), &inner),
            None => Ok(value),
        }
    }

    pub fn run_block(&self, name: &str, around: &Rc<Scope>, out: &mut String) -> Result<()> {
        let Some((_, body)) = self.template.blocks.iter().find(|(other, _)| **other == *name)
        else {
            return fail(format!("there is no block '{name}'"));
        };
        let scope = Scope::new(Some(around));
        let hint = Value::hint(format!("there is no parent block called '{name}'."));
        scope.set(&Arc::from("super"), hint);
        self.run(&body.clone(), &scope, out)?;
        Ok(())
    }

    fn print(&self, value: &Value, out: &mut String) -> Result<()> {
        if self.is_escaping.get() {
            return self.push(&escape(value)?, out);
        }
        match value {
            Value::Str(text) => self.push(&text.text, out),
            _ => self.push(&text(value)?, out),
        }
    }

    fn macro_value(&self, made: Macro) -> Result<Value> {
        self.hold_scope(&made.scope);
        Value::object(Kind::Macro(made), &[])
    }

    pub fn assign(&self, target: &Target, value: Value, scope: &Rc<Scope>) -> Result<()> {
        match target {
            Target::Name(name) => scope.set(name, value),
            Target::Attribute(name, attribute) => {
                let holder = self.variable(name, scope);
                let Some(Kind::Namespace(dict)) = holder.kind() else {
                    return fail("cannot assign attribute on non-namespace object");
                };
                dict.borrow_mut().insert_str(attribute, value);
            }
            Target::Tuple(targets) => {
                let values = value.iterate()?;
                if values.len() != targets.len() {
                    return fail(format!(
                        "{} values to unpack where {} are expected",
                        values.len(),
                        targets.len()
                    ));
                }
                for (target, value) in targets.iter().zip(values) {
                    self.assign(target, value, scope)?;
                }
            }
        }
        Ok(())
    }

    /// Applies `filter` with its arguments; `input` is the text of a block.
    fn filtered(&self, filter: &Expr, input: Option<&Value>, scope: &Rc<Scope>) -> Result<Value> {
        let Expr::Filter(filter) = filter else { return fail("expected a filter") };
        let value = match &filter.input {
            Some(inner) => self.filtered(inner, input, scope)?,
            None => input.cloned().unwrap_or(Value::None),
        };
        let args: Args = self.arguments(&filter.arguments, scope)?;
        super::filters::apply(self, &filter.name, value, args)
    }
}
