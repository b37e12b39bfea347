//! The records of a perf ring, read: bytes in, samples, switches, faults and losses out.
//! Not here: where the bytes come from (`kernel.rs`). A record that is not as expected is passed over.

use super::{Address, PageFault, RawSample};

const IP: u64 = 1 << 0;
const TID: u64 = 1 << 1;
const TIME: u64 = 1 << 2;
const ADDRESS: u64 = 1 << 3;
const CALLCHAIN: u64 = 1 << 5;
const PERIOD: u64 = 1 << 8;
const IDENTIFIER: u64 = 1 << 16;

/// What a sampling event's records hold, in this order: identifier, address, thread, time, period, stack.
pub(super) const SAMPLING: u64 = IDENTIFIER | IP | TID | TIME | PERIOD | CALLCHAIN;
/// What a fault's hold: identifier, instruction, thread, time, address touched.
pub(super) const FAULTING: u64 = IDENTIFIER | IP | TID | TIME | ADDRESS;

const LOST: u32 = 2;
const SAMPLE: u32 = 9;
const LOST_SAMPLES: u32 = 13;
const SWITCH: u32 = 14;

const SWITCH_OUT: u16 = 1 << 13;
const PREEMPTED: u16 = 1 << 14;

/// Entries of a stack from here on are marks, not addresses.
const FIRST_MARK: u64 = u64::MAX - 4094;
const KERNEL_MARK: u64 = (-128_i64) as u64;
const USER_MARK: u64 = (-512_i64) as u64;

/// Which event a record is of.
#[derive(Clone, Copy)]
pub(super) struct Ids {
    pub(super) sampling: u64,
    pub(super) faulting: Option<u64>,
}

/// What a ring held.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Contents {
    pub(super) samples: Vec<RawSample>,
    pub(super) switches: Vec<Switch>,
    pub(super) faults: Vec<PageFault>,
    pub(super) lost: u64,
}

/// The thread left its processor or came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Switch {
    pub(super) at_ns: u64,
    pub(super) out: bool,
    pub(super) preempted: bool,
}

/// Reads whole records of one thread.
pub(super) fn read(bytes: &[u8], ids: Ids, thread: u32) -> Contents {
    let mut contents = Contents::default();
    let mut rest = bytes;
    while let Some((header, _)) = rest.split_first_chunk::<8>() {
        let kind = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
        let misc = u16::from_le_bytes([header[4], header[5]]);
        let size = usize::from(u16::from_le_bytes([header[6], header[7]]));
        if size < 8 || size > rest.len() {
            break;
        }
        let (record, behind) = rest.split_at(size);
        rest = behind;
        let mut words = record[8..]
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes([word[0], word[1], word[2], word[3], word[4], word[5], word[6], word[7]]));
        one(&mut contents, kind, misc, &mut words, ids, thread);
    }
    contents
}

/// `None` where the record ends too early.
fn one(
    contents: &mut Contents,
    kind: u32,
    misc: u16,
    words: &mut impl Iterator<Item = u64>,
    ids: Ids,
    thread: u32,
) -> Option<()> {
    match kind {
        SAMPLE => {
            let (id, instruction, _thread, at_ns) = (words.next()?, words.next()?, words.next()?, words.next()?);
            if id == ids.sampling {
                let weight_ns = words.next()?;
                let count = words.next()?;
                let stack = stack(instruction, words.take(usize::try_from(count).ok()?));
                contents.samples.push(RawSample { at_ns, thread, weight_ns, stack });
            } else if Some(id) == ids.faulting {
                contents.faults.push(PageFault { thread, at_ns, instruction, address: words.next()? });
            }
        }
        SWITCH => {
            // The body is the trailer alone: thread, time.
            let (_thread, at_ns) = (words.next()?, words.next()?);
            let (out, preempted) = (misc & SWITCH_OUT != 0, misc & PREEMPTED != 0);
            contents.switches.push(Switch { at_ns, out, preempted });
        }
        LOST => {
            let (_id, lost) = (words.next()?, words.next()?);
            contents.lost += lost;
        }
        LOST_SAMPLES => contents.lost += words.next()?,
        _ => {}
    }
    Some(())
}

/// The first address behind a mark is where the thread was; the others are where calls return to.
fn stack(instruction: u64, entries: impl Iterator<Item = u64>) -> Vec<Address> {
    let (mut kernel, mut returns) = (false, false);
    let mut found = Vec::new();
    for at in entries {
        if at >= FIRST_MARK {
            // Guests' stacks and such are left out by never being asked for.
            (kernel, returns) = (at == KERNEL_MARK || (kernel && at != USER_MARK), false);
            continue;
        }
        found.push(Address { at, kernel, returns });
        returns = true;
    }
    if found.is_empty() {
        // The upper half of the address space is the kernel's.
        found.push(Address { at: instruction, kernel: instruction >> 63 == 1, returns: false });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u32, misc: u16, words: &[u64]) -> Vec<u8> {
        let mut bytes = kind.to_le_bytes().to_vec();
        bytes.extend(misc.to_le_bytes());
        bytes.extend((8 + 8 * words.len() as u16).to_le_bytes());
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        bytes
    }

    const IDS: Ids = Ids { sampling: 7, faulting: Some(8) };

    /// As perf_event_open(2) lays records out.
    #[test]
    fn records_are_read_as_documented() {
        let kernel = 0xffff_ffff_8100_0000;
        let bytes = [
            record(SAMPLE, 2, &[7, 0x10, 5 << 32 | 4, 100, 1_000_000, 3, USER_MARK, 0x10, 0x20]),
            record(SAMPLE, 1, &[7, kernel, 0, 200, 1_000_000, 5, KERNEL_MARK, kernel, kernel + 9, USER_MARK, 0x30]),
            record(SAMPLE, 2, &[8, 0x11, 0, 150, 0xdead_0000]),
            record(SAMPLE, 2, &[9, 0x11, 0, 150, 0xdead_0000]),
            record(SWITCH, SWITCH_OUT | PREEMPTED, &[0, 300, 7]),
            record(SWITCH, 0, &[0, 400, 7]),
            record(LOST, 0, &[7, 12, 0, 500, 7]),
            record(LOST_SAMPLES, 0, &[3, 0, 500, 7]),
            record(99, 0, &[1, 2, 3]),
        ]
        .concat();
        let contents = read(&bytes, IDS, 5);
        let user = |at, returns| Address { at, kernel: false, returns };
        let inside = |at, returns| Address { at, kernel: true, returns };
        assert_eq!(contents.samples[0].stack, [user(0x10, false), user(0x20, true)]);
        assert_eq!(contents.samples[1].stack, [inside(kernel, false), inside(kernel + 9, true), user(0x30, false)]);
        assert_eq!(
            (contents.samples.len(), contents.samples[0].weight_ns, contents.samples[1].at_ns),
            (2, 1_000_000, 200)
        );
        assert_eq!(contents.faults, [PageFault { thread: 5, at_ns: 150, instruction: 0x11, address: 0xdead_0000 }]);
        let switches =
            [Switch { at_ns: 300, out: true, preempted: true }, Switch { at_ns: 400, out: false, preempted: false }];
        assert_eq!((&contents.switches[..], contents.lost), (&switches[..], 15));
    }

    #[test]
    fn what_is_cut_or_broken_is_passed_over() {
        let sample = record(SAMPLE, 2, &[7, 0x10, 0, 100, 1, u64::MAX]);
        for cut in 0..sample.len() {
            assert!(read(&sample[..cut], IDS, 5).samples.is_empty(), "{cut}");
        }
        // A stack that claims more entries than the record has is what is there.
        assert_eq!(read(&sample, IDS, 5).samples[0].stack, [Address { at: 0x10, kernel: false, returns: false }]);
        assert_eq!(read(&record(SAMPLE, 2, &[7, 0x10]), IDS, 5), Contents::default());
        let mut endless = record(99, 0, &[]);
        endless[6] = 0;
        assert_eq!(read(&endless, IDS, 5), Contents::default());
    }
}
