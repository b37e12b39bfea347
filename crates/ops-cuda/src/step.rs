//! The step's data as kernels read it, in one block that is written into page-locked memory and copied by the first kernel of a run:
//! a captured graph stays valid from step to step. Twin: `StepState` of `prelude.cuh`.
//! Not here: what a step is (`ops/src/step.rs`).

use ops::Step;
use std::io;

/// Bytes of the block, here and on the device.
pub(crate) const ROOM: usize = 8 << 20;

const HEAD: usize = 48;
const SEQUENCE: usize = 24;
const LAYER: usize = 32;

/// Where a step of one row has its token and its position.
const TOKEN_AT: usize = HEAD;
const OFFSET_AT: usize = HEAD + 32 + 8;
const TURN_AT: usize = 12;

/// Writes `step` into `block` for a device that will have it at `there`; the bytes that it takes. Its results go to slot `turn`.
///
/// # Errors
/// More rows or sequences than the block holds.
pub(crate) fn write(step: &Step<'_>, turn: u32, block: &mut [u8], there: u64) -> io::Result<usize> {
    let (rows, sequences) = (step.tokens.len(), step.sequences.len());
    let layers = step.sequences.iter().map(|sequence| sequence.caches.len()).max().unwrap_or(0);
    let tokens_at = HEAD;
    let rows_at = tokens_at + (rows * 4).next_multiple_of(16);
    let sequences_at = rows_at + (rows * 4).next_multiple_of(16);
    let layers_at = sequences_at + (sequences * SEQUENCE).next_multiple_of(16);
    let end = layers_at + sequences * layers * LAYER;
    if end > block.len() {
        let what = format!("a step of {rows} rows of {sequences} requests is more than {ROOM} bytes tell; use fewer");
        return Err(io::Error::other(what));
    }
    let mut word = |at: usize, value: u32| block[at..at + 4].copy_from_slice(&value.to_le_bytes());
    for (index, value) in [rows, sequences, layers, turn as usize].into_iter().enumerate() {
        word(index * 4, value as u32);
    }
    for (row, token) in step.tokens.iter().enumerate() {
        word(tokens_at + row * 4, *token);
    }
    for (index, sequence) in step.sequences.iter().enumerate() {
        for row in sequence.first_row..sequence.first_row + sequence.rows {
            word(rows_at + row * 4, index as u32);
        }
        let cache = sequence.caches.first();
        let previous = cache.and_then(|cache| cache.previous).map_or(0, |previous| previous.capacity);
        let capacity = cache.map_or(0, |cache| cache.capacity);
        let numbers = [sequence.first_row, sequence.rows, sequence.offset, capacity, previous, 0];
        for (field, value) in numbers.into_iter().enumerate() {
            word(sequences_at + index * SEQUENCE + field * 4, value as u32);
        }
    }
    let mut address = |at: usize, value: u64| block[at..at + 8].copy_from_slice(&value.to_le_bytes());
    for (index, at) in [tokens_at, rows_at, sequences_at, layers_at].into_iter().enumerate() {
        address(16 + index * 8, there + at as u64);
    }
    for (index, sequence) in step.sequences.iter().enumerate() {
        for (layer, cache) in sequence.caches.iter().enumerate() {
            let at = layers_at + (index * layers + layer) * LAYER;
            let old = cache.previous.map_or([0, 0], |old| [old.keys as u64, old.values as u64]);
            for (field, value) in [cache.keys as u64, cache.values as u64, old[0], old[1]].into_iter().enumerate() {
                address(at + field * 8, value);
            }
        }
    }
    Ok(end)
}

/// What the last kernel of a step of one row makes of its data, but for the token: the next position, and the other slot.
pub(crate) fn advance(block: &mut [u8]) {
    let mut change = |at: usize, to: &dyn Fn(u32) -> u32| {
        let word = &mut block[at..at + 4];
        let value = to(u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
        word.copy_from_slice(&value.to_le_bytes());
    };
    change(OFFSET_AT, &|offset| offset + 1);
    change(TURN_AT, &|turn| turn ^ 1);
}

/// Sets the token of a step of one row.
pub(crate) fn set_token(block: &mut [u8], token: u32) {
    block[TOKEN_AT..TOKEN_AT + 4].copy_from_slice(&token.to_le_bytes());
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use ops::{LayerCache, Sequence};

    #[test]
    fn kernels_find_what_the_step_says() {
        let cache =
            |at: usize| LayerCache { keys: at as *mut u8, values: (at + 1) as *mut u8, capacity: 9, previous: None };
        let caches = [[cache(16), cache(32)], [cache(48), cache(64)]];
        let sequences = [
            Sequence { first_row: 0, rows: 1, offset: 7, caches: &caches[0] },
            Sequence { first_row: 1, rows: 2, offset: 3, caches: &caches[1] },
        ];
        let mut block = vec![0; 4096];
        let end = write(&Step { tokens: &[11, 12, 13], sequences: &sequences }, 1, &mut block, 1 << 32).unwrap();
        let word = |at: usize| u32::from_le_bytes(block[at..at + 4].try_into().unwrap());
        let long = |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().unwrap());
        let at = |field: usize| (long(16 + field * 8) - (1 << 32)) as usize;
        assert_eq!([word(0), word(4), word(8), word(12)], [3, 2, 2, 1]);
        assert_eq!([0, 4, 8].map(|row| word(at(0) + row)), [11, 12, 13]);
        assert_eq!([0, 4, 8].map(|row| word(at(1) + row)), [0, 1, 1]);
        assert_eq!([0, 4, 8, 12].map(|field| word(at(2) + 24 + field)), [1, 2, 3, 9]);
        // The second sequence's second layer.
        assert_eq!((long(at(3) + 3 * 32), long(at(3) + 3 * 32 + 8)), (64, 65));
        assert_eq!(end, at(3) + 4 * 32);
    }

    #[test]
    fn a_step_of_one_row_has_its_parts_where_kernels_look() {
        let caches = [LayerCache { keys: 16 as *mut u8, values: 32 as *mut u8, capacity: 9, previous: None }];
        let sequences = [Sequence { first_row: 0, rows: 1, offset: 7, caches: &caches }];
        let mut block = vec![0; 4096];
        write(&Step { tokens: &[11], sequences: &sequences }, 0, &mut block, 0).unwrap();
        let long = |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().unwrap());
        let prelude = include_str!("../kernels/prelude.cuh");
        for (name, at) in [("ONE_ROW_TOKEN", long(16)), ("ONE_ROW_SEQUENCE", long(32)), ("ONE_ROW_LAYERS", long(40))] {
            assert!(prelude.contains(&format!("#define {name} {at}\n")), "{name} {at}");
        }
    }

    #[test]
    fn a_step_advanced_is_the_next_one() {
        let caches = [LayerCache { keys: 16 as *mut u8, values: 32 as *mut u8, capacity: 9, previous: None }];
        let block = |token, offset, turn| {
            let sequences = [Sequence { first_row: 0, rows: 1, offset, caches: &caches }];
            let mut block = vec![0; 256];
            write(&Step { tokens: &[token], sequences: &sequences }, turn, &mut block, 64).unwrap();
            block
        };
        for turn in [0, 1] {
            let mut next = block(11, 7, turn);
            advance(&mut next);
            set_token(&mut next, 99);
            assert_eq!(next, block(99, 8, turn ^ 1));
        }
    }

    #[test]
    fn too_many_rows_are_refused() {
        let tokens = vec![0; 200];
        let sequences = [Sequence { first_row: 0, rows: 200, offset: 0, caches: &[] }];
        assert!(write(&Step { tokens: &tokens, sequences: &sequences }, 0, &mut [0; 512], 0).is_err());
    }
}
