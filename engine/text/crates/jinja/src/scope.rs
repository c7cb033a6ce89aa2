// SPDX-License-Identifier: Apache-2.0
//! The variables of a scope in a template, and of the enclosing scopes.

use std::cell::RefCell;
use std::rc::Rc;

use super::ast::Name;
use super::value::Value;

pub struct Scope {
    variables: RefCell<Vec<(Name, Value)>>,
    parent: Option<Rc<Scope>>,
}

impl Scope {
    pub fn new(parent: Option<&Rc<Scope>>) -> Rc<Self> {
        Rc::new(Scope { variables: RefCell::default(), parent: parent.cloned() })
    }

    pub fn set(&self, name: &Name, value: Value) {
        let mut variables = self.variables.borrow_mut();
        match variables.iter_mut().find(|(other, _)| other == name) {
            Some((_, old)) => *old = value,
            None => variables.push((name.clone(), value)),
        }
    }

    pub fn get(&self, name: &str) -> Option<Value> {
        let mut scope = self;
        loop {
            let variables = scope.variables.borrow();
            if let Some((_, value)) = variables.iter().find(|(other, _)| **other == *name) {
                return Some(value.clone());
            }
            drop(variables);
            scope = scope.parent.as_ref()?;
        }
    }

    /// Removes its values: a macro among them refers to the scope.
    pub fn clear(&self) -> Vec<(Name, Value)> {
        self.variables.take()
    }
}
