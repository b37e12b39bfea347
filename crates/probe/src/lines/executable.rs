//! An executable file on disk that is the captured one: its code, symbols and lines.
//! Not here: which addresses are asked for.

use gimli::{EndianArcSlice, RunTimeEndian};
use object::{Object, ObjectSection, ObjectSegment, ObjectSymbol, SymbolKind};
use record::capture::raw::RawExecutable;
use sha2::{Digest, Sha256};
use std::path::Path;
use std::sync::Arc;

type Reader = EndianArcSlice<RunTimeEndian>;

/// Larger files are not read.
const LARGEST: u64 = 4 << 30;

/// One function of the symbol table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Symbol {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) name: String,
}

/// A part of the file that is mapped.
#[derive(Clone, Copy, Debug)]
struct Segment {
    address: u64,
    offset: u64,
    bytes: u64,
}

pub(super) struct Executable {
    bytes: Vec<u8>,
    segments: Vec<Segment>,
    /// By start.
    symbols: Vec<Symbol>,
    /// Why there are no lines.
    lines: Result<addr2line::Context<Reader>, String>,
}

/// One frame of an inline chain as the debugging information has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) function: Option<String>,
    pub(super) file: Option<String>,
    /// 0: none.
    pub(super) line: u32,
}

impl Executable {
    /// Opens `path` if it is the file that was captured.
    ///
    /// # Errors
    /// In words: it cannot be read, is no executable, or another one. That it has no lines is no error.
    pub(super) fn open(captured: &RawExecutable, path: &Path) -> Result<Executable, String> {
        let shown = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let metadata = std::fs::metadata(path).map_err(|error| format!("{shown} cannot be read: {error}"))?;
        if !metadata.is_file() || metadata.len() > LARGEST {
            return Err(format!("{shown} is no executable file"));
        }
        let bytes = std::fs::read(path).map_err(|error| format!("{shown} cannot be read: {error}"))?;
        let file = object::File::parse(&*bytes).map_err(|error| format!("{shown} is no executable file: {error}"))?;
        is_the_captured_one(captured, &file, &bytes).map_err(|why| format!("{shown} {why}"))?;
        let segments = file
            .segments()
            .map(|segment| {
                let (offset, bytes) = segment.file_range();
                Segment { address: segment.address(), offset, bytes }
            })
            .collect();
        let symbols = symbols(&file);
        let lines = lines(&file);
        Ok(Executable { segments, symbols, lines, bytes })
    }

    /// Why there are no lines, if there are none.
    pub(super) fn without_lines(&self) -> Option<&str> {
        self.lines.as_ref().err().map(String::as_str)
    }

    /// The address that the linker gave to a place in the file.
    pub(super) fn address(&self, offset: u64) -> Option<u64> {
        let holds =
            |segment: &&Segment| offset.checked_sub(segment.offset).is_some_and(|inside| inside < segment.bytes);
        let segment = self.segments.iter().find(holds)?;
        segment.address.checked_add(offset - segment.offset)
    }

    /// The function around an address.
    pub(super) fn symbol(&self, address: u64) -> Option<&Symbol> {
        let before = self.symbols.partition_point(|symbol| symbol.start <= address);
        self.symbols.get(before.checked_sub(1)?).filter(|symbol| address < symbol.end)
    }

    /// The machine code of a function.
    pub(super) fn code(&self, symbol: &Symbol) -> Option<&[u8]> {
        let holds =
            |segment: &&Segment| symbol.start.checked_sub(segment.address).is_some_and(|inside| inside < segment.bytes);
        let segment = self.segments.iter().find(holds)?;
        let from = segment.offset.checked_add(symbol.start - segment.address)?;
        let to = from.checked_add(symbol.end.checked_sub(symbol.start)?)?;
        self.bytes.get(usize::try_from(from).ok()?..usize::try_from(to).ok()?)
    }

    /// The inline chain at an address, innermost first; empty where the debugging information says nothing.
    pub(super) fn frames(&self, address: u64) -> Vec<Found> {
        let Ok(context) = &self.lines else { return Vec::new() };
        let Ok(mut frames) = context.find_frames(address).skip_all_loads() else { return Vec::new() };
        let mut found = Vec::new();
        while let Ok(Some(frame)) = frames.next() {
            let name = frame.function.as_ref().and_then(|name| name.demangle().ok().map(|name| name.into_owned()));
            let location = frame.location;
            found.push(Found {
                function: name.filter(|name| !name.is_empty()),
                file: location.as_ref().and_then(|at| at.file).map(str::to_owned),
                line: location.and_then(|at| at.line).unwrap_or(0),
            });
        }
        found
    }
}

/// # Errors
/// In words, why it is another file.
fn is_the_captured_one(captured: &RawExecutable, file: &object::File<'_>, bytes: &[u8]) -> Result<(), String> {
    let own = file.build_id().ok().flatten().map(hexadecimal);
    if let (Some(expected), Some(found)) = (captured.build_id.known(), &own) {
        return if expected == found {
            Ok(())
        } else {
            Err(format!(
                "is another build than the captured one: its build id is {found}, the captured one's {expected}"
            ))
        };
    }
    match captured.sha256.known() {
        Some(expected) => {
            let found = hexadecimal(&Sha256::digest(bytes));
            if *expected == found {
                Ok(())
            } else {
                Err(format!(
                    "is another file than the captured one: its SHA-256 is {found}, the captured one's {expected}"
                ))
            }
        }
        None => Err("cannot be told from another build: the trace has neither build id nor SHA-256 for it".to_owned()),
    }
}

pub(super) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn symbols(file: &object::File<'_>) -> Vec<Symbol> {
    let named = |symbol: object::Symbol<'_, '_>| {
        let name = symbol.name().ok().filter(|name| !name.is_empty())?;
        (symbol.kind() == SymbolKind::Text && symbol.size() > 0).then(|| Symbol {
            start: symbol.address(),
            end: symbol.address().saturating_add(symbol.size()),
            name: addr2line::demangle_auto(name.into(), None).into_owned(),
        })
    };
    let mut found: Vec<Symbol> = file.symbols().chain(file.dynamic_symbols()).filter_map(named).collect();
    found.sort_by(|a, b| (a.start, &a.name).cmp(&(b.start, &b.name)));
    found.dedup_by_key(|symbol| symbol.start);
    found
}

/// # Errors
/// In words, why there are no lines.
fn lines(file: &object::File<'_>) -> Result<addr2line::Context<Reader>, String> {
    if file.section_by_name(".debug_line").is_none() {
        return Err("it has no line information: it was stripped, or built without".to_owned());
    }
    let endian = if file.is_little_endian() { RunTimeEndian::Little } else { RunTimeEndian::Big };
    let section = |id: gimli::SectionId| -> Result<Reader, String> {
        let data = match file.section_by_name(id.name()) {
            Some(section) => section
                .uncompressed_data()
                .map_err(|error| format!("its section {} cannot be read: {error}", id.name()))?,
            None => Default::default(),
        };
        Ok(EndianArcSlice::new(Arc::from(&*data), endian))
    };
    let dwarf = gimli::Dwarf::load(section)?;
    addr2line::Context::from_dwarf(dwarf).map_err(|error| format!("its line information cannot be read: {error}"))
}
