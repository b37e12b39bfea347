// The angle of a position and a frequency: the reference's, a float32 product (`ops/src/operators/rope_table.rs`). Cosine and sine are
// summed here in float64, since the library's keep a slow path in local memory. Not here: which positions (`rope_table.cu`, `next_step.cu`).

struct Angle { float cosine, sine; };

DEVICE Angle angle_of(u32 position, float frequency) {
    double angle = (double)((float)position * frequency);
    double quarter = rint(angle * 0.63661977236758134308);
    double r = fma(-quarter, 6.123233995736766036e-17, fma(-quarter, 1.57079632679489655800, angle)), r2 = r * r;
    double sine = r * fma(r2, fma(r2, fma(r2, fma(r2, fma(r2, fma(r2, 1.0 / 6227020800.0, -1.0 / 39916800.0), 1.0 / 362880.0),
                          -1.0 / 5040.0), 1.0 / 120.0), -1.0 / 6.0), 1.0);
    double cosine = fma(r2, fma(r2, fma(r2, fma(r2, fma(r2, fma(r2, 1.0 / 479001600.0, -1.0 / 3628800.0), 1.0 / 40320.0),
                        -1.0 / 720.0), 1.0 / 24.0), -1.0 / 2.0), 1.0);
    int turns = (int)quarter & 3;
    double c = turns & 1 ? sine : cosine, s = turns & 1 ? cosine : sine;
    return Angle{(float)(turns == 1 || turns == 2 ? -c : c), (float)(turns >= 2 ? -s : s)};
}
