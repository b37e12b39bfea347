// What every kernel is written with: types, bfloat16, weights in their layouts, the step, and the instructions that have no
// name in CUDA C++ without headers. Not here: arithmetic of any operator. It stands before each kernel file, and every struct
// that the host fills has its twin in `src/arguments.rs`.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define DEVICE __device__ __forceinline__
#define WARP 32u
#define ALL 0xffffffffu

struct alignas(16) Vec4 { u32 x, y, z, w; };

// ---- programmatic dependent launch: the next kernel may start, and this one waits for what was before it

DEVICE void next_may_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

DEVICE void wait_for_inputs() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// ---- bfloat16, as bits

DEVICE float widen(u16 bits) { return __uint_as_float((u32)bits << 16); }
DEVICE float low(u32 pair) { return __uint_as_float(pair << 16); }
DEVICE float high(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }

DEVICE u32 narrow2(float low, float high) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

DEVICE u16 narrow(float x) { return (u16)narrow2(x, 0.0f); }

DEVICE float from_f16(u16 bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}

DEVICE float load1(const void* base, i64 index, u32 f32) {
    return f32 ? ((const float*)base)[index] : widen(((const u16*)base)[index]);
}

DEVICE void store1(void* base, i64 index, u32 f32, float x) {
    if (f32) ((float*)base)[index] = x;
    else ((u16*)base)[index] = narrow(x);
}

// ---- loads that other threads do not want again, and loads through the caches

DEVICE Vec4 stream16(const void* at) {
    Vec4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at));
    return v;
}

// Said to be global memory: addresses that come from the step's data would otherwise be taken for any kind.
DEVICE Vec4 load16(const void* at) {
    Vec4 v;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at) : "memory");
    return v;
}

DEVICE void load_words(u32 (&to)[4], const void* at) {
    Vec4 v = load16(at);
    to[0] = v.x;
    to[1] = v.y;
    to[2] = v.z;
    to[3] = v.w;
}

DEVICE float load_bf16(const u16* at) {
    u16 bits;
    asm volatile("ld.global.u16 %0, [%1];" : "=h"(bits) : "l"(at) : "memory");
    return widen(bits);
}

DEVICE void load_words(u32 (&to)[2], const void* at) {
    asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "l"(at) : "memory");
}

// What another block of this launch wrote: from the second-level cache.
DEVICE float load_shared_by_blocks(const float* at) {
    float x;
    asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(x) : "l"(at) : "memory");
    return x;
}

// ---- warps and blocks

DEVICE float warp_sum(float x) {
#pragma unroll
    for (u32 step = 16; step > 0; step >>= 1) x += __shfl_xor_sync(ALL, x, step);
    return x;
}

DEVICE float warp_max(float x) {
#pragma unroll
    for (u32 step = 16; step > 0; step >>= 1) x = fmaxf(x, __shfl_xor_sync(ALL, x, step));
    return x;
}

// The sum over a block of at most 1024 threads, in every thread; `room` is 32 floats that no other call of the block uses.
DEVICE float block_sum(float x, float* room) {
    x = warp_sum(x);
    if (threadIdx.x % WARP == 0) room[threadIdx.x / WARP] = x;
    __syncthreads();
    u32 warps = (blockDim.x + WARP - 1) / WARP;
    float total = 0.0f;
    for (u32 warp = 0; warp < warps; ++warp) total += room[warp];
    return total;
}

DEVICE float block_max(float x, float* room) {
    x = warp_max(x);
    if (threadIdx.x % WARP == 0) room[threadIdx.x / WARP] = x;
    __syncthreads();
    u32 warps = (blockDim.x + WARP - 1) / WARP;
    float most = room[0];
    for (u32 warp = 1; warp < warps; ++warp) most = fmaxf(most, room[warp]);
    return most;
}

// ---- tensor cores: 16 x 8 += (16 x 16) (16 x 8), bfloat16 into float32

DEVICE void mma(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

DEVICE u32 shared_address(const void* at) { return (u32)__cvta_generic_to_shared(at); }

DEVICE void ldmatrix4(u32 (&r)[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}

DEVICE void ldmatrix4_transposed(u32 (&r)[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}

// 16 bytes from global to shared memory while the thread goes on; zeros if not `wanted`.
DEVICE void copy16(u32 to, const void* from, bool wanted) {
    u32 bytes = wanted ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(to), "l"(from), "r"(bytes) : "memory");
}

DEVICE void copies_end_stage() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int LEFT> DEVICE void wait_for_copies() { asm volatile("cp.async.wait_group %0;" :: "n"(LEFT) : "memory"); }

#if __CUDA_ARCH__ >= 900

// ---- bulk copies into shared memory that count their bytes at a barrier there; a barrier here is used once

// By the thread that starts the copies; other threads see it after the block's next barrier.
DEVICE void start_arrival(u32 arrival) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\n"
                 "fence.mbarrier_init.release.cluster;\n"
                 "fence.proxy.async.shared::cta;" :: "r"(arrival) : "memory");
}

DEVICE void arrival_expects(u32 arrival, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(arrival), "r"(bytes) : "memory");
}

// Addresses and bytes divide by 16.
DEVICE void bulk_copy(u32 to, const void* from, u32 bytes, u32 arrival) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(to), "l"(from), "r"(bytes), "r"(arrival) : "memory");
}

DEVICE void wait_for_arrival(u32 arrival) {
    u32 there;
    do {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                     : "=r"(there) : "r"(arrival) : "memory");
    } while (!there);
}

// ---- clusters: blocks that run side by side and write each other's shared memory

// With everything written before; or without, which waits for no memory.
DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
DEVICE void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// An address of this block's shared memory, as the same place in block `rank` of the cluster.
DEVICE u32 in_block(u32 address, u32 rank) {
    u32 there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}

// Into another block's memory, whose barrier at `arrival` counts the bytes: that block waits for no fence.
DEVICE void send(u32 at, float x, u32 arrival) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" :: "r"(at), "f"(x), "r"(arrival) : "memory");
}

DEVICE void send(u32 at, float x, float y, u32 arrival) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];"
                 :: "r"(at), "f"(x), "f"(y), "r"(arrival) : "memory");
}

#endif

// ---- the step: what changes from one run of a program to the next (twin: `Step` in src/step.rs)

struct SequenceState {
    u32 first_row, rows, offset, capacity, previous_capacity, unused;
};

struct LayerState {
    u16* keys;
    u16* values;
    const u16* old_keys;
    const u16* old_values;
};

struct StepState {
    u32 rows, sequences, layers;
    u32 turn;                     // which of two slots the results go to
    const u32* tokens;            // (rows)
    const u32* row_sequence;      // (rows)
    const SequenceState* sequence;
    const LayerState* layer;      // (sequences, layers)
};

// Where a step of one row has its token, its sequence and its layers, from its first byte on (`src/step.rs` has a test of it).
#define ONE_ROW_TOKEN 48
#define ONE_ROW_SEQUENCE 80
#define ONE_ROW_LAYERS 112

// Of each slot, in words.
#define RESULT_ROWS 64

// What is said in place of a column where the largest logit is infinite or no number, and the first key of such (in the order of float32).
#define NOT_FINITE 0xfffffffeu
#define FIRST_NOT_FINITE 0xff800000u

// A step of one row becomes the one after it. Kernels that may read the step before they wait start when this one has ended.
DEVICE void advance_step(StepState* step, u32 token) {
    *(u32*)((u8*)step + ONE_ROW_TOKEN) = token;
    ((SequenceState*)((u8*)step + ONE_ROW_SEQUENCE))->offset += 1;
    step->turn ^= 1;
}

struct RowPlace {
    u32 sequence, position;  // its position, 0-based: it sees position + 1
};

DEVICE RowPlace place_of(const StepState* step, u32 row) {
    u32 index = step->row_sequence[row];
    const SequenceState& s = step->sequence[index];
    return RowPlace{index, s.offset + row - s.first_row};
}

// ---- weights in the device's layouts (`src/layout.rs` says which and how they lie)

#define PLAIN_F32 0u
#define PLAIN_BF16 1u
#define FRAGMENTS 2u
#define LINES_W4 3u
#define LINES_INT8 4u

#define HEADER_F32 0u
#define HEADER_F16 1u
#define HEADER_BF16 2u

struct Weight {
    const u8* start;
    const u8* scales;  // FRAGMENTS: one word (scale << 16 | bias) per row and group, (row tile, group, 16)
    u32 rows, cols;
    u32 layout, group, header, unused;
};

DEVICE float header_half(u32 header, u16 bits) { return header == HEADER_F16 ? from_f16(bits) : widen(bits); }

// Code and header of (row, col) in the host's own layout: lines of 16 rows.
DEVICE float lines_w4(const Weight& w, u32 row, u32 col, u32* code_out) {
    u32 header_lines = w.header == HEADER_F32 ? 2 : 1, lines = header_lines + w.group / 8;
    const u8* block = w.start + ((u64)(row / 16) * (w.cols / w.group) + col / w.group) * lines * 64;
    u32 lane = row % 16 * 4, k = col % w.group, half = w.group / 2;
    u8 byte = block[header_lines * 64 + k % half / 4 * 64 + lane + k % 4];
    u32 code = k < half ? byte & 15 : byte >> 4;
    *code_out = code;
    if (w.header == HEADER_F32) return (float)code * *(const float*)(block + lane) + *(const float*)(block + 64 + lane);
    u32 word = *(const u32*)(block + lane);
    return (float)code * header_half(w.header, word >> 16) + header_half(w.header, (u16)word);
}

// The value at (row, col), decoded plainly.
DEVICE float weight_value(const Weight& w, u32 row, u32 col) {
    if (w.layout == PLAIN_F32) return ((const float*)w.start)[(u64)row * w.cols + col];
    if (w.layout == PLAIN_BF16) return widen(((const u16*)w.start)[(u64)row * w.cols + col]);
    if (w.layout == LINES_W4) {
        u32 code;
        return lines_w4(w, row, col, &code);
    }
    if (w.layout == LINES_INT8) {
        u32 lines = 1 + w.group / 4;
        const u8* block = w.start + ((u64)(row / 16) * (w.cols / w.group) + col / w.group) * lines * 64;
        u32 lane = row % 16 * 4, k = col % w.group;
        return (float)(signed char)block[64 + k / 4 * 64 + lane + k % 4] * *(const float*)(block + lane);
    }
    u32 k = col % 128, chunk = k / 32, thread = k % 32 / 8, word = k % 8 / 4, pair = k % 4 / 2, part = k % 2;
    u32 lane = row % 8 * 4 + thread, index = pair * 2 + row % 16 / 8;
    const u32* unit = (const u32*)w.start + ((u64)(row / 16) * (w.cols / 128) + col / 128) * 256;
    u32 code = unit[chunk / 2 * 128 + lane * 4 + chunk % 2 * 2 + word] >> (4 * index + 16 * part) & 15;
    u32 scale = ((const u32*)w.scales)[((u64)(row / 16) * (w.cols / w.group) + col / w.group) * 16 + row % 16];
    return (float)code * header_half(w.header, scale >> 16) + header_half(w.header, (u16)scale);
}
