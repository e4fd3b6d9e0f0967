/*
 * The engine: one step takes rows of many sequences through all layers.
 *
 * A step is a list of segments, each some new tokens of one sequence, attended either in the expanded form (prefill) or
 * in the absorbed form (decode) over the sequence's paged latent cache.  Rows of all segments go through the matrix
 * products together; by law 2 no row's bits depend on its company.
 *
 * Arithmetic: ARITH_F32 keeps float32 throughout (comparison with references); ARITH_BF16 rounds where DeepSeek's
 * engine holds bfloat16: the residual stream, inputs and outputs of every product, core attention, the cache, each
 * expert's output row.  FP8 weights take FP8 products in both (activations quantised 1x128), except kv_b_proj, which is
 * dequantised.
 */
#ifndef DS_ENGINE_ENGINE_H
#define DS_ENGINE_ENGINE_H

#include "engine/kv.h"
#include "engine/profile.h"
#include "kernels/kernels.h"
#include "model/model.h"

enum arith { ARITH_BF16, ARITH_F32 };

/* How micro-batches take turns (DESIGN section 5): NONE: one, which waits for its transfers, for comparison. */
enum overlap { OVERLAP_NONE, OVERLAP_PREFILL, OVERLAP_DECODE };

struct ep;

struct engine;

struct engine_config {
	enum arith arith;
	/* FP8 weights dequantised in products, activations not quantised: for comparison with references */
	bool dequant;
	int threads;
	const char *kernels; /* kernel set, or NULL */
	size_t max_rows;     /* most rows (tokens) in one step */
	size_t max_segs;     /* most segments in one step */
	size_t max_logits;   /* most rows of logits in one step; 0: max_segs */
	bool mtp;            /* use the model's first MTP layer: its cache is one more layer of every block */
	struct ep *ep;       /* the unit whose ranks share the experts; NULL: this engine has all of them */
	enum overlap overlap;
	size_t micro_batches; /* 1 or 2 */
};

struct segment {
	struct kv_seq *kv;       /* has room (kv_seq_reserve) for length + rows tokens; the step advances length */
	const uint32_t *tokens;  /* [rows], each below the vocabulary's size */
	size_t rows;
	uint64_t stream;         /* what a tap calls the sequence; the engine does not look at it, */
	const char *name;        /* nor at the request's name, which may be NULL */
	bool absorbed;
	size_t want_logits;      /* of the last so many rows */
	const float *h;          /* engine_mtp only: [rows, hidden] */
	size_t before;           /* the engine's own: 0 */
	/* set by the step; valid until the next one of either kind */
	const float *hidden;     /* [rows, hidden]: what engine_mtp takes as h */
	const float *logits;     /* [want_logits, vocab] */
	const uint32_t *argmax;  /* [want_logits] */
	const double *lse;       /* [want_logits] log sum exp of logits */
};

/* The model must outlive the engine.  DS_CONFIG for an unknown kernel set or MTP of a model without it, DS_OS without
 * memory. */
int engine_new(struct engine **e, const struct model *m, const struct engine_config *c, struct ds_err *err);
void engine_free(struct engine *e);
/* Steps are profiled from now on (engine/profile.h); NULL: no more.  pool: to be counted, or NULL.  DS_OS. */
int engine_set_profile(struct engine *e, struct profile *p, const struct kv_pool *pool, struct ds_err *err);

const char *engine_kernels(const struct engine *e);
enum dtype engine_kv_type(const struct engine *e);  /* of the pool that goes with it */
size_t engine_kv_dim(const struct engine *e);
int engine_kv_pool(const struct engine *e, uint64_t bytes, struct kv_pool **p, struct ds_err *err);

/* One step; count <= max_segs, the sum of rows <= max_rows (else DS_BUG).  DS_OS: no memory, nothing was done. */
int engine_step(struct engine *e, struct segment *segs, size_t count, struct ds_err *err);

/*
 * Expert-parallel units.  What the exchange of this model and arithmetic needs to know, before ep_open.
 */
struct ep_shape;
void engine_ep_shape(const struct model *m, const struct engine_config *c, struct ep_shape *shape);
/* A rank that has nothing to compute takes part in the others' steps: in one, where they want any, *busy is true then;
 * else it may sleep until ep_bell_fd is readable. */
int engine_attend(struct engine *e, bool *busy, struct ds_err *err);
/* This rank's input has ended: takes part until that of all has. */
int engine_stay(struct engine *e, struct ds_err *err);
/* The same piece by piece, as engine_attend; *over: that of all has. */
int engine_stay_step(struct engine *e, bool *busy, bool *over, struct ds_err *err);

/* DS_DATA where the model's files were written to before this call: what steps computed may be of a mixture.  A step
 * looks by itself now and then, since looking takes time; who makes an answer final looks here. */
int engine_check(struct engine *e, struct ds_err *err);

/*
 * One step of the MTP layer (DeepSeek-V3, 2.2): h' = eh_proj([enorm(embed(token)); hnorm(h)]), one decoder layer with
 * its own cache, shared_head.norm, head.  Entry i of its cache is made of h at position i (the main model's hidden
 * state after model.norm) and the token at i + 1; its logits are a draft of the token at i + 2.  A segment's rows are
 * entries kv->mtp .. kv->mtp + rows, h their hidden states, tokens those that follow each; the step advances kv->mtp.
 * h may be what the last step gave as hidden.  Drafting further goes on from the layer's own hidden state.  Rows that
 * want no logits only fill the cache; where any do, a segment's rows are left as want_logits, and hidden is theirs.
 * Room and limits as in engine_step.
 */
int engine_mtp(struct engine *e, struct segment *segs, size_t count, struct ds_err *err);

/*
 * Taps: fn sees tensors while a step runs (goldens, dumps), each where it is complete and before anything overwrites
 * it.  What is shown is the engine's own memory, valid during the call.  Without a tap the points cost nothing.
 */
struct tap_rows { uint64_t stream, first; size_t rows; const char *name; }; /* first, first + 1, ... of a sequence */
struct tap_tensor {
	const char *point;       /* as below */
	size_t layer;            /* 0 where the point is of no layer */
	enum dtype type;         /* DT_F32; DT_U32 for router.ids */
	const void *data;        /* [rows, cols] */
	size_t rows, cols;
	const struct tap_rows *segs; /* [seg_count] whose rows they are, in order */
	size_t seg_count;
	uint64_t step;           /* 0: the engine's first */
};
typedef void (*engine_tap)(void *ctx, const struct tap_tensor *t);
void engine_set_tap(struct engine *e, engine_tap fn, void *ctx);

/*
 * The points in the order in which a step reaches them (point_kinds in frame/point.h).
 *   embed                          [rows, hidden]
 *   q attn_core                    [rows, heads * (nope + rope)] after RoPE; [rows, heads * v] before o_proj
 *   kv                             [rows, kv_lora + rope] as the cache takes them: normed latent, rotated key
 *   attn_out mlp_out               [rows, hidden] what attention and the FFN or MoE add to the residual stream
 *   attn out                       [rows, hidden] the residual stream after attention, after the layer
 *   router.logits .ids .weights    [rows, experts], [rows, top_k] twice; MoE layers only
 *   final                          [rows, hidden] after the last norm
 *   logits                         [rows whose logits are wanted, vocab]
 * The MTP layer is layer number `layers`; of its steps only that layer's points are shown.
 */

#endif
