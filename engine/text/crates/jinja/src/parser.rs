// SPDX-License-Identifier: Apache-2.0
//! Reads a template: its statements. expressions.rs has the expressions.

use std::sync::Arc;

use super::ast::{Expr, For, Name, Node, Statement, Target, Template};
use super::budget::{self, check_stack};
use super::error::{fail, Error, Result};
use super::expressions::check_chain;
use super::lexer::{self, Token};
use super::parser_functions::Uses;

pub struct Parser {
    tokens: Vec<(Token, u32)>,
    at: usize,
    /// Those of the macros around.
    pub uses: Vec<Uses>,
    /// Loops around, within the innermost macro or block.
    loops: usize,
    /// Filters and tests without meaning: an error unless a condition decides whether one is used.
    unknown: Vec<(String, u32)>,
    is_conditional: bool,
    pub blocks: Vec<(Name, Arc<Vec<Statement>>)>,
}

/// The template, or what is wrong and in which line.
pub fn parse(source: &str) -> std::result::Result<Template, (String, u32)> {
    budget::begin_stack();
    let tokens = lexer::tokens(source)?;
    let constant = |(token, _): &(Token, u32)| match token {
        Token::Str(text) => Some(text.clone()),
        _ => None,
    };
    let constants = tokens.iter().filter_map(constant).collect();
    let mut parser = Parser {
        tokens,
        at: 0,
        uses: Vec::new(),
        loops: 0,
        unknown: Vec::new(),
        is_conditional: false,
        blocks: Vec::new(),
    };
    let at_line = |parser: &Parser, error: Error| (error.message().to_string(), parser.line());
    let body = parser.statements(&[]).map_err(|error| at_line(&parser, error))?;
    if let Some(unknown) = parser.unknown.into_iter().next() {
        return Err(unknown);
    }
    Ok(Template { body, blocks: parser.blocks, constants })
}

impl Parser {
    pub fn current(&self) -> &Token {
        &self.tokens[self.at].0
    }

    fn line(&self) -> u32 {
        self.tokens[self.at].1
    }

    pub fn advance(&mut self) {
        self.at = (self.at + 1).min(self.tokens.len() - 1);
    }

    fn next(&self) -> &Token {
        &self.tokens[(self.at + 1).min(self.tokens.len() - 1)].0
    }

    pub fn next_is(&self, operator: &str) -> bool {
        matches!(self.next(), Token::Operator(found) if *found == operator)
    }

    pub fn next_is_name(&self, name: &str) -> bool {
        matches!(self.next(), Token::Name(found) if found == name)
    }

    pub fn is(&self, operator: &str) -> bool {
        matches!(self.current(), Token::Operator(found) if *found == operator)
    }

    fn is_name(&self, name: &str) -> bool {
        matches!(self.current(), Token::Name(found) if found == name)
    }

    pub fn take(&mut self, operator: &str) -> bool {
        let is_here = self.is(operator);
        if is_here {
            self.advance();
        }
        is_here
    }

    pub fn take_name(&mut self, name: &str) -> bool {
        let is_here = self.is_name(name);
        if is_here {
            self.advance();
        }
        is_here
    }

    pub fn unexpected<T>(&self) -> Result<T> {
        fail(match self.current() {
            Token::End => "unexpected end of template".to_string(),
            Token::BlockEnd | Token::VariableEnd => "unexpected end of a tag".to_string(),
            Token::Name(name) => format!("unexpected '{name}'"),
            Token::Operator(operator) => format!("unexpected '{operator}'"),
            Token::Str(_) => "unexpected string".to_string(),
            _ => "unexpected number".to_string(),
        })
    }

    pub fn expect(&mut self, operator: &str) -> Result<()> {
        if self.take(operator) {
            return Ok(());
        }
        self.unexpected::<()>()
            .map_err(|error| Error::Failed(format!("{}, expected '{operator}'", error.message())))
    }

    fn expect_token(&mut self, token: Token) -> Result<()> {
        if *self.current() != token {
            return self.unexpected();
        }
        self.advance();
        Ok(())
    }

    pub fn expect_name(&mut self) -> Result<String> {
        match self.current().clone() {
            Token::Name(name) => {
                self.advance();
                Ok(name)
            }
            _ => self.unexpected(),
        }
    }

    fn expect_word(&mut self, word: &str) -> Result<()> {
        if self.take_name(word) {
            return Ok(());
        }
        self.unexpected()
    }

    pub fn note_use(&mut self, name: &str) {
        for uses in &mut self.uses {
            uses.caller |= name == "caller";
            uses.kwargs |= name == "kwargs";
            uses.varargs |= name == "varargs";
        }
    }

    pub fn num_unknown(&self) -> usize {
        self.unknown.len()
    }

    pub fn pass_unknown_since(&mut self, count: usize) {
        self.unknown.truncate(count);
    }

    pub fn note_unknown(&mut self, message: String) {
        if !self.is_conditional {
            self.unknown.push((message, self.line()));
        }
    }

    /// Text and tags up to one of `ends`, which is the current token then.
    fn statements(&mut self, ends: &[&str]) -> Result<Vec<Statement>> {
        check_stack()?;
        let mut found = Vec::new();
        loop {
            let line = self.line();
            match self.current().clone() {
                Token::Data(text) => {
                    self.advance();
                    found.push(Statement { line, node: Node::Data(text.into()) });
                }
                Token::VariableBegin => {
                    self.advance();
                    let node = Node::Print(self.tuple(false, true, &[])?);
                    self.expect_token(Token::VariableEnd)?;
                    found.push(Statement { line, node });
                }
                Token::BlockBegin => {
                    self.advance();
                    if matches!(self.current(), Token::Name(name) if ends.contains(&name.as_str()))
                    {
                        return Ok(found);
                    }
                    self.statement(line, &mut found)?;
                    self.expect_token(Token::BlockEnd)?;
                }
                Token::End if ends.is_empty() => return Ok(found),
                Token::End => {
                    return fail(format!(
                        "unexpected end of template, expected {}",
                        ends.join(" or ")
                    ))
                }
                _ => return self.unexpected(),
            }
        }
    }

    /// A tag's end and what follows, up to one of `ends`.
    fn body(&mut self, ends: &[&str]) -> Result<Vec<Statement>> {
        self.take(":");
        self.expect_token(Token::BlockEnd)?;
        self.statements(ends)
    }

    /// The same up to and with `end`, in a scope of its own.
    fn scope(&mut self, end: &str) -> Result<Vec<Statement>> {
        let is_conditional = std::mem::replace(&mut self.is_conditional, false);
        let body = self.body(&[end])?;
        self.is_conditional = is_conditional;
        self.advance();
        Ok(body)
    }

    /// The same in a function of its own: loops around are not its loops.
    pub fn function_scope(&mut self, end: &str) -> Result<Vec<Statement>> {
        let loops = std::mem::replace(&mut self.loops, 0);
        let body = self.scope(end)?;
        self.loops = loops;
        Ok(body)
    }

    fn statement(&mut self, line: u32, found: &mut Vec<Statement>) -> Result<()> {
        let Token::Name(tag) = self.current().clone() else { return fail("tag name expected") };
        self.advance();
        let node = match tag.as_str() {
            "if" => self.if_tag()?,
            "for" => self.for_tag()?,
            "set" => self.set_tag()?,
            "with" => self.with_tag()?,
            "macro" => self.macro_tag()?,
            "call" => self.call_tag()?,
            "filter" => {
                let filter = self.filter_chain()?;
                Node::FilterBlock { filter, body: self.scope("endfilter")? }
            }
            "block" => self.block_tag()?,
            "autoescape" => {
                let is_on = self.expression()?;
                Node::AutoEscape { is_on, body: self.scope("endautoescape")? }
            }
            "generation" => Node::Generation(self.function_scope("endgeneration")?),
            "print" => {
                while *self.current() != Token::BlockEnd {
                    found.push(Statement { line, node: Node::Print(self.expression()?) });
                    if *self.current() != Token::BlockEnd {
                        self.expect(",")?;
                    }
                }
                return Ok(());
            }
            "extends" | "include" | "import" | "from" => self.other_template_tag(&tag)?,
            "break" | "continue" if self.loops == 0 => {
                return fail(format!("'{tag}' is outside of a loop"))
            }
            "break" => Node::Break,
            "continue" => Node::Continue,
            _ => return fail(format!("unknown tag '{tag}'")),
        };
        found.push(Statement { line, node });
        Ok(())
    }

    fn if_tag(&mut self) -> Result<Node> {
        let is_conditional = std::mem::replace(&mut self.is_conditional, true);
        let mut branches = Vec::new();
        let mut otherwise = Vec::new();
        loop {
            let test = self.tuple(false, false, &[])?;
            branches.push((test, self.body(&["elif", "else", "endif"])?));
            if self.take_name("elif") {
                continue;
            }
            if self.take_name("else") {
                otherwise = self.body(&["endif"])?;
            }
            self.advance();
            break;
        }
        self.is_conditional = is_conditional;
        Ok(Node::If { branches, otherwise })
    }

    fn for_tag(&mut self) -> Result<Node> {
        let target = self.target(&["in"], false)?;
        if target.has_name("loop") {
            return fail("can't assign to special loop variable in for-loop target");
        }
        self.expect_word("in")?;
        let items = self.tuple(false, false, &["recursive"])?;
        let test = if self.take_name("if") { Some(self.expression()?) } else { None };
        let is_recursive = self.take_name("recursive");
        let is_conditional = std::mem::replace(&mut self.is_conditional, false);
        self.loops += 1;
        let body = self.body(&["endfor", "else"])?;
        self.loops -= 1;
        let otherwise = if self.take_name("else") { self.body(&["endfor"])? } else { Vec::new() };
        self.is_conditional = is_conditional;
        self.advance();
        Ok(Node::For(Arc::new(For { target, items, test, is_recursive, body, otherwise })))
    }

    /// Names that commas separate.
    fn target(&mut self, ends: &[&str], with_namespace: bool) -> Result<Target> {
        let mut found = Vec::new();
        let mut is_tuple = false;
        loop {
            if !found.is_empty() {
                self.expect(",")?;
            }
            let is_end = match self.current() {
                Token::VariableEnd | Token::BlockEnd | Token::Operator(")") => true,
                Token::Name(name) => ends.contains(&name.as_str()),
                _ => false,
            };
            if is_end {
                break;
            }
            if with_namespace && self.next_is(".") {
                let name = self.expect_name()?;
                self.advance();
                found.push(Target::Attribute(name.into(), self.expect_name()?.into()));
            } else {
                let target = self.primary()?;
                found.push(as_target(target)?);
            }
            if !self.is(",") {
                break;
            }
            is_tuple = true;
        }
        match found.pop() {
            Some(only) if !is_tuple => Ok(only),
            None => fail("a name to assign to is missing"),
            Some(last) => {
                found.push(last);
                Ok(Target::Tuple(found))
            }
        }
    }

    fn filter_chain(&mut self) -> Result<Expr> {
        let mut filter = self.filter(None)?;
        let mut chain = 0;
        while self.take("|") {
            chain += 1;
            check_chain(chain)?;
            filter = self.filter(Some(filter))?;
        }
        Ok(filter)
    }

    fn set_tag(&mut self) -> Result<Node> {
        let target = self.target(&[], true)?;
        if self.take("=") {
            return Ok(Node::Set(target, self.tuple(false, true, &[])?));
        }
        let filter = if self.take("|") { Some(self.filter_chain()?) } else { None };
        Ok(Node::SetBlock { target, filter, body: self.scope("endset")? })
    }

    fn with_tag(&mut self) -> Result<Node> {
        let mut targets = Vec::new();
        while *self.current() != Token::BlockEnd {
            if !targets.is_empty() {
                self.expect(",")?;
            }
            let target = self.target(&[], false)?;
            self.expect("=")?;
            targets.push((target, self.expression()?));
        }
        Ok(Node::With { targets, body: self.scope("endwith")? })
    }

    fn context_words(&mut self) {
        if (self.is_name("with") || self.is_name("without")) && self.next_is_name("context") {
            self.advance();
            self.advance();
        }
    }

    fn other_template_tag(&mut self, tag: &str) -> Result<Node> {
        let template = self.expression()?;
        match tag {
            "include" if self.is_name("ignore") && self.next_is_name("missing") => {
                self.advance();
                self.advance();
            }
            "import" => {
                self.expect_word("as")?;
                self.expect_name()?;
            }
            "from" => {
                self.expect_word("import")?;
                loop {
                    self.expect_name()?;
                    if self.take_name("as") {
                        self.expect_name()?;
                    }
                    if !self.take(",") {
                        break;
                    }
                }
            }
            _ => {}
        }
        if tag != "extends" {
            self.context_words();
        }
        Ok(Node::OtherTemplate(template))
    }
}

fn as_target(expression: Expr) -> Result<Target> {
    match expression {
        Expr::Name(name) => Ok(Target::Name(name)),
        Expr::Tuple(items) => {
            Ok(Target::Tuple(items.into_iter().map(as_target).collect::<Result<_>>()?))
        }
        _ => fail("can't assign to a literal"),
    }
}

impl Target {
    pub fn has_name(&self, name: &str) -> bool {
        match self {
            Target::Name(found) => **found == *name,
            Target::Attribute(..) => false,
            Target::Tuple(items) => items.iter().any(|item| item.has_name(name)),
        }
    }
}
