/*
 * Lists that a signal handler reads without a lock: who takes something away waits until no handler reads, and then
 * frees it.  A handler that does not come back keeps it for ever, in the program's last moments.
 */
#ifndef DS_BASE_LOOKING_H
#define DS_BASE_LOOKING_H

#include <stdatomic.h>
#include <time.h>

/* What is found after this stays until looking_end.  Both for signal handlers. */
static inline void looking_begin(_Atomic int *looking)
{
	atomic_fetch_add(looking, 1);
}

static inline void looking_end(_Atomic int *looking)
{
	atomic_fetch_sub(looking, 1);
}

/* After it was taken off the list, with no lock held that a handler needs. */
static inline void looking_wait(_Atomic int *looking)
{
	while (atomic_load(looking))
		nanosleep(&(struct timespec){ .tv_nsec = 100000 }, NULL);
}

#endif
