// What stands before the first layer and behind the head of a step of one row, as one launch each: the step's data, the row of the
// embedding and the angles; and the largest column, which the head has found. Not here: more rows (`embed.cu`, `rope_table.cu`,
// `place.cu`), and the head (`linear_ahead.cu`, `linear_ahead_plain.cu`).

#define THREADS 512
// Columns that a thread has on their way at once.
#define EACH 5

struct NextStepArguments {
    const u32* from;  // the host's memory, mapped; or none, and the step is there
    u32 words, f32;
    StepState* step;
    u64* best;         // what the head has found; zero afterwards
    u32* result;       // (slots, RESULT_ROWS), the host's memory, mapped
    Weight table;
    void* y;           // (cols of the table), or none
    const float* frequencies;  // (pairs)
    float* angles;     // (2 pairs), or none
    u32 pairs, unused;
};

// Loads of all columns are asked for before the first is used.
template <u32 LAYOUT> DEVICE void embed_laid(const NextStepArguments& a, u32 token) {
    Weight table = a.table;
    table.layout = LAYOUT;
    for (u32 first = threadIdx.x; first < table.cols; first += THREADS * EACH) {
        float x[EACH];
#pragma unroll
        for (u32 i = 0; i < EACH; ++i) x[i] = weight_value(table, token, min(first + i * THREADS, table.cols - 1));
#pragma unroll
        for (u32 i = 0; i < EACH; ++i) {
            if (first + i * THREADS < table.cols) store1(a.y, first + i * THREADS, a.f32, x[i]);
        }
    }
}

DEVICE void embed_token(const NextStepArguments& a, u32 token) {
    if (!a.y) return;
    if (a.table.layout == FRAGMENTS) return embed_laid<FRAGMENTS>(a, token);
    if (a.table.layout == PLAIN_BF16) return embed_laid<PLAIN_BF16>(a, token);
    for (u32 col = threadIdx.x; col < a.table.cols; col += THREADS) store1(a.y, col, a.f32, weight_value(a.table, token, col));
}

// The step comes from the host, or is there; then the embedding's row and the angles.
extern "C" __global__ void __launch_bounds__(THREADS) open_step(const __grid_constant__ NextStepArguments a) {
    wait_for_inputs();
    for (u32 at = threadIdx.x; at < a.words; at += THREADS) ((u32*)a.step)[at] = ((const volatile u32*)a.from)[at];
    // Later kernels may read the step before they wait: they start when this one has ended, unless the step was there before.
    if (a.words > 0) __syncthreads();
    else next_may_start();
    const u32 token = a.step->tokens[0], position = place_of(a.step, 0).position;
    if (a.angles) {
        for (u32 pair = THREADS - 1 - threadIdx.x; pair < a.pairs; pair += THREADS) {
            const Angle angle = angle_of(position, a.frequencies[pair]);
            a.angles[pair] = angle.cosine;
            a.angles[a.pairs + pair] = angle.sine;
        }
    }
    if (token < a.table.rows) embed_token(a, token);
}

// The result goes to the host, and the step becomes the next one, whose embedding and angles take the place of this one's. What follows
// starts when this kernel has ended.
extern "C" __global__ void __launch_bounds__(THREADS) close_step(const __grid_constant__ NextStepArguments a) {
    const u32 position = place_of(a.step, 0).position + 1, pair = THREADS - 1 - threadIdx.x;
    Angle angle = {};
    if (a.angles && pair < a.pairs) angle = angle_of(position, a.frequencies[pair]);
    wait_for_inputs();
    const u64 largest = *(volatile u64*)a.best;
    // Keys of bfloat16 are the upper halves of those of float32.
    const bool finite = (u32)(largest >> 32) < FIRST_NOT_FINITE >> 16;
    // Nobody asks for the step after one without a result: any token that there is will do.
    const u32 token = finite ? ~(u32)largest : 0;
    if (threadIdx.x == 0) ((volatile u32*)a.result)[a.step->turn * RESULT_ROWS] = finite ? token : NOT_FINITE;
    if (a.angles && pair < a.pairs) {
        a.angles[pair] = angle.cosine;
        a.angles[a.pairs + pair] = angle.sine;
    }
    if (token < a.table.rows) embed_token(a, token);
    // All have read what is changed now.
    __syncthreads();
    if (threadIdx.x == 0) {
        *a.best = 0;
        advance_step(a.step, token);
    }
}
