// Products of one to eight rows with bfloat16 weights as they lie: linear, linear_add, norm_linear and norm_swiglu (`ops/src/operators/` of
// these names), by plain multiply-adds. Columns divide by eight. Weights are asked for before this kernel waits for the one before
// it. Not here: 4-bit codes (`linear_matvec.cu`).

// `split` warps share OUTPUTS outputs, each of which asks for DEPTH x 16 bytes of each before it waits; ROWS rows of x. NORM and GATED as for codes: gated, a
// warp has output 0 of the first part and output 1 of the second.
template <int ROWS, int OUTPUTS, int DEPTH, bool NORM, bool GATED> DEVICE void plain_rows(const MatvecArguments& p) {
    extern __shared__ __align__(16) float kept[];  // one row: x times the norm (cols); more: the norm
    __shared__ float squares[8], parts[8][OUTPUTS][ROWS];
    next_may_start();
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, warps = blockDim.x / WARP;
    const u32 which = GATED ? 0 : part_of(p, blockIdx.x), last = p.part[which].w.rows - 1;
    const u32 split = p.split, outputs = warps / split, piece = warp % split;
    const u32 output = GATED ? blockIdx.x * outputs + warp / split : ((blockIdx.x - p.first[which]) * outputs + warp / split) * OUTPUTS;
    const u32 steps = p.cols / 8, begin = piece * WARP + lane, stride = split * WARP;
    Vec4 w[OUTPUTS][DEPTH];
    auto fetch = [&](u32 first) {
#pragma unroll
        for (int o = 0; o < OUTPUTS; ++o) {
            const u16* weights = (const u16*)p.part[GATED ? o : which].w.start;
            const u16* line = weights + (u64)min(GATED ? output : output + o, last) * p.cols;
#pragma unroll
            for (int i = 0; i < DEPTH; ++i) {
                u32 step = first + i * stride;
                w[o][i] = step < steps ? stream16(line + step * 8) : Vec4{0, 0, 0, 0};
            }
        }
    };
    fetch(begin);
    if (NORM) {
        for (u32 at = threadIdx.x; at < p.cols / 4; at += blockDim.x) *(Vec4*)(kept + at * 4) = load16(p.norm + at * 4);
        if (ROWS > 1) __syncthreads();
    }
    wait_for_inputs();
    float sum[OUTPUTS][ROWS] = {}, square[ROWS] = {};
    if (NORM && ROWS == 1) {
        // What a thread put there, times x, which all warps then share.
        for (u32 at = threadIdx.x; at < p.cols / 4; at += blockDim.x) {
            u32 pairs[2];
            load_words(pairs, p.x + at * 4);
            float x[4] = {low(pairs[0]), high(pairs[0]), low(pairs[1]), high(pairs[1])};
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                square[0] += x[j] * x[j];
                kept[at * 4 + j] *= x[j];
            }
        }
        square[0] = warp_sum(square[0]);
        if (lane == 0) squares[warp] = square[0];
        __syncthreads();
    }
    for (u32 first = begin; first < steps; first += DEPTH * stride) {
        if (first != begin) fetch(first);
#pragma unroll
        for (int row = 0; row < ROWS; ++row) {
            if (ROWS > 1 && row >= p.rows) continue;
            // All loads of x before the first use; beyond the end weights are zero.
            Vec4 x[DEPTH];
            if (!NORM || ROWS > 1) {
#pragma unroll
                for (int i = 0; i < DEPTH; ++i) x[i] = load16(p.x + (u64)row * p.cols + min(first + i * stride, steps - 1) * 8);
            }
#pragma unroll
            for (int i = 0; i < DEPTH; ++i) {
                const u32 step = min(first + i * stride, steps - 1);
                const bool inside = first + i * stride < steps;
                const u32* pairs = &x[i].x;
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    float a, b;
                    if (NORM && ROWS == 1) {
                        a = kept[step * 8 + 2 * j];
                        b = kept[step * 8 + 2 * j + 1];
                    } else {
                        a = low(pairs[j]);
                        b = high(pairs[j]);
                        if (NORM) {
                            square[row] += inside ? a * a + b * b : 0.0f;
                            a *= kept[step * 8 + 2 * j];
                            b *= kept[step * 8 + 2 * j + 1];
                        }
                    }
#pragma unroll
                    for (int o = 0; o < OUTPUTS; ++o) {
                        const u32* ws = &w[o][i].x;
                        sum[o][row] = fmaf(low(ws[j]), a, sum[o][row]);
                        sum[o][row] = fmaf(high(ws[j]), b, sum[o][row]);
                    }
                }
            }
        }
    }
    // Sums of the lanes, then of the warps that share the outputs; those of squares likewise.
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
#pragma unroll
        for (int o = 0; o < OUTPUTS; ++o) {
            float all = warp_sum(sum[o][row]);
            if (lane == 0) parts[warp][o][row] = all;
        }
        if (NORM && ROWS > 1) square[row] = warp_sum(square[row]);
    }
    if (split > 1) __syncthreads();
    else __syncwarp();
    if (piece != 0 || lane != 0) return;
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
        if (ROWS > 1 && row >= p.rows) continue;
        float scale = 1.0f, all[OUTPUTS] = {};
        if (NORM) {
            float whole = 0.0f;
            if (ROWS == 1) {
                for (u32 other = 0; other < warps; ++other) whole += squares[other];
            } else {
                whole = square[row];
            }
            scale = rsqrtf(whole / p.cols + p.epsilon);
        }
#pragma unroll
        for (int o = 0; o < OUTPUTS; ++o) {
            for (u32 other = 0; other < split; ++other) all[o] += parts[warp + other][o][row];
        }
        if (GATED) {
            if (output <= last) put(p.part[0], row, output, gated(all[0] * scale, all[OUTPUTS - 1] * scale));
        } else {
#pragma unroll
            for (int o = 0; o < OUTPUTS; ++o) {
                if (output + o <= last) put(p.part[which], row, output + o, all[o] * scale);
            }
        }
    }
}

#define PLAIN_KERNEL(NAME, ROWS, OUTPUTS, DEPTH, NORM, GATED)                                                    \
    extern "C" __global__ void __launch_bounds__(128, 1) NAME(const __grid_constant__ MatvecArguments p) {          \
        plain_rows<ROWS, OUTPUTS, DEPTH, NORM, GATED>(p);                                                        \
    }
PLAIN_KERNEL(matvec_plain_r1o2d4, 1, 2, 4, false, false)
PLAIN_KERNEL(matvec_plain_r1o1d8, 1, 1, 8, false, false)
PLAIN_KERNEL(matvec_plain_r1o1d10, 1, 1, 10, false, false)
PLAIN_KERNEL(matvec_plain_r8o1d4, 8, 1, 4, false, false)
PLAIN_KERNEL(norm_plain_r1o2d4, 1, 2, 4, true, false)
PLAIN_KERNEL(norm_plain_r1o1d8, 1, 1, 8, true, false)
PLAIN_KERNEL(norm_plain_r1o1d10, 1, 1, 10, true, false)
PLAIN_KERNEL(norm_plain_r8o1d4, 8, 1, 4, true, false)
PLAIN_KERNEL(gated_plain_r1d4, 1, 2, 4, true, true)
PLAIN_KERNEL(gated_plain_r8d2, 8, 2, 2, true, true)
