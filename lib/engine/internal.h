/* What the files of lib/engine share: the engine's working memory and the cuts of a layer. */
#ifndef DS_ENGINE_INTERNAL_H
#define DS_ENGINE_INTERNAL_H

#include "engine/engine.h"

struct engine {
	const struct model *m;
	const struct config *c;
	struct kern_stream *s;
	struct profile *profile; /* or NULL */
	bool round;             /* ARITH_BF16 */
	bool dequant;
	bool mtp;
	size_t max_rows, max_segs, max_logits;
	engine_tap tap;
	void *tap_ctx;
	uint64_t step;          /* steps done */
	int64_t check_ns;       /* when the model's files are looked at again */
	bool unchecked;         /* they were not since something was computed */

	/* working memory of a step, R = max_rows, S = R * top_k; all of it in one reserved mapping, touched as used */
	unsigned char *memory;
	size_t memory_bytes;
	bool huge;              /* it is asked for in huge pages */
	double *inv_freq;       /* [rope / 2] */
	uint32_t *tokens;       /* [R] */
	float *cs;              /* [R, rope] (cos, sin) pairs */
	float *h;               /* [R, hidden] residual stream */
	float *x;               /* [R, hidden] after a norm */
	float *t;               /* [R, hidden] a block's output before it joins the residual stream */
	float *qa;              /* [R, q_lora] */
	float *q;               /* [R, heads * (nope + rope)] */
	float *kva;             /* [R, kv_lora + rope] */
	float *o;               /* [R, heads * v] */
	float *eh;              /* [R, 2 * hidden] what the MTP layer begins with */
	float *gate, *up;       /* [R, max(inter, shared * moe_inter)] or [S, moe_inter] */
	float *router;          /* [R, experts] */
	uint32_t *ids;          /* [R, top_k] */
	float *weights;         /* [R, top_k] */
	uint32_t *gather;       /* [S] token row of each dispatched row, sorted by expert */
	uint32_t *slot;         /* [R, top_k] dispatched row of each (token, choice) */
	uint32_t *offset;       /* [experts + 2] first dispatched row of each expert */
	float *expert_out;      /* [S, hidden] */
	/* activations as products read them: rows of hidden or q_lora; rows of an FFN or of heads * v */
	void *packed, *packed2;
	float *last;            /* [max_logits, hidden] rows that want logits */
	float *logits;          /* [max_logits, vocab] */
	uint32_t *argmax;       /* [max_logits] */
	double *lse;            /* [max_logits] */
	struct gemm *gemms;     /* [2 * experts + 4] */
	struct attn_seg *attn;  /* [max_segs] */
	struct tap_rows *shown; /* [max_segs] whose rows a tap sees */
	void **pages;           /* [page_cap] page pointers of all segments at one layer */
	size_t page_cap;
};

struct batch {
	struct segment *segs;
	size_t count, rows, logits;
	bool mtp;               /* of the MTP layer: positions are those of its cache */
};

/* Position of a segment's first row. */
static inline size_t batch_pos(const struct batch *b, const struct segment *s)
{
	return b->mtp ? s->kv->mtp : s->kv->length;
}

/* How a product reads the activations that go with weights of this type. */
enum act_kind engine_act(const struct engine *e, const struct mat *w);
/* The first `count` of e->gemms, counted in the profile. */
void engine_gemm(struct engine *e, size_t count);
/* y [rows, w->rows] = x [rows, w->cols] W^T, packing x into buf. */
void engine_linear(struct engine *e, float *y, const float *x, const struct mat *w, size_t rows, void *buf, bool round);
/* Shows the tap, if there is one, a tensor [b->rows, cols]; _last: [rows whose logits are wanted, cols]. */
void engine_show(const struct engine *e, const struct batch *b, const char *point, size_t layer, enum dtype type,
	const void *data, size_t cols);
void engine_show_last(const struct engine *e, const struct batch *b, const char *point, const float *data, size_t cols);

/* The parts of a step: checks and memory; the residual stream e->h from the segments' tokens; one layer, n of the
 * cache, its queries and cache rows first, then all the rest; norm of all rows and head. */
int engine_begin(struct engine *e, struct batch *b, struct ds_err *err);
void engine_embed(struct engine *e, const struct mat *table, struct batch *b);
void engine_cache(struct engine *e, const struct layer *l, size_t n, struct batch *b);
void engine_layer(struct engine *e, const struct layer *l, size_t n, struct batch *b);
void engine_head(struct engine *e, const struct mat *norm, const struct mat *head, struct batch *b);

/* The cuts of a layer (DESIGN section 5), lib/engine/attention.c and moe.c.  x is e->x, the normed residual stream. */
void stage_attn0(struct engine *e, const struct layer *l, size_t n, struct batch *b);
void stage_attn1(struct engine *e, const struct layer *l, size_t n, struct batch *b);
void stage_dispatch(struct engine *e, const struct layer *l, struct batch *b, struct act *x);
void stage_shared(struct engine *e, const struct layer *l, struct batch *b);
void stage_mlp(struct engine *e, const struct layer *l, struct batch *b, const struct act *x);
void stage_combine(struct engine *e, struct batch *b);
void stage_dense(struct engine *e, const struct layer *l, struct batch *b);

#endif
