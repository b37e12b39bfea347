//! Meeting at a barrier with nothing to do between, for measuring what the meeting costs.
//! Not here: the barrier (`workers.rs`), and which calls need one (`bind.rs`).

use crate::Workers;

/// Every worker meets the others `times` times.
pub fn barriers(workers: &Workers, times: u64) {
    workers.run(&|_| {
        for _ in 0..times {
            workers.barrier();
        }
    });
}
