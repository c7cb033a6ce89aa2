// SPDX-License-Identifier: Apache-2.0
//! The part of the parser that reads expressions. The order of the functions is that of the
//! operators, the weakest first.

use num_traits::ToPrimitive;

use super::ast::{Arguments, Condition, Expr, Filter};
use super::budget::check_stack;
use super::checks;
use super::error::{fail, Result};
use super::filters;
use super::lexer::Token;
use super::parser::Parser;

/// Operators and the like one after another in one expression.
const MAX_CHAIN: usize = 500;

pub fn check_chain(length: usize) -> Result<()> {
    if length > MAX_CHAIN {
        return fail(format!("an expression has more than {MAX_CHAIN} operators in a row"));
    }
    Ok(())
}

fn both(left: Expr, right: Expr) -> Box<(Expr, Expr)> {
    Box::new((left, right))
}

impl Parser {
    pub fn expression(&mut self) -> Result<Expr> {
        check_stack()?;
        let unknown = self.num_unknown();
        let mut then = self.or_expression()?;
        let mut chain = 0;
        while self.take_name("if") {
            chain += 1;
            check_chain(chain)?;
            let test = self.or_expression()?;
            let otherwise = if self.take_name("else") { Some(self.expression()?) } else { None };
            then = Expr::Condition(Box::new(Condition { test, then, otherwise }));
            self.pass_unknown_since(unknown);
        }
        Ok(then)
    }

    fn left_to_right(
        &mut self,
        next: fn(&mut Self) -> Result<Expr>,
        taken: impl Fn(&mut Self) -> Option<&'static str>,
        join: impl Fn(&'static str, Expr, Expr) -> Expr,
    ) -> Result<Expr> {
        let mut left = next(self)?;
        let mut chain = 0;
        while let Some(operator) = taken(self) {
            chain += 1;
            check_chain(chain)?;
            let right = next(self)?;
            left = join(operator, left, right);
        }
        Ok(left)
    }

    pub fn or_expression(&mut self) -> Result<Expr> {
        self.left_to_right(
            Self::and_expression,
            |parser| parser.take_name("or").then_some("or"),
            |_, left, right| Expr::Or(both(left, right)),
        )
    }

    fn and_expression(&mut self) -> Result<Expr> {
        self.left_to_right(
            Self::not_expression,
            |parser| parser.take_name("and").then_some("and"),
            |_, left, right| Expr::And(both(left, right)),
        )
    }

    fn not_expression(&mut self) -> Result<Expr> {
        check_stack()?;
        if self.take_name("not") {
            return Ok(Expr::Not(Box::new(self.not_expression()?)));
        }
        self.comparison()
    }

    fn comparison(&mut self) -> Result<Expr> {
        let first = self.sum()?;
        let mut rest = Vec::new();
        loop {
            let operator = match self.current() {
                Token::Operator(operator @ ("==" | "!=" | "<" | "<=" | ">" | ">=")) => *operator,
                Token::Name(name) if name == "in" => "in",
                Token::Name(name) if name == "not" && self.next_is_name("in") => {
                    self.advance();
                    "not in"
                }
                _ => break,
            };
            self.advance();
            rest.push((operator, self.sum()?));
        }
        Ok(if rest.is_empty() { first } else { Expr::Compare(Box::new(first), rest) })
    }

    fn binary(
        &mut self,
        next: fn(&mut Self) -> Result<Expr>,
        operators: &'static [&'static str],
    ) -> Result<Expr> {
        self.left_to_right(
            next,
            |parser| operators.iter().copied().find(|operator| parser.take(operator)),
            |operator, left, right| Expr::Binary(operator, both(left, right)),
        )
    }

    fn sum(&mut self) -> Result<Expr> {
        self.binary(Self::concatenation, &["+", "-"])
    }

    fn concatenation(&mut self) -> Result<Expr> {
        let first = self.product()?;
        if !self.is("~") {
            return Ok(first);
        }
        let mut parts = vec![first];
        while self.take("~") {
            parts.push(self.product()?);
        }
        Ok(Expr::Concat(parts))
    }

    fn product(&mut self) -> Result<Expr> {
        self.binary(Self::power, &["*", "//", "/", "%"])
    }

    fn power(&mut self) -> Result<Expr> {
        self.binary(|parser| parser.unary(true), &["**"])
    }

    fn unary(&mut self, with_filters: bool) -> Result<Expr> {
        check_stack()?;
        let operator = ["-", "+"].into_iter().find(|operator| self.take(operator));
        let inner = match operator {
            Some(operator) => Expr::Unary(operator, Box::new(self.unary(false)?)),
            None => self.primary()?,
        };
        let mut chain = 0;
        let inner = self.postfix(inner, &mut chain)?;
        if with_filters {
            return self.filters_and_tests(inner, chain);
        }
        Ok(inner)
    }

    pub fn primary(&mut self) -> Result<Expr> {
        match self.current().clone() {
            Token::Name(name) => {
                self.advance();
                Ok(match name.as_str() {
                    "true" | "True" => Expr::Bool(true),
                    "false" | "False" => Expr::Bool(false),
                    "none" | "None" => Expr::None,
                    _ => {
                        self.note_use(&name);
                        Expr::Name(name.into())
                    }
                })
            }
            Token::Str(mut text) => {
                self.advance();
                while let Token::Str(more) = self.current() {
                    text.push_str(more);
                    self.advance();
                }
                Ok(Expr::Str(text.into()))
            }
            Token::Int(value) => {
                self.advance();
                Ok(value.to_i64().map_or_else(|| Expr::Big(value), Expr::Int))
            }
            Token::Float(value) => {
                self.advance();
                Ok(Expr::Float(value))
            }
            Token::Operator("(") => {
                self.advance();
                let inner = self.tuple(true, true, &[])?;
                self.expect(")")?;
                Ok(inner)
            }
            Token::Operator("[") => {
                self.advance();
                let mut items = Vec::new();
                self.separated("]", |parser| {
                    items.push(parser.expression()?);
                    Ok(())
                })?;
                Ok(Expr::List(items))
            }
            Token::Operator("{") => {
                self.advance();
                let mut items = Vec::new();
                self.separated("}", |parser| {
                    let key = parser.expression()?;
                    parser.expect(":")?;
                    items.push((key, parser.expression()?));
                    Ok(())
                })?;
                Ok(Expr::Dict(items))
            }
            _ => self.unexpected(),
        }
    }

    /// Items up to `end`; a comma may follow the last.
    fn separated(
        &mut self,
        end: &'static str,
        mut item: impl FnMut(&mut Self) -> Result<()>,
    ) -> Result<()> {
        let mut is_first = true;
        while !self.is(end) {
            if !is_first {
                self.expect(",")?;
                if self.is(end) {
                    break;
                }
            }
            is_first = false;
            item(self)?;
        }
        self.expect(end)
    }

    fn is_tuple_end(&self, ends: &[&str]) -> bool {
        match self.current() {
            Token::VariableEnd | Token::BlockEnd | Token::Operator(")") => true,
            Token::Name(name) => ends.contains(&name.as_str()),
            _ => false,
        }
    }

    /// One expression, or a tuple of those that commas separate.
    pub fn tuple(
        &mut self,
        is_in_parentheses: bool,
        with_condition: bool,
        ends: &[&str],
    ) -> Result<Expr> {
        let mut items = Vec::new();
        let mut is_tuple = false;
        loop {
            if !items.is_empty() {
                self.expect(",")?;
            }
            if self.is_tuple_end(ends) {
                break;
            }
            items.push(if with_condition { self.expression()? } else { self.or_expression()? });
            if !self.is(",") {
                break;
            }
            is_tuple = true;
        }
        if !is_tuple {
            if let Some(only) = items.pop() {
                return Ok(only);
            }
            if !is_in_parentheses {
                return fail("an expression is missing");
            }
        }
        Ok(Expr::Tuple(items))
    }

    fn postfix(&mut self, mut inner: Expr, chain: &mut usize) -> Result<Expr> {
        loop {
            *chain += 1;
            check_chain(*chain)?;
            if self.take(".") {
                inner = match self.current().clone() {
                    Token::Name(name) => Expr::Attribute(Box::new(inner), name.into()),
                    Token::Int(index) => Expr::Item(Box::new(inner), Box::new(Expr::Big(index))),
                    _ => return fail("expected name or number after '.'"),
                };
                self.advance();
            } else if self.take("[") {
                let mut items = Vec::new();
                while !self.is("]") {
                    if !items.is_empty() {
                        self.expect(",")?;
                    }
                    items.push(self.subscript()?);
                }
                self.expect("]")?;
                let item = match items.len() {
                    1 => items.remove(0),
                    _ => Expr::Tuple(items),
                };
                inner = Expr::Item(Box::new(inner), Box::new(item));
            } else if self.is("(") {
                inner = Expr::Call(Box::new(inner), self.arguments()?);
            } else {
                return Ok(inner);
            }
        }
    }

    fn subscript(&mut self) -> Result<Expr> {
        let mut parts = [None, None, None];
        if !self.is(":") {
            let start = self.expression()?;
            if !self.is(":") {
                return Ok(start);
            }
            parts[0] = Some(start);
        }
        for part in &mut parts[1..] {
            if self.take(":") && !self.is(":") && !self.is("]") && !self.is(",") {
                *part = Some(self.expression()?);
            }
        }
        Ok(Expr::Slice(Box::new(parts)))
    }

    /// Those of a call, from `(` to `)`.
    fn arguments(&mut self) -> Result<Arguments> {
        self.expect("(")?;
        let mut found = Arguments::default();
        self.separated(")", |parser| {
            let has_more = found.more_positional.is_some() || found.more_named.is_some();
            let mut is_in_order = found.more_named.is_none();
            if parser.take("*") {
                is_in_order = !has_more;
                found.more_positional = Some(Box::new(parser.expression()?));
            } else if parser.take("**") {
                found.more_named = Some(Box::new(parser.expression()?));
            } else if parser.next_is("=") {
                let Token::Name(name) = parser.current().clone() else {
                    return parser.unexpected();
                };
                parser.advance();
                parser.advance();
                if found.named.iter().any(|(other, _)| **other == *name) {
                    return fail(format!("the argument {name} is given twice"));
                }
                found.named.push((name.into(), parser.expression()?));
            } else {
                is_in_order = !has_more && found.named.is_empty();
                found.positional.push(parser.expression()?);
            }
            if is_in_order {
                return Ok(());
            }
            fail("invalid syntax for function call expression")
        })?;
        Ok(found)
    }

    fn filters_and_tests(&mut self, mut inner: Expr, mut chain: usize) -> Result<Expr> {
        loop {
            chain += 1;
            check_chain(chain)?;
            if self.take("|") {
                inner = self.filter(Some(inner))?;
            } else if self.take_name("is") {
                inner = self.test(inner)?;
            } else if self.is("(") {
                inner = Expr::Call(Box::new(inner), self.arguments()?);
            } else {
                return Ok(inner);
            }
        }
    }

    fn dotted_name(&mut self) -> Result<String> {
        let mut name = self.expect_name()?;
        while self.take(".") {
            name = format!("{name}.{}", self.expect_name()?);
        }
        Ok(name)
    }

    /// What follows `|`.
    pub fn filter(&mut self, input: Option<Expr>) -> Result<Expr> {
        let name = self.dotted_name()?;
        if !filters::is_known(&name) {
            self.note_unknown(format!("no filter named '{name}'"));
        }
        let arguments = if self.is("(") { self.arguments()? } else { Arguments::default() };
        Ok(Expr::Filter(Box::new(Filter { input, name: name.into(), arguments })))
    }

    /// What follows `is`.
    fn test(&mut self, inner: Expr) -> Result<Expr> {
        let is_negated = self.take_name("not");
        let name = self.dotted_name()?;
        if !checks::is_known(&name) {
            self.note_unknown(format!("no test named '{name}'"));
        }
        let mut arguments = Arguments::default();
        let has_argument = match self.current() {
            Token::Operator("(") => {
                arguments = self.arguments()?;
                false
            }
            Token::Name(name) if name == "is" => {
                return fail("you cannot chain multiple tests with is")
            }
            Token::Name(name) => !matches!(name.as_str(), "else" | "or" | "and"),
            Token::Str(_) | Token::Int(_) | Token::Float(_) => true,
            Token::Operator(operator) => matches!(*operator, "[" | "{"),
            _ => false,
        };
        if has_argument {
            let argument = self.primary()?;
            arguments.positional.push(self.postfix(argument, &mut 0)?);
        }
        let test = Expr::Test(Box::new(inner), name.into(), arguments);
        Ok(if is_negated { Expr::Not(Box::new(test)) } else { test })
    }
}
