//! Counts from the operating system's performance events.
//! Not here: which events, and what counts mean (`counters.rs`); the system calls (`sampler/kernel.rs`).

use super::counters::{Counted, CounterSource, GroupReading};
use crate::sampler::kernel::{Attributes, Event, flag};
use std::io;

/// `read_format`: enabled and running time before the counts, of the whole group.
const TIMES_AND_GROUP: u64 = 1 | 2 | 8;

/// Performance events of this process's threads.
pub(super) struct PerfEvents;

impl CounterSource for PerfEvents {
    type Event = Event;

    fn open(&mut self, event: &Counted, thread: u32, leader: Option<&Event>) -> io::Result<Event> {
        let attributes = Attributes {
            kind: event.kind,
            config: event.config,
            read_format: TIMES_AND_GROUP,
            flags: flag::EXCLUDE_HYPERVISOR
                | flag::USE_CLOCK
                // A group is switched by its leader.
                | if leader.is_none() { flag::DISABLED } else { 0 }
                | if event.kernel { 0 } else { flag::EXCLUDE_KERNEL },
            ..Attributes::default()
        };
        Event::open_in(&attributes, thread, leader)
    }

    fn enable(&mut self, leader: &Event, on: bool) -> io::Result<()> {
        leader.enable_group(on)
    }

    fn read(&mut self, leader: &Event, events: usize) -> io::Result<GroupReading> {
        match leader.read(3 + events)?.split_first_chunk::<3>() {
            Some(([_, enabled_ns, running_ns], counts)) if counts.len() == events => {
                Ok(GroupReading { enabled_ns: *enabled_ns, running_ns: *running_ns, counts: counts.to_vec() })
            }
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::super::counters::{Counters, Machine};
    use super::*;
    use std::hint::black_box;

    /// This thread touches 50 new pages: the operating system counts each.
    #[test]
    fn page_faults_of_this_thread_are_counted_where_events_are_permitted() {
        let own = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let mut counters = Counters::open(PerfEvents, Machine::this(), &[own]);
        let mut pages = memmap2::MmapMut::map_anon(50 << 21).unwrap();
        counters.enable(true);
        for page in pages.chunks_mut(1 << 21) {
            page[0] = black_box(1);
        }
        counters.enable(false);
        let counters = counters.read();
        let found = counters.iter().find(|counter| counter.name.starts_with("page-faults")).unwrap();
        match found.count.known() {
            Some(faults) => assert!((50.0..250.0).contains(faults), "{faults} page faults"),
            None => println!("skipped: {:?}", found.count.missing()),
        }
        let cycles = counters.iter().find(|counter| counter.name.starts_with("cycles")).unwrap();
        assert_eq!(cycles.count.known().is_some(), cycles.running.known().is_some_and(|running| *running > 0.0));
    }
}
