/* Products of a few rows with a packed weight.
 *
 * A weight (n, k) is packed in units of 32 outputs, read once from memory per pass, front to back:
 *   bf16: unit, k/32, 2 halves of 16 outputs, 16 pairs of k, 16 outputs, 2    (an AMX tile, or one dot-product operand)
 *   fp32: unit, k,    2 halves of 16 outputs
 * n is padded to 32 and k to 32 with zeros. A sum over k is one chain in ascending k per (row, output): it does not
 * depend on the other rows, on the number of rows or on the number of threads.
 */
#ifndef FORERUN_LINEAR_H
#define FORERUN_LINEAR_H

#include "vector.h"

#define UNIT 32      /* outputs computed together */
#define ROW_TILE 32  /* rows computed together */
#define K_STEP 32
#define ROWS 8         /* rows kept in registers together without AMX */

typedef float Tile[ROW_TILE][UNIT];

INLINE void fp32_rows(const int count, const float *x, long stride, const float *w, long k, Tile out, int row) {
    v16 low[ROWS], high[ROWS];
    UNROLL for (int i = 0; i < count; i++) low[i] = high[i] = splat(0.0f);
    for (long j = 0; j < k; j++) {
        v16 a = load_f32(w + j * UNIT), b = load_f32(w + j * UNIT + LANES);
        UNROLL for (int i = 0; i < count; i++) {
            v16 value = splat(x[i * stride + j]);
            low[i] = fma16(value, a, low[i]);
            high[i] = fma16(value, b, high[i]);
        }
    }
    UNROLL for (int i = 0; i < count; i++) {
        store_f32(out[row + i], low[i]);
        store_f32(out[row + i] + LANES, high[i]);
    }
}

#if defined(__AVX512BF16__)
INLINE v16 dot_pairs(v16 sum, uint32_t x, const uint16_t *w) {
    __m512i pairs = _mm512_loadu_si512(w);
    return (v16)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32((int)x), (__m512bh)pairs);
}
#else
INLINE v16 dot_pairs(v16 sum, uint32_t x, const uint16_t *w) {
    u16 pairs = *(const u16_any *)w;
    sum = fma16(splat(from_bf16((uint16_t)x)), (v16)(pairs << 16), sum);
    return fma16(splat(from_bf16((uint16_t)(x >> 16))), (v16)(pairs & 0xffff0000), sum);
}
#endif

INLINE void bf16_rows(const int count, const uint16_t *x, long stride, const uint16_t *w, long k, Tile out, int row) {
    v16 low[ROWS], high[ROWS];
    UNROLL for (int i = 0; i < count; i++) low[i] = high[i] = splat(0.0f);
    for (long step = 0; step < k; step += K_STEP, w += K_STEP * UNIT)
        for (int pair = 0; pair < K_STEP / 2; pair++) {
            UNROLL for (int i = 0; i < count; i++) {
                uint32_t value;
                memcpy(&value, x + i * stride + step + 2 * pair, 4);
                low[i] = dot_pairs(low[i], value, w + pair * 2 * LANES);
                high[i] = dot_pairs(high[i], value, w + (K_STEP / 2 + pair) * 2 * LANES);
            }
        }
    UNROLL for (int i = 0; i < count; i++) {
        store_f32(out[row + i], low[i]);
        store_f32(out[row + i] + LANES, high[i]);
    }
}

static void fp32_tile(const float *x, long stride, int rows, const float *w, long k, Tile out) {
    int row = 0;
    for (; row + ROWS <= rows; row += ROWS) fp32_rows(ROWS, x + row * stride, stride, w, k, out, row);
    for (; row + 4 <= rows; row += 4) fp32_rows(4, x + row * stride, stride, w, k, out, row);
    for (; row + 2 <= rows; row += 2) fp32_rows(2, x + row * stride, stride, w, k, out, row);
    if (row < rows) fp32_rows(1, x + row * stride, stride, w, k, out, row);
}

static void bf16_tile(const uint16_t *x, long stride, int rows, const uint16_t *w, long k, Tile out) {
    int row = 0;
    for (; row + ROWS <= rows; row += ROWS) bf16_rows(ROWS, x + row * stride, stride, w, k, out, row);
    for (; row + 4 <= rows; row += 4) bf16_rows(4, x + row * stride, stride, w, k, out, row);
    for (; row + 2 <= rows; row += 2) bf16_rows(2, x + row * stride, stride, w, k, out, row);
    if (row < rows) bf16_rows(1, x + row * stride, stride, w, k, out, row);
}

#if defined(__AMX_BF16__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>

#define ARCH_REQ_XCOMP_PERM 0x1023
#define XFEATURE_TILE_DATA 18

static int amx_permitted(void) { return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_TILE_DATA) == 0; }

static void amx_begin(void) {
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t bytes_per_row[16];
        uint8_t rows[16];
    } __attribute__((aligned(64))) config = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) {
        config.bytes_per_row[tile] = 64;
        config.rows[tile] = 16;
    }
    _tile_loadconfig(&config);
}

static void amx_end(void) { _tile_release(); }

/* Always whole tiles of 16 rows: the rows past `rows` are stale memory of the workspace and are not read later. */
static void amx_tile(const uint16_t *x, long stride, int rows, const uint16_t *w, long k, Tile out) {
    const long half = K_STEP / 2 * 2 * LANES, bytes = stride * 2;
    _tile_zero(0);
    _tile_zero(1);
    if (rows <= 16) {
        for (long step = 0; step < k; step += K_STEP, w += K_STEP * UNIT) {
            _tile_loadd(4, x + step, bytes);
            _tile_stream_loadd(6, w, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_stream_loadd(7, w + half, 64);
            _tile_dpbf16ps(1, 4, 7);
        }
    } else {
        _tile_zero(2);
        _tile_zero(3);
        for (long step = 0; step < k; step += K_STEP, w += K_STEP * UNIT) {
            _tile_loadd(4, x + step, bytes);
            _tile_loadd(6, w, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(7, w + half, 64);
            _tile_dpbf16ps(1, 4, 7);
            _tile_loadd(5, x + 16 * stride + step, bytes);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(2, &out[16][0], UNIT * 4);
        _tile_stored(3, &out[16][LANES], UNIT * 4);
    }
    _tile_stored(0, &out[0][0], UNIT * 4);
    _tile_stored(1, &out[0][LANES], UNIT * 4);
}
#else
static int amx_permitted(void) { return 0; }
static void amx_begin(void) {}
static void amx_end(void) {}
static void amx_tile(const uint16_t *x, long stride, int rows, const uint16_t *w, long k, Tile out) {
    bf16_tile(x, stride, rows, w, k, out);
}
#endif

#endif
