//! The prompt of a measurement: token ids from a seed, so that every engine and checkpoint gets the same ones.
//! Speed does not depend on which ids they are; end-of-text ids are avoided so that no engine stops early.

/// The rule in words, as records state it.
pub const PROMPT_RULE: &str =
    "ids uniform in [256, V-1] (from 0 if V <= 512) by splitmix64; an end-of-text id gives way to a neighbour";

/// `length` ids below `vocabulary`, none of them in `stop_tokens` where the vocabulary has any other.
pub fn prompt(length: usize, vocabulary: usize, stop_tokens: &[u32], seed: u64) -> Vec<u32> {
    let low = if vocabulary > 512 { 256 } else { 0 };
    let span = vocabulary.saturating_sub(low).max(1) as u64;
    let mut state = seed;
    (0..length)
        .map(|_| {
            let id = low + (splitmix64(&mut state) % span) as usize;
            let up = (id..vocabulary).chain((low..id).rev());
            up.map(|id| id as u32).find(|id| !stop_tokens.contains(id)).unwrap_or(id as u32)
        })
        .collect()
}

fn splitmix64(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_in_range_seeded_and_never_stop_tokens() {
        let stops = [151_643, 151_645, 300];
        let ids = prompt(20_000, 151_936, &stops, 7);
        assert!(ids.iter().all(|id| (256..151_936).contains(id) && !stops.contains(id)));
        assert_eq!(ids, prompt(20_000, 151_936, &stops, 7));
        assert_ne!(ids, prompt(20_000, 151_936, &stops, 8));
        assert_eq!(ids[..5], prompt(5, 151_936, &stops, 7)[..]);
    }

    #[test]
    fn a_small_vocabulary_is_used_whole_and_its_last_id_moves_down() {
        let ids = prompt(2_000, 16, &[15, 3], 0);
        for id in 0..16 {
            assert_eq!(ids.contains(&id), id != 15 && id != 3, "{id}");
        }
        assert_eq!(prompt(3, 1, &[0], 0), [0, 0, 0]);
    }

    #[test]
    fn splitmix64_is_the_published_one() {
        let mut state = 1_234_567;
        let first = [splitmix64(&mut state), splitmix64(&mut state)];
        assert_eq!(first, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
    }
}
