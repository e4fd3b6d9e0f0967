#include "net/aside.h"

#include <errno.h>
#include <signal.h>
#include <time.h>

static void discard(struct aside *a)
{
	pthread_cond_destroy(&a->cond);
	pthread_mutex_destroy(&a->lock);
	a->discard(a);
}

static void *run(void *arg)
{
	struct aside *a = arg;
	bool left;

	a->run(a);
	pthread_mutex_lock(&a->lock);
	a->done = true;
	left = a->left;
	if (!left && a->over)
		a->over(a);
	pthread_cond_signal(&a->cond);
	pthread_mutex_unlock(&a->lock);
	if (left)
		discard(a);
	return NULL;
}

/* Signals are for other threads. */
bool aside_start(struct aside *a)
{
	pthread_condattr_t clock;
	sigset_t all, before;
	pthread_t thread;
	int rc;

	a->done = a->left = false;
	pthread_mutex_init(&a->lock, NULL);
	pthread_condattr_init(&clock);
	pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
	pthread_cond_init(&a->cond, &clock);
	pthread_condattr_destroy(&clock);
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &before);
	rc = pthread_create(&thread, NULL, run, a);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (rc)
		discard(a);
	else
		pthread_detach(thread);
	errno = rc;
	return !rc;
}

bool aside_done(struct aside *a)
{
	bool done;

	pthread_mutex_lock(&a->lock);
	done = a->done;
	pthread_mutex_unlock(&a->lock);
	return done;
}

bool aside_wait(struct aside *a, int64_t until)
{
	const struct timespec at = { .tv_sec = until / 1000000000, .tv_nsec = until % 1000000000 };
	bool done;

	pthread_mutex_lock(&a->lock);
	while (!a->done && pthread_cond_timedwait(&a->cond, &a->lock, &at) != ETIMEDOUT)
		;
	done = a->done;
	pthread_mutex_unlock(&a->lock);
	return done;
}

void aside_leave(struct aside *a)
{
	bool done;

	pthread_mutex_lock(&a->lock);
	a->left = true;
	done = a->done;
	pthread_mutex_unlock(&a->lock);
	if (done)
		discard(a);
}
