// SPDX-License-Identifier: Apache-2.0
//! Values of a template: the Python types that a sandboxed template can make. Only a namespace can
//! be changed.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use num_bigint::BigInt;
use num_traits::ToPrimitive;

use super::budget;
use super::calls::Macro;
use super::dict::Dict;
use super::error::{fail, Result};
use super::loops::Loop;
use super::range::Range;

/// The nesting of a value is bounded, so functions may recurse over it.
const MAX_NESTING: u16 = 400;

#[derive(Clone)]
pub enum Value {
    Undefined(Rc<Missing>),
    None,
    Bool(bool),
    Int(i64),
    /// Never a number that fits an Int.
    Big(Rc<BigInt>),
    Float(f64),
    Str(Str),
    List(Rc<Items>),
    Tuple(Rc<Items>),
    Dict(Rc<Mapping>),
    Object(Rc<Object>),
}

#[derive(Clone)]
pub struct Str {
    pub text: Arc<str>,
    /// markupsafe's Markup: escapes what it is joined with.
    pub is_markup: bool,
}

/// Why a value is undefined.
pub enum Missing {
    Name(Arc<str>),
    Attribute { type_name: &'static str, name: String },
    Unsafe { type_name: &'static str, name: String },
    Hint(String),
}

pub struct Items {
    depth: u16,
    pub values: Vec<Value>,
}

pub struct Mapping {
    depth: u16,
    pub dict: Dict,
}

pub struct Object {
    depth: u16,
    pub kind: Kind,
}

#[derive(Clone, Copy, PartialEq)]
pub enum View {
    Keys,
    Values,
    Items,
}

pub enum Kind {
    Range(Range),
    View(View, Rc<Mapping>),
    /// Each item is taken once.
    Iterator {
        name: &'static str,
        items: RefCell<VecDeque<Value>>,
    },
    /// groupby's pairs, which have names.
    Group {
        key: Value,
        items: Value,
    },
    Method {
        receiver: Value,
        name: &'static str,
    },
    Function(&'static str),
    Macro(Macro),
    Loop(Loop),
    Namespace(RefCell<Dict>),
    Cycler {
        items: Vec<Value>,
        at: Cell<usize>,
    },
    Joiner {
        separator: Value,
        is_used: Cell<bool>,
    },
    /// `self`, and a block of it.
    Blocks(Vec<Arc<str>>),
    Block(Arc<str>),
}

fn deeper<'a>(values: impl Iterator<Item = &'a Value>) -> Result<u16> {
    let depth = 1 + values.map(Value::depth).max().unwrap_or(0);
    if depth > MAX_NESTING {
        return fail(format!("values are nested more than {MAX_NESTING} times"));
    }
    Ok(depth)
}

impl Str {
    pub fn plain(text: impl Into<Arc<str>>) -> Self {
        Str { text: text.into(), is_markup: false }
    }
}

impl Value {
    pub fn str(text: impl Into<Arc<str>>) -> Self {
        Value::Str(Str::plain(text))
    }

    pub fn markup(text: impl Into<Arc<str>>) -> Self {
        Value::Str(Str { text: text.into(), is_markup: true })
    }

    pub fn int(value: impl TryInto<i64>) -> Self {
        Value::Int(value.try_into().unwrap_or(i64::MAX))
    }

    pub fn big(value: BigInt) -> Self {
        value.to_i64().map_or_else(|| Value::Big(Rc::new(value)), Value::Int)
    }

    pub fn hint(text: impl Into<String>) -> Self {
        Value::Undefined(Rc::new(Missing::Hint(text.into())))
    }

    pub fn list(values: Vec<Value>) -> Result<Self> {
        budget::spend_items(values.len() / 8)?;
        Ok(Value::List(Rc::new(Items { depth: deeper(values.iter())?, values })))
    }

    pub fn tuple(values: Vec<Value>) -> Result<Self> {
        Ok(Value::Tuple(Rc::new(Items { depth: deeper(values.iter())?, values })))
    }

    pub fn dict(dict: Dict) -> Result<Self> {
        budget::spend_items(dict.len() / 8)?;
        let depth = deeper(dict.values())?;
        Ok(Value::Dict(Rc::new(Mapping { depth, dict })))
    }

    pub fn iterator(name: &'static str, items: Vec<Value>) -> Result<Self> {
        let depth = deeper(items.iter())?;
        let kind = Kind::Iterator { name, items: RefCell::new(items.into()) };
        Ok(Value::Object(Rc::new(Object { depth, kind })))
    }

    pub fn generator(items: Vec<Value>) -> Result<Self> {
        Value::iterator("generator", items)
    }

    /// `inside`: the values that it holds.
    pub fn object(kind: Kind, inside: &[Value]) -> Result<Self> {
        Ok(Value::Object(Rc::new(Object { depth: deeper(inside.iter())?, kind })))
    }

    fn depth(&self) -> u16 {
        match self {
            Value::List(items) | Value::Tuple(items) => items.depth,
            Value::Dict(mapping) => mapping.depth,
            Value::Object(object) => object.depth,
            _ => 0,
        }
    }

    pub fn kind(&self) -> Option<&Kind> {
        match self {
            Value::Object(object) => Some(&object.kind),
            _ => None,
        }
    }

    pub fn is_undefined(&self) -> bool {
        matches!(self, Value::Undefined(_))
    }

    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::Str(text) => Some(&text.text),
            _ => None,
        }
    }

    pub fn is_markup(&self) -> bool {
        matches!(self, Value::Str(text) if text.is_markup)
    }

    pub fn type_name(&self) -> &'static str {
        match self {
            Value::Undefined(_) => "Undefined",
            Value::None => "NoneType",
            Value::Bool(_) => "bool",
            Value::Int(_) | Value::Big(_) => "int",
            Value::Float(_) => "float",
            Value::Str(text) => {
                if text.is_markup {
                    "Markup"
                } else {
                    "str"
                }
            }
            Value::List(_) => "list",
            Value::Tuple(_) => "tuple",
            Value::Dict(_) => "dict",
            Value::Object(object) => match &object.kind {
                Kind::Range(_) => "range",
                Kind::View(View::Keys, _) => "dict_keys",
                Kind::View(View::Values, _) => "dict_values",
                Kind::View(View::Items, _) => "dict_items",
                Kind::Iterator { name, .. } => name,
                Kind::Group { .. } => "_GroupTuple",
                Kind::Method { .. } => "builtin_function_or_method",
                Kind::Function(name) => function_type(name),
                Kind::Macro(_) => "Macro",
                Kind::Loop(_) => "LoopContext",
                Kind::Namespace(_) => "Namespace",
                Kind::Cycler { .. } => "Cycler",
                Kind::Joiner { .. } => "Joiner",
                Kind::Blocks(_) => "TemplateReference",
                Kind::Block(_) => "BlockReference",
            },
        }
    }

    pub fn is_true(&self) -> bool {
        match self {
            Value::Undefined(_) | Value::None => false,
            Value::Bool(value) => *value,
            Value::Int(value) => *value != 0,
            Value::Big(_) => true,
            Value::Float(value) => *value != 0.0,
            Value::Str(text) => !text.text.is_empty(),
            _ => self.len().map_or(true, |len| len > 0),
        }
    }

    /// len(value), where it has one.
    pub fn len(&self) -> Option<usize> {
        Some(match self {
            Value::Undefined(_) => 0,
            // Exceeding the budget here fails at the next step.
            Value::Str(text) if !budget::is_left(budget::steps_of(text.text.len())) => 0,
            Value::Str(text) => text.text.chars().count(),
            Value::List(items) | Value::Tuple(items) => items.values.len(),
            Value::Dict(mapping) => mapping.dict.len(),
            Value::Object(object) => match &object.kind {
                Kind::Range(range) => range.len(),
                Kind::View(_, mapping) => mapping.dict.len(),
                Kind::Group { .. } => 2,
                Kind::Loop(state) => state.items.len(),
                _ => return None,
            },
            _ => return None,
        })
    }

    /// The items that a loop goes over; takes those of an iterator.
    pub fn iterate(&self) -> Result<Vec<Value>> {
        let found = self.items()?;
        budget::spend_items(found.len())?;
        Ok(found)
    }

    fn items(&self) -> Result<Vec<Value>> {
        Ok(match self {
            Value::Undefined(_) => Vec::new(),
            Value::Str(text) => {
                budget::spend_items(text.text.len())?;
                let mut buffer = [0; 4];
                let characters = text.text.chars();
                characters.map(|c| Value::str(&*c.encode_utf8(&mut buffer))).collect()
            }
            Value::List(items) | Value::Tuple(items) => items.values.clone(),
            Value::Dict(mapping) => mapping.dict.keys().cloned().collect(),
            Value::Object(object) => match &object.kind {
                Kind::Range(range) => range.iter().collect(),
                Kind::View(view, mapping) => view_items(*view, &mapping.dict)?,
                Kind::Group { key, items } => vec![key.clone(), items.clone()],
                Kind::Iterator { items, .. } => items.borrow_mut().drain(..).collect(),
                _ => return self.is_not_iterable(),
            },
            _ => return self.is_not_iterable(),
        })
    }

    pub fn is_iterable(&self) -> bool {
        match self {
            Value::None | Value::Bool(_) | Value::Int(_) | Value::Big(_) | Value::Float(_) => false,
            Value::Object(object) => matches!(
                object.kind,
                Kind::Range(_)
                    | Kind::View(..)
                    | Kind::Group { .. }
                    | Kind::Iterator { .. }
                    | Kind::Loop(_)
            ),
            _ => true,
        }
    }

    fn is_not_iterable<T>(&self) -> Result<T> {
        fail(format!("'{}' object is not iterable", self.type_name()))
    }

    /// The error of an operation on an undefined value.
    pub fn undefined_error<T>(missing: &Missing) -> Result<T> {
        fail(match missing {
            Missing::Name(name) => format!("'{name}' is undefined"),
            Missing::Attribute { type_name, name } => {
                format!("'{type_name} object' has no attribute '{name}'")
            }
            Missing::Unsafe { type_name, name } => {
                format!("access to attribute '{name}' of '{type_name}' object is unsafe.")
            }
            Missing::Hint(hint) => hint.clone(),
        })
    }
}

fn function_type(name: &str) -> &'static str {
    match name {
        "dict" | "range" | "namespace" | "cycler" | "joiner" => "type",
        _ => "function",
    }
}

fn view_items(view: View, dict: &Dict) -> Result<Vec<Value>> {
    match view {
        View::Keys => Ok(dict.keys().cloned().collect()),
        View::Values => Ok(dict.values().cloned().collect()),
        View::Items => {
            dict.iter().map(|(key, value)| Value::tuple(vec![key.clone(), value.clone()])).collect()
        }
    }
}
