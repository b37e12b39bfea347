//! The loop that most samples of a kernel are in, and what it is made of.
//! Not here: which samples are a kernel's.

use super::classes::{classify, path};
use super::executable::{Executable, Symbol};
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, OpAccess, Register};
use record::capture::reduced::instructions::{
    ClassRow, DearInstruction, HotLoop, InstructionClass, KernelInstructions, LoadUse,
};
use record::{InstructionPath, Known};
use std::collections::BTreeMap;

/// A part of the samples from which on a loop holds most of them.
const MOST: f64 = 0.5;

/// One decoded function.
struct Function<'a> {
    symbol: &'a Symbol,
    instructions: Vec<Decoded>,
    /// `[start, end)` of every range that a backward branch closes; one per head.
    loops: Vec<(u64, u64)>,
}

struct Decoded {
    at: u64,
    instruction: Instruction,
    class: InstructionClass,
    loads: bool,
    path: Option<InstructionPath>,
}

/// `samples` are how many fell on each address of the file; `all` are the kernel's, also those outside it.
pub(super) fn kernel_instructions(
    executable: &Executable,
    operator: &str,
    kernel: &str,
    samples: &BTreeMap<u64, u64>,
    all: u64,
) -> KernelInstructions {
    let mut functions: BTreeMap<u64, &Symbol> = BTreeMap::new();
    for address in samples.keys() {
        if let Some(symbol) = executable.symbol(*address) {
            functions.insert(symbol.start, symbol);
        }
    }
    let decoded: Vec<Function<'_>> =
        functions.values().filter_map(|symbol| Some(decode(symbol, executable.code(symbol)?))).collect();
    let inside = |start: u64, end: u64| -> u64 { samples.range(start..end).map(|(_, count)| count).sum() };
    let mut candidates: Vec<(u64, u64, u64, &Function<'_>)> = decoded
        .iter()
        .flat_map(|function| function.loops.iter().map(move |(start, end)| (*start, *end, function)))
        .map(|(start, end, function)| (inside(start, end), start, end, function))
        .filter(|(count, ..)| *count > 0)
        .collect();
    // Those with most of the samples, the shortest first; else the one with the most.
    candidates.sort_by_key(|(count, start, end, _)| {
        let most = *count as f64 >= MOST * all as f64;
        (!most, if most { 0 } else { u64::MAX - count }, end - start)
    });
    let hot_loop = match candidates.first() {
        Some((count, start, end, function)) => Known::Is(hot_loop(function, (*start, *end), *count, all, samples)),
        None => Known::unavailable(
            "no sample is in a loop of a function that the symbol table names",
            "capture longer; a stripped executable has no symbols",
        ),
    };
    let in_loop = hot_loop.known().and_then(|_| {
        let (_, start, end, function) = candidates.first()?;
        fastest(function.instructions.iter().filter(|one| (*start..*end).contains(&one.at)))
    });
    let anywhere = || fastest(decoded.iter().flat_map(|function| &function.instructions));
    let multiplies_with = match in_loop.or_else(anywhere) {
        Some(path) => Known::Is(path.name().to_owned()),
        None => Known::unavailable(
            "no instruction that a ceiling is measured for is in its sampled functions",
            "nothing: it multiplies little, or in another way",
        ),
    };
    KernelInstructions { operator: operator.to_owned(), kernel: kernel.to_owned(), multiplies_with, hot_loop }
}

/// The fastest of the multiplying instructions: what a floor is held against must not be slower than the kernel.
fn fastest<'a>(instructions: impl Iterator<Item = &'a Decoded>) -> Option<InstructionPath> {
    const RISING: [InstructionPath; 6] = [
        InstructionPath::Fp32Avx2,
        InstructionPath::Vdpbf16ps,
        InstructionPath::Fp32Avx512,
        InstructionPath::Vpdpbusd,
        InstructionPath::AmxBf16,
        InstructionPath::AmxInt8,
    ];
    let rank = |path: &InstructionPath| RISING.iter().position(|known| known == path);
    instructions.filter_map(|one| one.path).max_by_key(rank)
}

fn decode<'a>(symbol: &'a Symbol, code: &[u8]) -> Function<'a> {
    let mut factory = InstructionInfoFactory::new();
    let mut instructions = Vec::new();
    // Head to the end of the last branch back to it.
    let mut loops: BTreeMap<u64, u64> = BTreeMap::new();
    for instruction in &mut Decoder::with_ip(64, code, symbol.start, DecoderOptions::NONE) {
        if instruction.is_invalid() {
            continue;
        }
        let (class, loads) = classify(&instruction, &mut factory);
        instructions.push(Decoded { at: instruction.ip(), instruction, class, loads, path: path(&instruction) });
        let branches =
            matches!(instruction.flow_control(), FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch);
        let target = instruction.near_branch_target();
        if branches && (symbol.start..=instruction.ip()).contains(&target) {
            loops.insert(target, instruction.next_ip());
        }
    }
    Function { symbol, instructions, loops: loops.into_iter().collect() }
}

fn hot_loop(
    function: &Function<'_>,
    (start, end): (u64, u64),
    count: u64,
    all: u64,
    samples: &BTreeMap<u64, u64>,
) -> HotLoop {
    let mut classes: BTreeMap<InstructionClass, ClassRow> = BTreeMap::new();
    let mut instructions = 0;
    let mut most: Option<(usize, u64)> = None;
    let inside: Vec<&Decoded> =
        function.instructions.iter().filter(|instruction| (start..end).contains(&instruction.at)).collect();
    for (index, instruction) in inside.iter().enumerate() {
        let empty = ClassRow { class: instruction.class, instructions: 0, with_load: 0, samples: 0 };
        let row = classes.entry(instruction.class).or_insert(empty);
        instructions += 1;
        row.instructions += 1;
        row.with_load += u64::from(instruction.loads);
        // A sample between two instructions is of the one that it is in.
        let next = inside.get(index + 1).map_or(end, |next| next.at);
        let own = samples.range(instruction.at..next).map(|(_, count)| count).sum::<u64>();
        row.samples += own;
        if own > most.map_or(0, |(_, most)| most) {
            most = Some((index, own));
        }
    }
    let mut classes: Vec<ClassRow> = classes.into_values().collect();
    classes.sort_by_key(|row| std::cmp::Reverse(row.instructions));
    HotLoop {
        function: function.symbol.name.clone(),
        start: format!("{start:x}"),
        end: format!("{end:x}"),
        instructions,
        samples: count,
        kernel_samples: all,
        classes,
        dearest: match most {
            Some((index, samples)) => Known::Is(dear(&inside, index, samples)),
            None => Known::unavailable("no sample is on an instruction of the loop", "capture longer"),
        },
    }
}

/// Loads farther before their use than this have arrived, or wait for a reason of their own.
const REACH: usize = 16;

/// What is known of the instruction at `index` of a loop.
fn dear(inside: &[&Decoded], index: usize, samples: u64) -> DearInstruction {
    let own = inside[index];
    DearInstruction {
        at: format!("{:x}", own.at),
        mnemonic: format!("{:?}", own.instruction.mnemonic()).to_lowercase(),
        class: own.class,
        samples,
        load: load_use(inside, index),
    }
}

/// Whether an instruction reads memory, or a register that one of the instructions before it loaded. What is read from the
/// stack is a value put there for want of registers, and near.
fn load_use(inside: &[&Decoded], index: usize) -> LoadUse {
    let from_memory = |one: &Decoded| one.loads && one.instruction.memory_base() != Register::RSP;
    let own = inside[index];
    if from_memory(own) {
        return LoadUse::Itself;
    }
    let mut factory = InstructionInfoFactory::new();
    let mut registers = |one: &Decoded, wanted: fn(OpAccess) -> bool| -> Vec<Register> {
        let used = factory.info(&one.instruction).used_registers();
        used.iter().filter(|used| wanted(used.access())).map(|used| used.register().full_register()).collect()
    };
    let reads =
        |access| matches!(access, OpAccess::Read | OpAccess::CondRead | OpAccess::ReadWrite | OpAccess::ReadCondWrite);
    let writes = |access| {
        matches!(access, OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite)
    };
    let mut wanted = registers(own, reads);
    for far in 1..inside.len().min(REACH + 1) {
        let before = inside[(index + inside.len() - far) % inside.len()];
        let written = registers(before, writes);
        if from_memory(before) && written.iter().any(|register| wanted.contains(register)) {
            return LoadUse::Before(far as u64);
        }
        // Written by something else since: the load before that is not what it waits for.
        wanted.retain(|register| !written.contains(register));
    }
    LoadUse::None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The instructions of a stretch of code at 0x1000.
    fn decoded(code: &[u8]) -> Vec<Decoded> {
        let mut factory = InstructionInfoFactory::new();
        Decoder::with_ip(64, code, 0x1000, DecoderOptions::NONE)
            .iter()
            .map(|instruction| {
                let (class, loads) = classify(&instruction, &mut factory);
                Decoded { at: instruction.ip(), instruction, class, loads, path: path(&instruction) }
            })
            .collect()
    }

    /// Bytes as `objdump -d` shows them.
    #[test]
    fn an_instruction_waits_for_the_load_whose_value_it_uses() {
        let code = [
            &[0xc5, 0xfc, 0x10, 0x00][..],   // vmovups ymm0, [rax]
            &[0x48, 0x83, 0xc0, 0x20],       // add rax, 32
            &[0xc4, 0xe2, 0x75, 0xb8, 0xd0], // vfmadd231ps ymm2, ymm1, ymm0
            &[0xc5, 0xec, 0x58, 0xdb],       // vaddps ymm3, ymm2, ymm3
            &[0xc4, 0xe2, 0x75, 0xb8, 0x10], // vfmadd231ps ymm2, ymm1, [rax]
            &[0xc5, 0xfc, 0x28, 0x24, 0x24], // vmovaps ymm4, [rsp]
        ]
        .concat();
        let all = decoded(&code);
        let inside: Vec<&Decoded> = all.iter().collect();
        assert_eq!(inside.len(), 6);
        assert_eq!(load_use(&inside, 0), LoadUse::Itself);
        assert_eq!(load_use(&inside, 2), LoadUse::Before(2));
        assert_eq!(load_use(&inside, 3), LoadUse::None, "its operand was computed since");
        assert_eq!(load_use(&inside, 4), LoadUse::Itself);
        assert_eq!(load_use(&inside, 5), LoadUse::None, "from the stack");
        let dearest = dear(&inside, 2, 7);
        assert_eq!((dearest.at.as_str(), dearest.mnemonic.as_str(), dearest.samples), ("1008", "vfmadd231ps", 7));
    }
}
