// Products of one row with bfloat16 weights as they lie, on Hopper: linear, linear_add, norm_linear and norm_swiglu (`ops/src/operators/`
// of these names). A block's whole share of the weights is copied into its shared memory before the kernel waits for the one before
// it. Columns divide by eight. Not here: other GPUs, more rows (`linear_plain.cu`), 4-bit codes (`linear_ahead.cu`).

#if __CUDA_ARCH__ >= 900

#define MOST_LINES 64
// Lines that a warp takes together: they share what it holds of x, and arrive as one copy.
#define BATCH 4

// Warps share the columns, DEPTH times eight for a lane at a time, and go through the block's lines (rows of the weights) with them.
// Warps are a multiple of four. If there is a norm, x is normalised, and all of it is one round. Gated: lines of the first part, then as
// many of the second.
template <int DEPTH> DEVICE void plain_ahead(const MatvecArguments& p) {
    extern __shared__ __align__(128) u8 room[];  // weights (parts, lines, cols), sums (parts * lines, warps)
    __shared__ __align__(8) u64 arrivals[MOST_LINES / BATCH];
    __shared__ __align__(16) float squares[32];
    next_may_start();
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, warps = blockDim.x / WARP;
    const u32 which = part_of(p, blockIdx.x), all = p.together << p.gated;
    const bool normed = p.norm, is_gated = p.gated;
    const MatvecPart& part = p.part[which];
    const u32 outputs = part.w.rows, first = (blockIdx.x - p.first[which]) * p.together;
    const u32 lines = min(p.together, outputs - first), line_bytes = p.cols * 2;
    float* const sums = (float*)(room + all * line_bytes);
    const u32 batches = all / BATCH;
    const u32 line = threadIdx.x * BATCH, from_line = line % p.together;
    const bool copies = threadIdx.x < batches && from_line < lines;
    if (copies) start_arrival(shared_address(arrivals + threadIdx.x));
    __syncwarp();
    if (copies) {
        const u8* weights = p.part[which + line / p.together].w.start;
        const u32 arrival = shared_address(arrivals + threadIdx.x), bytes = min((u32)BATCH, lines - from_line) * line_bytes;
        arrival_expects(arrival, bytes);
        bulk_copy(shared_address(room) + line * line_bytes, weights + (u64)(first + from_line) * line_bytes, bytes, arrival);
    }
    float norm[DEPTH][8];
    if (normed) {
#pragma unroll
        for (int i = 0; i < DEPTH; ++i) {
            const u32 col = ((i * warps + warp) * WARP + lane) * 8, from = col < p.cols ? col : 0;
            Vec4 v = load16(p.norm + from), w = load16(p.norm + from + 4);
            const u32 bits[8] = {v.x, v.y, v.z, v.w, w.x, w.y, w.z, w.w};
#pragma unroll
            for (int j = 0; j < 8; ++j) norm[i][j] = __uint_as_float(bits[j]);
        }
    }
    const u32 output = first + threadIdx.x;
    const bool writes = threadIdx.x < lines;
    float added = writes && part.bias ? part.bias[output] : 0.0f;
    const u16* residual = part.residual;
    u16* const y = part.y;
    const float per_col = 1.0f / p.cols, epsilon = p.epsilon;
    __syncthreads();
    wait_for_inputs();
    float square = 0.0f;
    const u32 round = DEPTH * warps * WARP * 8;
#pragma unroll 1
    for (u32 begin = 0; begin < p.cols; begin += round) {
        float x[DEPTH][8];
        Vec4 v[DEPTH];
#pragma unroll
        for (int i = 0; i < DEPTH; ++i) {
            const u32 col = begin + ((i * warps + warp) * WARP + lane) * 8;
            v[i] = load16(p.x + (col < p.cols ? col : 0));
            if (col >= p.cols) v[i] = Vec4{0, 0, 0, 0};
        }
        if (begin == 0 && writes && residual) added += load_bf16(residual + output);
#pragma unroll
        for (int i = 0; i < DEPTH; ++i) {
            const u32 words[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                x[i][2 * j] = low(words[j]);
                x[i][2 * j + 1] = high(words[j]);
            }
            if (normed) {
#pragma unroll
                for (int j = 0; j < 8; ++j) {
                    square += x[i][j] * x[i][j];
                    x[i][j] *= norm[i][j];
                }
            }
        }
#pragma unroll 1
        for (u32 batch = 0; batch < batches; ++batch) {
            if (batch * BATCH % p.together >= lines) continue;
            wait_for_arrival(shared_address(arrivals + batch));
            float sum[BATCH] = {};
#pragma unroll
            for (int i = 0; i < DEPTH; ++i) {
                const u32 col = begin + ((i * warps + warp) * WARP + lane) * 8;
                // Beyond the last column x is zero, and any weight will do.
                const u8* weights = room + batch * BATCH * line_bytes + (col < p.cols ? col * 2 : 0);
#pragma unroll
                for (int line = 0; line < BATCH; ++line) {
                    const Vec4 w = *(const Vec4*)(weights + line * line_bytes);
                    const u32 words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
                    for (int j = 0; j < 4; ++j) {
                        sum[line] = fmaf(low(words[j]), x[i][2 * j], sum[line]);
                        sum[line] = fmaf(high(words[j]), x[i][2 * j + 1], sum[line]);
                    }
                }
            }
            // Halves of the warp keep two lines each, then quarters one.
            const bool back = lane & 16, odd = lane & 8;
            float one = (back ? sum[2] : sum[0]) + __shfl_xor_sync(ALL, back ? sum[0] : sum[2], 16);
            float two = (back ? sum[3] : sum[1]) + __shfl_xor_sync(ALL, back ? sum[1] : sum[3], 16);
            float mine = (odd ? two : one) + __shfl_xor_sync(ALL, odd ? one : two, 8);
#pragma unroll
            for (u32 step = 4; step > 0; step >>= 1) mine += __shfl_xor_sync(ALL, mine, step);
            if (lane % 8 == 0) {
                float* to = sums + (batch * BATCH + lane / 8) * warps + warp;
                *to = begin == 0 ? mine : *to + mine;
            }
        }
    }
    if (normed) {
        square = warp_sum(square);
        if (lane == 0) squares[warp] = square;
    }
    __syncthreads();
    if (!writes) return;
    float sum = 0.0f, up = 0.0f, whole = 0.0f;
#pragma unroll 1
    for (u32 four = 0; four < warps; four += 4) {
        sum += sum_of_four(sums + threadIdx.x * warps + four);
        if (is_gated) up += sum_of_four(sums + (p.together + threadIdx.x) * warps + four);
        if (normed) whole += sum_of_four(squares + four);
    }
    if (normed) {
        const float scale = rsqrtf(whole * per_col + epsilon);
        sum *= scale;
        up *= scale;
    }
    y[output] = narrow(is_gated ? gated(sum, up) : sum + added);
}

#define AHEAD_KERNEL(NAME, DEPTH)                                                                                        \
    extern "C" __global__ void __launch_bounds__(DEPTH == 4 ? 384 : 640, 1) NAME(const __grid_constant__ MatvecArguments p) { \
        plain_ahead<DEPTH>(p);                                                                                           \
    }
AHEAD_KERNEL(ahead_plain_d1, 1)
AHEAD_KERNEL(ahead_plain_d2, 2)
AHEAD_KERNEL(ahead_plain_d4, 4)

#endif
