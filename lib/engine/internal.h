/* What the files of lib/engine share: the engine's working memory and the cuts of a layer. */
#ifndef DS_ENGINE_INTERNAL_H
#define DS_ENGINE_INTERNAL_H

#include "engine/engine.h"
#include "ep/ep.h"

struct engine {
	const struct model *m;
	const struct config *c;
	struct kern_stream *s;
	struct profile *profile; /* or NULL */
	bool round;             /* ARITH_BF16 */
	bool dequant;
	bool mtp;
	struct ep *ep;
	bool ended;             /* the others were told that no step of this rank's own follows */
	enum overlap overlap;
	size_t micro_batches;
	size_t max_rows, max_segs, max_logits, max_pairs;
	engine_tap tap;
	void *tap_ctx;
	uint64_t step;          /* steps done */
	int64_t check_ns;       /* when the model's files are looked at again */
	bool unchecked;         /* they were not since something was computed */

	/* working memory of a step, R = max_rows, S = max_pairs, R * top_k at least; all of it in one reserved mapping,
	 * touched as used */
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
	void *arrived;          /* rows of all ranks, packed: [world * tokens of a round, hidden] */
	struct segment *cut;    /* [max_segs + 1] the segments of two micro-batches */
	struct gemm *gemms;     /* [2 * experts + 4] */
	struct attn_seg *attn;  /* [max_segs] */
	struct tap_rows *shown; /* [max_segs] whose rows a tap sees */
	void **pages;           /* [page_cap] page pointers of all segments at one layer */
	size_t page_cap;
	struct lane *lanes;     /* [EP_LANES] in a unit */
	bool attended;          /* the last thing done was a step of others */
};

struct batch {
	struct segment *segs;
	size_t count, rows, logits;
	bool mtp;               /* of the MTP layer: positions are those of its cache */
};

/* Position of a segment's first row. */
static inline size_t batch_pos(const struct batch *b, const struct segment *s)
{
	return (b->mtp ? s->kv->mtp : s->kv->length) + s->before;
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
/* What the FFN or MoE gave, e->t, joins the residual stream. */
void engine_join(struct engine *e, size_t n, struct batch *b);

/* Rows of experts: pair i, of expert logical[x] (NULL: x itself) for first[x] <= i < first[x + 1], is row gather[i]. */
struct expert_rows {
	size_t experts;
	const uint32_t *logical, *first, *gather;
};
/* The outputs of pairs [p0, p1), at most max_pairs, of at most as many experts as the model has, in e->expert_out. */
void stage_experts(struct engine *e, const struct layer *l, const struct act *x, const struct expert_rows *r, size_t p0,
	size_t p1);

/* ---- expert-parallel units ---- */

/* A micro-batch on its way through the layers: a view of the engine whose row buffers begin at its first row. */
struct lane {
	struct engine e;
	struct batch b;
	size_t index, rounds;   /* of each MoE layer */
	size_t first, rows;     /* rows of the round that is on its way */
	/* the MoE layer whose outputs are to be collected, or NULL; whether its shared expert was computed */
	const struct layer *pending;
	size_t n, moe;
	bool shared;
	bool alone;             /* there is no other */
};

/* Lays the batch's first r0 rows into the first lane, the rest into the second; b NULL: both are empty. */
void lanes_fill(struct engine *e, struct batch *b, size_t r0, const struct ep_step *step);
/* Where to cut the batch in two, by tokens and attention work; its rows: not at all. */
size_t lanes_cut(const struct engine *e, const struct batch *b);

/* The cuts of a layer for a lane, lib/engine/lane.c; each does what there is to do, also where the lane has no rows.
 * moe: number among the MoE layers.  EP_BROKEN comes through. */
void lane_attn0(struct lane *l, size_t n, const struct layer *layer);
void lane_attn1(struct lane *l, size_t n, const struct layer *layer);
void lane_dense(struct lane *l, size_t n, const struct layer *layer);
int lane_dispatch(struct lane *l, size_t n, size_t moe, const struct layer *layer, struct ds_err *err);
void lane_shared(struct lane *l);
void lane_hide(struct lane *l); /* lane_shared under what is on its way; OVERLAP_NONE: lane_collect does it later */
int lane_mlp(struct lane *l, struct ds_err *err);
int lane_collect(struct lane *l, struct ds_err *err);

/* How rows are on their way to the experts of a layer, and back. */
enum act_kind lane_way_out(const struct engine *e, const struct layer *layer);
enum act_kind lane_way_back(const struct engine *e);

/* All layers of the main model for the lanes of a step, lib/engine/schedule.c. */
int schedule_run(struct engine *e, size_t lanes, struct ds_err *err);
/* The MTP layer for the first lane, from core attention on. */
int schedule_mtp(struct engine *e, struct ds_err *err);

/* A step of the unit, of this kind, with these rows of ours: run is called, again where the membership changed. */
struct unit_work {
	enum unit_kind kind;
	size_t rows[EP_LANES];
	int (*run)(struct engine *e, struct unit_work *w, const struct ep_step *step, struct ds_err *err);
	struct batch *b;
};
int engine_unit_step(struct engine *e, struct unit_work *w, struct ds_err *err);

#endif
