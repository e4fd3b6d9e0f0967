/*
 * What each thread did in a job: the items are run through a function that keeps, for every thread, when it began its
 * first and ended its last one.  The pool itself knows nothing of it.
 */
#include <stdlib.h>

#include "base/mem.h"
#include "base/time.h"
#include "kernels/cpu/stream.h"

struct pool_watch {
	void (*tell)(void *ctx, int worker, size_t items, int64_t begin, int64_t end);
	void *ctx;
	/* the job */
	void (*fn)(void *arg, size_t i, int worker);
	void *arg;
	struct seen {
		int64_t begin, end;
		size_t items;
	} __attribute__((aligned(64))) *seen; /* [threads], each written by its thread alone */
};

static void watched_item(void *arg, size_t i, int worker)
{
	struct pool_watch *w = arg;
	struct seen *s = &w->seen[worker];

	if (!s->items++)
		s->begin = time_mono_ns();
	w->fn(w->arg, i, worker);
	s->end = time_mono_ns();
}

void pool_run(struct pool *p, size_t n, void (*fn)(void *arg, size_t i, int worker), void *arg)
{
	struct pool_watch *w = p->watch;

	if (!w) {
		pool_share(p, n, fn, arg);
		return;
	}
	w->fn = fn;
	w->arg = arg;
	for (int i = 0; i < p->threads; i++)
		w->seen[i].items = 0;
	pool_share(p, n, watched_item, w);
	for (int i = 0; i < p->threads; i++)
		if (w->seen[i].items)
			w->tell(w->ctx, i, w->seen[i].items, w->seen[i].begin, w->seen[i].end);
}

static void watch_free(struct pool *p)
{
	if (p->watch)
		free(p->watch->seen);
	free(p->watch);
	p->watch = NULL;
}

int kern_watch(struct kern_stream *s, void (*tell)(void *ctx, int worker, size_t items, int64_t begin, int64_t end),
	void *ctx, struct ds_err *err)
{
	size_t bytes = (size_t)s->pool.threads * sizeof(struct seen);
	struct pool_watch *w;

	watch_free(&s->pool);
	if (!tell)
		return 0;
	w = mem_calloc(1, sizeof(*w));
	if (w)
		w->seen = mem_aligned(bytes);
	if (!w || !w->seen) {
		free(w);
		return err_nomem(err, bytes, "watching threads");
	}
	w->tell = tell;
	w->ctx = ctx;
	s->pool.watch = w;
	return 0;
}
