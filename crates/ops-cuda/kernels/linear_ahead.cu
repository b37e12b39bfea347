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

// A number of 22 bits is three bytes, which are columns of the tensor cores' second operand; a fourth is ones, for what is added to the
// bytes so that all are signed. So many words lie between two of these rows that no bank serves both.
#define COLUMNS 4u
#define COLUMN_WORDS 48u

// What a lane's two columns of a unit's products count, and what is added per group: the sum of x, for the one lane that says it.
struct alignas(16) Counts { float one, two, sums[2]; };
// Of all that stands in shared memory for a unit of x.
#define UNIT_WORDS (COLUMNS * COLUMN_WORDS + 16)

// 16 x 8 += (16 x 32) (32 x 8): codes times signed bytes, exactly.
DEVICE void mma_codes(int (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

DEVICE int sum_of_warp(int x) {
    int all;
    asm volatile("redux.sync.add.s32 %0, %1, 0xffffffff;" : "=r"(all) : "r"(x));
    return all;
}

// What is not a number stays so.
DEVICE float larger_of(float x, float y) {
    float z;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
    return z;
}

// Four columns of a unit's 128 for each lane become whole numbers of 22 bits times a power of two: as fine as bfloat16 for all but what is
// 2^13 times smaller than the largest.
template <int GROUPS> DEVICE void cut_pieces(const float (&x)[4], u32* to) {
    const u32 lane = threadIdx.x % WARP;
    const float largest = larger_of(larger_of(fabsf(x[0]), fabsf(x[1])), larger_of(fabsf(x[2]), fabsf(x[3])));
    // Numbers below 2^-106 count as such.
    const u32 exponent = max(largest_of_warp(__float_as_uint(largest)) >> 23, 21u);
    const float fine = __uint_as_float((274 - exponent) << 23);
    const float step = exponent == 255 ? __uint_as_float(0x7fc00000u) : __uint_as_float((exponent - 20) << 23);
    // Rounded by adding 1.5 * 2^23, whose bits 16 to 23 are 64.
    u32 whole[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) whole[i] = __float_as_uint(fmaf(x[i], fine, 12582912.0f));
    // In the order in which codes of four columns lie in a word.
    const u32 front = __byte_perm(whole[0], whole[2], 0x5140), back = __byte_perm(whole[1], whole[3], 0x5140);
    const u32 high = __byte_perm(__byte_perm(whole[0], whole[2], 0x0062), __byte_perm(whole[1], whole[3], 0x0062), 0x5410);
    // Two words for each of a lane's two chunks of 32 columns stand together.
    u32* const at = to + lane / 16 * 16 + lane / 2 % 4 * 4 + lane / 8 % 2 * 2 + lane % 2;
    at[0] = high;
    at[COLUMN_WORDS] = __byte_perm(front, back, 0x7632) ^ 0x80808080u;
    at[2 * COLUMN_WORDS] = __byte_perm(front, back, 0x5410) ^ 0x80808080u;
    const int sum = (int)(whole[0] + whole[1] + whole[2] + whole[3] - 4 * 0x4b400000u);
    float sums[2] = {};
#pragma unroll
    for (u32 g = 0; g < GROUPS; ++g) sums[g] = (float)sum_of_warp(GROUPS == 1 || lane / (WARP / GROUPS) == g ? sum : 0) * step;
    if (lane < 4) {
        // Lane 0 has the columns of the high and the middle byte, lane 1 those of the low byte and of ones: -64 * 2^16 + 128 * 2^8 + 128.
        const float one = lane == 0 ? 65536.0f : 1.0f, two = lane == 0 ? 256.0f : -4161408.0f, counts = lane < 2 ? step : 0.0f;
        const bool says = lane == 0;
        *(Counts*)(to + COLUMNS * COLUMN_WORDS + lane * 4) = Counts{one * counts, two * counts, {says ? sums[0] : 0.0f, says ? sums[1] : 0.0f}};
    }
}

#define PLAIN 0
#define NORMED 1
#define GATED 2
#define HEAD 3

// Teams of warps share the block's row tiles. A team's warps share the units of 128 columns, UNITS each at a time, and go through the
// team's tiles with them: a warp reads its part of x once. GROUP columns share a scale. NORMED: x is normalised, and all of it is one
// round. GATED: so, and a block has tiles of the first part, then as many of the second. PLAIN: the blocks of a cluster share the columns;
// its first block adds what they found. HEAD: NORMED, and the largest output is found.
template <int GROUP, int UNITS, int KIND> DEVICE void codes_ahead(const MatvecArguments& p) {
    constexpr u32 GROUPS = 128 / GROUP;
    // Weights (parts, tiles, [codes | scales]), sums (parts * tiles * 16, warps), what other blocks found, pieces of x of every warp.
    extern __shared__ __align__(128) u8 room[];
    __shared__ __align__(8) u64 arrivals[MOST_TILES], all_found;
    __shared__ __align__(16) float squares[MOST_WARPS];
    next_may_start();
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, warps = blockDim.x / WARP / p.split;
    const u32 r = lane / 4, t = lane % 4, team = warp / warps, member = warp % warps, wide = (warps + 3) / 4 * 4;
    const u32 sharers = KIND == PLAIN ? p.sharers : 1, block = blockIdx.x / sharers, share = blockIdx.x % sharers;
    const u32 which = KIND == GATED ? 0 : part_of(p, block), all_units = p.cols / 128, all = KIND == GATED ? 2 * p.together : p.together;
    const u32 most_units = (all_units + sharers - 1) / sharers, first_unit = share * most_units, units = min(most_units, all_units - first_unit);
    const MatvecPart& part = p.part[which];
    const u32 outputs = part.w.rows, first = (block - p.first[which]) * p.together;
    const bool f16 = part.w.header == HEADER_F16;
    const u32 tiles = min(p.together, (outputs + 15) / 16 - first), tile_bytes = most_units * (1024 + GROUPS * 64);
    float* const sums = (float*)(room + all * tile_bytes);
    float* const found = sums + all * 16 * wide;
    u32* const mine = (u32*)(found + (sharers - 1) * p.together * 16) + warp * UNITS * UNIT_WORDS;
    const bool second = KIND == GATED && threadIdx.x >= p.together, copies = threadIdx.x < all && threadIdx.x - second * p.together < tiles;
    if (copies) start_arrival(shared_address(arrivals + threadIdx.x));
    __syncwarp();
    if (copies) {
        const Weight& weight = p.part[which + second].w;
        const u32 arrival = shared_address(arrivals + threadIdx.x), to = shared_address(room) + threadIdx.x * tile_bytes;
        const u64 at = (u64)(first + threadIdx.x - second * p.together) * all_units + first_unit;
        arrival_expects(arrival, units * (1024 + GROUPS * 64));
        bulk_copy(to, weight.start + at * 1024, units * 1024, arrival);
        bulk_copy(to + most_units * 1024, weight.scales + at * GROUPS * 64, units * GROUPS * 64, arrival);
    }
    if (KIND == PLAIN && sharers > 1) {
        if (threadIdx.x == 0) {
            start_arrival(shared_address(&all_found));
            if (share == 0) arrival_expects(shared_address(&all_found), (sharers - 1) * min(tiles * 16, outputs - first * 16) * 4);
        }
        cluster_arrive_relaxed();
    }
    Vec4 norm[UNITS];
    if (KIND != PLAIN) {
#pragma unroll
        for (int i = 0; i < UNITS; ++i) norm[i] = load16(p.norm + min(member + i * warps, units - 1) * 128 + lane * 4);
    }
    const u32 output = first * 16 + threadIdx.x;
    const bool writes = threadIdx.x < tiles * 16 && output < outputs;
    float added = KIND == PLAIN && writes && part.bias ? part.bias[output] : 0.0f;
    const u16* const residual = KIND == PLAIN && writes && share == 0 ? part.residual : nullptr;
    u16* const y = part.y;
    const float per_col = 1.0f / p.cols, epsilon = p.epsilon;
    const u16* const x_at = p.x + first_unit * 128 + lane * 4;
    for (u32 at = lane; at < UNITS * 32; at += WARP) mine[at / 32 * UNIT_WORDS + 3 * COLUMN_WORDS + at % 32] = 0x01010101u;
    // Sums are read four at a time.
    if (threadIdx.x < MOST_WARPS) squares[threadIdx.x] = 0.0f;
    for (u32 at = threadIdx.x; at < all * 16 * (wide - warps); at += blockDim.x) sums[at / (wide - warps) * wide + warps + at % (wide - warps)] = 0.0f;
    __syncthreads();
    // The first block's barrier is ready.
    if (KIND == PLAIN && sharers > 1) cluster_wait();
    wait_for_inputs();
    float square = 0.0f;
    // A warp beyond the units goes round once too, and leaves zeros.
#pragma unroll 1
    for (u32 begin = member; begin < units || begin == member; begin += UNITS * warps) {
        u32 words[UNITS][2];
#pragma unroll
        for (int i = 0; i < UNITS; ++i) load_words(words[i], x_at + min(begin + i * warps, units - 1) * 128);
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
            cut_pieces<GROUPS>(x, mine + i * UNIT_WORDS);
        }
        __syncwarp();
#pragma unroll 1
        for (u32 tile = team; tile < all; tile += p.split) {
            if ((KIND == GATED && tile >= p.together ? tile - p.together : tile) >= tiles) continue;
            wait_for_arrival(shared_address(arrivals + tile));
            const u8* const weights = room + tile * tile_bytes;
            const u32* const scales = (const u32*)(weights + most_units * 1024) + r;
            float upper = 0.0f, lower = 0.0f;
            u32 unit = begin;
#pragma unroll
            for (int i = 0; i < UNITS; ++i, unit += warps) {
                if (unit >= units) break;
                const Vec4* const from = (const Vec4*)(weights + unit * 1024) + lane;
                // Columns beyond the fourth repeat it, and are not used.
                const Vec4* const pieces = (const Vec4*)(mine + i * UNIT_WORDS + min(r, COLUMNS - 1) * COLUMN_WORDS) + t;
                const Vec4 front = from[0], near = pieces[0], back = from[WARP], far = pieces[4];
                const Counts counts = *(const Counts*)(mine + i * UNIT_WORDS + COLUMNS * COLUMN_WORDS + t * 4);
                const u32 codes[8] = {front.x, front.y, front.z, front.w, back.x, back.y, back.z, back.w};
                const u32 xs[8] = {near.x, near.y, near.z, near.w, far.x, far.y, far.z, far.w};
#pragma unroll
                for (int g = 0; g < GROUPS; ++g) {
                    const u32 of_upper = scales[(unit * GROUPS + g) * 16], of_lower = scales[(unit * GROUPS + g) * 16 + 8];
                    int sum[4] = {};
#pragma unroll
                    for (int chunk = g * GROUP / 32; chunk < (g + 1) * GROUP / 32; ++chunk) {
                        const u32 one = codes[chunk * 2], two = codes[chunk * 2 + 1];
                        mma_codes(sum, one & 0x0f0f0f0fu, one & 0xf0f0f0f0u, two & 0x0f0f0f0fu, two & 0xf0f0f0f0u, xs[chunk * 2], xs[chunk * 2 + 1]);
                    }
                    const float of_codes = (float)sum[0] * counts.one + (float)sum[1] * counts.two;
                    // The lower row's codes stand four bits higher.
                    const float of_others = ((float)sum[2] * counts.one + (float)sum[3] * counts.two) * 0.0625f;
                    float scale = high(of_upper), bias = low(of_upper), scale_lower = high(of_lower), bias_lower = low(of_lower);
                    if (f16) {
                        scale = from_f16(of_upper >> 16);
                        bias = from_f16((u16)of_upper);
                        scale_lower = from_f16(of_lower >> 16);
                        bias_lower = from_f16((u16)of_lower);
                    }
                    upper += scale * of_codes + bias * counts.sums[g];
                    lower += scale_lower * of_others + bias_lower * counts.sums[g];
                }
            }
            upper += __shfl_xor_sync(ALL, upper, 1);
            lower += __shfl_xor_sync(ALL, lower, 1);
            if (t == 0) {
                float* const to = sums + (tile * 16 + r) * wide + member;
                if (KIND == PLAIN && begin != member) {
                    upper += to[0];
                    lower += to[8 * wide];
                }
                to[0] = upper;
                to[8 * wide] = lower;
            }
        }
        if (KIND != PLAIN) break;
        __syncwarp();
    }
    if (KIND != PLAIN) {
        square = warp_sum(square);
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
            if (KIND == GATED) up += sum_of_four(sums + (p.together * 16 + threadIdx.x) * wide + four);
            if (KIND != PLAIN) whole += sum_of_four(squares + four);
        }
    }
    if (KIND == PLAIN && sharers > 1) {
        const u32 arrival = shared_address(&all_found);
        if (share > 0) {
            const u32 to = shared_address(found + (share - 1) * p.together * 16 + threadIdx.x);
            if (writes) send(in_block(to, 0), sum, in_block(arrival, 0));
            return;
        }
        wait_for_arrival(arrival);
        if (writes) {
            for (u32 other = 1; other < sharers; ++other) sum += found[(other - 1) * p.together * 16 + threadIdx.x];
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

// The most warps of which two blocks' registers fit a processor.
#define AHEAD_KERNEL(NAME, GROUP, UNITS, KIND, WARPS)                                                               \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, 2) NAME(const __grid_constant__ MatvecArguments p) { \
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

#endif
