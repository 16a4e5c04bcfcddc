/* Attention of rows over blocks of keys and values.
 *
 * A block holds 16 positions of one layer and one KV head: keys as (head_dim, 16), values as (16, head_dim). A row's
 * sums run over absolute positions in ascending order, in chunks that begin at multiples of CHUNK, and stop at the
 * row's own position: they do not depend on which rows share the reading, on where blocks lie or on what they hold
 * beyond that position.
 */
#ifndef FORERUN_ATTENTION_H
#define FORERUN_ATTENTION_H

#include "vector.h"

#define BLOCK 16
#define CHUNK 128
#define MAX_QUERIES 32    /* rows of a tile times query heads of a KV head */
#define MAX_HEAD_DIM 256
#define QUERIES 6         /* queries kept in registers together */

typedef struct {
    const char *keys;       /* this layer's and head's keys of block 0 */
    const char *values;
    long block_bytes;       /* from a block to the next */
    const int32_t *table;   /* the session's blocks */
    int head_dim;
    int is_bf16;
} KvView;

INLINE v16 load_kv(const char *base, long index, const int is_bf16) {
    return is_bf16 ? load_bf16((const uint16_t *)base + index) : load_f32((const float *)base + index);
}

typedef float Scores[MAX_QUERIES][CHUNK];            /* by query and position in the chunk; later weights */
typedef float Queries[MAX_HEAD_DIM][MAX_QUERIES];    /* scaled, by dimension: a step of the sum reads neighbours */
typedef float Sums[MAX_QUERIES][MAX_HEAD_DIM];

INLINE void score_block(const int count, const int is_bf16, Queries q, int first, const char *keys, int head_dim,
                        Scores scores, int at) {
    v16 sums[QUERIES];
    UNROLL for (int i = 0; i < count; i++) sums[i] = splat(0.0f);
    for (int d = 0; d < head_dim; d++) {
        v16 k = load_kv(keys, (long)d * BLOCK, is_bf16);
        UNROLL for (int i = 0; i < count; i++) sums[i] = fma16(splat(q[d][first + i]), k, sums[i]);
    }
    UNROLL for (int i = 0; i < count; i++) store_f32(&scores[first + i][at], sums[i]);
}

/* Add the values of positions [from, to) of the chunk to sums[first …][d … d + width * LANES]. */
INLINE void weigh_values(const int count, const int width, const int is_bf16, const KvView *kv, int chunk, int from, int to,
                         int d, Scores weights, Sums sums, int first) {
    v16 acc[QUERIES][4];
    UNROLL for (int i = 0; i < count; i++)
        UNROLL for (int j = 0; j < width; j++) acc[i][j] = load_f32(&sums[first + i][d + j * LANES]);
    for (int t = from; t < to;) {
        const char *block = kv->values + kv->table[(chunk + t) / BLOCK] * kv->block_bytes;
        int end = (t / BLOCK + 1) * BLOCK < to ? (t / BLOCK + 1) * BLOCK : to;
        for (; t < end; t++) {
            v16 value[4];
            UNROLL for (int j = 0; j < width; j++)
                value[j] = load_kv(block, (long)(t % BLOCK) * kv->head_dim + d + j * LANES, is_bf16);
            UNROLL for (int i = 0; i < count; i++) {
                v16 weight = splat(weights[first + i][t]);
                UNROLL for (int j = 0; j < width; j++) acc[i][j] = fma16(weight, value[j], acc[i][j]);
            }
        }
    }
    UNROLL for (int i = 0; i < count; i++)
        UNROLL for (int j = 0; j < width; j++) store_f32(&sums[first + i][d + j * LANES], acc[i][j]);
}

#define FOR_COUNT(count, CALL)  \
    switch (count) {            \
        case 1: CALL(1); break; \
        case 2: CALL(2); break; \
        case 3: CALL(3); break; \
        case 4: CALL(4); break; \
        case 5: CALL(5); break; \
        default: CALL(6);       \
    }

/* Ask for a block's keys and values, which lie side by side, before they are read. */
INLINE void fetch(const KvView *kv, int block) {
    const char *from = kv->keys + block * kv->block_bytes;
    long bytes = 2 * (kv->values - kv->keys);
    for (long line = 0; line < bytes; line += 64) __builtin_prefetch(from + line);
}

INLINE void score_chunk(const int is_bf16, const KvView *kv, int first, int end, Queries q, int chunk, int num_blocks,
                        Scores scores) {
    for (int b = 0; b < num_blocks; b++) {
        const char *keys = kv->keys + kv->table[chunk / BLOCK + b] * kv->block_bytes;
        if (b + 1 < num_blocks) fetch(kv, kv->table[chunk / BLOCK + b + 1]);
        for (int i = first; i < end; i += QUERIES) {
#define SCORE(n) score_block(n, is_bf16, q, i, keys, kv->head_dim, scores, b * BLOCK)
            FOR_COUNT(end - i, SCORE)
#undef SCORE
        }
    }
}

INLINE void weigh_chunk(const int is_bf16, const KvView *kv, int first, int end, int chunk, int from, int to,
                        Scores weights, Sums sums) {
    if (from >= to) return;
    int whole = kv->head_dim / (4 * LANES) * (4 * LANES);
    for (int i = first; i < end; i += QUERIES)
        for (int d = 0; d < whole; d += 4 * LANES) {
#define WEIGH(n) weigh_values(n, 4, is_bf16, kv, chunk, from, to, d, weights, sums, i)
            FOR_COUNT(end - i, WEIGH)
#undef WEIGH
        }
    for (int i = first; i < end; i++)
        for (int d = whole; d < kv->head_dim; d += LANES)
            weigh_values(1, 1, is_bf16, kv, chunk, from, to, d, weights, sums, i);
}

/* The loops above once for each type, not wherever they are called. */
static __attribute__((noinline)) void score(const KvView *kv, int first, int end, Queries q, int chunk, int num_blocks,
                                            Scores scores) {
    if (kv->is_bf16)
        score_chunk(1, kv, first, end, q, chunk, num_blocks, scores);
    else
        score_chunk(0, kv, first, end, q, chunk, num_blocks, scores);
}

static __attribute__((noinline)) void weigh(const KvView *kv, int first, int end, int chunk, int from, int to,
                                            Scores weights, Sums sums) {
    if (kv->is_bf16)
        weigh_chunk(1, kv, first, end, chunk, from, to, weights, sums);
    else
        weigh_chunk(0, kv, first, end, chunk, from, to, weights, sums);
}

/* Turn one query's scores of a chunk into weights relative to the running maximum; rescale what is summed so far. */
INLINE void soften(float *scores, int valid, float *maximum, v16 *total, float *sums, int head_dim) {
    const i16 lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    int vectors = (valid + LANES - 1) / LANES, rest = valid - (vectors - 1) * LANES;
    float *last = scores + (vectors - 1) * LANES;
    store_f32(last, select16(lane < rest, load_f32(last), splat(-INFINITY)));
    v16 top = splat(*maximum);
    for (int i = 0; i < vectors; i++) top = max16(top, load_f32(scores + i * LANES));
    float highest = max_lanes(top);
    v16 shrink = splat(exp1(*maximum - highest));
    v16 sum = *total * shrink;
    for (int i = 0; i < vectors; i++) {
        v16 weight = exp16(load_f32(scores + i * LANES) - splat(highest));
        store_f32(scores + i * LANES, weight);
        sum += weight;
    }
    for (int d = 0; d < head_dim; d += LANES) store_f32(sums + d, load_f32(sums + d) * shrink);
    *maximum = highest;
    *total = sum;
}

/* Rows `positions[0] < positions[1] < …` of one session and one KV head, `group` queries a row. */
static void attend(const KvView *kv, const int32_t *positions, int rows, int group, Queries q, Sums sums) {
    Scores scores __attribute__((aligned(64)));
    float maximum[MAX_QUERIES];
    v16 total[MAX_QUERIES];
    int last = positions[rows - 1], end = rows * group;
    for (int i = 0; i < end; i++) {
        maximum[i] = -INFINITY;
        total[i] = splat(0.0f);
        memset(sums[i], 0, sizeof(float) * kv->head_dim);
    }
    for (int chunk = 0; chunk <= last; chunk += CHUNK) {
        int held = last + 1 - chunk < CHUNK ? last + 1 - chunk : CHUNK;
        int row = 0; /* the first that reaches into this chunk */
        while (positions[row] < chunk) row++;
        int first = row * group, common = CHUNK; /* positions that all these rows see */
        score(kv, first, end, q, chunk, (held + BLOCK - 1) / BLOCK, scores);
        for (int r = row; r < rows; r++) {
            int valid = positions[r] + 1 - chunk < CHUNK ? positions[r] + 1 - chunk : CHUNK;
            if (valid < common) common = valid;
            for (int i = r * group; i < (r + 1) * group; i++)
                soften(scores[i], valid, &maximum[i], &total[i], sums[i], kv->head_dim);
        }
        weigh(kv, first, end, chunk, 0, common, scores, sums);
        for (int r = row; r < rows; r++) {
            int valid = positions[r] + 1 - chunk < CHUNK ? positions[r] + 1 - chunk : CHUNK;
            weigh(kv, r * group, (r + 1) * group, chunk, common, valid, scores, sums);
        }
    }
    for (int i = 0; i < end; i++) {
        v16 scale = splat(1.0f / sum_lanes(total[i]));
        for (int d = 0; d < kv->head_dim; d += LANES) store_f32(sums[i] + d, load_f32(sums[i] + d) * scale);
    }
}

#endif
