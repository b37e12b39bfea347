//! Conditions whose answer no measurement can change, such as `decode * 2 > decode`: found by asking them of many made-up ones.
//! Not here: reading a condition (`parse.rs`), and asking a record (`mod.rs`, `rule.rs`).

use super::condition::{Node, Range, Relation};
use super::name::{Name, NamedMetric};
use crate::statistics::random::Random;
use std::collections::BTreeMap;
use std::convert::Infallible;

/// Made-up measurements.
const ASKED: usize = 256;
/// Every number that is measured lies between ten to these powers, in its base unit.
const POWERS: (f64, f64) = (-12.0, 18.0);
/// Two quotients that differ by less are one number but for rounding.
const SAME: f64 = 1e-9;

/// Why a relation between two sides is no condition; None if what is measured decides.
pub(super) fn problem(left: &Node, relation: Relation, right: &Node) -> Option<String> {
    let holds = if answer(left, relation, right)? { "always" } else { "never" };
    Some(format!("expected what a measurement decides, found what {holds} holds"))
}

/// The answer that is given whatever is measured; None if it depends on that.
fn answer(left: &Node, relation: Relation, right: &Node) -> Option<bool> {
    let mut random = Random::new(0);
    let mut found = Vec::with_capacity(ASKED);
    for _ in 0..ASKED {
        let mut numbers: BTreeMap<Name, f64> = BTreeMap::new();
        let mut of = |name: &Name| {
            let size = 10_f64.powf(POWERS.0 + (POWERS.1 - POWERS.0) * random.uniform());
            // Clocks count upwards from nothing; other rows, such as what arrived of a saving, may be below it.
            let drawn = if matches!(name.metric, NamedMetric::Clock(_)) { size } else { size * random.sign() };
            Ok::<Range, Infallible>(Range::exactly(*numbers.entry(name.clone()).or_insert(drawn)))
        };
        let (Ok(left), Ok(right)) = (left.range(&mut of), right.range(&mut of));
        found.push((left.value, right.value));
    }
    // Divided by nothing: asked of a record, it is undecided and says so.
    if found.iter().any(|(left, right)| !left.is_finite() || !right.is_finite()) {
        return None;
    }
    if matches!(relation, Relation::Equal | Relation::Unequal) {
        // Numbers that were drawn are never equal: what tells is whether the sides are one another's multiple.
        let quotient = |(left, right): &(f64, f64)| left / right;
        let first = quotient(&found[0]);
        let multiple = found.iter().all(|pair| (quotient(pair) / first - 1.0).abs() < SAME);
        let equal = (first - 1.0).abs() < SAME;
        return multiple.then_some(equal == (relation == Relation::Equal));
    }
    let first = relation.holds(found[0].0, found[0].1);
    found.iter().all(|(left, right)| relation.holds(*left, *right) == first).then_some(first)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::super::{Namespace, Rule};

    #[test]
    fn what_nothing_can_change_is_refused_with_its_answer() {
        let parse = |text: &str| Rule::parse(text, &Namespace::comparison("--accept", &[]));
        for text in [
            "decode.ratio > 1.05",
            "request < 4.5 ms",
            "decode * 2 > decode.baseline",
            "request.baseline - request > 1 ms",
            "decode * 1.0000001 > decode.baseline",
            "peak < 64 GB",
            "decode == decode.baseline",
            "decode != 2 * decode.baseline",
            "decode.ratio.low > 1",
            "arrived > 0",
            "prefill + decode < 900 tok/s",
        ] {
            assert!(parse(text).is_ok(), "{text}: {:?}", parse(text).err());
        }
        for (text, answer) in [
            ("decode * 2 > decode", "always holds"),
            ("decode > decode * 2", "never holds"),
            ("request > 0 ms", "always holds"),
            ("request - request > 1 ms", "never holds"),
            ("decode + prefill >= decode", "always holds"),
            ("decode / decode == 1", "always holds"),
            ("decode * 2 == decode", "never holds"),
            ("decode * 3 != decode", "always holds"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains("--accept") && error.contains(answer), "{text}: {error}");
        }
    }
}
