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

/* Works off items of the current job until none is left to claim. */
static void pool_work(struct pool *p, int worker)
{
	uint64_t t = atomic_load_explicit(&p->ticket, memory_order_acquire);

	while ((uint32_t)t != 0) {
		uint32_t count;

		if (!atomic_compare_exchange_weak_explicit(&p->ticket, &t, t - 1, memory_order_acq_rel,
			memory_order_acquire))
			continue;
		/* the item is ours, so the job cannot end and its fields stand still */
		count = p->count;
		p->fn(p->arg, p->first + (count - (uint32_t)t), worker);
		if (atomic_fetch_add(&p->done, 1) + 1 == count && atomic_load(&p->waiting)) {
			pthread_mutex_lock(&p->lock);
			pthread_cond_signal(&p->finished);
			pthread_mutex_unlock(&p->lock);
		}
		t = atomic_load_explicit(&p->ticket, memory_order_acquire);
	}
}

static bool pool_idle(struct pool *p)
{
	return (uint32_t)atomic_load(&p->ticket) == 0 && !atomic_load(&p->stop);
}

static void *pool_helper(void *arg)
{
	struct pool_helper *h = arg;
	struct pool *p = h->pool;

	isa_desk = p->desks + (size_t)h->worker * ISA_DESK;
	while (!atomic_load(&p->stop)) {
		for (int i = 0; i < p->spin && pool_idle(p); i++)
			pause_cpu();
		if (pool_idle(p)) {
			pthread_mutex_lock(&p->lock);
			atomic_fetch_add(&p->sleeping, 1);
			while (pool_idle(p))
				pthread_cond_wait(&p->work, &p->lock);
			atomic_fetch_sub(&p->sleeping, 1);
			pthread_mutex_unlock(&p->lock);
		}
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

void pool_share(struct pool *p, size_t n, void (*fn)(void *arg, size_t i, int worker), void *arg)
{
	isa_desk = p->desks;
	if (p->threads == 1 || n <= 1) {
		for (size_t i = 0; i < n; i++)
			fn(arg, i, 0);
		return;
	}
	for (size_t first = 0; first < n; first += p->count) {
		uint64_t number = (atomic_load_explicit(&p->ticket, memory_order_relaxed) >> 32) + 1;

		p->fn = fn;
		p->arg = arg;
		p->first = first;
		p->count = n - first > UINT32_MAX ? UINT32_MAX : (uint32_t)(n - first);
		atomic_store(&p->done, 0);
		atomic_store(&p->ticket, number << 32 | p->count);
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
	if (!p->desks) {
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
}
