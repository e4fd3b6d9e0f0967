/*
 * Threads that share out the items of one job at a time.
 */
#ifndef DS_KERNELS_CPU_POOL_H
#define DS_KERNELS_CPU_POOL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/*
 * The items [lo, hi) of the job that a thread has still to do, with the job's number above them in one word, so that a
 * thread that comes late cannot take an item of another job for one of its own, and nobody need wait for it.  Its owner
 * takes the first item; who has nothing left takes the second half of another's and makes it its own.  So a thread goes
 * through memory in the order in which it lies, which is what caches and prefetching want, and all end together.
 */
struct pool_span {
	_Atomic uint64_t word;
} __attribute__((aligned(64)));

struct pool {
	int threads; /* with the caller's */
	int spin;    /* looks at a word before going to sleep on it */
	pthread_t *helpers;
	struct pool_helper *args;
	char *desks; /* [threads, ISA_DESK] */
	int started;
	struct pool_watch *watch; /* or NULL: kernels/cpu/watch.c */

	/* set by the caller before the spans are, unchanged until all items are done */
	void (*fn)(void *arg, size_t i, int worker);
	void *arg;
	size_t first;   /* item i of the spans is first + i */
	uint32_t count; /* items in them */

	struct pool_span *spans; /* [threads] */
	_Atomic uint32_t job;    /* its number, set when all spans are */
	_Atomic uint32_t done;   /* items */
	_Atomic int sleeping;  /* helpers asleep */
	_Atomic bool waiting;  /* the caller sleeps until all is done */
	_Atomic bool stop;
	pthread_mutex_t lock;
	pthread_cond_t work, finished;
};

int pool_init(struct pool *p, int threads, struct ds_err *err);
void pool_free(struct pool *p);
/* Runs fn on all items; what the kernels call, watched where somebody watches (kern_watch). */
void pool_run(struct pool *p, size_t n, void (*fn)(void *arg, size_t i, int worker), void *arg);
void pool_share(struct pool *p, size_t n, void (*fn)(void *arg, size_t i, int worker), void *arg); /* unwatched */

#endif
