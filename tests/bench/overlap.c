/*
 * How much of the communication two micro-batches hide: two ranks with one thread each, the network between them
 * imitated so that it takes as long as what they compute, one micro-batch that waits for its transfers against two in
 * the published orders.  The ideal is half the time.
 *
 * Both ways to run it are units of the same two processes and take turns, so that a machine that changes its pace
 * changes it for both.  The geometries are chosen so that the published orders can hide all: in decode what lies under
 * DISPATCH (SHARED, ATTN-0) and COMBINE (ATTN-1) takes as long as they do, MLP, which has nothing under it, little; in
 * prefill ATTN, SHARED and MLP take a third each.  Every token goes to both experts, one on each rank: the ranks' loads
 * are even, which is the balancers' work and not measured here.  The first attention and the last transfers of a step
 * have nothing beside them, about a layer's worth: hence a dozen layers, of the model's 61.
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

enum { WORLD = 2, MOST_ROWS = 1024, MOST_SEGS = 128, PROBES = 3, ROUNDS = 5 };

/* What is measured: `segs` sequences of `rows` new tokens each behind `depth` old ones. */
struct work { const char *name, *like; enum overlap overlap; size_t segs, rows, depth; double goal; };
static const struct work works[] = {
	{ "decode", "examples/bench/overlap-decode.json", OVERLAP_DECODE, 64, 1, 1024, 0.60 },
	{ "prefill", "examples/bench/overlap-prefill.json", OVERLAP_PREFILL, 2, 256, 0, 0.55 },
};

enum way { ONE, TWO, WAYS };

/* Seconds. */
struct result { double step, compute, exposed, part[STAGE_COUNT]; };

/* What the ranks tell each other and the parent; a step of the unit lies between writing and reading. */
static struct shared {
	struct probe { double seconds, compute, bytes; } probe[PROBES][WORLD];
	struct result of[ROUNDS][WAYS][WORLD];
} *shared;

/* A rank of one unit. */
struct member { struct ep *ep; struct engine *e; struct profile *p; };

static void die(const struct ds_err *err)
{
	fprintf(stderr, "overlap: %s\n", err->text);
	exit(err->code);
}

static struct ep *meet(const struct work *k, struct model *m, size_t rank, int n, uint64_t rate,
	struct engine_config *c)
{
	struct ep_config u = { .tokens = MOST_ROWS };
	struct ds_err err;
	struct ep *ep;
	char addr[100];

	snprintf(addr, sizeof(addr), "unix:/tmp/overlap-%d-%s-%d", (int)getppid(), k->name, n);
	u.unit = (struct unit_config){ .addr = addr, .rank = rank, .world = WORLD, .transport = "shm",
		.unit_timeout_ns = 30000000000, .peer_timeout_ns = 10000000000, .spin_ns = 100000,
		.link = { .rate = rate } };
	engine_ep_shape(m, c, &u.shape);
	if (ep_open(&ep, &u, &err))
		die(&err);
	return ep;
}

static struct member join(const struct work *k, struct model *m, size_t rank, enum way way, int n, uint64_t rate)
{
	struct engine_config c = { .threads = 1, .max_rows = MOST_ROWS, .max_segs = MOST_SEGS,
		.overlap = way == TWO ? k->overlap : OVERLAP_NONE, .micro_batches = way == TWO ? 2 : 1 };
	struct profile_options o = { .program = "overlap", .stats = true };
	struct member u;
	struct ds_err err;

	u.ep = c.ep = meet(k, m, rank, n, rate, &c);
	if (engine_new(&u.e, m, &c, &err) || profile_new(&u.p, &o, &err) || engine_set_profile(u.e, u.p, NULL, &err))
		die(&err);
	return u;
}

static void leave(struct member *u)
{
	struct ds_err err;

	if (engine_stay(u->e, &err))
		die(&err);
	engine_free(u->e);
	profile_free(u->p);
	ep_close(u->ep);
}

/* All units have sequences of one shape: they use the same. */
static void make_sequences(const struct work *k, const struct model *m, struct engine *e, size_t rank,
	struct segment *segs)
{
	static struct kv_seq seqs[MOST_SEGS];
	static uint32_t ids[MOST_ROWS];
	struct kv_pool *pool;
	struct ds_err err;

	if (engine_kv_pool(e, (uint64_t)4 << 30, &pool, &err))
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
}

static struct result step(const struct work *k, struct member *u, struct segment *segs)
{
	struct profile_sums a = *profile_sums(u->p);
	const struct profile_sums *b = profile_sums(u->p);
	struct result r = { .step = bench_seconds() };
	struct ds_err err;

	for (size_t s = 0; s < k->segs; s++)
		segs[s].kv->length = k->depth;
	if (engine_step(u->e, segs, k->segs, &err))
		die(&err);
	r.step = bench_seconds() - r.step;
	for (int i = 0; i < STAGE_COUNT; i++) {
		r.part[i] = (double)(b->stage[i].ns - a.stage[i].ns) * 1e-9;
		if (i == STAGE_WAIT_DISPATCH || i == STAGE_WAIT_COMBINE)
			r.exposed += r.part[i];
		else if (i != STAGE_VOTE)
			r.compute += r.part[i];
	}
	return r;
}

static double sent(struct ep *ep, size_t rank)
{
	struct transport_peer p;

	transport_stat(unit_transport(ep_unit(ep)), 1 - rank, &p);
	return (double)p.sent_bytes;
}

/* Three steps of a unit with a link of this rate (0: no limit): the sums, the same in both ranks. */
static struct probe probe(const struct work *k, struct model *m, size_t rank, int n, uint64_t rate,
	struct segment *segs)
{
	struct member u = join(k, m, rank, ONE, n, rate);
	struct probe *of = shared->probe[n], *own = &of[rank];

	if (!segs->kv)
		make_sequences(k, m, u.e, rank, segs);
	step(k, &u, segs);
	own->bytes = -sent(u.ep, rank);
	for (size_t i = 0; i < 3; i++) {
		struct result r = step(k, &u, segs);

		own->seconds += r.step;
		own->compute += r.compute;
	}
	own->bytes += sent(u.ep, rank);
	step(k, &u, segs);
	leave(&u);
	return (struct probe){ of[0].seconds + of[1].seconds, of[0].compute + of[1].compute,
		of[0].bytes + of[1].bytes };
}

/* The rate with which one micro-batch waits as long as it computes.  The first guess is not it: ranks that wait compute
 * at another pace than those that do not, and wait for each other. */
static uint64_t calibrate(const struct work *k, struct model *m, size_t rank, struct segment *segs)
{
	struct probe p = probe(k, m, rank, 0, 0, segs);
	double rate = p.bytes / p.compute;

	for (int n = 1; n < PROBES; n++) {
		p = probe(k, m, rank, n, (uint64_t)rate, segs);
		rate *= (p.seconds - p.compute) / p.compute;
	}
	return (uint64_t)rate;
}

static void rank_main(const struct work *k, const char *dir, size_t rank)
{
	static struct segment segs[MOST_SEGS];
	struct member u[WAYS];
	uint64_t rate;
	struct model *m;
	struct ds_err err;

	if (model_open(&m, dir, &err))
		die(&err);
	rate = calibrate(k, m, rank, segs);
	for (enum way way = ONE; way < WAYS; way++) {
		u[way] = join(k, m, rank, way, PROBES + (int)way, rate);
		step(k, &u[way], segs);
	}
	for (size_t i = 0; i < ROUNDS; i++)
		for (enum way way = ONE; way < WAYS; way++)
			shared->of[i][way][rank] = step(k, &u[way], segs);
	for (enum way way = ONE; way < WAYS; way++)
		leave(&u[way]);
	exit(0);
}

static void run(const struct work *k, const char *dir)
{
	pid_t pid[WORLD];
	bool failed = false;
	int status;

	memset(shared, 0, sizeof(*shared));
	fflush(stdout);
	for (size_t r = 0; r < WORLD; r++) {
		pid[r] = fork();
		if (pid[r] == 0)
			rank_main(k, dir, r);
	}
	for (size_t r = 0; r < WORLD; r++)
		failed |= waitpid(pid[r], &status, 0) != pid[r] || status;
	if (failed)
		exit(70);
}

/* Of both ranks. */
static struct result mean(size_t round, enum way way)
{
	struct result m = { .step = 0 };

	for (size_t r = 0; r < WORLD; r++) {
		const struct result *s = &shared->of[round][way][r];

		m.step += s->step / WORLD;
		m.compute += s->compute / WORLD;
		m.exposed += s->exposed / WORLD;
		for (int i = 0; i < STAGE_COUNT; i++)
			m.part[i] += s->part[i] / WORLD;
	}
	return m;
}

static void print_parts(const struct result *r)
{
	static const enum stage_id parts[] = { STAGE_ATTN0, STAGE_ATTN1, STAGE_SHARED, STAGE_MLP };

	printf("  computes %.0f ms a step:", r->compute * 1e3);
	for (size_t i = 0; i < ARRAY_LEN(parts); i++)
		printf(" %s %.0f %%", stage_name(parts[i]), 100 * r->part[parts[i]] / r->compute);
	printf("\n");
}

static int by_value(const void *a, const void *b)
{
	const double *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

static void report(const struct work *k)
{
	double ratio[ROUNDS];

	for (size_t i = 0; i < ROUNDS; i++) {
		struct result a = mean(i, ONE), b = mean(i, TWO);

		if (!i)
			print_parts(&a);
		ratio[i] = b.step / a.step;
		printf("  one micro-batch %.0f ms, %.0f computing and %.0f waiting; two %.0f ms, %.0f and %.0f: %.3f "
			"of it, %.0f %% of the communication hidden\n", a.step * 1e3, a.compute * 1e3, a.exposed * 1e3,
			b.step * 1e3, b.compute * 1e3, b.exposed * 1e3, ratio[i],
			100 * (1 - b.exposed / a.exposed));
	}
	qsort(ratio, ROUNDS, sizeof(*ratio), by_value);
	printf("  %s: median %.3f, goal at most %.2f, ideal 0.50\n", k->name, ratio[ROUNDS / 2], k->goal);
}

static void measure(const struct work *k)
{
	const char *build = getenv("DS_BUILD");
	char dir[300];
	struct make_options o = { .like = k->like, .out = dir, .seed = 1, .force = true };
	struct make_plan plan;
	struct ds_err err;

	snprintf(dir, sizeof(dir), "%s/bench-data", build ? build : "build");
	mkdir(dir, 0777); /* another benchmark may have made it */
	snprintf(dir, sizeof(dir), "%s/bench-data/overlap-%s", build ? build : "build", k->name);
	if (make_model(&o, &plan, &err))
		die(&err);
	printf("%s: %zu sequence%s of %zu token%s behind %zu, on each of %d ranks\n", k->name, k->segs,
		k->segs > 1 ? "s" : "", k->rows, k->rows > 1 ? "s" : "", k->depth, WORLD);
	run(k, dir);
	report(k);
}

int main(void)
{
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED)
		return 71;
	for (size_t i = 0; i < ARRAY_LEN(works); i++)
		measure(&works[i]);
	return 0;
}
