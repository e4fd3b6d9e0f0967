/* A micro-batch in a unit: the cuts of a layer, with dispatch and combine between ranks. */
#include <math.h>

#include "engine/internal.h"

/* ---- filling ---- */

/* A view of the engine whose rows begin at row r. */
static void look_at(struct lane *l, const struct engine *e, size_t r)
{
	const struct config *c = e->c;

	l->e = *e;
	l->e.tokens += r;
	l->e.cs += r * c->rope;
	l->e.h += r * c->hidden;
	l->e.x += r * c->hidden;
	l->e.t += r * c->hidden;
	l->e.q += r * c->heads * (c->nope + c->rope);
	l->e.kva += r * (c->kv_lora + c->rope);
	l->e.o += r * c->heads * c->v;
	l->e.router += r * c->experts;
	l->e.ids += r * c->top_k;
	l->e.weights += r * c->top_k;
}

/* Rows [r0, r1) of a batch as a batch of its own; a segment that lies across a border is in both, its rows divided. */
static struct batch part_of(const struct batch *b, size_t r0, size_t r1, struct segment *segs)
{
	struct batch part = { .segs = segs, .mtp = b->mtp };
	size_t row = 0;

	for (size_t i = 0; i < b->count; i++) {
		struct segment s = b->segs[i];
		size_t from = row > r0 ? row : r0, to = row + s.rows < r1 ? row + s.rows : r1;

		if (from < to) {
			s.before = from - row;
			s.rows = to - from;
			segs[part.count++] = s;
			part.rows += s.rows;
		}
		row += b->segs[i].rows;
	}
	return part;
}

void lanes_fill(struct engine *e, struct batch *b, size_t r0, const struct ep_step *step)
{
	struct segment *segs = e->cut;

	for (size_t i = 0; i < EP_LANES; i++) {
		struct lane *l = &e->lanes[i];

		look_at(l, e, i ? r0 : 0);
		l->index = i;
		l->rounds = step->rounds[i];
		l->alone = step->lanes < 2;
		l->pending = NULL;
		l->b = (struct batch){ .segs = segs };
		if (b)
			l->b = part_of(b, i ? r0 : 0, i ? b->rows : r0, segs);
		segs += l->b.count;
	}
}

/* ---- where to cut ---- */

/* Operations of a row in one layer, but for a constant: products of the row, and core attention over what it sees. */
struct cost { double row, seen_expanded, seen_absorbed; };

static struct cost cost_of(const struct config *c)
{
	double head = (double)(c->nope + c->rope), q = (double)c->heads * head;
	double attn = c->q_lora ? (double)c->q_lora * ((double)c->hidden + q) : (double)c->hidden * q;
	double ffn = 3.0 * (double)c->hidden * (double)c->moe_inter * (double)(c->top_k + c->shared);

	attn += (double)c->hidden * (double)(c->kv_lora + c->rope + c->heads * c->v);
	return (struct cost){ attn + ffn, (double)c->heads * (head + (double)c->v),
		(double)c->heads * (double)(2 * c->kv_lora + c->rope) };
}

static double row_cost(const struct cost *k, const struct batch *b, const struct segment *s, size_t r)
{
	return k->row + (s->absorbed ? k->seen_absorbed : k->seen_expanded) * (double)(batch_pos(b, s) + r + 1);
}

size_t lanes_cut(const struct engine *e, const struct batch *b)
{
	struct cost k = cost_of(e->c);
	double total = 0, first = 0, nearest;
	size_t row = 0, cut = b->rows;

	/* a tap is shown tensors whole */
	if (e->micro_batches < 2 || e->tap)
		return cut;
	for (size_t i = 0; i < b->count; i++)
		for (size_t r = 0; r < b->segs[i].rows; r++)
			total += row_cost(&k, b, &b->segs[i], r);
	nearest = total / 2;
	for (size_t i = 0; i < b->count; i++) {
		const struct segment *s = &b->segs[i];

		for (size_t r = 0; r < s->rows; r++, row++) {
			/* the border nearest to the middle; drafts stay with the row that they follow */
			if ((!s->absorbed || !r) && fabs(first - total / 2) < nearest) {
				nearest = fabs(first - total / 2);
				cut = row;
			}
			first += row_cost(&k, b, s, r);
		}
	}
	return cut;
}

/* ---- the cuts ---- */

/* What follows is of this micro-batch. */
static void turn_to(const struct lane *l)
{
	profile_micro_batch(l->e.profile, l->alone ? -1 : (int)l->index);
}

void lane_attn0(struct lane *l, size_t n, const struct layer *layer)
{
	turn_to(l);
	if (l->b.rows)
		engine_cache(&l->e, layer, n, &l->b);
}

void lane_attn1(struct lane *l, size_t n, const struct layer *layer)
{
	turn_to(l);
	if (!l->b.rows)
		return;
	profile_begin(l->e.profile, STAGE_ATTN1, n, l->b.rows);
	stage_attn1(&l->e, layer, n, &l->b);
	profile_end(l->e.profile);
}

void lane_dense(struct lane *l, size_t n, const struct layer *layer)
{
	turn_to(l);
	if (!l->b.rows)
		return;
	profile_begin(l->e.profile, STAGE_DENSE, n, l->b.rows);
	stage_dense(&l->e, layer, &l->b);
	engine_join(&l->e, n, &l->b);
	profile_end(l->e.profile);
}

/* How rows are on their way to the experts, and back. */
enum act_kind lane_way_back(const struct engine *e)
{
	return e->round ? ACT_BF16 : ACT_F32;
}

static enum act_kind kind_of(const struct engine *e, const struct layer *layer)
{
	return engine_act(e, &layer->experts[0].gate);
}

enum act_kind lane_way_out(const struct engine *e, const struct layer *layer)
{
	enum act_kind as = kind_of(e, layer);

	return as == ACT_F32 ? lane_way_back(e) : as;
}

/* The next round's rows leave. */
static int send_round(struct lane *l, struct ds_err *err)
{
	struct engine *e = &l->e;
	size_t hidden = e->c->hidden, left = l->b.rows - l->first;
	enum act_kind as = kind_of(e, l->pending);
	struct ep_rows to;
	struct act x;
	int rc;

	l->rows = left < ep_tokens(e->ep) ? left : ep_tokens(e->ep);
	profile_begin(e->profile, STAGE_DISPATCH, l->n, l->rows);
	rc = ep_dispatch(e->ep, l->index, l->moe, kern_row_bytes(lane_way_out(e, l->pending), hidden),
		e->ids + l->first * e->c->top_k, l->rows, &to, err);
	if (!rc && l->rows) {
		kern_pack(e->s, as, e->c->ue8m0, e->x + l->first * hidden, l->rows, hidden, hidden, e->packed, &x);
		kern_put_rows(e->s, lane_way_out(e, l->pending), &x, to.row, to.dst, to.n);
	}
	if (!rc)
		ep_dispatch_post(e->ep, l->index);
	profile_end(e->profile);
	return rc;
}

int lane_dispatch(struct lane *l, size_t n, size_t moe, const struct layer *layer, struct ds_err *err)
{
	turn_to(l);
	l->pending = layer;
	l->n = n;
	l->moe = moe;
	l->shared = false;
	l->first = 0;
	return l->rounds ? send_round(l, err) : 0;
}

void lane_shared(struct lane *l)
{
	if (!l->pending || l->shared)
		return;
	turn_to(l);
	l->shared = true;
	if (!l->b.rows)
		return;
	profile_begin(l->e.profile, STAGE_SHARED, l->n, l->b.rows);
	stage_shared(&l->e, l->pending, &l->b);
	profile_end(l->e.profile);
}

void lane_hide(struct lane *l)
{
	if (l->e.overlap != OVERLAP_NONE)
		lane_shared(l);
}

static int arrive(struct lane *l, struct ep_arrived *a, struct ds_err *err)
{
	struct engine *e = &l->e;
	struct ep_span span;
	int rc;

	profile_begin(e->profile, STAGE_WAIT_DISPATCH, l->n, l->rows);
	rc = ep_arrive(e->ep, l->index, a, err);
	profile_end(e->profile);
	span = ep_span(e->ep, l->index, SLOT_DISPATCH);
	if (!rc)
		profile_transfer(e->profile, STAGE_DISPATCH, l->n, l->index, span.begin, span.end, span.bytes);
	return rc;
}

/* As many pairs from p0 on as there is memory and a list of products for. */
static size_t piece(const struct engine *e, const struct ep_arrived *a, size_t p0)
{
	size_t p1 = p0 + e->max_pairs < a->pairs ? p0 + e->max_pairs : a->pairs, experts = 0;

	for (size_t i = 0; i < a->experts; i++)
		if (a->first[i + 1] > p0 && a->first[i + 1] > a->first[i] && ++experts == e->c->experts)
			return a->first[i + 1] < p1 ? a->first[i + 1] : p1;
	return p1;
}

/* The experts of this rank, and their outputs on the way back. */
static void compute(struct lane *l, const struct ep_arrived *a)
{
	struct engine *e = &l->e;
	enum act_kind as = kind_of(e, l->pending);
	struct expert_rows r = { a->experts, a->logical, a->first, a->gather };
	struct act x, out = { .kind = ACT_F32, .cols = e->c->hidden, .ld = e->c->hidden, .data = e->expert_out };
	void *const *to = ep_return(e->ep, l->index);

	profile_begin(e->profile, STAGE_MLP, l->n, a->pairs);
	if (a->pairs)
		kern_take_rows(e->s, lane_way_out(e, l->pending), as, a->src, a->rows, e->c->hidden, e->arrived, &x);
	for (size_t p0 = 0, p1; p0 < a->pairs; p0 = p1) {
		p1 = piece(e, a, p0);
		stage_experts(e, l->pending, &x, &r, p0, p1);
		out.rows = p1 - p0;
		kern_put_rows(e->s, lane_way_back(e), &out, NULL, to + p0, out.rows);
	}
	profile_end(e->profile);
	profile_begin(e->profile, STAGE_COMBINE, l->n, a->pairs);
	ep_return_post(e->ep, l->index);
	profile_end(e->profile);
}

/* The outputs of the round on its way, added to what the shared expert gave. */
static int collect_round(struct lane *l, struct ds_err *err)
{
	struct engine *e = &l->e;
	size_t hidden = e->c->hidden, at = l->first * hidden;
	const void *const *out;
	struct ep_span span;
	int rc;

	profile_begin(e->profile, STAGE_WAIT_COMBINE, l->n, l->rows);
	rc = ep_collect(e->ep, l->index, &out, err);
	profile_end(e->profile);
	if (!rc)
		lane_shared(l);
	if (rc || !l->rows)
		return rc;
	span = ep_span(e->ep, l->index, SLOT_COMBINE);
	profile_transfer(e->profile, STAGE_COMBINE, l->n, l->index, span.begin, span.end, span.bytes);
	profile_begin(e->profile, STAGE_COMBINE, l->n, l->rows);
	kern_combine_rows(e->s, e->t + at, hidden, out, lane_way_back(e), e->weights + l->first * e->c->top_k,
		e->c->top_k, l->rows, hidden, e->round);
	l->first += l->rows;
	if (l->first == l->b.rows)
		engine_join(e, l->n, &l->b);
	profile_end(e->profile);
	return 0;
}

int lane_mlp(struct lane *l, struct ds_err *err)
{
	struct ep_arrived a;
	int rc = 0;

	turn_to(l);
	for (size_t round = 0; !rc && round < l->rounds; round++) {
		if (round) { /* this one's slots are those of the one before */
			lane_hide(l);
			rc = collect_round(l, err);
			rc = rc ? rc : send_round(l, err);
		}
		rc = rc ? rc : arrive(l, &a, err);
		if (!rc)
			compute(l, &a);
	}
	return rc;
}

int lane_collect(struct lane *l, struct ds_err *err)
{
	int rc = 0;

	if (!l->pending)
		return 0;
	lane_hide(l);
	turn_to(l);
	if (l->rounds)
		rc = collect_round(l, err);
	else
		lane_shared(l);
	l->pending = NULL;
	return rc;
}
