// embed: rows of a table by token id (`ops/src/operators/embed.rs`). One block per row.

struct EmbedArguments {
    const StepState* step;
    Weight table;
    void* y;
    u32 f32, unused;
};

extern "C" __global__ void __launch_bounds__(256) embed_rows(EmbedArguments a) {
    next_may_start();
    wait_for_inputs();
    u32 row = blockIdx.x, token = a.step->tokens[row];
    for (u32 col = threadIdx.x; col < a.table.cols; col += 256) {
        store1(a.y, (i64)row * a.table.cols + col, a.f32, weight_value(a.table, token, col));
    }
}
