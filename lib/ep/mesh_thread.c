/*
 * The thread of a mesh: events, what other threads left for it (connections with something new to send, connections
 * that were dropped, calls), and what is due.  Connections are freed here alone, between rounds of events.
 */
#include "ep/mesh_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/time.h"

enum { EVENTS = 64, LAST_WORDS_NS = 100000000 };

void mesh_arm(struct mesh *m, struct conn *c, bool out)
{
	struct epoll_event ev = { .events = EPOLLIN | (out ? EPOLLOUT : 0), .data.ptr = c };

	if (c->blocked != out && !c->dropped)
		epoll_ctl(m->epoll, EPOLL_CTL_MOD, c->fd, &ev);
	c->blocked = out;
}

void mesh_lose(struct conn *c, const struct ds_err *why)
{
	struct mesh *m = c->mesh;
	bool mine;

	mesh_lock(m);
	mine = mesh_forsake(m, c->peer, c);
	mesh_unlock(m);
	if (!mine)
		return;
	epoll_ctl(m->epoll, EPOLL_CTL_DEL, c->fd, NULL);
	conn_close(c);
	m->cfg.ops->lost(m->cfg.ctx, c->peer, why);
}

static struct conn *mesh_peer(struct mesh *m, size_t r)
{
	struct conn *c;

	mesh_lock(m);
	c = m->peers[r];
	mesh_unlock(m);
	return c;
}

/* What is called once the mesh is being freed. */

static void *no_put(void *ctx, size_t from, const struct mesh_put *h)
{
	(void)ctx, (void)from, (void)h;
	return NULL;
}

static void no_put_done(void *ctx, size_t from, const struct mesh_put *h)
{
	(void)ctx, (void)from, (void)h;
}

static void no_lost(void *ctx, size_t from, const struct ds_err *why)
{
	(void)ctx, (void)from, (void)why;
}

static void no_message(void *ctx, size_t from, unsigned type, const void *data, size_t n, const int *fds,
	size_t fd_count)
{
	(void)ctx, (void)from, (void)type, (void)data, (void)n;
	for (size_t i = 0; i < fd_count; i++)
		close(fds[i]);
}

static void no_timer(void *ctx)
{
	(void)ctx;
}

static const struct mesh_ops mesh_deaf = { no_message, no_put, no_put_done, no_lost, no_timer };

static void mesh_event(struct mesh *m, const struct epoll_event *ev)
{
	const struct source *s = ev->data.ptr;
	struct conn *c = ev->data.ptr;
	struct watch *w = ev->data.ptr;
	uint64_t count;

	switch (s->kind) {
	case SOURCE_WAKE:
		if (read(m->wake, &count, sizeof(count)) < 0)
			return;
		mesh_lock(m);
		m->woken = false;
		mesh_unlock(m);
		return;
	case SOURCE_TIMER:
		(void)!read(m->timer, &count, sizeof(count));
		return;
	case SOURCE_CONN:
		if (ev->events & ~(uint32_t)EPOLLOUT)
			conn_read(c, m->now);
		if (ev->events & EPOLLOUT)
			conn_write(c, m->now);
		return;
	case SOURCE_WATCH:
		if (!w->dead)
			w->fn(w->arg, w->fd, ev->events);
		return;
	}
}

static void mesh_free_watches(struct mesh *m, bool all)
{
	mesh_lock(m);
	for (struct watch **at = &m->watches; *at;) {
		struct watch *w = *at;

		if (!w->dead && !all) {
			at = &w->next;
			continue;
		}
		*at = w->next;
		free(w);
	}
	mesh_unlock(m);
}

static void mesh_run_calls(struct call *call)
{
	while (call) {
		struct call *next = call->next;
		bool owned = call->owned;

		call->fn(call->arg); /* one that is not owned may be gone after this */
		if (owned)
			free(call);
		call = next;
	}
}

static void mesh_write_dirty(struct mesh *m, struct conn *c)
{
	while (c) {
		struct conn *next;

		mesh_lock(m);
		next = c->next_dirty;
		c->dirty = false;
		mesh_unlock(m);
		if (!c->blocked)
			conn_write(c, m->now);
		c = next;
	}
}

static void mesh_free_gone(struct mesh *m, struct conn *c)
{
	while (c) {
		struct conn *next = c->next_gone;

		if (c->fd >= 0)
			epoll_ctl(m->epoll, EPOLL_CTL_DEL, c->fd, NULL);
		conn_free(c);
		c = next;
	}
}

static void mesh_lose_failed(struct mesh *m, const struct ranks *failed)
{
	for (size_t r = ranks_next(failed, 0); r < m->cfg.world; r = ranks_next(failed, r + 1)) {
		struct conn *c = mesh_peer(m, r);
		struct ds_err err;

		err_set(&err, DS_OS, "no memory for what goes to it");
		if (c)
			mesh_lose(c, &err);
		else
			m->cfg.ops->lost(m->cfg.ctx, r, &err);
	}
}

/* What was left for the thread; false: nothing. */
static bool mesh_serve(struct mesh *m)
{
	struct conn *dirty, *gone;
	struct ranks failed;
	struct call *calls;
	bool any;

	mesh_lock(m);
	dirty = m->dirty;
	gone = m->gone;
	failed = m->failed;
	any = m->any_failed;
	if (any)
		m->failed = (struct ranks){ { 0 } };
	m->any_failed = false;
	calls = m->calls;
	m->dirty = m->gone = NULL;
	m->calls = NULL;
	m->last_call = &m->calls;
	mesh_unlock(m);
	mesh_write_dirty(m, dirty);
	mesh_free_gone(m, gone);
	if (any)
		mesh_lose_failed(m, &failed);
	mesh_run_calls(calls);
	return dirty || gone || calls || any;
}

static void sooner(int64_t *at, int64_t t)
{
	if (t && (!*at || t < *at))
		*at = t;
}

static void mesh_lose_silent(struct conn *c, int64_t silence)
{
	struct ds_err err;

	err_set(&err, DS_UNAVAILABLE, "silent for %.1f s", (double)silence * 1e-9);
	mesh_lose(c, &err);
}

/* Asks, and gives up, those that are waited for; when to look again.  late: this thread did not run for a while, so
 * that nothing can be said of others. */
static int64_t mesh_look_after(struct mesh *m, size_t r, bool late)
{
	int64_t limit = m->cfg.peer_timeout_ns, silence, since;
	struct parcel *ping;
	struct conn *c;

	mesh_lock(m);
	c = m->peers[r];
	if (late)
		m->since_ns[r] = m->now;
	since = m->since_ns[r];
	mesh_unlock(m);
	if (!c)
		return 0;
	since = c->heard_ns > since ? c->heard_ns : since;
	silence = m->now - since;
	if (c->pinged_ns < since)
		c->pinged_ns = 0;
	if (c->pinged_ns && silence >= limit) {
		mesh_lose_silent(c, silence);
		return 0;
	}
	if (!c->pinged_ns && silence >= limit / 4) {
		ping = parcel_new(WIRE_PING, NULL, NULL, 0, false);
		if (!ping)
			return m->now + limit / 4;
		mesh_lock(m);
		parcels_add(&c->control, ping);
		mesh_mark_dirty(m, c);
		mesh_unlock(m);
		c->pinged_ns = m->now;
	}
	return since + (c->pinged_ns ? limit : limit / 4);
}

/* When something is due next; 0: never. */
static int64_t mesh_due(struct mesh *m)
{
	bool late = m->deadline_ns && m->now - m->deadline_ns > m->cfg.peer_timeout_ns / 4;
	int64_t at = m->stop_ns, timer;
	struct ranks who = { { 0 } };

	for (size_t r = 0; r < m->cfg.world; r++) {
		struct conn *c;

		if (m->hold_ns[r] && m->hold_ns[r] <= m->now) {
			m->hold_ns[r] = 0;
			c = mesh_peer(m, r);
			if (c && !c->blocked)
				conn_write(c, m->now);
		}
		sooner(&at, m->hold_ns[r]);
	}
	mesh_lock(m);
	for (size_t i = 0; i < MESH_ASKERS; i++)
		for (size_t k = 0; k < ARRAY_LEN(who.bits); k++)
			who.bits[k] |= m->expected[i].bits[k];
	mesh_unlock(m);
	for (size_t r = ranks_next(&who, 0); r < m->cfg.world; r = ranks_next(&who, r + 1))
		sooner(&at, mesh_look_after(m, r, late));
	mesh_lock(m);
	timer = m->timer_ns;
	if (timer && timer <= m->now)
		m->timer_ns = 0;
	mesh_unlock(m);
	if (!timer || timer > m->now) {
		sooner(&at, timer);
		return at;
	}
	m->cfg.ops->timer(m->cfg.ctx);
	mesh_lock(m);
	sooner(&at, m->timer_ns);
	mesh_unlock(m);
	return at;
}

static void mesh_sleep_until(struct mesh *m, int64_t at)
{
	struct itimerspec t = { .it_value = { at / 1000000000, at % 1000000000 } };

	if (at != m->deadline_ns)
		timerfd_settime(m->timer, TFD_TIMER_ABSTIME, &t, NULL);
	m->deadline_ns = at;
}

static bool mesh_all_sent(struct mesh *m)
{
	bool all = true;

	mesh_lock(m);
	for (size_t r = 0; r < m->cfg.world; r++) {
		const struct conn *c = m->peers[r];

		all = all && !(c && (c->out || c->control.first || (c->puts.first && !m->hold_ns[r])));
	}
	mesh_unlock(m);
	return all;
}

static bool mesh_pending(struct mesh *m)
{
	bool any;

	mesh_lock(m);
	any = m->dirty || m->gone || m->calls || m->any_failed;
	mesh_unlock(m);
	return any;
}

static bool mesh_over(struct mesh *m)
{
	bool stopping;

	mesh_lock(m);
	stopping = m->stopping;
	mesh_unlock(m);
	if (!stopping)
		return false;
	if (!m->stop_ns) {
		m->stop_ns = m->now + LAST_WORDS_NS;
		m->cfg.ops = &mesh_deaf;
	}
	return m->now >= m->stop_ns || mesh_all_sent(m);
}

static void mesh_end(struct mesh *m)
{
	mesh_lock(m);
	for (size_t r = 0; r < m->cfg.world; r++)
		mesh_forsake(m, r, NULL);
	mesh_unlock(m);
	while (mesh_serve(m))
		;
	mesh_free_watches(m, true);
}

void *mesh_run(void *arg)
{
	struct mesh *m = arg;
	struct epoll_event ev[EVENTS];
	int64_t due;

	mesh_here = m;
	for (;;) {
		int n = epoll_wait(m->epoll, ev, EVENTS, -1);

		m->now = time_mono_ns();
		for (int i = 0; i < n; i++)
			mesh_event(m, &ev[i]);
		do {
			while (mesh_serve(m))
				;
			m->now = time_mono_ns();
			if (mesh_over(m)) {
				mesh_end(m);
				return NULL;
			}
			due = mesh_due(m);
		} while (mesh_pending(m) || (due && due <= time_mono_ns()));
		mesh_free_watches(m, false);
		mesh_sleep_until(m, due);
	}
}
