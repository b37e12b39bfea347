//! A condition that was read: two sums of named numbers and a relation, a verdict, or whether tokens are equal.
//! Not here: reading it (`parse.rs`), and the numbers behind its names (`mod.rs`, `rule.rs`).
//!
//! Numbers are ranges: a value and how far it may be off. A relation between two ranges holds, fails, or is undecided.

use super::name::{Name, NamedMetric};
use crate::bench::Verdict;
use crate::quantity::Unit;
use std::fmt;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Condition {
    Numbers {
        left: Node,
        relation: Relation,
        right: Node,
        /// Of both sides.
        unit: Unit,
    },
    /// Holds if it holds for one of the metrics.
    Verdicts { metrics: Vec<NamedMetric>, equal: bool, finding: Finding },
    /// Whether both sides generated the same tokens.
    Tokens { equal: bool },
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Node {
    /// In seconds, bytes, tokens per second, or of no unit.
    Number(f64),
    Named(Name),
    Operation(Box<Node>, Operator, Box<Node>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operator {
    Plus,
    Minus,
    Times,
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Relation {
    Less,
    LessOrEqual,
    More,
    MoreOrEqual,
    Equal,
    Unequal,
}

/// A verdict without its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    Better,
    Worse,
    NoDifference,
    Inconclusive,
}

/// A number and where it may truly lie.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Range {
    pub low: f64,
    pub value: f64,
    pub high: f64,
}

impl Range {
    pub(super) fn exactly(value: f64) -> Range {
        Range { low: value, value, high: value }
    }

    fn combine(self, operator: Operator, other: Range) -> Range {
        let of = |a: f64, b: f64| match operator {
            Operator::Plus => a + b,
            Operator::Minus => a - b,
            Operator::Times => a * b,
            Operator::Over => a / b,
        };
        let mut corners =
            [of(self.low, other.low), of(self.low, other.high), of(self.high, other.low), of(self.high, other.high)];
        // Dividing by what may be zero leaves no bound.
        if operator == Operator::Over && other.low <= 0.0 && other.high >= 0.0 {
            corners = [f64::NEG_INFINITY, f64::INFINITY, f64::NEG_INFINITY, f64::INFINITY];
        }
        let value = of(self.value, other.value);
        Range {
            low: corners.iter().copied().fold(value, f64::min),
            value,
            high: corners.iter().copied().fold(value, f64::max),
        }
    }
}

impl Node {
    /// What it comes to, where `of` knows the names.
    pub(super) fn range<E>(&self, of: &mut impl FnMut(&Name) -> Result<Range, E>) -> Result<Range, E> {
        match self {
            Node::Number(number) => Ok(Range::exactly(*number)),
            Node::Named(name) => of(name),
            Node::Operation(left, operator, right) => {
                let (left, right) = (left.range(of)?, right.range(of)?);
                Ok(left.combine(*operator, right))
            }
        }
    }

    /// Every name in it, in order.
    pub(super) fn names<'a>(&'a self, names: &mut Vec<&'a Name>) {
        match self {
            Node::Number(_) => {}
            Node::Named(name) => names.push(name),
            Node::Operation(left, _, right) => {
                left.names(names);
                right.names(names);
            }
        }
    }
}

impl Relation {
    /// Between the values alone.
    pub(super) fn holds(self, left: f64, right: f64) -> bool {
        match self {
            Relation::Less => left < right,
            Relation::LessOrEqual => left <= right,
            Relation::More => left > right,
            Relation::MoreOrEqual => left >= right,
            Relation::Equal => left == right,
            Relation::Unequal => left != right,
        }
    }

    /// Between ranges: `Some(true)` if it holds wherever in them the true values lie, `Some(false)` if it holds nowhere.
    pub(super) fn certainly(self, left: Range, right: Range) -> Option<bool> {
        let ordered = |first: Range, strictly: bool, second: Range| {
            let (all, none) = if strictly {
                (first.high < second.low, first.low >= second.high)
            } else {
                (first.high <= second.low, first.low > second.high)
            };
            match (all, none) {
                (true, _) => Some(true),
                (_, true) => Some(false),
                _ => None,
            }
        };
        let points = left.low == left.high && right.low == right.high;
        let apart = left.high < right.low || right.high < left.low;
        let equal = if apart { Some(false) } else { (points && left.value == right.value).then_some(true) };
        match self {
            Relation::Less => ordered(left, true, right),
            Relation::LessOrEqual => ordered(left, false, right),
            Relation::More => ordered(right, true, left),
            Relation::MoreOrEqual => ordered(right, false, left),
            Relation::Equal => equal,
            Relation::Unequal => equal.map(|equal| !equal),
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Relation::Less => "<",
            Relation::LessOrEqual => "<=",
            Relation::More => ">",
            Relation::MoreOrEqual => ">=",
            Relation::Equal => "==",
            Relation::Unequal => "!=",
        }
    }
}

impl fmt::Display for Relation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Finding {
    pub(super) fn of(verdict: &Verdict) -> Finding {
        match verdict {
            Verdict::Better => Finding::Better,
            Verdict::Worse => Finding::Worse,
            Verdict::NoDifference { .. } => Finding::NoDifference,
            Verdict::Inconclusive { .. } => Finding::Inconclusive,
        }
    }
}

/// Six digits are enough to see why a condition held.
pub(super) fn short(value: f64) -> f64 {
    format!("{value:.5e}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn range(low: f64, high: f64) -> Range {
        Range { low, value: f64::midpoint(low, high), high }
    }

    #[test]
    fn a_relation_is_undecided_where_ranges_overlap() {
        let (low, high, over) = (range(1.0, 2.0), range(3.0, 4.0), range(1.5, 3.5));
        assert_eq!(Relation::Less.certainly(low, high), Some(true));
        assert_eq!(Relation::Less.certainly(high, low), Some(false));
        assert_eq!(Relation::Less.certainly(low, over), None);
        assert_eq!(Relation::MoreOrEqual.certainly(high, low), Some(true));
        assert_eq!(Relation::Equal.certainly(low, high), Some(false));
        assert_eq!(Relation::Equal.certainly(low, low), None, "equal ranges are not equal numbers");
        assert_eq!(Relation::Unequal.certainly(low, high), Some(true));
        assert_eq!(Relation::LessOrEqual.certainly(Range::exactly(1.0), Range::exactly(1.0)), Some(true));
        assert_eq!(Relation::Less.certainly(Range::exactly(1.0), Range::exactly(1.0)), Some(false));
    }

    #[test]
    fn dividing_by_what_may_be_zero_decides_nothing() {
        let quotient = range(1.0, 2.0).combine(Operator::Over, range(-1.0, 1.0));
        assert_eq!(Relation::More.certainly(quotient, Range::exactly(0.0)), None);
    }

    proptest! {
        /// Whatever the true values are inside their ranges: what is certain about ranges is true of them.
        #[test]
        fn certainty_is_never_wrong(
            a in (-10.0f64..10.0, 0.0f64..5.0, 0.0f64..1.0), b in (-10.0f64..10.0, 0.0f64..5.0, 0.0f64..1.0),
            operator in prop::sample::select(vec![Operator::Plus, Operator::Minus, Operator::Times, Operator::Over]),
            relation in prop::sample::select(vec![
                Relation::Less, Relation::LessOrEqual, Relation::More, Relation::MoreOrEqual, Relation::Equal, Relation::Unequal,
            ]),
        ) {
            let (left, right) = (range(a.0, a.0 + a.1), range(b.0, b.0 + b.1));
            let (x, y) = (a.0 + a.1 * a.2, b.0 + b.1 * b.2);
            if let Some(holds) = relation.certainly(left, right) {
                prop_assert_eq!(relation.holds(x, y), holds);
            }
            let result = left.combine(operator, right);
            let truth = match operator {
                Operator::Plus => x + y,
                Operator::Minus => x - y,
                Operator::Times => x * y,
                Operator::Over => x / y,
            };
            let slack = 1e-9 * truth.abs().max(1.0);
            prop_assert!(result.low - slack <= truth && truth <= result.high + slack, "{truth} in {result:?}");
        }
    }
}
