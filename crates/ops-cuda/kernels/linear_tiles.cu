// linear of many rows on Hopper's warpgroup tensor cores (`ops/src/operators/linear`), bfloat16 weights: one warp asks the tensor memory
// unit for tiles of both operands, two warpgroups multiply them. Blocks of a cluster share a product's columns, and add their sums through
// each other's shared memory. Products of one input are one launch. Not here: other GPUs (`linear_matmul.cu`, which also turns codes into
// bfloat16).

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// The driver's description of a matrix and of the tiles that are copied from it.
struct alignas(64) TensorMap { u64 words[16]; };

#define MOST_PARTS 3

struct TilePart {
    const float* bias;    // (outputs), or none
    u16* y;               // (rows, outputs)
    u32 outputs, first;   // its first block's index in the grid's second dimension
};

struct TileArguments {
    TensorMap x, w[MOST_PARTS];
    TilePart part[MOST_PARTS];
    u32 rows, cols, parts;
    u32 ahead;  // weights are there before this kernel may start
};

// ---- the tensor memory unit, and barriers in shared memory that are used again and again

DEVICE void init_barrier(u32 at, u32 arrivals) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(at), "r"(arrivals) : "memory"); }

DEVICE void wait_for_phase(u32 at, u32 parity) {
    u32 there;
    do {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(there) : "r"(at), "r"(parity) : "memory");
    } while (!there);
}

DEVICE void arrive(u32 at) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(at) : "memory"); }

DEVICE void copy_tile(u32 to, const TensorMap* map, u32 col, u32 row, u32 arrival) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 :: "r"(to), "l"(map), "r"(col), "r"(row), "r"(arrival) : "memory");
}

DEVICE Vec4 load_from_block(u32 at, u32 rank) {
    Vec4 v;
    asm volatile("{ .reg .b32 there; mapa.shared::cluster.u32 there, %4, %5; ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [there]; }"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at), "r"(rank) : "memory");
    return v;
}

// ---- warpgroup products: 64 x N += (64 x 16) (16 x N), both K-major; the first one of a sum overwrites

#define FOUR(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SIXTEEN(i) FOUR(i), FOUR(i + 4), FOUR(i + 8), FOUR(i + 12)
#define WGMMA(N, REGISTERS, A, B, P, ...)                                                                           \
    DEVICE void wgmma(float (&d)[N / 2], u64 a, u64 b, u32 add) {                                                  \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, " P ", 0;\n"                                                   \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" REGISTERS "}, " A ", " B          \
                     ", p, 1, 1, 0, 0; }" : __VA_ARGS__ : "l"(a), "l"(b), "r"(add));                                \
    }
#define R0 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define R1 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define R2 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define R3 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define R4 "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define R5 "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define R6 "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"
#define R7 "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
WGMMA(64, R0 "," R1, "%32", "%33", "%34", SIXTEEN(0), SIXTEEN(16))
WGMMA(128, R0 "," R1 "," R2 "," R3, "%64", "%65", "%66", SIXTEEN(0), SIXTEEN(16), SIXTEEN(32), SIXTEEN(48))
WGMMA(160, R0 "," R1 "," R2 "," R3 "," R4, "%80", "%81", "%82", SIXTEEN(0), SIXTEEN(16), SIXTEEN(32), SIXTEEN(48), SIXTEEN(64))
WGMMA(256, R0 "," R1 "," R2 "," R3 "," R4 "," R5 "," R6 "," R7, "%128", "%129", "%130", SIXTEEN(0), SIXTEEN(16), SIXTEEN(32), SIXTEEN(48), SIXTEEN(64), SIXTEEN(80), SIXTEEN(96), SIXTEEN(112))

// Rows of 128 bytes, swizzled in groups of eight rows.
DEVICE u64 tile_descriptor(u32 address) {
    return (u64)(address >> 4 & 0x3fff) | (u64)1 << 16 | (u64)64 << 32 | (u64)1 << 62;
}

// A block of 128 x OUTPUTS; each of its two warpgroups has half of the rows, and the warp after them asks for tiles. The grid's third
// dimension is the cluster: its blocks share the columns, and then the rows of the sum.
template <int OUTPUTS, int STAGES> DEVICE void tiles(const TileArguments& p) {
    constexpr u32 ROWS = 128, DEPTH = 64, X_BYTES = ROWS * DEPTH * 2, W_BYTES = OUTPUTS * DEPTH * 2, STAGE_BYTES = X_BYTES + W_BYTES;
    constexpr u32 WORKERS = 256;
    extern __shared__ __align__(1024) u8 room[];
    __shared__ __align__(8) u64 full[STAGES], empty[STAGES];
    next_may_start();
    const u32 thread = threadIdx.x, lane = thread % WARP, warp = thread / WARP, group = warp / 4;
    const u32 base = (shared_address(room) + 1023) & ~1023u, first_row = blockIdx.x * ROWS;
    u32 which = 0;
    if (p.parts > 1 && blockIdx.y >= p.part[1].first) which = 1;
    if (p.parts > 2 && blockIdx.y >= p.part[2].first) which = 2;
    const TilePart& part = p.part[which];
    const u32 first_output = (blockIdx.y - part.first) * OUTPUTS;
    const u32 splits = gridDim.z, rank = blockIdx.z, all_stages = (p.cols + DEPTH - 1) / DEPTH;
    const u32 first_stage = all_stages * rank / splits, stages = all_stages * (rank + 1) / splits - first_stage;
    if (thread == 0) {
        for (u32 i = 0; i < STAGES; ++i) {
            init_barrier(shared_address(full + i), 1);
            init_barrier(shared_address(empty + i), WORKERS / WARP);
        }
        asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
    if (thread >= WORKERS) {
        if (lane == 0) {
            auto x_tile = [&](u32 stage) {
                const u32 at = stage % STAGES;
                copy_tile(base + at * STAGE_BYTES, &p.x, (first_stage + stage) * DEPTH, first_row, shared_address(full + at));
            };
            auto w_tile = [&](u32 stage) {
                const u32 at = stage % STAGES, arrival = shared_address(full + at);
                arrival_expects(arrival, STAGE_BYTES);
                copy_tile(base + at * STAGE_BYTES + X_BYTES, p.w + which, (first_stage + stage) * DEPTH, first_output, arrival);
            };
            const u32 before = p.ahead ? min(stages, (u32)STAGES) : 0;
            for (u32 stage = 0; stage < before; ++stage) w_tile(stage);
            wait_for_inputs();
            for (u32 stage = 0; stage < stages; ++stage) {
                if (stage >= STAGES) wait_for_phase(shared_address(empty + stage % STAGES), (stage / STAGES + 1) % 2);
                if (stage >= before) w_tile(stage);
                x_tile(stage);
            }
        }
    }
    float sum[OUTPUTS / 2];
    if (thread < WORKERS) {
        for (u32 stage = 0; stage < stages; ++stage) {
            const u32 at = stage % STAGES, x_at = base + at * STAGE_BYTES + group * 64 * 128, w_at = base + at * STAGE_BYTES + X_BYTES;
            wait_for_phase(shared_address(full + at), stage / STAGES % 2);
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
            for (u32 k = 0; k < DEPTH / 16; ++k) wgmma(sum, tile_descriptor(x_at + k * 32), tile_descriptor(w_at + k * 32), stage + k > 0);
            asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
            asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
            // The stage before this one has been read.
            if (stage > 0 && lane == 0) arrive(shared_address(empty + (stage - 1) % STAGES));
        }
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    }
    const u32 row_in = group * 64 + warp % 4 * 16, outputs = part.outputs;
    if (splits > 1) {
        // Sums of all rows; then this block's share of the rows, from every block.
        constexpr u32 LINE = OUTPUTS + 4;
        float* const sums = (float*)(room + (base - shared_address(room)));
        __syncthreads();
        if (thread < WORKERS) {
#pragma unroll
            for (int j = 0; j < OUTPUTS / 8; ++j) {
                float* to = sums + (row_in + lane / 4) * LINE + j * 8 + lane % 4 * 2;
                to[0] = sum[j * 4];
                to[1] = sum[j * 4 + 1];
                to[8 * LINE] = sum[j * 4 + 2];
                to[8 * LINE + 1] = sum[j * 4 + 3];
            }
        }
        cluster_arrive();
        cluster_wait();
        const u32 begin = ROWS * rank / splits, rows = min(ROWS * (rank + 1) / splits, p.rows - first_row > ROWS ? ROWS : p.rows - first_row);
        for (u32 at = thread; begin + at / (OUTPUTS / 4) < rows; at += WORKERS + WARP) {
            const u32 row = begin + at / (OUTPUTS / 4), col = at % (OUTPUTS / 4) * 4, output = first_output + col;
            const u32 from = base + (row * LINE + col) * 4;
            float all[4] = {};
#pragma unroll 4
            for (u32 other = 0; other < splits; ++other) {
                const Vec4 v = load_from_block(from, other);
                all[0] += __uint_as_float(v.x);
                all[1] += __uint_as_float(v.y);
                all[2] += __uint_as_float(v.z);
                all[3] += __uint_as_float(v.w);
            }
            u16* const to = part.y + (u64)(first_row + row) * outputs + output;
            if (part.bias) {
#pragma unroll
                for (int i = 0; i < 4; ++i) all[i] += output + i < outputs ? part.bias[output + i] : 0.0f;
            }
            if (outputs % 4 == 0 && output < outputs) {
                u32* const words = (u32*)to;
                words[0] = narrow2(all[0], all[1]);
                words[1] = narrow2(all[2], all[3]);
            } else {
#pragma unroll
                for (int i = 0; i < 4; ++i) if (output + i < outputs) to[i] = narrow(all[i]);
            }
        }
        // Not before every block has read what this one has.
        cluster_arrive_relaxed();
        cluster_wait();
        return;
    }
    if (thread >= WORKERS) return;
    // Through shared memory, so that whole lines are written. All copies have arrived; the other warpgroup may still read.
    asm volatile("bar.sync 1, 256;" ::: "memory");
    constexpr u32 LINE = OUTPUTS * 2 + 16;
    u8* const mine = room + (base - shared_address(room)) + warp * 16 * LINE;
#pragma unroll
    for (int j = 0; j < OUTPUTS / 8; ++j) {
        const u32 col = j * 8 + lane % 4 * 2, output = first_output + col;
        float bias0 = 0.0f, bias1 = 0.0f;
        if (part.bias) {
            if (output < outputs) bias0 = part.bias[output];
            if (output + 1 < outputs) bias1 = part.bias[output + 1];
        }
        *(u32*)(mine + lane / 4 * LINE + col * 2) = narrow2(sum[j * 4] + bias0, sum[j * 4 + 1] + bias1);
        *(u32*)(mine + (lane / 4 + 8) * LINE + col * 2) = narrow2(sum[j * 4 + 2] + bias0, sum[j * 4 + 3] + bias1);
    }
    __syncwarp();
    for (u32 at = lane; at < 16 * OUTPUTS / 8; at += WARP) {
        const u32 row = at / (OUTPUTS / 8), col = at % (OUTPUTS / 8) * 8, output = first_output + col, whole = first_row + row_in + row;
        if (whole >= p.rows || output >= outputs) continue;
        const u16* const from = (const u16*)(mine + row * LINE + col * 2);
        u16* const to = part.y + (u64)whole * outputs + output;
        if (outputs % 8 == 0) {
            *(Vec4*)to = *(const Vec4*)from;
        } else {
            for (u32 i = 0; i < 8 && output + i < outputs; ++i) to[i] = from[i];
        }
    }
}

#define TILE_KERNEL(NAME, OUTPUTS, STAGES)                                                                     \
    extern "C" __global__ void __launch_bounds__(288, 1) NAME(const __grid_constant__ TileArguments p) {    \
        tiles<OUTPUTS, STAGES>(p);                                                                              \
    }
TILE_KERNEL(tiles_64, 64, 8)
TILE_KERNEL(tiles_128, 128, 6)
TILE_KERNEL(tiles_160, 160, 6)
TILE_KERNEL(tiles_256, 256, 4)

#endif
