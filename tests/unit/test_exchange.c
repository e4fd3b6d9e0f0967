/*
 * Dispatch and combine between processes, without a model: every (token, choice) must come to the expert it chose with
 * its own row, once for each rank, and its output must come back to its place.  A row says whose it is; an expert's
 * output says of which expert and which row it is made.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/random.h"
#include "ep/ep.h"
#include "ranks.h"
#include "tap.h"

enum { TOKENS = 16, TOP_K = 4, ROW = 48, OUT = 80, LAYERS = 3 };

/* Who has how many rows, and what they choose. */
enum load { UNIFORM, ONE_EXPERT, ONE_RANK, SAME_TWICE, HOLES, NOTHING, FULL, LOADS };
static const char *const load_names[LOADS] = { "uniform", "all to one expert", "one rank alone has tokens",
	"the same expert twice", "-1 in some places and in all of a token's", "nobody has any", "full buffers" };

struct way {
	const char *transport;
	size_t world, experts, redundant, steps, lanes;
	enum load load;
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

	if (w->load == NOTHING || lane >= w->lanes || (w->load == ONE_RANK && rank != step % w->world))
		return 0;
	if (w->load == FULL)
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
static int layer(struct ep *ep, const struct way *w, size_t rank, size_t step, size_t n, const struct ep_step *s,
	uint64_t *sum, struct ds_err *err)
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

static int open_ep(const struct way *w, size_t rank, struct ep **ep, struct ds_err *err)
{
	struct ep_config c = { .shape = { LAYERS, 0, w->experts, TOP_K, ROW, OUT }, .redundant = w->redundant,
		.tokens = TOKENS };

	c.unit = (struct unit_config){ .addr = w->addr, .rank = rank, .world = w->world, .transport = w->transport,
		.unit_timeout_ns = 30000000000, .peer_timeout_ns = 10000000000 };
	return ep_open(ep, &c, err);
}

/* What the rank's load frame would say, beside what was chosen. */
static void count(struct ep *ep, const struct way *w, size_t rank, struct counted *c)
{
	struct load_message m;

	ep_load(ep, &m);
	for (size_t i = 0; i < m.layers * m.experts; i++) {
		c->counts += m.counts[i];
		c->received += m.received[i];
	}
	c->steps = m.steps;
	c->rows = m.rows;
	for (size_t step = 0; step < w->steps; step++)
		for (uint32_t lane = 0; lane < w->lanes; lane++)
			for (uint32_t t = 0; t < rows_of(w, step, rank, lane) * LAYERS; t++) {
				struct row row = { (uint32_t)rank, lane, t % LAYERS, t / LAYERS, 0 };
				uint32_t ids[TOP_K];

				choose(w, step, &row, ids);
				for (size_t k = 0; k < TOP_K; k++)
					c->chosen += ids[k] != EP_NONE;
			}
}

/* Who leaves early takes what it has sent with it: an epoch begins. */
static int stay(struct ep *ep, struct ds_err *err)
{
	static const size_t none[EP_LANES];
	struct ep_step s = { .over = false };
	int rc = 0;

	while (!rc && !s.over)
		rc = ep_begin(ep, UNIT_NONE, none, true, &s, err);
	return rc;
}

static int steps(struct ep *ep, const struct way *w, size_t rank, uint64_t *sum, struct ds_err *err)
{
	struct ep_step s;
	int rc = 0;

	for (size_t i = 0; i < w->steps && !rc; i++) {
		size_t rows[EP_LANES] = { rows_of(w, i, rank, 0), rows_of(w, i, rank, 1) };

		rc = ep_begin(ep, UNIT_MAIN, rows, false, &s, err);
		for (size_t n = 0; n < LAYERS && !rc; n++)
			rc = layer(ep, w, rank, i, n, &s, sum, err);
	}
	return rc ? rc : stay(ep, err);
}

static int rank_main(size_t rank, void *arg)
{
	const struct way *w = arg;
	struct ds_err err;
	struct ep *ep;
	int rc = open_ep(w, rank, &ep, &err);

	if (!rc) {
		rc = steps(ep, w, rank, &w->sums[rank], &err);
		count(ep, w, rank, &w->counted[rank]);
		ep_close(ep);
	}
	if (rc)
		tap_diag("rank %zu: %s", rank, rc == EP_BROKEN ? "the unit broke" : err.text);
	return rc;
}

/* Over all ranks: tokens times choices, counted where they are and where they are computed. */
static bool all_counted(const struct way *w)
{
	struct counted all = { 0 };
	bool steps = true;

	for (size_t r = 0; r < w->world; r++) {
		all.chosen += w->counted[r].chosen;
		all.counts += w->counted[r].counts;
		all.received += w->counted[r].received;
		steps &= w->counted[r].steps == w->counted[0].steps && w->counted[r].steps <= w->steps;
	}
	return steps && all.counts == all.chosen && all.received == all.chosen;
}

static bool run(struct way *w)
{
	static unsigned runs;

	snprintf(w->addr, sizeof(w->addr), "unix:/tmp/exchange-%d-%u", (int)getpid(), runs++);
	w->sums = ranks_share(w->world * sizeof(*w->sums));
	w->counted = ranks_share(w->world * sizeof(*w->counted));
	return ranks_run(w->world, rank_main, w) == 0 && all_counted(w);
}

static void test_sizes(void)
{
	static const size_t worlds[] = { 1, 2, 3, 6, 7, 12, 24, 72, 144 };
	static const char *const transports[] = { "shm", "tcp" };

	for (size_t i = 0; i < ARRAY_LEN(worlds) && !(tap_slow() && worlds[i] > 12); i++)
		for (size_t t = 0; t < 2; t++) {
			bool many = worlds[i] > 24;
			struct way w = { .transport = transports[t], .world = worlds[i], .experts = many ? 256 : 32,
				.steps = many ? 3 : 6, .redundant = many ? 32 : i % 2 ? 8 : 0, .lanes = 2, .seed = i };

			tap_ok(run(&w), "%s: %zu ranks, %zu + %zu experts, uneven batches, rounds, two lanes",
				w.transport, w.world, w.experts, w.redundant);
		}
}

static void test_loads(void)
{
	for (int load = 0; load < LOADS; load++) {
		struct way w = { .transport = load % 2 ? "tcp" : "shm", .world = 4, .experts = 10, .redundant = 3,
			.steps = 40, .lanes = 2, .load = (enum load)load, .seed = 77 };

		tap_ok(run(&w), "4 ranks, 10 + 3 experts: %s", load_names[load]);
	}
}

/* The same again: other arrival orders, the same outputs in the same places. */
static void test_again(void)
{
	struct way w = { .transport = "shm", .world = 3, .experts = 7, .steps = 20, .lanes = 2, .seed = 5 }, v = w;
	bool same = run(&w);

	for (size_t i = 0; i < 10 && same; i++) {
		v.transport = i % 2 ? "shm" : "tcp";
		v.redundant = i;
		same = run(&v) && memcmp(w.sums, v.sums, v.world * sizeof(*v.sums)) == 0;
	}
	tap_ok(same, "11 runs, 0 to 9 redundant experts, both transports: the same came back");
}

/* ---- what is refused ---- */

struct refusals { struct way w; bool *as_they_should; };

static bool refused(int rc, const struct ds_err *err, const char *a, const char *b)
{
	return rc == DS_BUG && strstr(err->text, a) && strstr(err->text, b);
}

static int refuse_main(size_t rank, void *arg)
{
	const struct refusals *f = arg;
	static const size_t rows[EP_LANES] = { 2, 2 };
	static const uint32_t ids[(TOKENS + 1) * TOP_K];
	struct ep_step s;
	struct ep_arrived a;
	struct ep_rows to;
	const void *const *out;
	struct ds_err err;
	struct ep *ep;
	bool ok;

	if (open_ep(&f->w, rank, &ep, &err) || ep_begin(ep, UNIT_MAIN, rows, false, &s, &err))
		return 1;
	ok = refused(ep_dispatch(ep, 0, 0, ROW, ids, TOKENS + 1, &to, &err), &err, "17 tokens", "the 16");
	ok &= refused(ep_dispatch(ep, 0, 0, ROW, ids, 3, &to, &err), &err, "3 tokens", "2 were voted for");
	ok &= refused(ep_dispatch(ep, 0, LAYERS, ROW, ids, 2, &to, &err), &err, "layer 3", "there are 3");
	ok &= refused(ep_dispatch(ep, 0, 0, ROW + 1, ids, 2, &to, &err), &err, "49 bytes", "more than 48");
	ok &= refused(ep_arrive(ep, 0, &a, &err), &err, "an arrival of lane 0", "out of turn");
	ok &= ep_dispatch(ep, 0, 0, ROW, ids, 2, &to, &err) == 0 && ep_dispatch(ep, 1, 0, ROW, ids, 2, &to, &err) == 0;
	ok &= refused(ep_dispatch(ep, 0, 1, ROW, ids, 2, &to, &err), &err, "a dispatch of lane 0", "out of turn");
	ep_dispatch_post(ep, 0);
	ok &= ep_arrive(ep, 0, &a, &err) == 0;
	ok &= refused(ep_collect(ep, 0, &out, &err), &err, "a collection of lane 0", "out of turn");
	ep_return_post(ep, 0);
	ok &= ep_collect(ep, 0, &out, &err) == 0;
	ok &= refused(ep_collect(ep, 0, &out, &err), &err, "a collection of lane 0", "out of turn");
	f->as_they_should[rank] = ok && stay(ep, &err) == 0;
	ep_close(ep);
	return 0;
}

static void test_refusals(void)
{
	struct refusals f = { .w = { .transport = "shm", .world = 2, .experts = 4 } };

	snprintf(f.w.addr, sizeof(f.w.addr), "unix:/tmp/exchange-%d-r", (int)getpid());
	f.as_they_should = ranks_share(2);
	tap_ok(ranks_run(2, refuse_main, &f) == 0 && f.as_they_should[0] && f.as_they_should[1],
		"too many tokens, others than were voted for, a third round on its way, an old one: refused by name");
}

int main(void)
{
	test_sizes();
	test_loads();
	test_again();
	test_refusals();
	return tap_done();
}
