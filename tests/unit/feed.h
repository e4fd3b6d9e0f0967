/* Bytes that a thread writes to a socket, or reads from it. */
#ifndef DS_TESTS_FEED_H
#define DS_TESTS_FEED_H

#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <sys/socket.h>

#include "tests/unit/tap.h"

#define S(s) s, sizeof(s) - 1

/* n bytes at p, in pieces of so many; of those that are read, how many came is left in piece. */
struct feed { int fd; const char *p; size_t n, piece; };

TAP_USED static void *feed(void *arg)
{
	struct feed *f = arg;

	for (size_t at = 0; at < f->n; at += f->piece) {
		size_t k = f->n - at < f->piece ? f->n - at : f->piece;

		if (send(f->fd, f->p + at, k, MSG_NOSIGNAL) < 0)
			break;
	}
	shutdown(f->fd, SHUT_WR);
	return NULL;
}

TAP_USED static void *drain(void *arg)
{
	struct feed *f = arg;
	size_t at = 0;
	ssize_t n;

	while (at < f->n && (n = recv(f->fd, (char *)(uintptr_t)f->p + at, f->n - at, 0)) > 0)
		at += (size_t)n;
	f->piece = at;
	return NULL;
}

#endif
