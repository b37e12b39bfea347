//! A trace as Perfetto's protocol buffers: tracks, slices, flows, counters and CPU samples, for ui.perfetto.dev and its trace
//! processor. Packet by packet, so that no more than one is held. Not here: the encoding (`protobuf.rs`).

use crate::trace::protobuf::{Message, header};
use crate::trace::{CounterUnit, LossKind, Lost, Name, SliceRef, Trace, TraceError, Value, verify};
use std::collections::HashMap;
use std::io::{self, Write};

// Field numbers, from Perfetto's published definitions (perfetto_trace.proto).
mod field {
    pub(super) const TRACE_PACKET: u32 = 1;

    pub(super) mod packet {
        pub(in super::super) const PROCESS_TREE: u32 = 2;
        pub(in super::super) const CLOCK_SNAPSHOT: u32 = 6;
        pub(in super::super) const TIMESTAMP: u32 = 8;
        pub(in super::super) const SEQUENCE: u32 = 10;
        pub(in super::super) const TRACK_EVENT: u32 = 11;
        pub(in super::super) const INTERNED: u32 = 12;
        pub(in super::super) const SEQUENCE_FLAGS: u32 = 13;
        pub(in super::super) const DEFAULTS: u32 = 59;
        pub(in super::super) const TRACK: u32 = 60;
        pub(in super::super) const PERF_SAMPLE: u32 = 66;
        pub(in super::super) const FIRST_ON_SEQUENCE: u32 = 87;
    }

    pub(super) mod track {
        pub(in super::super) const UUID: u32 = 1;
        pub(in super::super) const NAME: u32 = 2;
        pub(in super::super) const PROCESS: u32 = 3;
        pub(in super::super) const PARENT: u32 = 5;
        pub(in super::super) const COUNTER: u32 = 8;
        pub(in super::super) const DESCRIPTION: u32 = 14;
    }

    pub(super) mod event {
        pub(in super::super) const CATEGORY: u32 = 3;
        pub(in super::super) const ARGUMENT: u32 = 4;
        pub(in super::super) const TYPE: u32 = 9;
        pub(in super::super) const NAME: u32 = 10;
        pub(in super::super) const TRACK: u32 = 11;
        pub(in super::super) const VALUE: u32 = 44;
        pub(in super::super) const FLOW: u32 = 47;
        pub(in super::super) const FLOW_END: u32 = 48;
    }

    pub(super) mod interned {
        pub(in super::super) const CATEGORIES: u32 = 1;
        pub(in super::super) const EVENT_NAMES: u32 = 2;
        pub(in super::super) const ARGUMENT_NAMES: u32 = 3;
        pub(in super::super) const FUNCTIONS: u32 = 5;
        pub(in super::super) const FRAMES: u32 = 6;
        pub(in super::super) const STACKS: u32 = 7;
        pub(in super::super) const MAPPING_PATHS: u32 = 17;
        pub(in super::super) const SOURCE_PATHS: u32 = 18;
        pub(in super::super) const MAPPINGS: u32 = 19;
        pub(in super::super) const ARGUMENT_TEXTS: u32 = 29;
    }
}

const BEGIN: u64 = 1;
const END: u64 = 2;
const INSTANT: u64 = 3;
const COUNTER: u64 = 4;

/// Everything is on one packet sequence, which makes interned names and defaults valid for all of it.
const SEQUENCE: u64 = 1;
/// Perfetto's number for CLOCK_MONOTONIC.
const MONOTONIC: u64 = 3;
const PROCESS_TRACK: u64 = 1;
/// The track that counters are below, so that they do not lie between the lanes: viewers sort by name.
const COUNTERS: u64 = 2;
/// The only mapping that frames belong to: addresses are already names.
const MAPPING: u64 = 1;
/// Interned entries per packet: packets stay small and names in order before their use.
const INTERNED_AT_ONCE: usize = 512;

/// Why a trace was not written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    #[error("the trace breaks a rule of its own: {0}")]
    Trace(#[from] TraceError),
    #[error("cannot write the trace: {0}")]
    Io(#[from] io::Error),
    #[error(
        "{events} events are more than the {limit} that viewers of JSON traces can open; write the Perfetto format, or \
         trace fewer tokens"
    )]
    TooLarge { events: usize, limit: usize },
}

/// Writes the whole trace.
///
/// Each lane is a track below the process, and beside it is a track of the time that its thread lost, if it lost any (of two lanes
/// of one thread, beside the last). Threads of the operating system have the CPU samples. Flame graphs of the samples count each as 1; their weights are in the counter `cpu time`.
///
/// # Errors
/// A trace that breaks its rules, before anything is written; what `out` reports, which is given many small pieces: let it buffer.
pub fn write_perfetto(trace: &Trace, out: &mut impl Write) -> Result<(), WriteError> {
    verify(trace)?;
    let mut writer = Writer { trace, out, packet: Message::default(), first: true };
    writer.clock()?;
    writer.tracks()?;
    writer.names()?;
    writer.stacks()?;
    let (mut starts, mut ends) = (HashMap::<SliceRef, Vec<u64>>::new(), HashMap::<SliceRef, Vec<u64>>::new());
    for flow in &trace.flows {
        starts.entry(flow.from).or_default().push(flow.id);
        ends.entry(flow.to).or_default().push(flow.id);
    }
    for lane in 0..trace.lanes.len() {
        writer.lane(lane, &starts, &ends)?;
        writer.lost(lane)?;
    }
    writer.counters()?;
    writer.samples()?;
    Ok(())
}

struct Writer<'a, W: Write> {
    trace: &'a Trace,
    out: &'a mut W,
    packet: Message,
    first: bool,
}

/// Interned ids start at 1; 0 means none.
fn iid(index: usize) -> u64 {
    index as u64 + 1
}

fn lane_track(lane: usize) -> u64 {
    COUNTERS + 1 + lane as u64
}

/// Name of the category that lost time is in.
const LOST: &str = "lost";

impl<W: Write> Writer<'_, W> {
    fn send(&mut self, fill: impl FnOnce(&mut Message)) -> Result<(), WriteError> {
        use field::packet;
        self.packet.clear();
        self.packet.uint(packet::SEQUENCE, SEQUENCE);
        // 1: what was interned before is forgotten. 2: this packet needs what was interned.
        self.packet.uint(packet::SEQUENCE_FLAGS, if self.first { 1 } else { 2 });
        if self.first {
            self.packet.uint(packet::FIRST_ON_SEQUENCE, 1).message(packet::DEFAULTS, |defaults| {
                // Timestamps are CLOCK_MONOTONIC's; samples come from a CPU clock.
                defaults.uint(58, MONOTONIC).message(12, |perf| {
                    perf.message(1, |timebase| {
                        timebase.uint(4, 1).uint(11, 2).text(10, "cpu time");
                    });
                });
            });
            self.first = false;
        }
        fill(&mut self.packet);
        self.out.write_all(header(field::TRACE_PACKET, self.packet.bytes().len()).bytes())?;
        self.out.write_all(self.packet.bytes())?;
        Ok(())
    }

    /// Says that the trace's own clock is CLOCK_MONOTONIC, so that nothing is converted.
    fn clock(&mut self) -> Result<(), WriteError> {
        let now = self.trace.start_ns;
        self.send(|packet| {
            packet.message(field::packet::CLOCK_SNAPSHOT, |snapshot| {
                snapshot.message(1, |clock| {
                    clock.uint(1, MONOTONIC).uint(2, now);
                });
                snapshot.uint(2, MONOTONIC);
            });
        })
    }

    fn tracks(&mut self) -> Result<(), WriteError> {
        use field::track;
        let trace = self.trace;
        let process = u64::from(trace.process.id);
        self.send(|packet| {
            packet.message(field::packet::TRACK, |descriptor| {
                descriptor.uint(track::UUID, PROCESS_TRACK).message(track::PROCESS, |fields| {
                    fields.uint(1, process).text(6, &trace.process.name);
                });
            });
        })?;
        for (index, lane) in trace.lanes.iter().enumerate() {
            self.send(|packet| {
                packet.message(field::packet::TRACK, |descriptor| {
                    descriptor.uint(track::UUID, lane_track(index)).uint(track::PARENT, PROCESS_TRACK);
                    descriptor.text(track::NAME, &lane.name);
                    let mut about = Vec::new();
                    if let Some(thread) = lane.kind.thread() {
                        about.push(format!("thread {thread}"));
                    }
                    if lane.dropped > 0 {
                        about.push(format!("incomplete: {} slices were dropped for want of room", lane.dropped));
                    }
                    if !about.is_empty() {
                        descriptor.text(track::DESCRIPTION, &about.join("; "));
                    }
                });
            })?;
            if !self.lost_on(index).is_empty() {
                let (name, uuid) = (format!("{}: lost time", lane.name), self.lost_track(index));
                self.send(|packet| {
                    packet.message(field::packet::TRACK, |descriptor| {
                        descriptor.uint(track::UUID, uuid).uint(track::PARENT, PROCESS_TRACK);
                        descriptor.text(track::NAME, &name);
                    });
                })?;
            }
        }
        // Threads get names without tracks: nothing but their samples is theirs.
        self.send(|packet| {
            packet.message(field::packet::PROCESS_TREE, |tree| {
                for (thread, name) in trace.threads() {
                    tree.message(2, |fields| {
                        fields.uint(1, u64::from(thread)).text(2, &name).uint(3, process);
                    });
                }
            });
        })?;
        self.send(|packet| {
            packet.message(field::packet::TRACK, |descriptor| {
                descriptor.uint(track::UUID, COUNTERS).uint(track::PARENT, PROCESS_TRACK).text(track::NAME, "counters");
            });
        })?;
        for (index, counter) in trace.counters.iter().enumerate() {
            self.send(|packet| {
                packet.message(field::packet::TRACK, |descriptor| {
                    descriptor.uint(track::UUID, lane_track(trace.lanes.len() + index));
                    descriptor.uint(track::PARENT, COUNTERS).text(track::NAME, &counter.name);
                    descriptor.message(track::COUNTER, |fields| {
                        match counter.unit {
                            CounterUnit::Bytes => fields.uint(3, 3),
                            CounterUnit::Count => fields.uint(3, 2),
                            CounterUnit::TokensPerSecond | CounterUnit::Share => fields.text(6, counter.unit.name()),
                        };
                    });
                });
            })?;
        }
        Ok(())
    }

    /// Categories and names of events and arguments.
    fn names(&mut self) -> Result<(), WriteError> {
        use field::interned;
        let entry = |data: &mut Message, kind: u32, id: u64, text: &str| {
            data.message(kind, |entry| {
                entry.uint(1, id).text(2, text);
            });
        };
        self.send(|packet| {
            packet.message(field::packet::INTERNED, |data| {
                for category in crate::trace::Category::ALL {
                    entry(data, interned::CATEGORIES, iid(category as usize), category.name());
                }
            });
        })?;
        let texts = self.trace.names.texts().len();
        self.send(|packet| {
            packet.message(field::packet::INTERNED, |data| {
                entry(data, interned::CATEGORIES, iid(crate::trace::Category::ALL.len()), LOST);
                for why in LossKind::ALL {
                    entry(data, interned::EVENT_NAMES, iid(texts + why as usize), why.name());
                }
            });
        })?;
        // The format has a table of its own for each use of a name; ours are few, so all go into each.
        let texts = self.trace.names.texts();
        let tables =
            [interned::EVENT_NAMES, interned::ARGUMENT_NAMES, interned::ARGUMENT_TEXTS, interned::SOURCE_PATHS];
        for (part, texts) in texts.chunks(INTERNED_AT_ONCE).enumerate() {
            self.send(|packet| {
                packet.message(field::packet::INTERNED, |data| {
                    for table in tables {
                        for (index, text) in texts.iter().enumerate() {
                            entry(data, table, iid(part * INTERNED_AT_ONCE + index), text);
                        }
                    }
                });
            })?;
        }
        Ok(())
    }

    fn stacks(&mut self) -> Result<(), WriteError> {
        use field::interned;
        let trace = self.trace;
        if trace.samples.stacks().is_empty() {
            return Ok(());
        }
        self.send(|packet| {
            packet.message(field::packet::INTERNED, |data| {
                data.message(interned::MAPPING_PATHS, |entry| {
                    entry.uint(1, MAPPING).text(2, &trace.process.name);
                });
                data.message(interned::MAPPINGS, |entry| {
                    entry.uint(1, MAPPING).uint(7, MAPPING);
                });
            });
        })?;
        for (part, frames) in trace.samples.frames().chunks(INTERNED_AT_ONCE).enumerate() {
            self.send(|packet| {
                packet.message(field::packet::INTERNED, |data| {
                    for (index, frame) in frames.iter().enumerate() {
                        let id = iid(part * INTERNED_AT_ONCE + index);
                        let inlined = if frame.inlined { " [inlined]" } else { "" };
                        let function = format!("{}{inlined}", trace.names.text(frame.function));
                        data.message(interned::FUNCTIONS, |entry| {
                            entry.uint(1, id).text(2, &function);
                        });
                        data.message(interned::FRAMES, |entry| {
                            // Frames are told apart by address; there is none any more, so the number stands for it.
                            entry.uint(1, id).uint(2, id).uint(3, MAPPING).uint(4, id);
                            if let Some(file) = frame.file {
                                entry.uint(5, iid(file.index()));
                            }
                            if let Some(line) = frame.line {
                                entry.uint(6, u64::from(line));
                            }
                        });
                    }
                });
            })?;
        }
        for (part, stacks) in trace.samples.stacks().chunks(INTERNED_AT_ONCE).enumerate() {
            self.send(|packet| {
                packet.message(field::packet::INTERNED, |data| {
                    for (index, stack) in stacks.iter().enumerate() {
                        data.message(interned::STACKS, |entry| {
                            entry.uint(1, iid(part * INTERNED_AT_ONCE + index));
                            for frame in stack {
                                entry.uint(2, iid(frame.0 as usize));
                            }
                        });
                    }
                });
            })?;
        }
        Ok(())
    }

    /// Begins and ends of a lane's slices in order, then its instants.
    fn lane(
        &mut self,
        index: usize,
        starts: &HashMap<SliceRef, Vec<u64>>,
        ends: &HashMap<SliceRef, Vec<u64>>,
    ) -> Result<(), WriteError> {
        use field::event;
        let lane = &self.trace.lanes[index];
        let mut open: Vec<u64> = Vec::new();
        for (number, slice) in lane.slices.iter().enumerate() {
            while open.last().is_some_and(|&end| end <= slice.start_ns) {
                self.end(index, open.pop().unwrap_or(slice.start_ns))?;
            }
            let place = SliceRef { lane: index, slice: number };
            self.event(slice.start_ns, BEGIN, lane_track(index), |fields| {
                fields.uint(event::NAME, iid(slice.name.index()));
                fields.uint(event::CATEGORY, iid(slice.category as usize));
                arguments(fields, &slice.args);
                for &id in starts.get(&place).into_iter().flatten() {
                    fields.fixed(event::FLOW, id);
                }
                for &id in ends.get(&place).into_iter().flatten() {
                    fields.fixed(event::FLOW_END, id);
                }
            })?;
            open.push(slice.end_ns);
        }
        while let Some(end) = open.pop() {
            self.end(index, end)?;
        }
        for instant in &lane.instants {
            self.event(instant.at_ns, INSTANT, lane_track(index), |fields| {
                fields.uint(event::NAME, iid(instant.name.index()));
                fields.uint(event::CATEGORY, iid(instant.category as usize));
                arguments(fields, &instant.args);
            })?;
        }
        Ok(())
    }

    fn end(&mut self, lane: usize, at_ns: u64) -> Result<(), WriteError> {
        self.event(at_ns, END, lane_track(lane), |_| {})
    }

    /// The track of what the lane's thread lost. Numbers behind those of lanes and counters.
    fn lost_track(&self, lane: usize) -> u64 {
        lane_track(self.trace.lanes.len() + self.trace.counters.len() + lane)
    }

    /// What the lane's thread lost; of the lanes of one thread the last one has it.
    fn lost_on(&self, lane: usize) -> Vec<Lost> {
        let thread = |lane: &crate::trace::Lane| lane.kind.thread();
        let Some(own) = thread(&self.trace.lanes[lane]) else { return Vec::new() };
        let later = self.trace.lanes[lane + 1..].iter().any(|other| thread(other) == Some(own));
        if later { Vec::new() } else { self.trace.lost_by(own) }
    }

    fn lost(&mut self, lane: usize) -> Result<(), WriteError> {
        let (track, names) = (self.lost_track(lane), self.trace.names.texts().len());
        for lost in self.lost_on(lane) {
            self.event(lost.start_ns, BEGIN, track, |fields| {
                fields.uint(field::event::NAME, iid(names + lost.why as usize));
                fields.uint(field::event::CATEGORY, iid(crate::trace::Category::ALL.len()));
            })?;
            self.event(lost.end_ns, END, track, |_| {})?;
        }
        Ok(())
    }

    fn event(&mut self, at_ns: u64, kind: u64, track: u64, fill: impl FnOnce(&mut Message)) -> Result<(), WriteError> {
        use field::{event, packet};
        self.send(|message| {
            message.uint(packet::TIMESTAMP, at_ns).message(packet::TRACK_EVENT, |fields| {
                fields.uint(event::TYPE, kind).uint(event::TRACK, track);
                fill(fields);
            });
        })
    }

    fn counters(&mut self) -> Result<(), WriteError> {
        let trace = self.trace;
        for (index, counter) in trace.counters.iter().enumerate() {
            let track = lane_track(trace.lanes.len() + index);
            for &(at_ns, value) in &counter.points {
                self.event(at_ns, COUNTER, track, |fields| {
                    fields.double(field::event::VALUE, value);
                })?;
            }
        }
        Ok(())
    }

    fn samples(&mut self) -> Result<(), WriteError> {
        let trace = self.trace;
        // A reading of the CPU clock that rises by each sample's weight: viewers show it as a counter beside the samples.
        let mut clock_ns: u64 = 0;
        for sample in &trace.samples.samples {
            clock_ns = clock_ns.saturating_add(sample.weight_ns);
            self.send(|packet| {
                packet.uint(field::packet::TIMESTAMP, sample.at_ns).message(field::packet::PERF_SAMPLE, |fields| {
                    fields.uint(2, u64::from(trace.process.id)).uint(3, u64::from(sample.thread));
                    fields.uint(4, iid(sample.stack.0 as usize)).uint(6, clock_ns);
                });
            })?;
        }
        Ok(())
    }
}

fn arguments(fields: &mut Message, args: &[(Name, Value)]) {
    for (name, value) in args {
        fields.message(field::event::ARGUMENT, |argument| {
            argument.uint(1, iid(name.index()));
            match *value {
                Value::Integer(value) => argument.int(4, value),
                Value::Number(value) => argument.double(5, value),
                Value::Text(text) => argument.uint(17, iid(text.index())),
            };
        });
    }
}
