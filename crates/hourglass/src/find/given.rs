//! Flags beside `find --from`: those that were given are held against what the folder's walk was run with.
//! Not here: what a walk runs with (`plan.rs`), and reading a folder.

use anyhow::Result;
use clap::parser::ValueSource;
use record::find::FindProtocol;

use super::folder;
use crate::device::DeviceChoice;
use crate::failure::usage;
use crate::load::MachineArgs;

/// Names of the arguments that stand on the command line, as the parser has them: what has its default is not among them. To be read
/// before the arguments themselves, which are taken out of what the parser found.
pub(super) struct Given(Vec<String>);

impl clap::FromArgMatches for Given {
    fn from_arg_matches(matches: &clap::ArgMatches) -> Result<Given, clap::Error> {
        let given = |id: &&clap::Id| matches.value_source(id.as_str()) == Some(ValueSource::CommandLine);
        Ok(Given(matches.ids().filter(given).map(|id| id.as_str().to_owned()).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &clap::ArgMatches) -> Result<(), clap::Error> {
        *self = Given::from_arg_matches(matches)?;
        Ok(())
    }
}

impl clap::Args for Given {
    fn augment_args(command: clap::Command) -> clap::Command {
        command
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        command
    }
}

impl Given {
    fn has(&self, flag: &str) -> bool {
        let id = flag.trim_start_matches('-').replace('-', "_");
        self.0.contains(&id)
    }

    /// # Errors
    /// A flag that was given and says something else than what the folder was measured with.
    pub(super) fn refuse_other_than(
        &self,
        checkpoint: &str,
        machine: &MachineArgs,
        protocol: &FindProtocol,
    ) -> Result<()> {
        let differs = |flag: &str, was: &str| {
            Err(usage(format!(
                "{flag} beside --from: the folder was measured with {was}, and nothing is measured again; leave it out"
            )))
        };
        if self.has("--checkpoint") {
            let registry = folder::registry_of(&protocol.flags);
            let meant = registry.checkpoint(checkpoint).map_err(|why| usage(format!("--checkpoint: {why}")))?.name;
            if meant != protocol.checkpoint {
                return differs(&format!("--checkpoint {checkpoint}"), &format!("'{}'", protocol.checkpoint));
            }
        }
        // With what stands for a flag that the walk was run without.
        let valued = [
            // What `auto` found is in the folder.
            ("--device", Some(&machine.device).filter(|of| **of != DeviceChoice::Auto).map(ToString::to_string), "cpu"),
            ("--solution", Some(machine.solution.name().to_owned()), "hourglass"),
            ("--threads", machine.threads.map(|threads| threads.to_string()), ""),
            ("--w4-group", Some(machine.w4_group.to_string()), "128"),
            ("--features-without", machine.features_without.clone(), ""),
        ];
        for (flag, value, otherwise) in valued {
            let Some(value) = value.filter(|_| self.has(flag)) else { continue };
            let at = protocol.flags.iter().position(|known| known == flag);
            let was = at.and_then(|at| protocol.flags.get(at + 1)).map_or(otherwise, String::as_str);
            if was != value {
                let was = if was.is_empty() { format!("no {flag}") } else { format!("{flag} {was}") };
                return differs(&format!("{flag} {value}"), &was);
            }
        }
        for flag in ["--pin", "--convert"] {
            if self.has(flag) && !protocol.flags.iter().any(|known| known == flag) {
                return differs(flag, &format!("no {flag}"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        given: Given,
        #[arg(long, default_value = ops::ladder::FAST)]
        checkpoint: String,
        #[command(flatten)]
        machine: MachineArgs,
    }

    /// What is said of the flags beside a folder that was measured with `flags` at the named checkpoint; empty if nothing.
    fn beside(words: &str, checkpoint: &str, flags: &str) -> String {
        let line = Line::parse_from(std::iter::once("x").chain(words.split_whitespace()));
        let flags = flags.split_whitespace().map(str::to_owned).collect();
        let protocol = FindProtocol { checkpoint: checkpoint.to_owned(), quick: false, budget_s: 1.0, flags };
        let said = line.given.refuse_other_than(&line.checkpoint, &line.machine, &protocol);
        said.map_or_else(|error| error.to_string(), |()| String::new())
    }

    #[test]
    fn a_default_that_is_given_is_held_against_the_folder_and_one_that_is_not_is_not() {
        let gpu = "--device cuda:1 --solution lab --threads 3 --w4-group 64 --features-without avx2 --pin";
        assert_eq!(beside("", "rope", gpu), "");
        assert_eq!(beside(gpu, "rope", gpu), "");
        for (given, was) in [
            ("--w4-group 128", "--w4-group 64"),
            ("--device cpu", "--device cuda:1"),
            ("--device cuda", "--device cuda:1"),
            ("--solution hourglass", "--solution lab"),
            ("--threads 4", "--threads 3"),
            ("--features-without avx512f", "--features-without avx2"),
            ("--convert", "no --convert"),
        ] {
            let said = beside(given, "rope", gpu);
            assert!(said.contains(&format!("beside --from: the folder was measured with {was},")), "{given}: {said}");
            assert!(said.starts_with(given.split(' ').next().unwrap_or_default()), "{given}: {said}");
        }
        assert_eq!(beside("--w4-group 128 --device cpu --solution hourglass", "rope", ""), "");
        assert!(beside("--threads 4", "rope", "").contains("measured with no --threads"));
        assert!(beside("--device cuda:0", "rope", "").contains("measured with --device cpu"));
    }

    #[test]
    fn auto_is_whatever_the_folder_has_and_fast_is_the_rung_that_it_means() {
        for flags in ["", "--device cuda:3"] {
            assert_eq!(beside("--device auto", "rope", flags), "");
        }
        let fast = ops::Registry::standard().checkpoint(ops::ladder::FAST).map_or("", |rung| rung.name);
        assert_eq!(beside("--checkpoint fast", fast, ""), "");
        assert!(
            beside("--checkpoint fast", "rope", "")
                .contains("--checkpoint fast beside --from: the folder was measured with 'rope'")
        );
        assert!(beside("--checkpoint nothing", "rope", "").contains("--checkpoint: "));
    }
}
