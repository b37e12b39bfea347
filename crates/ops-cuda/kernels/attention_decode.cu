// attention and placed_attention of few rows, up to four query heads per key/value head (`attention_split.cuh` has what they do). Not here:
// other numbers of heads (`attention_decode_wide.cu`), which another thread compiles meanwhile.

#define SPLIT_BOUNDS 256

SPLIT_KERNEL(128, 1)
SPLIT_KERNEL(128, 2)
SPLIT_KERNEL(128, 3)
SPLIT_KERNEL(128, 4)
SPLIT_KERNEL(64, 1)
SPLIT_KERNEL(64, 2)
SPLIT_KERNEL(64, 3)
SPLIT_KERNEL(64, 4)
