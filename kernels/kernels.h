/*
 * The kernel interface: the few operations on device memory that the engine is written in.
 *
 * On a CPU device memory is ordinary memory and an operation is done when its function returns; the stream is the
 * thread pool that runs it.  A GPU backend enqueues on its stream instead.  Activations are float32 arrays; with
 * BF16 arithmetic they hold values already rounded to bfloat16 (kern_round).
 *
 * Law 2 (same input, same bits): every output row is summed in an order that depends on the shapes of that row
 * alone, never on the number of rows, their place in the batch, the number of threads or how work was tiled.
 * The scalar set is the specification; other sets are tested against it.
 *
 * No function here fails: memory is allocated when the stream is made and grows in kern_reserve.
 * A stream is used by one thread at a time.
 */
#ifndef DS_KERNELS_H
#define DS_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/tensor.h"

struct kern_stream;

/* threads >= 1.  set: "scalar", "avx2", "avx512", "avx512bf16", or NULL for $DS_KERNELS, else the best this CPU
 * runs.  "avx512" given by name means avx512bf16 where the CPU has it, "avx512f" never.  DS_CONFIG for a set the CPU
 * lacks. */
int kern_stream_new(struct kern_stream **out, int threads, const char *set, struct ds_err *err);
void kern_stream_free(struct kern_stream *s);
const char *kern_set_name(const struct kern_stream *s);
int kern_threads(const struct kern_stream *s);
/* Makes every thread's working memory at least `bytes` large, and what they share `shared`.  Attention says what it
 * needs (kern_attn_bytes); routing needs some KiB and takes them as it goes. */
int kern_reserve(struct kern_stream *s, size_t bytes, size_t shared, struct ds_err *err);

/* Runs fn(arg, i, worker) for i in [0, n) on the stream's threads, returns when all are done; worker < threads. */
void kern_parallel(struct kern_stream *s, size_t n, void (*fn)(void *arg, size_t i, int worker), void *arg);

/* From now on tells, after every job of the threads, for each that took part in it: how many items it ran, and when it
 * began the first and ended the last (time_mono_ns).  Called by the stream's owner.  fn NULL: no more.  Costs two
 * readings of the clock an item.  DS_OS. */
int kern_watch(struct kern_stream *s, void (*fn)(void *ctx, int worker, size_t items, int64_t begin, int64_t end),
	void *ctx, struct ds_err *err);

/* ---- activations as a matrix product reads them ---- */

enum act_kind {
	ACT_F32,  /* float32 as it is: ptr is the caller's array */
	ACT_BF16, /* rounded to bfloat16 */
	ACT_F8,   /* e4m3 codes with a scale per row and 128 columns: amax = max(max|x|, 1e-4); s = amax / 448;
	           * code = e4m3(x / s); ue8m0: s = 2^ceil(log2(amax / 448)).  IEEE float32 divisions. */
};

struct act {
	enum act_kind kind;
	size_t rows, cols;
	/* elements from row to row (F32: as given; packed kinds: cols rounded up to 128, zero padded) */
	size_t ld;
	const void *data;   /* float / uint16_t / uint8_t */
	const float *scale; /* ACT_F8: [rows, ceil(cols/128)] */
	const void *wide;   /* ACT_F8: the codes once more as the stream's set multiplies them, or NULL */
};

/* Bytes of the buffer kern_pack needs (codes or bf16, then scales), 64-aligned. */
size_t kern_pack_bytes(enum act_kind kind, size_t rows, size_t cols);
/* Packs x [rows, ldx] into buf (64-aligned, kern_pack_bytes) and describes it in *a.  ACT_F32 copies nothing: it points
 * at x. */
void kern_pack(struct kern_stream *s, enum act_kind kind, bool ue8m0, const float *x, size_t rows, size_t cols,
	size_t ldx, void *buf, struct act *a);

/*
 * One product of a group: y[i][n] = sum over k of x[row(i)][k] * w[n][k], i < rows.
 *   row(i) = gather ? gather[i] : row0 + i      (rows of the packed activation)
 * Pairs: ACT_F32 with F32/F16/BF16/F8 (dequantised: code * scale) weights; ACT_BF16 with BF16 weights (other types are
 * widened to float32); ACT_F8 with F8 weights:
 *   y = sum over blocks b of 128 columns, in order, float32: acc += (dot_b * s_x[row][b]) * s_w[n / 128][b].
 */
struct gemm {
	float *y;              /* [rows, ldy] */
	size_t ldy;
	const struct act *x;
	const struct mat *w;
	size_t row0, rows;
	const uint32_t *gather; /* or NULL */
	bool round;             /* round y to bfloat16 (kept as float32) */
};

/* All products of the group; they do not depend on one another.  Groups of zero rows are legal. */
void kern_gemm(struct kern_stream *s, const struct gemm *g, size_t count);

/* ---- rows ---- */

/* y = x * rsqrt(mean(x^2) + eps) * w over the last cols of each row; w is F32 or BF16, [cols].  y may be x. */
void kern_rmsnorm(struct kern_stream *s, float *y, size_t ldy, const float *x, size_t ldx, const struct mat *w,
	float eps, size_t rows, size_t cols, bool round);
/* y += x, then rounded if asked. */
void kern_add(struct kern_stream *s, float *y, const float *x, size_t n, bool round);
/* y = silu(g) * u; y may be g.  With round, silu(g) and the product are rounded. */
void kern_swiglu(struct kern_stream *s, float *y, size_t ldy, const float *g, size_t ldg, const float *u, size_t ldu,
	size_t rows, size_t cols, bool round);
void kern_round(struct kern_stream *s, float *x, size_t n);
/* Turns interleaved pairs (x[2i], x[2i+1]) of each of `heads` vectors of a row by the angle of the row's position.
 * x: row r, head h at x + r * ldx + h * ldh; cs: [rows, dim] of (cos, sin) pairs for the rows' positions. */
void kern_rope(struct kern_stream *s, float *x, size_t ldx, size_t ldh, size_t heads, size_t dim, const float *cs,
	size_t rows, bool round);
/* y[r] = row ids[r] of table, widened to float32. */
void kern_embed(struct kern_stream *s, float *y, size_t ldy, const struct mat *table, const uint32_t *ids, size_t rows);
/* y[r] += sum over k in order of w[r][k] * x[slot[r][k]], summed in float32 from 0, then added to y and rounded if
 * asked. */
void kern_combine(struct kern_stream *s, float *y, size_t ldy, const float *x, size_t ldx, const uint32_t *slot,
	const float *w, size_t top_k, size_t rows, size_t cols, bool round);

/* ---- rows that travel between ranks ---- */

/*
 * A row of `cols` elements on its way.  F8: cols codes, from the next multiple of 4 on the scales of its blocks of 128
 * columns; BF16; F32.  Rounded up to 16 bytes: 7,392 for DeepSeek-V3's 7,168 in F8, 14,336 in BF16.
 */
size_t kern_row_bytes(enum act_kind kind, size_t cols);
/* Writes rows row[i] (NULL: i) of x to dst[i], i < n.  kind: that of x, or BF16 where x is F32 with values that are
 * bfloat16's. */
void kern_put_rows(struct kern_stream *s, enum act_kind kind, const struct act *x, const uint32_t *row,
	void *const *dst, size_t n);
/* The n rows at src[], of this kind, as kern_pack would have given them: as is the same kind, or F32 of BF16.  buf:
 * kern_take_bytes. */
size_t kern_take_bytes(enum act_kind as, size_t rows, size_t cols);
void kern_take_rows(struct kern_stream *s, enum act_kind kind, enum act_kind as, const void *const *src, size_t rows,
	size_t cols, void *buf, struct act *a);
/* kern_combine of rows where they lie, of kind BF16 or F32: x [rows, top_k], NULL adds nothing. */
void kern_combine_rows(struct kern_stream *s, float *y, size_t ldy, const void *const *x, enum act_kind kind,
	const float *w, size_t top_k, size_t rows, size_t cols, bool round);

/* ---- routing ---- */

enum score_func { SCORE_SOFTMAX, SCORE_SIGMOID };
enum topk_method { TOPK_GREEDY, TOPK_GROUP_LIMITED, TOPK_NOAUX_TC };

struct route {
	enum score_func score;
	enum topk_method method;
	size_t experts, top_k, groups, topk_groups;
	bool normalise;     /* weights divided by their sum (norm_topk_prob) */
	float scale;        /* routed_scaling_factor */
	const float *bias;  /* [experts] e_score_correction_bias (noaux_tc), else NULL */
};

/* logits [rows, experts] -> ids, weights [rows, top_k], best (biased) score first; in ties the lower index, for experts
 * and groups alike.  Masked groups count as -inf (inference/model.py).  A row of NaN still gives valid, distinct
 * ids. */
void kern_route(struct kern_stream *s, const struct route *r, const float *logits, size_t rows, uint32_t *ids,
	float *weights);

/* ---- attention over a paged latent cache ---- */

/* A sequence's pages of one layer: page i holds tokens [i * page, (i+1) * page), each row [lora + rope]: the latent
 * after its norm, then the rotated key part.  Rows are F32 or BF16. */
struct kv_pages {
	void *const *pages;
	size_t page;      /* tokens a page (64, a multiple of 16) */
	size_t row_ld;    /* elements from token to token */
	enum dtype type;
};

struct attn_shape {
	size_t heads, nope, rope, v, lora;
	float scale;          /* on q . k */
	/* [heads * (nope + v), lora]: per head nope key rows, then v value rows; F8 is dequantised */
	const struct mat *kv_b;
	/* BF16 arithmetic: keys, values, probabilities, absorbed queries and latents, outputs are rounded to bfloat16;
	 * scores, softmax and sums stay float32 */
	bool round;
};

struct attn_seg {
	const float *q;   /* [rows, ldq]: heads x (nope + rope), rope part rotated */
	size_t ldq;
	float *out;       /* [rows, ldo]: heads x v */
	size_t ldo;
	size_t rows;
	size_t pos0;      /* row i is at position pos0 + i and sees tokens 0 .. pos0 + i */
	struct kv_pages kv;
};

/* Working memory of a thread that attention may need for segments of up to `rows` rows, and (*shared) of all of them
 * together: kern_reserve both beforehand, since running out of memory later ends the process. */
size_t kern_attn_bytes(const struct kern_stream *s, const struct attn_shape *a, const struct kv_pages *kv, size_t rows,
	size_t *shared);
/* Expanded form (prefill): keys and values of each head are made from the latents.  Absorbed form (decode): the query
 * is taken into the latent space and the answer out of it.  Online softmax over pages at absolute positions, so that
 * chunking cannot change a bit; a row's result depends on its position and the cache only.  Rows of the cache beyond a
 * row's position are never read (they may be NaN). */
void kern_attn_expanded(struct kern_stream *s, const struct attn_shape *a, const struct attn_seg *segs, size_t count);
void kern_attn_absorbed(struct kern_stream *s, const struct attn_shape *a, const struct attn_seg *segs, size_t count);

/* ---- sampling ---- */

/* For each row of logits [rows, ld]: the index of its largest value (lowest index in ties, NaN never wins) and log(sum
 * exp(x)). */
void kern_argmax_lse(struct kern_stream *s, const float *logits, size_t ld, size_t rows, size_t cols, uint32_t *argmax,
	double *lse);

#endif
