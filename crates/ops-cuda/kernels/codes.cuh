// Products of 4-bit codes in fragments with a row of x, through integer tensor cores: x in pieces, and a warp's product with a unit of
// 16 rows x 128 columns. Not here: where codes come from, and what becomes of the sums (`linear_ahead.cu`).

#if __CUDA_ARCH__ >= 900

// A number of 22 bits is three bytes, which are columns of the tensor cores' second operand; a fourth is ones, for what is added to the
// bytes so that all are signed. So many words lie between two of these rows that no bank serves both.
#define COLUMNS 4u
#define COLUMN_WORDS 48u
// Of all that stands in shared memory for a unit of x.
#define UNIT_WORDS (COLUMNS * COLUMN_WORDS)

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

// What the pieces of a unit of x count: their step, and the sum of x of each group.
template <int GROUPS> struct Counts { float step, sums[GROUPS]; };

// What a lane's two columns of products are times of a step: lanes 4i have those of the high and the middle byte, lanes 4i + 1 those of the
// low byte and of ones (-64 * 2^16 + 128 * 2^8 + 128), the others nothing.
struct Times {
    float one, two;
    bool says;  // adds what biases add
    DEVICE explicit Times(u32 lane) {
        const u32 t = lane % 4;
        one = t == 0 ? 65536.0f : t == 1 ? 1.0f : 0.0f;
        two = t == 0 ? 256.0f : t == 1 ? -4161408.0f : 0.0f;
        says = t == 0;
    }
};

// A lane's place among the pieces of a unit, and among those that it multiplies with; columns beyond the fourth repeat it, and are not used.
DEVICE u32* piece_place(u32* pieces, u32 lane) { return pieces + lane / 16 * 16 + lane / 2 % 4 * 4 + lane / 8 % 2 * 2 + lane % 2; }
DEVICE const Vec4* pieces_of(const u32* pieces, u32 lane) { return (const Vec4*)(pieces + min(lane / 4, COLUMNS - 1) * COLUMN_WORDS) + lane % 4; }

// Four columns of a unit's 128 for each lane become whole numbers of 22 bits times a power of two: as fine as bfloat16 for all but what is
// 2^13 times smaller than the largest.
template <int GROUPS> DEVICE Counts<GROUPS> cut_pieces(const float (&x)[4], u32* place, u32 lane) {
    const float largest = larger_of(larger_of(fabsf(x[0]), fabsf(x[1])), larger_of(fabsf(x[2]), fabsf(x[3])));
    // Numbers below 2^-106 count as such.
    const u32 exponent = max(largest_of_warp(__float_as_uint(largest)) >> 23, 21u);
    const float fine = __uint_as_float((274 - exponent) << 23);
    Counts<GROUPS> counts;
    counts.step = exponent == 255 ? __uint_as_float(0x7fc00000u) : __uint_as_float((exponent - 20) << 23);
    // Rounded by adding 1.5 * 2^23, whose bits 16 to 23 are 64.
    u32 whole[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) whole[i] = __float_as_uint(fmaf(x[i], fine, 12582912.0f));
    // In the order in which codes of four columns lie in a word. Two words for each of a lane's two chunks of 32 columns stand together.
    const u32 front = __byte_perm(whole[0], whole[2], 0x5140), back = __byte_perm(whole[1], whole[3], 0x5140);
    place[0] = __byte_perm(__byte_perm(whole[0], whole[2], 0x0062), __byte_perm(whole[1], whole[3], 0x0062), 0x5410);
    place[COLUMN_WORDS] = __byte_perm(front, back, 0x7632) ^ 0x80808080u;
    place[2 * COLUMN_WORDS] = __byte_perm(front, back, 0x5410) ^ 0x80808080u;
    const int sum = (int)(whole[0] + whole[1] + whole[2] + whole[3] - 4 * 0x4b400000u);
#pragma unroll
    for (u32 g = 0; g < GROUPS; ++g) counts.sums[g] = (float)sum_of_warp(GROUPS == 1 || lane / (WARP / GROUPS) == g ? sum : 0) * counts.step;
    return counts;
}

// What a unit's product with the pieces adds to rows r and r + 8 of its tile, r = lane / 4: lanes 4r and 4r + 1 have a part each. Codes are
// a lane's 16 bytes and those 512 further; scales a word of each group for row r.
template <int GROUP> DEVICE void add_unit(const Vec4* from, const u32* scales, const Vec4* pieces, const Counts<128 / GROUP>& counts, const Times& times, bool f16, float& upper, float& lower) {
    const Vec4 front = from[0], near = pieces[0], back = from[WARP], far = pieces[4];
    const u32 codes[8] = {front.x, front.y, front.z, front.w, back.x, back.y, back.z, back.w};
    const u32 xs[8] = {near.x, near.y, near.z, near.w, far.x, far.y, far.z, far.w};
    const float one = times.one * counts.step, two = times.two * counts.step;
#pragma unroll
    for (int g = 0; g < 128 / GROUP; ++g) {
        const u32 of_upper = scales[g * 16], of_lower = scales[g * 16 + 8];
        const float all = times.says ? counts.sums[g] : 0.0f;
        int sum[4] = {};
#pragma unroll
        for (int chunk = g * GROUP / 32; chunk < (g + 1) * GROUP / 32; ++chunk) {
            const u32 first = codes[chunk * 2], second = codes[chunk * 2 + 1];
            mma_codes(sum, first & 0x0f0f0f0fu, first & 0xf0f0f0f0u, second & 0x0f0f0f0fu, second & 0xf0f0f0f0u, xs[chunk * 2], xs[chunk * 2 + 1]);
        }
        const float of_codes = (float)sum[0] * one + (float)sum[1] * two;
        // The lower row's codes stand four bits higher.
        const float of_others = ((float)sum[2] * one + (float)sum[3] * two) * 0.0625f;
        float scale = high(of_upper), bias = low(of_upper), scale_lower = high(of_lower), bias_lower = low(of_lower);
        if (f16) {
            scale = from_f16(of_upper >> 16);
            bias = from_f16((u16)of_upper);
            scale_lower = from_f16(of_lower >> 16);
            bias_lower = from_f16((u16)of_lower);
        }
        upper += scale * of_codes + bias * all;
        lower += scale_lower * of_others + bias_lower * all;
    }
}

#endif
