//! The kernels' sources, each with the prelude before it, and the names of the kernels in them.
//! Not here: compiling them (`compiler.rs`).

/// One CUDA C++ file.
pub struct Source {
    /// Its name, as the compiler's messages and the line tables have it.
    pub name: &'static str,
    body: &'static str,
}

const NOTHING: (&str, &str) = ("nothing shared", "");
const PRELUDE: &str = include_str!("../kernels/prelude.cuh");

macro_rules! sources {
    ($($file:literal),+ $(,)?) => {
        /// Every file.
        pub static ALL: &[Source] = &[$(Source { name: $file, body: include_str!(concat!("../kernels/", $file)) }),+];
    };
}

sources! {
    "place.cu",
    "ceilings.cu",
    "embed.cu",
    "rope_table.cu",
    "next_step.cu",
    "elementwise.cu",
    "norm.cu",
    "rope.cu",
    "cache.cu",
    "attention_readable.cu",
    "attention_decode.cu",
    "attention_decode_wide.cu",
    "attention_cluster.cu",
    "attention_tiled.cu",
    "linear_readable.cu",
    "linear_matvec.cu",
    "linear_plain.cu",
    "linear_ahead.cu",
    "linear_ahead_plain.cu",
    "linear_matmul.cu",
    "linear_tiles.cu",
}

impl Source {
    /// What is compiled: the prelude, what files of its kind share, and the file, whose lines keep their numbers.
    pub fn text(&self) -> String {
        let attention = ("attention.cuh", include_str!("../kernels/attention.cuh"));
        let matvec = ("matvec.cuh", include_str!("../kernels/matvec.cuh"));
        let (shared, more) = match self.name {
            "attention_decode.cu" | "attention_decode_wide.cu" => {
                (attention, ("attention_split.cuh", include_str!("../kernels/attention_split.cuh")))
            }
            name if name.starts_with("attention_") => (attention, NOTHING),
            "linear_ahead.cu" => (matvec, ("codes.cuh", include_str!("../kernels/codes.cuh"))),
            "linear_matvec.cu" | "linear_plain.cu" | "linear_ahead_plain.cu" => (matvec, NOTHING),
            "rope_table.cu" | "next_step.cu" => (("angle.cuh", include_str!("../kernels/angle.cuh")), NOTHING),
            _ => (NOTHING, NOTHING),
        };
        let parts = [("prelude.cuh", PRELUDE), shared, more, (self.name, self.body)];
        parts.iter().map(|(name, text)| format!("#line 1 \"{FOLDER}/{name}\"\n{text}\n")).collect()
    }
}

/// Where the files are, from the repository's root: the line tables name them so.
pub const FOLDER: &str = "crates/ops-cuda/kernels";

/// Every file's name and text, the shared ones among them: what a profiler shows beside its numbers.
pub fn files() -> impl Iterator<Item = (&'static str, &'static str)> {
    let shared = [
        ("prelude.cuh", PRELUDE),
        ("attention.cuh", include_str!("../kernels/attention.cuh")),
        ("attention_split.cuh", include_str!("../kernels/attention_split.cuh")),
        ("matvec.cuh", include_str!("../kernels/matvec.cuh")),
        ("codes.cuh", include_str!("../kernels/codes.cuh")),
        ("angle.cuh", include_str!("../kernels/angle.cuh")),
    ];
    shared.into_iter().chain(ALL.iter().map(|source| (source.name, source.body)))
}
