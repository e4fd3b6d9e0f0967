/* Dispatch and combine between processes: sizes, loads, what is counted, what is refused. */
#include "walks.h"

static const char *const load_names[LOADS] = { "uniform", "all to one expert", "one rank alone has tokens",
	"the same expert twice", "-1 in some places and in all of a token's", "nobody has any",
	"full buffers, all to one expert", "full buffers" };

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
			.steps = 40, .lanes = 2, .load = (enum batches)load, .seed = 77 };

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
