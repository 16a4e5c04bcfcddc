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

INLINE void score_block(const int count, const int is_bf16, const float *const *q, const char *keys, int head_dim,
                        float (*scores)[CHUNK], int at) {
    v16 sums[QUERIES];
    UNROLL for (int i = 0; i < count; i++) sums[i] = splat(0.0f);
    for (int d = 0; d < head_dim; d++) {
        v16 k = load_kv(keys, (long)d * BLOCK, is_bf16);
        UNROLL for (int i = 0; i < count; i++) sums[i] = fma16(splat(q[i][d]), k, sums[i]);
    }
    UNROLL for (int i = 0; i < count; i++) store_f32(&scores[i][at], sums[i]);
}

INLINE void weigh_values(const int count, const int width, const KvView *kv, const int is_bf16, int chunk, int from, int to,
                         int d, float (*probs)[CHUNK], float (*sums)[MAX_HEAD_DIM]) {
    v16 acc[QUERIES][4];
    UNROLL for (int i = 0; i < count; i++)
        UNROLL for (int j = 0; j < width; j++) acc[i][j] = load_f32(&sums[i][d + j * LANES]);
    for (int t = from; t < to; t++) {
        int position = chunk + t;
        const char *block = kv->values + kv->table[position / BLOCK] * kv->block_bytes;
        long at = (long)(position % BLOCK) * kv->head_dim + d;
        v16 value[4];
        UNROLL for (int j = 0; j < width; j++) value[j] = load_kv(block, at + j * LANES, is_bf16);
        UNROLL for (int i = 0; i < count; i++) {
            v16 weight = splat(probs[i][t]);
            UNROLL for (int j = 0; j < width; j++) acc[i][j] = fma16(weight, value[j], acc[i][j]);
        }
    }
    UNROLL for (int i = 0; i < count; i++)
        UNROLL for (int j = 0; j < width; j++) store_f32(&sums[i][d + j * LANES], acc[i][j]);
}

#define FOR_COUNT(count, CALL) \
    switch (count) {           \
        case 1: CALL(1); break;\
        case 2: CALL(2); break;\
        case 3: CALL(3); break;\
        case 4: CALL(4); break;\
        case 5: CALL(5); break;\
        default: CALL(6);      \
    }

INLINE void score_chunk(const KvView *kv, const int is_bf16, int num_queries, const float *const *q, int chunk, int num_blocks,
                        float (*scores)[CHUNK]) {
    for (int b = 0; b < num_blocks; b++) {
        const char *keys = kv->keys + kv->table[chunk / BLOCK + b] * kv->block_bytes;
        for (int i = 0; i < num_queries; i += QUERIES) {
#define SCORE(n) score_block(n, is_bf16, q + i, keys, kv->head_dim, scores + i, b * BLOCK)
            FOR_COUNT(num_queries - i, SCORE)
#undef SCORE
        }
    }
}

INLINE void weigh_chunk(const KvView *kv, const int is_bf16, int num_queries, int chunk, int from, int to,
                        float (*probs)[CHUNK], float (*sums)[MAX_HEAD_DIM]) {
    if (from >= to) return;
    for (int i = 0; i < num_queries; i += QUERIES) {
        int d = 0;
#define WEIGH4(n) weigh_values(n, 4, kv, is_bf16, chunk, from, to, d, probs + i, sums + i)
#define WEIGH1(n) weigh_values(n, 1, kv, is_bf16, chunk, from, to, d, probs + i, sums + i)
        for (; d + 4 * LANES <= kv->head_dim; d += 4 * LANES) FOR_COUNT(num_queries - i, WEIGH4)
        for (; d < kv->head_dim; d += LANES) FOR_COUNT(num_queries - i, WEIGH1)
#undef WEIGH4
#undef WEIGH1
    }
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

/* Rows `positions[0] < positions[1] < …` of one session and one KV head; q: `group` query vectors a row, scaled. */
INLINE void attend(const KvView *kv, const int is_bf16, const int32_t *positions, int rows, int group, const float *const *q,
                   float (*sums)[MAX_HEAD_DIM]) {
    float scores[MAX_QUERIES][CHUNK] __attribute__((aligned(64)));
    float maximum[MAX_QUERIES];
    v16 total[MAX_QUERIES];
    int last = positions[rows - 1];
    for (int i = 0; i < rows * group; i++) {
        maximum[i] = -INFINITY;
        total[i] = splat(0.0f);
        memset(sums[i], 0, sizeof(float) * kv->head_dim);
    }
    for (int chunk = 0; chunk <= last; chunk += CHUNK) {
        int held = last + 1 - chunk < CHUNK ? last + 1 - chunk : CHUNK;
        int first = 0; /* the first row that reaches into this chunk */
        while (positions[first] < chunk) first++;
        int queries = (rows - first) * group, at = first * group;
        score_chunk(kv, is_bf16, queries, q + at, chunk, (held + BLOCK - 1) / BLOCK, scores + at);
        int common = CHUNK; /* positions that all these rows see */
        for (int r = first; r < rows; r++) {
            int valid = positions[r] + 1 - chunk < CHUNK ? positions[r] + 1 - chunk : CHUNK;
            if (valid < common) common = valid;
            for (int i = r * group; i < (r + 1) * group; i++)
                soften(scores[i], valid, &maximum[i], &total[i], sums[i], kv->head_dim);
        }
        weigh_chunk(kv, is_bf16, queries, chunk, 0, common, scores + at, sums + at);
        for (int r = first; r < rows; r++) {
            int valid = positions[r] + 1 - chunk < CHUNK ? positions[r] + 1 - chunk : CHUNK;
            weigh_chunk(kv, is_bf16, group, chunk, common, valid, scores + r * group, sums + r * group);
        }
    }
    for (int i = 0; i < rows * group; i++) {
        v16 scale = splat(1.0f / sum_lanes(total[i]));
        for (int d = 0; d < kv->head_dim; d += LANES) store_f32(sums[i] + d, load_f32(sums[i] + d) * scale);
    }
}

#endif
