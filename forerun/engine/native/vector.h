/* Sixteen float lanes on any machine: one AVX-512 register, two AVX2 registers, four NEON registers.
 *
 * Every operation here is exact or rounds once, in an order fixed by the source: built with -ffp-contract=off, a
 * fused multiply-add happens where fma16 is written and nowhere else. So the same code gives the same bits in
 * whatever loop it is inlined.
 */
#ifndef FORERUN_VECTOR_H
#define FORERUN_VECTOR_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")
#define LANES 16

typedef float v16 __attribute__((vector_size(64)));
typedef int32_t i16 __attribute__((vector_size(64)));
typedef uint32_t u16 __attribute__((vector_size(64)));
typedef uint16_t h16 __attribute__((vector_size(32)));
typedef float v16_any __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint32_t u16_any __attribute__((vector_size(64), aligned(2), may_alias));
typedef uint16_t h16_any __attribute__((vector_size(32), aligned(2), may_alias));

INLINE v16 splat(float x) {
    return (v16){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
}

INLINE v16 load_f32(const float *p) { return *(const v16_any *)p; }

INLINE void store_f32(float *p, v16 x) { *(v16_any *)p = x; }

INLINE v16 fma16(v16 a, v16 b, v16 c) {
#if defined(__AVX512F__)
    return (v16)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FP_FAST_FMAF)
    v16 r;
    for (int i = 0; i < LANES; i++) r[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return r;
#else
    return a * b + c;
#endif
}

INLINE v16 select16(i16 mask, v16 yes, v16 no) { return (v16)((mask & (i16)yes) | (~mask & (i16)no)); }

/* NaN in b is ignored; the probabilities computed from it later are NaN all the same. */
INLINE v16 max16(v16 a, v16 b) { return select16(b > a, b, a); }

INLINE float sum_lanes(v16 x) {
    float t[LANES];
    store_f32(t, x);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) t[i] += t[i + half];
    return t[0];
}

INLINE float max_lanes(v16 x) {
    float t[LANES];
    store_f32(t, x);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) t[i] = t[i + half] > t[i] ? t[i + half] : t[i];
    return t[0];
}

INLINE v16 load_bf16(const uint16_t *p) {
#if defined(__AVX512F__)
    return (v16)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p)), 16);
#else
    h16 h = *(const h16_any *)p;
    return (v16)(__builtin_convertvector(h, u16) << 16);
#endif
}

/* Round to nearest, ties to even; NaN stays NaN. */
INLINE void store_bf16(uint16_t *p, v16 x) {
    u16 u = (u16)x;
    u16 rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    u16 is_nan = (u16)((u & 0x7fffffff) > (uint32_t)0x7f800000);
    *(h16_any *)p = __builtin_convertvector((is_nan & 0x7fc0) | (~is_nan & rounded), h16);
}

INLINE uint16_t to_bf16(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    if ((u & 0x7fffffff) > 0x7f800000) return 0x7fc0;
    return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

INLINE float from_bf16(uint16_t h) {
    uint32_t u = (uint32_t)h << 16;
    float x;
    memcpy(&x, &u, 4);
    return x;
}

/* e^x to 2 units in the last place; below -87.3 it is 0. Cody-Waite reduction, Taylor polynomial of degree 7. */
INLINE v16 exp16(v16 x) {
    const v16 low = splat(-87.3f), high = splat(88.3f), magic = splat(12582912.0f);
#if defined(__AVX512F__) /* the second operand where one is NaN */
    v16 t = (v16)_mm512_max_ps((__m512)low, _mm512_min_ps((__m512)high, (__m512)x));
#else
    v16 t = select16(x < low, low, select16(x > high, high, x));
#endif
    v16 n = fma16(t, splat(1.44269504f), magic) - magic;
    v16 r = fma16(n, splat(-0.693359375f), t);
    r = fma16(n, splat(2.12194440e-4f), r);
    v16 y = splat(1.0f / 5040);
    y = fma16(y, r, splat(1.0f / 720));
    y = fma16(y, r, splat(1.0f / 120));
    y = fma16(y, r, splat(1.0f / 24));
    y = fma16(y, r, splat(1.0f / 6));
    y = fma16(y, r, splat(0.5f));
    y = fma16(y, r, splat(1.0f));
    y = fma16(y, r, splat(1.0f));
    i16 power = (__builtin_convertvector(n, i16) + 127) << 23;
#if defined(__AVX512F__)
    __mmask16 kept = _mm512_cmp_ps_mask((__m512)x, (__m512)low, _CMP_NLT_UQ);
    return (v16)_mm512_maskz_mov_ps(kept, (__m512)(y * (v16)power));
#else
    return select16(x < low, splat(0.0f), y * (v16)power);
#endif
}

INLINE float exp1(float x) { return exp16(splat(x))[0]; }

#endif
