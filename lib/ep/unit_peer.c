/*
 * Connections between two ranks.  Each listens for the others beside the unit's address; who connects says first which
 * unit and which process it means.  In a unit that begins the higher rank connects to the lower; a newcomer connects to
 * all.
 */
#include "ep/unit_impl.h"

#include <errno.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/log.h"
#include "base/time.h"

enum { MORE_GUESTS = 64 }; /* than ranks */

struct unit_guest {
	struct unit *u;
	int fd;
	size_t got;
	struct meet_intro intro;
	struct unit_guest *next;
};

/* ---- who connects to this rank ---- */

/* Takes it off the list; its descriptor stays open where `keep`. */
static void guest_remove(struct unit *u, struct unit_guest *g, bool keep)
{
	struct unit_guest **at = &u->guests;
	struct ds_err err;

	while (*at != g)
		at = &(*at)->next;
	*at = g->next;
	u->guest_n--;
	mesh_watch(u->mesh, g->fd, 0, NULL, NULL, &err);
	if (!keep)
		close(g->fd);
	free(g);
}

static void welcome(struct unit *u, struct unit_guest *g)
{
	size_t r = g->intro.from.rank;
	int fd = g->fd;

	u->peer[r].entry = g->intro.from;
	u->peer[r].plan_sent = 0;
	memset(&u->peer[r].said, 0, sizeof(u->peer[r].said));
	guest_remove(u, g, true);
	mesh_add(u->mesh, r, fd);
	member_connected(&u->m, r);
}

/* One who has said who it is.  Before this rank knows the unit it is kept. */
static void guest_judge(struct unit *u, struct unit_guest *g)
{
	const struct meet_intro *i = &g->intro;
	size_t r = i->from.rank;

	if (u->nonce == 0)
		return;
	if (i->nonce != u->nonce || i->incarnation != u->hello.self.incarnation || r == u->c.rank) {
		guest_remove(u, g, false);
	} else if (!i->join) {
		/* of a unit that begins; or it has been given up meanwhile */
		if (ranks_has(&u->m.want.ranks, r) && !ranks_has(&u->m.connected, r) && u->m.now.epoch == 0 &&
			i->from.incarnation == u->peer[r].entry.incarnation)
			welcome(u, g);
		else
			guest_remove(u, g, false);
	} else if (u->m.newcomer || !u->m.begun || unit_distrusts(u, &i->from)) {
		guest_remove(u, g, false); /* this rank is none that takes others in, or not this one */
	} else {
		if (ranks_has(&u->m.connected, r) || ranks_has(&u->m.want.ranks, r))
			unit_lose(u, r); /* that was another process, or another attempt */
		welcome(u, g);
	}
}

static void review_guests(struct unit *u)
{
	struct unit_guest *next;

	for (struct unit_guest *g = u->guests; g; g = next) {
		next = g->next;
		if (g->got == sizeof(g->intro))
			guest_judge(u, g);
	}
}

static void guest_event(void *arg, int fd, uint32_t events)
{
	struct unit_guest *g = arg;
	struct unit *u = g->u;
	char *at = (char *)&g->intro + g->got;
	struct ds_err err;
	ssize_t n = 0; /* after the introduction its end is all that is waited for: the rest is the mesh's to read */

	(void)events;
	pthread_mutex_lock(&u->lock);
	if (g->got < sizeof(g->intro))
		n = recv(fd, at, sizeof(g->intro) - g->got, MSG_DONTWAIT);
	if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
		guest_remove(u, g, false);
	} else if (n > 0) {
		g->got += (size_t)n;
		if (g->got == sizeof(g->intro) && !meet_intro_ok(&g->intro, u->c.world)) {
			guest_remove(u, g, false);
		} else if (g->got == sizeof(g->intro)) {
			mesh_watch(u->mesh, fd, EPOLLRDHUP, guest_event, g, &err);
			guest_judge(u, g);
		}
	}
	unit_after(u);
	pthread_mutex_unlock(&u->lock);
}

static void listener_event(void *arg, int fd, uint32_t events)
{
	struct unit *u = arg;
	struct ds_err err;
	int in;

	(void)events;
	pthread_mutex_lock(&u->lock);
	while ((in = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
		struct unit_guest *g = mem_calloc(1, sizeof(*g)), *oldest = u->guests;

		if (!g || mesh_watch(u->mesh, in, EPOLLIN, guest_event, g, &err)) {
			free(g);
			close(in);
			continue;
		}
		*g = (struct unit_guest){ .u = u, .fd = in, .next = u->guests };
		u->guests = g;
		if (++u->guest_n <= u->c.world + MORE_GUESTS)
			continue;
		while (oldest->next)
			oldest = oldest->next;
		guest_remove(u, oldest, false);
	}
	unit_accept_failed(u, fd);
	pthread_mutex_unlock(&u->lock);
}

/* Who cannot be accepted, for want of descriptors, stays in the queue: it is not looked at for a while. */
void unit_accept_failed(struct unit *u, int fd)
{
	struct ds_err err;

	if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED)
		return;
	mesh_watch(u->mesh, fd, 0, NULL, NULL, &err);
	u->accept_due_ns = time_mono_ns() + 500 * UNIT_MS;
	unit_timers(u);
}

void unit_accept_again(struct unit *u)
{
	struct ds_err err;

	u->accept_due_ns = 0;
	if (u->listener >= 0 && mesh_watch(u->mesh, u->listener, EPOLLIN, listener_event, u, &err))
		log_err(&err);
	unit_door_watch(u);
}

int unit_listen(struct unit *u, int fd, struct ds_err *err)
{
	char host[300] = "";

	if (u->listener >= 0)
		return 0;
	meet_host(fd, host, sizeof(host));
	if (meet_listen(u->addr.kind == ADDR_TCP ? host : NULL, u->c.anywhere, u->hello.self.incarnation, &u->listener,
		u->hello.self.addr, err))
		return err->code;
	return mesh_watch(u->mesh, u->listener, EPOLLIN, listener_event, u, err);
}

void unit_unlisten(struct unit *u)
{
	struct ds_err err;

	while (u->guests)
		guest_remove(u, u->guests, false);
	if (u->listener >= 0) {
		mesh_watch(u->mesh, u->listener, 0, NULL, NULL, &err);
		close(u->listener);
	}
	u->listener = -1;
}

/* ---- to whom this rank connects ---- */

static void stop_one(struct unit *u, size_t r)
{
	struct ds_err err;

	if (u->peer[r].connecting < 0)
		return;
	mesh_watch(u->mesh, u->peer[r].connecting, 0, NULL, NULL, &err);
	close(u->peer[r].connecting);
	u->peer[r].connecting = -1;
}

void unit_stop_connecting(struct unit *u)
{
	for (size_t r = 0; r < u->c.world; r++)
		stop_one(u, r);
}

static void not_connected(struct unit *u, size_t r)
{
	stop_one(u, r);
	if (u->m.newcomer) {
		member_withdraw(&u->m);
		u->excluded = true;
	} else {
		unit_lose(u, r);
	}
}

static bool introduce(struct unit *u, size_t r, int fd)
{
	struct meet_intro i = { .magic = MEET_INTRO_MAGIC, .join = u->m.newcomer, .nonce = u->nonce,
		.incarnation = u->peer[r].entry.incarnation, .from = u->hello.self };
	int why = 0;
	socklen_t n = sizeof(why);

	if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &n) || why)
		return false;
	return send(fd, &i, sizeof(i), MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof(i);
}

static void connect_event(void *arg, int fd, uint32_t events)
{
	struct unit *u = arg;
	struct ds_err err;
	size_t r = 0;

	(void)events;
	pthread_mutex_lock(&u->lock);
	while (r < u->c.world && u->peer[r].connecting != fd)
		r++;
	if (r < u->c.world && introduce(u, r, fd)) {
		mesh_watch(u->mesh, fd, 0, NULL, NULL, &err);
		u->peer[r].connecting = -1;
		u->peer[r].plan_sent = 0;
		mesh_add(u->mesh, r, fd);
		member_connected(&u->m, r);
		if (u->m.newcomer)
			unit_say_newcomer(u);
	} else if (r < u->c.world) {
		not_connected(u, r);
	}
	unit_after(u);
	pthread_mutex_unlock(&u->lock);
}

static bool connect_to(struct unit *u, size_t r)
{
	struct ds_err err;
	int fd;

	if (meet_connect(u->peer[r].entry.addr, &fd, &err)) {
		not_connected(u, r);
		return false;
	}
	u->peer[r].connecting = fd;
	if (!mesh_watch(u->mesh, fd, EPOLLOUT, connect_event, u, &err))
		return true;
	not_connected(u, r);
	return false;
}

static void know(struct unit *u, const struct meet_table *t)
{
	for (size_t i = 0; i < t->count; i++)
		u->peer[t->entry[i].rank].entry = t->entry[i];
}

static void begin(struct unit *u)
{
	struct ranks all = ranks_first(u->c.world);

	u->connect_due_ns = time_mono_ns() + u->c.peer_timeout_ns;
	u->began = all;
	member_begin(&u->m, 1, &all);
	for (size_t r = 0; r < u->c.rank; r++)
		connect_to(u, r);
}

static void join(struct unit *u, const struct meet_table *t)
{
	for (size_t i = 0; i < t->count; i++)
		if (unit_distrusts(u, &t->entry[i])) {
			u->excluded = true; /* later */
			return;
		}
	member_apply(&u->m);
	for (size_t i = 0; i < t->count; i++) {
		if (t->entry[i].rank == u->c.rank) { /* it is thought to be there still */
			member_withdraw(&u->m);
			u->excluded = true;
			return;
		}
		if (!connect_to(u, t->entry[i].rank))
			return;
	}
}

void unit_take_table(struct unit *u, const struct meet_table *t)
{
	unit_stop_connecting(u);
	u->nonce = t->nonce;
	if (t->known > u->known)
		u->known = t->known;
	u->holder = t->holder < u->c.world ? t->holder : UNIT_NOBODY;
	know(u, t);
	if (t->epoch == 0)
		begin(u);
	else
		join(u, t);
	review_guests(u);
}

void unit_more_members(struct unit *u, const struct meet_table *t)
{
	if (!u->m.newcomer || t->nonce != u->nonce)
		return;
	for (size_t i = 0; i < t->count; i++) {
		size_t r = t->entry[i].rank;

		if (r == u->c.rank || ranks_has(&u->m.connected, r) || u->peer[r].connecting >= 0)
			continue;
		if (unit_distrusts(u, &t->entry[i])) {
			not_connected(u, r);
			return;
		}
		u->peer[r].entry = t->entry[i];
		if (!connect_to(u, r))
			return;
	}
}
