//! The hot loops of kernels hold the instructions that their names claim, in full vectors and without calls: read from this test's
//! own machine code, by symbol, with no tool beside it; and their sums stay in registers. Not here: what they compute, and how fast.

#![allow(clippy::unwrap_used, reason = "tests")]
#![cfg(target_arch = "x86_64")]

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};
use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};
use std::collections::BTreeMap;

/// What the loops of one module (as symbols spell its path) must be made of.
struct Claim {
    module: &'static str,
    multiplies: Mnemonic,
    /// Bytes of its vectors.
    width: usize,
    /// Fewest such instructions of the largest loop: one line of weights, or of keys, and what it is multiplied with.
    at_least: usize,
}

/// In names of functions whose loops may keep sums in memory: tiles of two matrices at once, beside the ladder, have more sums than
/// there are registers, and pairs of formats other than W4 with bfloat16 scales had (their largest loop has not).
const SPILLING: [&str; 2] = ["gated", "5pairs"];

const CLAIMS: [Claim; 9] = [
    // Four streams times two planes times two nibbles.
    Claim { module: "6linear7streams", multiplies: Mnemonic::Vpdpbusd, width: 64, at_least: 16 },
    // Two streams times two pairs: the codes' own, and two products of each of eight rows, or one where the row is paired.
    Claim { module: "6linear5pairs", multiplies: Mnemonic::Vpdpwssd, width: 64, at_least: 2 * 2 * (1 + 5 + 3 * 2) },
    Claim { module: "6linear5tiles", multiplies: Mnemonic::Vdpbf16ps, width: 64, at_least: 12 },
    Claim { module: "6linear7maddubs", multiplies: Mnemonic::Vpmaddubsw, width: 32, at_least: 8 },
    // Three rows times two planes times two nibbles.
    Claim { module: "6linear13maddubs_tiles", multiplies: Mnemonic::Vpmaddubsw, width: 32, at_least: 12 },
    // Six rows times two halves; twelve rows. `matmul`'s body is the same, and the compiler keeps one of them.
    Claim { module: "6linear5dense8run_avx2", multiplies: Mnemonic::Vfmadd231ps, width: 32, at_least: 11 },
    Claim { module: "6linear5dense11run_avx512f", multiplies: Mnemonic::Vfmadd231ps, width: 64, at_least: 11 },
    Claim { module: "9attention11bf16_decode", multiplies: Mnemonic::Vdpbf16ps, width: 64, at_least: 16 },
    Claim { module: "9attention10bf16_tiles", multiplies: Mnemonic::Vdpbf16ps, width: 64, at_least: 4 },
];

/// Instructions of every function of this executable whose name contains `module`.
fn functions(module: &str) -> Vec<(String, Vec<Instruction>)> {
    let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let named: BTreeMap<u64, (u64, String)> = file
        .symbols()
        .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() > 0)
        .filter_map(|symbol| Some((symbol.address(), (symbol.size(), symbol.name().ok()?.to_owned()))))
        .filter(|(_, (_, name))| name.contains(module))
        .collect();
    let code = |start: u64, bytes: u64| {
        let section = file.sections().find(|one| (one.address()..one.address() + one.size()).contains(&start))?;
        section.data_range(start, bytes).ok()?.map(<[u8]>::to_vec)
    };
    named
        .into_iter()
        .map(|(start, (size, name))| {
            let code = code(start, size).unwrap();
            (name, Decoder::with_ip(64, &code, start, DecoderOptions::NONE).iter().collect())
        })
        .collect()
}

/// The bodies of the function's innermost loops.
fn inner_loops(instructions: &[Instruction]) -> Vec<&[Instruction]> {
    let ranges: Vec<(u64, u64)> = instructions
        .iter()
        .filter(|one| matches!(one.flow_control(), FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch))
        .filter(|one| one.near_branch_target() <= one.ip() && one.near_branch_target() >= instructions[0].ip())
        .map(|one| (one.near_branch_target(), one.next_ip()))
        .collect();
    let inside = |inner: &(u64, u64), outer: &(u64, u64)| inner != outer && inner.0 >= outer.0 && inner.1 <= outer.1;
    let innermost = ranges.iter().filter(|outer| !ranges.iter().any(|inner| inside(inner, outer)));
    innermost
        .map(|(start, end)| {
            let at = |address: u64| instructions.partition_point(|one| one.ip() < address);
            &instructions[at(*start)..at(*end)]
        })
        .collect()
}

fn vector_bytes(instruction: &Instruction) -> usize {
    instruction.op0_register().size()
}

/// Whether it stores a whole vector on the stack: sums that should stay in registers.
fn spills(instruction: &Instruction) -> bool {
    instruction.op0_kind() == OpKind::Memory
        && matches!(instruction.memory_base(), Register::RSP | Register::RBP)
        && instruction.op1_register().is_vector_register()
}

#[test]
fn hot_loops_hold_what_their_kernels_claim() {
    // Every kernel is reachable from here, so none was left out of the executable.
    let operators = std::hint::black_box(ops::Registry::standard()).operators();
    assert!(operators.iter().map(|operator| operator.kernels().len()).sum::<usize>() > 50);
    for Claim { module, multiplies, width, at_least } in CLAIMS {
        let functions = functions(module);
        assert!(!functions.is_empty(), "no function of {module} in the symbol table");
        let (mut most, mut of_largest) = (0, (0, 0));
        for (name, instructions) in &functions {
            for body in inner_loops(instructions) {
                let products: Vec<&Instruction> = body.iter().filter(|one| one.mnemonic() == multiplies).collect();
                if products.is_empty() {
                    continue;
                }
                most = most.max(products.len());
                let narrow = products.iter().find(|one| vector_bytes(one) != width);
                assert!(narrow.is_none(), "{name}: {multiplies:?} of another width than {width} bytes");
                let calls =
                    |one: &&Instruction| matches!(one.flow_control(), FlowControl::Call | FlowControl::IndirectCall);
                let call = body.iter().find(calls);
                assert!(call.is_none(), "{name}: its loop of {} {multiplies:?} calls a function", products.len());
                let spills = body.iter().filter(|one| spills(one)).count();
                if !name.contains("gated") {
                    of_largest = of_largest.max((products.len(), spills));
                }
                assert!(
                    spills * 4 <= products.len() || SPILLING.iter().any(|function| name.contains(function)),
                    "{name}: its loop of {} {multiplies:?} stores {spills} vectors on the stack",
                    products.len()
                );
            }
        }
        let (products, spills) = of_largest;
        assert!(spills * 4 <= products, "{module}: its largest loop stores {spills} vectors on the stack");
        assert!(most >= at_least, "{module}: its largest loop has {most} {multiplies:?}, expected at least {at_least}");
    }
}

/// A ceiling whose loop stores its sums is that of the stores.
#[test]
fn loops_of_the_ceilings_store_nothing() {
    assert!(std::hint::black_box(ops::ceilings::peaks()).count() > 10);
    for (module, multiplies, width, products) in [
        ("9fp32_avx2", Mnemonic::Vfmadd231ps, 32, [12, 8]),
        ("11fp32_avx512", Mnemonic::Vfmadd231ps, 64, [16, 24]),
        ("8vpdpbusd", Mnemonic::Vpdpbusd, 64, [16, 24]),
        ("9vdpbf16ps", Mnemonic::Vdpbf16ps, 64, [16, 24]),
    ] {
        for (name, least) in ["9registers", "5loads"].into_iter().zip(products) {
            let functions = functions(&format!("8ceilings7vectors{module}{name}"));
            let loops = functions.iter().flat_map(|(_, instructions)| inner_loops(instructions));
            let loops: Vec<&[Instruction]> = loops
                .filter(|body| body.iter().any(|one| one.mnemonic() == multiplies && vector_bytes(one) == width))
                .collect();
            assert!(!loops.is_empty(), "{module}, {name}: no loop of {multiplies:?}");
            for body in loops {
                let found = body.iter().filter(|one| one.mnemonic() == multiplies).count();
                assert!(found >= least, "{module}, {name}: {found} {multiplies:?}, expected {least}");
                let stores =
                    |one: &&Instruction| one.op0_kind() == OpKind::Memory && one.op1_register().is_vector_register();
                assert_eq!(body.iter().filter(stores).count(), 0, "{module}, {name} stores vectors");
            }
        }
    }
}
