/*
 * What being one of several ranks costs a step: the example model decoding one sequence with one thread, alone, in a
 * unit of one rank, and in units of two whose other rank has nothing to do but its experts.  Runs follow one another in
 * turn; medians.  Usage: unit [MODEL]
 */
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/random.h"
#include "engine/engine.h"
#include "ep/ep.h"
#include "limits.h"

enum { STEPS = 400, DEPTH = 64, ROUNDS = 5, WAYS = 4 };
#define MODEL "examples/models/tiny-r1"

static const struct way { const char *name; size_t world; const char *transport; } ways[WAYS] = {
	{ "alone", 0, NULL }, { "1 rank, shm", 1, "shm" }, { "2 ranks, shm", 2, "shm" }, { "2 ranks, tcp", 2, "tcp" },
};

static void die(const struct ds_err *err)
{
	fprintf(stderr, "unit: %s\n", err->text);
	exit(err->code);
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static double median(double *v, size_t n)
{
	qsort(v, n, sizeof(*v), by_size);
	return v[n / 2];
}

static struct ep *meet(const struct way *w, const char *addr, struct model *m, size_t rank, struct engine_config *c)
{
	struct ep_config u = { .tokens = 16 };
	struct ds_err err;
	struct ep *ep;

	u.unit = (struct unit_config){ .addr = addr, .rank = rank, .world = w->world, .transport = w->transport,
		.unit_timeout_ns = 30000000000, .peer_timeout_ns = 10000000000,
		.spin_ns = strcmp(w->transport, "shm") == 0 ? 100000 : 0 };
	engine_ep_shape(m, c, &u.shape);
	if (ep_open(&ep, &u, &err))
		die(&err);
	return ep;
}

/* Rank 0 steps, the others take part; the median step. */
static void rank_main(const struct way *w, const char *addr, size_t rank, double *out)
{
	struct engine_config c = { .threads = 1, .max_rows = 128, .max_segs = 1, .micro_batches = 1,
		.overlap = OVERLAP_DECODE };
	struct segment s = { .rows = DEPTH };
	static double times[STEPS];
	uint32_t ids[DEPTH];
	struct kv_seq kv = { 0 };
	struct kv_pool *pool;
	struct engine *e;
	struct model *m;
	struct ds_err err;

	if (model_open(&m, MODEL, &err))
		die(&err);
	if (w->world)
		c.ep = meet(w, addr, m, rank, &c);
	if (engine_new(&e, m, &c, &err) || engine_kv_pool(e, 16 << 20, &pool, &err))
		die(&err);
	for (size_t i = 0; i < DEPTH; i++)
		ids[i] = (uint32_t)(random_bits(1, i) % m->config.vocab);
	s.kv = &kv;
	s.tokens = ids;
	for (size_t i = 0; rank == 0 && i < STEPS; i++) {
		double t = bench_seconds();

		if (!kv_seq_reserve(&kv, pool, DEPTH + 1) || engine_step(e, &s, 1, &err))
			die(&err);
		times[i] = bench_seconds() - t;
		kv.length = DEPTH;
		s.rows = s.want_logits = 1;
		s.absorbed = true;
	}
	if (rank == 0)
		*out = median(times, STEPS);
	if (c.ep && engine_stay(e, &err))
		die(&err);
	ep_close(c.ep);
	exit(0);
}

static double run(const struct way *w, double *shared)
{
	static unsigned runs;
	size_t n = w->world ? w->world : 1;
	char addr[100];
	pid_t pid[2];
	bool failed = false;
	int status;

	snprintf(addr, sizeof(addr), "unix:/tmp/unit-bench-%d-%u", (int)getpid(), runs++);
	fflush(stdout);
	for (size_t r = 0; r < n; r++) {
		pid[r] = fork();
		if (pid[r] == 0)
			rank_main(w, addr, r, shared);
	}
	for (size_t r = 0; r < n; r++)
		failed |= waitpid(pid[r], &status, 0) != pid[r] || status;
	if (failed)
		exit(70);
	return *shared;
}

int main(void)
{
	double *shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	double v[WAYS][ROUNDS], alone;

	if (shared == MAP_FAILED)
		return 71;
	for (size_t round = 0; round < ROUNDS; round++)
		for (size_t i = 0; i < WAYS; i++)
			v[i][round] = run(&ways[i], shared);
	alone = median(v[0], ROUNDS);
	printf("a decode step of the example model, one sequence, one thread a rank; goal: 2 ranks cost under 50 us\n");
	for (size_t i = 0; i < WAYS; i++) {
		double t = median(v[i], ROUNDS);

		printf("  %-13s %7.1f us%s", ways[i].name, t * 1e6, i ? "" : "\n");
		if (i)
			printf(", %+.1f us\n", (t - alone) * 1e6);
	}
	return 0;
}
