// attention_scores, softmax and attention_mix, and attention in one call for any head size (`ops/src/operators/` of these names): the
// readable form. Not here: the fast ones (`attention_split.cuh`, `attention_tiled.cu`).

// blockIdx.y is (row, head); one warp per position.
extern "C" __global__ void __launch_bounds__(256) attention_scores_rows(AttentionArguments p) {
    next_may_start();
    wait_for_inputs();
    u32 row = blockIdx.y / p.heads, head = blockIdx.y % p.heads, lane = threadIdx.x % WARP;
    RowPlace place = place_of(p.step, row);
    KeyPlace keys = keys_of(p, place.sequence, head / (p.heads / p.kv_heads), false);
    const u16* q = p.q + ((u64)row * p.heads + head) * p.dim;
    for (u32 at = blockIdx.x * 8 + threadIdx.x / WARP; at <= place.position; at += gridDim.x * 8) {
        const u16* key = keys.start + at * keys.stride;
        float dot = 0.0f;
        for (u32 d = lane; d < p.dim; d += WARP) dot += widen(q[d]) * widen(key[d]);
        dot = warp_sum(dot);
        if (lane == 0) ((float*)p.y)[(u64)blockIdx.y * p.context + at] = dot * p.scale;
    }
}

// One block per (row, head).
extern "C" __global__ void __launch_bounds__(256) softmax_rows(AttentionArguments p) {
    next_may_start();
    wait_for_inputs();
    __shared__ float room[32], other_room[32];
    u32 visible = place_of(p.step, blockIdx.x / p.heads).position + 1;
    float* scores = (float*)p.y + (u64)blockIdx.x * p.context;
    float most = -__int_as_float(0x7f800000), sum = 0.0f;
    for (u32 at = threadIdx.x; at < visible; at += 256) most = fmaxf(most, scores[at]);
    most = block_max(most, room);
    for (u32 at = threadIdx.x; at < visible; at += 256) {
        float x = __expf(scores[at] - most);
        scores[at] = x;
        sum += x;
    }
    sum = 1.0f / block_sum(sum, other_room);
    for (u32 at = threadIdx.x; at < visible; at += 256) scores[at] *= sum;
}

// One block per (row, head); each thread has elements of the head, a quarter of the positions at a time.
extern "C" __global__ void __launch_bounds__(256) attention_mix_rows(AttentionArguments p) {
    next_may_start();
    wait_for_inputs();
    __shared__ float sums[256];
    u32 row = blockIdx.x / p.heads, head = blockIdx.x % p.heads;
    RowPlace place = place_of(p.step, row);
    KeyPlace values = keys_of(p, place.sequence, head / (p.heads / p.kv_heads), true);
    const float* probabilities = (const float*)p.q + (u64)blockIdx.x * p.context;
    for (u32 first = 0; first < p.dim; first += 64) {
        u32 d = first + threadIdx.x % 64;
        float sum = 0.0f;
        if (d < p.dim) {
            for (u32 at = threadIdx.x / 64; at <= place.position; at += 4) {
                sum += probabilities[at] * widen(values.start[at * values.stride + d]);
            }
        }
        sums[threadIdx.x] = sum;
        __syncthreads();
        if (threadIdx.x < 64 && d < p.dim) {
            sum = sums[threadIdx.x] + sums[threadIdx.x + 64] + sums[threadIdx.x + 128] + sums[threadIdx.x + 192];
            ((u16*)p.y)[((u64)row * p.heads + head) * p.dim + d] = narrow(sum);
        }
        __syncthreads();
    }
}

// attention, any head size up to 256: one warp per (row, head), a running softmax over the positions.
extern "C" __global__ void __launch_bounds__(128) attention_rows(AttentionArguments p) {
    next_may_start();
    wait_for_inputs();
    u32 index = blockIdx.x * 4 + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (index >= p.rows * p.heads) return;
    u32 row = index / p.heads, head = index % p.heads;
    RowPlace place = place_of(p.step, row);
    KeyPlace keys = keys_of(p, place.sequence, head / (p.heads / p.kv_heads), false);
    KeyPlace values = keys_of(p, place.sequence, head / (p.heads / p.kv_heads), true);
    float q[8], mixed[8], most = -__int_as_float(0x7f800000), sum = 0.0f;
#pragma unroll
    for (u32 i = 0; i < 8; ++i) {
        u32 d = lane + WARP * i;
        q[i] = d < p.dim ? widen(p.q[(u64)index * p.dim + d]) : 0.0f;
        mixed[i] = 0.0f;
    }
    for (u32 at = 0; at <= place.position; ++at) {
        float dot = 0.0f;
#pragma unroll
        for (u32 i = 0; i < 8; ++i) {
            u32 d = lane + WARP * i;
            if (d < p.dim) dot += q[i] * widen(keys.start[at * keys.stride + d]);
        }
        dot = warp_sum(dot) * p.scale;
        float larger = fmaxf(most, dot), shrink = __expf(most - larger), weight = __expf(dot - larger);
        most = larger;
        sum = sum * shrink + weight;
#pragma unroll
        for (u32 i = 0; i < 8; ++i) {
            u32 d = lane + WARP * i;
            if (d < p.dim) mixed[i] = mixed[i] * shrink + weight * widen(values.start[at * values.stride + d]);
        }
    }
#pragma unroll
    for (u32 i = 0; i < 8; ++i) {
        u32 d = lane + WARP * i;
        if (d < p.dim) ((u16*)p.y)[(u64)index * p.dim + d] = narrow(mixed[i] / sum);
    }
}
