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
    u32 unused;
    u32 sharers;   // weights copied ahead: blocks of a cluster, which share the columns
    u32 first[4];  // the first cluster of each part; a gated product has both parts in every block
    MatvecPart part[MOST_PARTS];
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
