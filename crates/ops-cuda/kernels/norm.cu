// rms_scale, rms_norm and add_rms_norm: segments of `dim` elements (`ops/src/operators/` of these names). One block per segment, or
// one warp where segments are as short as a head.

struct NormArguments {
    const u16* x;
    const u16* b;    // add_rms_norm: the other summand
    u16* sum;        // add_rms_norm: x + b
    u16* y;
    const float* w;  // (dim), or none
    u32 segments, dim;
    float epsilon;
    u32 unused;
};

extern "C" __global__ void __launch_bounds__(256) norm_segments(NormArguments a) {
    next_may_start();
    wait_for_inputs();
    __shared__ float room[32];
    u64 start = (u64)blockIdx.x * a.dim;
    float square = 0.0f;
    for (u32 at = threadIdx.x; at < a.dim; at += 256) {
        float x = widen(a.x[start + at]);
        square += x * x;
    }
    float scale = rsqrtf(block_sum(square, room) / a.dim + a.epsilon);
    for (u32 at = threadIdx.x; at < a.dim; at += 256) {
        float x = widen(a.x[start + at]) * scale;
        a.y[start + at] = narrow(a.w ? x * a.w[at] : x);
    }
}

// Each thread keeps its part of the segment: up to 4096 elements, eight at a time.
extern "C" __global__ void __launch_bounds__(512) norm_kept(NormArguments a) {
    next_may_start();
    __shared__ float room[32];
    u64 start = (u64)blockIdx.x * a.dim;
    u32 at = threadIdx.x * 8;
    bool mine = at < a.dim;
    float w[8];
    if (mine) {
#pragma unroll
        for (u32 i = 0; i < 8; ++i) w[i] = a.w[at + i];
    }
    wait_for_inputs();
    float x[8] = {};
    float square = 0.0f;
    if (mine) {
        Vec4 v = load16(a.x + start + at);
        u32* words = &v.x;
        if (a.b) {
            Vec4 other = load16(a.b + start + at);
            const u32* others = &other.x;
#pragma unroll
            for (u32 i = 0; i < 4; ++i) words[i] = narrow2(low(words[i]) + low(others[i]), high(words[i]) + high(others[i]));
            *(Vec4*)(a.sum + start + at) = v;
        }
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            x[2 * i] = low(words[i]);
            x[2 * i + 1] = high(words[i]);
            square += x[2 * i] * x[2 * i] + x[2 * i + 1] * x[2 * i + 1];
        }
    }
    float scale = rsqrtf(block_sum(square, room) / a.dim + a.epsilon);
    if (mine) {
        Vec4 y;
        u32* words = &y.x;
#pragma unroll
        for (u32 i = 0; i < 4; ++i) words[i] = narrow2(x[2 * i] * scale * w[2 * i], x[2 * i + 1] * scale * w[2 * i + 1]);
        *(Vec4*)(a.y + start + at) = y;
    }
}

// Any length; the sum is read again after it was written.
extern "C" __global__ void __launch_bounds__(256) add_norm_segments(NormArguments a) {
    next_may_start();
    wait_for_inputs();
    __shared__ float room[32];
    u64 start = (u64)blockIdx.x * a.dim;
    float square = 0.0f;
    for (u32 at = threadIdx.x; at < a.dim; at += 256) {
        u16 sum = narrow(widen(a.x[start + at]) + widen(a.b[start + at]));
        a.sum[start + at] = sum;
        square += widen(sum) * widen(sum);
    }
    float scale = rsqrtf(block_sum(square, room) / a.dim + a.epsilon);
    for (u32 at = threadIdx.x; at < a.dim; at += 256) {
        a.y[start + at] = narrow(widen(a.sum[start + at]) * scale * a.w[at]);
    }
}
