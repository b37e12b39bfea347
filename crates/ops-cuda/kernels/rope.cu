// rotate_half, rope_combine, rope and norm_rope_append (`ops/src/operators/` of these names).

struct RopeArguments {
    const u16* x;
    const u16* rotated;  // rope_combine alone
    const float* table;  // (rows, dim): cosines of the pairs, then sines
    u16* y;
    u32 rows, width, dim, interleaved;
};

struct Pair { u32 a, b; };

// Columns of a pair within its head.
DEVICE Pair pair_columns(u32 pair, u32 dim, u32 interleaved) {
    return interleaved ? Pair{2 * pair, 2 * pair + 1} : Pair{pair, pair + dim / 2};
}

// One thread per pair: its row, the place of its head, and its number in the head.
#define EACH_PAIR                                                                       \
    next_may_start();                                                                   \
    wait_for_inputs();                                                                  \
    u64 index = (u64)blockIdx.x * 256 + threadIdx.x;                                    \
    u32 half = p.dim / 2;                                                               \
    if (index >= (u64)p.rows * (p.width / 2)) return;                                   \
    u32 row = index / (p.width / 2), in_row = index % (p.width / 2), pair = in_row % half; \
    u64 head = (u64)row * p.width + in_row / half * p.dim;                              \
    Pair at = pair_columns(pair, p.dim, p.interleaved);

extern "C" __global__ void __launch_bounds__(256) rotate_half_pairs(RopeArguments p) {
    EACH_PAIR
    p.y[head + at.a] = p.x[head + at.b] ^ 0x8000;
    p.y[head + at.b] = p.x[head + at.a];
}

extern "C" __global__ void __launch_bounds__(256) rope_combine_pairs(RopeArguments p) {
    EACH_PAIR
    float c = p.table[(u64)row * p.dim + pair], s = p.table[(u64)row * p.dim + half + pair];
    p.y[head + at.a] = narrow(widen(p.x[head + at.a]) * c + widen(p.rotated[head + at.a]) * s);
    p.y[head + at.b] = narrow(widen(p.x[head + at.b]) * c + widen(p.rotated[head + at.b]) * s);
}

extern "C" __global__ void __launch_bounds__(256) rope_pairs(RopeArguments p) {
    EACH_PAIR
    float c = p.table[(u64)row * p.dim + pair], s = p.table[(u64)row * p.dim + half + pair];
    float a = widen(p.x[head + at.a]), b = widen(p.x[head + at.b]);
    p.y[head + at.a] = narrow(a * c - b * s);
    p.y[head + at.b] = narrow(b * c + a * s);
}

struct NormRopeAppendArguments {
    const StepState* step;
    const u16* q;
    const u16* k;
    const u16* v;
    const float* table;
    const float* q_norm;  // (dim), or none
    const float* k_norm;
    u16* y;
    u32 heads, kv_heads, dim, interleaved;
    float epsilon;
    u32 layer;
};

// One warp per head of queries, keys or values of a row; dim is at most 256.
extern "C" __global__ void __launch_bounds__(128) norm_rope_append_heads(NormRopeAppendArguments p) {
    next_may_start();
    wait_for_inputs();
    u32 per_row = p.heads + 2 * p.kv_heads, index = blockIdx.x * 4 + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (index >= p.step->rows * per_row) return;
    u32 row = index / per_row, head = index % per_row, half = p.dim / 2;
    RowPlace place = place_of(p.step, row);
    const LayerState& layer = p.step->layer[place.sequence * p.step->layers + p.layer];
    u32 capacity = p.step->sequence[place.sequence].capacity;
    if (head >= p.heads + p.kv_heads) {
        head -= p.heads + p.kv_heads;
        const u16* from = p.v + ((u64)row * p.kv_heads + head) * p.dim;
        u16* to = layer.values + ((u64)head * capacity + place.position) * p.dim;
        for (u32 d = lane; d < p.dim; d += WARP) to[d] = from[d];
        return;
    }
    bool query = head < p.heads;
    const float* norm = query ? p.q_norm : p.k_norm;
    const u16* from = query ? p.q + ((u64)row * p.heads + head) * p.dim : p.k + ((u64)row * p.kv_heads + head - p.heads) * p.dim;
    u16* to = query ? p.y + ((u64)row * p.heads + head) * p.dim
                    : layer.keys + ((u64)(head - p.heads) * capacity + place.position) * p.dim;
    float a[4], b[4], square = 0.0f;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        u32 pair = lane + WARP * i;
        a[i] = b[i] = 0.0f;
        if (pair < half) {
            Pair at = pair_columns(pair, p.dim, p.interleaved);
            a[i] = widen(from[at.a]);
            b[i] = widen(from[at.b]);
            square += a[i] * a[i] + b[i] * b[i];
        }
    }
    float scale = norm ? rsqrtf(warp_sum(square) / p.dim + p.epsilon) : 1.0f;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        u32 pair = lane + WARP * i;
        if (pair < half) {
            Pair at = pair_columns(pair, p.dim, p.interleaved);
            float x = norm ? a[i] * scale * norm[at.a] : a[i], z = norm ? b[i] * scale * norm[at.b] : b[i];
            float c = p.table[(u64)row * p.dim + pair], s = p.table[(u64)row * p.dim + half + pair];
            to[at.a] = narrow(x * c - z * s);
            to[at.b] = narrow(z * c + x * s);
        }
    }
}
