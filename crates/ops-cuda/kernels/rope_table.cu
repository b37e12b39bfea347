// rope_table: cosines, then sines, of position x frequency (`ops/src/operators/rope_table.rs`). The angle is the reference's: a
// float32 product. Cosine and sine are summed here in float64, since the library's keep a slow path in local memory.

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
    float position = (float)place_of(a.step, row).position;
    for (u32 pair = threadIdx.x; pair < a.pairs; pair += 128) {
        double angle = (double)(position * a.frequencies[pair]);
        double quarter = rint(angle * 0.63661977236758134308);
        double r = fma(-quarter, 6.123233995736766036e-17, fma(-quarter, 1.57079632679489655800, angle)), r2 = r * r;
        double sine = r * fma(r2, fma(r2, fma(r2, fma(r2, fma(r2, fma(r2, 1.0 / 6227020800.0, -1.0 / 39916800.0), 1.0 / 362880.0),
                              -1.0 / 5040.0), 1.0 / 120.0), -1.0 / 6.0), 1.0);
        double cosine = fma(r2, fma(r2, fma(r2, fma(r2, fma(r2, fma(r2, 1.0 / 479001600.0, -1.0 / 3628800.0), 1.0 / 40320.0),
                            -1.0 / 720.0), 1.0 / 24.0), -1.0 / 2.0), 1.0);
        int turns = (int)quarter & 3;
        double c = turns & 1 ? sine : cosine, s = turns & 1 ? cosine : sine;
        a.table[(u64)row * 2 * a.pairs + pair] = (float)(turns == 1 || turns == 2 ? -c : c);
        a.table[(u64)row * 2 * a.pairs + a.pairs + pair] = (float)(turns >= 2 ? -s : s);
    }
    wait_for_inputs();
}
