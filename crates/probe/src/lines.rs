//! What the addresses of a captured trace are: functions, source lines with their inline chains, instructions of hot loops.
//! Not here: taking a trace, and adding up (`record::capture`).

mod classes;
mod executable;
mod hot_loop;
mod maps;
mod records;
mod sources;

pub use records::{Counted, Given, capture_record, lines_record};

use executable::Executable;
use maps::Maps;
use record::Known;
use record::capture::line_table::Resolution;
use record::capture::lines::{ExecutableUse, StackFrame};
use record::capture::load::{Profiled, RawTrace};
use record::capture::raw::RawAddress;
use record::capture::reduced::instructions::InstructionTree;
use record::capture::{Place, Placed};
use record::timeline::SamplingRung;
use sources::Sources;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

/// A trace's addresses, looked up.
pub struct Resolved {
    pub resolution: Resolution,
    /// By the executable's place in the trace.
    executables: Vec<Result<Executable, String>>,
    /// Executable and address in its file, by the address as the trace writes it.
    places: HashMap<String, (usize, u64)>,
    /// Why the instructions of hot loops are not looked at, where the code is no executable's.
    no_loops: Option<&'static str>,
}

impl Resolved {
    /// Looks up every address of `trace`. `binary` is read in place of the program's own path; `sources` is the checkout that
    /// files are verified in.
    ///
    /// What cannot be had is said in the resolution: an executable that is gone, stripped or another one has no lines, its
    /// addresses keep the names of symbols, or its own name in brackets.
    pub fn new(trace: &RawTrace, binary: Option<&Path>, sources: &Path) -> Resolved {
        let maps = Maps::parse(&trace.maps);
        let open = |raw: &record::capture::raw::RawExecutable| {
            let path = binary.filter(|_| raw.program).map_or_else(|| PathBuf::from(&raw.path), Path::to_path_buf);
            Executable::open(raw, &path)
        };
        let executables: Vec<Result<Executable, String>> = trace.executables.iter().map(open).collect();
        let mut resolver = Resolver {
            trace,
            maps,
            executables: &executables,
            sources: Sources::new(&trace.sources, sources),
            frames: Vec::new(),
            numbers: HashMap::new(),
        };
        let mut resolution = Resolution::default();
        let mut places = HashMap::new();
        for address in trace.samples.iter().flat_map(|sample| &sample.stack) {
            if !resolution.addresses.contains_key(&address.0) {
                let (chain, place) = resolver.chain(address);
                resolution.addresses.insert(address.0.clone(), chain);
                if let Some(place) = place {
                    places.insert(address.0.clone(), place);
                }
            }
        }
        let Resolver { frames, sources, .. } = resolver;
        resolution.frames = frames;
        resolution.files = sources.files();
        let mut innermost = vec![0; executables.len()];
        for sample in &trace.samples {
            if let Some((executable, _)) = sample.stack.first().and_then(|address| places.get(&address.0)) {
                innermost[*executable] += 1;
            }
        }
        resolution.executables = trace
            .executables
            .iter()
            .zip(&executables)
            .zip(innermost)
            .map(|((raw, executable), samples)| ExecutableUse {
                name: file_name(&raw.path),
                program: raw.program,
                build_id: raw.build_id.clone(),
                samples,
                lines: usable(executable),
            })
            .collect();
        Resolved { resolution, executables, places, no_loops: None }
    }

    /// The same of a pass that a GPU ran: its profiler has told which lines are behind each address.
    pub fn of_device(trace: &RawTrace, profiled: &Profiled, sources: &Path) -> Resolved {
        let mut sources = Sources::new(&trace.sources, sources);
        let (mut frames, mut numbers): (Vec<StackFrame>, HashMap<StackFrame, u32>) = (Vec::new(), HashMap::new());
        let mut resolution = Resolution::default();
        let chains: BTreeMap<_, _> = profiled.chains.iter().collect();
        for (address, (function, lines)) in chains {
            let outermost = lines.len().saturating_sub(1);
            let mut chain: Vec<StackFrame> = lines
                .iter()
                .enumerate()
                .map(|(depth, (path, line))| {
                    let shown = sources.shown(path);
                    StackFrame {
                        function: function.clone(),
                        file: shown.file,
                        line: *line,
                        inlined: depth < outermost,
                        in_repository: shown.in_repository,
                    }
                })
                .collect();
            if chain.is_empty() {
                let file = "[no line information]".to_owned();
                let (inlined, in_repository) = (false, false);
                chain.push(StackFrame { function: function.clone(), file, line: 0, inlined, in_repository });
            }
            let numbered = chain.into_iter().map(|frame| {
                *numbers.entry(frame.clone()).or_insert_with(|| {
                    frames.push(frame);
                    frames.len() as u32 - 1
                })
            });
            resolution.addresses.insert(address.clone(), numbered.collect());
        }
        resolution.frames = frames;
        resolution.files = sources.files();
        Resolved {
            resolution,
            executables: Vec::new(),
            places: HashMap::new(),
            no_loops: Some("hot loops are looked for in the code of processors, not of GPUs"),
        }
    }

    /// Why the program itself has no lines, if it has none.
    pub fn program_without_lines(&self) -> Option<&record::Unavailable> {
        self.resolution.executables.iter().find(|used| used.program).and_then(|used| used.lines.missing())
    }

    /// The hot loop of every kernel that has samples in an executable that can be read; `rung` is how they were taken.
    pub fn instructions(&self, trace: &RawTrace, placed: &Placed, rung: SamplingRung) -> Known<InstructionTree> {
        if let Some(why) = self.no_loops {
            return Known::unavailable(why, "see the lines, and what warps wait for");
        }
        let mut kernels = Vec::new();
        for (index, place) in placed.places.iter().enumerate() {
            let Place::Kernel { operator, kernel } = place else { continue };
            let own = placed.samples.iter().filter(|sample| sample.place == index);
            let mut all = 0;
            let mut by_executable: BTreeMap<usize, BTreeMap<u64, u64>> = BTreeMap::new();
            for sample in own {
                all += 1;
                let address = trace.samples[sample.sample].stack.first();
                if let Some((executable, at)) = address.and_then(|address| self.places.get(&address.0)) {
                    *by_executable.entry(*executable).or_default().entry(*at).or_default() += 1;
                }
            }
            let most = by_executable.iter().max_by_key(|(_, samples)| samples.values().sum::<u64>());
            let Some((executable, samples)) = most else { continue };
            let Ok(executable) = &self.executables[*executable] else { continue };
            kernels.push((all, hot_loop::kernel_instructions(executable, operator, kernel, samples, all)));
        }
        kernels.sort_by_key(|(all, _)| std::cmp::Reverse(*all));
        let kernels: Vec<_> = kernels.into_iter().map(|(_, kernel)| kernel).collect();
        if kernels.is_empty() {
            let why = self.executables.iter().find_map(|executable| executable.as_ref().err());
            let why = why.map_or("no kernel has a sample in an executable", String::as_str);
            return Known::unavailable(why, "keep the captured executable, or name another copy of it with --binary");
        }
        let skid = if rung != SamplingRung::Cycles {
            "sampled by a clock of the operating system: the address is where the thread was when the interrupt was taken, \
             which is at or some instructions behind what cost the time; a load's wait shows on the instruction that uses it"
        } else {
            "sampled by the processor's cycles: the address is a few instructions behind what cost the time at most"
        };
        Known::Is(InstructionTree { skid: skid.to_owned(), kernels })
    }
}

fn usable(executable: &Result<Executable, String>) -> Known<bool> {
    let how = "keep the captured executable with its debugging information, or name another copy of it with --binary";
    match executable {
        Ok(executable) => match executable.without_lines() {
            None => Known::Is(true),
            Some(why) => Known::unavailable(why, how),
        },
        Err(why) => Known::unavailable(why, how),
    }
}

fn file_name(path: &str) -> String {
    path.rsplit('/').next().unwrap_or(path).to_owned()
}

struct Resolver<'a> {
    trace: &'a RawTrace,
    maps: Maps,
    executables: &'a [Result<Executable, String>],
    sources: Sources,
    frames: Vec<StackFrame>,
    numbers: HashMap<StackFrame, u32>,
}

impl Resolver<'_> {
    /// Frames of an address, innermost first, and where in which executable it is.
    fn chain(&mut self, address: &RawAddress) -> (Vec<u32>, Option<(usize, u64)>) {
        let bare = |function: &str, file: String| StackFrame {
            function: function.to_owned(),
            file,
            line: 0,
            inlined: false,
            in_repository: false,
        };
        let Some(taken) = address.place() else {
            return (vec![self.number(bare("[unreadable address]", "[unreadable address]".to_owned()))], None);
        };
        // The place behind a call belongs to the call.
        let at = taken.at.wrapping_sub(u64::from(taken.returns));
        if taken.kernel {
            let functions = &self.trace.kernel_functions;
            let before = functions.partition_point(|function| function.start <= at);
            let name = before.checked_sub(1).map_or("[kernel]", |index| functions[index].name.as_str());
            return (vec![self.number(bare(name, "[kernel]".to_owned()))], None);
        }
        let Some((path, offset)) = self.maps.find(at) else {
            return (vec![self.number(bare("[unknown]", "[unmapped]".to_owned()))], None);
        };
        // What is no file, such as `[vdso]`, has them already.
        let in_brackets = if path.starts_with('[') { path.to_owned() } else { format!("[{}]", file_name(path)) };
        let index = self.trace.executables.iter().position(|executable| executable.path == path);
        let opened = index.and_then(|index| Some((index, self.executables[index].as_ref().ok()?)));
        let Some((index, executable, address)) =
            opened.and_then(|(index, executable)| Some((index, executable, executable.address(offset)?)))
        else {
            return (vec![self.number(bare("[unknown]", in_brackets))], None);
        };
        let symbol = executable.symbol(address).map(|symbol| symbol.name.as_str());
        let found = executable.frames(address);
        let mut chain = Vec::with_capacity(found.len().max(1));
        let last = found.len().saturating_sub(1);
        for (depth, frame) in found.iter().enumerate() {
            // The outermost is the compiled function itself, which the symbol table names in full.
            let outermost = depth == last;
            let named = frame.function.as_deref();
            let function = if outermost { symbol.or(named) } else { named };
            let shown = match &frame.file {
                Some(path) => self.sources.shown(path),
                None => sources::Shown { file: in_brackets.clone(), in_repository: false },
            };
            chain.push(self.number(StackFrame {
                function: function.unwrap_or("[unknown]").to_owned(),
                file: shown.file,
                line: if frame.file.is_some() { frame.line } else { 0 },
                inlined: !outermost,
                in_repository: shown.in_repository,
            }));
        }
        if chain.is_empty() {
            chain.push(self.number(bare(symbol.unwrap_or("[unknown]"), in_brackets)));
        }
        (chain, Some((index, address)))
    }

    fn number(&mut self, frame: StackFrame) -> u32 {
        if let Some(number) = self.numbers.get(&frame) {
            return *number;
        }
        let number = self.frames.len() as u32;
        self.frames.push(frame.clone());
        self.numbers.insert(frame, number);
        number
    }
}
