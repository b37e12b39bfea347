//! Loops over sums in registers that are unrolled whatever the compiler thinks of their size.
//! Not here: loops over anything else, which the compiler may decide about.

/// The body for each number below `$count` (at most twelve) as a constant: sums that a loop which is not unrolled indexes are kept
/// in memory, and stored there by every product.
macro_rules! unrolled {
    ($n:ident in 0..$count:ident => $body:block) => { unrolled!(@ $n $count $body 0 1 2 3 4 5 6 7 8 9 10 11) };
    (@ $n:ident $count:ident $body:block $($value:literal)+) => { $(
        if $value < $count {
            const $n: usize = $value;
            $body
        }
    )+ };
}
pub(super) use unrolled;
