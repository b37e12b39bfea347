//! What a checkpoint of one's own is held to: its parent's answers. Not here: kernels (`ops::testing`), and the engine's own
//! rungs, which are held to more.

use crate::{Engine, Keep, LoadOptions};
use ops::Registry;
use ops::testing::Random;
use weights::{ModelSource, OpenOptions};

/// Positions of the prompt.
const POSITIONS: usize = 30;

/// Runs the checkpoint `name` and its parent on a small synthetic model, 30 positions as one prefill, as 20 and ten steps, and
/// in chunks of ten, and compares all logits.
///
/// # Panics
/// If the checkpoint is unknown or has no parent, if either does not load here, or if the squared relative distance of the
/// logits is above the checkpoint's tolerance.
pub fn agrees_with_its_parent(registry: &Registry, name: &str) {
    let checkpoint = registry.checkpoint(name).unwrap_or_else(|why| panic!("{why}"));
    let Some(parent) = checkpoint.parent else { panic!("checkpoint '{name}' has no parent to agree with") };
    let files = ModelSource::parse("synthetic:tiny").and_then(|source| weights::open(&source, &OpenOptions::default()));
    let files = files.unwrap_or_else(|error| panic!("synthetic:tiny: {error}"));
    let mut random = Random::new(5);
    let ids: Vec<u32> = (0..POSITIONS).map(|_| random.below(files.config().vocab_size) as u32).collect();
    for parts in [vec![POSITIONS], [vec![20], vec![1; 10]].concat(), vec![10; 3]] {
        let run = |name: &str| {
            let checkpoint = registry.checkpoint(name).unwrap_or_else(|why| panic!("{why}"));
            let options = LoadOptions { registry: registry.clone(), threads: 2, ..LoadOptions::new(checkpoint) };
            let mut engine =
                Engine::load(&files, options).unwrap_or_else(|error| panic!("checkpoint '{name}': {error}"));
            let mut cache = engine.new_cache(POSITIONS);
            let (mut all, mut row, mut at) = (Vec::new(), Vec::new(), 0);
            for part in &parts {
                let logits = engine
                    .forward(&mut cache, &ids[at..at + part], Keep::All)
                    .unwrap_or_else(|error| panic!("checkpoint '{name}': {error}"));
                for index in 0..*part {
                    logits.row(index, &mut row).unwrap_or_else(|error| panic!("checkpoint '{name}': {error}"));
                    all.extend_from_slice(&row);
                }
                at += part;
            }
            all
        };
        let distance = ops::testing::nmse(&run(name), &run(parent.name));
        assert!(
            distance <= checkpoint.tolerance.nmse,
            "checkpoint '{name}' is {distance:.2e} from its parent '{}' in parts {parts:?}; allowed is {:.2e}: {}",
            parent.name,
            checkpoint.tolerance.nmse,
            checkpoint.tolerance.reason
        );
    }
}
