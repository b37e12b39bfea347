//! What the hot loop of a kernel is made of: instructions by class, counted in the code and weighted by samples.
//! Not here: decoding machine code, which is `probe`'s.

use crate::capture::reduced::kernels::KernelTree;
use crate::check::Check;
use crate::known::Known;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One hot loop per kernel that has samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InstructionTree {
    /// How far an address may be from what cost the time.
    pub skid: String,
    /// Most samples first.
    pub kernels: Vec<KernelInstructions>,
}

/// The hot loop of one kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KernelInstructions {
    pub operator: String,
    pub kernel: String,
    /// The fastest multiplying instruction in the sampled functions, as ceilings name it.
    pub multiplies_with: Known<String>,
    pub hot_loop: Known<HotLoop>,
}

/// The innermost range closed by a backward branch that holds most of the kernel's samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HotLoop {
    /// The function as the symbol table names it.
    pub function: String,
    /// Addresses in the executable file, hexadecimal; `end` is behind the last instruction.
    pub start: String,
    pub end: String,
    pub instructions: u64,
    /// Samples in the loop, and of the whole kernel.
    pub samples: u64,
    pub kernel_samples: u64,
    /// Most instructions first.
    pub classes: Vec<ClassRow>,
    /// The instruction with the most samples.
    #[serde(default = "not_looked_for")]
    pub dearest: Known<DearInstruction>,
}

fn not_looked_for() -> Known<DearInstruction> {
    Known::unavailable("the record was made without looking for it", "reduce the trace again with this build")
}

/// One instruction of the loop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DearInstruction {
    /// Its address in the executable file, hexadecimal.
    pub at: String,
    /// The assembler's name of it, e.g. `vpmovzxbd`.
    pub mnemonic: String,
    pub class: InstructionClass,
    pub samples: u64,
    /// The load that it needs the value of, if there is one: it waits while that is on its way.
    pub load: LoadUse,
}

/// Where the value comes from that an instruction uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LoadUse {
    /// It reads memory itself.
    Itself,
    /// A register that a load so many instructions before it wrote; the loop's end is followed by its beginning.
    Before(u64),
    /// No load is in reach.
    None,
}

/// Instructions of one class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClassRow {
    pub class: InstructionClass,
    /// In the code of the loop, each once.
    pub instructions: u64,
    /// Those of them that also read memory.
    pub with_load: u64,
    pub samples: u64,
}

/// What an instruction is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum InstructionClass {
    /// `tdp*`.
    Tile,
    /// `vpdpbusd`, `vdpbf16ps`, `vpmaddubsw`, ...
    DotProduct,
    /// Fused multiply-add.
    Fma,
    /// Vector multiplications, additions, subtractions, minima and maxima.
    MultiplyAdd,
    /// Conversions, permutations, unpacking, broadcasts between registers.
    ConvertShuffle,
    /// Vector shifts, masks, comparisons, blends.
    VectorLogic,
    Load,
    Store,
    /// Between registers.
    Move,
    Prefetch,
    Branch,
    /// On general registers.
    Integer,
    Other,
}

impl InstructionClass {
    pub const fn name(self) -> &'static str {
        match self {
            InstructionClass::Tile => "tile product",
            InstructionClass::DotProduct => "dot product",
            InstructionClass::Fma => "fused multiply-add",
            InstructionClass::MultiplyAdd => "multiply, add",
            InstructionClass::ConvertShuffle => "convert, shuffle",
            InstructionClass::VectorLogic => "vector shift, mask",
            InstructionClass::Load => "load",
            InstructionClass::Store => "store",
            InstructionClass::Move => "move",
            InstructionClass::Prefetch => "prefetch",
            InstructionClass::Branch => "branch",
            InstructionClass::Integer => "integer",
            InstructionClass::Other => "other",
        }
    }

    /// Whether it multiplies: what a kernel is for.
    pub const fn multiplies(self) -> bool {
        matches!(
            self,
            InstructionClass::Tile
                | InstructionClass::DotProduct
                | InstructionClass::Fma
                | InstructionClass::MultiplyAdd
        )
    }
}

impl InstructionTree {
    pub(crate) fn checks(&self, tree: &KernelTree, checks: &mut Vec<Check>) {
        for kernel in &self.kernels {
            let Known::Is(hot) = &kernel.hot_loop else { continue };
            let name = format!("{}: {}", kernel.operator, kernel.kernel);
            let row = tree.rows.iter().find(|row| row.operator == kernel.operator && row.kernel == kernel.kernel);
            let of_kernel = row.map_or(0, |row| row.cost.samples);
            let (instructions, samples) =
                hot.classes.iter().fold((0, 0), |sum, row| (sum.0 + row.instructions, sum.1 + row.samples));
            checks.extend([
                Check::counts(
                    format!("{name}: the hot loop's samples are of the kernel's"),
                    of_kernel,
                    hot.kernel_samples,
                ),
                Check::counts(format!("{name}: instruction classes are the loop"), hot.instructions, instructions),
                Check::counts(format!("{name}: samples by class are the loop's"), hot.samples, samples),
            ]);
        }
    }
}
