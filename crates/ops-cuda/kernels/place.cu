// Weights on their way to the device's layouts, and the step's data to where kernels read it.
// Not here: arithmetic.

struct PlaceArguments {
    Weight from;  // in the host's layout
    u8* to;
    u8* to_scales;
};

// Pairs of bfloat16 in lines of 16 rows to plain rows: one thread per element.
extern "C" __global__ void __launch_bounds__(256) place_bf16(PlaceArguments a) {
    u64 at = (u64)blockIdx.x * 256 + threadIdx.x;
    if (at >= (u64)a.from.rows * a.from.cols) return;
    u32 row = at / a.from.cols, col = at % a.from.cols;
    u64 line = (u64)(row / 16) * ((a.from.cols + 1) / 2) + col / 2;
    u32 pair = ((const u32*)a.from.start)[line * 16 + row % 16];
    ((u16*)a.to)[at] = col % 2 ? pair >> 16 : pair;
}

// 4-bit codes from lines of 16 rows to fragments: one thread per word of 8 codes.
extern "C" __global__ void __launch_bounds__(256) place_fragments(PlaceArguments a) {
    u64 at = (u64)blockIdx.x * 256 + threadIdx.x;
    u32 units = a.from.cols / 128;
    if (at >= (u64)((a.from.rows + 15) / 16) * units * 256) return;
    u32 in_unit = at % 256;
    u64 unit = at / 256;
    u32 tile = unit / units, first = unit % units * 128;
    u32 half = in_unit / 128, lane = in_unit % 128 / 4, chunk = half * 2 + in_unit % 4 / 2, word = in_unit % 2;
    u32 k = first + chunk * 32 + lane % 4 * 8 + word * 4, row = tile * 16 + lane / 4;
    u32 codes = 0;
    for (u32 index = 0; index < 4; ++index) {
        for (u32 part = 0; part < 2; ++part) {
            u32 code;
            lines_w4(a.from, row + index % 2 * 8, k + index / 2 * 2 + part, &code);
            codes |= code << (4 * index + 16 * part);
        }
    }
    ((u32*)a.to)[at] = codes;
}

// Their scales and biases: one thread per row and group.
extern "C" __global__ void __launch_bounds__(256) place_scales(PlaceArguments a) {
    u64 at = (u64)blockIdx.x * 256 + threadIdx.x;
    u32 groups = a.from.cols / a.from.group;
    if (at >= (u64)((a.from.rows + 15) / 16) * groups * 16) return;
    u64 block = at / 16;
    u32 lines = 1 + a.from.group / 8;
    ((u32*)a.to_scales)[at] = *(const u32*)(a.from.start + block * lines * 64 + at % 16 * 4);
}

struct StepInArguments {
    const u32* from;  // the host's memory, mapped
    u32* to;
    u32 words, unused;
};

// The next kernel starts when this one has ended, not before: so every later kernel of the run may read the step before it waits.
extern "C" __global__ void __launch_bounds__(256) step_in(StepInArguments a) {
    wait_for_inputs();
    u32 at = blockIdx.x * 256 + threadIdx.x;
    if (at < a.words) a.to[at] = ((const volatile u32*)a.from)[at];
}

struct ArgmaxArguments {
    const void* logits;  // (rows, width)
    u64* best;           // (rows), zero before and after
    u32* arrived;        // (rows), zero before and after
    u32* result;         // (slots, RESULT_ROWS), the host's memory, mapped
    StepState* step;     // whose slot the results go to; or none, and they go to the first of `result`
    u32 width, f32;
    u32 advances, unused;  // whether the step, of one row, becomes the one after it
};

// The lowest column with the largest value of each row: blockIdx.y is the row. Keys order as the values do; of equal ones the
// lower column wins, because its complement is larger. What follows starts when it has ended, as behind `step_in`.
extern "C" __global__ void __launch_bounds__(256) argmax(ArgmaxArguments a) {
    wait_for_inputs();
    __shared__ u64 found[8];
    u32 row = blockIdx.y, threads = gridDim.x * 256;
    u64 best = 0;
    auto look = [&](float x, u32 col) {
        u32 bits = __float_as_uint(x), key = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
        u64 whole = (u64)key << 32 | (u32)~col;
        best = whole > best ? whole : best;
    };
    const u16* line = (const u16*)a.logits + (u64)row * a.width;
    if (!a.f32 && a.width % 8 == 0 && (u64)line % 16 == 0) {
        for (u32 col = (blockIdx.x * 256 + threadIdx.x) * 8; col < a.width; col += threads * 8) {
            const Vec4 v = load16(line + col);
            const u32 pairs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                look(low(pairs[i]), col + 2 * i);
                look(high(pairs[i]), col + 2 * i + 1);
            }
        }
    } else {
        for (u32 col = blockIdx.x * 256 + threadIdx.x; col < a.width; col += threads) {
            look(load1(a.logits, (i64)row * a.width + col, a.f32), col);
        }
    }
    for (u32 step = 16; step > 0; step >>= 1) {
        u64 other = __shfl_xor_sync(ALL, best, step);
        best = other > best ? other : best;
    }
    if (threadIdx.x % WARP == 0) found[threadIdx.x / WARP] = best;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (u32 warp = 1; warp < 8; ++warp) best = found[warp] > best ? found[warp] : best;
    atomicMax(a.best + row, best);
    __threadfence();
    if (atomicAdd(a.arrived + row, 1) + 1 == gridDim.x) {
        __threadfence();
        const u64 largest = atomicExch(a.best + row, 0ull);
        const bool finite = (u32)(largest >> 32) < FIRST_NOT_FINITE;
        a.arrived[row] = 0;
        ((volatile u32*)a.result)[(a.step ? a.step->turn * RESULT_ROWS : 0) + row] = finite ? ~(u32)largest : NOT_FINITE;
        // Nobody asks for the step after one without a result: any token that there is will do.
        if (a.advances) advance_step(a.step, finite ? ~(u32)largest : 0);
    }
}
