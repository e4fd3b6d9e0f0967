/*
 * Attention over the latent cache, between the drivers (attn.c, attn_absorbed.c) and the instruction sets.
 *
 * Both forms come down to one problem: some queries look at the tokens of a page, one after another.  A query is a
 * lane of a vector, so a query's numbers never meet another's:
 *   expanded   a tile of 64 rows of one head; keys [nope + rope] and values [v] of the page are made from its latents
 *   absorbed   16 (row, head) pairs; keys are the page's rows [lora + rope], values their first [lora] elements
 * A score is one chain of products over k in ascending order; the softmax goes over tokens in ascending order, page
 * after page; so does the sum of values.  Nothing depends on which other queries share the vector, the tile or the
 * task.
 *
 * The absorbed form is cut at every ATTN_BLOCK pages, by absolute position.  A block starts a softmax of its own, and
 * blocks are merged in ascending order, so that a long context can use all threads without changing a bit.
 *
 * With BF16 arithmetic the probabilities exp(score - max) are rounded before they meet the values; their sum is of the
 * unrounded ones.
 */
#ifndef DS_KERNELS_CPU_ATTN_H
#define DS_KERNELS_CPU_ATTN_H

#include "base/mem.h"
#include "kernels/cpu/isa.h"

enum {
	ATTN_LANES = 16, /* lanes come in multiples of this in every set */
	ATTN_TILE = 64,  /* rows of a tile of the expanded form */
	ATTN_BLOCK = 4,  /* pages of a block of the absorbed form */
};

/* The state of an online softmax: sum of p v, largest score, sum of p. */
struct attn_state {
	float *acc; /* [lanes, ld] */
	size_t ld;
	float *max, *sum; /* [lanes] */
};

/* What attn_absorbed is asked for. */
enum attn_step {
	ATTN_QUERY, /* queries of one head into the latent space */
	ATTN_PAGES, /* some (row, head) pairs over some pages */
	ATTN_MERGE, /* states of consecutive blocks into one */
};

struct attn_task {
	const struct isa *isa;
	const struct attn_shape *shape;
	const struct attn_seg *seg;
	void *scratch; /* as large as expanded_layout, query_layout or absorbed_layout says */
	/* expanded: rows [row0, row0 + rows) of the segment, one head, into seg->out */
	size_t row0, rows, head;
	/* absorbed */
	enum attn_step step;
	/* QUERY: latent[i] = W_uk[head]^T queries[i], i < rows, rounded if asked; whole vectors are written */
	const float *const *queries; /* [rows][nope] */
	float *latent;               /* [rows, ld] */
	size_t ld;
	/* PAGES: lane i is the pair (row0 * heads + lane0 + i) of (row, head); pages [page0, page0 + pages) */
	size_t lane0, lanes, page0, pages;
	const float *q;          /* [lanes, ld] of which lora + rope are used */
	struct attn_state state; /* written whole */
	/* MERGE: lane `lane0` of `merge` parts is added to lane 0 of state */
	size_t merge;
	const struct attn_state *parts;
};

/* Elements from row to row of a scratch matrix: whole vectors, and no power of two that would crowd a few cache
 * sets. */
static inline size_t attn_ld(size_t cols)
{
	return (cols + 15) / 16 * 16 + 16;
}

/* The next `count` 4-byte elements of a scratch area, 64-byte aligned.  From a NULL area the sum of sizes results. */
static inline void *attn_carve(uintptr_t *at, size_t count)
{
	void *p = (void *)*at;

	*at += (count * 4 + 63) / 64 * 64;
	return p;
}

/* Tokens of page p that position pos sees. */
static inline size_t attn_seen(size_t pos, size_t p, size_t page)
{
	size_t first = p * page;

	if (pos < first)
		return 0;
	return pos - first + 1 < page ? pos - first + 1 : page;
}

static inline const void *kv_row(const struct kv_pages *kv, size_t p, size_t t)
{
	return (const char *)kv->pages[p] + t * kv->row_ld * (kv->type == DT_BF16 ? 2 : 4);
}

/* A worker's memory; sizes are in elements of 4 bytes. */
struct expanded_scratch {
	size_t kdim;             /* nope + rope */
	void *q;                 /* [tiles, kdim, ATTN_TILE] */
	struct attn_state state; /* [tiles * ATTN_TILE] */
	float *k;                /* [page, ldk] keys of a page, as made */
	float *v;                /* [page, ldv] values */
	void *k2, *v2;           /* the same as a set's products want them */
	void *act;               /* [page, lora rounded up to 128] BF16 */
	float *s, *corr, *row;   /* [page, ATTN_TILE], [ATTN_TILE], [kdim] */
	size_t ldk, ldv;
};

struct absorbed_scratch {
	size_t kdim;             /* lora + rope */
	void *q;                 /* [kdim, ATTN_LANES] */
	void *k, *v;             /* [page, ld] */
	float *s, *corr, *row;   /* [page, ATTN_LANES], [ATTN_LANES], [kdim] */
	size_t ld;
};

/* Lays the area out (64-byte aligned, or NULL) and returns its size in bytes. */
static inline size_t expanded_layout(struct expanded_scratch *x, void *area, const struct attn_shape *a,
	const struct kv_pages *kv, size_t rows)
{
	uintptr_t at = (uintptr_t)area;
	size_t lanes = round_up(rows, ATTN_TILE), kdim = a->nope + a->rope;

	x->kdim = kdim;
	x->ldk = attn_ld(kdim);
	x->ldv = x->state.ld = attn_ld(a->v);
	x->q = attn_carve(&at, lanes * kdim);
	x->state.acc = attn_carve(&at, lanes * x->state.ld);
	x->state.max = attn_carve(&at, lanes);
	x->state.sum = attn_carve(&at, lanes);
	x->k = attn_carve(&at, kv->page * x->ldk);
	x->v = attn_carve(&at, kv->page * x->ldv);
	x->k2 = attn_carve(&at, kv->page * x->ldk);
	x->v2 = attn_carve(&at, kv->page * x->ldv);
	x->act = attn_carve(&at, kv->page * round_up(a->lora, 128) / 2);
	x->s = attn_carve(&at, kv->page * ATTN_TILE);
	x->corr = attn_carve(&at, ATTN_TILE);
	x->row = attn_carve(&at, kdim);
	return at - (uintptr_t)area;
}

static inline size_t absorbed_layout(struct absorbed_scratch *x, void *area, const struct attn_shape *a,
	const struct kv_pages *kv)
{
	uintptr_t at = (uintptr_t)area;
	size_t kdim = a->lora + a->rope;

	x->kdim = kdim;
	x->ld = attn_ld(kdim);
	x->q = attn_carve(&at, kdim * ATTN_LANES);
	x->k = attn_carve(&at, kv->page * x->ld);
	x->v = attn_carve(&at, kv->page * x->ld);
	x->s = attn_carve(&at, kv->page * ATTN_LANES);
	x->corr = attn_carve(&at, ATTN_LANES);
	x->row = attn_carve(&at, kdim);
	return at - (uintptr_t)area;
}

struct query_scratch {
	void *q; /* [rows, nope] */
	void *w; /* [nope, ld] */
	size_t ld;
};

static inline size_t query_layout(struct query_scratch *x, void *area, const struct attn_shape *a, size_t rows)
{
	uintptr_t at = (uintptr_t)area;

	x->ld = attn_ld(a->lora);
	x->q = attn_carve(&at, rows * a->nope);
	x->w = attn_carve(&at, a->nope * x->ld);
	return at - (uintptr_t)area;
}

/* Most that any thread, or the owner, needs for the absorbed form. */
size_t attn_absorbed_bytes(const struct kern_stream *s, const struct attn_shape *a, const struct kv_pages *kv,
	size_t *shared);
/* Keys and values of tokens 0 .. n of page p for the task's head, float32 (values rounded if asked), into x->k and
 * x->v. */
void attn_expand_page(const struct attn_task *t, const struct expanded_scratch *x, size_t p, size_t n, bool round);

#endif
