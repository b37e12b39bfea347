// Products of one to eight rows with 4-bit codes in fragments: linear, linear_add, norm_linear and norm_swiglu (`ops/src/operators/` of
// these names). Weights are read once, at the memory's speed, and are the 16-row operand of the tensor cores; rows of x are the
// columns. Weights are asked for before this kernel waits for the one before it. Not here: bfloat16 weights (`linear_plain.cu`).

// Bits 0-3 and 16-19 as a pair of bfloat16, each 128 more than the code.
DEVICE u32 codes(u32 word) {
    u32 pair;
    asm("lop3.b32 %0, %1, 0x000f000f, 0x43004300, 0xea;" : "=r"(pair) : "r"(word));
    return pair;
}

DEVICE u32 word_of(const Vec4& v, u32 index) { return index == 0 ? v.x : index == 1 ? v.y : index == 2 ? v.z : v.w; }

// Longest input that is staged as it is.
#define MOST_RAW 10240

// A block has TILES tiles of 16 outputs; its warps take units of 128 columns in turn, UNITS at a time. GROUP columns share a scale.
// NORM: x is normalised. GATED: tile 0 is the first part's, tile 1 the second's, and the block ends in their gated activation.
template <int GROUP, int TILES, int UNITS, bool NORM, bool GATED> DEVICE void fragments(const MatvecArguments& p) {
    extern __shared__ __align__(16) float room[];  // sums (warps, TILES, 16, 8), squares (warps, 8), then the norm (cols), or of one row
                                              // bfloat16 of x times the norm
    next_may_start();
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, warps = blockDim.x / WARP, r = lane / 4, t = lane % 4;
    const u32 which = GATED ? 0 : part_of(p, blockIdx.x);
    const u32 units = p.cols / 128, first_tile = GATED ? blockIdx.x : (blockIdx.x - p.first[which]) * TILES;
    const u32 outputs = p.part[which].w.rows, tiles = (outputs + 15) / 16;
    const u32 header = p.part[which].w.header;
    constexpr int GROUPS = 128 / GROUP;
    float *sums = room, *squares = room + warps * TILES * 128, *norm = squares + warps * 8;
    float total[TILES][4] = {};
    Vec4 w[TILES][UNITS][2];
    u32 s[TILES][UNITS][GROUPS][2];

    auto fetch = [&](u32 first) {
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
            const Weight& weight = p.part[GATED ? tile : which].w;
            const u8* start = weight.start;
            const u32* scales = (const u32*)weight.scales;
            u32 at_tile = GATED ? first_tile : min(first_tile + tile, tiles - 1);
#pragma unroll
            for (int i = 0; i < UNITS; ++i) {
                u32 unit = first + i * warps;
                if (unit < units) {
                    u64 at = (u64)at_tile * units + unit;
                    w[tile][i][0] = stream16(start + at * 1024 + lane * 16);
                    w[tile][i][1] = stream16(start + at * 1024 + 512 + lane * 16);
#pragma unroll
                    for (int g = 0; g < GROUPS; ++g) {
                        s[tile][i][g][0] = scales[(at * GROUPS + g) * 16 + r];
                        s[tile][i][g][1] = scales[(at * GROUPS + g) * 16 + r + 8];
                    }
                }
            }
        }
    };

    fetch(warp);
    // A single row goes through shared memory where all of a block's warps want it often: normalised, or as it is.
    constexpr bool STAGED = NORM || UNITS == 4;
    __shared__ __align__(16) u16 raw[STAGED && !NORM ? MOST_RAW : 8];
    const bool one = STAGED && p.rows == 1 && (NORM || p.cols <= MOST_RAW);
    const u32 mine = threadIdx.x * 8;
    float kept[8];
    if (one) {
        if (NORM && mine < p.cols) {
#pragma unroll
            for (int i = 0; i < 8; ++i) kept[i] = p.norm[mine + i];
        }
    } else if (NORM) {
        // Each warp its own units' part.
        for (u32 unit = warp; unit < units; unit += warps) *(Vec4*)(norm + unit * 128 + lane * 4) = load16(p.norm + unit * 128 + lane * 4);
        __syncwarp();
    }
    wait_for_inputs();
    const bool has_row = r < p.rows;
    const u16* x_row = p.x + (u64)(has_row ? r : 0) * p.cols + t * 8;
    u16* const whole = NORM ? (u16*)norm : raw;
    const u16* staged = whole + t * 8;
    float square = 0.0f;
    if (one) {
        for (u32 at = mine; at < p.cols; at += blockDim.x * 8) {
            Vec4 x = load16(p.x + at);
            if (NORM) square += at == mine ? normed8(x, kept) : normed8(x, p.norm + at);
            *(Vec4*)(whole + at) = x;
        }
        __syncthreads();
    }
    for (u32 first = warp; first < units; first += UNITS * warps) {
        if (first != warp) fetch(first);
        // Of two units at a time, all loads before the first use, where registers last.
        constexpr int TOGETHER = UNITS == 2 ? 2 : 1;
        Vec4 ahead[TOGETHER][4];
#pragma unroll
        for (int i = 0; i < UNITS; ++i) {
            if (!NORM && UNITS < 4 && i % TOGETHER == 0) {
#pragma unroll
                for (int n = 0; n < TOGETHER; ++n) {
#pragma unroll
                    for (int chunk = 0; chunk < 4; ++chunk) {
                        ahead[n][chunk] = load16(x_row + min(first + (i + n) * warps, units - 1) * 128 + chunk * 32);
                    }
                }
            }
            u32 unit = first + i * warps;
            if (unit >= units) continue;
#pragma unroll
            for (int g = 0; g < GROUPS; ++g) {
                // Sums of x over the group, in the same places as the products: a matrix of ones times x.
                float ones[4] = {}, dot[TILES][4] = {};
#pragma unroll
                for (int chunk = g * GROUP / 32; chunk < (g + 1) * GROUP / 32; ++chunk) {
                    Vec4 x;
                    if (one) {
                        x = *(const Vec4*)(staged + unit * 128 + chunk * 32);
                    } else if (STAGED) {
                        x = load16(x_row + unit * 128 + chunk * 32);
                        if (NORM) {
                            float more = normed8(x, norm + unit * 128 + chunk * 32 + t * 8);
                            square += has_row ? more : 0.0f;
                        }
                    } else {
                        x = ahead[i % TOGETHER][chunk];
                    }
                    if (!has_row) x = Vec4{0, 0, 0, 0};
                    mma(ones, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u, x.x, x.y);
                    mma(ones, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u, x.z, x.w);
#pragma unroll
                    for (int tile = 0; tile < TILES; ++tile) {
                        u32 a = word_of(w[tile][i][chunk / 2], chunk % 2 * 2), b = word_of(w[tile][i][chunk / 2], chunk % 2 * 2 + 1);
                        mma(dot[tile], codes(a), codes(a >> 4), codes(a >> 8), codes(a >> 12), x.x, x.y);
                        mma(dot[tile], codes(b), codes(b >> 4), codes(b >> 8), codes(b >> 12), x.z, x.w);
                    }
                }
#pragma unroll
                for (int tile = 0; tile < TILES; ++tile) {
#pragma unroll
                    for (int side = 0; side < 2; ++side) {
                        u32 word = s[tile][i][g][side];
                        float scale = header_half(header, word >> 16), bias = header_half(header, (u16)word) - 128.0f * scale;
                        total[tile][side * 2] += scale * dot[tile][side * 2] + bias * ones[side * 2];
                        total[tile][side * 2 + 1] += scale * dot[tile][side * 2 + 1] + bias * ones[side * 2 + 1];
                    }
                }
            }
        }
    }
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
        float* to = sums + (warp * TILES + tile) * 128;
        to[r * 8 + 2 * t] = total[tile][0];
        to[r * 8 + 2 * t + 1] = total[tile][1];
        to[(r + 8) * 8 + 2 * t] = total[tile][2];
        to[(r + 8) * 8 + 2 * t + 1] = total[tile][3];
    }
    if (NORM && one) {
        square = warp_sum(square);
        if (lane == 0) squares[warp * 8] = square;
    } else if (NORM) {
        square += __shfl_xor_sync(ALL, square, 1);
        square += __shfl_xor_sync(ALL, square, 2);
        if (t == 0) squares[warp * 8 + r] = square;
    }
    __syncthreads();
    constexpr u32 WIDE = GATED ? 16 : TILES * 16;
    for (u32 at = threadIdx.x; at < WIDE * p.rows; at += blockDim.x) {
        u32 row = at / WIDE, output = at % WIDE, global = first_tile * 16 + output;
        if (global >= outputs) continue;
        float sum = 0.0f, up = 0.0f, scale = 1.0f;
        for (u32 other = 0; other < warps; ++other) {
            sum += sums[other * TILES * 128 + output * 8 + row];
            if (GATED) up += sums[(other * TILES + 1) * 128 + output * 8 + row];
        }
        if (NORM) {
            float all = 0.0f;
            for (u32 other = 0; other < warps; ++other) all += squares[other * 8 + row];
            scale = rsqrtf(all / p.cols + p.epsilon);
        }
        if (GATED) put(p.part[0], row, global, gated(sum * scale, up * scale));
        else put(p.part[which], row, global, sum * scale);
    }
}

// Two tiles want more registers than 16 warps leave them.
#define FRAGMENT_KERNEL(NAME, GROUP, TILES, UNITS, NORM, GATED)                                               \
    extern "C" __global__ void __launch_bounds__(TILES == 1 ? 512 : 384, 1) NAME(const __grid_constant__ MatvecArguments p) {       \
        fragments<GROUP, TILES, UNITS, NORM, GATED>(p);                                                       \
    }
FRAGMENT_KERNEL(matvec_g128_t1u1, 128, 1, 1, false, false)
FRAGMENT_KERNEL(matvec_g128_t1u2, 128, 1, 2, false, false)
FRAGMENT_KERNEL(matvec_g128_t1u4, 128, 1, 4, false, false)
FRAGMENT_KERNEL(norm_g128_t1u1, 128, 1, 1, true, false)
FRAGMENT_KERNEL(norm_g128_t1u2, 128, 1, 2, true, false)
FRAGMENT_KERNEL(gated_g128_u1, 128, 2, 1, true, true)
FRAGMENT_KERNEL(gated_g128_u2, 128, 2, 2, true, true)
FRAGMENT_KERNEL(matvec_g64_t1u1, 64, 1, 1, false, false)
FRAGMENT_KERNEL(matvec_g64_t1u2, 64, 1, 2, false, false)
FRAGMENT_KERNEL(matvec_g64_t1u4, 64, 1, 4, false, false)
FRAGMENT_KERNEL(norm_g64_t1u1, 64, 1, 1, true, false)
FRAGMENT_KERNEL(norm_g64_t1u2, 64, 1, 2, true, false)
FRAGMENT_KERNEL(gated_g64_u1, 64, 2, 1, true, true)
FRAGMENT_KERNEL(gated_g64_u2, 64, 2, 2, true, true)
FRAGMENT_KERNEL(matvec_g32_t1u1, 32, 1, 1, false, false)
FRAGMENT_KERNEL(norm_g32_t1u1, 32, 1, 1, true, false)
FRAGMENT_KERNEL(gated_g32_u1, 32, 2, 1, true, true)
