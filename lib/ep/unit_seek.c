/*
 * A rank's way to the unit's address: it listens there where nobody does, else it says what it is to who does.
 *
 * This is how a rank meets the others, how one that was cut off finds the unit again, and how the lowest rank of a unit
 * whose holder has gone makes the unit known again.  Two units that meet so (they were one) become one: the smaller
 * one's ranks come to the greater.
 */
#include "ep/unit_impl.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/log.h"
#include "base/time.h"

static const int64_t first_pause = 5 * UNIT_MS, most_pause = 200 * UNIT_MS, most_pause_running = 1000 * UNIT_MS,
	refused_pause = 5000 * UNIT_MS;

static void seek_event(void *arg, int fd, uint32_t events);

static void close_socket(struct unit *u)
{
	struct ds_err err;

	if (u->seek.io.fd >= 0)
		mesh_watch(u->mesh, u->seek.io.fd, 0, NULL, NULL, &err);
	meet_io_free(&u->seek.io);
	u->seek.io.seen = false;
}

void unit_seek_stop(struct unit *u)
{
	close_socket(u);
	u->seek.state = SEEK_OFF;
	u->seek.unanswered = false;
}

static void wait_until(struct unit *u, int64_t pause)
{
	close_socket(u);
	u->seek.state = SEEK_PAUSE;
	u->seek.due_ns = time_mono_ns() + pause;
	unit_timers(u);
}

void unit_seek(struct unit *u, int64_t pause_ns)
{
	if (u->door || u->closing || u->seek.state == SEEK_TRYING)
		return;
	if (u->seek.state == SEEK_OFF)
		u->seek.pause_ns = first_pause;
	wait_until(u, pause_ns);
}

/* Again, later and later. */
static void again(struct unit *u)
{
	int64_t most = u->m.begun ? most_pause_running : most_pause, pause = u->seek.pause_ns;

	u->seek.pause_ns = 2 * pause < most ? 2 * pause : most;
	wait_until(u, pause);
}

/* ---- asking who holds the address ---- */

static void ask(struct unit *u)
{
	struct meet_table *t = NULL;
	struct ds_err err;
	size_t n = 0;
	bool ok;

	if (unit_listen(u, u->seek.io.fd, &err)) {
		u->seek.why = err;
		unit_fail(u, &err);
		again(u);
		return;
	}
	if (u->m.begun) {
		t = unit_table(u, &n);
		if (t)
			unit_table_host(u, t, u->seek.io.fd);
	}
	err_set(&u->seek.why, DS_UNAVAILABLE, "who is there does not answer as a rank does"); /* until it does */
	u->hello.floor = member_floor(&u->m);
	ok = meet_write(&u->seek.io, MEET_HELLO, &u->hello, sizeof(u->hello), t, n);
	free(t);
	if (!ok || mesh_watch(u->mesh, u->seek.io.fd, u->seek.io.out.len ? EPOLLIN | EPOLLOUT : EPOLLIN, seek_event, u,
		&err)) {
		again(u);
		return;
	}
	u->seek.state = SEEK_ASKED;
	/* A unit begins when all have come; one that runs answers soon, where it can. */
	u->seek.due_ns = u->m.begun ? time_mono_ns() + u->c.peer_timeout_ns / 2 + 100 * UNIT_MS : 0;
	unit_timers(u);
}

static bool connected(struct unit *u)
{
	int why = 0;
	socklen_t n = sizeof(why);

	if (getsockopt(u->seek.io.fd, SOL_SOCKET, SO_ERROR, &why, &n))
		why = errno;
	errno = why;
	if (why)
		err_errno(&u->seek.why, DS_UNAVAILABLE, "cannot connect to '%s'", u->c.addr);
	return why == 0;
}

static void go_there(struct unit *u, const void *data)
{
	const struct meet_table *t = data;
	struct meet_table *own = mem_copy(t, meet_table_bytes(t->count));

	unit_seek_stop(u);
	if (own)
		unit_take_table(u, own);
	free(own);
}

static void refused(struct unit *u, const void *data)
{
	const struct meet_refusal *r = data;
	struct ds_err err;

	err_set(&err, (int)r->code, "%s", r->text);
	unit_fail(u, &err);
	if (u->m.begun && !u->seek.complained)
		log_msg(LOG_WARN, "cannot join the unit again: %s", r->text);
	u->seek.complained = true;
	wait_until(u, refused_pause);
}

static void answered(struct unit *u)
{
	enum meet_type type;
	const void *data;
	size_t n;
	int rc = meet_read(&u->seek.io, &type, &data, &n);

	if (rc == 0)
		return;
	u->seek.unanswered = false;
	log_msg(LOG_DEBUG, "unit: answer %d, type %d", rc, rc == 1 ? (int)type : 0);
	if (rc == 1 && type == MEET_TABLE && meet_table_ok(data, n, u->c.world))
		go_there(u, data);
	else if (rc == 1 && type == MEET_REFUSAL && meet_refusal_ok(data, n))
		refused(u, data);
	else
		again(u);
}

static void seek_event(void *arg, int fd, uint32_t events)
{
	struct unit *u = arg;
	struct ds_err err;

	(void)fd;
	pthread_mutex_lock(&u->lock);
	if (u->seek.state == SEEK_CONNECTING) {
		if (connected(u))
			ask(u);
		else
			again(u);
	} else if (u->seek.state == SEEK_ASKED) {
		if (events & EPOLLOUT && meet_flush(&u->seek.io) && !u->seek.io.out.len)
			mesh_watch(u->mesh, u->seek.io.fd, EPOLLIN, seek_event, u, &err);
		if (events & ~(uint32_t)EPOLLOUT)
			answered(u);
	}
	unit_after(u);
	pthread_mutex_unlock(&u->lock);
}

/* ---- holding it, or finding who does ---- */

static void hold(struct unit *u, int fd)
{
	struct ds_err err;

	unit_seek_stop(u);
	log_msg(LOG_DEBUG, "unit: holds '%s'", u->c.addr);
	if (unit_door_open(u, fd, &err)) {
		close(fd);
		unit_fail(u, &err);
	} else if (u->m.begun && u->door) {
		unit_tell_holder(u);
	}
}

static void attempt(struct unit *u)
{
	struct ds_err err;

	if (unit_try(u, u->m.begun && u->seek.unanswered && !u->minor, &err)) {
		u->seek.why = err;
		again(u);
		return;
	}
	u->seek.state = SEEK_TRYING;
	if (!*u->seek.why.text)
		err_set(&u->seek.why, DS_UNAVAILABLE, "its name is not resolved yet, or its directory is locked");
}

static void tried(struct unit *u, const struct unit_tried *r)
{
	struct ds_err err;

	if (r->held >= 0) {
		hold(u, r->held);
		return;
	}
	log_msg(LOG_DEBUG, "unit: %s", r->why_not_held.text);
	if (!r->taken && !u->m.begun && r->why_not_held.code != DS_UNAVAILABLE) {
		unit_fail(u, &r->why_not_held);
		u->seek.state = SEEK_OFF;
		return;
	}
	if (r->fd < 0) {
		u->seek.why = r->why;
		if (r->why.code == DS_CONFIG)
			unit_fail(u, &r->why);
		again(u);
		return;
	}
	u->seek.io.fd = r->fd;
	u->seek.state = SEEK_CONNECTING;
	if (mesh_watch(u->mesh, r->fd, EPOLLOUT, seek_event, u, &err))
		again(u);
}

void unit_tried_here(void *arg)
{
	struct unit *u = arg;
	struct unit_tried r;

	pthread_mutex_lock(&u->lock);
	if (u->seek.state != SEEK_TRYING)
		unit_try_drop(u);
	else if (unit_try_take(u, &r))
		tried(u, &r);
	unit_after(u);
	pthread_mutex_unlock(&u->lock);
}

void unit_seek_timer(struct unit *u, int64_t now)
{
	if (u->seek.state != SEEK_PAUSE && (u->seek.state != SEEK_ASKED || !u->seek.due_ns))
		return;
	if (now < u->seek.due_ns)
		return;
	if (u->seek.state == SEEK_ASKED)
		u->seek.unanswered = true;
	close_socket(u);
	u->seek.state = SEEK_OFF;
	attempt(u);
}

void unit_seek_quit(struct unit *u)
{
	double seconds = (double)u->c.unit_timeout_ns / 1e9;
	struct ds_err err;

	if (u->seek.state == SEEK_ASKED && meet_write(&u->seek.io, MEET_QUIT, NULL, 0, NULL, 0))
		return; /* who holds the address will say who is missing */
	if (u->m.newcomer || u->m.begun)
		err_set(&err, DS_UNAVAILABLE, "unit '%s': rank %zu was not taken in within %g s", u->c.addr,
			u->c.rank, seconds);
	else
		err_set(&err, DS_UNAVAILABLE, "unit '%s': nobody to meet there within %g s: %s", u->c.addr, seconds,
			u->seek.why.text);
	unit_fail(u, &err);
}
