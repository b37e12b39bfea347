//! What a machine instruction is for.
//! Not here: where instructions are (`hot_loop.rs`).

use iced_x86::{FlowControl, Instruction, InstructionInfoFactory, OpAccess, Register};
use record::InstructionPath;
use record::capture::reduced::instructions::InstructionClass;

/// An instruction's class, and whether it also reads memory.
pub(super) fn classify(instruction: &Instruction, factory: &mut InstructionInfoFactory) -> (InstructionClass, bool) {
    let info = factory.info(instruction);
    let reads = info.used_memory().iter().any(|used| {
        matches!(used.access(), OpAccess::Read | OpAccess::CondRead | OpAccess::ReadWrite | OpAccess::ReadCondWrite)
    });
    let writes = info.used_memory().iter().any(|used| {
        matches!(used.access(), OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite)
    });
    let name = format!("{:?}", instruction.mnemonic()).to_lowercase();
    if name.starts_with("prefetch") {
        return (InstructionClass::Prefetch, false);
    }
    if instruction.flow_control() != FlowControl::Next {
        return (InstructionClass::Branch, reads);
    }
    let vector = instruction.op_kinds().enumerate().any(|(operand, _)| {
        let register = instruction.op_register(operand as u32);
        register.is_vector_register() || register.is_k() || register.is_tmm()
    });
    let class = if vector { vector_class(&name, reads, writes) } else { plain_class(&name, reads, writes) };
    (class, reads)
}

fn vector_class(name: &str, reads: bool, writes: bool) -> InstructionClass {
    let starts = |names: &[&str]| names.iter().any(|start| name.starts_with(start));
    if starts(&["tdp"]) {
        return InstructionClass::Tile;
    }
    if starts(&["vpdp", "vdpbf16", "vpmadd", "pmadd", "vdpph", "dpp", "vdpp"]) {
        return InstructionClass::DotProduct;
    }
    if starts(&["vfmadd", "vfmsub", "vfnm", "vfmadd"]) {
        return InstructionClass::Fma;
    }
    // Widening loads convert; what they are for is the conversion.
    if starts(&["vcvt", "cvt", "vpmovzx", "vpmovsx", "pmovzx", "pmovsx"]) {
        return InstructionClass::ConvertShuffle;
    }
    if starts(&["tileload"]) {
        return InstructionClass::Load;
    }
    if starts(&["tilestore"]) || writes {
        return InstructionClass::Store;
    }
    // A broadcast from memory is a load.
    if reads && starts(&["vmov", "mov", "vbroadcast", "vpbroadcast", "lddqu", "vlddqu", "kmov", "vpgather", "vgather"])
    {
        return InstructionClass::Load;
    }
    if starts(&[
        "vbroadcast",
        "vpbroadcast",
        "vperm",
        "vpshuf",
        "pshuf",
        "vshuf",
        "shuf",
        "vpunpck",
        "punpck",
        "vunpck",
        "unpck",
        "vinsert",
        "vpinsert",
        "pinsr",
        "vpinsr",
        "vextract",
        "vpextr",
        "pextr",
        "vpack",
        "pack",
        "vpalignr",
        "palignr",
        "valign",
        "vpmov",
        "vpexpand",
        "vpcompress",
        "vexpand",
        "vcompress",
        "vmovsldup",
        "vmovshdup",
        "vmovddup",
        "vmovhl",
        "vmovlh",
        "movhl",
        "movlh",
    ]) {
        return InstructionClass::ConvertShuffle;
    }
    if starts(&[
        "vmul",
        "mulp",
        "muls",
        "vadd",
        "addp",
        "adds",
        "vsub",
        "subp",
        "subs",
        "vpmul",
        "pmul",
        "vpadd",
        "padd",
        "vpsub",
        "psub",
        "vdiv",
        "divp",
        "divs",
        "vmax",
        "vmin",
        "maxp",
        "maxs",
        "minp",
        "mins",
        "vpmax",
        "vpmin",
        "pmax",
        "pmin",
        "vhadd",
        "vphadd",
        "haddp",
        "vpsad",
        "vsqrt",
        "sqrt",
        "vrsqrt",
        "vrcp",
        "vscalef",
        "vpabs",
        "vpsign",
        "vrndscale",
        "vround",
        "round",
        "vreduce",
        "vgetexp",
        "vgetmant",
    ]) {
        return InstructionClass::MultiplyAdd;
    }
    if starts(&["vmov", "mov", "kmov", "tilezero", "vzero"]) {
        return InstructionClass::Move;
    }
    InstructionClass::VectorLogic
}

fn plain_class(name: &str, reads: bool, writes: bool) -> InstructionClass {
    let moves = name.starts_with("mov") || name == "pop" || name == "push";
    match (moves, reads, writes) {
        (true, _, true) => InstructionClass::Store,
        (true, true, false) => InstructionClass::Load,
        (true, false, false) => InstructionClass::Move,
        _ if matches!(name, "nop" | "endbr64" | "pause" | "ud2" | "int3" | "vzeroupper" | "vzeroall") => {
            InstructionClass::Other
        }
        _ => InstructionClass::Integer,
    }
}

/// The ceiling that a multiplying instruction is held against, if it has one.
pub(super) fn path(instruction: &Instruction) -> Option<InstructionPath> {
    let name = format!("{:?}", instruction.mnemonic()).to_lowercase();
    let widest =
        |test: fn(Register) -> bool| (0..instruction.op_count()).any(|operand| test(instruction.op_register(operand)));
    match name.as_str() {
        "tdpbssd" | "tdpbsud" | "tdpbusd" | "tdpbuud" => Some(InstructionPath::AmxInt8),
        "tdpbf16ps" => Some(InstructionPath::AmxBf16),
        "vpdpbusd" | "vpdpbusds" => Some(InstructionPath::Vpdpbusd),
        "vdpbf16ps" => Some(InstructionPath::Vdpbf16ps),
        _ if name.starts_with("vfm") || name.starts_with("vfnm") => {
            let packed = name.ends_with("ps");
            match (packed, widest(Register::is_zmm), widest(Register::is_ymm)) {
                (true, true, _) => Some(InstructionPath::Fp32Avx512),
                (true, false, true) => Some(InstructionPath::Fp32Avx2),
                _ => None,
            }
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use iced_x86::{Decoder, DecoderOptions};

    #[test]
    fn instructions_are_told_apart_by_what_they_are_for() {
        use InstructionClass as Class;
        // Bytes as `objdump -d` shows them.
        let cases: [(&[u8], Class, bool, Option<InstructionPath>); 14] = [
            // vpdpbusd zmm0, zmm1, zmm2
            (&[0x62, 0xf2, 0x75, 0x48, 0x50, 0xc2], Class::DotProduct, false, Some(InstructionPath::Vpdpbusd)),
            // vpdpbusd zmm0, zmm1, [rax]
            (&[0x62, 0xf2, 0x75, 0x48, 0x50, 0x00], Class::DotProduct, true, Some(InstructionPath::Vpdpbusd)),
            // vfmadd231ps ymm0, ymm1, ymm2
            (&[0xc4, 0xe2, 0x75, 0xb8, 0xc2], Class::Fma, false, Some(InstructionPath::Fp32Avx2)),
            // vmovups zmm0, [rax]
            (&[0x62, 0xf1, 0x7c, 0x48, 0x10, 0x00], Class::Load, true, None),
            // vmovups [rax], zmm0
            (&[0x62, 0xf1, 0x7c, 0x48, 0x11, 0x00], Class::Store, false, None),
            // vmulps ymm0, ymm1, ymm2
            (&[0xc5, 0xf4, 0x59, 0xc2], Class::MultiplyAdd, false, None),
            // vpmovzxbd ymm0, [rax]
            (&[0xc4, 0xe2, 0x7d, 0x31, 0x00], Class::ConvertShuffle, true, None),
            // vpand ymm0, ymm1, ymm2
            (&[0xc5, 0xf5, 0xdb, 0xc2], Class::VectorLogic, false, None),
            // add rax, 64
            (&[0x48, 0x83, 0xc0, 0x40], Class::Integer, false, None),
            // jne -2
            (&[0x75, 0xfe], Class::Branch, false, None),
            // mov rax, [rcx]
            (&[0x48, 0x8b, 0x01], Class::Load, true, None),
            // mov [rcx], rax
            (&[0x48, 0x89, 0x01], Class::Store, false, None),
            // prefetcht0 [rax]
            (&[0x0f, 0x18, 0x08], Class::Prefetch, false, None),
            // tdpbssd tmm0, tmm1, tmm2
            (&[0xc4, 0xe2, 0x6b, 0x5e, 0xc1], Class::Tile, false, Some(InstructionPath::AmxInt8)),
        ];
        let mut factory = InstructionInfoFactory::new();
        for (bytes, class, load, ceiling) in cases {
            let instruction = Decoder::with_ip(64, bytes, 0x1000, DecoderOptions::NONE).decode();
            assert_eq!(classify(&instruction, &mut factory), (class, load), "{instruction:?}");
            assert_eq!(path(&instruction), ceiling, "{instruction:?}");
        }
    }
}
