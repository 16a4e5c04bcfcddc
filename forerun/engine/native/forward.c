/* One pass of a Llama-family model over packed rows of several sessions: the whole of it in one call.
 *
 * Within a stage threads share out rows, units of outputs or attention tiles. No sum is ever split between threads,
 * so the bits do not depend on their number. All sums and the residual stream are
 * fp32; what enters a product is rounded to the weights' type once.
 */
#include "attention.h"
#include "attention_amx.h"
#include "linear.h"
#include "team.h"

#define EXPORT __attribute__((visibility("default")))

enum { FP32 = 0, BF16 = 1 };

typedef struct {
    const void *qkv, *attention_out, *gate_up, *down;                 /* packed */
    const float *qkv_bias, *attention_out_bias, *gate_up_bias, *down_bias; /* or null */
    const float *attention_norm, *mlp_norm;
    const float *q_norm, *k_norm; /* per-head norms (Qwen3), or null */
} Layer;

typedef struct {
    int32_t type, amx, num_layers, hidden, num_heads, num_kv_heads, head_dim, intermediate, vocab_size;
    int32_t hidden_stride, attention_stride, intermediate_stride, qkv_stride; /* padded widths of workspace rows */
    float norm_eps, query_scale;
    const void *embedding; /* (vocab, hidden) in `type` */
    const float *final_norm;
    const void *head; /* packed */
    const Layer *layers;
    const float *cosines, *sines; /* (positions, head_dim / 2) */
    char *kv;                     /* (layers, blocks, kv_heads, 2, BLOCK * head_dim) in `type`; in tiles with `amx` */
    int64_t num_blocks;
    float *residual, *qkv;                /* (max_rows, …) */
    void *normed, *attended, *activated;  /* (max_rows, …) in `type`, padding zero */
    int32_t *tiles;                       /* (max_rows, 2) */
    Team *team;
} Model;

typedef struct {
    int32_t num_rows, num_logits, table_width, num_tiles; /* num_tiles: filled in here */
    const int32_t *token_ids, *positions, *segments; /* (num_rows) */
    const int32_t *tables;                           /* (num_segments, table_width) */
    const int32_t *logit_rows;                       /* (num_logits) */
    float *logits;                                   /* (num_logits, vocab_size) */
} Pass;

/* Where a thread is in a pass. */
typedef struct {
    const Model *model;
    const Pass *pass;
    Team *team;
    int thread, stage, num_tiles;
} Place;

#define SHARE_OUT(at, count, piece, WORK)                                             \
    do {                                                                              \
        STAGE((at)->team, (at)->thread, (at)->stage, count, piece, WORK);             \
        (at)->stage++;                                                                \
    } while (0)

INLINE void put(void *row, int type, long i, v16 x) {
    if (type == BF16)
        store_bf16((uint16_t *)row + i, x);
    else
        store_f32((float *)row + i, x);
}

static void *row_of(void *base, int type, long index, long stride) {
    return (char *)base + index * stride * (type == BF16 ? 2 : 4);
}

/* --- norms ------------------------------------------------------------------------------------------------- */

static float inverse_rms(const float *x, int width, float eps) {
    v16 squares = splat(0.0f);
    int i = 0;
    for (; i + LANES <= width; i += LANES) squares = fma16(load_f32(x + i), load_f32(x + i), squares);
    float sum = sum_lanes(squares);
    for (; i < width; i++) sum += x[i] * x[i];
    return 1.0f / sqrtf(sum / (float)width + eps);
}

static void norm_row(const float *x, const float *weight, int width, float eps, int type, void *out) {
    float scale = inverse_rms(x, width, eps);
    int i = 0;
    for (; i + LANES <= width; i += LANES) put(out, type, i, load_f32(x + i) * splat(scale) * load_f32(weight + i));
    for (; i < width; i++) {
        float y = x[i] * scale * weight[i];
        if (type == BF16)
            ((uint16_t *)out)[i] = to_bf16(y);
        else
            ((float *)out)[i] = y;
    }
}

static void embed_row(const Model *m, int32_t token_id, float *out) {
    const float *wide = (const float *)m->embedding + (long)token_id * m->hidden;
    const uint16_t *narrow = (const uint16_t *)m->embedding + (long)token_id * m->hidden;
    for (int i = 0; i < m->hidden; i++) out[i] = m->type == BF16 ? from_bf16(narrow[i]) : wide[i];
}

static void norm_rows(Place *at, const float *weight, int from_tokens) {
    const Model *m = at->model;
    SHARE_OUT(at, at->pass->num_rows, r, {
        float *x = m->residual + (long)r * m->hidden_stride;
        if (from_tokens) embed_row(m, at->pass->token_ids[r], x);
        norm_row(x, weight, m->hidden, m->norm_eps, m->type, row_of(m->normed, m->type, r, m->hidden_stride));
    });
}

/* --- products ---------------------------------------------------------------------------------------------- */

typedef struct {
    const void *weight;
    const float *bias;
    const void *x;
    long x_stride, k;
    int n, num_rows;
} Product;

static void product_tile(const Model *m, const Product *job, int unit, int row, Tile out) {
    int rows = job->num_rows - row < ROW_TILE ? job->num_rows - row : ROW_TILE;
    long weight_at = (long)unit * UNIT * job->k, x_at = (long)row * job->x_stride;
    if (m->type == FP32)
        fp32_tile((const float *)job->x + x_at, job->x_stride, rows, (const float *)job->weight + weight_at, job->k, out);
    else if (m->amx)
        amx_tile((const uint16_t *)job->x + x_at, job->x_stride, rows, (const uint16_t *)job->weight + weight_at, job->k, out);
    else
        bf16_tile((const uint16_t *)job->x + x_at, job->x_stride, rows, (const uint16_t *)job->weight + weight_at, job->k, out);
    if (job->bias)
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < UNIT; j += LANES)
                store_f32(&out[i][j], load_f32(&out[i][j]) + load_f32(job->bias + unit * UNIT + j));
}

enum Finish { INTO, ONTO, GATED };

/* INTO: write the first n outputs of a row; ONTO: add them; GATED: a unit holds 16 gate and 16 up outputs, write
 * silu(gate) * up. */
INLINE void finish_row(const enum Finish finish, int type, const float *out, void *y, int unit, int n) {
    if (finish == GATED) {
        v16 gate = load_f32(out), up = load_f32(out + LANES);
        put(y, type, (long)unit * LANES, gate / (splat(1.0f) + exp16(-gate)) * up);
    } else if (finish == ONTO) {
        float *to = (float *)y + unit * UNIT;
        for (int j = 0; j < UNIT; j += LANES) store_f32(to + j, load_f32(to + j) + load_f32(out + j));
    } else {
        int width = n - unit * UNIT < UNIT ? n - unit * UNIT : UNIT;
        memcpy((float *)y + unit * UNIT, out, sizeof(float) * width);
    }
}

INLINE void product_unit(const Model *m, const Product *job, const enum Finish finish, void *y, long stride, int unit) {
    int y_type = finish == GATED ? m->type : FP32;
    Tile out __attribute__((aligned(64)));
    for (int row = 0; row < job->num_rows; row += ROW_TILE) {
        product_tile(m, job, unit, row, out);
        for (int i = row; i < job->num_rows && i < row + ROW_TILE; i++)
            finish_row(finish, y_type, out[i - row], row_of(y, y_type, i, stride), unit, job->n);
    }
}

INLINE void product(Place *at, const Product *job, const enum Finish finish, void *y, long stride) {
    SHARE_OUT(at, (job->n + UNIT - 1) / UNIT, unit, { product_unit(at->model, job, finish, y, stride, unit); });
}

/* --- positions and keys ------------------------------------------------------------------------------------ */

static char *kv_at(const Model *m, int layer, int block, int kv_head, int which) {
    long bytes = (long)BLOCK * m->head_dim * (m->type == BF16 ? 2 : 4);
    return m->kv + ((((long)layer * m->num_blocks + block) * m->num_kv_heads + kv_head) * 2 + which) * bytes;
}

/* Norm (Qwen3), rotate and scale one head in place. */
static void rotate_head(const Model *m, float *x, const float *weight, int position, float scale) {
    int half = m->head_dim / 2;
    const float *cosine = m->cosines + (long)position * half, *sine = m->sines + (long)position * half;
    if (weight) norm_row(x, weight, m->head_dim, m->norm_eps, FP32, x);
    for (int i = 0; i < half; i++) {
        float a = x[i], b = x[i + half];
        x[i] = (a * cosine[i] - b * sine[i]) * scale;
        x[i + half] = (b * cosine[i] + a * sine[i]) * scale;
    }
}

static void write_kv(const Model *m, int layer, int block, int kv_head, int at, const float *key, const float *value) {
    char *keys = kv_at(m, layer, block, kv_head, 0), *values = kv_at(m, layer, block, kv_head, 1);
    for (int d = 0; d < m->head_dim; d++) {
        if (m->amx) {
            ((uint16_t *)keys)[tiled_key_at(d, at)] = to_bf16(key[d]);
            ((uint16_t *)values)[tiled_value_at(d, at, m->head_dim)] = to_bf16(value[d]);
        } else if (m->type == BF16) {
            ((uint16_t *)keys)[d * BLOCK + at] = to_bf16(key[d]);
            ((uint16_t *)values)[at * m->head_dim + d] = to_bf16(value[d]);
        } else {
            ((float *)keys)[d * BLOCK + at] = key[d];
            ((float *)values)[at * m->head_dim + d] = value[d];
        }
    }
}

static void rotate_row(const Model *m, const Pass *p, const Layer *layer, int index, int r) {
    int q_width = m->num_heads * m->head_dim, kv_width = m->num_kv_heads * m->head_dim;
    float *row = m->qkv + (long)r * m->qkv_stride;
    int position = p->positions[r];
    int block = p->tables[(long)p->segments[r] * p->table_width + position / BLOCK];
    for (int h = 0; h < m->num_heads; h++)
        rotate_head(m, row + h * m->head_dim, layer->q_norm, position, m->query_scale);
    for (int h = 0; h < m->num_kv_heads; h++) {
        float *key = row + q_width + h * m->head_dim;
        rotate_head(m, key, layer->k_norm, position, 1.0f);
        write_kv(m, index, block, h, position % BLOCK, key, key + kv_width);
    }
}

/* --- attention --------------------------------------------------------------------------------------------- */

/* Cut the rows into tiles of one session each; how does not change a bit, only who shares a reading of the KV. */
static int cut_tiles(const Model *m, const Pass *p) {
    int group = m->num_heads / m->num_kv_heads;
    int most = MAX_QUERIES / group;
    while (most > 1 && (long)p->num_rows * m->num_kv_heads < 3L * m->team->num_threads * most) most = (most + 1) / 2;
    int count = 0;
    for (int r = 0; r < p->num_rows; count++) {
        int end = r + 1;
        while (end < p->num_rows && end - r < most && p->segments[end] == p->segments[r]) end++;
        m->tiles[2 * count] = r;
        m->tiles[2 * count + 1] = end - r;
        r = end;
    }
    return count;
}

static void attend_tile(const Model *m, const Pass *p, int layer, int row, int rows, int kv_head) {
    int group = m->num_heads / m->num_kv_heads;
    Sums sums __attribute__((aligned(64)));
    Queries q __attribute__((aligned(64)));
    KvView kv = {.keys = kv_at(m, layer, 0, kv_head, 0),
                 .values = kv_at(m, layer, 0, kv_head, 1),
                 .block_bytes = kv_at(m, layer, 1, kv_head, 0) - kv_at(m, layer, 0, kv_head, 0),
                 .table = p->tables + (long)p->segments[row] * p->table_width,
                 .head_dim = m->head_dim,
                 .is_bf16 = m->type == BF16};
    for (int i = 0; i < rows * group; i++) {
        const float *from = m->qkv + (long)(row + i / group) * m->qkv_stride + (kv_head * group + i % group) * m->head_dim;
        for (int d = 0; d < m->head_dim; d++) q[d][i] = from[d];
    }
    (m->amx ? attend_amx : attend)(&kv, p->positions + row, rows, group, q, sums);
    for (int i = 0; i < rows * group; i++) {
        void *to = row_of(m->attended, m->type, row + i / group, m->attention_stride);
        for (int d = 0; d < m->head_dim; d += LANES)
            put(to, m->type, (kv_head * group + i % group) * m->head_dim + d, load_f32(&sums[i][d]));
    }
}

/* --- the pass ---------------------------------------------------------------------------------------------- */

#define LAYER_STAGES 8
#define HEAD_STAGES 2

static void run_layer(Place *at, int index) {
    const Model *m = at->model;
    const Pass *p = at->pass;
    const Layer *layer = &m->layers[index];
    int attention_width = m->num_heads * m->head_dim, rows = p->num_rows, kv_heads = m->num_kv_heads;
    Product qkv = {layer->qkv, layer->qkv_bias, m->normed, m->hidden_stride, m->hidden_stride,
                   attention_width + 2 * kv_heads * m->head_dim, rows};
    Product out = {layer->attention_out, layer->attention_out_bias, m->attended, m->attention_stride,
                   m->attention_stride, m->hidden, rows};
    Product gate_up = {layer->gate_up, layer->gate_up_bias, m->normed, m->hidden_stride, m->hidden_stride,
                       2 * m->intermediate, rows};
    Product down = {layer->down, layer->down_bias, m->activated, m->intermediate_stride, m->intermediate_stride,
                    m->hidden, rows};
    norm_rows(at, layer->attention_norm, index == 0);
    product(at, &qkv, INTO, m->qkv, m->qkv_stride);
    SHARE_OUT(at, rows, r, { rotate_row(m, p, layer, index, r); });
    SHARE_OUT(at, at->num_tiles * kv_heads, task, {
        const int32_t *tile = m->tiles + 2 * (task / kv_heads);
        attend_tile(m, p, index, tile[0], tile[1], task % kv_heads);
    });
    product(at, &out, ONTO, m->residual, m->hidden_stride);
    norm_rows(at, layer->mlp_norm, 0);
    product(at, &gate_up, GATED, m->activated, m->intermediate_stride);
    product(at, &down, ONTO, m->residual, m->hidden_stride);
}

static void run_head(Place *at) {
    const Model *m = at->model;
    const Pass *p = at->pass;
    Product head = {m->head, NULL, m->normed, m->hidden_stride, m->hidden_stride, m->vocab_size, p->num_logits};
    SHARE_OUT(at, p->num_logits, i, {
        norm_row(m->residual + (long)p->logit_rows[i] * m->hidden_stride, m->final_norm, m->hidden, m->norm_eps,
                 m->type, row_of(m->normed, m->type, i, m->hidden_stride));
    });
    product(at, &head, INTO, p->logits, m->vocab_size);
}

static void run_pass(const void *model, const void *pass, Team *team, int thread) {
    const Model *m = model;
    Place at = {m, pass, team, thread, 0, ((const Pass *)pass)->num_tiles};
    if (m->amx) amx_begin();
    for (int layer = 0; layer < m->num_layers; layer++) run_layer(&at, layer);
    if (at.pass->num_logits) run_head(&at);
    if (m->amx) amx_end();
}

/* Write the rows' keys and values and the logits asked for. Rows of a segment are neighbours, positions ascending. */
EXPORT void forerun_pass(const Model *m, Pass *p) {
    p->num_tiles = cut_tiles(m, p);
    team_run(m->team, run_pass, m, p);
}

/* A team of `num_threads`, or of fewer if the system gives no more; null without memory. */
EXPORT Team *forerun_start_team(int32_t num_threads, int32_t num_layers) {
    return team_start(num_threads, num_layers * LAYER_STAGES + HEAD_STAGES);
}

EXPORT void forerun_stop_team(Team *team) { team_stop(team); }

EXPORT void forerun_copy_block(const Model *m, int64_t from, int64_t to) {
    long bytes = kv_at(m, 0, 1, 0, 0) - kv_at(m, 0, 0, 0, 0);
    for (int layer = 0; layer < m->num_layers; layer++)
        memcpy(kv_at(m, layer, (int)to, 0, 0), kv_at(m, layer, (int)from, 0, 0), bytes);
}

/* --- packing ----------------------------------------------------------------------------------------------- */

static long ceil_to(long x, long step) { return (x + step - 1) / step * step; }

EXPORT int64_t forerun_packed_size(int64_t n, int64_t k) { return ceil_to(n, UNIT) * ceil_to(k, K_STEP); }

/* w: (n, k) row by row in `type`; out: packed, `forerun_packed_size` elements, zeroed. */
EXPORT void forerun_pack(int32_t type, int64_t n, int64_t k, const void *w, void *out) {
    long steps = ceil_to(k, K_STEP);
    for (long row = 0; row < n; row++) {
        long unit = row / UNIT * UNIT * steps, half = row % UNIT / LANES, lane = row % LANES;
        for (long j = 0; j < k; j++) {
            long pair = (j / K_STEP * UNIT + half * LANES + j % K_STEP / 2) * K_STEP + lane * 2 + j % 2;
            if (type == FP32)
                ((float *)out)[unit + j * UNIT + row % UNIT] = ((const float *)w)[row * k + j];
            else
                ((uint16_t *)out)[unit + pair] = ((const uint16_t *)w)[row * k + j];
        }
    }
}

/* What the products run on: 2 AMX tiles, 1 bf16 dot products, 0 fused multiply-adds. */
EXPORT int32_t forerun_bf16_unit(void) {
    if (amx_permitted()) return 2;
#if defined(__AVX512BF16__)
    return 1;
#else
    return 0;
#endif
}
