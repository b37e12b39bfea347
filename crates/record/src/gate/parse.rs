//! From the text of a condition to its checked form; every refusal points at its place.
//! Not here: what a condition is asked of (`mod.rs`, `rule.rs`), and the names there are (`name.rs`).

use super::condition::{Condition, Finding, Node, Operator, Relation};
use super::name::{Kind, Name, NamedMetric, Namespace, Part};
use crate::bench::Metric;

/// The longest condition; longer ones are no conditions.
const MAX_LENGTH: usize = 1000;
/// Parentheses within each other.
const MAX_DEPTH: usize = 50;

/// What a verdict without a metric is asked of: the three clocks.
const CLOCKS: [Metric; 3] = [Metric::Prefill, Metric::Decode, Metric::Request];

/// What may stand after a metric and a dot.
const PARTS: &str = "verdict, baseline, ratio, ratio.low or ratio.high after the dot";

/// What is wrong with a condition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{flag} \"{text}\": column {column}: {problem}; a condition is like 'decode < 0.97 * baseline', 'peak > 2 GB' or \
     'decode.verdict == slower'"
)]
pub struct GateError {
    /// Where it was given.
    pub flag: &'static str,
    pub text: String,
    /// In characters, from 1.
    pub column: usize,
    /// What was expected and what was found.
    pub problem: String,
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
pub(super) fn condition(text: &str, names: &Namespace) -> Result<Condition, GateError> {
    let mut metrics: Vec<NamedMetric> = text
        .split(|c: char| !is_of_name(c) && c != '.')
        .filter_map(|path| prefix(path, names).map(|(metric, _)| metric))
        .collect();
    metrics.sort_unstable();
    metrics.dedup();
    let mut parser = Parser { names, text, characters: text.chars().collect(), at: 0, metrics };
    if parser.characters.len() > MAX_LENGTH {
        return Err(parser.error(MAX_LENGTH, format!("longer than {MAX_LENGTH} characters")));
    }
    parser.spaces();
    let start = parser.at;
    if names.tokens && parser.path() == "tokens_equal" {
        return parser.tokens();
    }
    parser.at = start;
    if let Some(metrics) = parser.verdict_of()? {
        return parser.verdicts(metrics);
    }
    parser.at = start;
    parser.numbers()
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The longest head of a dotted path that is a metric, and what is left of the path, its dot included.
fn prefix<'p>(path: &'p str, names: &Namespace) -> Option<(NamedMetric, &'p str)> {
    let ends = path.match_indices('.').map(|(at, _)| at).chain([path.len()]).collect::<Vec<_>>();
    ends.into_iter().rev().find_map(|end| Some((names.metric(&path[..end])?, &path[end..])))
}

struct Parser<'a> {
    names: &'a Namespace,
    text: &'a str,
    characters: Vec<char>,
    at: usize,
    /// Every metric that the text names: known first, because `baseline` takes its meaning from one that may follow it.
    metrics: Vec<NamedMetric>,
}

type Typed = (Node, Kind);

impl Parser<'_> {
    fn error(&self, at: usize, problem: String) -> GateError {
        let flag = self.names.flag;
        GateError { flag, text: self.text.chars().take(MAX_LENGTH).collect(), column: at + 1, problem }
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

    /// Takes a word without the spaces after it.
    fn name(&mut self) -> String {
        let begins = self.characters.get(self.at).is_some_and(|c| c.is_ascii_alphabetic());
        let rest = self.characters[self.at..].iter();
        let name: String = rest.take_while(|c| begins && is_of_name(**c)).copied().collect();
        self.at += name.len();
        name
    }

    /// Takes words with dots between them, without the spaces after them.
    fn path(&mut self) -> String {
        let mut path = self.name();
        while !path.is_empty() && self.characters.get(self.at) == Some(&'.') {
            let dot = self.at;
            self.at += 1;
            let next = self.name();
            if next.is_empty() {
                self.at = dot;
                break;
            }
            path = format!("{path}.{next}");
        }
        path
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

    /// `tokens_equal`, alone or compared with yes or no.
    fn tokens(&mut self) -> Result<Condition, GateError> {
        self.spaces();
        if self.at == self.characters.len() {
            return Ok(Condition::Tokens { equal: true });
        }
        let at = self.at;
        let equal = match self.relation() {
            Ok(Relation::Equal) => true,
            Ok(Relation::Unequal) => false,
            _ => {
                self.at = at;
                return Err(self.expected("== or != after tokens_equal"));
            }
        };
        let at = self.at;
        let wanted = match self.name().as_str() {
            "yes" => true,
            "no" => false,
            _ => {
                self.at = at;
                return Err(self.expected("yes or no"));
            }
        };
        self.spaces();
        self.end()?;
        Ok(Condition::Tokens { equal: equal == wanted })
    }

    /// `verdict` or `METRIC.verdict`; anything else is left to be read as numbers.
    fn verdict_of(&mut self) -> Result<Option<Vec<NamedMetric>>, GateError> {
        let start = self.at;
        let path = self.path();
        if path == "verdict" {
            self.spaces();
            return Ok(Some(CLOCKS.map(NamedMetric::Clock).to_vec()));
        }
        let Some(head) = path.strip_suffix(".verdict") else { return Ok(None) };
        let Some(metric) = self.names.metric(head) else {
            self.at = start;
            return Err(self.expected(&format!("a metric ({})", self.names.listing())));
        };
        self.spaces();
        Ok(Some(vec![metric]))
    }

    fn verdicts(&mut self, metrics: Vec<NamedMetric>) -> Result<Condition, GateError> {
        let at = self.at;
        let equal = match self.relation() {
            Ok(Relation::Equal) => true,
            Ok(Relation::Unequal) => false,
            _ => {
                self.at = at;
                return Err(self.expected("== or != after a verdict"));
            }
        };
        let bytes = metrics.iter().all(|metric| metric.kind() == Kind::Bytes);
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
        if self.metrics.is_empty() {
            let problem = format!("expected a metric on one side ({}), found none", self.names.listing());
            return Err(self.error(start, problem));
        }
        if left_kind != right_kind {
            return Err(self.unlike(right_at, left_kind, right_kind));
        }
        if let Some(problem) = super::settled::problem(&left, relation, &right) {
            return Err(self.error(right_at, problem));
        }
        Ok(Condition::Numbers { left, relation, right, unit: left_kind.unit() })
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
            _ => self.named(),
        }
    }

    /// `baseline`, or a metric and a part of it.
    fn named(&mut self) -> Result<Typed, GateError> {
        let start = self.at;
        let path = self.path();
        if path == "baseline" {
            return self.baseline(start);
        }
        let Some((metric, rest)) = prefix(&path, self.names) else {
            self.at = start;
            return Err(self.expected(&format!("a number, baseline or a metric ({})", self.names.listing())));
        };
        let part = match rest {
            "" => Part::Value,
            ".baseline" => Part::Baseline,
            ".ratio" => Part::Ratio,
            ".ratio.low" => Part::Low,
            ".ratio.high" => Part::High,
            _ => {
                self.at = start + path.len() - rest.len() + 1;
                return Err(self.expected(PARTS));
            }
        };
        self.spaces();
        let name = Name { metric, part };
        let kind = name.kind();
        Ok((Node::Named(name), kind))
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
        let name = Name { metric: metric.clone(), part: Part::Baseline };
        let kind = name.kind();
        self.spaces();
        Ok((Node::Named(name), kind))
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use proptest::prelude::*;

    fn condition(text: &str) -> Result<Condition, GateError> {
        super::condition(text, &Namespace::bench())
    }

    fn of_comparison(text: &str) -> Result<Condition, GateError> {
        super::condition(text, &Namespace::comparison("--accept", &["projections", "normalization, and position"]))
    }

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
        let Condition::Numbers { left, right, relation, .. } = condition("decode<0.97*baseline+1 tok/s").unwrap()
        else {
            panic!("numbers")
        };
        let named = |part| Node::Named(Name { metric: NamedMetric::Clock(Metric::Decode), part });
        assert_eq!((left, relation), (named(Part::Value), Relation::Less));
        let baseline = Box::new(named(Part::Baseline));
        let product = Node::Operation(Box::new(Node::Number(0.97)), Operator::Times, baseline);
        assert_eq!(right, Node::Operation(Box::new(product), Operator::Plus, Box::new(Node::Number(1.0))));
        for text in [
            "peak > 2 GB",
            "baseline > decode",
            "(request - ttft) / request > 90 %",
            "peak_rss >= 1.5GiB",
            "decode.ratio.low > 97 %",
            "decode.ratio < 1.1 * ttft.ratio.high",
            "decode.baseline > 3 tok/s",
        ] {
            condition(text).unwrap();
        }
    }

    #[test]
    fn verdicts_are_asked_by_their_words() {
        let expected = Condition::Verdicts {
            metrics: CLOCKS.map(NamedMetric::Clock).to_vec(),
            equal: true,
            finding: Finding::Worse,
        };
        assert_eq!(condition(" verdict == slower ").unwrap(), expected);
        let expected = Condition::Verdicts {
            metrics: vec![NamedMetric::Clock(Metric::Peak)],
            equal: false,
            finding: Finding::Better,
        };
        assert_eq!(condition("peak.verdict!=smaller").unwrap(), expected);
        assert_eq!(refused("peak.verdict == slower").column, 17);
        assert_eq!(refused("decode.verdict < slower").column, 16);
        assert_eq!(refused("speed.verdict == slower").column, 1);
        assert_eq!(refused("decode.mean == slower").column, 8);
        assert_eq!(refused("decode.ratio.middle > 1").column, 8);
    }

    #[test]
    fn a_comparison_has_more_names_than_a_run() {
        for text in [
            "replay.decode.projections < 0.9 * baseline",
            "replay.decode.normalization_and_position.ratio < 1",
            "replay.prefill.total < 3 ms",
            "replay.decode.projections.verdict == faster",
            "target.ratio < 90 %",
            "arrived > 0.5",
            "timeline.busy_share >= timeline.busy_share.baseline",
        ] {
            of_comparison(text).unwrap();
            assert!(condition(text).unwrap_err().problem.contains("a metric"), "{text}");
        }
        for (text, equal) in [
            ("tokens_equal", true),
            ("tokens_equal == yes", true),
            ("tokens_equal != yes", false),
            ("tokens_equal==no", false),
        ] {
            assert_eq!(of_comparison(text).unwrap(), Condition::Tokens { equal });
        }
        for (text, column, problem) in [
            ("replay.decode.projection < 1 ms", 1, "hourglass decide metrics"),
            ("replay.decode.projections < 1", 29, "expected a time"),
            ("tokens_equal < yes", 14, "== or !="),
            ("tokens_equal == maybe", 17, "yes or no"),
            ("tokens_equal == yes no", 21, "expected the end"),
            ("arrived > 1 ms", 11, "found a time"),
        ] {
            let error = of_comparison(text).expect_err(text);
            assert!(error.column == column && error.to_string().contains(problem), "{error}");
            assert!(error.to_string().starts_with("--accept"), "{error}");
        }
    }

    #[test]
    fn refusals_point_at_the_place_and_say_what_is_expected() {
        for (text, column, problem) in [
            ("", 1, "found the end"),
            ("decode", 7, "expected one of <"),
            ("decod < 3 tok/s", 1, "found \"decod\""),
            ("decode < decode", 10, "found what never holds"),
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
                    "decode", "peak", "baseline", "verdict", "slower", ".", "ratio", "tokens_equal", "<", "==", "(", ")", "*", "/", "-", "1", "0.5",
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
            Node::Named(_) => panic!("numbers only"),
        }
    }
}
