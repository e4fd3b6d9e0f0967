/*
 * Cuts the products of a group into tasks: a range of rows times a range of weight rows.  The cut decides who works on
 * what, never in which order a sum is taken.
 */
#include "kernels/cpu/stream.h"

#include "base/mem.h"

enum {
	BATCH = 128,          /* products handed out at a time */
	ROWS = 64,            /* rows a task: what pays for converting a weight to the arithmetic's type */
	TASK_MACS = 1 << 19,  /* aim: some microseconds */
	ALONE = 8,            /* times as much for a thread that shares with nobody */
	ALONE_MACS = 1 << 17, /* not worth waking anybody */
	LEAST_N = 16,
	PANEL_N = 64,
};

struct job {
	const struct gemm *g;
	size_t first; /* number of its first task */
	size_t m, n;  /* rows and weight rows a task */
	size_t cuts_n;
};

struct batch {
	const struct isa *isa;
	struct job jobs[BATCH];
	size_t count;
};

static size_t div_up(size_t a, size_t b)
{
	return (a + b - 1) / b;
}

/* Weight rows a task: some microseconds' worth, so that nobody waits long for the last; in whole blocks of scales, or
 * in parts of one that divide it. */
static size_t task_rows(const struct gemm *g, size_t m, int threads, size_t fair)
{
	size_t cols = g->w->cols ? g->w->cols : 1, n;

	/* a weight row costs at least what reading it from memory takes, some four rows' worth of arithmetic */
	n = TASK_MACS / (cols * (m < 4 ? 4 : m));
	if (threads == 1)
		n *= ALONE;
	if (n > fair)
		n = fair;
	if (m > 8 && n < PANEL_N) /* packing rows pays when many weight rows use them */
		n = fair < PANEL_N ? PANEL_N / 2 : PANEL_N;
	if (n >= FP8_BLOCK)
		return n / FP8_BLOCK * FP8_BLOCK;
	for (m = LEAST_N; 2 * m <= n; m *= 2)
		;
	return m;
}

static size_t cut(struct job *j, const struct gemm *g, int threads, size_t products)
{
	size_t cuts_m = div_up(g->rows, ROWS);

	j->g = g;
	j->m = div_up(g->rows, cuts_m);
	j->n = task_rows(g, j->m, threads, div_up(g->w->rows * cuts_m * products, 8 * (size_t)threads));
	j->cuts_n = div_up(g->w->rows, j->n);
	return cuts_m * j->cuts_n;
}

static void run_task(void *arg, size_t i, int worker)
{
	const struct batch *b = arg;
	size_t lo = 0, hi = b->count, m0, n0;
	const struct job *j;

	(void)worker;
	while (hi - lo > 1) {
		size_t mid = lo + (hi - lo) / 2;

		if (b->jobs[mid].first <= i)
			lo = mid;
		else
			hi = mid;
	}
	j = &b->jobs[lo];
	i -= j->first;
	/* rows change fastest, so that the weights of one range are still in the cache */
	m0 = i % div_up(j->g->rows, j->m) * j->m;
	n0 = i / div_up(j->g->rows, j->m) * j->n;
	b->isa->gemm(j->g, m0, m0 + j->m < j->g->rows ? m0 + j->m : j->g->rows,
		n0, n0 + j->n < j->g->w->rows ? n0 + j->n : j->g->w->rows);
}

void kern_gemm(struct kern_stream *s, const struct gemm *g, size_t count)
{
	struct batch b;

	b.isa = s->isa;
	isa_desk = s->pool.desks;
	for (size_t at = 0; at < count;) {
		size_t tasks = 0, macs = 0;

		for (b.count = 0; at < count && b.count < BATCH; at++) {
			struct job *j = &b.jobs[b.count];

			if (g[at].rows == 0 || g[at].w->rows == 0)
				continue;
			j->first = tasks;
			tasks += cut(j, &g[at], s->pool.threads, count < BATCH ? count : BATCH);
			macs += g[at].rows * g[at].w->rows * g[at].w->cols;
			b.count++;
		}
		if (macs > ALONE_MACS) {
			pool_run(&s->pool, tasks, run_task, &b);
			continue;
		}
		for (size_t i = 0; i < b.count; i++)
			s->isa->gemm(b.jobs[i].g, 0, b.jobs[i].g->rows, 0, b.jobs[i].g->w->rows);
	}
}
