/*
 * How much of the communication two micro-batches hide: two ranks with one thread each, the network between them
 * imitated so that it takes as long as what they compute, one micro-batch that waits for its transfers against two in
 * the published orders.  The ideal is half the time.
 *
 * The geometries are chosen so that the published orders can hide all: in decode what lies under DISPATCH (SHARED,
 * ATTN-0) and COMBINE (ATTN-1) takes as long as they do, MLP, which has nothing under it, little; in prefill ATTN,
 * SHARED and MLP take a third each.  Usage: overlap [MODEL]
 */
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/random.h"
#include "engine/engine.h"
#include "ep/ep.h"
#include "limits.h"
#include "model/make.h"

enum { WORLD = 2, MOST_ROWS = 2048, MOST_SEGS = 128, WARM = 2, STEPS = 8, ROUNDS = 3 };

/* What is measured: `segs` sequences of `rows` new tokens each behind `depth` old ones. */
struct work { const char *name, *like; enum overlap overlap; size_t segs, rows, depth; double goal; };
static const struct work works[] = {
	{ "decode", "examples/bench/overlap-decode.json", OVERLAP_DECODE, 64, 1, 1024, 0.60 },
	{ "prefill", "examples/bench/overlap-prefill.json", OVERLAP_PREFILL, 1, 512, 0, 0.55 },
};

/* One way to run it, and what came out, of each rank. */
struct way {
	const struct work *work;
	char dir[300], addr[100];
	size_t micro_batches;
	enum overlap overlap;
	uint64_t rate;
	struct result { double step, compute, hidden, bytes, part[STAGE_COUNT]; } *of; /* [WORLD] */
};

static void die(const struct ds_err *err)
{
	fprintf(stderr, "overlap: %s\n", err->text);
	exit(err->code);
}

static struct ep *meet(const struct way *w, struct model *m, size_t rank, struct engine_config *c)
{
	struct ep_config u = { .tokens = MOST_ROWS };
	struct ds_err err;
	struct ep *ep;

	u.unit = (struct unit_config){ .addr = w->addr, .rank = rank, .world = WORLD, .transport = "shm",
		.unit_timeout_ns = 30000000000, .peer_timeout_ns = 10000000000, .spin_ns = 100000,
		.link = { .rate = w->rate } };
	engine_ep_shape(m, c, &u.shape);
	if (ep_open(&ep, &u, &err))
		die(&err);
	return ep;
}

static void steps(const struct work *k, struct engine *e, struct segment *segs, size_t n)
{
	struct ds_err err;

	for (size_t i = 0; i < n; i++) {
		for (size_t s = 0; s < k->segs; s++)
			segs[s].kv->length = k->depth;
		if (engine_step(e, segs, k->segs, &err))
			die(&err);
	}
}

/* Sums over the timed steps, a step. */
static struct result result(const struct profile_sums *a, const struct profile_sums *b, double seconds)
{
	struct result r = { .step = seconds / STEPS };
	double exposed = 0, way = (double)(b->transfer_ns - a->transfer_ns);

	for (int i = 0; i < STAGE_COUNT; i++) {
		double ns = (double)(b->stage[i].ns - a->stage[i].ns);

		r.part[i] = ns * 1e-9 / STEPS;
		if (i == STAGE_WAIT_DISPATCH || i == STAGE_WAIT_COMBINE)
			exposed += ns;
		else if (i != STAGE_VOTE)
			r.compute += ns * 1e-9 / STEPS;
	}
	r.hidden = way > 0 ? 1 - exposed / way : 0;
	return r;
}

static uint64_t sent(struct ep *ep, size_t rank)
{
	struct transport_peer p;

	transport_stat(unit_transport(ep_unit(ep)), 1 - rank, &p);
	return p.sent_bytes;
}

static void rank_main(const struct way *w, size_t rank)
{
	const struct work *k = w->work;
	struct engine_config c = { .threads = 1, .max_rows = MOST_ROWS, .max_segs = MOST_SEGS, .overlap = w->overlap,
		.micro_batches = w->micro_batches };
	static struct kv_seq seqs[MOST_SEGS];
	static uint32_t ids[MOST_ROWS];
	struct segment segs[MOST_SEGS];
	struct profile *p;
	struct profile_options o = { .program = "overlap", .stats = true };
	struct profile_sums before;
	struct kv_pool *pool;
	struct engine *e;
	struct model *m;
	struct ds_err err;
	uint64_t bytes;
	double t;

	if (model_open(&m, w->dir, &err))
		die(&err);
	c.ep = meet(w, m, rank, &c);
	if (engine_new(&e, m, &c, &err) || engine_kv_pool(e, (uint64_t)2 << 30, &pool, &err) ||
	    profile_new(&p, &o, &err) || engine_set_profile(e, p, pool, &err))
		die(&err);
	for (size_t i = 0; i < MOST_ROWS; i++)
		ids[i] = (uint32_t)(random_bits(rank, i) % m->config.vocab);
	for (size_t i = 0; i < k->segs; i++) {
		segs[i] = (struct segment){ .kv = &seqs[i], .tokens = ids + i * k->rows, .rows = k->rows,
			.absorbed = k->depth > 0, .want_logits = 1 };
		if (!kv_seq_reserve(&seqs[i], pool, k->depth + k->rows))
			exit(71);
	}
	memset(pool->memory, 0, pool->used * pool->block_bytes); /* what lies there does not matter: numbers */
	steps(k, e, segs, WARM);
	before = *profile_sums(p);
	bytes = sent(c.ep, rank);
	t = bench_seconds();
	steps(k, e, segs, STEPS);
	w->of[rank] = result(&before, profile_sums(p), bench_seconds() - t);
	w->of[rank].bytes = (double)(sent(c.ep, rank) - bytes) / STEPS;
	if (engine_stay(e, &err))
		die(&err);
	engine_free(e);
	ep_close(c.ep);
	exit(0);
}

/* The slower rank's figures count. */
static struct result run(struct way *w)
{
	static unsigned runs;
	pid_t pid[WORLD];
	bool failed = false;
	int status;

	snprintf(w->addr, sizeof(w->addr), "unix:/tmp/overlap-%d-%u", (int)getpid(), runs++);
	fflush(stdout);
	for (size_t r = 0; r < WORLD; r++) {
		pid[r] = fork();
		if (pid[r] == 0)
			rank_main(w, r);
	}
	for (size_t r = 0; r < WORLD; r++)
		failed |= waitpid(pid[r], &status, 0) != pid[r] || status;
	if (failed)
		exit(70);
	return w->of[0].step > w->of[1].step ? w->of[0] : w->of[1];
}

static void print_parts(const struct result *r)
{
	static const enum stage_id parts[] = { STAGE_ATTN0, STAGE_ATTN1, STAGE_DISPATCH, STAGE_SHARED, STAGE_MLP,
		STAGE_COMBINE };

	printf("  computes %.2f ms a step:", r->compute * 1e3);
	for (size_t i = 0; i < ARRAY_LEN(parts); i++)
		printf(" %s %.0f %%", stage_name(parts[i]), 100 * r->part[parts[i]] / r->compute);
	printf("; sends %.2f MB\n", r->bytes * 1e-6);
}

/* Returns whether the goal was reached. */
static bool measure(const struct work *k, struct result *shared)
{
	struct way base = { .work = k, .micro_batches = 1, .overlap = OVERLAP_NONE, .of = shared };
	struct make_options o = { .like = k->like, .out = base.dir, .seed = 1, .force = true };
	const char *build = getenv("DS_BUILD");
	double best = 1e9;
	struct make_plan plan;
	struct ds_err err;

	snprintf(base.dir, sizeof(base.dir), "%s/bench-data", build ? build : "build");
	mkdir(base.dir, 0777); /* another benchmark may have made it */
	snprintf(base.dir, sizeof(base.dir), "%s/bench-data/overlap-%s", build ? build : "build", k->name);
	if (make_model(&o, &plan, &err))
		die(&err);
	printf("%s: %zu sequence%s of %zu token%s behind %zu, on each of %d ranks\n", k->name, k->segs,
		k->segs > 1 ? "s" : "", k->rows, k->rows > 1 ? "s" : "", k->depth, WORLD);
	for (int round = 0; round < ROUNDS; round++) {
		struct way one = base, two = base;
		struct result a, b, free = run(&base);

		one.rate = two.rate = (uint64_t)(free.bytes / free.compute);
		two.micro_batches = 2;
		two.overlap = k->overlap;
		a = run(&one);
		b = run(&two);
		if (!round)
			print_parts(&free);
		printf("  link of %.2f GB/s: one micro-batch %.2f ms, two %.2f ms = %.2f of it, %.0f %% of the "
			"communication hidden, computing %.2f ms\n", (double)one.rate * 1e-9, a.step * 1e3,
			b.step * 1e3, b.step / a.step, 100 * b.hidden, b.compute * 1e3);
		best = b.step / a.step < best ? b.step / a.step : best;
	}
	printf("  %s: best %.2f, goal at most %.2f, ideal 0.50\n", k->name, best, k->goal);
	return best <= k->goal;
}

int main(void)
{
	struct result *shared = mmap(NULL, WORLD * sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
		-1, 0);

	if (shared == MAP_FAILED)
		return 71;
	for (size_t i = 0; i < ARRAY_LEN(works); i++)
		measure(&works[i], shared);
	return 0;
}
