//! From the text of a condition to its checked form; every refusal points at its place.
//! Not here: what a condition is asked of (`mod.rs`).

use super::{Condition, Finding, Node, Operator, Relation};
use crate::bench::Metric;
use crate::quantity::Unit;

/// The longest condition; longer ones are no conditions.
const MAX_LENGTH: usize = 1000;
/// Parentheses within each other.
const MAX_DEPTH: usize = 50;

/// What a verdict without a metric is asked of: the three clocks.
const CLOCKS: [Metric; 3] = [Metric::Prefill, Metric::Decode, Metric::Request];

/// What is wrong with a condition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "--fail-if \"{text}\": column {column}: {problem}; a condition is like 'decode < 0.97 * baseline', 'peak > 2 GB' or \
     'decode.verdict == slower'"
)]
pub struct GateError {
    pub text: String,
    /// In characters, from 1.
    pub column: usize,
    /// What was expected and what was found.
    pub problem: String,
}

/// What a value is measured in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Plain,
    Time,
    Bytes,
    Rate,
}

impl Kind {
    fn of(metric: Metric) -> Kind {
        match metric.unit() {
            Unit::Seconds | Unit::Microseconds => Kind::Time,
            Unit::Bytes => Kind::Bytes,
            Unit::TokensPerSecond => Kind::Rate,
            _ => Kind::Plain,
        }
    }

    const fn words(self) -> &'static str {
        match self {
            Kind::Plain => "a number without unit",
            Kind::Time => "a time (s, ms or us)",
            Kind::Bytes => "bytes (B, kB, MB, GB, KiB, MiB or GiB)",
            Kind::Rate => "a rate (tok/s)",
        }
    }
}

/// Units, what they are, and how much of the base unit.
const UNITS: [(&str, Kind, f64); 12] = [
    ("%", Kind::Plain, 0.01),
    ("s", Kind::Time, 1.0),
    ("ms", Kind::Time, 1e-3),
    ("us", Kind::Time, 1e-6),
    ("B", Kind::Bytes, 1.0),
    ("kB", Kind::Bytes, 1e3),
    ("MB", Kind::Bytes, 1e6),
    ("GB", Kind::Bytes, 1e9),
    ("KiB", Kind::Bytes, 1024.0),
    ("MiB", Kind::Bytes, 1_048_576.0),
    ("GiB", Kind::Bytes, 1_073_741_824.0),
    ("tok/s", Kind::Rate, 1.0),
];

const RELATIONS: [(&str, Relation); 6] = [
    ("<=", Relation::LessOrEqual),
    (">=", Relation::MoreOrEqual),
    ("==", Relation::Equal),
    ("!=", Relation::Unequal),
    ("<", Relation::Less),
    (">", Relation::More),
];

/// Reads a whole condition.
pub(super) fn condition(text: &str) -> Result<Condition, GateError> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let mut metrics: Vec<Metric> = words.filter_map(Metric::parse).collect();
    metrics.sort_unstable();
    metrics.dedup();
    let mut parser = Parser { text, characters: text.chars().collect(), at: 0, metrics };
    if parser.characters.len() > MAX_LENGTH {
        return Err(parser.error(MAX_LENGTH, format!("longer than {MAX_LENGTH} characters")));
    }
    parser.spaces();
    let start = parser.at;
    if let Some(metrics) = parser.verdict_of()? {
        return parser.verdicts(metrics);
    }
    parser.at = start;
    parser.numbers()
}

struct Parser<'a> {
    text: &'a str,
    characters: Vec<char>,
    at: usize,
    /// Every metric that the text names: known first, because `baseline` takes its meaning from one that may follow it.
    metrics: Vec<Metric>,
}

type Typed = (Node, Kind);

impl Parser<'_> {
    fn error(&self, at: usize, problem: String) -> GateError {
        GateError { text: self.text.chars().take(MAX_LENGTH).collect(), column: at + 1, problem }
    }

    fn expected(&self, what: &str) -> GateError {
        let found = match self.characters.get(self.at) {
            None => "the end".to_owned(),
            Some(first) if first.is_alphanumeric() => {
                let word = self.characters[self.at..].iter().take_while(|c| c.is_alphanumeric() || **c == '_');
                format!("\"{}\"", word.take(40).collect::<String>())
            }
            Some(first) => format!("\"{}\"", first.escape_debug()),
        };
        self.error(self.at, format!("expected {what}, found {found}"))
    }

    fn spaces(&mut self) {
        while self.characters.get(self.at).is_some_and(|c| c.is_whitespace()) {
            self.at += 1;
        }
    }

    /// Takes `word` and the spaces after it, if it is next.
    fn take(&mut self, word: &str) -> bool {
        let here = self.characters[self.at..].iter().copied();
        let is_next = here.take(word.chars().count()).eq(word.chars());
        if is_next {
            self.at += word.chars().count();
            self.spaces();
        }
        is_next
    }

    /// Takes a name without the spaces after it.
    fn name(&mut self) -> String {
        let begins = self.characters.get(self.at).is_some_and(|c| c.is_ascii_alphabetic());
        let rest = self.characters[self.at..].iter();
        let name: String = rest.take_while(|c| begins && (c.is_ascii_alphanumeric() || **c == '_')).copied().collect();
        self.at += name.len();
        name
    }

    fn end(&self) -> Result<(), GateError> {
        if self.at < self.characters.len() {
            return Err(self.expected("the end or an operator"));
        }
        Ok(())
    }

    fn relation(&mut self) -> Result<Relation, GateError> {
        RELATIONS
            .into_iter()
            .find(|(word, _)| self.take(word))
            .map(|(_, relation)| relation)
            .ok_or_else(|| self.expected("one of < <= > >= == != or an operator + - * /"))
    }

    /// `verdict` or `METRIC.verdict`; anything else is left to be read as numbers.
    fn verdict_of(&mut self) -> Result<Option<Vec<Metric>>, GateError> {
        let start = self.at;
        let name = self.name();
        if name == "verdict" {
            self.spaces();
            return Ok(Some(CLOCKS.to_vec()));
        }
        if self.characters.get(self.at) != Some(&'.') || name.is_empty() {
            return Ok(None);
        }
        let Some(metric) = Metric::parse(&name) else {
            self.at = start;
            return Err(self.expected(&format!("a metric ({})", metrics())));
        };
        self.at += 1;
        let after_dot = self.at;
        if self.name() != "verdict" {
            self.at = after_dot;
            return Err(self.expected("\"verdict\" after the dot"));
        }
        self.spaces();
        Ok(Some(vec![metric]))
    }

    fn verdicts(&mut self, metrics: Vec<Metric>) -> Result<Condition, GateError> {
        let at = self.at;
        let equal = match self.relation() {
            Ok(Relation::Equal) => true,
            Ok(Relation::Unequal) => false,
            _ => {
                self.at = at;
                return Err(self.expected("== or != after a verdict"));
            }
        };
        let bytes = metrics.iter().all(|metric| Kind::of(*metric) == Kind::Bytes);
        let (better, worse) = if bytes { ("smaller", "larger") } else { ("faster", "slower") };
        let at = self.at;
        let word = self.name();
        let finding = match word.as_str() {
            "no_difference" => Finding::NoDifference,
            "inconclusive" => Finding::Inconclusive,
            word if word == better => Finding::Better,
            word if word == worse => Finding::Worse,
            _ => {
                self.at = at;
                return Err(self.expected(&format!("{better}, {worse}, no_difference or inconclusive")));
            }
        };
        self.spaces();
        self.end()?;
        Ok(Condition::Verdicts { metrics, equal, finding })
    }

    fn numbers(&mut self) -> Result<Condition, GateError> {
        let start = self.at;
        let (left, left_kind) = self.sum(0)?;
        let relation = self.relation()?;
        let right_at = self.at;
        let (right, right_kind) = self.sum(0)?;
        self.end()?;
        let Some(metric) = self.metrics.first().copied() else {
            return Err(self.error(start, format!("expected a metric on one side ({}), found none", metrics())));
        };
        if left_kind != right_kind {
            return Err(self.unlike(right_at, left_kind, right_kind));
        }
        let unit = match left_kind {
            Kind::Plain => Unit::Ratio,
            Kind::Time => Unit::Seconds,
            Kind::Bytes => Unit::Bytes,
            Kind::Rate => Unit::TokensPerSecond,
        };
        Ok(Condition::Numbers { left, relation, right, metric, unit })
    }

    fn unlike(&self, at: usize, left: Kind, right: Kind) -> GateError {
        self.error(at, format!("expected {} as on the left, found {}", left.words(), right.words()))
    }

    fn sum(&mut self, depth: usize) -> Result<Typed, GateError> {
        let (mut left, kind) = self.product(depth)?;
        loop {
            let operator = match self.characters.get(self.at) {
                Some('+') => Operator::Plus,
                Some('-') => Operator::Minus,
                _ => return Ok((left, kind)),
            };
            self.at += 1;
            self.spaces();
            let at = self.at;
            let (right, right_kind) = self.product(depth)?;
            if right_kind != kind {
                return Err(self.unlike(at, kind, right_kind));
            }
            left = Node::Operation(Box::new(left), operator, Box::new(right));
        }
    }

    fn product(&mut self, depth: usize) -> Result<Typed, GateError> {
        let (mut left, mut kind) = self.factor(depth)?;
        loop {
            let operator = match self.characters.get(self.at) {
                Some('*') => Operator::Times,
                Some('/') => Operator::Over,
                _ => return Ok((left, kind)),
            };
            self.at += 1;
            self.spaces();
            let at = self.at;
            let (right, right_kind) = self.factor(depth)?;
            kind = match (operator, kind, right_kind) {
                (_, kind, Kind::Plain) => kind,
                (Operator::Times, Kind::Plain, kind) => kind,
                (Operator::Over, left, right) if left == right => Kind::Plain,
                _ => {
                    let what =
                        if operator == Operator::Times { "a number without unit" } else { "the unit on the left" };
                    return Err(self.error(at, format!("expected {what}, found {}", right_kind.words())));
                }
            };
            left = Node::Operation(Box::new(left), operator, Box::new(right));
        }
    }

    fn factor(&mut self, depth: usize) -> Result<Typed, GateError> {
        if depth >= MAX_DEPTH {
            return Err(self.error(self.at, format!("more than {MAX_DEPTH} parentheses within each other")));
        }
        let start = self.at;
        match self.characters.get(self.at) {
            Some('(') => {
                self.at += 1;
                self.spaces();
                let inner = self.sum(depth + 1)?;
                if !self.take(")") {
                    return Err(self.expected("\")\" or an operator"));
                }
                Ok(inner)
            }
            Some(digit) if digit.is_ascii_digit() || *digit == '.' => self.number(),
            _ => {
                let name = self.name();
                if name == "baseline" {
                    return self.baseline(start);
                }
                let Some(metric) = Metric::parse(&name) else {
                    self.at = start;
                    return Err(self.expected(&format!("a number, baseline or a metric ({})", metrics())));
                };
                self.spaces();
                Ok((Node::Metric(metric), Kind::of(metric)))
            }
        }
    }

    fn baseline(&mut self, start: usize) -> Result<Typed, GateError> {
        let [metric] = self.metrics.as_slice() else {
            let problem = format!(
                "baseline is the control's value of the one metric that the condition names; expected one metric, \
                 found {}",
                self.metrics.len()
            );
            return Err(self.error(start, problem));
        };
        let kind = Kind::of(*metric);
        self.spaces();
        Ok((Node::Baseline, kind))
    }

    fn number(&mut self) -> Result<Typed, GateError> {
        let start = self.at;
        let digits: String =
            self.characters[start..].iter().take_while(|c| c.is_ascii_digit() || **c == '.').copied().collect();
        let number: f64 =
            digits.parse().map_err(|_| self.error(start, format!("expected a number, found \"{digits}\"")))?;
        self.at += digits.len();
        self.spaces();
        // The longest unit that fits, so that "ms" is not "m" and an "s"; a unit ends where a word ends.
        let rest: String = self.characters[self.at..].iter().take(8).collect();
        let unit = UNITS.iter().filter(|(unit, ..)| rest.starts_with(unit)).max_by_key(|(unit, ..)| unit.len());
        let follows = |unit: &str| rest.chars().nth(unit.len()).is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
        let (kind, scale) = match unit {
            Some((unit, kind, scale)) if !follows(unit) => {
                self.at += unit.len();
                (*kind, *scale)
            }
            _ if rest.starts_with(|c: char| c.is_ascii_alphabetic()) => {
                let units = UNITS.map(|(unit, ..)| unit).join(" ");
                return Err(self.expected(&format!("a unit ({units}) or an operator")));
            }
            _ => (Kind::Plain, 1.0),
        };
        self.spaces();
        let value = number * scale;
        if !value.is_finite() {
            return Err(self.error(start, format!("expected a number, found {digits}, which is too large")));
        }
        Ok((Node::Number(value), kind))
    }
}

fn metrics() -> String {
    Metric::ALL.map(Metric::name).join(", ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use proptest::prelude::*;

    fn refused(text: &str) -> GateError {
        condition(text).expect_err(text)
    }

    #[test]
    fn units_and_precedence_are_the_usual_ones() {
        let number = |text: &str| match condition(&format!("{text} < ttft")).unwrap() {
            Condition::Numbers { left: Node::Number(number), .. } => number,
            other => panic!("{other:?}"),
        };
        assert_eq!((number("2 s"), number("250ms"), number("4 us")), (2.0, 0.25, 4e-6));
        let Condition::Numbers { right, metric, relation, .. } = condition("decode<0.97*baseline+1 tok/s").unwrap()
        else {
            panic!("numbers")
        };
        assert_eq!((metric, relation), (Metric::Decode, Relation::Less));
        let product = Node::Operation(Box::new(Node::Number(0.97)), Operator::Times, Box::new(Node::Baseline));
        assert_eq!(right, Node::Operation(Box::new(product), Operator::Plus, Box::new(Node::Number(1.0))));
        for text in ["peak > 2 GB", "baseline > decode", "(request - ttft) / request > 90 %", "peak_rss >= 1.5GiB"] {
            condition(text).unwrap();
        }
    }

    #[test]
    fn verdicts_are_asked_by_their_words() {
        let expected = Condition::Verdicts { metrics: CLOCKS.to_vec(), equal: true, finding: Finding::Worse };
        assert_eq!(condition(" verdict == slower ").unwrap(), expected);
        let expected = Condition::Verdicts { metrics: vec![Metric::Peak], equal: false, finding: Finding::Better };
        assert_eq!(condition("peak.verdict!=smaller").unwrap(), expected);
        assert_eq!(refused("peak.verdict == slower").column, 17);
        assert_eq!(refused("decode.verdict < slower").column, 16);
        assert_eq!(refused("speed.verdict == slower").column, 1);
        assert_eq!(refused("decode.mean == slower").column, 8);
    }

    #[test]
    fn refusals_point_at_the_place_and_say_what_is_expected() {
        for (text, column, problem) in [
            ("", 1, "found the end"),
            ("decode", 7, "expected one of <"),
            ("decod < 3 tok/s", 1, "found \"decod\""),
            ("decode < 30", 10, "expected a rate (tok/s) as on the left, found a number without unit"),
            ("ttft < 3 tok/s", 8, "expected a time"),
            ("ttft < 3 hours", 10, "expected a unit"),
            ("decode < 0.9 * baseline)", 24, "found \")\""),
            ("decode < (baseline", 19, "found the end"),
            ("decode < baseline * prefill", 10, "found 2"),
            ("1 < 2", 1, "expected a metric"),
            ("baseline < 2 s", 1, "found 0"),
            ("decode * decode > 1 tok/s", 10, "expected a number without unit"),
            ("peak / ttft > 1", 8, "expected the unit on the left"),
            ("ttft < 1.2.3 s", 8, "found \"1.2.3\""),
            ("ttft = 1 s", 6, "found \"=\""),
            ("décode < 1 s", 1, "found \"décode\""),
        ] {
            let error = refused(text);
            assert_eq!(error.column, column, "{error}");
            assert!(error.to_string().contains(problem), "{error}");
        }
        assert!(refused(&format!("{}decode > 1 tok/s", "(".repeat(900))).problem.contains("parentheses"));
        assert!(refused(&" ".repeat(5000)).problem.contains("longer"));
        assert!(refused(&format!("ttft < {} s", "9".repeat(400))).problem.contains("too large"));
    }

    proptest! {
        /// Whatever is passed in: an answer, and a refusal's column lies in the text or just behind it.
        #[test]
        fn no_text_is_too_strange(text in "[a-z_.0-9<>=!+*/() %-]{0,60}|\\PC{0,30}") {
            if let Err(error) = condition(&text) {
                prop_assert!(error.column >= 1 && error.column <= text.chars().count() + 1, "{error}");
            }
        }

        /// Pieces in any order are far likelier to be nearly right.
        #[test]
        fn no_mixture_of_words_is_too_strange(
            words in proptest::collection::vec(
                proptest::sample::select(vec![
                    "decode", "peak", "baseline", "verdict", "slower", ".", "<", "==", "(", ")", "*", "/", "-", "1", "0.5",
                    "GB", "tok/s", "s",
                ]),
                0..12,
            )
        ) {
            let text = words.join(" ");
            if let Err(error) = condition(&text) {
                prop_assert!(error.column >= 1 && error.column <= text.chars().count() + 1, "{error}");
            }
        }

        /// What parses means what arithmetic says: ratios against a calculation beside it.
        #[test]
        fn sums_and_products_are_computed_as_written(a in 1u32..100, b in 1u32..100, c in 1u32..100) {
            let text = format!("{a} s + {b} s * {c} - ({a} s - {b} s) / {c} < ttft");
            let Condition::Numbers { left, .. } = condition(&text).unwrap() else { panic!("numbers") };
            let (a, b, c) = (f64::from(a), f64::from(b), f64::from(c));
            prop_assert!((value(&left) - (a + b * c - (a - b) / c)).abs() < 1e-9);
        }
    }

    fn value(node: &Node) -> f64 {
        match node {
            Node::Number(number) => *number,
            Node::Operation(left, Operator::Plus, right) => value(left) + value(right),
            Node::Operation(left, Operator::Minus, right) => value(left) - value(right),
            Node::Operation(left, Operator::Times, right) => value(left) * value(right),
            Node::Operation(left, Operator::Over, right) => value(left) / value(right),
            Node::Metric(_) | Node::Baseline => panic!("numbers only"),
        }
    }
}
