// linear of many rows on Hopper's warpgroup tensor cores (`ops/src/operators/linear`): both operands from shared memory, in lines of 128
// bytes swizzled as the instruction wants them, two stages ahead. Not here: other GPUs (`linear_matmul.cu`, whose arguments these are).

struct MatmulArguments {
    const u16* x;      // (rows, cols)
    const u16* w;      // (outputs, cols)
    const float* bias;
    u16* y;            // (rows, outputs)
    u32 rows, cols, outputs, unused;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

#define FOUR(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SIXTEEN(i) FOUR(i), FOUR(i + 4), FOUR(i + 8), FOUR(i + 12)

// 64 x 128 += (64 x 16) (16 x 128), both K-major; the first one of a sum overwrites.
DEVICE void wgmma(float (&d)[64], u64 a, u64 b, u32 add) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
        "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, "
        "%64, %65, p, 1, 1, 0, 0; }"
        : SIXTEEN(0), SIXTEEN(16), SIXTEEN(32), SIXTEEN(48)
        : "l"(a), "l"(b), "r"(add));
}

// 64 x 64.
DEVICE void wgmma(float (&d)[32], u64 a, u64 b, u32 add) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
        "%32, %33, p, 1, 1, 0, 0; }"
        : SIXTEEN(0), SIXTEEN(16)
        : "l"(a), "l"(b), "r"(add));
}

// Rows of 128 bytes, swizzled in groups of eight rows.
DEVICE u64 tile_descriptor(u32 address) {
    return (u64)(address >> 4 & 0x3fff) | (u64)1 << 16 | (u64)64 << 32 | (u64)1 << 62;
}

// A block of ROWS x OUTPUTS; each of its two warpgroups has half of the rows, HALVES x 64 of them.
template <int HALVES, int OUTPUTS> DEVICE void blocks(const MatmulArguments& p) {
    constexpr int DEPTH = 64, STAGES = 4, ROWS = 128 * HALVES, STAGE_BYTES = (ROWS + OUTPUTS) * DEPTH * 2;
    extern __shared__ __align__(1024) u8 room[];
    next_may_start();
    const u32 thread = threadIdx.x, group = thread / 128, lane = thread % 32, warp = thread % 128 / 32;
    const u32 first_row = blockIdx.x * ROWS, first_output = blockIdx.y * OUTPUTS;
    const u32 base = (shared_address(room) + 1023) & ~1023u, stages = p.cols / DEPTH;
    const u32 piece = thread % 8, line = thread / 8, swizzled = (piece ^ (line % 8)) * 16;
    auto fetch = [&](u32 stage) {
        const u32 to = base + stage % STAGES * STAGE_BYTES, col = stage * DEPTH + piece * 8;
#pragma unroll
        for (int i = 0; i < ROWS / 32; ++i) {
            u32 row = line + i * 32;
            bool inside = first_row + row < p.rows;
            copy16(to + row * 128 + swizzled, p.x + (u64)(inside ? first_row + row : 0) * p.cols + col, inside);
        }
#pragma unroll
        for (int i = 0; i < OUTPUTS / 32; ++i) {
            u32 row = line + i * 32;
            bool inside = first_output + row < p.outputs;
            copy16(to + (ROWS + row) * 128 + swizzled, p.w + (u64)(inside ? first_output + row : 0) * p.cols + col, inside);
        }
    };
    wait_for_inputs();
    fetch(0);
    copies_end_stage();
    if (stages > 1) fetch(1);
    copies_end_stage();
    float sum[HALVES][OUTPUTS / 2];
    for (u32 stage = 0; stage < stages; ++stage) {
        wait_for_copies<1>();
        // All copies of this stage are there, and every warpgroup is done with the stage before the last, whose place the next
        // but one takes.
        __syncthreads();
        if (stage + 2 < stages) fetch(stage + 2);
        copies_end_stage();
        const u32 x_at = base + stage % STAGES * STAGE_BYTES + group * HALVES * 64 * 128;
        const u32 w_at = base + stage % STAGES * STAGE_BYTES + ROWS * 128;
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (u32 k = 0; k < DEPTH / 16; ++k) {
#pragma unroll
            for (int half = 0; half < HALVES; ++half) {
                wgmma(sum[half], tile_descriptor(x_at + half * 64 * 128 + k * 32), tile_descriptor(w_at + k * 32), stage + k > 0);
            }
        }
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    const bool even = p.outputs % 2 == 0;
#pragma unroll
    for (int half = 0; half < HALVES; ++half) {
#pragma unroll
        for (int j = 0; j < OUTPUTS / 8; ++j) {
            u32 output = first_output + j * 8 + lane % 4 * 2;
            if (output >= p.outputs) continue;
            bool second = output + 1 < p.outputs;
            float bias0 = p.bias ? p.bias[output] : 0.0f, bias1 = p.bias && second ? p.bias[output + 1] : 0.0f;
#pragma unroll
            for (int side = 0; side < 2; ++side) {
                u32 row = first_row + (group * HALVES + half) * 64 + warp * 16 + side * 8 + lane / 4;
                if (row >= p.rows) continue;
                u32 pair = narrow2(sum[half][j * 4 + side * 2] + bias0, sum[half][j * 4 + side * 2 + 1] + bias1);
                u16* to = p.y + (u64)row * p.outputs + output;
                if (even) {
                    *(u32*)to = pair;
                } else {
                    to[0] = pair;
                    if (second) to[1] = pair >> 16;
                }
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(256, 1) wgmma_256x128(const __grid_constant__ MatmulArguments p) { blocks<2, 128>(p); }
extern "C" __global__ void __launch_bounds__(256, 1) wgmma_128x128(const __grid_constant__ MatmulArguments p) { blocks<1, 128>(p); }
extern "C" __global__ void __launch_bounds__(256, 1) wgmma_128x64(const __grid_constant__ MatmulArguments p) { blocks<1, 64>(p); }

#endif
