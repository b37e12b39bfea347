// add, mul, silu, swiglu and mul_weight: one thread per element, one rounding (`ops/src/operators/` of these names).

struct ElementwiseArguments {
    const u16* a;
    const u16* b;
    u16* y;
    const float* w;  // (dim), mul_weight alone
    u64 count;
    u32 dim, unused;
};

DEVICE float silu_of(float x) { return x / (1.0f + __expf(-x)); }

// OTHER reads what EXPRESSION needs beside a.
#define ELEMENTWISE(NAME, OTHER, EXPRESSION)                                                             \
    extern "C" __global__ void __launch_bounds__(256) NAME(ElementwiseArguments p) {                     \
        next_may_start();                                                                                \
        wait_for_inputs();                                                                               \
        u64 at = (u64)blockIdx.x * 256 + threadIdx.x;                                                    \
        if (at >= p.count) return;                                                                       \
        float a = widen(p.a[at]);                                                                        \
        OTHER                                                                                            \
        p.y[at] = narrow(EXPRESSION);                                                                    \
    }

ELEMENTWISE(add_elements, float b = widen(p.b[at]);, a + b)
ELEMENTWISE(mul_elements, float b = widen(p.b[at]);, a * b)
ELEMENTWISE(silu_elements, , silu_of(a))
ELEMENTWISE(swiglu_elements, float b = widen(p.b[at]);, silu_of(a) * b)
ELEMENTWISE(mul_weight_elements, float w = p.w[at % p.dim];, a * w)

// Eight elements per thread; the count divides by eight.
extern "C" __global__ void __launch_bounds__(256) swiglu_eights(ElementwiseArguments p) {
    next_may_start();
    wait_for_inputs();
    u64 at = ((u64)blockIdx.x * 256 + threadIdx.x) * 8;
    if (at >= p.count) return;
    Vec4 a = load16(p.a + at), b = load16(p.b + at), y;
    u32* out = &y.x;
    const u32 *as = &a.x, *bs = &b.x;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) out[i] = narrow2(silu_of(low(as[i])) * low(bs[i]), silu_of(high(as[i])) * high(bs[i]));
    *(Vec4*)(p.y + at) = y;
}
