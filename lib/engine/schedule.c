/*
 * In what order the micro-batches of a unit's step go through the cuts of its layers: all ranks in the same.
 *
 * A transfer is on its way from its post (the end of lane_dispatch, of lane_mlp) to where it is waited for (the
 * beginning of lane_mlp, of lane_collect); what is computed in between hides it.  The two orders with two micro-batches
 * are those of DeepSeek's published figures:
 *
 *   prefill   ATTN 0, SHARED 1, ATTN 1, MLP 0, MLP 1, SHARED 0 against COMBINE 1, DISPATCH 0, DISPATCH 1, COMBINE 0
 *   decode    SHARED 0 + ATTN-0 1 | MLP 0 | ATTN-1 1 | SHARED 1 + ATTN-0 0 | MLP 1 | ATTN-1 0
 *             against DISPATCH 0 | | COMBINE 0 | DISPATCH 1 | | COMBINE 1
 *
 * The first micro-batch has the earlier rows of a sequence that is in both: it is ahead in every layer's attention.
 */
#include "engine/internal.h"

struct order {
	struct engine *e;
	size_t n, moe; /* the layer, its number among the MoE layers */
	bool ahead;    /* decode: the first lane's dispatch of this layer is on its way */
	struct ds_err *err;
};

static const struct layer *layer_of(const struct order *o, size_t n)
{
	return n < o->e->c->layers ? &o->e->m->layers[n] : NULL;
}

static struct lane *lane_of(const struct order *o, size_t i)
{
	return &o->e->lanes[i];
}

/* The whole of attention; the outputs of the layer before are collected first. */
static int attention(struct order *o, size_t i, size_t n)
{
	const struct layer *l = layer_of(o, n);
	int rc = lane_collect(lane_of(o, i), o->err);

	if (rc)
		return rc;
	lane_attn0(lane_of(o, i), n, l);
	lane_attn1(lane_of(o, i), n, l);
	return 0;
}

static int dense(struct order *o, size_t lanes)
{
	int rc = 0;

	for (size_t i = 0; i < lanes && !rc; i++) {
		rc = attention(o, i, o->n);
		if (!rc)
			lane_dense(lane_of(o, i), o->n, layer_of(o, o->n));
	}
	return rc;
}

static int dispatch(struct order *o, size_t i, size_t n, size_t moe)
{
	return lane_dispatch(lane_of(o, i), n, moe, layer_of(o, n), o->err);
}

/* One micro-batch: the shared expert hides some of the dispatch. */
static int finish(struct lane *l, struct ds_err *err)
{
	int rc;

	lane_hide(l);
	rc = lane_mlp(l, err);
	return rc ? rc : lane_collect(l, err);
}

static int single(struct order *o)
{
	struct lane *l = lane_of(o, 0);
	int rc;

	if ((rc = attention(o, 0, o->n)) || (rc = dispatch(o, 0, o->n, o->moe)))
		return rc;
	return finish(l, o->err);
}

static int prefill(struct order *o)
{
	struct lane *a = lane_of(o, 0), *b = lane_of(o, 1);
	int rc;

	if ((rc = attention(o, 0, o->n)) || (rc = dispatch(o, 0, o->n, o->moe)))
		return rc;
	lane_shared(b);
	if ((rc = attention(o, 1, o->n)) || (rc = dispatch(o, 1, o->n, o->moe)) || (rc = lane_mlp(a, o->err)) ||
	    (rc = lane_mlp(b, o->err)))
		return rc;
	lane_shared(a);
	return 0;
}

/* The first lane's dispatch of the layer is on its way already, unless this is the first of its kind in a row. */
static int decode(struct order *o)
{
	struct lane *a = lane_of(o, 0), *b = lane_of(o, 1);
	const struct layer *l = layer_of(o, o->n), *next = layer_of(o, o->n + 1);
	int rc;

	if (!o->ahead && ((rc = attention(o, 0, o->n)) || (rc = dispatch(o, 0, o->n, o->moe))))
		return rc;
	lane_shared(a);
	if ((rc = lane_collect(b, o->err)))
		return rc;
	lane_attn0(b, o->n, l);
	if ((rc = lane_mlp(a, o->err)))
		return rc;
	lane_attn1(b, o->n, l);
	if ((rc = dispatch(o, 1, o->n, o->moe)))
		return rc;
	lane_shared(b);
	o->ahead = next && next->moe;
	if (!o->ahead)
		return lane_mlp(b, o->err);
	if ((rc = lane_collect(a, o->err)))
		return rc;
	lane_attn0(a, o->n + 1, next);
	if ((rc = lane_mlp(b, o->err)))
		return rc;
	lane_attn1(a, o->n + 1, next);
	return dispatch(o, 0, o->n + 1, o->moe + 1);
}

int schedule_run(struct engine *e, size_t lanes, struct ds_err *err)
{
	struct order o = { .e = e, .err = err };
	int rc = 0;

	for (; o.n < e->c->layers && !rc; o.n++) {
		if (!e->m->layers[o.n].moe) {
			rc = dense(&o, lanes);
			continue;
		}
		if (lanes < 2)
			rc = single(&o);
		else
			rc = e->overlap == OVERLAP_DECODE ? decode(&o) : prefill(&o);
		o.moe++;
	}
	for (size_t i = 0; i < lanes && !rc; i++)
		rc = lane_collect(lane_of(&o, i), err);
	return rc;
}

int schedule_mtp(struct engine *e, struct ds_err *err)
{
	const struct layer *layer = &e->m->mtp[0].layer;
	struct lane *l = &e->lanes[0];
	size_t moe = 0;
	int rc;

	for (size_t n = 0; n < e->c->layers; n++)
		moe += e->m->layers[n].moe;
	lane_attn1(l, e->c->layers, layer);
	rc = lane_dispatch(l, e->c->layers, moe, layer, err);
	return rc ? rc : finish(l, err);
}
