// SPDX-License-Identifier: Apache-2.0
//! Looks ahead in a grammar before work starts. The library keeps a row of items per lexeme of a
//! text: the ways in which its rules can go on. It compares each item with each, so a long row
//! takes long, and it checks a row's length only once the lexeme is drawn. This makes the rows of
//! all short texts itself, as far as its work goes, and refuses the grammar that has a long one.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::rc::Rc;

use llguidance::earley::{CGrammar, CSymIdx};

/// Items that are looked at; about 50 ms.
const MAX_WORK: usize = 1_000_000;
/// Rows before a row.
const MAX_ROWS: u32 = 500;
/// Marks the end of a rule; the library's symbol 0 has the same meaning.
const END: usize = 0;

/// A rule with a dot in it, as a position in `Rules::symbols`, and the row where it began.
type Item = (u32, u32);

struct Rules<'a> {
    grammar: &'a CGrammar,
    /// The right sides of all rules, each with an END.
    symbols: Vec<usize>,
    /// [position] The symbol that the rule makes.
    makes: Vec<usize>,
    /// [symbol] Where its rules begin.
    begins: HashMap<usize, Vec<u32>>,
    known: HashMap<usize, CSymIdx>,
}

struct Row {
    items: Vec<Item>,
    /// The rows before this one; the last is the row before.
    before: Option<Rc<Row>>,
    number: u32,
}

impl<'a> Rules<'a> {
    fn new(grammar: &'a CGrammar) -> Self {
        let mut rules = Rules {
            grammar,
            symbols: Vec::new(),
            makes: Vec::new(),
            begins: HashMap::new(),
            known: HashMap::new(),
        };
        let mut open = vec![grammar.start()];
        while let Some(symbol) = open.pop() {
            let number = symbol.as_index();
            if rules.known.insert(number, symbol).is_some() {
                continue;
            }
            for rule in grammar.rules_of(symbol) {
                rules.begins.entry(number).or_default().push(rules.symbols.len() as u32);
                let (right, ..) = grammar.rule_rhs(*rule);
                open.extend(right);
                rules.symbols.extend(right.iter().map(CSymIdx::as_index));
                rules.symbols.push(END);
                rules.makes.resize(rules.symbols.len(), number);
            }
        }
        rules
    }

    fn next(&self, item: Item) -> usize {
        self.symbols[item.0 as usize]
    }

    fn is_nullable(&self, symbol: usize) -> bool {
        self.known.get(&symbol).is_some_and(|symbol| self.grammar.sym_data(*symbol).is_nullable)
    }

    fn lexeme(&self, symbol: usize) -> Option<usize> {
        let symbol = self.known.get(&symbol)?;
        self.grammar.sym_data(*symbol).lexeme.map(|lexeme| lexeme.as_usize())
    }

    /// The row that begins with `items`; None: it is longer than `max`.
    /// Counts its work, and makes only a part of the row once that is too much.
    fn row(
        &self,
        items: Vec<Item>,
        before: Option<Rc<Row>>,
        max: usize,
        work: &mut usize,
    ) -> Option<Row> {
        let number = before.as_ref().map_or(0, |row| row.number + 1);
        let mut row = Row { items, before, number };
        let mut has: HashSet<Item> = row.items.iter().copied().collect();
        let mut at = 0;
        while at < row.items.len() && *work < MAX_WORK {
            let item = row.items[at];
            at += 1;
            *work += 1;
            let next = self.next(item);
            let mut found: Vec<Item> = Vec::new();
            if next != END {
                let begins = self.begins.get(&next).into_iter().flatten();
                found.extend(begins.map(|begin| (*begin, number)));
                if self.is_nullable(next) {
                    found.push((item.0 + 1, item.1));
                }
            } else if item.1 < number {
                let made = self.makes[item.0 as usize];
                let earlier = row.of(item.1);
                *work += earlier.len() + (number - item.1) as usize;
                let waits = earlier.iter().filter(|other| self.next(**other) == made);
                found.extend(waits.map(|(position, begin)| (position + 1, *begin)));
            }
            *work += found.len();
            for item in found {
                if has.insert(item) {
                    row.items.push(item);
                }
            }
            if row.items.len() > max {
                return None;
            }
        }
        Some(row)
    }

    /// The items after each lexeme that may follow the row.
    fn after(&self, row: &Row) -> Vec<Vec<Item>> {
        let mut by_lexeme: HashMap<usize, Vec<Item>> = HashMap::new();
        let mut order = Vec::new();
        for item in &row.items {
            if let Some(lexeme) = self.lexeme(self.next(*item)) {
                let items = by_lexeme.entry(lexeme).or_default();
                if items.is_empty() {
                    order.push(lexeme);
                }
                items.push((item.0 + 1, item.1));
            }
        }
        order.iter().filter_map(|lexeme| by_lexeme.remove(lexeme)).collect()
    }
}

impl Row {
    /// The items of an earlier row.
    fn of(&self, number: u32) -> &[Item] {
        let mut before = self.before.as_deref();
        while let Some(row) = before.filter(|row| row.number != number) {
            before = row.before.as_deref();
        }
        before.map_or(&[], |row| &row.items)
    }

    /// The same for rows that differ only in where their items began.
    fn shape(&self) -> u64 {
        let mut positions: Vec<u32> = self.items.iter().map(|item| item.0).collect();
        positions.sort_unstable();
        BuildHasherDefault::<DefaultHasher>::default().hash_one(positions)
    }
}

/// `max`: the longest row.
pub fn check(grammar: &CGrammar, max: usize) -> Result<(), String> {
    if grammar.parametric() {
        return Ok(()); // its items may differ in their parameters only
    }
    let rules = Rules::new(grammar);
    let too_long = || {
        format!(
            "more than {max} ways to go on are open at once, such as optional properties and \
             alternatives of objects; allowed: at most {max}"
        )
    };
    let start = rules.begins.get(&grammar.start().as_index()).into_iter().flatten();
    let first = start.map(|begin| (*begin, 0)).collect();
    let mut work = 0;
    let first = rules.row(first, None, max, &mut work).ok_or_else(too_long)?;
    let mut shapes = HashSet::from([first.shape()]);
    let mut open = VecDeque::from([Rc::new(first)]);
    while let Some(row) = open.pop_front() {
        for items in rules.after(&row) {
            let next = rules.row(items, Some(row.clone()), max, &mut work).ok_or_else(too_long)?;
            if work >= MAX_WORK {
                return Ok(());
            }
            if next.number < MAX_ROWS && shapes.insert(next.shape()) {
                open.push_back(Rc::new(next));
            }
        }
    }
    Ok(())
}
