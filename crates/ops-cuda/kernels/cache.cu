// cache_append and cache_grow (`ops/src/operators/` of these names): one thread per element.

struct CacheArguments {
    const StepState* step;
    const u16* k;  // (rows, kv_heads * dim), cache_append alone
    const u16* v;
    u32 kv_heads, dim, layer, unused;
};

extern "C" __global__ void __launch_bounds__(256) cache_append_elements(CacheArguments p) {
    next_may_start();
    wait_for_inputs();
    u32 width = p.kv_heads * p.dim;
    u64 index = (u64)blockIdx.x * 256 + threadIdx.x;
    if (index >= (u64)p.step->rows * width) return;
    u32 row = index / width, head = index % width / p.dim, d = index % p.dim;
    RowPlace place = place_of(p.step, row);
    const LayerState& layer = p.step->layer[place.sequence * p.step->layers + p.layer];
    u64 to = ((u64)head * p.step->sequence[place.sequence].capacity + place.position) * p.dim + d;
    layer.keys[to] = p.k[index];
    layer.values[to] = p.v[index];
}

// blockIdx.y is the sequence.
extern "C" __global__ void __launch_bounds__(256) cache_grow_elements(CacheArguments p) {
    next_may_start();
    wait_for_inputs();
    const SequenceState& sequence = p.step->sequence[blockIdx.y];
    const LayerState& layer = p.step->layer[blockIdx.y * p.step->layers + p.layer];
    if (!layer.old_keys) return;
    u64 count = (u64)p.kv_heads * sequence.offset * p.dim;
    for (u64 index = (u64)blockIdx.x * 256 + threadIdx.x; index < count; index += (u64)gridDim.x * 256) {
        u32 d = index % p.dim, position = index / p.dim % sequence.offset, head = index / p.dim / sequence.offset;
        u64 from = ((u64)head * sequence.previous_capacity + position) * p.dim + d;
        u64 to = ((u64)head * sequence.capacity + position) * p.dim + d;
        layer.keys[to] = layer.old_keys[from];
        layer.values[to] = layer.old_values[from];
    }
}
