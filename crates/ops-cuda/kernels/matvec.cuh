// What the matrix-vector files share: their arguments, and what a result goes through on its way out. Not here: products.

#define MOST_PARTS 3

struct MatvecPart {
    Weight w;
    const float* bias;    // (outputs), or none
    const u16* residual;  // (rows, outputs), or none
    u16* y;               // (rows, outputs)
};

struct MatvecArguments {
    const u16* x;       // (rows, cols)
    const float* norm;  // (cols): x is normalised first
    u32 rows, cols, parts;
    float epsilon;
    u32 split;     // plain weights: warps that share an output; codes copied ahead: teams of warps
    u32 together;  // weights copied ahead: row tiles, or outputs, of a block (gated: of each part)
    float per_col;  // 1 / cols
    u32 sharers;   // weights copied ahead: blocks of a cluster, which share the columns
    u32 first[4];  // the first cluster of each part; a gated product has both parts in every block
    MatvecPart part[MOST_PARTS];
    u64* best;     // a head that finds the largest of its outputs: the largest key so far, zero before
};

DEVICE u32 part_of(const MatvecArguments& p, u32 block) {
    u32 part = 0;
    if (p.parts > 1 && block >= p.first[1]) part = 1;
    if (p.parts > 2 && block >= p.first[2]) part = 2;
    return part;
}

DEVICE void put(const MatvecPart& part, u32 row, u32 output, float sum) {
    u64 at = (u64)row * part.w.rows + output;
    if (part.bias) sum += part.bias[output];
    if (part.residual) sum += widen(part.residual[at]);
    part.y[at] = narrow(sum);
}

#if __CUDA_ARCH__ >= 900

DEVICE u32 largest_of_warp(u32 x) {
    u32 all;
    asm volatile("redux.sync.max.u32 %0, %1, 0xffffffff;" : "=r"(all) : "r"(x));
    return all;
}

// By a whole warp: its largest output becomes `best` if that is less. `seen` is a value that `best` had: most blocks see that they need
// not say theirs. Keys order as in `argmax` (`place.cu`).
DEVICE void say_largest(u64* best, u64 seen, bool has, u16 bits, u32 col) {
    const u32 order = !has ? 0 : bits & 0x8000 ? (u16)~bits : bits | 0x8000u, largest = largest_of_warp(order);
    const u32 column = largest_of_warp(has && order == largest ? ~col : 0);
    const u64 key = (u64)largest << 32 | column;
    if (threadIdx.x % WARP == 0 && key > seen) atomicMax(best, key);
}

#endif

// Of values in shared memory.
DEVICE float sum_of_four(const float* at) {
    const Vec4 v = *(const Vec4*)at;
    return (__uint_as_float(v.x) + __uint_as_float(v.y)) + (__uint_as_float(v.z) + __uint_as_float(v.w));
}

DEVICE float gated(float gate, float up) { return __fdividef(gate, 1.0f + __expf(-gate)) * up; }

// Eight elements of x times eight of the norm; what they add to the sum of squares.
DEVICE float normed8(Vec4& x, const float* norm) {
    u32* words = &x.x;
    float square = 0.0f;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        float a = low(words[i]), b = high(words[i]);
        square += a * a + b * b;
        words[i] = narrow2(a * norm[2 * i], b * norm[2 * i + 1]);
    }
    return square;
}
