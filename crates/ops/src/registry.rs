//! Which operators, kernels and checkpoints a build offers: ours, and what `lab` adds.
//! Not here: choosing among kernels for a call, which is `bind.rs`'s.

use crate::checkpoint::Checkpoint;
use crate::ladder;
use crate::operator::{Kernel, Operator};
use crate::operators;

/// The kernels and checkpoints that a command may use.
#[derive(Clone, Default)]
pub struct Registry {
    extra_kernels: Vec<&'static Kernel>,
    extra_checkpoints: Vec<&'static Checkpoint>,
    /// An operator that an extra kernel is for has no other kernels.
    only: bool,
}

impl Registry {
    /// Ours.
    pub fn standard() -> Registry {
        Registry::default()
    }

    /// Ours plus a user's. A user's kernel of the same operator and name as one of ours is preferred where it runs.
    pub fn with(kernels: &[&'static Kernel], checkpoints: &[&'static Checkpoint]) -> Registry {
        Registry { extra_kernels: kernels.to_vec(), extra_checkpoints: checkpoints.to_vec(), only: false }
    }

    /// One kernel in place of its operator's own, for tests of it.
    pub(crate) fn only(kernel: &'static Kernel) -> Registry {
        Registry { extra_kernels: vec![kernel], extra_checkpoints: Vec::new(), only: true }
    }

    /// Every operator.
    pub fn operators(&self) -> &'static [&'static dyn Operator] {
        operators::ALL
    }

    /// Every kernel of an operator, the reference first, preferred ones last.
    pub fn kernels(&self, operator: &dyn Operator) -> impl Iterator<Item = &'static Kernel> {
        let extra = self.extra_kernels.iter().copied().filter(|kernel| kernel.operator == operator.name());
        let extra: Vec<_> = extra.collect();
        let own = if self.only && !extra.is_empty() { &[][..] } else { operator.kernels() };
        own.iter().copied().chain(extra)
    }

    /// Every checkpoint: the oracle `reference`, the rungs in order, then the user's.
    pub fn checkpoints(&self) -> impl Iterator<Item = &'static Checkpoint> {
        ladder::ALL.iter().copied().chain(self.extra_checkpoints.iter().copied())
    }

    /// The newest rung, which [`ladder::FAST`] stands for: the last of ours, or the user's last if there is one.
    pub fn newest(&self) -> &'static Checkpoint {
        self.checkpoints().last().expect("the ladder has rungs")
    }

    /// The checkpoint of this name; [`ladder::FAST`] is the newest rung's.
    ///
    /// # Errors
    /// A sentence for a retired name, or the list of known names.
    pub fn checkpoint(&self, name: &str) -> Result<&'static Checkpoint, String> {
        if name == ladder::FAST {
            return Ok(self.newest());
        }
        if let Some(found) = self.checkpoints().find(|checkpoint| checkpoint.name == name) {
            return Ok(found);
        }
        if let Some((_, why)) = ladder::RETIRED.iter().find(|(retired, _)| *retired == name) {
            return Err(format!("checkpoint '{name}' is retired: {why}"));
        }
        let known: Vec<_> =
            self.checkpoints().map(|checkpoint| checkpoint.name).chain(std::iter::once(ladder::FAST)).collect();
        Err(format!("unknown checkpoint '{name}'; known ones are {}", known.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    static MINE: Checkpoint = Checkpoint { name: "mine", parent: Some(&ladder::WEEK1), ..ladder::WEEK1 };

    #[test]
    fn fast_is_the_newest_rung_and_no_checkpoint_of_its_own() {
        let standard = Registry::standard();
        let last = ladder::ALL[ladder::ALL.len() - 1];
        assert_eq!(standard.checkpoint(ladder::FAST).unwrap().name, last.name);
        assert_eq!(Registry::with(&[], &[&MINE]).checkpoint(ladder::FAST).unwrap().name, "mine");
        assert!(standard.checkpoints().all(|checkpoint| checkpoint.name != ladder::FAST));
        // Whoever mistypes a name is told of the alias too.
        assert!(standard.checkpoint("fastest").unwrap_err().ends_with(", fast"));
    }

    #[test]
    fn the_newest_rung_descends_from_every_other() {
        let line: Vec<_> = Registry::standard().newest().lineage().iter().map(|rung| rung.name).collect();
        let rungs: Vec<_> = ladder::ALL[1..].iter().map(|rung| rung.name).collect();
        assert_eq!(line, rungs);
    }
}
