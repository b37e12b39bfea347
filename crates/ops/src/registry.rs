//! Which operators, kernels and checkpoints a build offers: ours, and what `lab` adds.
//! Not here: choosing among kernels for a call, which is `bind.rs`'s.

use crate::checkpoint::Checkpoint;
use crate::ladder;
use crate::operator::{Kernel, Operator};
use crate::operators;

/// The kernels and checkpoints that a command may use.
#[derive(Clone, Default)]
pub struct Registry {
    /// Before ours in preference: bound only where a choice names them.
    offered_kernels: Vec<&'static Kernel>,
    /// After ours: preferred wherever they run.
    extra_kernels: Vec<&'static Kernel>,
    extra_checkpoints: Vec<&'static Checkpoint>,
    /// An operator that an extra kernel is for has no other kernels.
    only: bool,
    /// A device's kernels, in place of all others.
    device: Option<&'static [&'static Kernel]>,
}

impl Registry {
    /// Ours.
    pub fn standard() -> Registry {
        Registry::default()
    }

    /// Ours plus others that are preferred: to ours of the same operator and name, and for an operator that a checkpoint names
    /// no kernel for.
    pub fn with(kernels: &[&'static Kernel], checkpoints: &[&'static Checkpoint]) -> Registry {
        Registry { extra_kernels: kernels.to_vec(), extra_checkpoints: checkpoints.to_vec(), ..Registry::default() }
    }

    /// Ours plus a user's, whose kernels are bound only where a checkpoint names them: our rungs stay what they are, so that a
    /// user's checkpoint can be compared with its parent.
    pub fn offering(kernels: &[&'static Kernel], checkpoints: &[&'static Checkpoint]) -> Registry {
        Registry { offered_kernels: kernels.to_vec(), ..Registry::with(&[], checkpoints) }
    }

    /// One kernel in place of its operator's own, for tests of it.
    pub(crate) fn only(kernel: &'static Kernel) -> Registry {
        Registry { only: true, ..Registry::with(&[kernel], &[]) }
    }

    /// The same with one kernel preferred among those of its operator and name, wherever it runs.
    pub fn preferring(&self, kernel: &'static Kernel) -> Registry {
        let mut registry = self.clone();
        registry.extra_kernels.push(kernel);
        registry
    }

    /// The same checkpoints, with a device's kernels in place of all others.
    pub fn on_device(&self, kernels: &'static [&'static Kernel]) -> Registry {
        Registry { device: Some(kernels), ..self.clone() }
    }

    /// Every operator.
    pub fn operators(&self) -> &'static [&'static dyn Operator] {
        operators::ALL
    }

    /// Every kernel of an operator, the reference first, preferred ones last.
    pub fn kernels(&self, operator: &dyn Operator) -> impl Iterator<Item = &'static Kernel> {
        let of = |kernels: &[&'static Kernel]| -> Vec<&'static Kernel> {
            kernels.iter().copied().filter(|kernel| kernel.operator == operator.name()).collect()
        };
        let (offered, extra) = match self.device {
            None => (of(&self.offered_kernels), of(&self.extra_kernels)),
            // Of others only a device's own can be preferred: it runs no others.
            Some(kernels) => {
                let own = |extra: &&'static Kernel| kernels.iter().any(|kernel| std::ptr::eq(*kernel, *extra));
                let extra = of(&self.extra_kernels).into_iter().filter(own);
                (Vec::new(), of(kernels).into_iter().chain(extra).collect())
            }
        };
        let replaced = self.device.is_some() || (self.only && !extra.is_empty());
        let own = if replaced { &[][..] } else { operator.kernels() };
        let (reference, variants) = own.split_at(own.len().min(1));
        reference.iter().copied().chain(offered).chain(variants.iter().copied()).chain(extra)
    }

    /// Every checkpoint: the oracle `reference`, the rungs in order, those beside the ladder, then the user's.
    pub fn checkpoints(&self) -> impl Iterator<Item = &'static Checkpoint> {
        let more = if self.device.is_some() { ladder::DEVICE } else { ladder::beside::ALL };
        ladder::ALL.iter().chain(more).copied().chain(self.extra_checkpoints.iter().copied())
    }

    /// The newest rung, which [`ladder::FAST`] stands for: the last checkpoint that descends from the last of ours. One that is
    /// made from an older rung, or beside the ladder, never becomes it.
    pub fn newest(&self) -> &'static Checkpoint {
        let rungs = if self.device.is_some() { ladder::DEVICE } else { ladder::ALL };
        let ours = rungs.last().expect("the ladder has rungs");
        let descends = |checkpoint: &&'static Checkpoint| {
            let line = checkpoint.lineage();
            line.iter().any(|rung| rung.name == ours.name) && !line.iter().any(|rung| ladder::beside::has(rung.name))
        };
        self.checkpoints().filter(descends).last().unwrap_or(ours)
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
        if ladder::DEVICE.iter().any(|checkpoint| checkpoint.name == name) {
            return Err(format!(
                "checkpoint '{name}' is a rung of the GPU's ladder: it needs a GPU (`hourglass doctor` says whether one can be \
                 used) and --device cuda; on the CPU take '{}'",
                self.newest().name
            ));
        }
        if ladder::beside::has(name) {
            let newest = self.newest().name;
            return Err(format!(
                "checkpoint '{name}' stands beside the CPU's ladder and has no kernels for a device: leave out --device, or \
                 take '{newest}'"
            ));
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

    static OLD: Checkpoint = Checkpoint { name: "old", parent: Some(&ladder::WEEK1), ..ladder::WEEK1 };
    static MINE: Checkpoint = Checkpoint { name: "mine", parent: ladder::ALL.last().copied(), ..ladder::ADDED_NORM };
    static BESIDE: Checkpoint =
        Checkpoint { name: "beside", parent: Some(&ladder::beside::EIGHT_BIT), ..ladder::beside::EIGHT_BIT };

    #[test]
    fn fast_is_the_newest_rung_and_no_checkpoint_of_its_own() {
        let standard = Registry::standard();
        let last = ladder::ALL[ladder::ALL.len() - 1];
        assert_eq!(standard.checkpoint(ladder::FAST).unwrap().name, last.name);
        let fast = |own: &[&'static Checkpoint]| Registry::with(&[], own).checkpoint(ladder::FAST).unwrap().name;
        assert_eq!((fast(&[&MINE, &OLD]), fast(&[&OLD])), ("mine", last.name));
        assert!(standard.checkpoints().all(|checkpoint| checkpoint.name != ladder::FAST));
        assert!(standard.checkpoints().any(|checkpoint| checkpoint.name == BESIDE.parent.unwrap().name));
        assert_eq!(fast(&[&BESIDE]), last.name);
        // Whoever mistypes a name is told of the alias too.
        assert!(standard.checkpoint("fastest").unwrap_err().ends_with(", fast"));
    }

    #[test]
    fn a_device_refuses_what_stands_beside_the_cpu_s_ladder() {
        let device = Registry::standard().on_device(&[]);
        for checkpoint in ladder::beside::ALL {
            let refused = device.checkpoint(checkpoint.name).unwrap_err();
            assert!(refused.starts_with(&format!("checkpoint '{}' stands beside", checkpoint.name)), "{refused}");
            assert!(refused.ends_with(&format!("take '{}'", device.newest().name)), "{refused}");
        }
    }

    #[test]
    fn a_device_prefers_its_own_kernels_and_no_others() {
        const fn kernel(name: &'static str, isa: &'static str) -> Kernel {
            crate::kernel! {
                operator: "rope", name: name, isa: isa, features: &[], nmse: 0.0, because: "a test", run: |_| {},
            }
        }
        static OLD: Kernel = kernel("rows", "old");
        static NEW: Kernel = kernel("rows", "new");
        static OTHER: Kernel = kernel("rows", "portable");
        static OWN: [&Kernel; 2] = [&OLD, &NEW];
        let device = Registry::standard().on_device(&OWN);
        let last = |registry: &Registry| registry.kernels(&operators::ROPE).last().unwrap().isa;
        assert_eq!(last(&device), "new");
        assert_eq!(last(&device.preferring(&OLD)), "old");
        assert_eq!(last(&device.preferring(&OTHER)), "new", "a device cannot run it");
    }

    #[test]
    fn an_offered_kernel_is_never_the_last_of_its_operator() {
        static MINE: Kernel = crate::kernel! {
            operator: "rope", name: "mine", isa: "portable", features: &[], nmse: 0.0, because: "a test", run: |_| {},
        };
        let names = |registry: Registry| {
            let kernels = registry.kernels(&operators::ROPE).map(|kernel| kernel.name);
            kernels.collect::<Vec<_>>()
        };
        let (with, offering) = (names(Registry::with(&[&MINE], &[])), names(Registry::offering(&[&MINE], &[])));
        assert_eq!((with.last(), offering[1]), (Some(&"mine"), "mine"));
        assert_eq!((with[0], offering[0], with.len()), ("reference", "reference", offering.len()));
    }

    #[test]
    fn the_newest_rung_descends_from_every_other() {
        let line: Vec<_> = Registry::standard().newest().lineage().iter().map(|rung| rung.name).collect();
        let rungs: Vec<_> = ladder::ALL[1..].iter().map(|rung| rung.name).collect();
        assert_eq!(line, rungs);
    }
}
