// SPDX-License-Identifier: Apache-2.0
//! The for tag and its `loop`.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use super::arguments::Args;
use super::ast::{For, Name};
use super::budget;
use super::error::{fail, Result};
use super::interpreter::{Flow, Interpreter};
use super::operators::is_equal;
use super::scope::Scope;
use super::value::{Kind, Value};

pub struct Loop {
    pub items: Vec<Value>,
    index0: Cell<usize>,
    depth0: usize,
    last_changed: RefCell<Option<Vec<Value>>>,
    /// The body that a call of the loop renders again, and the enclosing scope.
    recursion: Option<(Arc<For>, Rc<Scope>)>,
}

impl Loop {
    pub fn attribute(&self, name: &str) -> Result<Option<Value>> {
        let (at, count) = (self.index0.get(), self.items.len());
        Ok(Some(match name {
            "index0" => Value::int(at as i64),
            "index" => Value::int(at as i64 + 1),
            "revindex0" => Value::int(count as i64 - at as i64 - 1),
            "revindex" => Value::int(count as i64 - at as i64),
            "first" => Value::Bool(at == 0),
            "last" => Value::Bool(at + 1 >= count),
            "length" => Value::int(count as i64),
            "depth0" => Value::int(self.depth0 as i64),
            "depth" => Value::int(self.depth0 as i64 + 1),
            "previtem" => match at.checked_sub(1).and_then(|at| self.items.get(at)) {
                Some(item) => item.clone(),
                None => Value::hint("there is no previous item"),
            },
            "nextitem" => match self.items.get(at + 1) {
                Some(item) => item.clone(),
                None => Value::hint("there is no next item"),
            },
            _ => return Ok(None),
        }))
    }

    pub fn cycle(&self, values: &[Value]) -> Result<Value> {
        if values.is_empty() {
            return fail("no items for cycling given");
        }
        Ok(values[self.index0.get() % values.len()].clone())
    }

    pub fn changed(&self, values: Vec<Value>) -> bool {
        let mut last = self.last_changed.borrow_mut();
        let is_same = last.as_ref().is_some_and(|last| {
            last.len() == values.len() && last.iter().zip(&values).all(|(a, b)| is_equal(a, b))
        });
        if !is_same {
            *last = Some(values);
        }
        !is_same
    }
}

impl Interpreter<'_> {
    pub fn run_for(&self, node: &Arc<For>, scope: &Rc<Scope>, out: &mut String) -> Result<Flow> {
        let items = self.evaluate(&node.items, scope)?;
        self.run_items(node, &items, (scope, 0), out)
    }

    fn run_items(
        &self,
        node: &Arc<For>,
        items: &Value,
        (scope, depth0): (&Rc<Scope>, usize),
        out: &mut String,
    ) -> Result<Flow> {
        let mut items = items.iterate()?;
        if let Some(test) = &node.test {
            let mut kept = Vec::new();
            for item in items {
                let inner = Scope::new(Some(scope));
                self.assign(&node.target, item.clone(), &inner)?;
                if self.evaluate(test, &inner)?.is_true() {
                    kept.push(item);
                }
            }
            items = kept;
        }
        if items.is_empty() {
            return self.run(&node.otherwise, &Scope::new(Some(scope)), out);
        }
        let recursion = node.is_recursive.then(|| (node.clone(), scope.clone()));
        if recursion.is_some() {
            self.hold_scope(scope);
        }
        let state = Loop {
            items: items.clone(),
            index0: Cell::new(0),
            depth0,
            last_changed: RefCell::default(),
            recursion,
        };
        let state = Value::object(Kind::Loop(state), &items)?;
        let Some(Kind::Loop(shared)) = state.kind() else { return fail("expected a loop") };
        let loop_name: Name = Arc::from("loop");
        for (at, item) in items.into_iter().enumerate() {
            budget::spend(1)?;
            shared.index0.set(at);
            let inner = Scope::new(Some(scope));
            inner.set(&loop_name, state.clone());
            self.assign(&node.target, item, &inner)?;
            if self.run(&node.body, &inner, out)? == Flow::Break {
                break;
            }
        }
        Ok(Flow::Next)
    }

    /// `loop(items)`: the loop's body for other items.
    pub fn call_loop(&self, state: &Loop, args: Args) -> Result<Value> {
        let Some((node, scope)) = &state.recursion else {
            return fail("the loop must have the 'recursive' marker to be called recursively");
        };
        let items = args.bind("loop", "iterable")?.value(0);
        let mut out = String::new();
        self.run_items(node, &items, (scope, state.depth0 + 1), &mut out)?;
        Ok(if self.is_escaping.get() { Value::markup(out) } else { Value::str(out) })
    }
}
