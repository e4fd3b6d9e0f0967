/*
 * Ranks as processes, each with a mesh to all others and a transport, for tests and measurements: crew_start forks
 * them, each runs a function, whose result is its exit status.  A rank that is lost breaks the epoch; the next one is
 * begun among the others.
 */
#ifndef DS_TESTS_CREW_H
#define DS_TESTS_CREW_H

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "base/random.h"
#include "base/time.h"
#include "ep/transport.h"
#include "tests/unit/processes.h"

#define CREW_USED __attribute__((unused))

enum { CREW_MOST = 16 };

struct crew_config {
	const char *transport;
	size_t world;
	size_t bytes[SLOT_KINDS];
	struct link link;
	int64_t spin_ns, peer_timeout_ns;
	int (*run)(struct transport *t, size_t rank, const struct crew_config *c);
	const void *arg;
};

struct crew { size_t world; pid_t pids[CREW_MOST]; };

/* All processes': nobody leaves before all have done. */
static struct { _Atomic size_t done, expected, met; _Atomic int64_t hit_ns; } *crew_shared;

/* Of this rank: what its mesh told. */
struct crew_rank {
	struct transport *t;
	pthread_mutex_t lock;
	struct ranks members;
	_Atomic uint64_t epoch;     /* that should be begun */
	_Atomic int64_t lost_ns;    /* the last loss */
	char why[200];
};

static struct crew_rank crew_me;

static void crew_message(void *ctx, size_t from, unsigned type, const void *data, size_t n, const int *fds,
	size_t count)
{
	transport_message_in(((struct crew_rank *)ctx)->t, from, type, data, n, fds, count);
}

static void *crew_put(void *ctx, size_t from, const struct mesh_put *h)
{
	return transport_put_in(((struct crew_rank *)ctx)->t, from, h);
}

static void crew_put_done(void *ctx, size_t from, const struct mesh_put *h)
{
	transport_put_done(((struct crew_rank *)ctx)->t, from, h);
}

static void crew_lost(void *ctx, size_t from, const struct ds_err *why)
{
	struct crew_rank *me = ctx;

	pthread_mutex_lock(&me->lock);
	ranks_del(&me->members, from);
	snprintf(me->why, sizeof(me->why), "%.190s", why->text);
	pthread_mutex_unlock(&me->lock);
	atomic_store(&me->lost_ns, time_mono_ns());
	transport_break(me->t, atomic_fetch_add(&me->epoch, 1) + 1);
}

static void crew_timer(void *ctx)
{
	(void)ctx;
}

static const struct mesh_ops crew_ops = { crew_message, crew_put, crew_put_done, crew_lost, crew_timer };

CREW_USED static int crew_fail(size_t rank, const char *what, long long a, long long b)
{
	fprintf(stderr, "# rank %zu: %s (%lld, %lld)\n", rank, what, a, b);
	return 1;
}

/* The epoch that should be begun, until one is; the members are in `members`. */
CREW_USED static int crew_epoch(struct transport *t, size_t rank, struct ranks *members)
{
	struct ds_err err;
	int rc;

	do {
		uint64_t epoch = atomic_load(&crew_me.epoch);

		pthread_mutex_lock(&crew_me.lock);
		*members = crew_me.members;
		pthread_mutex_unlock(&crew_me.lock);
		rc = transport_epoch(t, epoch, members, &err);
	} while (rc == EP_BROKEN);
	return rc ? crew_fail(rank, err.text, 0, 0) : 0;
}

/* All have come here for the n-th time, n from 1: what an epoch has not sent when the next begins is lost. */
CREW_USED static void crew_meet(const struct crew_config *c, size_t n)
{
	crew_shared->met++;
	while (crew_shared->met < n * c->world)
		nap(MS / 5);
}

static int crew_run(const struct crew_config *c, size_t rank, int fds[CREW_MOST])
{
	struct mesh_config mc = { .rank = rank, .world = c->world, .peer_timeout_ns = c->peer_timeout_ns,
		.ops = &crew_ops, .ctx = &crew_me };
	struct transport_config tc = { .rank = rank, .world = c->world, .link = c->link, .spin_ns = c->spin_ns };
	struct ds_err err;
	int rc;

	memcpy(tc.bytes, c->bytes, sizeof(tc.bytes));
	crew_me = (struct crew_rank){ .lock = PTHREAD_MUTEX_INITIALIZER, .members = ranks_first(c->world), .epoch = 1 };
	if (mesh_new(&tc.mesh, &mc, &err) || transport_new(&crew_me.t, c->transport, &tc, &err))
		return crew_fail(rank, err.text, 0, 0);
	for (size_t r = 0; r < c->world; r++)
		if (r != rank)
			mesh_add(tc.mesh, r, fds[r]);
	rc = c->run(crew_me.t, rank, c);
	crew_shared->done++;
	while (!rc && crew_shared->done < crew_shared->expected)
		nap(MS);
	mesh_free(tc.mesh);
	transport_free(crew_me.t);
	return rc;
}

static void crew_start(struct crew *crew, const struct crew_config *c)
{
	int fds[CREW_MOST][CREW_MOST];

	crew->world = c->world;
	if (!crew_shared)
		crew_shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	crew_shared->done = 0;
	crew_shared->hit_ns = 0;
	crew_shared->met = 0;
	crew_shared->expected = c->world;
	for (size_t a = 0; a < c->world; a++)
		for (size_t b = 0; b < a; b++) {
			int fd[2];

			if (socket_pair(fd, !strcmp(c->transport, "tcp"))) {
				perror("# a pair of sockets");
				exit(1);
			}
			fds[a][b] = fd[0];
			fds[b][a] = fd[1];
		}
	fflush(stdout);
	for (size_t r = 0; r < c->world; r++) {
		crew->pids[r] = fork();
		if (crew->pids[r])
			continue;
		for (size_t a = 0; a < c->world; a++)
			for (size_t b = 0; b < c->world; b++)
				if (a != b && a != r)
					close(fds[a][b]);
		alarm(30); /* nothing here takes that long: a test that hangs fails */
		exit(crew_run(c, r, fds[r]));
	}
	for (size_t a = 0; a < c->world; a++)
		for (size_t b = 0; b < c->world; b++)
			if (a != b)
				close(fds[a][b]);
}

/* Waits for all; how many did not return 0, those not counted that are in `but`. */
static size_t crew_end(struct crew *crew, const struct ranks *but)
{
	size_t bad = 0;

	for (size_t r = 0; r < crew->world; r++) {
		int status = 0;

		waitpid(crew->pids[r], &status, 0);
		if (ranks_has(but, r) || (WIFEXITED(status) && !WEXITSTATUS(status)))
			continue;
		fprintf(stderr, "# rank %zu ends with status %x\n", r, status);
		bad++;
	}
	return bad;
}

/* This rank does not come to the end with the others. */
CREW_USED static void crew_hit(struct crew *crew, size_t r, int sig)
{
	int64_t none = 0;

	atomic_compare_exchange_strong(&crew_shared->hit_ns, &none, time_mono_ns());
	crew_shared->expected--;
	kill(crew->pids[r], sig);
}

CREW_USED static size_t crew_do(const struct crew_config *c)
{
	const struct ranks none = { { 0 } };
	struct crew crew;

	crew_start(&crew, c);
	return crew_end(&crew, &none);
}

#endif
