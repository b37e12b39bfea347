//! Sampling through perf events: per thread one ring, into which go samples with stacks, context switches and page faults.
//! Not here: the system calls (`kernel.rs`) and the records' layout (`records.rs`).

use super::kernel::{Attributes, Event, Ring, Waiter, flag};
use super::records::{self, Contents, Ids};
use super::{PERF, Sampled};
use record::Known;
use record::timeline::{OffProcessor, SamplingRung};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

/// Data of each ring: what an unprivileged process may lock for two threads with perf's default limit.
const RING_BYTES: usize = 512 << 10;
/// Filled so far, a ring is emptied: half a second of samples or more, so that the reader seldom takes a processor from anybody.
const WAKEUP_BYTES: u32 = 128 << 10;
/// Room per thread for what is taken out of the rings: a minute at 997 Hz with stacks of twenty frames and more.
const KEPT_BYTES: usize = 16 << 20;

const HARDWARE: u32 = 0;
const CYCLES: u64 = 0;
const SOFTWARE: u32 = 1;
const CPU_CLOCK: u64 = 0;
const PAGE_FAULTS: u64 = 2;

/// The events of all threads.
pub(super) struct Threads {
    threads: Vec<Thread>,
    kernel: bool,
    faults: Result<(), String>,
    rung: SamplingRung,
    frequency_hz: u64,
}

/// The events of all threads, as what switches them.
pub(super) struct Switch(Vec<Arc<Event>>);

impl Switch {
    pub(super) fn enable(&self, on: bool) {
        for event in &self.0 {
            // An event that does not start has no records: that shows.
            let _ = event.enable(on);
        }
    }
}

struct Thread {
    number: u32,
    /// Closed before its events are.
    ring: Ring,
    sampling: Arc<Event>,
    faulting: Option<Arc<Event>>,
    ids: Ids,
    kept: Vec<u8>,
}

impl Threads {
    /// Opens the events, switched off.
    ///
    /// # Errors
    /// The operating system's, for the first thread that cannot be sampled.
    pub(super) fn open(threads: &[u32], rung: SamplingRung, frequency_hz: u64) -> io::Result<Threads> {
        let with_kernel = Threads::open_as(threads, rung, frequency_hz, true);
        match with_kernel {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM)) => {
                Threads::open_as(threads, rung, frequency_hz, false)
            }
            other => other,
        }
    }

    fn open_as(threads: &[u32], rung: SamplingRung, frequency_hz: u64, kernel: bool) -> io::Result<Threads> {
        let (kind, config) = if rung == SamplingRung::Cycles { (HARDWARE, CYCLES) } else { (SOFTWARE, CPU_CLOCK) };
        let shared = flag::DISABLED
            | flag::EXCLUDE_HYPERVISOR
            | flag::SAMPLE_ID_ALL
            | flag::USE_CLOCK
            | flag::WATERMARK
            | if kernel { 0 } else { flag::EXCLUDE_KERNEL };
        let sampling = Attributes {
            kind,
            config,
            period: frequency_hz,
            sample_type: records::SAMPLING,
            flags: shared | flag::FREQUENCY | flag::CONTEXT_SWITCH,
            wakeup: WAKEUP_BYTES,
            ..Attributes::default()
        };
        let faulting = Attributes {
            kind: SOFTWARE,
            config: PAGE_FAULTS,
            period: 1,
            sample_type: records::FAULTING,
            flags: shared,
            wakeup: WAKEUP_BYTES,
            ..Attributes::default()
        };
        let mut opened = Vec::with_capacity(threads.len());
        let mut faults = Ok(());
        for &number in threads {
            let event = match Event::open(&sampling, number) {
                Ok(event) => event,
                // A thread that has ended since is not sampled.
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => continue,
                Err(error) => return Err(error),
            };
            let ring = Ring::new(&event, RING_BYTES)?;
            let fault = Event::open(&faulting, number).and_then(|fault| {
                fault.write_to(&event)?;
                let id = fault.id()?;
                Ok((fault, id))
            });
            let (faulting, faulting_id) = match fault {
                Ok((fault, id)) => (Some(Arc::new(fault)), Some(id)),
                Err(error) => {
                    faults = Err(error.to_string());
                    (None, None)
                }
            };
            let ids = Ids { sampling: event.id()?, faulting: faulting_id };
            // Written once now, so that copying out of the ring meets no new page.
            let mut kept = vec![1_u8; KEPT_BYTES];
            kept.clear();
            opened.push(Thread { number, ring, sampling: Arc::new(event), faulting, ids, kept });
        }
        if opened.is_empty() {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        Ok(Threads { threads: opened, kernel, faults, rung, frequency_hz })
    }

    pub(super) fn sees_kernel(&self) -> bool {
        self.kernel
    }

    /// Starts and stops all of them.
    pub(super) fn switch(&self) -> Switch {
        let events =
            self.threads.iter().flat_map(|thread| [Some(&thread.sampling), thread.faulting.as_ref()]).flatten();
        Switch(events.map(Arc::clone).collect())
    }

    /// Waits until there is much to read, or `stop` is closed.
    pub(super) fn waiter(&self, stop: &impl AsFd) -> Waiter {
        Waiter::new(stop, self.threads.iter().map(|thread| &*thread.sampling))
    }

    /// Empties the rings.
    pub(super) fn drain(&mut self) {
        for thread in &mut self.threads {
            thread.ring.drain(&mut thread.kept);
        }
    }

    /// Reads everything that was kept.
    pub(super) fn decode(&self, into: &mut Sampled) {
        let nominal = 1_000_000_000 / self.frequency_hz.max(1);
        let (mut off, mut faults, mut lost) = (Vec::new(), Vec::new(), 0);
        for thread in &self.threads {
            let Contents { samples, switches, faults: met, lost: missing } =
                records::read(&thread.kept, thread.ids, thread.number);
            lost += missing;
            faults.extend(met);
            into.samples.extend(samples.into_iter().map(|mut sample| {
                // Cycles are no time: each stands for the time between two at the frequency asked for.
                if self.rung == SamplingRung::Cycles {
                    sample.weight_ns = nominal;
                }
                sample
            }));
            let mut left: Option<(u64, bool)> = None;
            for switch in switches {
                match (switch.out, left.take()) {
                    (true, _) => left = Some((switch.at_ns, switch.preempted)),
                    (false, Some((start_ns, preempted))) => {
                        off.push(OffProcessor { thread: thread.number, start_ns, end_ns: switch.at_ns, preempted });
                    }
                    (false, None) => {}
                }
            }
        }
        off.sort_by_key(|off: &OffProcessor| off.start_ns);
        faults.sort_by_key(|fault: &super::PageFault| fault.at_ns);
        into.lost = Known::Is(lost);
        into.switches = Known::Is(off);
        into.faults = match &self.faults {
            Ok(()) => Known::Is(faults),
            Err(error) => Known::unavailable(format!("page faults cannot be counted: {error}"), PERF),
        };
    }
}
