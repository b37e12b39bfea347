//! What NVIDIA's Nsight Compute (ncu) says of a profiled pass: its raw page, one row per launch, and its source pages, one row per
//! instruction, as it prints them as CSV. Not here: running it, and what the pages come to (`ncu/import.rs`).
//!
//! Its CSV is not the usual one: every field is quoted and quotes inside are not doubled; values have thousands separators; a line
//! of the program stands before the instructions that belong to it, and an instruction stands under every line that it was inlined
//! through, more than once under some; the page of instructions can repeat a whole launch. So each instruction of a launch is counted
//! once, and what repeats must say the same.

mod agree;
mod import;

pub use import::{Imported, import};

use crate::letters::plain;
use std::collections::BTreeMap;
use std::io::{self, BufRead};

/// Why pages of ncu cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum NcuError {
    #[error("{page}: cannot be read: {source}; give the whole directory that `hourglass capture --trace` wrote")]
    Read { page: &'static str, source: io::Error },
    #[error("{page}, line {line}: {why}; the page was cut or changed, or ncu is of another version: capture again")]
    Line { page: &'static str, line: usize, why: String },
    #[error("{page}: {why}; the page was cut or changed, or ncu is of another version: capture again")]
    Page { page: &'static str, why: String },
}

/// Names of the pages in messages.
pub const RAW_PAGE: &str = "ncu's raw page";
pub const SASS_PAGE: &str = "ncu's page of instructions";
pub const SOURCE_PAGE: &str = "ncu's page of source lines";

/// What is read of the raw page, and the unit that it must be in. Percentages have a fraction, the others count something.
pub(crate) const METRICS: [(&str, &str); 11] = [
    (TIME, "ns"),
    (DRAM_READ, "byte"),
    (DRAM_WRITTEN, "byte"),
    (DRAM_SHARE, "%"),
    (L2_HITS, "%"),
    (SM_SHARE, "%"),
    (TENSOR_SHARE, "%"),
    (OCCUPANCY, "%"),
    (REGISTERS, "register/thread"),
    (INSTRUCTIONS, "inst"),
    (SAMPLES, ""),
];
pub(crate) const TIME: &str = "gpu__time_duration.sum";
pub(crate) const DRAM_READ: &str = "dram__bytes_read.sum";
pub(crate) const DRAM_WRITTEN: &str = "dram__bytes_write.sum";
pub(crate) const DRAM_SHARE: &str = "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed";
pub(crate) const L2_HITS: &str = "lts__t_sector_hit_rate.pct";
pub(crate) const SM_SHARE: &str = "sm__throughput.avg.pct_of_peak_sustained_elapsed";
pub(crate) const TENSOR_SHARE: &str = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed";
pub(crate) const OCCUPANCY: &str = "sm__warps_active.avg.pct_of_peak_sustained_active";
pub(crate) const REGISTERS: &str = "launch__registers_per_thread";
pub(crate) const INSTRUCTIONS: &str = "smsp__inst_executed.sum";
pub(crate) const SAMPLES: &str = "smsp__pcsamp_sample_count";
/// Samples by what warps waited for: the page of instructions has no column for some of these reasons.
const STALLED: &str = "smsp__pcsamp_warps_issue_stalled_";
const NOT_ISSUED: &str = "_not_issued";
/// Whatever was sampled and did not fit the profiler's buffers.
const DROPPED: (&str, &str) = ("smsp__pcsamp", "dropped");
/// A part is no more than its whole, but for rounding.
const MOST_PERCENT: f64 = 100.5;

/// Names of the metrics that ncu is asked for beside its section of source counters, which brings the samples.
pub fn metrics() -> Vec<&'static str> {
    METRICS.iter().map(|(name, _)| *name).filter(|name| *name != SAMPLES).collect()
}

/// One launch of the raw page.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LaunchRow {
    pub(crate) kernel: String,
    /// By metric; what was not collected is absent.
    pub(crate) values: BTreeMap<&'static str, f64>,
    /// Percentages that cannot be, likewise: small launches have them, as the profiler counts the two sides in different runs.
    pub(crate) beyond: BTreeMap<&'static str, f64>,
    /// Samples by what the warp waited for; empty where the page has no such columns.
    pub(crate) stalls: BTreeMap<String, u64>,
    /// Samples' bytes that were lost; absent where the page does not say.
    pub(crate) dropped: Option<u64>,
}

/// One launch of the page of instructions.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LaunchCode {
    pub(crate) kernel: String,
    /// By address, each once.
    pub(crate) instructions: BTreeMap<u64, Instruction>,
}

impl LaunchCode {
    fn samples(&self) -> u64 {
        self.instructions.values().map(|instruction| instruction.samples).sum()
    }
}

/// What one instruction of one launch did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Instruction {
    pub(crate) samples: u64,
    pub(crate) executed: u64,
    /// Samples by what the warp waited for; only those above nothing.
    pub(crate) stalls: BTreeMap<String, u64>,
}

/// The lines that an instruction came from, by kernel and address, innermost first.
pub(crate) type Lines = BTreeMap<(String, u64), Vec<(String, u32)>>;

/// Fields of a line: everything is quoted.
fn fields(line: &str) -> Vec<&str> {
    let line = line.trim_end_matches(',');
    let inner = line.strip_prefix('"').and_then(|line| line.strip_suffix('"')).unwrap_or(line);
    inner.split("\",\"").collect()
}

/// A number as ncu prints it in its own locale: digits, a comma before every three of them or nowhere, a point before a fraction;
/// `None` for what was not collected.
///
/// # Errors
/// Something else, such as what another locale makes of it.
fn number(text: &str) -> Result<Option<f64>, String> {
    if ["", "-", "n/a", "nan", "no data"].contains(&text.trim()) {
        return Ok(None);
    }
    let refused = || format!("'{text}' is no number of the form 1,234.5");
    let unsigned = text.strip_prefix('-').unwrap_or(text);
    let (whole, fraction) = unsigned.split_once('.').unwrap_or((unsigned, "0"));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let mut groups = whole.split(',');
    let first = groups.next().unwrap_or_default();
    let grouped = !whole.contains(',') || (first.len() <= 3 && groups.all(|group| group.len() == 3 && digits(group)));
    if !digits(first) || !grouped || !digits(fraction) {
        return Err(refused());
    }
    let plain: String = text.chars().filter(|letter| *letter != ',').collect();
    match plain.parse::<f64>() {
        Ok(value) if value.is_finite() => Ok(Some(value)),
        _ => Err(refused()),
    }
}

/// A number that counts something: neither below nothing nor with a fraction.
fn whole(text: &str) -> Result<Option<f64>, String> {
    match number(text)? {
        // A point is a separator of thousands elsewhere.
        Some(value) if value < 0.0 || text.contains('.') => Err(format!("'{text}' is no count")),
        value => Ok(value),
    }
}

/// Of one instruction in one launch; sums of such counts stay far from the end of 64 bits.
const MOST_COUNTED: f64 = 1e12;

fn count(text: &str) -> Result<u64, String> {
    match whole(text)? {
        Some(value) if value <= MOST_COUNTED => Ok(value as u64),
        None => Ok(0),
        Some(value) => Err(format!("'{value}' is more than can be counted")),
    }
}

fn numbered(page: &'static str, text: impl BufRead) -> impl Iterator<Item = Result<(usize, String), NcuError>> {
    text.lines().enumerate().map(move |(index, line)| match line {
        Ok(line) => Ok((index + 1, line)),
        Err(source) => Err(NcuError::Read { page, source }),
    })
}

/// Where things stand in a row of the raw page.
struct Heading {
    width: usize,
    kernel: usize,
    /// Place, metric, and the unit that it must be in.
    columns: Vec<(usize, &'static str, &'static str)>,
    /// Place and reason.
    stalls: Vec<(usize, String)>,
    /// Places and names of what counts losses.
    dropped: Vec<(usize, String)>,
}

impl Heading {
    /// # Errors
    /// A column that must be there is not, or has a name that cannot be shown.
    fn of(found: &[&str]) -> Result<Heading, String> {
        found.iter().try_for_each(|column| plain(column))?;
        let place = |name: &str| found.iter().position(|column| *column == name);
        let named = |pick: &dyn Fn(&str) -> Option<String>| {
            found.iter().enumerate().filter_map(|(at, name)| Some((at, pick(name)?))).collect::<Vec<_>>()
        };
        let stall = |name: &str| {
            let reason = name.strip_prefix(STALLED)?;
            (!reason.ends_with(NOT_ISSUED) && !reason.contains('.')).then(|| reason.to_owned())
        };
        let lost = |name: &str| (name.starts_with(DROPPED.0) && name.contains(DROPPED.1)).then(|| name.to_owned());
        Ok(Heading {
            width: found.len(),
            kernel: place("Kernel Name").ok_or("no column 'Kernel Name'")?,
            columns: METRICS.iter().filter_map(|(name, unit)| Some((place(name)?, *name, *unit))).collect(),
            stalls: named(&stall),
            dropped: named(&lost),
        })
    }

    /// One launch.
    ///
    /// # Errors
    /// Which metric has what is no value of it; a kernel's name that cannot be shown.
    fn row(&self, found: &[&str]) -> Result<LaunchRow, String> {
        plain(found[self.kernel])?;
        let mut row = LaunchRow { kernel: found[self.kernel].to_owned(), ..LaunchRow::default() };
        for &(at, name, unit) in &self.columns {
            let said = |why: String| format!("{name}: {why}");
            if unit != "%" {
                row.values.extend(whole(found[at]).map_err(said)?.map(|value| (name, value)));
                continue;
            }
            match number(found[at]).map_err(said)? {
                Some(value) if value < 0.0 => return Err(said(format!("'{value}' % is below nothing"))),
                Some(value) if value > MOST_PERCENT => row.beyond.insert(name, value),
                Some(value) => row.values.insert(name, value),
                None => None,
            };
        }
        for (at, reason) in &self.stalls {
            let samples = count(found[*at]).map_err(|why| format!("{STALLED}{reason}: {why}"))?;
            row.stalls.insert(reason.clone(), samples);
        }
        for (at, name) in &self.dropped {
            let lost = count(found[*at]).map_err(|why| format!("{name}: {why}"))?;
            row.dropped = Some(row.dropped.unwrap_or(0) + lost);
        }
        Ok(row)
    }
}

/// The raw page, `--page raw --csv --print-units base`: what stands before the heading is skipped.
///
/// # Errors
/// No heading, a row of another width, a number that is none, a unit that is not the base one.
pub(crate) fn raw_page(text: impl BufRead) -> Result<Vec<LaunchRow>, NcuError> {
    let page = RAW_PAGE;
    let mut heading: Option<Heading> = None;
    let mut rows: Vec<LaunchRow> = Vec::new();
    for line in numbered(page, text) {
        let (line, text) = line?;
        let fail = |why: String| NcuError::Line { page, line, why };
        let found = fields(&text);
        let Some(heading) = &heading else {
            if found.first() == Some(&"ID") {
                heading = Some(Heading::of(&found).map_err(fail)?);
            }
            continue;
        };
        if text.is_empty() {
            continue;
        }
        if found.len() != heading.width {
            return Err(fail(format!("{} fields, expected {}", found.len(), heading.width)));
        }
        if found[0].is_empty() {
            // The row of units.
            if let Some((at, name, unit)) = heading.columns.iter().find(|(at, _, unit)| found[*at] != *unit) {
                return Err(fail(format!("{name} is in '{}', expected '{unit}'", found[*at])));
            }
            continue;
        }
        rows.push(heading.row(&found).map_err(fail)?);
    }
    if heading.is_none() {
        return Err(NcuError::Page { page, why: "has no heading that begins with \"ID\"".to_owned() });
    }
    Ok(rows)
}

/// The page of instructions, `--page source --csv --print-source sass`: the launches of the raw page, some of them printed twice.
///
/// # Errors
/// A row that is none, an instruction that comes twice with different numbers, launches that are not those of the raw page.
pub(crate) fn sass_page(text: impl BufRead, launches: &[LaunchRow]) -> Result<Vec<LaunchCode>, NcuError> {
    let page = SASS_PAGE;
    let mut all: Vec<LaunchCode> = Vec::new();
    let mut columns: Option<CodeColumns> = None;
    for line in numbered(page, text) {
        let (line, text) = line?;
        let fail = |why: String| NcuError::Line { page, line, why };
        let found = fields(&text);
        match found[0] {
            "Kernel Name" => {
                let kernel = found.get(1).ok_or_else(|| fail("a kernel without a name".to_owned()))?;
                plain(kernel).map_err(fail)?;
                all.push(LaunchCode { kernel: (*kernel).to_owned(), ..LaunchCode::default() });
                columns = None;
            }
            "Address" => columns = Some(CodeColumns::of(&found).map_err(fail)?),
            address if address.starts_with("0x") => {
                let (Some(columns), Some(code)) = (&columns, all.last_mut()) else {
                    return Err(fail("an instruction before a heading".to_owned()));
                };
                let (address, instruction) = columns.read(&found, 0).map_err(fail)?;
                let known = code.instructions.entry(address).or_insert_with(|| instruction.clone());
                if *known != instruction {
                    return Err(fail(format!("{address:#x} comes twice with different numbers")));
                }
            }
            _ => {}
        }
    }
    each_once(all, launches).map_err(|why| NcuError::Page { page, why })
}

/// Takes each launch once where a copy of it may follow: told by its name and its samples, which the raw page has too. (Instructions are
/// counted in another run of the kernel, and one that waits in a loop executes more or fewer of them.)
fn each_once(all: Vec<LaunchCode>, launches: &[LaunchRow]) -> Result<Vec<LaunchCode>, String> {
    let fits = |code: &LaunchCode, row: &LaunchRow| {
        let counted = row.values.get(SAMPLES).is_some_and(|counted| *counted == code.samples() as f64);
        code.kernel == row.kernel && counted && !code.instructions.is_empty()
    };
    // From the end: how many blocks launch `launch` takes if it begins at block `block`, where the rest can then be told apart.
    let mut takes = vec![vec![0_u8; all.len() + 3]; launches.len() + 1];
    takes[launches.len()][all.len()] = 1;
    for launch in (0..launches.len()).rev() {
        for block in (launch..all.len()).rev() {
            if !fits(&all[block], &launches[launch]) {
                continue;
            }
            let copied = all.get(block + 1).is_some_and(|next| *next == all[block]);
            let next = &takes[launch + 1];
            takes[launch][block] = match (copied && next[block + 2] > 0, next[block + 1] > 0) {
                (true, _) => 2,
                (false, true) => 1,
                (false, false) => 0,
            };
        }
    }
    let mut at = 0;
    let mut once = Vec::with_capacity(launches.len());
    for (launch, row) in launches.iter().enumerate() {
        let blocks = usize::from(takes[launch][at]);
        if blocks == 0 {
            let Some(counted) = row.values.get(SAMPLES) else {
                return Err(format!("the raw page has no {SAMPLES} of launch {launch} ('{}')", row.kernel));
            };
            let shown = |code: &LaunchCode| format!("{} {}", code.kernel, code.samples());
            return Err(format!(
                "its {} launches with their samples ({}) are not the raw page's {}, each once or twice and with instructions, from \
                 launch {launch} on ('{}' with {counted} samples)",
                all.len(),
                all.iter().map(shown).collect::<Vec<_>>().join(", "),
                launches.len(),
                row.kernel,
            ));
        }
        once.push(all[at].clone());
        at += blocks;
    }
    if at == all.len() { Ok(once) } else { Err(format!("{} launches, the raw page has {}", all.len(), launches.len())) }
}

/// Where the numbers stand in a row of instructions.
struct CodeColumns {
    width: usize,
    samples: usize,
    executed: usize,
    stalls: Vec<(usize, String)>,
}

impl CodeColumns {
    fn of(heading: &[&str]) -> Result<CodeColumns, String> {
        heading.iter().try_for_each(|column| plain(column))?;
        let place = |name: &str| {
            let at = heading.iter().position(|column| *column == name);
            at.ok_or_else(|| format!("no column '{name}': was it profiled without the section SourceCounters?"))
        };
        let stall = |(at, name): (usize, &&str)| {
            let reason = name.strip_prefix("stall_").filter(|reason| !reason.contains('('))?;
            Some((at, reason.to_owned()))
        };
        Ok(CodeColumns {
            width: heading.len(),
            samples: place("# Samples")?,
            executed: place("Instructions Executed")?,
            stalls: heading.iter().enumerate().filter_map(stall).collect(),
        })
    }

    fn read(&self, row: &[&str], address: usize) -> Result<(u64, Instruction), String> {
        if row.len() != self.width {
            return Err(format!("{} fields, expected {}", row.len(), self.width));
        }
        let digits = row[address].trim_start_matches("0x");
        let address = u64::from_str_radix(digits, 16).map_err(|_| format!("'{}' is no address", row[address]))?;
        let mut instruction = Instruction {
            samples: count(row[self.samples])?,
            executed: count(row[self.executed])?,
            stalls: BTreeMap::new(),
        };
        for (at, reason) in &self.stalls {
            let samples = count(row[*at])?;
            if samples > 0 {
                instruction.stalls.insert(reason.clone(), samples);
            }
        }
        Ok((address, instruction))
    }
}

/// The page of source lines, `--page source --csv --print-source cuda,sass`: which lines each instruction is under.
///
/// # Errors
/// Instructions before a file, a function or a line; a line number that is none; a name that cannot be shown.
pub(crate) fn source_page(text: impl BufRead) -> Result<Lines, NcuError> {
    let page = SOURCE_PAGE;
    let mut lines = Lines::new();
    let (mut file, mut function, mut at) = (None::<String>, None::<String>, None::<u32>);
    for line in numbered(page, text) {
        let (line, text) = line?;
        let fail = |why: &str| NcuError::Line { page, line, why: why.to_owned() };
        // The text of the program may hold anything: only what stands before it is looked at.
        let (first, rest) = text.split_once("\",\"").unwrap_or((&text, ""));
        match first.trim_start_matches('"') {
            kind @ ("File Path" | "Function Name") => {
                let name = rest.trim_end_matches(',').trim_end_matches('"');
                plain(name).map_err(|why| fail(&why))?;
                let named = if kind == "File Path" { &mut file } else { &mut function };
                *named = Some(name.to_owned());
                at = None;
            }
            "Line No" => at = None,
            "" => {
                // An instruction: an empty line number, an empty text, the address.
                let Some(address) = text.strip_prefix("\"\",\"\",\"0x") else { continue };
                let address = address.split('"').next().unwrap_or_default();
                let address = u64::from_str_radix(address, 16).map_err(|_| fail("an address that is none"))?;
                let (Some(file), Some(function), Some(at)) = (&file, &function, at) else {
                    return Err(fail("an instruction that is under no line"));
                };
                let under = lines.entry((function.clone(), address)).or_default();
                let place = (file.clone(), at);
                if !under.contains(&place) {
                    under.push(place);
                }
            }
            number => match number.parse() {
                Ok(number) => at = Some(number),
                // What ncu says instead of lines.
                Err(_) if file.is_none() => {}
                Err(_) => return Err(fail("a line number that is none")),
            },
        }
    }
    for under in lines.values_mut() {
        under.sort_by_key(|(file, line)| (rank(file), *line));
    }
    Ok(lines)
}

/// What is inlined was declared before: headers before the file that they are included in, `prelude.cuh` before the others; within
/// a file the lower line. So the first of an instruction's lines is the innermost.
fn rank(file: &str) -> u8 {
    match file {
        file if file.ends_with("prelude.cuh") => 0,
        file if file.ends_with(".cuh") => 1,
        _ => 2,
    }
}

/// What ncu's failure means for somebody who wants a capture; `said` is what it printed.
pub fn explained(said: &str) -> (String, &'static str) {
    let permission = ["ERR_NVGPUCTRPERM", "permission"];
    if permission.iter().any(|word| said.contains(word)) {
        return (
            "the driver gives the GPU's counters to administrators alone (ERR_NVGPUCTRPERM)".to_owned(),
            "run as root, or load the driver's module with NVreg_RestrictProfilingToAdminUsers=0",
        );
    }
    if said.contains("LibraryNotLoaded") {
        return (
            "ncu could not load the driver's profiler («Failed to initialize the profiler: LibraryNotLoaded»), as in sandboxes that \
             pass a GPU through without its counters (gVisor)"
                .to_owned(),
            "capture on the machine itself or in a virtual machine that has the GPU",
        );
    }
    let last =
        said.lines().rev().find(|line| line.starts_with("==ERROR==")).or(said.lines().last()).unwrap_or_default();
    (
        format!("ncu failed: {}", last.trim_start_matches("==ERROR==").trim()),
        "run the command that it was given by hand",
    )
}
