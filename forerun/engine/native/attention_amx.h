/* Attention of rows over blocks of keys and values with AMX tiles, for a KV in bf16 that is laid out for them.
 *
 * A block holds 16 positions of one layer and one KV head: keys as (head_dim / 2, 16 positions, 2), values as
 * (8 pairs of positions, head_dim, 2). Queries and weights are rounded to bf16, sums are fp32. The order of a row's
 * sums is that of attention.h, pairs together: it does not depend on the rows that share the tiles, because what they
 * see beyond the row's own position is weighed with zero.
 */
#ifndef FORERUN_ATTENTION_AMX_H
#define FORERUN_ATTENTION_AMX_H

#include "attention.h"
#include "linear.h"

INLINE long tiled_key_at(int dimension, int at) { return (long)(dimension / 2) * 2 * BLOCK + 2 * at + dimension % 2; }

INLINE long tiled_value_at(int dimension, int at, int head_dim) {
    return (long)(at / 2) * 2 * head_dim + 2 * dimension + at % 2;
}

#if defined(__AMX_BF16__) && defined(__linux__)

#define TILE_ROWS 16
#define QUERY_TILES (MAX_QUERIES / TILE_ROWS)
#define STEPS (MAX_HEAD_DIM / K_STEP)

typedef uint16_t TiledQueries[QUERY_TILES][STEPS][TILE_ROWS][K_STEP];
typedef uint16_t TiledWeights[QUERY_TILES][CHUNK / BLOCK][TILE_ROWS][BLOCK];

/* Tiles 0 to 5 are whole; 6 has half as long rows (16 terms of a sum), 7 half as many (8 pairs of terms). */
static void amx_attention_begin(void) {
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t bytes_per_row[16];
        uint8_t rows[16];
    } __attribute__((aligned(64))) config = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) {
        config.bytes_per_row[tile] = tile == 6 ? 32 : 64;
        config.rows[tile] = tile == 7 ? 8 : 16;
    }
    _tile_loadconfig(&config);
}

static void tile_queries(int count, int head_dim, Queries q, TiledQueries tiled) {
    for (int d = 0; d < head_dim; d++)
        for (int i = 0; i < count; i++) tiled[i / TILE_ROWS][d / K_STEP][i % TILE_ROWS][d % K_STEP] = to_bf16(q[d][i]);
}

/* Scores of two tiles of queries, or of one, against one block; both share its loading. */
INLINE void amx_score(const int both, int head_dim, TiledQueries q, const uint16_t *keys, Scores scores, int at) {
    int step = 0;
    _tile_zero(0);
    if (both) _tile_zero(1);
    for (; (step + 1) * K_STEP <= head_dim; step++) {
        _tile_loadd(5, keys + step * K_STEP * BLOCK, 4 * BLOCK);
        _tile_loadd(4, q[0][step], 2 * K_STEP);
        _tile_dpbf16ps(0, 4, 5);
        if (both) {
            _tile_loadd(3, q[1][step], 2 * K_STEP);
            _tile_dpbf16ps(1, 3, 5);
        }
    }
    if (step * K_STEP < head_dim) {
        _tile_loadd(7, keys + step * K_STEP * BLOCK, 4 * BLOCK);
        _tile_loadd(6, q[0][step], 2 * K_STEP);
        _tile_dpbf16ps(0, 6, 7);
        if (both) {
            _tile_loadd(6, q[1][step], 2 * K_STEP);
            _tile_dpbf16ps(1, 6, 7);
        }
    }
    _tile_stored(0, &scores[0][at], 4 * CHUNK);
    if (both) _tile_stored(1, &scores[TILE_ROWS][at], 4 * CHUNK);
}

INLINE void store_rounded(uint16_t *p, v16 x) {
#if defined(__AVX512BF16__)
    _mm256_storeu_si256((void *)p, (__m256i)_mm512_cvtneps_pbh((__m512)x));
#else
    store_bf16(p, x);
#endif
}

/* As `soften`, the weights rounded to bf16: `weights` is the query's row in the first block's tile, zero past `valid`. */
static void soften_tiled(const float *scores, int valid, int num_blocks, float *maximum, v16 *total, float *sums,
                         int head_dim, uint16_t *weights) {
    const i16 lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    v16 own[CHUNK / LANES], top = splat(*maximum);
    int vectors = valid > 0 ? (valid + LANES - 1) / LANES : 0;
    for (int i = 0; i < vectors; i++) {
        own[i] = load_f32(scores + i * LANES);
        if (i == vectors - 1) own[i] = select16(lane < valid - i * LANES, own[i], splat(-INFINITY));
        top = max16(top, own[i]);
    }
    float highest = vectors ? max_lanes(top) : *maximum;
    if (vectors && highest != *maximum) { /* else it would be times one */
        v16 shrink = splat(exp1(*maximum - highest));
        *total = *total * shrink;
        for (int d = 0; d < head_dim; d += LANES) store_f32(sums + d, load_f32(sums + d) * shrink);
        *maximum = highest;
    }
    v16 sum = *total;
    for (int i = 0; i < num_blocks; i++, weights += TILE_ROWS * BLOCK) {
        v16 weight = i < vectors ? exp16(own[i] - splat(highest)) : splat(0.0f);
        store_rounded(weights, weight);
        sum += weight;
    }
    *total = sum;
}

/* Add the weighed values of a chunk's blocks to the sums of one tile of queries, dimensions [d, d + width * LANES). */
INLINE void amx_weigh(const int width, int head_dim, const uint16_t *const *values, int num_blocks,
                      uint16_t weights[][TILE_ROWS][BLOCK], float (*sums)[MAX_HEAD_DIM], int d) {
#define EACH(CALL)           \
    CALL(0);                 \
    if (width > 1) CALL(1);  \
    if (width > 2) CALL(2);  \
    if (width > 3) CALL(3)
#define LOAD(j) _tile_loadd(j, &sums[0][d + j * LANES], 4 * MAX_HEAD_DIM)
#define ADD(j)                                                                \
    do {                                                                      \
        _tile_loadd(7, values[b] + 2 * (d + j * LANES), 4 * (long)head_dim);  \
        _tile_dpbf16ps(j, 6, 7);                                              \
    } while (0)
#define STORE(j) _tile_stored(j, &sums[0][d + j * LANES], 4 * MAX_HEAD_DIM)
    EACH(LOAD);
    for (int b = 0; b < num_blocks; b++) {
        _tile_loadd(6, weights[b], 2 * BLOCK);
        EACH(ADD);
    }
    EACH(STORE);
#undef EACH
#undef LOAD
#undef ADD
#undef STORE
}

/* As `attend`: rows `positions[0] < positions[1] < …` of one session and one KV head, `group` queries a row. */
static void attend_amx(const KvView *kv, const int32_t *positions, int rows, int group, Queries q, Sums sums) {
    TiledQueries queries __attribute__((aligned(64)));
    TiledWeights weights __attribute__((aligned(64)));
    Scores scores __attribute__((aligned(64)));
    uint16_t tail[BLOCK * MAX_HEAD_DIM] __attribute__((aligned(64))); /* the last block's values, no others' beyond */
    float maximum[MAX_QUERIES];
    v16 total[MAX_QUERIES];
    int head_dim = kv->head_dim, last = positions[rows - 1], end = rows * group, both = end > TILE_ROWS;
    tile_queries(end, head_dim, q, queries);
    for (int i = 0; i < end; i++) {
        maximum[i] = -INFINITY;
        total[i] = splat(0.0f);
        memset(sums[i], 0, sizeof(float) * head_dim);
    }
    amx_attention_begin();
    for (int chunk = 0; chunk <= last; chunk += CHUNK) {
        int held = last + 1 - chunk < CHUNK ? last + 1 - chunk : CHUNK, num_blocks = (held + BLOCK - 1) / BLOCK;
        const uint16_t *values[CHUNK / BLOCK];
        for (int b = 0; b < num_blocks; b++) {
            int block = kv->table[chunk / BLOCK + b];
            const uint16_t *keys = (const uint16_t *)(kv->keys + block * kv->block_bytes);
            values[b] = (const uint16_t *)(kv->values + block * kv->block_bytes);
            if (b + 1 < num_blocks) fetch(kv, kv->table[chunk / BLOCK + b + 1]);
            if (both)
                amx_score(1, head_dim, queries, keys, scores, b * BLOCK);
            else
                amx_score(0, head_dim, queries, keys, scores, b * BLOCK);
        }
        if (held % BLOCK) { /* zero times what another session left there may be no number */
            for (int at = 0; at < BLOCK; at++)
                for (int d = 0; d < head_dim; d++) {
                    long i = tiled_value_at(d, at, head_dim);
                    tail[i] = at < held % BLOCK ? values[num_blocks - 1][i] : 0;
                }
            values[num_blocks - 1] = tail;
        }
        for (int i = 0; i < end; i++) {
            int valid = positions[i / group] + 1 - chunk < CHUNK ? positions[i / group] + 1 - chunk : CHUNK;
            soften_tiled(scores[i], valid, num_blocks, &maximum[i], &total[i], sums[i], head_dim,
                         weights[i / TILE_ROWS][0][i % TILE_ROWS]);
        }
        for (int tile = 0; tile <= both; tile++) {
            int d = 0;
            for (; d + 4 * LANES <= head_dim; d += 4 * LANES)
                amx_weigh(4, head_dim, values, num_blocks, weights[tile], sums + tile * TILE_ROWS, d);
            for (; d < head_dim; d += LANES)
                amx_weigh(1, head_dim, values, num_blocks, weights[tile], sums + tile * TILE_ROWS, d);
        }
    }
    amx_begin();
    for (int i = 0; i < end; i++) {
        v16 scale = splat(1.0f / sum_lanes(total[i]));
        for (int d = 0; d < head_dim; d += LANES) store_f32(sums[i] + d, load_f32(sums[i] + d) * scale);
    }
}

#else
static void attend_amx(const KvView *kv, const int32_t *positions, int rows, int group, Queries q, Sums sums) {
    attend(kv, positions, rows, group, q, sums);
}
#endif

#endif
