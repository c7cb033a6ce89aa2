// SPDX-License-Identifier: Apache-2.0
//! The syntax tree of a template. Several threads may render one at a time.

use std::sync::Arc;

use num_bigint::BigInt;

pub type Name = Arc<str>;

pub enum Expr {
    None,
    Bool(bool),
    Int(i64),
    Big(BigInt),
    Float(f64),
    Str(Arc<str>),
    Name(Name),
    Tuple(Vec<Expr>),
    List(Vec<Expr>),
    Dict(Vec<(Expr, Expr)>),
    Attribute(Box<Expr>, Name),
    Item(Box<Expr>, Box<Expr>),
    /// A slice occurs as the item of an Item, or in a tuple there.
    Slice(Box<[Option<Expr>; 3]>),
    Call(Box<Expr>, Arguments),
    Filter(Box<Filter>),
    Test(Box<Expr>, Name, Arguments),
    Not(Box<Expr>),
    And(Box<(Expr, Expr)>),
    Or(Box<(Expr, Expr)>),
    /// `-` or `+`.
    Unary(&'static str, Box<Expr>),
    Binary(&'static str, Box<(Expr, Expr)>),
    Compare(Box<Expr>, Vec<(&'static str, Expr)>),
    Concat(Vec<Expr>),
    Condition(Box<Condition>),
}

pub struct Condition {
    pub test: Expr,
    pub then: Expr,
    pub otherwise: Option<Expr>,
}

pub struct Filter {
    /// None: the input is the text of a filter block or set block.
    pub input: Option<Expr>,
    pub name: Name,
    pub arguments: Arguments,
}

#[derive(Default)]
pub struct Arguments {
    pub positional: Vec<Expr>,
    pub named: Vec<(Name, Expr)>,
    /// *expression and **expression.
    pub more_positional: Option<Box<Expr>>,
    pub more_named: Option<Box<Expr>>,
}

pub enum Target {
    Name(Name),
    /// An attribute of a namespace.
    Attribute(Name, Name),
    Tuple(Vec<Target>),
}

pub struct Statement {
    pub line: u32,
    pub node: Node,
}

pub enum Node {
    Data(Arc<str>),
    Print(Expr),
    If {
        branches: Vec<(Expr, Vec<Statement>)>,
        otherwise: Vec<Statement>,
    },
    For(Arc<For>),
    Set(Target, Expr),
    SetBlock {
        target: Target,
        filter: Option<Expr>,
        body: Vec<Statement>,
    },
    With {
        targets: Vec<(Target, Expr)>,
        body: Vec<Statement>,
    },
    FilterBlock {
        filter: Expr,
        body: Vec<Statement>,
    },
    Macro(Arc<Macro>),
    CallBlock {
        call: Expr,
        body: Arc<Macro>,
    },
    AutoEscape {
        is_on: Expr,
        body: Vec<Statement>,
    },
    Block {
        name: Name,
        is_scoped: bool,
    },
    /// transformers' {% generation %} marks the assistant's text for training; in a prompt it has
    /// no effect.
    Generation(Vec<Statement>),
    /// extends, include, import and from: no other templates exist here.
    OtherTemplate(Expr),
    Break,
    Continue,
}

pub struct For {
    pub target: Target,
    pub items: Expr,
    pub test: Option<Expr>,
    pub is_recursive: bool,
    pub body: Vec<Statement>,
    pub otherwise: Vec<Statement>,
}

pub struct Macro {
    pub name: Option<Name>,
    pub parameters: Vec<Name>,
    /// Default values of the last parameters.
    pub defaults: Vec<Expr>,
    pub body: Vec<Statement>,
    /// Whether the body uses these names.
    pub takes_caller: bool,
    pub takes_kwargs: bool,
    pub takes_varargs: bool,
}

pub struct Template {
    pub body: Vec<Statement>,
    pub blocks: Vec<(Name, Arc<Vec<Statement>>)>,
    /// Its string constants.
    pub constants: Vec<String>,
}
