//! How workers walk a program beyond its calls: what they do while they wait, and whether every worker's share is fixed.
//! Not here: the walk (`walk.rs`), and the shares themselves (`invocation.rs`).

/// A checkpoint's choice. Neither changes a result: one asks for memory early, the other decides who computes what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pace {
    /// A worker that waits at a barrier asks for the first weights of its share of the next call that names some
    /// ([`crate::Kernel::ahead`]).
    pub fetch_ahead: bool,
    /// Where a barrier follows a call, a quarter of its items belongs to no worker beforehand: whoever is done with its share
    /// takes from them ([`crate::Invocation::portions`]).
    pub guided: bool,
}

impl Pace {
    /// Waiting workers wait, and shares are fixed.
    pub const PLAIN: Pace = Pace { fetch_ahead: false, guided: false };
}

impl std::fmt::Display for Pace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match (self.fetch_ahead, self.guided) {
            (false, false) => "plain",
            (true, false) => "weights asked for while waiting",
            (false, true) => "guided shares",
            (true, true) => "weights asked for while waiting, guided shares",
        })
    }
}
