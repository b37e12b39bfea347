// placed_attention of a single row on Hopper, head size 64 or 128 (`ops/src/operators/placed_attention.rs`): the positions of a key/value
// head are shared among the blocks of one cluster, which merge through each other's shared memory. Keys and values are copied to shared
// memory before the kernel waits for the one before it. Not here: other GPUs, more rows (`attention_split.cuh`).

#if __CUDA_ARCH__ == 900

// Positions that a warp takes at once, and columns of a product: query heads.
#define TILE 16
#define EIGHT 8

struct alignas(8) Two { float x, y; };
struct alignas(16) Four { float x, y, z, w; };

// 8 x 8 pairs of bytes, turned over.
DEVICE u32 transposed(u32 x) {
    u32 y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

DEVICE float exp2_of(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

DEVICE u32 load_u32(const u32* at) {
    u32 x;
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(x) : "l"(at) : "memory");
    return x;
}

DEVICE void send(u32 at, Four x, u32 arrival) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];"
                 :: "r"(at), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w), "r"(arrival) : "memory");
}

// Pairs of elements of a head that are turned together, two for each of the first DIM / 4 lanes: where they are in words of two elements.
// Halves: elements 2 lane and 2 lane + 1 with those DIM / 2 further; neighbours: elements 4 lane to 4 lane + 3.
template <int DIM> struct Turned {
    u32 pairs, first, second;
    DEVICE Turned(u32 lane, bool neighbours) {
        pairs = min(lane, (u32)DIM / 4 - 1);
        first = neighbours ? 2 * pairs : pairs;
        second = neighbours ? first + 1 : first + DIM / 4;
    }
};

// A head's norm at those places (ones if there is none), as `neighbours` has it: elements of the first pair, then of the second.
template <int DIM> DEVICE Four norm_at(const float* norm, const Turned<DIM>& at, bool neighbours) {
    if (!norm) return Four{1.0f, 1.0f, 1.0f, 1.0f};
    const Two a = ((const Two*)norm)[at.first], b = ((const Two*)norm)[at.second];
    return neighbours ? Four{a.x, a.y, b.x, b.y} : Four{a.x, b.x, a.y, b.y};
}

// What the warps of a cluster's blocks have in shared memory behind their keys and values: per block, and of every block.
template <int DIM, int GROUP, int BLOCKS, int WARPS> struct Shared {
    static constexpr u32 OWN = DIM / BLOCKS;
    Four stats[GROUP / 2][BLOCKS];                // of each two heads: largest scores, then sums of the weights
    float mixed[BLOCKS][OWN * GROUP];             // of this block's elements
    Two most[GROUP / 2][WARPS];                   // largest scores of this block's warps
    Two largest[GROUP / 2];                       // of this block
};

// A warp has 16 positions at once, STAGES times that on their way. Scores are keys times queries, a position in every row and a query head
// in every column; mixtures are values turned over times weights, an element in every row. So a lane has heads 2t and 2t + 1 of both
// (t = lane % 4), and rows r and r + 8 (r = lane / 4).
//
// The warps of a block agree on the largest scores and add up what they found; each block sends its sums to the block of the cluster whose
// elements they are, which gives every element once to `ending`. Blocks of a cluster are a power of two, at most 8; query heads of a
// key/value head are at most GROUP. A tile is read in PARTS: one takes more registers, and is sooner done.
//
// What is run once is fetched once, at some four cycles an instruction: so there is little of it after the wait, and a part of an
// address that is known when the kernel is compiled stands in the instruction.
template <int DIM, int GROUP, int BLOCKS, int WARPS, int STAGES, int PARTS, class Ending>
DEVICE void share_positions(const AttentionArguments& p, const Ending& ending) {
    constexpr u32 PIECES = DIM / 8, TILE_BYTES = TILE * DIM * 2, STEPS = DIM / 16, BATCH = STEPS / PARTS, WARP_BYTES = STAGES * 2 * TILE_BYTES;
    constexpr u32 ROUNDS = (GROUP + WARPS) / WARPS, QUERY = DIM + 8, THREADS = WARPS * WARP, OWN = DIM / BLOCKS;
    // Every warp's keys and values (STAGES, 2, TILE, DIM), swizzled, and later what it found (DIM + 1, GROUP).
    extern __shared__ __align__(1024) u8 room[];
    Shared<DIM, GROUP, BLOCKS, WARPS>& all = *(Shared<DIM, GROUP, BLOCKS, WARPS>*)(room + WARPS * WARP_BYTES);
    // Query heads and the new key, placed; of heads beyond the last, zeros.
    __shared__ __align__(16) u16 placed[EIGHT + 1][QUERY];
    __shared__ __align__(8) u64 merged;
    next_may_start();
    const u32 arrival = shared_address(&merged);
    if (threadIdx.x == 0) start_arrival(arrival);
    cluster_arrive_relaxed();
    const u32 head = blockIdx.y, rank = blockIdx.x, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const u32 r = lane / 4, t = lane % 4, group = p.heads / p.kv_heads;
    // The step is there before this kernel may start, and so are the positions of earlier steps.
    const SequenceState* only = (const SequenceState*)((const u8*)p.step + ONE_ROW_SEQUENCE);
    const LayerState* layer = (const LayerState*)((const u8*)p.step + ONE_ROW_LAYERS) + p.layer;
    const u32 newest = only->offset, visible = newest + 1, length = (visible + BLOCKS - 1) / BLOCKS;
    const u32 begin = min(rank * length, visible), end = min(begin + length, visible);
    u16* const keys = layer->keys + (u64)head * only->capacity * DIM;
    u16* const values = layer->values + (u64)head * only->capacity * DIM;
    const u32 mine = shared_address(room) + warp * WARP_BYTES;
    auto place = [](u32 row, u32 piece) { return row * DIM * 2 + ((piece ^ row % 8) * 16); };
    // What is not there yet, or beyond, becomes zeros: the newest position too.
    auto fetch = [&](u32 stage, u32 first) {
        const u32 to = mine + stage * 2 * TILE_BYTES;
#pragma unroll
        for (int i = 0; i < TILE * PIECES / WARP; ++i) {
            const u32 at = lane + i * WARP, row = at / PIECES, piece = at % PIECES;
            const bool inside = first + row < min(end, newest);
            const u64 from = (u64)(inside ? first + row : 0) * DIM + piece * 8;
            copy16(to + place(row, piece), keys + from, inside);
            copy16(to + TILE_BYTES + place(row, piece), values + from, inside);
        }
    };
#pragma unroll
    for (int stage = 0; stage < STAGES; ++stage) {
        const u32 first = begin + (warp + stage * WARPS) * TILE;
        if (first < end) fetch(stage, first);
        copies_end_stage();
    }
    const bool neighbours = p.interleaved;
    const Turned<DIM> turned(lane, neighbours);
    Four norms[ROUNDS];
#pragma unroll
    for (int round = 0; round < ROUNDS; ++round) {
        norms[round] = norm_at(warp + round * WARPS < group ? p.q_norm : p.k_norm, turned, neighbours);
    }
    for (u32 at = threadIdx.x; at < (EIGHT - group) * DIM / 2; at += THREADS) ((u32*)placed[group + at / (DIM / 2)])[at % (DIM / 2)] = 0;
    // Blocks that have positions, of which this one hears; of the others it knows.
    u32 present = 0;
#pragma unroll
    for (u32 block = 0; block < BLOCKS; ++block) present += block * length < visible;
    if (threadIdx.x == 0) arrival_expects(arrival, present * GROUP * (OWN * 4 + 8));
    for (u32 at = threadIdx.x; at < (BLOCKS - present) * OWN * GROUP; at += THREADS) all.mixed[present][at] = 0.0f;
    if (threadIdx.x < BLOCKS * GROUP / 2 && threadIdx.x % BLOCKS >= present) {
        all.stats[threadIdx.x / BLOCKS][threadIdx.x % BLOCKS] = Four{-1e30f, -1e30f, 0.0f, 0.0f};
    }
    // Where a lane's part of a tile's keys, and of its values, begins: two pieces further is another bit of the address.
    const u32 key_part = mine + place(lane % 16, lane / 16), value_part = mine + TILE_BYTES + place(lane % 8 + lane / 16 * 8, lane / 8 % 2);
    // Every block's barrier is ready.
    cluster_wait();
    // The warp that has the newest position appends it.
    const bool appends = newest < end && newest >= begin && (newest - begin) / TILE % WARPS == warp;
    wait_for_inputs();
    Vec4 new_v;
    if (appends && lane < PIECES) new_v = load16(p.v + (u64)head * DIM + lane * 8);
    // Query heads, and the new key after them: one warp each normalises and turns its own.
#pragma unroll
    for (int round = 0; round < ROUNDS; ++round) {
        const u32 which = warp + round * WARPS;
        if (which <= group) {
            const bool query = which < group;
            const u32* const from = (const u32*)(query ? p.q + (u64)(head * group + which) * DIM : p.k + (u64)head * DIM);
            const u32 one = load_u32(from + turned.first), two = load_u32(from + turned.second);
            const Two c = ((const Two*)p.table)[turned.pairs], s = ((const Two*)(p.table + DIM / 2))[turned.pairs];
            // Of the first pair, then of the second.
            float a = low(one), b = neighbours ? high(one) : low(two), d = neighbours ? low(two) : high(one), e = high(two);
            float scale = 1.0f;
            if (query ? p.q_norm : p.k_norm) {
                const float square = a * a + b * b + d * d + e * e;
                scale = rsqrtf(warp_sum(lane < DIM / 4 ? square : 0.0f) * (1.0f / DIM) + p.epsilon);
            }
            a *= norms[round].x * scale;
            b *= norms[round].y * scale;
            d *= norms[round].z * scale;
            e *= norms[round].w * scale;
            const float first = a * c.x - b * s.x, first_other = b * c.x + a * s.x;
            const float second = d * c.y - e * s.y, second_other = e * c.y + d * s.y;
            u32* const to = (u32*)placed[query ? which : EIGHT];
            to[turned.first] = neighbours ? narrow2(first, first_other) : narrow2(first, second);
            to[turned.second] = neighbours ? narrow2(second, second_other) : narrow2(first_other, second_other);
        }
    }
    __syncthreads();
    // Warps that have positions.
    const u32 warps = min((end - begin + TILE - 1) / TILE, (u32)WARPS);
    float mixed[STEPS][4] = {}, sum[4] = {}, most[2] = {-1e30f, -1e30f};
    if (warp < warps) {
        // The second operand of eight heads: lanes 8i to 8i + 7 name the rows of its part i.
        u32 q[STEPS][2];
#pragma unroll
        for (int i = 0; i < STEPS / 2; ++i) {
            u32 four[4];
            ldmatrix4(four, shared_address(placed[lane % 8] + lane / 8 * 8) + i * 64);
            q[2 * i][0] = four[0];
            q[2 * i][1] = four[1];
            q[2 * i + 1][0] = four[2];
            q[2 * i + 1][1] = four[3];
        }
        const float scale = p.scale * 1.44269504088896f;
        u32 stage = 0;
#pragma unroll 1
        for (u32 first = begin + warp * TILE; first < end; first += WARPS * TILE) {
            wait_for_copies<STAGES - 1>();
            __syncwarp();
            const u32 k_at = key_part + stage * 2 * TILE_BYTES, v_at = value_part + stage * 2 * TILE_BYTES;
            if (appends && newest - first < TILE) {
                if (lane < PIECES) {
                    u8* const here = room + warp * WARP_BYTES + stage * 2 * TILE_BYTES + place(newest - first, lane);
                    const Vec4 new_k = *(const Vec4*)(placed[EIGHT] + lane * 8);
                    *(Vec4*)here = new_k;
                    *(Vec4*)(here + TILE_BYTES) = new_v;
                    *(Vec4*)(keys + (u64)newest * DIM + lane * 8) = new_k;
                    *(Vec4*)(values + (u64)newest * DIM + lane * 8) = new_v;
                }
                __syncwarp();
            }
            u32 v[BATCH][4];
            float even[4] = {}, odd[4] = {};
#pragma unroll
            for (int from = 0; from < STEPS; from += BATCH) {
                u32 k[BATCH][4];
#pragma unroll
                for (int i = 0; i < BATCH; ++i) ldmatrix4(k[i], k_at ^ (from + i) * 32);
#pragma unroll
                for (int i = 0; i < BATCH; ++i) mma(i % 2 ? odd : even, k[i][0], k[i][1], k[i][2], k[i][3], q[from + i][0], q[from + i][1]);
            }
            // The first values are read while the scores are turned into weights.
#pragma unroll
            for (int i = 0; i < BATCH; ++i) ldmatrix4_transposed(v[i], v_at ^ i * 32);
            // Of heads 2t and 2t + 1: positions r and r + 8.
            float near[2], far[2], larger[2];
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                near[h] = first + r < end ? (even[h] + odd[h]) * scale : -1e30f;
                far[h] = first + r + 8 < end ? (even[h + 2] + odd[h + 2]) * scale : -1e30f;
                larger[h] = fmaxf(most[h], fmaxf(near[h], far[h]));
#pragma unroll
                for (u32 step = 4; step < WARP; step <<= 1) larger[h] = fmaxf(larger[h], __shfl_xor_sync(ALL, larger[h], step));
                near[h] = exp2_of(near[h] - larger[h]);
                far[h] = exp2_of(far[h] - larger[h]);
            }
            // Nothing is there to shrink before a warp's second tile.
            if (first >= begin + WARPS * TILE) {
                const float x = exp2_of(most[0] - larger[0]), y = exp2_of(most[1] - larger[1]);
                sum[0] *= x;
                sum[1] *= y;
#pragma unroll
                for (int i = 0; i < STEPS; ++i) {
                    mixed[i][0] *= x;
                    mixed[i][1] *= y;
                    mixed[i][2] *= x;
                    mixed[i][3] *= y;
                }
            }
            most[0] = larger[0];
            most[1] = larger[1];
            const u32 front = transposed(narrow2(near[0], near[1])), back = transposed(narrow2(far[0], far[1]));
            // Values of ones: the sums of the weights.
            mma(sum, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u, front, back);
#pragma unroll
            for (int from = 0; from < STEPS; from += BATCH) {
#pragma unroll
                for (int i = 0; i < BATCH; ++i) {
                    if (from > 0) ldmatrix4_transposed(v[i], v_at ^ (from + i) * 32);
                }
#pragma unroll
                for (int i = 0; i < BATCH; ++i) mma(mixed[from + i], v[i][0], v[i][1], v[i][2], v[i][3], front, back);
            }
            __syncwarp();
            const u32 later = first + STAGES * WARPS * TILE;
            if (later < end) fetch(stage, later);
            copies_end_stage();
            stage = stage + 1 == STAGES ? 0 : stage + 1;
        }
    }
    if (begin < end) {
        const bool has_heads = warp < warps && 2 * t < GROUP;
        if (has_heads && r == 0) all.most[t][warp] = Two{most[0], most[1]};
        __syncthreads();
        if (has_heads) {
            float x = most[0], y = most[1];
#pragma unroll
            for (int other = 0; other < WARPS; ++other) {
                const Two one = other < warps ? all.most[t][other] : Two{-1e30f, -1e30f};
                x = fmaxf(x, one.x);
                y = fmaxf(y, one.y);
            }
            if (threadIdx.x < 4) all.largest[t] = Two{x, y};
            x = exp2_of(most[0] - x);
            y = exp2_of(most[1] - y);
            float* const to = (float*)(room + warp * WARP_BYTES) + r * GROUP + 2 * t;
#pragma unroll
            for (int i = 0; i < STEPS; ++i) {
                *(Two*)(to + i * 16 * GROUP) = Two{mixed[i][0] * x, mixed[i][1] * y};
                *(Two*)(to + (i * 16 + 8) * GROUP) = Two{mixed[i][2] * x, mixed[i][3] * y};
            }
            if (r == 0) *(Two*)(to + DIM * GROUP) = Two{sum[0] * x, sum[1] * y};
        }
        __syncthreads();
        // Two heads of an element, for its owner; then their sums of weights, for every block.
        constexpr u32 PAIRS = DIM * GROUP / 2;
#pragma unroll 1
        for (u32 item = threadIdx.x; item < PAIRS + GROUP / 2 * BLOCKS; item += THREADS) {
            const u32 beyond = item - PAIRS, pair = item < PAIRS ? item : PAIRS + beyond / BLOCKS;
            float x = 0.0f, y = 0.0f;
#pragma unroll
            for (int other = 0; other < WARPS; ++other) {
                const Two one = other < warps ? *(const Two*)(room + other * WARP_BYTES + pair * 8) : Two{0.0f, 0.0f};
                x += one.x;
                y += one.y;
            }
            if (item < PAIRS) {
                const u32 to = pair / (OWN * GROUP / 2), at = shared_address(&all.mixed[rank][pair % (OWN * GROUP / 2) * 2]);
                send(in_block(at, to), x, y, in_block(arrival, to));
            } else {
                const Two largest = all.largest[beyond / BLOCKS];
                const u32 to = beyond % BLOCKS;
                send(in_block(shared_address(&all.stats[beyond / BLOCKS][rank]), to), Four{largest.x, largest.y, x, y}, in_block(arrival, to));
            }
        }
    }
    wait_for_arrival(arrival);
#pragma unroll 1
    for (u32 item = threadIdx.x; item < OWN * GROUP; item += THREADS) {
        const u32 g = item % GROUP;
        const float* const stats = (const float*)all.stats[g / 2] + g % 2;
        float largest = stats[0], total = 0.0f, value = 0.0f;
#pragma unroll
        for (int block = 1; block < BLOCKS; ++block) largest = fmaxf(largest, stats[block * 4]);
#pragma unroll
        for (int block = 0; block < BLOCKS; ++block) {
            const float weight = exp2_of(stats[block * 4] - largest);
            total = fmaf(stats[block * 4 + 2], weight, total);
            value = fmaf(all.mixed[block][item], weight, value);
        }
        if (g < group) ending.take(head * group + g, rank * OWN + item / GROUP, __fdividef(value, total));
    }
}

// The ending of placed_attention: the result, as it is.
struct Written {
    u16* y;      // (heads, dim)
    u32 dim;
    DEVICE void take(u32 head, u32 element, float value) const { y[(u64)head * dim + element] = narrow(value); }
};

#define CLUSTER_KERNEL(DIM, GROUP, BLOCKS, WARPS, STAGES, PARTS, RESIDENT)                                                 \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, RESIDENT)                                                     \
        placed_cluster_b##BLOCKS##w##WARPS##s##STAGES##_d##DIM##_g##GROUP(const __grid_constant__ AttentionArguments p) { \
        share_positions<DIM, GROUP, BLOCKS, WARPS, STAGES, PARTS>(p, Written{(u16*)p.y, DIM});                           \
    }
// Registers for so many blocks of a processor.
#define CLUSTER_KERNELS(BLOCKS, WARPS, STAGES, PARTS, RESIDENT)    \
    CLUSTER_KERNEL(128, 2, BLOCKS, WARPS, STAGES, PARTS, RESIDENT) \
    CLUSTER_KERNEL(128, 4, BLOCKS, WARPS, STAGES, PARTS, RESIDENT) \
    CLUSTER_KERNEL(128, 8, BLOCKS, WARPS, STAGES, PARTS, RESIDENT) \
    CLUSTER_KERNEL(64, 2, BLOCKS, WARPS, STAGES, PARTS, RESIDENT)  \
    CLUSTER_KERNEL(64, 4, BLOCKS, WARPS, STAGES, PARTS, RESIDENT)  \
    CLUSTER_KERNEL(64, 8, BLOCKS, WARPS, STAGES, PARTS, RESIDENT)
CLUSTER_KERNELS(4, 5, 2, 1, 3)
CLUSTER_KERNELS(4, 10, 1, 1, 1)
CLUSTER_KERNELS(8, 6, 3, 2, 2)

#endif
