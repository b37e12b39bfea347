// attention and placed_attention of few rows, five to eight query heads per key/value head (`attention_split.cuh` has what they do). Not here:
// other numbers of heads (`attention_decode.cu`), which another thread compiles meanwhile.

// So many heads want more registers than the compiler gives by itself.
#define SPLIT_BOUNDS 256, 1

SPLIT_KERNEL(128, 5)
SPLIT_KERNEL(128, 6)
SPLIT_KERNEL(128, 7)
SPLIT_KERNEL(128, 8)
SPLIT_KERNEL(64, 5)
SPLIT_KERNEL(64, 6)
SPLIT_KERNEL(64, 7)
SPLIT_KERNEL(64, 8)
