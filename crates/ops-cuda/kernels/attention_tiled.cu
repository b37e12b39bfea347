// attention of many rows, head size 64 or 128, on the tensor cores: tiles of 64 rows against tiles of 64 positions with a running
// softmax; no score matrix (`ops/src/operators/attention`). A block has one query head and rows of one sequence.

template <int DIM> DEVICE void tiles(const AttentionArguments& p) {
    constexpr int ROWS = 64, KEYS = 64, PIECES = DIM / 8, TILE_BYTES = KEYS * DIM * 2;
    extern __shared__ __align__(128) u8 room[];  // queries, then two stages of keys and values
    next_may_start();
    wait_for_inputs();
    const u32 thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    // Blocks with the most positions first.
    const u32 tile = gridDim.x - 1 - blockIdx.x, head = blockIdx.y;
    const SequenceState& s = p.step->sequence[blockIdx.z];
    const u32 first = tile * ROWS;
    if (first >= s.rows) return;
    const u32 visible_last = min(s.offset + first + ROWS, s.offset + s.rows);  // positions that the last row sees
    KeyPlace keys = keys_of(p, blockIdx.z, head / (p.heads / p.kv_heads), false);
    KeyPlace values = keys_of(p, blockIdx.z, head / (p.heads / p.kv_heads), true);
    const u32 base = shared_address(room), stage_at = base + ROWS * DIM * 2;

    auto place = [](u32 row, u32 piece) { return row * DIM * 2 + ((piece ^ (row % 8)) * 16); };
#pragma unroll
    for (int i = 0; i < ROWS * PIECES / 128; ++i) {
        u32 at = thread + i * 128, row = at / PIECES, piece = at % PIECES;
        bool inside = first + row < s.rows;
        u32 from = s.first_row + (inside ? first + row : 0);
        copy16(base + place(row, piece), p.q + ((u64)from * p.heads + head) * DIM + piece * 8, inside);
    }
    auto fetch = [&](u32 block) {
        u32 to = stage_at + block % 2 * 2 * TILE_BYTES;
#pragma unroll
        for (int i = 0; i < KEYS * PIECES / 128; ++i) {
            u32 at = thread + i * 128, row = at / PIECES, piece = at % PIECES, position = block * KEYS + row;
            bool inside = position < visible_last;
            u64 from = inside ? position : 0;
            copy16(to + place(row, piece), keys.start + from * keys.stride + piece * 8, inside);
            copy16(to + TILE_BYTES + place(row, piece), values.start + from * values.stride + piece * 8, inside);
        }
    };
    const u32 blocks = (visible_last + KEYS - 1) / KEYS;
    fetch(0);
    copies_end_stage();
    wait_for_copies<0>();
    __syncthreads();
    u32 q[DIM / 16][4];
#pragma unroll
    for (int i = 0; i < DIM / 16; ++i) ldmatrix4(q[i], base + place(warp * 16 + lane % 16, i * 2 + lane / 16));
    const float scale = p.scale * 1.44269504088896f;
    float out[DIM / 8][4] = {};
    float most[2] = {-1e30f, -1e30f}, sum[2] = {};
    const u32 row0 = first + warp * 16 + lane / 4;
    for (u32 block = 0; block < blocks; ++block) {
        if (block + 1 < blocks) fetch(block + 1);
        copies_end_stage();
        const u32 k_at = stage_at + block % 2 * 2 * TILE_BYTES, v_at = k_at + TILE_BYTES;
        float score[KEYS / 8][4] = {};
#pragma unroll
        for (int i = 0; i < DIM / 16; ++i) {
#pragma unroll
            for (int j = 0; j < KEYS / 16; ++j) {
                u32 k[4];
                ldmatrix4(k, k_at + place(j * 16 + lane % 8 + lane / 16 * 8, i * 2 + lane / 8 % 2));
                mma(score[2 * j], q[i][0], q[i][1], q[i][2], q[i][3], k[0], k[1]);
                mma(score[2 * j + 1], q[i][0], q[i][1], q[i][2], q[i][3], k[2], k[3]);
            }
        }
        // The last blocks reach beyond what some rows see.
        if ((block + 1) * KEYS > s.offset + first + warp * 16 + 1) {
#pragma unroll
            for (int j = 0; j < KEYS / 8; ++j) {
#pragma unroll
                for (int c = 0; c < 4; ++c) {
                    u32 position = block * KEYS + j * 8 + lane % 4 * 2 + c % 2;
                    if (position > s.offset + row0 + c / 2 * 8) score[j][c] = -1e30f;
                }
            }
        }
        u32 weight[KEYS / 16][4];
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            float larger = most[side];
#pragma unroll
            for (int j = 0; j < KEYS / 8; ++j) larger = fmaxf(larger, fmaxf(score[j][side * 2], score[j][side * 2 + 1]));
            larger = fmaxf(larger, __shfl_xor_sync(ALL, larger, 1));
            larger = fmaxf(larger, __shfl_xor_sync(ALL, larger, 2));
            float shrink = exp2f((most[side] - larger) * scale), here = 0.0f;
            most[side] = larger;
#pragma unroll
            for (int j = 0; j < KEYS / 8; ++j) {
                float a = exp2f((score[j][side * 2] - larger) * scale), b = exp2f((score[j][side * 2 + 1] - larger) * scale);
                here += a + b;
                weight[j / 2][j % 2 * 2 + side] = narrow2(a, b);
            }
            sum[side] = sum[side] * shrink + here;
#pragma unroll
            for (int j = 0; j < DIM / 8; ++j) {
                out[j][side * 2] *= shrink;
                out[j][side * 2 + 1] *= shrink;
            }
        }
#pragma unroll
        for (int j = 0; j < KEYS / 16; ++j) {
#pragma unroll
            for (int i = 0; i < DIM / 16; ++i) {
                u32 v[4];
                ldmatrix4_transposed(v, v_at + place(j * 16 + lane % 16, i * 2 + lane / 16));
                mma(out[2 * i], weight[j][0], weight[j][1], weight[j][2], weight[j][3], v[0], v[1]);
                mma(out[2 * i + 1], weight[j][0], weight[j][1], weight[j][2], weight[j][3], v[2], v[3]);
            }
        }
        wait_for_copies<0>();
        __syncthreads();
    }
#pragma unroll
    for (int side = 0; side < 2; ++side) {
        sum[side] += __shfl_xor_sync(ALL, sum[side], 1);
        sum[side] += __shfl_xor_sync(ALL, sum[side], 2);
        u32 row = row0 + side * 8;
        if (row >= s.rows) continue;
        float inverse = 1.0f / sum[side];
        u16* to = (u16*)p.y + ((u64)(s.first_row + row) * p.heads + head) * DIM + lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < DIM / 8; ++j) *(u32*)(to + j * 8) = narrow2(out[j][side * 2] * inverse, out[j][side * 2 + 1] * inverse);
    }
}

extern "C" __global__ void __launch_bounds__(128) attention_tiles_d128(AttentionArguments p) { tiles<128>(p); }
extern "C" __global__ void __launch_bounds__(128) attention_tiles_d64(AttentionArguments p) { tiles<64>(p); }
