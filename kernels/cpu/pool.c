#include "kernels/cpu/pool.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/cpu/isa.h"

enum { SPIN = 4000 }; /* some tens of microseconds: longer than the gaps between the operations of a step */

struct pool_helper {
	struct pool *pool;
	int worker;
};

static void pause_cpu(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#endif
}

/* ---- spans: 32 bits of the job's number, 16 bits each of where it begins and ends ---- */

enum { SPAN_BITS = 16, SPAN_MOST = (1 << SPAN_BITS) - 1 };

static uint64_t span(uint64_t job, uint32_t lo, uint32_t hi)
{
	return job << 2 * SPAN_BITS | (uint64_t)lo << SPAN_BITS | hi;
}

static uint64_t span_job(uint64_t s) { return s >> 2 * SPAN_BITS; }
static uint32_t span_lo(uint64_t s) { return s >> SPAN_BITS & SPAN_MOST; }
static uint32_t span_hi(uint64_t s) { return s & SPAN_MOST; }

/* Takes the first item of the thread's own; *job: whose they are, or were. */
static bool take(struct pool *p, int worker, uint32_t *item, uint64_t *job)
{
	_Atomic uint64_t *word = &p->spans[worker].word;
	uint64_t s = atomic_load_explicit(word, memory_order_acquire);

	while (span_lo(s) < span_hi(s))
		if (atomic_compare_exchange_weak_explicit(word, &s, s + ((uint64_t)1 << SPAN_BITS),
			memory_order_acq_rel, memory_order_acquire)) {
			*item = span_lo(s);
			return true;
		}
	*job = span_job(s);
	return false;
}

/*
 * Takes the second half of what another thread has left of the job of which the thread had nothing more: an item, and
 * the rest as the thread's own.  Of that job alone: what the thread is to do of a later one may be put into its span at
 * any moment.
 */
static bool steal(struct pool *p, int worker, uint32_t *item, uint64_t job)
{
	for (int i = 1; i < p->threads; i++) {
		_Atomic uint64_t *word = &p->spans[(worker + i) % p->threads].word;
		uint64_t s = atomic_load_explicit(word, memory_order_acquire);

		while (span_job(s) == job && span_lo(s) < span_hi(s)) {
			uint32_t lo = span_lo(s), hi = span_hi(s), middle = lo + (hi - lo) / 2;

			if (!atomic_compare_exchange_weak_explicit(word, &s, s - hi + middle, memory_order_acq_rel,
				memory_order_acquire))
				continue;
			/* an item of the job is ours, so the job cannot end and nobody else writes our empty span */
			atomic_store_explicit(&p->spans[worker].word, span(job, middle + 1, hi), memory_order_release);
			*item = middle;
			return true;
		}
	}
	return false;
}

/* Works off items of the current job until none is left to take. */
static void pool_work(struct pool *p, int worker)
{
	uint32_t item, done = 0, count = 0;
	uint64_t job;

	while (take(p, worker, &item, &job) || steal(p, worker, &item, job)) {
		/* until the item is counted as done the job's fields stand still */
		count = p->count;
		p->fn(p->arg, p->first + item, worker);
		done++;
	}
	if (done && atomic_fetch_add(&p->done, done) + done == count && atomic_load(&p->waiting)) {
		pthread_mutex_lock(&p->lock);
		pthread_cond_signal(&p->finished);
		pthread_mutex_unlock(&p->lock);
	}
}

static bool pool_idle(struct pool *p, uint32_t seen)
{
	return atomic_load(&p->job) == seen && !atomic_load(&p->stop);
}

static void *pool_helper(void *arg)
{
	struct pool_helper *h = arg;
	struct pool *p = h->pool;
	uint32_t seen = 0;

	isa_desk = p->desks + (size_t)h->worker * ISA_DESK;
	while (!atomic_load(&p->stop)) {
		for (int i = 0; i < p->spin && pool_idle(p, seen); i++)
			pause_cpu();
		if (pool_idle(p, seen)) {
			pthread_mutex_lock(&p->lock);
			atomic_fetch_add(&p->sleeping, 1);
			while (pool_idle(p, seen))
				pthread_cond_wait(&p->work, &p->lock);
			atomic_fetch_sub(&p->sleeping, 1);
			pthread_mutex_unlock(&p->lock);
		}
		seen = atomic_load(&p->job);
		pool_work(p, h->worker);
	}
	return NULL;
}

static void pool_wake(struct pool *p)
{
	if (atomic_load(&p->sleeping) == 0)
		return;
	pthread_mutex_lock(&p->lock);
	pthread_cond_broadcast(&p->work);
	pthread_mutex_unlock(&p->lock);
}

static void pool_wait(struct pool *p)
{
	for (int i = 0; i < p->spin; i++) {
		if (atomic_load(&p->done) == p->count)
			return;
		pause_cpu();
	}
	pthread_mutex_lock(&p->lock);
	atomic_store(&p->waiting, true);
	while (atomic_load(&p->done) != p->count)
		pthread_cond_wait(&p->finished, &p->lock);
	atomic_store(&p->waiting, false);
	pthread_mutex_unlock(&p->lock);
}

/* Shares the job's items out evenly; who runs ahead of the others steals. */
static void publish(struct pool *p)
{
	uint32_t job = atomic_load_explicit(&p->job, memory_order_relaxed) + 1;
	uint64_t threads = (uint64_t)p->threads;

	atomic_store(&p->done, 0);
	for (uint64_t i = 0; i < threads; i++)
		atomic_store_explicit(&p->spans[i].word, span(job, (uint32_t)(i * p->count / threads),
			(uint32_t)((i + 1) * p->count / threads)), memory_order_release);
	atomic_store(&p->job, job);
}

void pool_share(struct pool *p, size_t n, void (*fn)(void *arg, size_t i, int worker), void *arg)
{
	isa_desk = p->desks;
	if (p->threads == 1 || n <= 1) {
		for (size_t i = 0; i < n; i++)
			fn(arg, i, 0);
		return;
	}
	for (size_t first = 0; first < n; first += p->count) {
		p->fn = fn;
		p->arg = arg;
		p->first = first;
		p->count = n - first > SPAN_MOST ? SPAN_MOST : (uint32_t)(n - first);
		publish(p);
		pool_wake(p);
		pool_work(p, 0);
		pool_wait(p);
	}
}

static int cpus(void)
{
	cpu_set_t set;

	return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

int pool_init(struct pool *p, int threads, struct ds_err *err)
{
	size_t n = (size_t)threads - 1;

	memset(p, 0, sizeof(*p));
	p->threads = threads;
	/* with more threads than CPUs a spinning one keeps another from its work */
	p->spin = threads <= cpus() ? SPIN : 0;
	pthread_mutex_init(&p->lock, NULL);
	pthread_cond_init(&p->work, NULL);
	pthread_cond_init(&p->finished, NULL);
	p->desks = aligned_alloc(64, (size_t)threads * ISA_DESK); /* touched by gemm alone, so not cleared */
	p->spans = mem_aligned((size_t)threads * sizeof(*p->spans));
	if (!p->desks || !p->spans) {
		pool_free(p);
		return err_nomem(err, (size_t)threads * ISA_DESK, "the threads' working memory");
	}
	if (n == 0)
		return 0;
	p->helpers = mem_calloc(n, sizeof(*p->helpers));
	p->args = mem_calloc(n, sizeof(*p->args));
	if (!p->helpers || !p->args) {
		pool_free(p);
		return err_nomem(err, n * sizeof(*p->helpers), "threads");
	}
	for (; p->started < threads - 1; p->started++) {
		struct pool_helper *h = &p->args[p->started];
		int rc;

		h->pool = p;
		h->worker = p->started + 1;
		rc = pthread_create(&p->helpers[p->started], NULL, pool_helper, h);
		if (rc) {
			pool_free(p);
			return err_set(err, DS_OS, "cannot start thread %d of %d: %s", h->worker + 1, threads,
				strerror(rc));
		}
	}
	return 0;
}

void pool_free(struct pool *p)
{
	atomic_store(&p->stop, true);
	pthread_mutex_lock(&p->lock);
	pthread_cond_broadcast(&p->work);
	pthread_mutex_unlock(&p->lock);
	for (int i = 0; i < p->started; i++)
		pthread_join(p->helpers[i], NULL);
	pthread_cond_destroy(&p->finished);
	pthread_cond_destroy(&p->work);
	pthread_mutex_destroy(&p->lock);
	free(p->helpers);
	free(p->args);
	free(p->desks);
	free(p->spans);
}
