// linear of many rows on the tensor cores (`ops/src/operators/linear`): bfloat16 weights as they lie, and codes that a first kernel
// turns into bfloat16 in scratch. Blocks of 128 x 128 outputs, 32 columns a stage, four stages in flight; or 64 x 64 where
// that many blocks would leave processors idle.

struct MatmulArguments {
    const u16* x;      // (rows, cols)
    const u16* w;      // (outputs, cols)
    const float* bias;
    u16* y;            // (rows, outputs)
    u32 rows, cols, outputs, unused;
};

struct DecodeArguments {
    Weight w;
    u16* to;  // (outputs, cols)
};

// Eight columns per thread.
extern "C" __global__ void __launch_bounds__(256) decode_fragments(DecodeArguments p) {
    next_may_start();
    wait_for_inputs();
    u32 units = p.w.cols / 128;
    u64 at = (u64)blockIdx.x * 256 + threadIdx.x;
    if (at >= (u64)p.w.rows * units * 16) return;
    u32 eighth = at % 16, chunk = eighth / 4, t = eighth % 4;
    u64 row_unit = at / 16;
    u32 row = row_unit / units, unit = row_unit % units;
    u64 tile = (u64)(row / 16) * units + unit;
    const u32* words = (const u32*)p.w.start + tile * 256 + chunk / 2 * 128 + (row % 8 * 4 + t) * 4 + chunk % 2 * 2;
    u32 group = (unit * 128 + chunk * 32) / p.w.group;
    u32 header = ((const u32*)p.w.scales)[((u64)(row / 16) * (p.w.cols / p.w.group) + group) * 16 + row % 16];
    float scale = header_half(p.w.header, header >> 16), bias = header_half(p.w.header, (u16)header);
    u32 side = row % 16 / 8;
    Vec4 out;
    u32* pairs = &out.x;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        u32 word = words[i / 2] >> (4 * (i % 2 * 2 + side));
        pairs[i] = narrow2((float)(word & 15) * scale + bias, (float)(word >> 16 & 15) * scale + bias);
    }
    *(Vec4*)(p.to + (u64)row * p.w.cols + unit * 128 + eighth * 8) = out;
}

// ROWS x OUTPUTS of a block, by 4 x 2 or 2 x 2 warps.
template <int ROWS, int OUTPUTS, int WARPS_DOWN, int WARPS_ACROSS> DEVICE void blocks(const MatmulArguments& p) {
    constexpr int DEPTH = 32, STAGES = 4, THREADS = WARPS_DOWN * WARPS_ACROSS * 32;
    constexpr int STAGE_BYTES = (ROWS + OUTPUTS) * DEPTH * 2;
    constexpr int DOWN = ROWS / WARPS_DOWN / 16, ACROSS = OUTPUTS / WARPS_ACROSS / 16;
    extern __shared__ __align__(128) u8 room[];
    next_may_start();
    const u32 thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    const u32 first_row = blockIdx.x * ROWS, first_output = blockIdx.y * OUTPUTS;
    const u32 base = shared_address(room);
    const u32 stages = p.cols / DEPTH;

    // Rows of 64 bytes, two to a line of 128: the 16-byte pieces of a line are permuted so that eight rows of one piece meet no
    // bank twice.
    auto place = [](u32 row, u32 piece) { return (row / 2) * 128 + (((row % 2 * 4 + piece) ^ (row / 2 % 8)) * 16); };
    auto fetch = [&](u32 stage) {
        u32 to = base + stage % STAGES * STAGE_BYTES, col = stage * DEPTH;
#pragma unroll
        for (int i = 0; i < ROWS * 4 / THREADS; ++i) {
            u32 at = thread + i * THREADS, row = at / 4, piece = at % 4;
            bool inside = first_row + row < p.rows;
            copy16(to + place(row, piece), p.x + (u64)(inside ? first_row + row : 0) * p.cols + col + piece * 8, inside);
        }
        to += ROWS * DEPTH * 2;
#pragma unroll
        for (int i = 0; i < OUTPUTS * 4 / THREADS; ++i) {
            u32 at = thread + i * THREADS, row = at / 4, piece = at % 4;
            bool inside = first_output + row < p.outputs;
            copy16(to + place(row, piece), p.w + (u64)(inside ? first_output + row : 0) * p.cols + col + piece * 8, inside);
        }
    };

    wait_for_inputs();
#pragma unroll
    for (u32 stage = 0; stage < STAGES - 1; ++stage) {
        if (stage < stages) fetch(stage);
        copies_end_stage();
    }
    float sum[DOWN][ACROSS * 2][4] = {};
    const u32 row_in = warp / WARPS_ACROSS * DOWN * 16, output_in = warp % WARPS_ACROSS * ACROSS * 16;
    for (u32 stage = 0; stage < stages; ++stage) {
        wait_for_copies<STAGES - 2>();
        __syncthreads();
        if (stage + STAGES - 1 < stages) fetch(stage + STAGES - 1);
        copies_end_stage();
        u32 x_at = base + stage % STAGES * STAGE_BYTES, w_at = x_at + ROWS * DEPTH * 2;
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            u32 a[DOWN][4], b[ACROSS][4];
#pragma unroll
            for (int i = 0; i < DOWN; ++i) {
                ldmatrix4(a[i], x_at + place(row_in + i * 16 + lane % 16, half * 2 + lane / 16));
            }
#pragma unroll
            for (int j = 0; j < ACROSS; ++j) {
                ldmatrix4(b[j], w_at + place(output_in + j * 16 + lane % 8 + lane / 16 * 8, half * 2 + lane / 8 % 2));
            }
#pragma unroll
            for (int i = 0; i < DOWN; ++i) {
#pragma unroll
                for (int j = 0; j < ACROSS; ++j) {
                    mma(sum[i][2 * j], a[i][0], a[i][1], a[i][2], a[i][3], b[j][0], b[j][1]);
                    mma(sum[i][2 * j + 1], a[i][0], a[i][1], a[i][2], a[i][3], b[j][2], b[j][3]);
                }
            }
        }
    }
    const bool even = p.outputs % 2 == 0;
#pragma unroll
    for (int i = 0; i < DOWN; ++i) {
#pragma unroll
        for (int j = 0; j < ACROSS * 2; ++j) {
            u32 output = first_output + output_in + j * 8 + lane % 4 * 2;
            if (output >= p.outputs) continue;
            bool second = output + 1 < p.outputs;
            float bias0 = p.bias ? p.bias[output] : 0.0f, bias1 = p.bias && second ? p.bias[output + 1] : 0.0f;
#pragma unroll
            for (int side = 0; side < 2; ++side) {
                u32 row = first_row + row_in + i * 16 + side * 8 + lane / 4;
                if (row >= p.rows) continue;
                u32 pair = narrow2(sum[i][j][side * 2] + bias0, sum[i][j][side * 2 + 1] + bias1);
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

extern "C" __global__ void __launch_bounds__(256, 2) matmul_128x128(const __grid_constant__ MatmulArguments p) { blocks<128, 128, 2, 4>(p); }
extern "C" __global__ void __launch_bounds__(128) matmul_64x64(const __grid_constant__ MatmulArguments p) { blocks<64, 64, 2, 2>(p); }
