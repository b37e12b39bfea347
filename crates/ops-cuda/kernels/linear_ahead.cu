// Products of one row with 4-bit codes in fragments, on Hopper: linear, linear_add, norm_linear and norm_swiglu (`ops/src/operators/` of
// these names). A block's whole share of the weights is copied into its shared memory before the kernel waits for the one before it.
// Not here: other GPUs, more rows, groups of 32 (`linear_matvec.cu`).
//
// One kernel does all four operators, and what it runs after the wait is short: instructions that are run once cost some four cycles
// each, because they are fetched. Few registers, so that blocks of several later kernels fit beside.

#if __CUDA_ARCH__ >= 900

// Row tiles of a block, of all parts.
#define MOST_TILES 16
#define MOST_WARPS 24

#define PLAIN 0
#define NORMED 1
#define GATED 2
#define HEAD 3

// Teams of warps share the block's row tiles. A team's warps share the units of 128 columns, UNITS each at a time, and go through the
// team's tiles with them: a warp reads its part of x once. GROUP columns share a scale. NORMED: x is normalised, and all of it is one
// round. GATED: so, and a block has tiles of the first part, then as many of the second. PLAIN: the blocks of a cluster share the columns;
// its first block adds what they found. HEAD: NORMED, and the largest output is found.
//
// KNOWN: the cut is known when it is compiled. Of all columns there are so many units, of a team so many warps, of a block so many row tiles
// (all of which are whole) and teams, of a cluster so many blocks, and scales are bfloat16. Then little but products is left to run.
template <int GROUP, int UNITS, int KIND, bool KNOWN = false, u32 ALL_UNITS = 1, u32 WARPS = 1, u32 TILES = 1, u32 TEAMS = 1, u32 SHARERS = 1>
DEVICE void codes_ahead(const MatvecArguments& p) {
    constexpr u32 GROUPS = 128 / GROUP, ROUNDS = (KIND == GATED ? 2 : 1) * TILES / TEAMS, TIMES = ROUNDS == 2 ? 2 : 1;
    constexpr bool ONCE = KNOWN && UNITS * WARPS * SHARERS >= ALL_UNITS;
    // Weights (parts, tiles, [codes | scales]), sums (parts * tiles * 16, warps), what other blocks found, pieces of x of every warp.
    extern __shared__ __align__(128) u8 room[];
    __shared__ __align__(8) u64 arrivals[MOST_TILES], all_found;
    __shared__ __align__(16) float squares[MOST_WARPS];
    next_may_start();
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, warps = KNOWN ? WARPS : blockDim.x / WARP / p.split;
    const u32 r = lane / 4, t = lane % 4, team = warp / warps, member = warp % warps, wide = (warps + 3) / 4 * 4;
    const u32 teams = KNOWN ? TEAMS : p.split, together = KNOWN ? TILES : p.together;
    const u32 sharers = KIND == PLAIN ? (KNOWN ? SHARERS : p.sharers) : 1, block = blockIdx.x / sharers, share = blockIdx.x % sharers;
    const u32 which = KIND == GATED ? 0 : part_of(p, block), all_units = KNOWN ? ALL_UNITS : p.cols / 128, all = KIND == GATED ? 2 * together : together;
    const u32 most_units = (all_units + sharers - 1) / sharers, first_unit = share * most_units, units = min(most_units, all_units - first_unit);
    const MatvecPart& part = p.part[which];
    const u32 outputs = part.w.rows, first = (block - p.first[which]) * together;
    const bool f16 = !KNOWN && part.w.header == HEADER_F16;
    const u32 tiles = KNOWN ? TILES : min(together, (outputs + 15) / 16 - first), tile_bytes = most_units * (1024 + GROUPS * 64);
    float* const sums = (float*)(room + all * tile_bytes);
    float* const found = sums + all * 16 * wide;
    u32* const mine = (u32*)(found + (sharers - 1) * together * 16) + warp * UNITS * UNIT_WORDS;
    const bool second = KIND == GATED && threadIdx.x >= together, copies = threadIdx.x < all && threadIdx.x - second * together < tiles;
    if (copies) start_arrival(shared_address(arrivals + threadIdx.x));
    __syncwarp();
    if (copies) {
        const Weight& weight = p.part[which + second].w;
        const u32 arrival = shared_address(arrivals + threadIdx.x), to = shared_address(room) + threadIdx.x * tile_bytes;
        const u64 at = (u64)(first + threadIdx.x - second * together) * all_units + first_unit;
        arrival_expects(arrival, units * (1024 + GROUPS * 64));
        bulk_copy(to, weight.start + at * 1024, units * 1024, arrival);
        bulk_copy(to + most_units * 1024, weight.scales + at * GROUPS * 64, units * GROUPS * 64, arrival);
    }
    if (KIND == PLAIN && sharers > 1) {
        if (threadIdx.x == 0) {
            start_arrival(shared_address(&all_found));
            if (share == 0) arrival_expects(shared_address(&all_found), (sharers - 1) * (KNOWN ? tiles * 16 : min(tiles * 16, outputs - first * 16)) * 4);
        }
        cluster_arrive_relaxed();
    }
    Vec4 norm[UNITS];
    if (KIND != PLAIN) {
#pragma unroll
        for (int i = 0; i < UNITS; ++i) norm[i] = load16(p.norm + min(member + i * warps, units - 1) * 128 + lane * 4);
    }
    const u32 output = first * 16 + threadIdx.x;
    const bool writes = threadIdx.x < tiles * 16 && (KNOWN || output < outputs);
    float added = KIND == PLAIN && writes && part.bias ? part.bias[output] : 0.0f;
    const u16* const residual = KIND == PLAIN && writes && share == 0 ? part.residual : nullptr;
    u16* const y = part.y;
    const float per_col = KNOWN ? 1.0f / (ALL_UNITS * 128) : p.per_col, epsilon = p.epsilon;
    const u16* const x_at = p.x + first_unit * 128 + lane * 4;
    const Times times(lane);
    u32* const place = piece_place(mine, lane);
    const Vec4* const pieces = pieces_of(mine, lane);
    for (u32 at = lane; at < UNITS * 32; at += WARP) mine[at / 32 * UNIT_WORDS + 3 * COLUMN_WORDS + at % 32] = 0x01010101u;
    // Sums are read four at a time.
    if (threadIdx.x < MOST_WARPS) squares[threadIdx.x] = 0.0f;
    for (u32 row = threadIdx.x; row < all * 16; row += blockDim.x) {
        for (u32 at = warps; at < wide; ++at) sums[row * wide + at] = 0.0f;
    }
    __syncthreads();
    // The first block's barrier is ready.
    if (KIND == PLAIN && sharers > 1) cluster_wait();
    wait_for_inputs();
    float square = 0.0f;
    Counts<GROUPS> counts[UNITS];
    // A warp beyond the units goes round once too, and leaves zeros.
#pragma unroll 1
    for (u32 begin = member; begin < units || begin == member; begin += UNITS * warps) {
        u32 words[UNITS][2];
#pragma unroll
        for (int i = 0; i < UNITS; ++i) load_words(words[i], x_at + (ONCE && WARPS * UNITS * sharers == ALL_UNITS ? begin + i * warps : min(begin + i * warps, units - 1)) * 128);
        if (KIND == PLAIN && residual && begin == member) added += load_bf16(residual + output);
#pragma unroll
        for (int i = 0; i < UNITS; ++i) {
            float x[4] = {low(words[i][0]), high(words[i][0]), low(words[i][1]), high(words[i][1])};
            if (KIND != PLAIN) {
                const float more = x[0] * x[0] + x[1] * x[1] + x[2] * x[2] + x[3] * x[3];
                if (begin + i * warps < units) square += more;
                x[0] *= __uint_as_float(norm[i].x);
                x[1] *= __uint_as_float(norm[i].y);
                x[2] *= __uint_as_float(norm[i].z);
                x[3] *= __uint_as_float(norm[i].w);
            }
            counts[i] = cut_pieces<GROUPS>(x, place + i * UNIT_WORDS, lane);
        }
        if (KIND != PLAIN && ONCE) square = warp_sum(square);
        __syncwarp();
#pragma unroll (TIMES)
        for (u32 tile = team; tile < all; tile += teams) {
            if (!KNOWN && (KIND == GATED && tile >= together ? tile - together : tile) >= tiles) continue;
            wait_for_arrival(shared_address(arrivals + tile));
            const u8* const weights = room + tile * tile_bytes;
            const u32* const scales = (const u32*)(weights + most_units * 1024) + r;
            float upper = 0.0f, lower = 0.0f;
            u32 unit = begin;
#pragma unroll
            for (int i = 0; i < UNITS; ++i, unit += warps) {
                if (unit >= units) break;
                const Vec4* const from = (const Vec4*)(weights + unit * 1024) + lane;
                add_unit<GROUP>(from, scales + unit * GROUPS * 16, pieces + i * UNIT_WORDS / 4, counts[i], times, f16, upper, lower);
            }
            upper += __shfl_xor_sync(ALL, upper, 1);
            lower += __shfl_xor_sync(ALL, lower, 1);
            if (t == 0) {
                float* const to = sums + (tile * 16 + r) * wide + member;
                if (KIND == PLAIN && !ONCE && begin != member) {
                    upper += to[0];
                    lower += to[8 * wide];
                }
                to[0] = upper;
                to[8 * wide] = lower;
            }
        }
        if (KIND != PLAIN || ONCE) break;
        __syncwarp();
    }
    if (KIND != PLAIN) {
        if (!ONCE) square = warp_sum(square);
        if (lane == 0 && team == 0) squares[member] = square;
    }
    __syncthreads();
    // Whole warps look for the largest.
    if (KIND == HEAD ? warp * WARP >= tiles * 16 : KIND != PLAIN && !writes) return;
    float sum = 0.0f, up = 0.0f, whole = 0.0f;
    if ((KIND != PLAIN && KIND != HEAD) || writes) {
#pragma unroll 2
        for (u32 four = 0; four < wide; four += 4) {
            sum += sum_of_four(sums + threadIdx.x * wide + four);
            if (KIND == GATED) up += sum_of_four(sums + (together * 16 + threadIdx.x) * wide + four);
            if (KIND != PLAIN) whole += sum_of_four(squares + four);
        }
    }
    if (KIND == PLAIN && sharers > 1) {
        const u32 arrival = shared_address(&all_found);
        if (share > 0) {
            const u32 to = shared_address(found + (share - 1) * together * 16 + threadIdx.x);
            if (writes) send(in_block(to, 0), sum, in_block(arrival, 0));
            return;
        }
        wait_for_arrival(arrival);
        if (writes) {
            for (u32 other = 1; other < sharers; ++other) sum += found[(other - 1) * together * 16 + threadIdx.x];
        }
    }
    if (KIND == PLAIN && !writes) return;
    if (KIND != PLAIN) {
        const float scale = rsqrtf(whole * per_col + epsilon);
        sum *= scale;
        up *= scale;
    }
    const u16 bits = narrow(KIND == GATED ? gated(sum, up) : sum + added);
    if (KIND != HEAD || writes) y[output] = bits;
    if (KIND == HEAD) say_largest(p.best, 0, writes, bits, output);
}

// The most warps of which two blocks' registers fit a processor; where groups are halves of a unit, products alone want one block's.
#define AHEAD_KERNEL(NAME, GROUP, UNITS, KIND, WARPS)                                                               \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, GROUP == 64 && KIND == PLAIN ? 1 : 2) NAME(const __grid_constant__ MatvecArguments p) { \
        codes_ahead<GROUP, UNITS, KIND>(p);                                                                         \
    }
AHEAD_KERNEL(ahead_g128_u1, 128, 1, PLAIN, 20)
AHEAD_KERNEL(norm_ahead_g128_u1, 128, 1, NORMED, 20)
AHEAD_KERNEL(gated_ahead_g128_u1, 128, 1, GATED, 20)
AHEAD_KERNEL(ahead_g128_u2, 128, 2, PLAIN, 16)
AHEAD_KERNEL(norm_ahead_g128_u2, 128, 2, NORMED, 16)
AHEAD_KERNEL(gated_ahead_g128_u2, 128, 2, GATED, 16)
AHEAD_KERNEL(head_ahead_g128_u2, 128, 2, HEAD, 16)
AHEAD_KERNEL(ahead_g64_u1, 64, 1, PLAIN, 20)
AHEAD_KERNEL(norm_ahead_g64_u1, 64, 1, NORMED, 20)
AHEAD_KERNEL(gated_ahead_g64_u1, 64, 1, GATED, 20)
AHEAD_KERNEL(ahead_g64_u2, 64, 2, PLAIN, 16)
AHEAD_KERNEL(norm_ahead_g64_u2, 64, 2, NORMED, 16)
AHEAD_KERNEL(gated_ahead_g64_u2, 64, 2, GATED, 16)
AHEAD_KERNEL(head_ahead_g64_u2, 64, 2, HEAD, 16)

// For rows of so many units, in the cuts of Qwen3-0.6B and 4B (`ahead.rs`), with registers for so many blocks of a Hopper processor.
#define KNOWN_KERNEL(NAME, GROUP, UNITS, KIND, ALL_UNITS, WARPS, TILES, TEAMS, SHARERS, BLOCKS)                                        \
    extern "C" __global__ void __launch_bounds__(WARPS * TEAMS * 32, __CUDA_ARCH__ == 900 ? BLOCKS : 1)                                \
        NAME(const __grid_constant__ MatvecArguments p) {                                                                             \
        codes_ahead<GROUP, UNITS, KIND, true, ALL_UNITS, WARPS, TILES, TEAMS, SHARERS>(p);                                             \
    }
KNOWN_KERNEL(norm_ahead_8, 128, 1, NORMED, 8, 8, 1, 1, 1, 4)
KNOWN_KERNEL(ahead_16, 128, 2, PLAIN, 16, 4, 1, 1, 2, 8)
KNOWN_KERNEL(gated_ahead_8, 128, 1, GATED, 8, 8, 2, 2, 1, 2)
KNOWN_KERNEL(ahead_24, 128, 2, PLAIN, 24, 12, 1, 1, 1, 2)
KNOWN_KERNEL(head_ahead_8, 128, 2, HEAD, 8, 4, 2, 1, 1, 8)
KNOWN_KERNEL(norm_ahead_20, 128, 2, NORMED, 20, 10, 2, 1, 1, 3)
KNOWN_KERNEL(ahead_32, 128, 2, PLAIN, 32, 16, 1, 1, 1, 2)
KNOWN_KERNEL(gated_ahead_20, 128, 1, GATED, 20, 20, 2, 1, 1, 2)
KNOWN_KERNEL(head_ahead_20, 128, 2, HEAD, 20, 10, 4, 1, 1, 3)
KNOWN_KERNEL(norm_deep_8, 128, 2, NORMED, 8, 4, 2, 1, 1, 7)
KNOWN_KERNEL(deep_16, 128, 1, PLAIN, 16, 8, 1, 1, 2, 4)
KNOWN_KERNEL(gated_deep_8, 128, 1, GATED, 8, 8, 1, 1, 1, 4)
KNOWN_KERNEL(deep_24, 128, 1, PLAIN, 24, 12, 1, 1, 2, 2)

#endif
