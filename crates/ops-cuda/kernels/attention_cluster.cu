// placed_attention of a single row on Hopper, head size 64 or 128 (`ops/src/operators/placed_attention.rs`): the positions of a key/value
// head are shared among the blocks of one cluster, which merge through each other's shared memory. Keys and values are asked for before
// the kernel waits for the one before it. Not here: other GPUs, more rows (`attention_decode.cu`).

#if __CUDA_ARCH__ >= 900

// Blocks of a cluster at most, and positions that a warp takes at once: the columns of one tensor-core product.
#define MOST_BLOCKS 8
#define EIGHT 8

struct alignas(8) Two { float x, y; };

// A pair that is turned together, of one head: where its elements are, and their norms.
struct Pair {
    u32 first, second;
    float first_norm, second_norm;
};

// A lane's part of a head in the order of a tensor-core operand: the eight elements from 8t on of every 32.
template <int DIM> DEVICE void head_words(const u16* from, u32 (&to)[DIM / 8]) {
#pragma unroll
    for (int chunk = 0; chunk < DIM / 32; ++chunk) {
        Vec4 v = load16(from + chunk * 32 + threadIdx.x % 4 * 8);
        to[chunk * 4] = v.x;
        to[chunk * 4 + 1] = v.y;
        to[chunk * 4 + 2] = v.z;
        to[chunk * 4 + 3] = v.w;
    }
}

// A warp has eight positions at once. For scores, lane 4r + t holds part t of position r's key, and of query head r. For the mixture,
// its 16 lanes of a side hold all of the values of a position, for four positions of their side. Blocks of a cluster are a power of two.
template <int DIM, int GROUP, int WARPS> DEVICE void share_positions(const AttentionArguments& p) {
    constexpr int WORDS = DIM / 8, EACH = DIM / 16, HALF = EACH / 2, TOGETHER = EIGHT / 2, PAIRS = DIM / 64;
    // A line of mixtures and sums, in whole vectors.
    constexpr u32 HEADS = GROUP * DIM, WIDE = HEADS + (2 * GROUP + 3) / 4 * 4;
    // Query heads and the new key, placed; what warps found: largest scores, mixtures, and behind these the sums.
    __shared__ __align__(16) u16 placed[GROUP + 1][DIM];
    __shared__ __align__(16) float most_of[GROUP][WARPS], mixed_of[WARPS][WIDE];
    // What the cluster's blocks put here: their sums and largest scores, and of their mixtures this block's share.
    __shared__ __align__(16) Two block_stats[MOST_BLOCKS][GROUP];
    __shared__ __align__(16) float block_mixed[HEADS];
    next_may_start();
    cluster_arrive();
    const u32 head = blockIdx.y, rank = blockIdx.x, blocks = gridDim.x, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const u32 r = lane / 4, side = lane / 16, d = lane % 16 * EACH;
    // The step is there before this kernel may start, and so are the positions of earlier steps.
    const SequenceState* only = (const SequenceState*)((const u8*)p.step + ONE_ROW_SEQUENCE);
    const LayerState* layer = (const LayerState*)((const u8*)p.step + ONE_ROW_LAYERS) + p.layer;
    const u32 newest = only->offset, visible = newest + 1, length = (visible + blocks - 1) / blocks;
    const u32 begin = rank * length, end = min(begin + length, visible), start = begin + warp * EIGHT;
    u16* const keys = layer->keys + (u64)head * only->capacity * DIM;
    u16* const values = layer->values + (u64)head * only->capacity * DIM;
    u32 k[WORDS], v[TOGETHER][EACH / 2];
    auto fetch = [&](u32 first) {
        head_words<DIM>(keys + (u64)min(first + r, end - 1) * DIM, k);
#pragma unroll
        for (int n = 0; n < TOGETHER; ++n) load_words(v[n], values + (u64)min(first + side * TOGETHER + n, end - 1) * DIM + d);
    };
    if (start < end) fetch(start);
    const float* norms = warp < GROUP ? p.q_norm : p.k_norm;
    const u16* from = warp < GROUP ? p.q + (u64)(head * GROUP + warp) * DIM : p.k + (u64)head * DIM;
    Pair pairs[PAIRS];
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) {
        const u32 pair = lane + WARP * i, first = p.interleaved ? 2 * pair : pair, second = p.interleaved ? first + 1 : pair + DIM / 2;
        pairs[i] = Pair{first, second, norms ? norms[first] : 1.0f, norms ? norms[second] : 1.0f};
    }
    // The warp that has the newest position appends it.
    const bool appends = newest < end && start < end && (newest - begin) / EIGHT % WARPS == warp;
    wait_for_inputs();
    u32 new_v[EACH / 2];
    if (appends) load_words(new_v, p.v + (u64)head * DIM + d);
    // Query heads, and the new key after them: one warp each normalises and turns its own.
    if (warp <= GROUP) {
        float a[PAIRS], b[PAIRS], c[PAIRS], s[PAIRS], square = 0.0f;
#pragma unroll
        for (int i = 0; i < PAIRS; ++i) {
            a[i] = load_bf16(from + pairs[i].first);
            b[i] = load_bf16(from + pairs[i].second);
            c[i] = p.table[lane + WARP * i];
            s[i] = p.table[DIM / 2 + lane + WARP * i];
        }
#pragma unroll
        for (int i = 0; i < PAIRS; ++i) square += a[i] * a[i] + b[i] * b[i];
        const float scale = norms ? rsqrtf(warp_sum(square) * (1.0f / DIM) + p.epsilon) : 1.0f;
#pragma unroll
        for (int i = 0; i < PAIRS; ++i) {
            const float x = a[i] * pairs[i].first_norm * scale, z = b[i] * pairs[i].second_norm * scale;
            placed[warp][pairs[i].first] = narrow(x * c[i] - z * s[i]);
            placed[warp][pairs[i].second] = narrow(z * c[i] + x * s[i]);
        }
    }
    __syncthreads();
    float mixed[GROUP][EACH] = {}, most = -1e30f, sum = 0.0f;
    if (start < end) {
        // Row r of the first operand is query head r; of the rows after them no score is taken.
        const u16* part = placed[min(r, (u32)GROUP)] + lane % 4 * 8;
        u32 q[WORDS];
#pragma unroll
        for (int chunk = 0; chunk < DIM / 32; ++chunk) {
            const Vec4 w = *(const Vec4*)(part + chunk * 32);
            q[chunk * 4] = w.x;
            q[chunk * 4 + 1] = w.y;
            q[chunk * 4 + 2] = w.z;
            q[chunk * 4 + 3] = w.w;
        }
        if (appends) {
            for (u32 at = lane; at < DIM / 2; at += WARP) ((u32*)(keys + (u64)newest * DIM))[at] = ((const u32*)placed[GROUP])[at];
            u32* value = (u32*)(values + (u64)newest * DIM + d);
            if (side == 0) {
#pragma unroll
                for (int i = 0; i < EACH / 2; ++i) value[i] = new_v[i];
            }
        }
#pragma unroll 1
        for (u32 first = start; first < end; first += WARPS * EIGHT) {
            if (first != start) fetch(first);
            // What was fetched from the newest position on is not to be used, not even times zero.
            if (appends && newest - first < EIGHT) {
                if (first + r >= newest) {
#pragma unroll
                    for (int i = 0; i < WORDS; ++i) k[i] = ((const u32*)placed[GROUP])[i / 4 * 16 + lane % 4 * 4 + i % 4];
                }
#pragma unroll
                for (int n = 0; n < TOGETHER; ++n) {
#pragma unroll
                    for (int i = 0; i < EACH / 2; ++i) v[n][i] = first + side * TOGETHER + n >= newest ? new_v[i] : v[n][i];
                }
            }
            float even[4] = {}, odd[4] = {};
#pragma unroll
            for (int i = 0; i < WORDS; i += 4) {
                mma(even, q[i], 0, q[i + 1], 0, k[i], k[i + 1]);
                mma(odd, q[i + 2], 0, q[i + 3], 0, k[i + 2], k[i + 3]);
            }
            // Scores of head r at positions 2t and 2t + 1.
            const u32 here = first + lane % 4 * 2;
            const float one = here < end ? (even[0] + odd[0]) * p.scale : -1e30f;
            const float two = here + 1 < end ? (even[1] + odd[1]) * p.scale : -1e30f;
            float larger = fmaxf(one, two);
            larger = fmaxf(larger, __shfl_xor_sync(ALL, larger, 1));
            larger = fmaxf(most, fmaxf(larger, __shfl_xor_sync(ALL, larger, 2)));
            const float shrink = __expf(most - larger), weight_one = __expf(one - larger), weight_two = __expf(two - larger);
            most = larger;
            sum = sum * shrink + weight_one + weight_two;
            if (first != start) {
#pragma unroll
                for (int g = 0; g < GROUP; ++g) {
                    const float by = __shfl_sync(ALL, shrink, g * 4);
#pragma unroll
                    for (int i = 0; i < EACH; ++i) mixed[g][i] *= by;
                }
            }
#pragma unroll
            for (int n = 0; n < TOGETHER; ++n) {
                float x[EACH];
#pragma unroll
                for (int i = 0; i < EACH / 2; ++i) {
                    x[2 * i] = low(v[n][i]);
                    x[2 * i + 1] = high(v[n][i]);
                }
#pragma unroll
                for (int g = 0; g < GROUP; ++g) {
                    const float weight = __shfl_sync(ALL, n % 2 ? weight_two : weight_one, g * 4 + side * 2 + n / 2);
#pragma unroll
                    for (int i = 0; i < EACH; ++i) mixed[g][i] = fmaf(weight, x[i], mixed[g][i]);
                }
            }
        }
        sum += __shfl_xor_sync(ALL, sum, 1);
        sum += __shfl_xor_sync(ALL, sum, 2);
    }
    // The two sides of a warp: each keeps half of its elements.
    struct alignas(HALF * 4) Half { float x[HALF]; };
#pragma unroll
    for (int g = 0; g < GROUP; ++g) {
        Half kept;
#pragma unroll
        for (int i = 0; i < HALF; ++i) {
            const float front = mixed[g][i], back = mixed[g][i + HALF];
            kept.x[i] = (side ? back : front) + __shfl_xor_sync(ALL, side ? front : back, 16);
        }
        *(Half*)(mixed_of[warp] + g * DIM + d + side * HALF) = kept;
    }
    if (lane % 4 == 0 && r < GROUP) {
        most_of[r][warp] = most;
        mixed_of[warp][HEADS + 2 * r] = sum;
    }
    __syncthreads();
    // Its warps, two elements at a time, into the block of the cluster that has these; sums and largest scores into every block.
    cluster_wait();
    const u32 share = HEADS / blocks;
#pragma unroll 1
    for (u32 item = threadIdx.x; item < HEADS / 2 + GROUP * blocks; item += WARPS * WARP) {
        const bool stats = item >= HEADS / 2;
        const u32 beyond = item - HEADS / 2, g = stats ? beyond % GROUP : item / (DIM / 2), column = stats ? HEADS + 2 * g : 2 * item;
        float most_here[WARPS];
#pragma unroll
        for (int w = 0; w < WARPS; ++w) most_here[w] = most_of[g][w];
        float larger = most_here[0];
#pragma unroll
        for (int w = 1; w < WARPS; ++w) larger = fmaxf(larger, most_here[w]);
        Two value = {0.0f, 0.0f};
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            const Two here = *(const Two*)(mixed_of[w] + column);
            const float weight = __expf(most_here[w] - larger);
            value.x += here.x * weight;
            value.y += here.y * weight;
        }
        if (stats) value.y = larger;
        const u32 to = stats ? beyond / GROUP : column * blocks / HEADS;
        const void* place = stats ? (const void*)&block_stats[rank][g] : (const void*)(block_mixed + rank * share + column - to * share);
        push(in_block(shared_address(place), to), value.x, value.y);
    }
    cluster_arrive();
    cluster_wait();
    // Neighbouring threads have one element's parts of all blocks.
    const u32 log_blocks = 31 - __clz(blocks);
#pragma unroll 1
    for (u32 item = threadIdx.x; item < HEADS; item += WARPS * WARP) {
        const u32 mine = item >> log_blocks, block = item % blocks, at = rank * share + mine;
        const Two stats = block_stats[block][at / DIM];
        float value = block_mixed[block * share + mine], larger = stats.y;
#pragma unroll 1
        for (u32 step = blocks / 2; step > 0; step >>= 1) larger = fmaxf(larger, __shfl_xor_sync(ALL, larger, step));
        const float weight = __expf(stats.y - larger);
        float total = stats.x * weight;
        value *= weight;
#pragma unroll 1
        for (u32 step = blocks / 2; step > 0; step >>= 1) {
            total += __shfl_xor_sync(ALL, total, step);
            value += __shfl_xor_sync(ALL, value, step);
        }
        if (block == 0) ((u16*)p.y)[(u64)head * HEADS + at] = narrow(__fdividef(value, total));
    }
}

#define CLUSTER_KERNEL(DIM, GROUP, WARPS)                                                             \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, 1)                                          \
        placed_cluster_w##WARPS##_d##DIM##_g##GROUP(const __grid_constant__ AttentionArguments p) {   \
        share_positions<DIM, GROUP, WARPS>(p);                                                                 \
    }
CLUSTER_KERNEL(128, 1, 8)
CLUSTER_KERNEL(128, 2, 8)
CLUSTER_KERNEL(128, 3, 8)
CLUSTER_KERNEL(128, 4, 8)
CLUSTER_KERNEL(64, 1, 8)
CLUSTER_KERNEL(64, 2, 8)
CLUSTER_KERNEL(64, 3, 8)
CLUSTER_KERNEL(64, 4, 8)
CLUSTER_KERNEL(128, 1, 16)
CLUSTER_KERNEL(128, 2, 16)
CLUSTER_KERNEL(128, 3, 16)
CLUSTER_KERNEL(128, 4, 16)
CLUSTER_KERNEL(64, 1, 16)
CLUSTER_KERNEL(64, 2, 16)
CLUSTER_KERNEL(64, 3, 16)
CLUSTER_KERNEL(64, 4, 16)

#endif
