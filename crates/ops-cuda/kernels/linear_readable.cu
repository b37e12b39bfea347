// linear, linear_add, norm_linear and norm_swiglu, any format and shape: one warp per output, rows of x one after the other
// (`ops/src/operators/` of these names). The readable form.

struct LinearArguments {
    const void* x;
    Weight w;
    Weight up;             // norm_swiglu alone
    const float* bias;     // (outputs), or none
    const float* norm;     // (cols), or none
    const u16* residual;   // (rows, outputs), or none
    void* y;
    u32 rows, x_f32, y_f32, gated;
    float epsilon;
    u32 unused;
};

extern "C" __global__ void __launch_bounds__(256) linear_outputs(const __grid_constant__ LinearArguments p) {
    next_may_start();
    wait_for_inputs();
    u32 output = blockIdx.x * 8 + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (output >= p.w.rows) return;
    for (u32 row = blockIdx.y; row < p.rows; row += gridDim.y) {
        float sum = 0.0f, up = 0.0f, square = 0.0f;
        for (u32 col = lane; col < p.w.cols; col += WARP) {
            float x = load1(p.x, (i64)row * p.w.cols + col, p.x_f32);
            square += x * x;
            if (p.norm) x *= p.norm[col];
            sum += x * weight_value(p.w, output, col);
            if (p.gated) up += x * weight_value(p.up, output, col);
        }
        float scale = p.norm ? rsqrtf(warp_sum(square) / p.w.cols + p.epsilon) : 1.0f;
        sum = warp_sum(sum) * scale;
        if (p.gated) sum = sum / (1.0f + __expf(-sum)) * (warp_sum(up) * scale);
        i64 at = (i64)row * p.w.rows + output;
        if (p.bias) sum += p.bias[output];
        if (p.residual) sum += widen(p.residual[at]);
        if (lane == 0) store1(p.y, at, p.y_f32, sum);
    }
}
