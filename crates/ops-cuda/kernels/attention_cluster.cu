// placed_attention of a single row on Hopper, head size 64 or 128 (`ops/src/operators/placed_attention.rs`): the positions of a key/value
// head are shared among the blocks of one cluster, which merge through each other's shared memory. Keys and values are copied to shared
// memory before the kernel waits for the one before it. Not here: other GPUs, more rows (`attention_split.cuh`).

#if __CUDA_ARCH__ == 900

// Positions that a warp takes at once, and columns of a product: query heads.
#define TILE 16
#define EIGHT 8

struct alignas(8) Two { float x, y; };

// A pair that is turned together, of one head: where its elements are, and their norms.
struct Pair {
    u32 first, second;
    float first_norm, second_norm;
};

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

// Who a warp of a cluster is, and which positions are whose.
struct Sharer {
    u32 head, group;             // key/value head, and query heads of it
    u32 rank, blocks, log_blocks;
    u32 lane, warp;
    u32 visible, length;         // positions in all, and of a block
    u32 begin, end;              // this block's
};

// What a warp found of its positions: elements r and r + 8 of every 16, of heads 2t and 2t + 1 (t = lane % 4, r = lane / 4).
template <int DIM> struct Found {
    float mixed[DIM / 16][4];
    float sum[4];                // the first two: sums of the weights
    float most[2];               // largest scores, by which both were scaled
};

// How the blocks of a cluster come to a result: each warp sends what it found to the block whose elements they are, `own` of each head; that
// block adds up what came, and gives every element to the ending.
template <int DIM, int GROUP, int WARPS> struct Merge {
    u32 log_own, own, log_together, line, sources, arrival;
    float* all_mixed;            // (sources, own * GROUP), lines apart so far that neighbouring parts meet no bank twice
    Two* all_stats;              // (sources, GROUP)

    // Before the blocks of the cluster have met.
    DEVICE void start(u64* merged) {
        arrival = shared_address(merged);
        if (threadIdx.x == 0) start_arrival(arrival);
    }

    // By what a block will have received its barrier is set before anybody sends.
    DEVICE void prepare(const Sharer& me, u8* room) {
        log_own = 31 - __clz(DIM >> me.log_blocks);
        own = 1u << log_own;
        sources = min((me.length + TILE - 1) / TILE, (u32)WARPS) * me.blocks;
        log_together = 31 - __clz(min(max(WARPS * WARP * me.blocks / (DIM * GROUP), 1u), WARP));
        const u32 together = 1u << log_together;
        line = own * GROUP + (together > 1 ? max(WARP / together, 2u) : 0);
        all_mixed = (float*)room;
        all_stats = (Two*)(all_mixed + WARPS * me.blocks * (own * GROUP + WARP / 2));
        if (threadIdx.x == 0) {
            u32 found = 0;
            for (u32 block = 0; block < me.blocks; ++block) {
                const u32 from = min(block * me.length, me.visible);
                found += min((min(from + me.length, me.visible) - from + TILE - 1) / TILE, (u32)WARPS);
            }
            arrival_expects(arrival, found * GROUP * (own * 4 + 8));
        }
    }

    template <class Ending> DEVICE void merge(const Sharer& me, const Found<DIM>& found, bool active, const Ending& ending) {
        const u32 r = me.lane / 4, t = me.lane % 4, blocks = me.blocks;
        if (active && 2 * t < GROUP) {
            const u32 source = me.warp * blocks + me.rank, base = shared_address(all_mixed + source * line + 2 * t);
#pragma unroll
            for (int i = 0; i < DIM / 16; ++i) {
#pragma unroll
                for (int side = 0; side < 2; ++side) {
                    const u32 element = i * 16 + side * 8 + r, to = element >> log_own, at = base + (element & (own - 1)) * GROUP * 4;
                    send(in_block(at, to), found.mixed[i][2 * side], found.mixed[i][2 * side + 1], in_block(arrival, to));
                }
            }
            // Largest scores and sums of both heads, to every block.
            if (r < blocks) {
                const u32 at = in_block(shared_address(all_stats + source * GROUP + 2 * t), r), there = in_block(arrival, r);
                send(at, found.most[0], found.sum[0], there);
                send(at + 8, found.most[1], found.sum[1], there);
            }
        }
        wait_for_arrival(arrival);
        const u32 together = 1u << log_together;
#pragma unroll 1
        for (u32 item = threadIdx.x; item < (own * GROUP << log_together); item += WARPS * WARP) {
            const u32 part = item % together, at = item >> log_together, element = at / GROUP, g = at % GROUP;
            float larger = -1e30f, total = 0.0f, value = 0.0f;
            // The last blocks may have had less.
            auto was = [&](u32 source) { return (source & (blocks - 1)) * me.length + (source >> me.log_blocks) * TILE < me.visible; };
#pragma unroll 2
            for (u32 source = part; source < sources; source += together) {
                if (was(source)) larger = fmaxf(larger, all_stats[source * GROUP + g].x);
            }
#pragma unroll 1
            for (u32 step = together / 2; step > 0; step >>= 1) larger = fmaxf(larger, __shfl_xor_sync(ALL, larger, step));
#pragma unroll 2
            for (u32 source = part; source < sources; source += together) {
                if (!was(source)) continue;
                const Two stats = all_stats[source * GROUP + g];
                const float weight = exp2_of(stats.x - larger);
                total = fmaf(stats.y, weight, total);
                value = fmaf(all_mixed[source * line + element * GROUP + g], weight, value);
            }
#pragma unroll 1
            for (u32 step = together / 2; step > 0; step >>= 1) {
                total += __shfl_xor_sync(ALL, total, step);
                value += __shfl_xor_sync(ALL, value, step);
            }
            if (part == 0 && g < me.group) ending.take(me.head * me.group + g, me.rank * own + element, __fdividef(value, total));
        }
    }
};

// The ending of placed_attention: the result, as it is.
struct Written {
    u16* y;      // (heads, dim)
    u32 dim;
    DEVICE void take(u32 head, u32 element, float value) const { y[(u64)head * dim + element] = narrow(value); }
};

// A warp has 16 positions at once, STAGES times that on their way. Scores are keys times queries, a position in every row and a query head
// in every column; mixtures are values turned over times weights, an element in every row. So a lane has heads 2t and 2t + 1 of both.
// Blocks of a cluster are a power of two, 2 to 8; query heads of a key/value head are at most GROUP. Each element of the result is given to
// `ending` once, in the block that owns it.
template <int DIM, int GROUP, int WARPS, int STAGES, class Ending>
DEVICE void share_positions(const AttentionArguments& p, const Ending& ending) {
    constexpr u32 PIECES = DIM / 8, TILE_BYTES = TILE * DIM * 2, PAIRS = DIM / 64, STEPS = DIM / 16;
    constexpr u32 ROUNDS = (GROUP + WARPS) / WARPS, QUERY = DIM + 8;
    // Every warp's keys and values (STAGES, 2, TILE, DIM), swizzled; then what the merge asks for.
    extern __shared__ __align__(128) u8 room[];
    // Query heads and the new key, placed; of heads beyond the last, zeros.
    __shared__ __align__(16) u16 placed[EIGHT + 1][QUERY];
    __shared__ __align__(8) u64 merged;
    next_may_start();
    Merge<DIM, GROUP, WARPS> merge;
    merge.start(&merged);
    cluster_arrive_relaxed();
    const u32 head = blockIdx.y, rank = blockIdx.x, blocks = gridDim.x, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const u32 r = lane / 4, group = p.heads / p.kv_heads;
    // The step is there before this kernel may start, and so are the positions of earlier steps.
    const SequenceState* only = (const SequenceState*)((const u8*)p.step + ONE_ROW_SEQUENCE);
    const LayerState* layer = (const LayerState*)((const u8*)p.step + ONE_ROW_LAYERS) + p.layer;
    const u32 newest = only->offset, visible = newest + 1, length = (visible + blocks - 1) / blocks;
    const u32 begin = min(rank * length, visible), end = min(begin + length, visible);
    u16* const keys = layer->keys + (u64)head * only->capacity * DIM;
    u16* const values = layer->values + (u64)head * only->capacity * DIM;
    const u32 mine = shared_address(room) + warp * STAGES * 2 * TILE_BYTES;
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
    Pair pairs[ROUNDS][PAIRS];
#pragma unroll
    for (int round = 0; round < ROUNDS; ++round) {
        const float* norms = warp + round * WARPS < group ? p.q_norm : p.k_norm;
#pragma unroll
        for (int i = 0; i < PAIRS; ++i) {
            const u32 pair = lane + WARP * i, first = p.interleaved ? 2 * pair : pair, second = p.interleaved ? first + 1 : pair + DIM / 2;
            pairs[round][i] = Pair{first, second, norms ? norms[first] : 1.0f, norms ? norms[second] : 1.0f};
        }
    }
    for (u32 at = threadIdx.x; at < (EIGHT - group) * DIM / 2; at += WARPS * WARP) ((u32*)placed[group + at / (DIM / 2)])[at % (DIM / 2)] = 0;
    const Sharer me = {head, group, rank, blocks, (u32)(31 - __clz(blocks)), lane, warp, visible, length, begin, end};
    merge.prepare(me, room + WARPS * STAGES * 2 * TILE_BYTES);
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
            const u16* from = which < group ? p.q + (u64)(head * group + which) * DIM : p.k + (u64)head * DIM;
            const bool normed = which < group ? p.q_norm : p.k_norm;
            u16* const to = placed[which < group ? which : EIGHT];
            float a[PAIRS], b[PAIRS], c[PAIRS], s[PAIRS], square = 0.0f;
#pragma unroll
            for (int i = 0; i < PAIRS; ++i) {
                a[i] = load_bf16(from + pairs[round][i].first);
                b[i] = load_bf16(from + pairs[round][i].second);
                c[i] = p.table[lane + WARP * i];
                s[i] = p.table[DIM / 2 + lane + WARP * i];
            }
#pragma unroll
            for (int i = 0; i < PAIRS; ++i) square += a[i] * a[i] + b[i] * b[i];
            const float scale = normed ? rsqrtf(warp_sum(square) * (1.0f / DIM) + p.epsilon) : 1.0f;
#pragma unroll
            for (int i = 0; i < PAIRS; ++i) {
                const float x = a[i] * pairs[round][i].first_norm * scale, z = b[i] * pairs[round][i].second_norm * scale;
                to[pairs[round][i].first] = narrow(x * c[i] - z * s[i]);
                to[pairs[round][i].second] = narrow(z * c[i] + x * s[i]);
            }
        }
    }
    __syncthreads();
    const bool active = warp * TILE < end - begin;
    Found<DIM> found = {};
    found.most[0] = found.most[1] = -1e30f;
    auto& [mixed, sum, most] = found;
    if (active) {
        // The second operand of eight heads: lanes 8i to 8i + 7 name the rows of its part i.
        u32 q[STEPS][2];
#pragma unroll
        for (int i = 0; i < STEPS / 2; ++i) {
            u32 four[4];
            ldmatrix4(four, shared_address(placed[lane % 8] + i * 32 + lane / 8 * 8));
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
            const u32 k_at = mine + stage * 2 * TILE_BYTES, v_at = k_at + TILE_BYTES;
            if (appends && newest - first < TILE) {
                const u32 row = newest - first;
                if (lane < PIECES) {
                    u8* const here = room + (k_at - shared_address(room)) + place(row, lane);
                    const Vec4 new_k = *(const Vec4*)(placed[EIGHT] + lane * 8);
                    *(Vec4*)here = new_k;
                    *(Vec4*)(here + TILE_BYTES) = new_v;
                    *(Vec4*)(keys + (u64)newest * DIM + lane * 8) = new_k;
                    *(Vec4*)(values + (u64)newest * DIM + lane * 8) = new_v;
                }
                __syncwarp();
            }
            float even[4] = {}, odd[4] = {};
#pragma unroll
            for (int i = 0; i < STEPS; ++i) {
                u32 k[4];
                ldmatrix4(k, k_at + place(lane % 16, i * 2 + lane / 16));
                if (i % 2) mma(odd, k[0], k[1], k[2], k[3], q[i][0], q[i][1]);
                else mma(even, k[0], k[1], k[2], k[3], q[i][0], q[i][1]);
            }
            // Of heads 2t and 2t + 1: positions r and r + 8.
            float near[2], far[2], shrink[2];
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                near[h] = first + r < end ? (even[h] + odd[h]) * scale : -1e30f;
                far[h] = first + r + 8 < end ? (even[h + 2] + odd[h + 2]) * scale : -1e30f;
                float larger = fmaxf(near[h], far[h]);
#pragma unroll
                for (u32 step = 4; step < WARP; step <<= 1) larger = fmaxf(larger, __shfl_xor_sync(ALL, larger, step));
                larger = fmaxf(most[h], larger);
                shrink[h] = exp2_of(most[h] - larger);
                most[h] = larger;
                near[h] = exp2_of(near[h] - larger);
                far[h] = exp2_of(far[h] - larger);
                sum[h] *= shrink[h];
            }
            const u32 front = transposed(narrow2(near[0], near[1])), back = transposed(narrow2(far[0], far[1]));
            // Values of ones: the sums of the weights.
            mma(sum, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u, front, back);
#pragma unroll
            for (int i = 0; i < STEPS; ++i) {
                mixed[i][0] *= shrink[0];
                mixed[i][1] *= shrink[1];
                mixed[i][2] *= shrink[0];
                mixed[i][3] *= shrink[1];
                u32 v[4];
                ldmatrix4_transposed(v, v_at + place(lane % 8 + lane / 16 * 8, i * 2 + lane / 8 % 2));
                mma(mixed[i], v[0], v[1], v[2], v[3], front, back);
            }
            __syncwarp();
            const u32 later = first + STAGES * WARPS * TILE;
            if (later < end) fetch(stage, later);
            copies_end_stage();
            stage = stage + 1 == STAGES ? 0 : stage + 1;
        }
    }
    merge.merge(me, found, active, ending);
}

#define CLUSTER_KERNEL(DIM, GROUP, WARPS, STAGES, BLOCKS)                                                     \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS)                                                     \
        placed_cluster_w##WARPS##s##STAGES##_d##DIM##_g##GROUP(const __grid_constant__ AttentionArguments p) {        \
        share_positions<DIM, GROUP, WARPS, STAGES>(p, Written{(u16*)p.y, DIM});              \
    }
// Registers for so many blocks of a processor; eight heads take two rounds to place, which want more.
#define CLUSTER_KERNELS(WARPS, STAGES, BLOCKS)       \
    CLUSTER_KERNEL(128, 2, WARPS, STAGES, BLOCKS) \
    CLUSTER_KERNEL(128, 4, WARPS, STAGES, BLOCKS) \
    CLUSTER_KERNEL(128, 8, WARPS, STAGES, (BLOCKS + 1) / 2) \
    CLUSTER_KERNEL(64, 2, WARPS, STAGES, BLOCKS)  \
    CLUSTER_KERNEL(64, 4, WARPS, STAGES, BLOCKS)  \
    CLUSTER_KERNEL(64, 8, WARPS, STAGES, (BLOCKS + 1) / 2)
CLUSTER_KERNELS(8, 1, 3)
CLUSTER_KERNELS(8, 2, 2)
CLUSTER_KERNELS(16, 1, 1)

#endif
