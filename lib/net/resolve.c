#include "net/resolve.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "net/aside.h"

enum { MOST = 16 /* that ask at a time */ };

struct question {
	struct aside aside; /* first */
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

static void ask_aside(struct aside *a)
{
	struct question *q = (struct question *)a;

	q->rc = ask(q->host, q->port, q->passive, 0, &q->list);
	if (q->rc)
		q->list = NULL;
	atomic_fetch_sub(&asking, 1);
}

static void discard(struct aside *a)
{
	struct question *q = (struct question *)a;

	if (q->list)
		freeaddrinfo(q->list);
	free(q);
}

static struct question *begin(const char *host, const char *port, bool passive)
{
	struct question *q = NULL;

	if (atomic_fetch_add(&asking, 1) < MOST)
		q = mem_calloc(1, sizeof *q);
	if (q) {
		*q = (struct question){ .aside = { .run = ask_aside, .discard = discard }, .passive = passive };
		snprintf(q->host, sizeof q->host, "%s", host);
		snprintf(q->port, sizeof q->port, "%s", port);
	}
	if (q && aside_start(&q->aside))
		return q;
	atomic_fetch_sub(&asking, 1);
	return NULL;
}

int resolve_until(const char *host, const char *port, bool passive, int64_t until, struct addrinfo **list)
{
	int rc = until ? ask(host, port, passive, AI_NUMERICHOST, list) : ask(host, port, passive, 0, list);
	struct question *q;

	if (!until || rc != EAI_NONAME) /* numbers need nobody */
		return rc;
	q = begin(host, port, passive);
	rc = EAI_AGAIN;
	if (q && aside_wait(&q->aside, until)) {
		rc = q->rc;
		*list = q->list;
		q->list = NULL;
	}
	if (q)
		aside_leave(&q->aside);
	return rc;
}
