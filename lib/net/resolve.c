/* A thread of its own asks, which is left behind where it takes too long, and ends by itself. */
#include "net/resolve.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/mem.h"

enum { MOST = 16 /* that ask at a time */ };

struct question {
	pthread_mutex_t lock;
	pthread_cond_t answered;
	bool done, left; /* left: nobody waits any more */
	char host[256], port[16];
	bool passive;
	int rc;
	struct addrinfo *list;
};

static _Atomic int asking;

static int ask(const char *host, const char *port, bool passive, int flags, struct addrinfo **list)
{
	const struct addrinfo hints = { .ai_socktype = SOCK_STREAM,
		.ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0) | flags };

	*list = NULL;
	return getaddrinfo(host, port, &hints, list);
}

static void discard(struct question *q)
{
	if (q->list)
		freeaddrinfo(q->list);
	pthread_cond_destroy(&q->answered);
	pthread_mutex_destroy(&q->lock);
	free(q);
}

static void *run(void *arg)
{
	struct question *q = arg;
	struct addrinfo *list;
	int rc = ask(q->host, q->port, q->passive, 0, &list);
	bool left;

	atomic_fetch_sub(&asking, 1);
	pthread_mutex_lock(&q->lock);
	q->rc = rc;
	q->list = rc ? NULL : list;
	q->done = true;
	left = q->left;
	pthread_cond_signal(&q->answered);
	pthread_mutex_unlock(&q->lock);
	if (left)
		discard(q);
	return NULL;
}

static struct question *new_question(const char *host, const char *port, bool passive)
{
	struct question *q = mem_calloc(1, sizeof *q);
	pthread_condattr_t attr;

	if (!q)
		return NULL;
	snprintf(q->host, sizeof q->host, "%s", host);
	snprintf(q->port, sizeof q->port, "%s", port);
	q->passive = passive;
	pthread_mutex_init(&q->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&q->answered, &attr);
	pthread_condattr_destroy(&attr);
	return q;
}

/* Signals are for other threads. */
static bool start(struct question *q)
{
	sigset_t all, before;
	pthread_t thread;
	int rc;

	if (atomic_fetch_add(&asking, 1) >= MOST) {
		atomic_fetch_sub(&asking, 1);
		return false;
	}
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &before);
	rc = pthread_create(&thread, NULL, run, q);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (rc)
		atomic_fetch_sub(&asking, 1);
	else
		pthread_detach(thread);
	return !rc;
}

int resolve_until(const char *host, const char *port, bool passive, int64_t until, struct addrinfo **list)
{
	const struct timespec at = { .tv_sec = until / 1000000000, .tv_nsec = until % 1000000000 };
	int rc = until ? ask(host, port, passive, AI_NUMERICHOST, list) : ask(host, port, passive, 0, list);
	struct question *q;
	bool done;

	if (!until || rc != EAI_NONAME) /* numbers need nobody */
		return rc;
	q = new_question(host, port, passive);
	if (!q || !start(q)) {
		if (q)
			discard(q);
		return EAI_AGAIN;
	}
	pthread_mutex_lock(&q->lock);
	while (!q->done && pthread_cond_timedwait(&q->answered, &q->lock, &at) != ETIMEDOUT)
		;
	done = q->done;
	q->left = !done;
	pthread_mutex_unlock(&q->lock);
	if (!done)
		return EAI_AGAIN;
	rc = q->rc;
	*list = q->list;
	q->list = NULL;
	discard(q);
	return rc;
}
