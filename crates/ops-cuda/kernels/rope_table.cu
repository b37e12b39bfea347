// rope_table: cosines, then sines, of position x frequency (`ops/src/operators/rope_table.rs`). Not here: the angles themselves
// (`angle.cuh`).

struct RopeTableArguments {
    const StepState* step;
    const float* frequencies;  // (pairs)
    float* table;              // (rows, 2 pairs)
    u32 pairs, unused;
};

extern "C" __global__ void __launch_bounds__(128) rope_table_rows(RopeTableArguments a) {
    next_may_start();
    // The step is there before this kernel may start, and nothing else is read: it runs beside the kernel before it, and ends after it.
    u32 row = blockIdx.x;
    u32 position = place_of(a.step, row).position;
    for (u32 pair = threadIdx.x; pair < a.pairs; pair += 128) {
        const Angle angle = angle_of(position, a.frequencies[pair]);
        a.table[(u64)row * 2 * a.pairs + pair] = angle.cosine;
        a.table[(u64)row * 2 * a.pairs + a.pairs + pair] = angle.sine;
    }
    wait_for_inputs();
}
