// attention of few rows, head size 64 or 128: the positions of a key/value head are split among blocks, each of which reads its keys
// and values once for all query heads that share them; the block that arrives last merges (`ops/src/operators/attention`). Not here: the
// kernels by head size and by query heads per key/value head (`attention_decode.cu`, `attention_decode_wide.cu`).

// One head, normalised if there is a norm, and turned; by one warp. `to` gets the result rounded to bfloat16.
template <int DIM> DEVICE void place_head(const AttentionArguments& p, const u16* from, const float* norm, u16* to) {
    constexpr u32 HALF = DIM / 2, PAIRS = HALF / WARP;
    const u32 lane = threadIdx.x % WARP;
    float a[PAIRS], b[PAIRS], square = 0.0f;
#pragma unroll
    for (u32 i = 0; i < PAIRS; ++i) {
        u32 pair = lane + WARP * i, first = p.interleaved ? 2 * pair : pair, second = p.interleaved ? first + 1 : pair + HALF;
        a[i] = widen(from[first]);
        b[i] = widen(from[second]);
        square += a[i] * a[i] + b[i] * b[i];
        if (norm) {
            a[i] *= norm[first];
            b[i] *= norm[second];
        }
    }
    float scale = norm ? rsqrtf(warp_sum(square) / DIM + p.epsilon) : 1.0f;
#pragma unroll
    for (u32 i = 0; i < PAIRS; ++i) {
        u32 pair = lane + WARP * i, first = p.interleaved ? 2 * pair : pair, second = p.interleaved ? first + 1 : pair + HALF;
        float c = p.table[pair], s = p.table[HALF + pair], x = a[i] * scale, z = b[i] * scale;
        to[first] = narrow(x * c - z * s);
        to[second] = narrow(z * c + x * s);
    }
}

// 16 lanes share a position, so that a warp has two at once; 8 or 4 elements of the head per lane. PLACED: a single row, whose queries,
// key and value are raw; the block whose positions end with the new one appends it.
template <int DIM, int GROUP, bool PLACED> DEVICE void split(const AttentionArguments& p) {
    constexpr int EACH = DIM / 16, WARPS = 8;
    __shared__ float most_of[WARPS][GROUP], sum_of[WARPS][GROUP];
    __shared__ float mixed_of[WARPS][GROUP][DIM];
    __shared__ __align__(16) u16 placed_q[PLACED ? GROUP : 1][PLACED ? DIM : 8], new_k[PLACED ? DIM : 8], new_v[PLACED ? DIM : 8];
    __shared__ u32 last;
    next_may_start();
    const u32 head = blockIdx.x, part = blockIdx.y, row = blockIdx.z, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const u32 side = lane / 16, d = lane % 16 * EACH;
    // The step is there before this kernel may start, and so are the positions of earlier steps. What a step of one row says lies at
    // fixed places, so that no address is waited for.
    const SequenceState* only = (const SequenceState*)((const u8*)p.step + ONE_ROW_SEQUENCE);
    const LayerState* only_layer = (const LayerState*)((const u8*)p.step + ONE_ROW_LAYERS) + p.layer;
    RowPlace place = PLACED ? RowPlace{0, only->offset} : place_of(p.step, row);
    const u32 visible = place.position + 1;
    // Splits as long as each other, of at least 64 positions: those beyond the end have nothing to do.
    const u32 length = max((visible + p.splits - 1) / p.splits, 64u), splits = (visible + length - 1) / length;
    if (part >= splits) {
        wait_for_inputs();
        return;
    }
    const u32 begin = part * length, end = min(begin + length, visible);
    KeyPlace keys, values;
    if (PLACED) {
        const u64 at = (u64)head * only->capacity * DIM;
        keys = KeyPlace{only_layer->keys + at, DIM};
        values = KeyPlace{only_layer->values + at, DIM};
    } else {
        keys = keys_of(p, place.sequence, head, false);
        values = keys_of(p, place.sequence, head, true);
    }
    // Four positions of a lane's side at a time, two where many heads want the registers: their loads are in flight together.
    constexpr int AT_ONCE = GROUP > 4 ? 2 : 4;
    u32 k[AT_ONCE][EACH / 2], v[AT_ONCE][EACH / 2];
    auto fetch = [&](u32 first) {
#pragma unroll
        for (int n = 0; n < AT_ONCE; ++n) {
            u32 at = min(first + n * 2 + side, end - 1);
            load_words(k[n], keys.start + at * keys.stride + d);
            load_words(v[n], values.start + at * values.stride + d);
        }
    };
    if (PLACED) fetch(begin + warp * 2 * AT_ONCE);
    wait_for_inputs();
    if (PLACED) {
        if (warp < GROUP) place_head<DIM>(p, p.q + (u64)(head * GROUP + warp) * DIM, p.q_norm, placed_q[warp]);
        if (end == visible) {
            u16 *key = (u16*)keys.start + (u64)(visible - 1) * DIM, *value = (u16*)values.start + (u64)(visible - 1) * DIM;
            if (warp == 6) {
                place_head<DIM>(p, p.k + (u64)head * DIM, p.k_norm, new_k);
                __syncwarp();
                for (u32 at = lane; at < DIM; at += WARP) key[at] = new_k[at];
            }
            if (warp == 7) {
                for (u32 at = lane; at < DIM; at += WARP) value[at] = new_v[at] = p.v[(u64)head * DIM + at];
            }
        }
        __syncthreads();
    }
    float q[GROUP][EACH], mixed[GROUP][EACH], most[GROUP], sum[GROUP];
#pragma unroll
    for (int g = 0; g < GROUP; ++g) {
        u32 pairs[EACH / 2];
        if (PLACED) {
#pragma unroll
            for (int i = 0; i < EACH / 2; ++i) pairs[i] = *(const u32*)&placed_q[g][d + 2 * i];
        } else {
            load_words(pairs, p.q + ((u64)row * p.heads + head * GROUP + g) * DIM + d);
        }
#pragma unroll
        for (int i = 0; i < EACH / 2; ++i) {
            q[g][2 * i] = low(pairs[i]) * p.scale;
            q[g][2 * i + 1] = high(pairs[i]) * p.scale;
        }
#pragma unroll
        for (int i = 0; i < EACH; ++i) mixed[g][i] = 0.0f;
        most[g] = -1e30f;
        sum[g] = 0.0f;
    }
    for (u32 first = begin + warp * 2 * AT_ONCE; first < end; first += WARPS * 2 * AT_ONCE) {
        if (!PLACED || first != begin + warp * 2 * AT_ONCE) fetch(first);
        if (PLACED) {
#pragma unroll
            for (int n = 0; n < AT_ONCE; ++n) {
                if (min(first + n * 2 + side, end - 1) == visible - 1) {
#pragma unroll
                    for (int i = 0; i < EACH / 2; ++i) {
                        k[n][i] = *(const u32*)&new_k[d + 2 * i];
                        v[n][i] = *(const u32*)&new_v[d + 2 * i];
                    }
                }
            }
        }
#pragma unroll
        for (int g = 0; g < GROUP; ++g) {
            float dot[AT_ONCE], larger = most[g];
#pragma unroll
            for (int n = 0; n < AT_ONCE; ++n) {
                dot[n] = 0.0f;
#pragma unroll
                for (int i = 0; i < EACH / 2; ++i) {
                    dot[n] = fmaf(q[g][2 * i], low(k[n][i]), dot[n]);
                    dot[n] = fmaf(q[g][2 * i + 1], high(k[n][i]), dot[n]);
                }
#pragma unroll
                for (u32 step = 8; step > 0; step >>= 1) dot[n] += __shfl_xor_sync(ALL, dot[n], step);
                if (first + n * 2 + side >= end) dot[n] = -1e30f;
                larger = fmaxf(larger, dot[n]);
            }
            float shrink = __expf(most[g] - larger);
            most[g] = larger;
            sum[g] *= shrink;
#pragma unroll
            for (int i = 0; i < EACH; ++i) mixed[g][i] *= shrink;
#pragma unroll
            for (int n = 0; n < AT_ONCE; ++n) {
                float weight = first + n * 2 + side < end ? __expf(dot[n] - larger) : 0.0f;
                sum[g] += weight;
#pragma unroll
                for (int i = 0; i < EACH / 2; ++i) {
                    mixed[g][2 * i] = fmaf(weight, low(v[n][i]), mixed[g][2 * i]);
                    mixed[g][2 * i + 1] = fmaf(weight, high(v[n][i]), mixed[g][2 * i + 1]);
                }
            }
        }
    }
    // The two sides of a warp, then its warps, then the splits.
#pragma unroll
    for (int g = 0; g < GROUP; ++g) {
        float other = __shfl_xor_sync(ALL, most[g], 16), larger = fmaxf(most[g], other), shrink = __expf(most[g] - larger);
        sum[g] *= shrink;
        sum[g] += __shfl_xor_sync(ALL, sum[g], 16);
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            mixed[g][i] *= shrink;
            mixed[g][i] += __shfl_xor_sync(ALL, mixed[g][i], 16);
            if (side == 0) mixed_of[warp][g][d + i] = mixed[g][i];
        }
        if (lane == 0) {
            most_of[warp][g] = larger;
            sum_of[warp][g] = sum[g];
        }
    }
    __syncthreads();
    // (row, head, split, group): DIM numbers, the largest score, the sum.
    float* mine = p.partial + (((u64)row * p.kv_heads + head) * p.splits + part) * GROUP * (DIM + 2);
    for (u32 at = threadIdx.x; at < GROUP * DIM; at += 256) {
        u32 g = at / DIM, e = at % DIM;
        float larger = most_of[0][g], total = 0.0f, value = 0.0f;
#pragma unroll
        for (int w = 1; w < WARPS; ++w) larger = fmaxf(larger, most_of[w][g]);
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            float shrink = __expf(most_of[w][g] - larger);
            total += sum_of[w][g] * shrink;
            value += mixed_of[w][g][e] * shrink;
        }
        if (splits == 1) {
            ((u16*)p.y)[((u64)row * p.heads + head * GROUP + g) * DIM + e] = narrow(value / total);
        } else {
            mine[g * (DIM + 2) + e] = value;
            if (e == 0) {
                mine[g * (DIM + 2) + DIM] = larger;
                mine[g * (DIM + 2) + DIM + 1] = total;
            }
        }
    }
    if (splits == 1) return;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        u32* arrived = p.arrived + row * p.kv_heads + head;
        last = atomicAdd(arrived, 1) + 1 == splits;
        if (last) *arrived = 0;
        __threadfence();
    }
    __syncthreads();
    if (!last) return;
    const float* all = p.partial + ((u64)row * p.kv_heads + head) * p.splits * GROUP * (DIM + 2);
    for (u32 at = threadIdx.x; at < GROUP * DIM; at += 256) {
        u32 g = at / DIM, e = at % DIM;
        float larger = -1e30f, total = 0.0f, value = 0.0f;
        // Eight splits at a time, whose loads are in flight together.
        for (u32 first = 0; first < splits; first += 8) {
            float most_here[8], sum_here[8], value_here[8], larger_here = larger;
#pragma unroll
            for (u32 s = 0; s < 8; ++s) {
                const float* from = all + (min(first + s, splits - 1) * GROUP + g) * (DIM + 2);
                most_here[s] = load_shared_by_blocks(from + DIM);
                sum_here[s] = load_shared_by_blocks(from + DIM + 1);
                value_here[s] = load_shared_by_blocks(from + e);
            }
#pragma unroll
            for (u32 s = 0; s < 8; ++s) larger_here = fmaxf(larger_here, most_here[s]);
            float shrink = __expf(larger - larger_here);
            larger = larger_here;
            total *= shrink;
            value *= shrink;
#pragma unroll
            for (u32 s = 0; s < 8; ++s) {
                float weight = first + s < splits ? __expf(most_here[s] - larger) : 0.0f;
                total += sum_here[s] * weight;
                value += value_here[s] * weight;
            }
        }
        ((u16*)p.y)[((u64)row * p.heads + head * GROUP + g) * DIM + e] = narrow(value / total);
    }
}

// With the bounds that the file has defined.
#define SPLIT_KERNEL(DIM, GROUP)                                                                                                          \
    extern "C" __global__ void __launch_bounds__(SPLIT_BOUNDS) attention_split_d##DIM##_g##GROUP(const __grid_constant__ AttentionArguments p) {  \
        split<DIM, GROUP, false>(p);                                                                                                      \
    }                                                                                                                                     \
    extern "C" __global__ void __launch_bounds__(SPLIT_BOUNDS) placed_attention_d##DIM##_g##GROUP(const __grid_constant__ AttentionArguments p) { \
        split<DIM, GROUP, true>(p);                                                                                                       \
    }
