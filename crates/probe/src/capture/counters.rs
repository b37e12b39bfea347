//! Counting events over a stretch on every worker's thread: which ones, in which groups, and what a reading means.
//! Not here: where counts come from (`perf_counters.rs`), and what they say about a kernel.

use record::Known;
use record::capture::raw::{CounterKind, RawCounter};
use std::fs;
use std::io;

/// Opens, switches and reads groups of events of one thread each.
pub(super) trait CounterSource {
    /// An open event; closed when dropped.
    type Event;

    /// Opens an event, switched off: alone, or in the group of `leader`.
    ///
    /// # Errors
    /// The operating system's.
    fn open(&mut self, event: &Counted, thread: u32, leader: Option<&Self::Event>) -> io::Result<Self::Event>;

    /// Switches the group of `leader`.
    ///
    /// # Errors
    /// The operating system's.
    fn enable(&mut self, leader: &Self::Event, on: bool) -> io::Result<()>;

    /// Reads the group of `leader`, which has `events` events with it.
    ///
    /// # Errors
    /// The operating system's, or fewer counts than that.
    fn read(&mut self, leader: &Self::Event, events: usize) -> io::Result<GroupReading>;
}

/// What a group has counted on one thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GroupReading {
    pub(super) enabled_ns: u64,
    /// Of that, how long the group was on the processor's counters.
    pub(super) running_ns: u64,
    /// In the order in which the events were opened.
    pub(super) counts: Vec<u64>,
}

/// An event to count, as perf names and numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counted {
    pub(super) name: &'static str,
    /// `type` and `config` of perf_event_attr.
    pub(super) kind: u32,
    pub(super) config: u64,
    /// Also while the operating system works for the thread.
    pub(super) kernel: bool,
}

const HARDWARE: u32 = 0;
const SOFTWARE: u32 = 1;
const CACHE: u32 = 3;

/// `config` of a cache event: reads, that hit or miss.
const fn reads(cache: u64, miss: bool) -> u64 {
    cache | (miss as u64) << 16
}
const L1D: u64 = 0;
const LAST_LEVEL: u64 = 2;

const fn event(name: &'static str, kind: u32, config: u64) -> Counted {
    Counted { name, kind, config, kernel: true }
}

/// Ratios are made within a group, whose events count at the same time.
const GROUPS: [&[Counted]; 6] = [
    &[event("cycles", HARDWARE, 0), event("instructions", HARDWARE, 1), event("branch-misses", HARDWARE, 5)],
    &[event("cache-references", HARDWARE, 2), event("cache-misses", HARDWARE, 3)],
    &[event("L1-dcache-loads", CACHE, reads(L1D, false)), event("L1-dcache-load-misses", CACHE, reads(L1D, true))],
    &[event("LLC-loads", CACHE, reads(LAST_LEVEL, false)), event("LLC-load-misses", CACHE, reads(LAST_LEVEL, true))],
    &[event("stalled-cycles-frontend", HARDWARE, 7), event("stalled-cycles-backend", HARDWARE, 8)],
    &[
        event("page-faults", SOFTWARE, 2),
        event("context-switches", SOFTWARE, 3),
        event("cpu-migrations", SOFTWARE, 4),
        event("task-clock", SOFTWARE, 1),
    ],
];

impl Counted {
    fn kind(&self) -> CounterKind {
        if self.kind == SOFTWARE { CounterKind::Software } else { CounterKind::Hardware }
    }

    /// The same, of the thread's own instructions; `None` if it happens in the operating system, where it would count nothing.
    fn of_user(self) -> Option<Counted> {
        let inside = matches!(self.name, "context-switches" | "cpu-migrations");
        (!inside).then_some(Counted { kernel: false, ..self })
    }

    /// As perf writes it.
    fn label(&self) -> String {
        format!("{}{}", self.name, if self.kernel { "" } else { ":u" })
    }
}

/// Every counter, unread.
pub(super) fn not_asked() -> Vec<RawCounter> {
    let missing = || Known::unavailable("counters were not asked for", "leave out `--counters none`");
    let unread =
        |event: &Counted| RawCounter { name: event.label(), kind: event.kind(), count: missing(), running: missing() };
    GROUPS.iter().flat_map(|group| group.iter()).map(unread).collect()
}

/// What decides why an event cannot be counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Machine {
    /// Whether the operating system has found a performance monitoring unit; not known without /sys.
    pub(super) pmu: Option<bool>,
    pub(super) virtual_machine: bool,
    /// `kernel.perf_event_paranoid`.
    pub(super) paranoid: Option<String>,
}

impl Machine {
    pub(super) fn this() -> Machine {
        let devices = fs::read_dir("/sys/bus/event_source/devices").ok().map(|devices| {
            devices.flatten().any(|device| {
                let name = device.file_name();
                // `cpu`, on hybrid processors `cpu_core` and `cpu_atom`; `armv8_pmuv3_0` and such on Arm.
                name.to_string_lossy().starts_with("cpu") || name.to_string_lossy().starts_with("armv")
            })
        });
        let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let mut flags = processor.lines().filter(|line| line.starts_with("flags"));
        Machine {
            pmu: devices,
            virtual_machine: flags.next().is_some_and(|line| line.split_whitespace().any(|flag| flag == "hypervisor")),
            paranoid: fs::read_to_string("/proc/sys/kernel/perf_event_paranoid")
                .ok()
                .map(|text| text.trim().to_owned()),
        }
    }

    /// Why `event` could not be counted, and what would help.
    fn missing<T>(&self, event: &Counted, error: &io::Error) -> Known<T> {
        let hardware = event.kind() == CounterKind::Hardware;
        if hardware && self.pmu == Some(false) {
            let place = if self.virtual_machine { "in this VM" } else { "on this machine" };
            return Known::unavailable(
                format!("no PMU {place}"),
                "bare metal, or a VM type with a virtual PMU; `hourglass capture --counters callgrind` simulates one",
            );
        }
        match error.raw_os_error() {
            Some(libc::EACCES | libc::EPERM) => {
                let level = self
                    .paranoid
                    .as_deref()
                    .map_or_else(String::new, |level| format!(" (kernel.perf_event_paranoid is {level})"));
                Known::unavailable(
                    format!("counting is not permitted{level}"),
                    "kernel.perf_event_paranoid of 1 or less or CAP_PERFMON, and no filter against perf_event_open",
                )
            }
            Some(libc::ENOENT | libc::EOPNOTSUPP | libc::EINVAL | libc::ENODEV) => {
                Known::unavailable(format!("this processor's PMU has no such event ({error})"), "another processor")
            }
            _ => {
                Known::unavailable(format!("it cannot be counted: {error}"), "see what the error means on this system")
            }
        }
    }
}

/// Opened counters.
pub(super) struct Counters<S: CounterSource> {
    source: S,
    machine: Machine,
    groups: Vec<Group<S::Event>>,
}

/// One group of [`GROUPS`], on every thread.
struct Group<E> {
    /// What was opened on every thread, leader first.
    events: Vec<Counted>,
    /// What was not, and why.
    missing: Vec<(Counted, io::Error)>,
    /// The open events of each thread, in the order of `events`.
    threads: Vec<Vec<E>>,
    /// The first error of switching.
    failed: Option<io::Error>,
}

impl<S: CounterSource> Counters<S> {
    /// Opens what can be opened, switched off, for every one of `threads`.
    pub(super) fn open(mut source: S, machine: Machine, threads: &[u32]) -> Counters<S> {
        let groups = GROUPS.iter().map(|events| Group::open(&mut source, events, threads)).collect();
        Counters { source, machine, groups }
    }

    pub(super) fn enable(&mut self, on: bool) {
        for group in &mut self.groups {
            for leader in group.threads.iter().filter_map(|events| events.first()) {
                if let Err(error) = self.source.enable(leader, on) {
                    group.failed.get_or_insert(error);
                }
            }
        }
    }

    /// Every counter, those that could not be opened with the reason.
    pub(super) fn read(self) -> Vec<RawCounter> {
        let Counters { mut source, machine, groups } = self;
        groups.into_iter().flat_map(|group| group.read(&mut source, &machine)).collect()
    }
}

impl<E> Group<E> {
    fn open<S: CounterSource<Event = E>>(source: &mut S, wanted: &[Counted], threads: &[u32]) -> Group<E> {
        let mut group = Group { events: Vec::new(), missing: Vec::new(), threads: Vec::new(), failed: None };
        group.threads.resize_with(threads.len(), Vec::new);
        for event in wanted {
            let opened = match group.on_all(source, event, threads) {
                Err(error) if matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM)) => {
                    match event.of_user() {
                        Some(user) => group.on_all(source, &user, threads).map(|opened| (user, opened)),
                        None => Err(error),
                    }
                }
                other => other.map(|opened| (*event, opened)),
            };
            match opened {
                Ok((event, opened)) => {
                    group.events.push(event);
                    group.threads.iter_mut().zip(opened).for_each(|(thread, event)| thread.push(event));
                }
                Err(error) => group.missing.push((*event, error)),
            }
        }
        group
    }

    fn on_all<S: CounterSource<Event = E>>(
        &self,
        source: &mut S,
        event: &Counted,
        threads: &[u32],
    ) -> io::Result<Vec<E>> {
        threads.iter().zip(&self.threads).map(|(thread, open)| source.open(event, *thread, open.first())).collect()
    }

    fn read<S: CounterSource<Event = E>>(self, source: &mut S, machine: &Machine) -> Vec<RawCounter> {
        let Group { events, missing, threads, failed } = self;
        let read = |leader: &Vec<E>| leader.first().map(|leader| source.read(leader, events.len()));
        let readings = match failed {
            Some(error) => Err(error),
            None => threads.iter().filter_map(read).collect::<io::Result<Vec<GroupReading>>>(),
        };
        let counter =
            |event: &Counted, count, running| RawCounter { name: event.label(), kind: event.kind(), count, running };
        let mut counters: Vec<RawCounter> = events
            .iter()
            .enumerate()
            .map(|(index, event)| match &readings {
                Ok(readings) => {
                    let (count, running) = summed(readings, index);
                    counter(event, count, running)
                }
                Err(error) => counter(event, machine.missing(event, error), machine.missing(event, error)),
            })
            .collect();
        counters.extend(
            missing
                .iter()
                .map(|(event, error)| counter(event, machine.missing(event, error), machine.missing(event, error))),
        );
        counters
    }
}

/// Event `index` over all threads: counts scaled up by enabled over running time, and the part of the time that it ran.
fn summed(readings: &[GroupReading], index: usize) -> (Known<f64>, Known<f64>) {
    let never = || {
        Known::unavailable(
            "it never was on the processor's counters, which something else uses",
            "end other profilers; capture for longer",
        )
    };
    let (mut count, mut enabled, mut running) = (0.0, 0.0, 0.0);
    for reading in readings {
        if reading.enabled_ns == 0 {
            continue;
        }
        if reading.running_ns == 0 {
            return (never(), Known::Is(0.0));
        }
        let share = reading.running_ns as f64 / reading.enabled_ns as f64;
        count += reading.counts.get(index).copied().unwrap_or(0) as f64 / share;
        enabled += reading.enabled_ns as f64;
        running += reading.running_ns as f64;
    }
    if enabled == 0.0 {
        return (never(), Known::Is(0.0));
    }
    (Known::Is(count), Known::Is(running / enabled))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use std::collections::HashMap;

    /// Answers as a machine did: errors of opening, by name and whether the kernel's part is asked for; counts by name.
    #[derive(Default)]
    struct Recorded {
        refusals: Vec<(&'static str, bool, i32)>,
        /// Counts on each thread, and that thread's enabled and running time.
        counts: HashMap<(u32, &'static str), u64>,
        times: HashMap<u32, (u64, u64)>,
        /// Threads of the groups that are on.
        on: Vec<(u32, bool)>,
        groups: HashMap<(u32, &'static str), Vec<&'static str>>,
    }

    impl CounterSource for Recorded {
        /// Thread and name of the event, and of its group's leader.
        type Event = (u32, &'static str);

        fn open(&mut self, event: &Counted, thread: u32, leader: Option<&Self::Event>) -> io::Result<Self::Event> {
            let refused = self.refusals.iter().find(|(name, kernel, _)| *name == event.name && *kernel == event.kernel);
            if let Some((_, _, errno)) = refused {
                return Err(io::Error::from_raw_os_error(*errno));
            }
            let leader = leader.copied().unwrap_or((thread, event.name));
            assert_eq!(leader.0, thread, "a group is of one thread");
            self.groups.entry(leader).or_default().push(event.name);
            Ok((thread, event.name))
        }

        fn enable(&mut self, leader: &Self::Event, on: bool) -> io::Result<()> {
            self.on.push((leader.0, on));
            Ok(())
        }

        fn read(&mut self, leader: &Self::Event, events: usize) -> io::Result<GroupReading> {
            let names = &self.groups[leader];
            assert_eq!(names.len(), events);
            let (enabled_ns, running_ns) = self.times[&leader.0];
            let counts = names.iter().map(|name| self.counts.get(&(leader.0, *name)).copied().unwrap_or(7)).collect();
            Ok(GroupReading { enabled_ns, running_ns, counts })
        }
    }

    fn machine(pmu: bool) -> Machine {
        Machine { pmu: Some(pmu), virtual_machine: true, paranoid: Some("2".to_owned()) }
    }

    fn find<'a>(counters: &'a [RawCounter], name: &str) -> &'a RawCounter {
        counters.iter().find(|counter| counter.name == name).unwrap_or_else(|| panic!("no {name}: {counters:?}"))
    }

    fn counted(source: Recorded, machine: Machine) -> Vec<RawCounter> {
        let mut counters = Counters::open(source, machine, &[10, 11]);
        counters.enable(true);
        counters.enable(false);
        counters.read()
    }

    #[test]
    fn counts_of_threads_are_added_and_scaled_by_the_time_they_ran() {
        let source = Recorded {
            counts: HashMap::from([((10, "instructions"), 1000), ((11, "instructions"), 600)]),
            times: HashMap::from([(10, (100, 50)), (11, (100, 100))]),
            ..Recorded::default()
        };
        let counters = counted(source, machine(true));
        let instructions = find(&counters, "instructions");
        assert_eq!((instructions.count.known(), instructions.running.known()), (Some(&2600.0), Some(&0.75)));
        assert_eq!(instructions.kind, CounterKind::Hardware);
        assert_eq!(find(&counters, "page-faults").kind, CounterKind::Software);
        assert_eq!(counters.len(), GROUPS.iter().map(|group| group.len()).sum::<usize>());
    }

    #[test]
    fn no_pmu_is_said_for_each_hardware_counter_and_software_ones_count() {
        let hardware = GROUPS.iter().flat_map(|group| group.iter()).filter(|event| event.kind != SOFTWARE);
        let source = Recorded {
            refusals: hardware.map(|event| (event.name, true, libc::ENOENT)).collect(),
            times: HashMap::from([(10, (5, 5)), (11, (0, 0))]),
            ..Recorded::default()
        };
        let counters = counted(source, machine(false));
        for counter in &counters {
            match counter.kind {
                CounterKind::Hardware => {
                    let missing = counter.count.missing().unwrap();
                    assert_eq!(missing.unavailable, "no PMU in this VM");
                    assert!(missing.how_to_get.contains("bare metal"));
                }
                _ => assert_eq!(counter.count.known(), Some(&7.0), "a thread that did not run counts nothing"),
            }
        }
    }

    #[test]
    fn what_is_not_permitted_is_counted_for_the_program_alone_where_that_means_something() {
        let names = ["cycles", "instructions", "context-switches", "task-clock"];
        let source = Recorded {
            refusals: names.iter().map(|name| (*name, true, libc::EACCES)).collect(),
            times: HashMap::from([(10, (5, 5)), (11, (5, 5))]),
            ..Recorded::default()
        };
        let counters = counted(source, machine(true));
        assert_eq!(find(&counters, "instructions:u").count.known(), Some(&14.0));
        assert_eq!(find(&counters, "task-clock:u").count.known(), Some(&14.0));
        let switches = find(&counters, "context-switches").count.missing().unwrap();
        assert!(switches.unavailable.contains("paranoid is 2"), "{switches:?}");
    }

    #[test]
    fn one_event_that_a_processor_lacks_leaves_its_group() {
        let source = Recorded {
            refusals: vec![("cycles", true, libc::ENOENT), ("LLC-loads", true, libc::EOPNOTSUPP)],
            times: HashMap::from([(10, (5, 5)), (11, (5, 5))]),
            ..Recorded::default()
        };
        let counters = counted(source, machine(true));
        assert!(find(&counters, "cycles").count.missing().unwrap().unavailable.contains("no such event"));
        assert_eq!(find(&counters, "instructions").count.known(), Some(&14.0));
        assert_eq!(find(&counters, "LLC-load-misses").count.known(), Some(&14.0));
    }

    #[test]
    fn a_group_that_never_ran_has_counted_nothing_and_not_zero() {
        let source = Recorded { times: HashMap::from([(10, (5, 0)), (11, (5, 5))]), ..Recorded::default() };
        let counters = counted(source, machine(true));
        let cycles = find(&counters, "cycles");
        assert!(cycles.count.missing().unwrap().unavailable.contains("never was"));
        assert_eq!(cycles.running.known(), Some(&0.0));
    }
}
