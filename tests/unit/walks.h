/*
 * Dispatch and combine without a model, for tests: every (token, choice) must come to the expert it chose with its own
 * row, once for each rank, and its output must come back to its place.  A row says whose it is; an expert's output says
 * of which expert and which row it is made.
 */
#ifndef DS_TESTS_WALKS_H
#define DS_TESTS_WALKS_H

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/random.h"
#include "ep/ep.h"
#include "tests/unit/ranks.h"
#include "tests/unit/tap.h"

enum { TOKENS = 16, TOP_K = 4, ROW = 48, OUT = 80, LAYERS = 3 };

/* Who has how many rows, and what they choose. */
enum batches { UNIFORM, ONE_EXPERT, ONE_RANK, SAME_TWICE, HOLES, NOTHING, FULL, EVEN, LOADS };

struct way {
	const char *transport;
	size_t world, experts, redundant, steps, lanes;
	enum batches load;
	uint64_t seed;
	char addr[64];
	uint64_t *sums; /* [world] of all that came back, to compare runs */
	struct counted { int64_t chosen, counts, received; uint64_t steps, rows; } *counted; /* [world] */
};

struct row { uint32_t rank, lane, layer, token; uint64_t salt; };
struct output { struct row row; uint32_t expert; };

static uint64_t draw(const struct way *w, uint64_t a, uint64_t b)
{
	return random_bits(w->seed * 1000003 + a, b);
}

/* Rows of a rank and lane in a step: the same on every rank that asks. */
static size_t rows_of(const struct way *w, size_t step, size_t rank, size_t lane)
{
	uint64_t r = draw(w, step, rank * 2 + lane);

	if (w->load == NOTHING || step >= w->steps || lane >= w->lanes ||
	    (w->load == ONE_RANK && rank != step % w->world))
		return 0;
	if (w->load == FULL || w->load == EVEN)
		return TOKENS;
	return r % 4 == 0 ? 0 : r % 4 == 1 ? r / 4 % (3 * TOKENS) : r / 4 % TOKENS;
}

static void choose(const struct way *w, size_t step, const struct row *row, uint32_t *ids)
{
	for (size_t k = 0; k < TOP_K; k++) {
		uint64_t r = draw(w, step * 1009 + row->rank * 31 + row->lane * 7 + row->layer, row->token * TOP_K + k);

		ids[k] = (uint32_t)(r % w->experts);
		if (w->load == ONE_EXPERT || w->load == FULL)
			ids[k] = (uint32_t)(step % w->experts);
		if (w->load == SAME_TWICE && k)
			ids[k] = ids[0];
		if (w->load == HOLES && (r / 64 % 3 == 0 || row->token % 5 == 0))
			ids[k] = EP_NONE;
	}
}

/* Called before this rank's rows, and its outputs, leave: true where it has sent something else
 * instead of outputs. */
static bool (*walk_spoil)(struct ep *ep, enum slot_kind kind, size_t lane);

/* A lane's way through a layer, a round at a time. */
struct walk {
	struct row rows[3 * TOKENS];
	uint32_t ids[3 * TOKENS * TOP_K];
	size_t count, first, round, rounds;
	int stage; /* 0 to dispatch, 1 on its way, 2 at the experts' ranks and back; 3: all rounds are done */
};

static void walk_begin(const struct way *w, size_t step, size_t rank, size_t lane, size_t layer, size_t rounds,
	struct walk *k)
{
	memset(k, 0, sizeof(*k));
	k->count = rows_of(w, step, rank, lane);
	k->rounds = rounds;
	k->stage = rounds ? 0 : 3;
	for (size_t t = 0; t < k->count; t++) {
		k->rows[t] = (struct row){ (uint32_t)rank, (uint32_t)lane, (uint32_t)layer, (uint32_t)t,
			draw(w, step, t) };
		choose(w, step, &k->rows[t], k->ids + t * TOP_K);
	}
}

static size_t round_rows(const struct walk *k)
{
	size_t left = k->count - k->first;

	return left < TOKENS ? left : TOKENS;
}

static int walk_dispatch(struct ep *ep, struct walk *k, size_t lane, size_t layer, struct ds_err *err)
{
	struct ep_rows to;
	int rc = ep_dispatch(ep, lane, layer, ROW, k->ids + k->first * TOP_K, round_rows(k), &to, err);

	if (rc)
		return rc;
	for (size_t i = 0; i < to.n; i++)
		memcpy(to.dst[i], &k->rows[k->first + to.row[i]], sizeof(*k->rows));
	if (walk_spoil && round_rows(k))
		walk_spoil(ep, SLOT_DISPATCH, lane);
	ep_dispatch_post(ep, lane);
	return 0;
}

/* Pairs must be sorted by expert, source rank and token; each row must be there once. */
static bool in_order(const struct ep_arrived *a)
{
	for (size_t x = 0; x < a->experts; x++)
		for (size_t i = a->first[x] + 1; i < a->first[x + 1]; i++)
			if (a->gather[i] < a->gather[i - 1])
				return false;
	for (size_t i = 1; i < a->rows; i++) {
		const struct row *p = a->src[i - 1], *q = a->src[i];

		if (p->rank > q->rank || (p->rank == q->rank && p->token >= q->token))
			return false;
	}
	return a->experts == 0 || a->first[a->experts] == a->pairs;
}

static int walk_compute(struct ep *ep, size_t lane, struct ds_err *err)
{
	struct ep_arrived a;
	void *const *to;
	int rc = ep_arrive(ep, lane, &a, err);

	if (rc)
		return rc;
	if (!in_order(&a))
		return err_set(err, DS_BUG, "arrivals are out of order");
	to = ep_return(ep, lane);
	for (size_t x = 0; x < a.experts; x++)
		for (size_t i = a.first[x]; i < a.first[x + 1]; i++) {
			struct output o = { .expert = a.logical[x] };

			memcpy(&o.row, a.src[a.gather[i]], sizeof(o.row));
			memset(to[i], 0xee, OUT); /* a whole row: it must not touch its neighbours */
			memcpy(to[i], &o, sizeof(o));
		}
	if (walk_spoil && walk_spoil(ep, SLOT_COMBINE, lane))
		return EP_BROKEN;
	ep_return_post(ep, lane);
	return 0;
}

static int walk_collect(struct ep *ep, struct walk *k, size_t lane, uint64_t *sum, struct ds_err *err)
{
	const void *const *rows;
	size_t n = round_rows(k);
	int rc = ep_collect(ep, lane, &rows, err);

	for (size_t i = 0; i < n * TOP_K && !rc; i++) {
		const struct output *o = rows[i];
		uint32_t id = k->ids[k->first * TOP_K + i];

		if (id == EP_NONE ? o != NULL : !o || o->expert != id ||
			memcmp(&o->row, &k->rows[k->first + i / TOP_K], sizeof(o->row)) != 0)
			return err_set(err, DS_BUG, "token %zu, choice %zu: not what expert %u gives", i / TOP_K,
				i % TOP_K, id);
		*sum = *sum * 31 + (o ? o->expert + o->row.salt : 7);
	}
	k->first += n;
	k->round++;
	return rc;
}

/* The lanes in any legal order: the same on all ranks, as the engine's are. */
TAP_USED static int layer(struct ep *ep, const struct way *w, size_t rank, size_t step, size_t n,
	const struct ep_step *s, uint64_t *sum, struct ds_err *err)
{
	struct walk *k = calloc(EP_LANES, sizeof(*k));
	int rc = 0;

	for (size_t i = 0; i < s->lanes; i++)
		walk_begin(w, step, rank, i, n, s->rounds[i], &k[i]);
	for (uint64_t turn = 0; !rc && (k[0].stage < 3 || (s->lanes > 1 && k[1].stage < 3)); turn++) {
		size_t i = draw(w, step * 77 + n, 5000 + turn) % s->lanes;

		if (k[i].stage == 3)
			continue;
		if (k[i].stage == 0)
			rc = walk_dispatch(ep, &k[i], i, n, err);
		else if (k[i].stage == 1)
			rc = walk_compute(ep, i, err);
		else
			rc = walk_collect(ep, &k[i], i, sum, err);
		k[i].stage = k[i].stage < 2 ? k[i].stage + 1 : k[i].round < k[i].rounds ? 0 : 3;
	}
	free(k);
	return rc;
}

TAP_USED static int open_ep(const struct way *w, size_t rank, struct ep **ep, struct ds_err *err)
{
	struct ep_config c = { .shape = { LAYERS, 0, w->experts, TOP_K, ROW, OUT }, .redundant = w->redundant,
		.tokens = TOKENS };

	c.unit = (struct unit_config){ .addr = w->addr, .rank = rank, .world = w->world, .transport = w->transport,
		.unit_timeout_ns = 30000000000, .peer_timeout_ns = 10000000000 };
	return ep_open(ep, &c, err);
}

/* Who leaves early takes what it has sent with it: an epoch begins. */
TAP_USED static int stay(struct ep *ep, struct ds_err *err)
{
	static const size_t none[EP_LANES];
	struct ep_step s = { .over = false };
	int rc = 0;

	while (!rc && !s.over)
		rc = ep_begin(ep, UNIT_NONE, none, true, &s, err);
	return rc;
}

#endif
