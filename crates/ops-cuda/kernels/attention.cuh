// What the attention files share: their arguments and where keys and values lie. Not here: arithmetic.

struct AttentionArguments {
    const StepState* step;
    const u16* q;          // (rows, heads * dim); attention_mix: probabilities, f32
    const u16* k;          // Keys::Step: (rows, kv_heads * dim), else none
    const u16* v;
    void* y;
    float* partial;        // attention_decode alone
    u32* arrived;
    u32 rows, heads, kv_heads, dim;
    float scale;
    u32 context;           // width of the scores
    u32 layer, splits;
    // attention_split of one row from raw projections alone: q, k and v are theirs.
    const float* table;   // (1, dim): cosines of the pairs, then sines
    const float* q_norm;  // (dim), or none
    const float* k_norm;
    float epsilon;
    u32 interleaved;
};

struct KeyPlace {
    const u16* start;
    u64 stride;  // elements from one position to the next
};

// Keys (or values) of a key/value head of the sequence that a row belongs to.
DEVICE KeyPlace keys_of(const AttentionArguments& p, u32 sequence, u32 head, bool values) {
    const SequenceState& s = p.step->sequence[sequence];
    if (p.k || p.v) {
        const u16* from = values ? p.v : p.k;
        u64 width = (u64)p.kv_heads * p.dim;
        return KeyPlace{from + s.first_row * width + head * p.dim, width};
    }
    const LayerState& layer = p.step->layer[sequence * p.step->layers + p.layer];
    return KeyPlace{(values ? layer.values : layer.keys) + (u64)head * s.capacity * p.dim, p.dim};
}
