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
 * `ticket` holds the job's number above and the count of its unclaimed items below.  A thread claims an item by
 * lowering the count; as the number is part of the word, a thread that comes late cannot take an item of another job
 * for one of its own, and nobody need wait for it.
 */
struct pool {
	int threads; /* with the caller's */
	int spin;    /* looks at a word before going to sleep on it */
	pthread_t *helpers;
	struct pool_helper *args;
	char *desks; /* [threads, ISA_DESK] */
	int started;
	struct pool_watch *watch; /* or NULL: kernels/cpu/watch.c */

	/* set by the caller before the ticket is published, unchanged until all items are done */
	void (*fn)(void *arg, size_t i, int worker);
	void *arg;
	size_t first;   /* item i of the ticket is first + i */
	uint32_t count; /* items in the ticket */

	_Atomic uint64_t ticket;
	_Atomic uint32_t done;
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
