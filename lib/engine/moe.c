/* DISPATCH, SHARED, MLP (routed experts), COMBINE; and the dense FFN of the first layers. */
#include <string.h>

#include "engine/internal.h"

/* Sorts the (token, choice) pairs by expert, tokens of one expert in order; each token is packed once. */
void stage_dispatch(struct engine *e, const struct layer *l, struct batch *b, struct act *x)
{
	const struct config *c = e->c;
	size_t pairs = b->rows * c->top_k;

	memset(e->offset, 0, (c->experts + 2) * sizeof(*e->offset));
	/* Counts stand two places up, so that after the running sum offset[i + 1] is where expert i's rows begin;
	 * filling moves it to where they end, and offset[i] is left as the beginning. */
	for (size_t i = 0; i < pairs; i++)
		e->offset[e->ids[i] + 2]++;
	for (size_t i = 2; i < c->experts + 2; i++)
		e->offset[i] += e->offset[i - 1];
	for (size_t i = 0; i < pairs; i++) {
		uint32_t at = e->offset[e->ids[i] + 1]++;

		e->slot[i] = at;
		e->gather[at] = (uint32_t)(i / c->top_k);
	}
	kern_pack(e->s, engine_act(e, &l->experts[0].gate), c->ue8m0, e->x, b->rows, c->hidden, c->hidden, e->packed,
		x);
}

static void ffn(struct engine *e, const struct ffn *f, size_t rows, float *y)
{
	size_t width = f->gate.rows;
	struct act x;

	kern_pack(e->s, engine_act(e, &f->gate), e->c->ue8m0, e->x, rows, e->c->hidden, e->c->hidden, e->packed, &x);
	e->gemms[0] = (struct gemm){ .y = e->gate, .ldy = width, .x = &x, .w = &f->gate, .rows = rows,
		.round = e->round };
	e->gemms[1] = (struct gemm){ .y = e->up, .ldy = width, .x = &x, .w = &f->up, .rows = rows, .round = e->round };
	engine_gemm(e, 2);
	kern_swiglu(e->s, e->gate, width, e->gate, width, e->up, width, rows, width, e->round);
	engine_linear(e, y, e->gate, &f->down, rows, e->packed2, e->round);
}

void stage_dense(struct engine *e, const struct layer *l, struct batch *b)
{
	ffn(e, &l->dense, b->rows, e->t);
}

void stage_shared(struct engine *e, const struct layer *l, struct batch *b)
{
	if (e->c->shared)
		ffn(e, &l->shared, b->rows, e->t);
	else
		memset(e->t, 0, b->rows * e->c->hidden * sizeof(*e->t));
}

/* Pairs of expert x within [p0, p1): their number, and the first in *at. */
static size_t pairs_in(const struct expert_rows *r, size_t x, size_t p0, size_t p1, size_t *at)
{
	size_t from = r->first[x] > p0 ? r->first[x] : p0, to = r->first[x + 1] < p1 ? r->first[x + 1] : p1;

	*at = from;
	return to > from ? to - from : 0;
}

static const struct ffn *expert(const struct layer *l, const struct expert_rows *r, size_t x)
{
	return &l->experts[r->logical ? r->logical[x] : x];
}

/* Gate and up products of every expert that was chosen; returns how many products. */
static size_t list_gate_up(struct engine *e, const struct layer *l, const struct act *x, const struct expert_rows *r,
	size_t p0, size_t p1)
{
	size_t width = e->c->moe_inter, n = 0, at;

	for (size_t i = 0; i < r->experts; i++) {
		size_t rows = pairs_in(r, i, p0, p1, &at);
		struct gemm g = { .ldy = width, .x = x, .rows = rows, .gather = r->gather + at, .round = e->round };

		if (!rows)
			continue;
		g.y = e->gate + (at - p0) * width;
		g.w = &expert(l, r, i)->gate;
		e->gemms[n++] = g;
		g.y = e->up + (at - p0) * width;
		g.w = &expert(l, r, i)->up;
		e->gemms[n++] = g;
	}
	return n;
}

static size_t list_down(struct engine *e, const struct layer *l, const struct act *x, const struct expert_rows *r,
	size_t p0, size_t p1)
{
	size_t hidden = e->c->hidden, n = 0, at;

	for (size_t i = 0; i < r->experts; i++) {
		size_t rows = pairs_in(r, i, p0, p1, &at);

		if (rows)
			e->gemms[n++] = (struct gemm){ .y = e->expert_out + (at - p0) * hidden, .ldy = hidden, .x = x,
				.w = &expert(l, r, i)->down, .row0 = at - p0, .rows = rows, .round = e->round };
	}
	return n;
}

void stage_experts(struct engine *e, const struct layer *l, const struct act *x, const struct expert_rows *r, size_t p0,
	size_t p1)
{
	size_t pairs = p1 - p0, width = e->c->moe_inter;
	struct act y;

	engine_gemm(e, list_gate_up(e, l, x, r, p0, p1));
	kern_swiglu(e->s, e->gate, width, e->gate, width, e->up, width, pairs, width, e->round);
	kern_pack(e->s, engine_act(e, &l->experts[0].down), e->c->ue8m0, e->gate, pairs, width, width, e->packed2, &y);
	engine_gemm(e, list_down(e, l, &y, r, p0, p1));
}

void stage_mlp(struct engine *e, const struct layer *l, struct batch *b, const struct act *x)
{
	struct expert_rows r = { .experts = e->c->experts, .first = e->offset, .gather = e->gather };

	stage_experts(e, l, x, &r, 0, b->rows * e->c->top_k);
}

void stage_combine(struct engine *e, struct batch *b)
{
	size_t hidden = e->c->hidden;

	kern_combine(e->s, e->t, hidden, e->expert_out, hidden, e->slot, e->weights, e->c->top_k, b->rows, hidden,
		e->round);
}
