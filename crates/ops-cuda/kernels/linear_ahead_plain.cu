// Products of one row with bfloat16 weights as they lie, on Hopper: linear, linear_add, norm_linear and norm_swiglu (`ops/src/operators/`
// of these names). A block's whole share of the weights is copied into its shared memory before the kernel waits for the one before
// it. Columns divide by eight. Not here: other GPUs, more rows (`linear_plain.cu`), 4-bit codes (`linear_ahead.cu`).

#if __CUDA_ARCH__ >= 900

#define MOST_LINES 64
#define PLAIN 0
#define NORMED 1
#define GATED 2
#define HEAD 3
// Lines that a warp takes together: they share what it holds of x, and arrive as one copy.
#define BATCH 4

// Warps share the columns, DEPTH times eight for a lane at a time, and go through the block's lines (rows of the weights) with them.
// If there is a norm, x is normalised, and all of it is one round. Gated: lines of the first part, then as many of the second. The blocks
// of a cluster share the columns; its first block adds what they found. HEAD: NORMED, and the largest output is found.
template <int DEPTH, int KIND> DEVICE void plain_ahead(const MatvecArguments& p) {
    // Weights (parts, lines, cols), sums (parts * lines, warps), what other blocks found.
    extern __shared__ __align__(128) u8 room[];
    __shared__ __align__(8) u64 arrivals[MOST_LINES / BATCH], all_found;
    __shared__ __align__(16) float squares[32];
    next_may_start();
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, warps = blockDim.x / WARP, wide = (warps + 3) / 4 * 4;
    const u32 sharers = KIND == PLAIN ? p.sharers : 1, block = blockIdx.x / sharers, share = blockIdx.x % sharers;
    const u32 which = KIND == GATED ? 0 : part_of(p, block), all = KIND == GATED ? 2 * p.together : p.together;
    const u32 most_cols = (p.cols / 8 + sharers - 1) / sharers * 8, first_col = share * most_cols, cols = min(most_cols, p.cols - first_col);
    const MatvecPart& part = p.part[which];
    const u32 outputs = part.w.rows, first = (block - p.first[which]) * p.together;
    const u32 lines = min(p.together, outputs - first), line_bytes = most_cols * 2;
    float* const sums = (float*)(room + all * line_bytes);
    float* const found = sums + all * wide;
    const u32 batches = all / BATCH;
    const u32 line = threadIdx.x * BATCH;
    const bool second = KIND == GATED && line >= p.together;
    const u32 from_line = line - second * p.together;
    const bool copies = threadIdx.x < batches && from_line < lines;
    if (copies) start_arrival(shared_address(arrivals + threadIdx.x));
    __syncwarp();
    if (copies) {
        const u8* weights = p.part[which + second].w.start;
        const u32 arrival = shared_address(arrivals + threadIdx.x), to = shared_address(room) + line * line_bytes;
        const u32 count = min((u32)BATCH, lines - from_line);
        const u8* from = weights + ((u64)(first + from_line) * p.cols + first_col) * 2;
        arrival_expects(arrival, count * cols * 2);
        if (sharers == 1) bulk_copy(to, from, count * line_bytes, arrival);
        else for (u32 i = 0; i < count; ++i) bulk_copy(to + i * line_bytes, from + (u64)i * p.cols * 2, cols * 2, arrival);
    }
    if (KIND == PLAIN && sharers > 1) {
        if (threadIdx.x == 0) {
            start_arrival(shared_address(&all_found));
            if (share == 0) arrival_expects(shared_address(&all_found), (sharers - 1) * lines * 4);
        }
        cluster_arrive_relaxed();
    }
    float norm[DEPTH][8];
    if (KIND != PLAIN) {
#pragma unroll
        for (int i = 0; i < DEPTH; ++i) {
            const u32 col = ((i * warps + warp) * WARP + lane) * 8, from = col < cols ? col : 0;
            Vec4 v = load16(p.norm + from), w = load16(p.norm + from + 4);
            const u32 bits[8] = {v.x, v.y, v.z, v.w, w.x, w.y, w.z, w.w};
#pragma unroll
            for (int j = 0; j < 8; ++j) norm[i][j] = __uint_as_float(bits[j]);
        }
    }
    const u32 output = first + threadIdx.x;
    const bool writes = threadIdx.x < lines;
    float added = KIND == PLAIN && writes && part.bias ? part.bias[output] : 0.0f;
    const u16* const residual = KIND == PLAIN && writes && share == 0 ? part.residual : nullptr;
    u16* const y = part.y;
    const float per_col = 1.0f / p.cols, epsilon = p.epsilon;
    // Sums are read four at a time.
    if (threadIdx.x < 32) squares[threadIdx.x] = 0.0f;
    for (u32 at = threadIdx.x; at < all * (wide - warps); at += blockDim.x) sums[at / (wide - warps) * wide + warps + at % (wide - warps)] = 0.0f;
    __syncthreads();
    // The first block's barrier is ready.
    if (KIND == PLAIN && sharers > 1) cluster_wait();
    wait_for_inputs();
    float square = 0.0f;
    // There are many blocks, and the first have said theirs when the others begin.
    const u64 seen = KIND == HEAD && threadIdx.x == 0 ? *(volatile u64*)p.best : 0;
    const u32 round = DEPTH * warps * WARP * 8;
#pragma unroll 1
    for (u32 begin = 0; begin < cols; begin += round) {
        float x[DEPTH][8];
        Vec4 v[DEPTH];
#pragma unroll
        for (int i = 0; i < DEPTH; ++i) {
            const u32 col = begin + ((i * warps + warp) * WARP + lane) * 8;
            v[i] = load16(p.x + first_col + (col < cols ? col : 0));
            if (col >= cols) v[i] = Vec4{0, 0, 0, 0};
        }
        if (KIND == PLAIN && residual && begin == 0) added += load_bf16(residual + output);
#pragma unroll
        for (int i = 0; i < DEPTH; ++i) {
            const u32 words[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                x[i][2 * j] = low(words[j]);
                x[i][2 * j + 1] = high(words[j]);
            }
            if (KIND != PLAIN) {
#pragma unroll
                for (int j = 0; j < 8; ++j) {
                    square += x[i][j] * x[i][j];
                    x[i][j] *= norm[i][j];
                }
            }
        }
#pragma unroll 1
        for (u32 batch = 0; batch < batches; ++batch) {
            if ((KIND == GATED && batch * BATCH >= p.together ? batch * BATCH - p.together : batch * BATCH) >= lines) continue;
            wait_for_arrival(shared_address(arrivals + batch));
            float sum[BATCH] = {};
#pragma unroll
            for (int i = 0; i < DEPTH; ++i) {
                const u32 col = begin + ((i * warps + warp) * WARP + lane) * 8;
                // Beyond the last column x is zero, and any weight will do.
                const u8* weights = room + batch * BATCH * line_bytes + (col < cols ? col * 2 : 0);
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
                float* const to = sums + (batch * BATCH + lane / 8) * wide + warp;
                *to = KIND == PLAIN && begin != 0 ? *to + mine : mine;
            }
        }
        if (KIND != PLAIN) break;
    }
    if (KIND != PLAIN) {
        square = warp_sum(square);
        if (lane == 0) squares[warp] = square;
    }
    __syncthreads();
    float sum = 0.0f, up = 0.0f, whole = 0.0f;
    if (writes) {
#pragma unroll 1
        for (u32 four = 0; four < wide; four += 4) {
            sum += sum_of_four(sums + threadIdx.x * wide + four);
            if (KIND == GATED) up += sum_of_four(sums + (p.together + threadIdx.x) * wide + four);
            if (KIND != PLAIN) whole += sum_of_four(squares + four);
        }
    }
    if (KIND == PLAIN && sharers > 1) {
        const u32 arrival = shared_address(&all_found);
        if (share > 0) {
            const u32 to = shared_address(found + (share - 1) * p.together + threadIdx.x);
            if (writes) send(in_block(to, 0), sum, in_block(arrival, 0));
            return;
        }
        wait_for_arrival(arrival);
        if (writes) {
            for (u32 other = 1; other < sharers; ++other) sum += found[(other - 1) * p.together + threadIdx.x];
        }
    }
    // A whole warp looks for the largest: a head's block has no more lines than that.
    if (KIND == HEAD ? warp > 0 : !writes) return;
    if (KIND != PLAIN) {
        const float scale = rsqrtf(whole * per_col + epsilon);
        sum *= scale;
        up *= scale;
    }
    const u16 bits = narrow(KIND == GATED ? gated(sum, up) : sum + added);
    if (KIND != HEAD || writes) y[output] = bits;
    if (KIND == HEAD) say_largest(p.best, seen, writes, bits, output);
}

// The most warps, whose registers fit a processor.
#define AHEAD_KERNEL(NAME, DEPTH, KIND, WARPS)                                                                        \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, 1) NAME(const __grid_constant__ MatvecArguments p) {   \
        plain_ahead<DEPTH, KIND>(p);                                                                                     \
    }
AHEAD_KERNEL(ahead_plain_d1, 1, PLAIN, 20)
AHEAD_KERNEL(ahead_plain_d2, 2, PLAIN, 20)
AHEAD_KERNEL(ahead_plain_d4, 4, PLAIN, 12)
AHEAD_KERNEL(norm_ahead_plain_d2, 2, NORMED, 20)
AHEAD_KERNEL(norm_ahead_plain_d4, 4, NORMED, 12)
AHEAD_KERNEL(gated_ahead_plain_d2, 2, GATED, 20)
AHEAD_KERNEL(head_ahead_plain_d2, 2, HEAD, 20)

#endif
