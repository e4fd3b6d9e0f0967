/* A unit's beginning and end. */
#include "ep/unit_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <sys/random.h>
#include <time.h>

#include "base/log.h"
#include "base/time.h"
#include "base/version.h"

enum { OWN_TERMS = 3, VERDICT_MS = 1000 };

/* ---- making ---- */

static void add_term(struct unit *u, const char *name, const char *value)
{
	struct unit_term *t = &u->hello.term[u->hello.terms++];

	snprintf(t->name, sizeof(t->name), "%s", name);
	snprintf(t->value, sizeof(t->value), "%s", value);
}

/* What must agree of all ranks of all units, before the caller's. */
static int set_hello(struct unit *u, struct ds_err *err)
{
	const struct unit_config *c = &u->c;
	char bytes[60];

	if (c->term_count > MEET_TERMS - OWN_TERMS)
		return err_set(err, DS_BUG, "%zu terms of a unit", c->term_count);
	u->hello.self.rank = (uint32_t)c->rank;
	u->hello.world = (uint32_t)c->world;
	if (getrandom(&u->hello.self.incarnation, sizeof(uint64_t), 0) != sizeof(uint64_t))
		return err_errno(err, DS_OS, "cannot make a random number");
	add_term(u, "version", DS_VERSION);
	add_term(u, "transport", c->transport);
	for (size_t i = 0; i < c->term_count; i++)
		add_term(u, c->terms[i].name, c->terms[i].value);
	snprintf(bytes, sizeof(bytes), "%zu + %zu bytes", c->bytes[SLOT_DISPATCH], c->bytes[SLOT_COMBINE]);
	add_term(u, "buffer", bytes);
	return 0;
}

static int check(struct unit *u, const struct unit_config *c, struct ds_err *err)
{
	u->c = *c;
	if (c->world == 0 || c->world > EP_MAX_WORLD || c->rank >= c->world)
		return err_set(err, DS_CONFIG, "rank %zu of %zu makes no sense: 0 to %zu of at most %d", c->rank,
			c->world, c->world ? c->world - 1 : 0, EP_MAX_WORLD);
	if (addr_parse(c->addr, &u->addr, err))
		return err->code;
	if (u->addr.kind != ADDR_UNIX && u->addr.kind != ADDR_TCP)
		return err_set(err, DS_USAGE, "ranks cannot meet at '%s': unix:PATH or tcp:HOST:PORT", c->addr);
	if (c->transport && !strcmp(c->transport, "shm") && u->addr.kind != ADDR_UNIX)
		return err_set(err, DS_USAGE, "--transport shm: ranks that meet at '%s' may be on several machines; "
			"use --unit unix:PATH, or --transport tcp", c->addr);
	if (u->addr.kind == ADDR_TCP && !strcmp(u->addr.port, "0") && c->world > 1)
		return err_set(err, DS_USAGE, "ranks cannot meet at '%s': the port is to be the same for all, not any",
			c->addr);
	u->c.addr = u->addr.text;
	u->c.bytes[SLOT_VOTE] = sizeof(struct unit_ballot);
	if (!c->transport)
		u->c.transport = u->addr.kind == ADDR_UNIX ? "shm" : "tcp";
	return set_hello(u, err);
}

static int allocate(struct unit *u, struct ds_err *err)
{
	size_t w = u->c.world;

	u->peer = mem_calloc(w, sizeof(*u->peer));
	u->ballots = mem_calloc(w, sizeof(*u->ballots));
	u->rows = mem_calloc(w, sizeof(*u->rows));
	if (!u->peer || !u->ballots || !u->rows)
		return err_nomem(err, w * sizeof(*u->peer), "the ranks of a unit");
	for (size_t r = 0; r < w; r++)
		u->peer[r].connecting = -1;
	return member_init(&u->m, u->c.rank, w, &unit_member_ops, u, err);
}

static int start_threads(struct unit *u, struct ds_err *err)
{
	struct mesh_config mc = { .rank = u->c.rank, .world = u->c.world, .peer_timeout_ns = u->c.peer_timeout_ns,
		.ops = &unit_mesh_ops, .ctx = u };
	struct transport_config tc = { .rank = u->c.rank, .world = u->c.world, .link = u->c.link,
		.spin_ns = u->c.spin_ns };

	memcpy(tc.bytes, u->c.bytes, sizeof(tc.bytes));
	if (mesh_new(&u->mesh, &mc, err))
		return err->code;
	tc.mesh = u->mesh;
	return transport_new(&u->transport, u->c.transport, &tc, err);
}

static void free_unit(struct unit *u)
{
	unit_try_drop(u);
	mesh_free(u->mesh);
	transport_free(u->transport);
	member_free(&u->m);
	unit_plan_free(u);
	free(u->peer);
	free(u->ballots);
	free(u->rows);
	pthread_cond_destroy(&u->cond);
	pthread_mutex_destroy(&u->lock);
	free(u);
}

static int make(struct unit **out, const struct unit_config *c, struct ds_err *err)
{
	struct unit *u = mem_calloc(1, sizeof(*u));
	pthread_condattr_t attr;

	if (!u)
		return err_nomem(err, sizeof(*u), "a unit");
	pthread_mutex_init(&u->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&u->cond, &attr);
	pthread_condattr_destroy(&attr);
	u->holder = UNIT_NOBODY;
	u->listener = u->seek.io.fd = -1;
	u->opening = true;
	if (check(u, c, err) || allocate(u, err) || start_threads(u, err)) {
		free_unit(u);
		return err->code;
	}
	*out = u;
	return 0;
}

/* ---- meeting ---- */

static void start_here(void *arg)
{
	struct unit *u = arg;

	pthread_mutex_lock(&u->lock);
	unit_seek(u, 0);
	unit_timers(u);
	pthread_mutex_unlock(&u->lock);
}

static void late_here(void *arg)
{
	struct unit *u = arg;

	pthread_mutex_lock(&u->lock);
	if (u->door && u->m.now.epoch == 0)
		unit_door_late(u);
	else if (u->m.now.epoch == 0)
		unit_seek_quit(u);
	unit_after(u);
	pthread_mutex_unlock(&u->lock);
}

static struct timespec monotonic(int64_t ns)
{
	return (struct timespec){ .tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000 };
}

/* Waits until the unit is there, it has failed, or that time. */
static bool wait_open(struct unit *u, int64_t until)
{
	struct timespec at = monotonic(until);
	bool done;

	pthread_mutex_lock(&u->lock);
	while (!(done = u->failed || u->m.now.epoch))
		if (pthread_cond_timedwait(&u->cond, &u->lock, &at))
			break;
	pthread_mutex_unlock(&u->lock);
	return done;
}

/* Who holds the address does not say who is missing. */
static int no_verdict(struct unit *u, struct ds_err *err)
{
	pthread_mutex_lock(&u->lock);
	err_set(err, DS_UNAVAILABLE, "unit '%s' was not complete within %g s%s%s", u->c.addr,
		(double)u->c.unit_timeout_ns / 1e9, *u->seek.why.text ? ": " : "", u->seek.why.text);
	pthread_mutex_unlock(&u->lock);
	return err->code;
}

/* Who came to the address, but could not be connected to. */
static void tell_absent(const struct unit *u)
{
	struct ranks absent = ranks_minus(&u->began, &u->m.now.ranks);
	size_t n = ranks_count(&u->m.now.ranks);
	char names[600];

	if (ranks_count(&absent) == 0)
		return;
	meet_names(&absent, names, sizeof(names));
	log_msg(LOG_WARN, "unit: %s came to '%s' but could not be connected to; %zu rank%s begin%s", names, u->c.addr,
		n, plural(n), n == 1 ? "s" : "");
}

static int meet(struct unit *u, struct ds_err *err)
{
	int64_t until = time_mono_ns() + u->c.unit_timeout_ns;

	if (mesh_call(u->mesh, start_here, u, err))
		return err->code;
	if (!wait_open(u, until)) {
		if (mesh_call(u->mesh, late_here, u, err))
			return err->code;
		if (!wait_open(u, time_mono_ns() + VERDICT_MS * UNIT_MS))
			return no_verdict(u, err);
	}
	pthread_mutex_lock(&u->lock);
	if (u->failed)
		*err = u->why;
	else
		tell_absent(u);
	u->opening = false;
	u->noticed_ns = 0;
	unit_expect(u);
	pthread_mutex_unlock(&u->lock);
	return u->failed ? err->code : 0;
}

/* ---- leaving ---- */

struct leave { struct unit *u; bool done; };

static void leave_here(void *arg)
{
	struct leave *l = arg;
	struct unit *u = l->u;
	struct msg_leave msg = { .over = u->over && !member_changing(&u->m) };
	struct ds_err err;

	pthread_mutex_lock(&u->lock);
	u->closing = true;
	unit_seek_stop(u);
	unit_try_drop(u);
	unit_door_close(u); /* before the others hear of it: one of them takes the address */
	unit_unlisten(u);
	unit_stop_connecting(u);
	for (size_t r = ranks_next(&u->m.connected, 0); r < u->c.world; r = ranks_next(&u->m.connected, r + 1))
		if (r != u->c.rank)
			mesh_send(u->mesh, r, UNIT_LEAVE, &msg, sizeof(msg), NULL, 0, &err);
	l->done = true;
	pthread_cond_broadcast(&u->cond);
	pthread_mutex_unlock(&u->lock);
}

/* All have to see that the unit is over before the first goes: it would be one that is missed. */
static void wait_finished(struct unit *u)
{
	struct timespec at = monotonic(time_mono_ns() + u->c.peer_timeout_ns);
	uint64_t epoch = u->epoch;
	bool all = false;

	while (u->over && !all && u->m.now.epoch == epoch && !member_changing(&u->m)) {
		all = true;
		for (size_t r = ranks_next(&u->m.now.ranks, 0); r < u->c.world; r = ranks_next(&u->m.now.ranks, r + 1))
			all &= r == u->c.rank || u->peer[r].finished;
		if (!all && pthread_cond_timedwait(&u->cond, &u->lock, &at))
			break;
	}
}

void unit_close(struct unit *u)
{
	struct leave l = { .u = u };
	struct ds_err err;

	if (!u)
		return;
	if (!mesh_call(u->mesh, leave_here, &l, &err)) {
		pthread_mutex_lock(&u->lock);
		while (!l.done)
			pthread_cond_wait(&u->cond, &u->lock);
		wait_finished(u);
		pthread_mutex_unlock(&u->lock);
	}
	free_unit(u);
}

int unit_open(struct unit **u, const struct unit_config *c, struct ds_err *err)
{
	struct ds_err why;

	*u = NULL;
	if (make(u, c, err))
		return err->code;
	if (!meet(*u, &why))
		return 0;
	unit_close(*u);
	*u = NULL;
	*err = why;
	return err->code;
}

/* ---- reports ---- */

void unit_planned(const struct unit *u, uint64_t *id, int64_t *pause_ns)
{
	*id = u->planned_id;
	*pause_ns = u->planned_ns;
}

void unit_stat(const struct unit *cu, struct unit_stat *s)
{
	struct unit *u = (struct unit *)(uintptr_t)cu; /* the lock changes, nothing else */

	pthread_mutex_lock(&u->lock);
	*s = u->stat;
	s->epoch = u->m.now.epoch;
	s->members = u->m.now.ranks;
	pthread_mutex_unlock(&u->lock);
}
