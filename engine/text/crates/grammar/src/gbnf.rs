// SPDX-License-Identifier: Apache-2.0
//! Translates GBNF, the grammars of llama.cpp (and EBNF as in SGLang), to Lark. A rule that does
//! not lead to a recursive rule becomes one terminal, so that it is matched exactly and fast.

use std::collections::HashMap;

use crate::lark_text::quoted;

const MAX_RULES: usize = 2000;
const MAX_NESTING: usize = 64;
const MAX_REPEAT: u32 = 10_000;

enum Node {
    Literal(String),
    /// A regular expression that matches one character.
    Class(String),
    Rule(usize),
    Repeat(Box<Node>, u32, Option<u32>),
    Sequence(Vec<Node>),
    Choice(Vec<Node>),
}

struct Parser<'a> {
    text: &'a [char],
    at: usize,
    names: HashMap<String, usize>,
    rules: Vec<Option<Node>>,
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-' || c == '_'
}

impl Parser<'_> {
    fn peek(&self) -> char {
        self.text.get(self.at).copied().unwrap_or('\0')
    }

    fn fail(&self, what: &str) -> String {
        let read = &self.text[..self.at.min(self.text.len())];
        let line = 1 + read.iter().filter(|c| **c == '\n').count();
        format!("line {line}: {what}")
    }

    fn skip_space(&mut self) {
        loop {
            match self.peek() {
                ' ' | '\t' | '\r' | '\n' => self.at += 1,
                '#' => {
                    while self.at < self.text.len() && self.peek() != '\n' {
                        self.at += 1;
                    }
                }
                _ => return,
            }
        }
    }

    fn name(&mut self) -> Option<String> {
        let rest = &self.text[self.at.min(self.text.len())..];
        let name: String = rest.iter().take_while(|c| is_name(**c)).collect();
        self.at += name.len();
        (!name.is_empty()).then_some(name)
    }

    fn sees(&self, sign: &str) -> bool {
        sign.chars().enumerate().all(|(i, c)| self.text.get(self.at + i) == Some(&c))
    }

    /// Whether a name and ::= follow here.
    fn at_rule(&mut self) -> bool {
        let start = self.at;
        let named = self.name().is_some();
        self.skip_space();
        let found = named && self.sees("::=");
        self.at = start;
        found
    }

    fn number_of(&mut self, name: &str) -> usize {
        let next = self.rules.len();
        let number = *self.names.entry(name.to_string()).or_insert(next);
        if number == next {
            self.rules.push(None);
        }
        number
    }

    fn parse(&mut self) -> Result<(), String> {
        self.skip_space();
        while self.at < self.text.len() {
            if !self.at_rule() {
                return Err(self.fail("a rule, NAME ::= ..., is expected"));
            }
            let name = self.name().unwrap_or_default();
            self.skip_space();
            self.at += 3;
            let number = self.number_of(&name);
            if self.rules[number].is_some() {
                return Err(self.fail(&format!("the rule {name} is there twice")));
            }
            let body = self.choice(0)?;
            self.rules[number] = Some(body);
            if self.rules.len() > MAX_RULES {
                return Err(format!("more than {MAX_RULES} rules"));
            }
        }
        Ok(())
    }

    fn choice(&mut self, depth: usize) -> Result<Node, String> {
        if depth > MAX_NESTING {
            return Err(self.fail(&format!("groups are nested more than {MAX_NESTING} deep")));
        }
        let mut options = Vec::new();
        loop {
            options.push(self.sequence(depth)?);
            if self.peek() != '|' {
                break;
            }
            self.at += 1;
        }
        Ok(if options.len() == 1 { options.remove(0) } else { Node::Choice(options) })
    }

    fn sequence(&mut self, depth: usize) -> Result<Node, String> {
        let mut parts = Vec::new();
        loop {
            self.skip_space();
            if self.at >= self.text.len() || matches!(self.peek(), '|' | ')') || self.at_rule() {
                return Ok(Node::Sequence(parts));
            }
            let part = self.element(depth)?;
            parts.push(self.repeated(part)?);
        }
    }

    fn element(&mut self, depth: usize) -> Result<Node, String> {
        match self.peek() {
            '"' => self.literal(),
            '[' => self.class(),
            '.' => {
                self.at += 1;
                Ok(Node::Class("(?s:.)".into()))
            }
            '(' => {
                self.at += 1;
                let inner = self.choice(depth + 1)?;
                if self.peek() != ')' {
                    return Err(self.fail("a ) is missing"));
                }
                self.at += 1;
                Ok(inner)
            }
            c => match self.name() {
                Some(name) => Ok(Node::Rule(self.number_of(&name))),
                None => Err(self.fail(&format!("unexpected {c:?}"))),
            },
        }
    }

    fn repeated(&mut self, mut node: Node) -> Result<Node, String> {
        loop {
            let (min, max) = match self.peek() {
                '*' => (0, None),
                '+' => (1, None),
                '?' => (0, Some(1)),
                '{' => {
                    self.at += 1;
                    self.bounds()?
                }
                _ => return Ok(node),
            };
            self.at += 1;
            node = Node::Repeat(Box::new(node), min, max);
        }
    }

    fn count(&mut self) -> Option<u32> {
        let rest = &self.text[self.at.min(self.text.len())..];
        let digits: String = rest.iter().take_while(|c| c.is_ascii_digit()).collect();
        self.at += digits.len();
        digits.parse().ok()
    }

    /// Up to the closing brace.
    fn bounds(&mut self) -> Result<(u32, Option<u32>), String> {
        let min = self.count();
        let mut max = min;
        if self.peek() == ',' {
            self.at += 1;
            max = self.count();
        }
        let too_many = min.unwrap_or(0).max(max.unwrap_or(0)) > MAX_REPEAT;
        let crossed = max.is_some_and(|max| max < min.unwrap_or(0));
        let none = max == Some(0);
        if self.peek() != '}' || none || (min.is_none() && max.is_none()) || too_many || crossed {
            let forms = "a repetition is {m}, {m,} or {m,n} of 1 to";
            return Err(self.fail(&format!("{forms} {MAX_REPEAT}")));
        }
        Ok((min.unwrap_or(0), max))
    }

    /// One character of a literal or a class, escaped or not.
    fn character(&mut self) -> Result<char, String> {
        let c = self.peek();
        self.at += 1;
        if c != '\\' {
            return Ok(c);
        }
        let escape = self.peek();
        self.at += 1;
        let digits = match escape {
            'n' => return Ok('\n'),
            'r' => return Ok('\r'),
            't' => return Ok('\t'),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            '\\' | '"' | '[' | ']' | '-' | '^' | '/' | '\'' => return Ok(escape),
            _ => return Err(self.fail(&format!("unknown escape \\{escape}"))),
        };
        let hex: String = self.text.iter().skip(self.at).take(digits).collect();
        self.at += digits;
        let code = u32::from_str_radix(&hex, 16).ok().and_then(char::from_u32);
        code.ok_or_else(|| self.fail(&format!("\\{escape}{hex} is no character")))
    }

    fn literal(&mut self) -> Result<Node, String> {
        self.at += 1;
        let mut text = String::new();
        while self.peek() != '"' {
            if self.at >= self.text.len() || self.peek() == '\n' {
                return Err(self.fail("a \" is missing"));
            }
            text.push(self.character()?);
        }
        self.at += 1;
        Ok(Node::Literal(text))
    }

    fn class(&mut self) -> Result<Node, String> {
        self.at += 1;
        let mut class = String::from("[");
        if self.peek() == '^' {
            self.at += 1;
            class.push('^');
        }
        let before = class.len();
        while self.peek() != ']' {
            if self.at >= self.text.len() {
                return Err(self.fail("a ] is missing"));
            }
            let first = self.character()?;
            let ranged = self.peek() == '-' && self.text.get(self.at + 1) != Some(&']');
            let mut last = first;
            if ranged {
                self.at += 1;
                last = self.character()?;
            }
            if last < first {
                return Err(self.fail("a range ends before it begins"));
            }
            class.push_str(&format!("\\x{{{:X}}}-\\x{{{:X}}}", u32::from(first), u32::from(last)));
        }
        self.at += 1;
        if class.len() == before {
            return Err(self.fail("a class is empty"));
        }
        Ok(Node::Class(class + "]"))
    }
}

/// Properties of each rule.
struct Facts {
    recursive: Vec<bool>,
    nullable: Vec<bool>,
}

fn visit_rules(node: &Node, found: &mut impl FnMut(usize)) {
    match node {
        Node::Rule(number) => found(*number),
        Node::Repeat(inner, ..) => visit_rules(inner, found),
        Node::Sequence(parts) | Node::Choice(parts) => {
            parts.iter().for_each(|part| visit_rules(part, found));
        }
        _ => {}
    }
}

fn is_nullable(node: &Node, nullable: &[bool]) -> bool {
    match node {
        Node::Literal(text) => text.is_empty(),
        Node::Class(_) => false,
        Node::Rule(number) => nullable[*number],
        Node::Repeat(inner, min, max) => {
            *min == 0 || *max == Some(0) || is_nullable(inner, nullable)
        }
        Node::Sequence(parts) => parts.iter().all(|part| is_nullable(part, nullable)),
        Node::Choice(parts) => parts.iter().any(|part| is_nullable(part, nullable)),
    }
}

impl Facts {
    /// A rule counts as recursive if it leads to a rule that leads to itself.
    fn new(rules: &[Node]) -> Self {
        let mut facts =
            Facts { recursive: vec![true; rules.len()], nullable: vec![false; rules.len()] };
        let mut changed = true;
        while changed {
            changed = false;
            for (number, rule) in rules.iter().enumerate() {
                let mut recursive = false;
                visit_rules(rule, &mut |to| recursive |= facts.recursive[to]);
                let nullable = is_nullable(rule, &facts.nullable);
                changed |= recursive != facts.recursive[number];
                changed |= nullable != facts.nullable[number];
                facts.recursive[number] = recursive;
                facts.nullable[number] = nullable;
            }
        }
        facts
    }

    fn is_regular(&self, node: &Node) -> bool {
        let mut regular = true;
        visit_rules(node, &mut |number| regular &= !self.recursive[number]);
        regular
    }
}

struct Writer<'a> {
    facts: &'a Facts,
    terminals: String,
    num_terminals: usize,
}

fn joined(parts: Vec<String>, with: &str) -> String {
    match parts.len() {
        0 => "\"\"".into(),
        1 => parts.into_iter().next().unwrap_or_default(),
        _ => format!("({})", parts.join(with)),
    }
}

fn repetition(min: u32, max: Option<u32>) -> String {
    match (min, max) {
        (0, None) => "*".into(),
        (1, None) => "+".into(),
        (0, Some(1)) => "?".into(),
        (min, None) => format!("{{{min},}}"),
        (min, Some(max)) => format!("{{{min},{max}}}"),
    }
}

impl Writer<'_> {
    fn body(&mut self, node: &Node, in_terminal: bool) -> String {
        if !in_terminal && self.facts.is_regular(node) {
            return self.terminal(&[node]);
        }
        match node {
            Node::Literal(text) => quoted(text),
            Node::Class(class) => format!("/{class}/"),
            Node::Rule(number) if self.facts.recursive[*number] => format!("r{number}"),
            Node::Rule(number) => format!("R{number}"),
            Node::Repeat(inner, min, max) => {
                format!("({}){}", self.body(inner, in_terminal), repetition(*min, *max))
            }
            Node::Choice(parts) => {
                joined(parts.iter().map(|part| self.body(part, in_terminal)).collect(), " | ")
            }
            Node::Sequence(parts) if in_terminal => {
                joined(parts.iter().map(|part| self.body(part, true)).collect(), " ")
            }
            Node::Sequence(parts) => joined(self.runs(parts), " "),
        }
    }

    /// Adjacent regular parts share a terminal.
    fn runs(&mut self, parts: &[Node]) -> Vec<String> {
        let mut made = Vec::new();
        let mut run = Vec::new();
        for part in parts {
            if self.facts.is_regular(part) {
                run.push(part);
                continue;
            }
            if !run.is_empty() {
                made.push(self.terminal(&std::mem::take(&mut run)));
            }
            made.push(self.body(part, false));
        }
        if !run.is_empty() {
            made.push(self.terminal(&run));
        }
        made
    }

    /// A terminal matches at least one character; if the parts may be empty, it is optional.
    fn terminal(&mut self, parts: &[&Node]) -> String {
        let only_empty = |part: &&Node| matches!(part, Node::Literal(text) if text.is_empty());
        if parts.iter().all(only_empty) {
            return "\"\"".into();
        }
        let nullable = parts.iter().all(|part| is_nullable(part, &self.facts.nullable));
        let body = joined(parts.iter().map(|part| self.body(part, true)).collect(), " ");
        let name = format!("T{}", self.num_terminals);
        self.num_terminals += 1;
        let positive = if nullable { " & /(?s:.+)/" } else { "" };
        self.terminals.push_str(&format!("{name}: {body}{positive}\n"));
        if nullable {
            format!("({name})?")
        } else {
            name
        }
    }
}

pub fn to_lark(text: &str) -> Result<String, String> {
    let text: Vec<char> = text.chars().collect();
    let mut parser = Parser { text: &text, at: 0, names: HashMap::new(), rules: Vec::new() };
    parser.parse()?;
    let root = *parser.names.get("root").ok_or("there is no rule root")?;
    let mut rules = Vec::new();
    for (number, rule) in std::mem::take(&mut parser.rules).into_iter().enumerate() {
        let name = parser.names.iter().find(|(_, n)| **n == number).map_or("", |(name, _)| name);
        rules.push(rule.ok_or_else(|| format!("the rule {name} is not there"))?);
    }
    let facts = Facts::new(&rules);
    let mut writer = Writer { facts: &facts, terminals: String::new(), num_terminals: 0 };
    let mut lark = String::new();
    for (number, rule) in rules.iter().enumerate() {
        if facts.recursive[number] {
            lark.push_str(&format!("r{number}: {}\n", writer.body(rule, false)));
        } else {
            lark.push_str(&format!("R{number}: {}\n", writer.body(rule, true)));
        }
    }
    let start = writer.body(&Node::Rule(root), false);
    Ok(format!("start: {start}\n{lark}{}", writer.terminals))
}
