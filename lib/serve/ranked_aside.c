/*
 * What may wait for others at length (a named pipe's other end, an address where nobody listens yet) is done by a
 * thread of its own, while the rank takes part in its unit's steps: they are not to wait for that.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "serve/ranked.h"

struct aside {
	int (*fn)(void *arg, struct ds_err *err);
	void *arg;
	struct ds_err err;
	int rc, done; /* done: an eventfd */
};

static void *run(void *arg)
{
	struct aside *a = arg;

	a->rc = a->fn(a->arg, &a->err);
	while (write(a->done, &(uint64_t){ 1 }, sizeof(uint64_t)) < 0 && errno == EINTR)
		;
	return NULL;
}

/* Signals are for the program's own thread. */
static int start(pthread_t *thread, struct aside *a, struct ds_err *err)
{
	sigset_t all, before;

	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &before);
	errno = pthread_create(thread, NULL, run, a);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return errno ? err_errno(err, DS_OS, "cannot make a thread") : 0;
}

/* Steps of the others, until it is done; not 0: the unit has failed. */
static int attend(struct work *w, const struct aside *a, struct ds_err *err)
{
	struct pollfd p[2] = { { .fd = a->done, .events = POLLIN }, { .fd = ranked_bell(w), .events = POLLIN } };
	bool busy = false;
	int rc = 0;

	while (!rc && !(p[0].revents & POLLIN)) {
		busy = false;
		rc = ranked_step(w, &busy, err);
		if (!rc && poll(p, 2, busy ? 0 : -1) < 0 && errno != EINTR)
			rc = err_errno(err, DS_OS, "cannot poll");
	}
	return rc;
}

int ranked_aside(struct work *w, int (*fn)(void *arg, struct ds_err *err), void *arg, struct ds_err *err)
{
	struct aside a = { .fn = fn, .arg = arg };
	pthread_t thread;
	int rc;

	if (!w->ranked)
		return fn(arg, err);
	a.done = eventfd(0, EFD_CLOEXEC);
	if (a.done < 0)
		return err_errno(err, DS_OS, "cannot make an event descriptor");
	rc = start(&thread, &a, err);
	if (!rc) {
		rc = attend(w, &a, err);
		if (rc)
			pthread_cancel(thread); /* the program ends, whatever it has half opened */
		pthread_join(thread, NULL);
		if (!rc && a.rc)
			*err = a.err;
		rc = rc ? rc : a.rc;
	}
	close(a.done);
	return rc;
}
