// Products of one row with 4-bit codes in fragments, on Hopper: linear, linear_add, norm_linear and norm_swiglu (`ops/src/operators/` of
// these names). A block's whole share of the weights is copied into its shared memory before the kernel waits for the one before it.
// Not here: other GPUs, more rows, groups of 32 (`linear_matvec.cu`).
//
// No registers are held while the block waits, so blocks of several later kernels fit beside. One kernel does all four operators, and
// what it runs after the wait is short: instructions that are run once cost some four cycles each, because they are fetched.

#if __CUDA_ARCH__ >= 900

// Row tiles of a block, of all parts.
#define MOST_TILES 16
#define MOST_WARPS 20

// Bits 0-3 and 16-19 as a pair of bfloat16, each 128 more than the code.
DEVICE u32 codes(u32 word) {
    u32 pair;
    asm("lop3.b32 %0, %1, 0x000f000f, 0x43004300, 0xea;" : "=r"(pair) : "r"(word));
    return pair;
}

// Teams of warps, a multiple of four each, share the block's row tiles. A team's warps share the units of 128 columns, UNITS each at a
// time, and go through the team's tiles with them: a warp reads its part of x once, and hands it to the tensor cores as every column of
// their second operand. GROUP columns share a scale. If there is a norm, x is normalised, and all of it is one round. Gated: tiles of
// the first part, then as many of the second.
template <int GROUP, int UNITS> DEVICE void codes_ahead(const MatvecArguments& p) {
    constexpr u32 GROUPS = 128 / GROUP, SHARERS = GROUP / 4;
    // Weights (parts, tiles, [codes | scales]), sums (parts * tiles * 16, warps), every warp's own columns of x.
    extern __shared__ __align__(128) u8 room[];
    __shared__ __align__(8) u64 arrivals[MOST_TILES];
    __shared__ __align__(16) float squares[MOST_WARPS], sums_of_x[MOST_WARPS][UNITS * GROUPS];
    next_may_start();
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, warps = blockDim.x / WARP / p.split;
    const u32 r = lane / 4, t = lane % 4, team = warp / warps, member = warp % warps;
    const bool is_gated = p.gated;
    const u32 which = part_of(p, blockIdx.x), units = p.cols / 128, all = p.together << p.gated;
    const MatvecPart& part = p.part[which];
    const u32 outputs = part.w.rows, header = part.w.header, first = (blockIdx.x - p.first[which]) * p.together;
    const u32 tiles = min(p.together, (outputs + 15) / 16 - first), tile_bytes = units * (1024 + GROUPS * 64);
    float* const sums = (float*)(room + all * tile_bytes);
    u16* const mine = (u16*)(sums + warps * all * 16) + warp * UNITS * 128;
    float* const mine_sums = sums_of_x[warp];
    const bool copies = threadIdx.x < all && threadIdx.x % p.together < tiles;
    if (copies) start_arrival(shared_address(arrivals + threadIdx.x));
    __syncwarp();
    if (copies) {
        const Weight& weight = p.part[which + threadIdx.x / p.together].w;
        const u32 arrival = shared_address(arrivals + threadIdx.x), to = shared_address(room) + threadIdx.x * tile_bytes;
        const u64 at = (u64)(first + threadIdx.x % p.together) * units;
        arrival_expects(arrival, tile_bytes);
        bulk_copy(to, weight.start + at * 1024, units * 1024, arrival);
        bulk_copy(to + units * 1024, weight.scales + at * GROUPS * 64, units * GROUPS * 64, arrival);
    }
    const bool normed = p.norm;
    Vec4 norm[UNITS];
    if (normed) {
#pragma unroll
        for (int i = 0; i < UNITS; ++i) norm[i] = load16(p.norm + min(member + i * warps, units - 1) * 128 + lane * 4);
    }
    const u32 output = first * 16 + threadIdx.x;
    const bool writes = threadIdx.x < tiles * 16 && output < outputs;
    float added = writes && part.bias ? part.bias[output] : 0.0f;
    const u16* residual = part.residual;
    u16* const y = part.y;
    const float per_col = 1.0f / p.cols, epsilon = p.epsilon;
    __syncthreads();
    wait_for_inputs();
    float square = 0.0f;
    // A warp beyond the units goes round once too, and leaves zeros.
#pragma unroll 1
    for (u32 begin = member; begin < units || begin == member; begin += UNITS * warps) {
        u32 x[UNITS][2];
#pragma unroll
        for (int i = 0; i < UNITS; ++i) load_words(x[i], p.x + min(begin + i * warps, units - 1) * 128 + lane * 4);
        if (begin == member && writes && residual) added += load_bf16(residual + output);
#pragma unroll
        for (int i = 0; i < UNITS; ++i) {
            if (normed) {
                const float a = low(x[i][0]), b = high(x[i][0]), c = low(x[i][1]), d = high(x[i][1]);
                if (begin + i * warps < units) square += a * a + b * b + c * c + d * d;
                x[i][0] = narrow2(a * __uint_as_float(norm[i].x), b * __uint_as_float(norm[i].y));
                x[i][1] = narrow2(c * __uint_as_float(norm[i].z), d * __uint_as_float(norm[i].w));
            }
            u32* to = (u32*)(mine + i * 128 + lane * 4);
            to[0] = x[i][0];
            to[1] = x[i][1];
            float sum = low(x[i][0]) + high(x[i][0]) + low(x[i][1]) + high(x[i][1]);
#pragma unroll
            for (u32 step = 1; step < SHARERS; step <<= 1) sum += __shfl_xor_sync(ALL, sum, step);
            if (lane % SHARERS == 0) mine_sums[i * GROUPS + lane / SHARERS] = sum;
        }
        __syncwarp();
#pragma unroll 1
        for (u32 tile = team; tile < all; tile += p.split) {
            if (tile % p.together >= tiles) continue;
            wait_for_arrival(shared_address(arrivals + tile));
            const u8* weights = room + tile * tile_bytes;
            const u32* scales = (const u32*)(weights + units * 1024);
            float upper = 0.0f, lower = 0.0f;
            u32 unit = begin;
#pragma unroll
            for (int i = 0; i < UNITS; ++i, unit += warps) {
                if (unit >= units) break;
                const Vec4* from = (const Vec4*)(weights + unit * 1024) + lane;
                const Vec4 front = from[0], back = from[WARP];
                const u32 words[8] = {front.x, front.y, front.z, front.w, back.x, back.y, back.z, back.w};
#pragma unroll
                for (int g = 0; g < GROUPS; ++g) {
                    const u32* scale_at = scales + (unit * GROUPS + g) * 16 + r;
                    const u32 of_upper = scale_at[0], of_lower = scale_at[8];
                    const float x_sum = mine_sums[i * GROUPS + g];
                    // Two sums, so that neighbouring products do not wait for each other.
                    float even[4] = {}, odd[4] = {};
#pragma unroll
                    for (int chunk = g * GROUP / 32; chunk < (g + 1) * GROUP / 32; ++chunk) {
                        const u32 one = words[chunk * 2], two = words[chunk * 2 + 1];
                        const Vec4 b = *(const Vec4*)(mine + i * 128 + chunk * 32 + t * 8);
                        mma(even, codes(one), codes(one >> 4), codes(one >> 8), codes(one >> 12), b.x, b.y);
                        mma(odd, codes(two), codes(two >> 4), codes(two >> 8), codes(two >> 12), b.z, b.w);
                    }
                    upper += header_half(header, of_upper >> 16) * (even[0] + odd[0] - 128.0f * x_sum) + header_half(header, (u16)of_upper) * x_sum;
                    lower += header_half(header, of_lower >> 16) * (even[2] + odd[2] - 128.0f * x_sum) + header_half(header, (u16)of_lower) * x_sum;
                }
            }
            if (t == 0) {
                float* to = sums + (tile * 16 + r) * warps + member;
                to[0] = begin == member ? upper : to[0] + upper;
                to[8 * warps] = begin == member ? lower : to[8 * warps] + lower;
            }
        }
        __syncwarp();
    }
    if (normed) {
        square = warp_sum(square);
        if (lane == 0 && team == 0) squares[member] = square;
    }
    __syncthreads();
    if (!writes) return;
    float sum = 0.0f, up = 0.0f, whole = 0.0f;
#pragma unroll 1
    for (u32 four = 0; four < warps; four += 4) {
        sum += sum_of_four(sums + threadIdx.x * warps + four);
        if (is_gated) up += sum_of_four(sums + (p.together * 16 + threadIdx.x) * warps + four);
        if (normed) whole += sum_of_four(squares + four);
    }
    if (normed) {
        const float scale = rsqrtf(whole * per_col + epsilon);
        sum *= scale;
        up *= scale;
    }
    y[output] = narrow(is_gated ? gated(sum, up) : sum + added);
}

#define AHEAD_KERNEL(NAME, GROUP, UNITS)                                                                                \
    extern "C" __global__ void __launch_bounds__(MOST_WARPS * 32, 1) NAME(const __grid_constant__ MatvecArguments p) { \
        codes_ahead<GROUP, UNITS>(p);                                                                                   \
    }
AHEAD_KERNEL(ahead_g128_u1, 128, 1)
AHEAD_KERNEL(ahead_g128_u2, 128, 2)
AHEAD_KERNEL(ahead_g128_u4, 128, 4)
AHEAD_KERNEL(ahead_g64_u1, 64, 1)
AHEAD_KERNEL(ahead_g64_u2, 64, 2)
AHEAD_KERNEL(ahead_g64_u4, 64, 4)

#endif
