/*
 * What may block for long (names that are looked up, a directory that is locked), on a thread of its own, which is left
 * behind where nobody waits for it any more, and ends by itself.
 */
#ifndef DS_NET_ASIDE_H
#define DS_NET_ASIDE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* The first member of what the work needs, which belongs to the one who leaves it last. */
struct aside {
	void (*run)(struct aside *a);     /* the work, on the thread */
	void (*over)(struct aside *a);    /* on the thread, where somebody waits still; may be NULL */
	void (*discard)(struct aside *a); /* frees it, and what the work brought */
	/* aside.c's */
	pthread_mutex_t lock;
	pthread_cond_t cond;
	bool done, left;
};

/* Begins the work.  False: it cannot (errno), and a was discarded. */
bool aside_start(struct aside *a);
bool aside_done(struct aside *a);
/* Until it is done, or the clock (CLOCK_MONOTONIC) is at `until`. */
bool aside_wait(struct aside *a, int64_t until);
/* Nobody waits for it any more: now, or when it is done, it is discarded.  When this returns over() is not called. */
void aside_leave(struct aside *a);

#endif
