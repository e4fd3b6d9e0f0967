/*
 * At the unit's address: who comes there says what it is, and is told where the others are.  While a unit begins all
 * are kept until the last has come; later each is answered at once, or when the members are known again.
 *
 * Anybody may connect: who says nothing, or nonsense, is closed; of those the oldest when there are many.
 */
#include "ep/unit_impl.h"

#include <errno.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "base/log.h"

enum { MORE_CLIENTS = 64 }; /* than ranks */

struct client {
	struct unit *u;
	struct meet_io io;
	bool asked, answered;
	struct meet_hello hello;
	struct meet_table *table; /* of a unit that runs; else NULL */
	struct client *next;
};

struct unit_door {
	int fd;
	struct stat st;           /* of the socket's file */
	bool collecting;
	struct client *clients;   /* the oldest first */
	size_t n;
};

static void client_event(void *arg, int fd, uint32_t events);

static void client_free(struct unit *u, struct client *c)
{
	struct ds_err err;

	mesh_watch(u->mesh, c->io.fd, 0, NULL, NULL, &err);
	meet_io_free(&c->io);
	free(c->table);
	free(c);
}

static void client_remove(struct unit *u, struct client *c)
{
	struct client **at = &u->door->clients;

	while (*at != c)
		at = &(*at)->next;
	*at = c->next;
	u->door->n--;
	client_free(u, c);
}

/* Answers; the client goes when all of it has left. */
static void answer(struct unit *u, struct client *c, enum meet_type type, const void *data, size_t n)
{
	struct ds_err err;

	c->answered = true;
	if (!meet_write(&c->io, type, data, n, NULL, 0) || !c->io.out.len)
		shutdown(c->io.fd, SHUT_WR); /* its end will be read */
	else
		mesh_watch(u->mesh, c->io.fd, EPOLLIN | EPOLLOUT, client_event, c, &err);
}

static void refuse(struct unit *u, struct client *c, const struct ds_err *why)
{
	struct meet_refusal r = { .code = (uint32_t)why->code };

	snprintf(r.text, sizeof(r.text), "%.990s", why->text);
	answer(u, c, MEET_REFUSAL, &r, sizeof(r));
}

void unit_door_refuse_all(struct unit *u, const struct ds_err *why)
{
	for (struct client *c = u->door ? u->door->clients : NULL; c; c = c->next)
		if (c->asked && !c->answered)
			refuse(u, c, why);
}

/* ---- tables ---- */

struct meet_table *unit_table(struct unit *u, size_t *n)
{
	const struct ranks *s = &u->m.now.ranks;
	struct meet_table *t = mem_calloc(1, meet_table_bytes(u->c.world));

	if (!t)
		return NULL;
	t->nonce = u->nonce;
	t->epoch = u->m.now.epoch;
	t->known = u->known;
	t->world = (uint32_t)u->c.world;
	t->holder = (uint32_t)(u->holder < u->c.world ? u->holder : u->c.world);
	for (size_t r = ranks_next(s, 0); r < u->c.world; r = ranks_next(s, r + 1))
		t->entry[t->count++] = r == u->c.rank ? u->hello.self : u->peer[r].entry;
	*n = meet_table_bytes(t->count);
	return t;
}

/* Who listens on all addresses of its machine is known to another by the one that it was reached at. */
void unit_table_host(struct unit *u, struct meet_table *t, int fd)
{
	char host[MEET_ADDR], *colon;

	for (size_t i = 0; i < t->count; i++) {
		struct meet_entry *e = &t->entry[i];

		if (e->rank != u->c.rank || (strncmp(e->addr, "tcp:0.0.0.0:", 12) && strncmp(e->addr, "tcp:[::]:", 9)))
			continue;
		meet_host(fd, host, sizeof(host));
		colon = strrchr(u->hello.self.addr, ':');
		if (*host)
			snprintf(e->addr, sizeof(e->addr), "tcp:%.100s%.10s", host, colon);
	}
}

static void answer_table(struct unit *u, struct client *c, const struct meet_table *t)
{
	size_t n = meet_table_bytes(t->count);
	struct meet_table *own = mem_copy(t, n);

	if (!own)
		return;
	unit_table_host(u, own, c->io.fd);
	answer(u, c, MEET_TABLE, own, n);
	free(own);
}

/* ---- a unit begins ---- */

static struct client *find_rank(struct unit *u, size_t rank, const struct client *but)
{
	for (struct client *c = u->door->clients; c; c = c->next)
		if (c != but && c->asked && !c->answered && c->hello.self.rank == rank)
			return c;
	return NULL;
}

static void fail_all(struct unit *u, const struct ds_err *why)
{
	unit_door_refuse_all(u, why);
	unit_fail(u, why);
}

void unit_door_late(struct unit *u)
{
	struct ranks missing = ranks_first(u->c.world);
	struct ds_err err;
	char names[600];

	if (!u->door || !u->door->collecting)
		return;
	ranks_del(&missing, u->c.rank);
	for (struct client *c = u->door->clients; c; c = c->next)
		if (c->asked && !c->answered)
			ranks_del(&missing, c->hello.self.rank);
	meet_names(&missing, names, sizeof(names));
	err_set(&err, DS_UNAVAILABLE, "unit '%s': %s of %zu did not come within %g s", u->c.addr, names, u->c.world,
		(double)u->c.unit_timeout_ns / 1e9);
	fail_all(u, &err);
}

static void begin_if_complete(struct unit *u)
{
	struct meet_table *t = mem_calloc(1, meet_table_bytes(u->c.world));

	if (!t)
		return;
	for (size_t r = 0; r < u->c.world; r++) {
		struct client *c = r == u->c.rank ? NULL : find_rank(u, r, NULL);

		if (!c && r != u->c.rank)
			goto out;
		t->entry[r] = c ? c->hello.self : u->hello.self;
	}
	if (getrandom(&t->nonce, sizeof(t->nonce), 0) != sizeof(t->nonce))
		goto out;
	t->nonce |= 1; /* 0 is none */
	t->world = t->count = (uint32_t)u->c.world;
	t->holder = (uint32_t)u->c.rank;
	for (struct client *c = u->door->clients; c; c = c->next)
		if (c->asked && !c->answered)
			answer_table(u, c, t);
	u->door->collecting = false;
	unit_take_table(u, t);
out:
	free(t);
}

/* This rank and all who have come here go to a unit that runs. */
static void go_over(struct unit *u, struct client *c)
{
	struct meet_table *t = c->table;

	c->table = NULL;
	answer(u, c, MEET_TAKEN, NULL, 0);
	if (u->door->collecting)
		for (struct client *d = u->door->clients; d; d = d->next)
			if (d->asked && !d->answered)
				answer_table(u, d, t);
	unit_door_close(u);
	unit_take_table(u, t);
	free(t);
}

static void collect(struct unit *u, struct client *c)
{
	struct client *other = find_rank(u, c->hello.self.rank, c);
	struct ds_err err;

	if (meet_agree(u->c.addr, &u->hello, &c->hello, &err)) {
		fail_all(u, &err);
	} else if (c->table) {
		go_over(u, c);
	} else if (other && other->hello.self.incarnation == c->hello.self.incarnation) {
		client_remove(u, other);
		begin_if_complete(u);
	} else if (other || c->hello.self.rank == u->c.rank) {
		err_set(&err, DS_CONFIG, "unit '%s': two ranks have the number %u", u->c.addr, c->hello.self.rank);
		fail_all(u, &err);
	} else {
		begin_if_complete(u);
	}
}

/* ---- a unit runs ---- */

static bool greater(const struct unit *u, const struct meet_table *t)
{
	size_t n = ranks_count(&u->m.now.ranks);

	return t->count > n || (t->count == n && t->entry[0].rank < ranks_next(&u->m.now.ranks, 0));
}

static bool is_member(const struct unit *u, const struct meet_entry *e)
{
	return ranks_has(&u->m.now.ranks, e->rank) && u->peer[e->rank].entry.incarnation == e->incarnation;
}

/* True where the door is closed now. */
static bool judge(struct unit *u, struct client *c)
{
	struct meet_table *t;
	struct ds_err err;
	size_t n;

	if (u->m.now.epoch == 0 || u->m.newcomer || member_changing(&u->m))
		return false; /* later */
	if (meet_agree(u->c.addr, &u->hello, &c->hello, &err)) {
		refuse(u, c, &err);
	} else if (c->table && is_member(u, &c->hello.self)) {
		unit_tell_holder(u); /* it was not told */
		answer(u, c, MEET_TAKEN, NULL, 0);
	} else if (c->table && c->table->nonce && greater(u, c->table)) {
		go_over(u, c);
		return true;
	} else if (ranks_has(&u->m.now.ranks, c->hello.self.rank)) {
		unit_tell_news(u); /* a vote will show whether that one lives */
	} else {
		t = unit_table(u, &n);
		if (t)
			answer_table(u, c, t);
		free(t);
	}
	return false;
}

void unit_door_review(struct unit *u)
{
	struct client *next;

	if (!u->door || u->door->collecting)
		return;
	for (struct client *c = u->door->clients; c; c = next) {
		next = c->next;
		if (c->asked && !c->answered && judge(u, c))
			return;
	}
}

/* ---- clients ---- */

/* True where the client, or the door, is gone. */
static bool client_message(struct unit *u, struct client *c, enum meet_type type, const void *data, size_t n)
{
	const struct meet_table *t;
	struct client *other;
	struct ds_err err;

	if (type == MEET_QUIT && c->asked && !c->answered) {
		if (u->door->collecting) {
			unit_door_late(u);
		} else {
			err_set(&err, DS_CONFIG, "unit '%s': there is a rank %u already", u->c.addr,
				c->hello.self.rank);
			refuse(u, c, &err);
		}
		return false;
	}
	if (type != MEET_HELLO || c->asked || !meet_hello_ok(data, n, &t)) {
		client_remove(u, c);
		return true;
	}
	c->asked = true;
	memcpy(&c->hello, data, sizeof(c->hello));
	c->table = t ? mem_copy(t, meet_table_bytes(t->count)) : NULL;
	if (!u->door->collecting) {
		other = find_rank(u, c->hello.self.rank, c);
		if (other) /* it may come again; kept, they would have no bound */
			client_remove(u, other);
		return judge(u, c);
	}
	collect(u, c);
	return true; /* there is nothing more to read yet */
}

static void client_event(void *arg, int fd, uint32_t events)
{
	struct client *c = arg;
	struct unit *u = c->u;
	enum meet_type type;
	const void *data;
	struct ds_err err;
	size_t n;
	int rc;

	(void)fd;
	pthread_mutex_lock(&u->lock);
	if (events & EPOLLOUT) {
		if (!meet_flush(&c->io) || !c->io.out.len) {
			shutdown(c->io.fd, SHUT_WR);
			mesh_watch(u->mesh, c->io.fd, EPOLLIN, client_event, c, &err);
		}
	}
	if (events & ~(uint32_t)EPOLLOUT) {
		while ((rc = meet_read(&c->io, &type, &data, &n)) == 1)
			if (client_message(u, c, type, data, n))
				break;
		if (rc < 0)
			client_remove(u, c);
	}
	unit_after(u);
	pthread_mutex_unlock(&u->lock);
}

static void make_room(struct unit *u)
{
	for (struct client *c = u->door->clients; c && u->door->n >= u->c.world + MORE_CLIENTS; c = c->next)
		if (!c->asked || c->answered) {
			client_remove(u, c);
			return;
		}
}

static void door_event(void *arg, int fd, uint32_t events)
{
	struct unit *u = arg;
	struct client **last, *c;
	struct ds_err err;
	int in;

	(void)events;
	pthread_mutex_lock(&u->lock);
	while (u->door && (in = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
		make_room(u);
		c = mem_calloc(1, sizeof(*c));
		if (!c || mesh_watch(u->mesh, in, EPOLLIN, client_event, c, &err)) {
			free(c);
			close(in);
			continue;
		}
		c->u = u;
		c->io.fd = in;
		for (last = &u->door->clients; *last; last = &(*last)->next)
			;
		*last = c;
		u->door->n++;
	}
	unit_accept_failed(u, fd);
	pthread_mutex_unlock(&u->lock);
}

void unit_door_watch(struct unit *u)
{
	struct ds_err err;

	if (u->door && mesh_watch(u->mesh, u->door->fd, EPOLLIN, door_event, u, &err))
		log_err(&err);
}

int unit_door_open(struct unit *u, int fd, struct ds_err *err)
{
	struct unit_door *d = mem_calloc(1, sizeof(*d));

	if (!d)
		return err_nomem(err, sizeof(*d), "the unit's address");
	d->fd = fd;
	d->collecting = !u->m.begun;
	if (u->addr.kind == ADDR_UNIX && lstat(u->addr.path, &d->st))
		memset(&d->st, 0, sizeof(d->st));
	if (unit_listen(u, fd, err) || mesh_watch(u->mesh, fd, EPOLLIN, door_event, u, err)) {
		free(d);
		return err->code;
	}
	u->door = d;
	u->holder = u->c.rank;
	if (d->collecting)
		begin_if_complete(u);
	return 0;
}

/* The socket's file goes where it is still this rank's. */
void unit_door_close(struct unit *u)
{
	struct unit_door *d = u->door;
	struct ds_err err;
	struct stat st;

	if (!d)
		return;
	u->door = NULL;
	u->holder = UNIT_NOBODY;
	if (u->addr.kind == ADDR_UNIX && !lstat(u->addr.path, &st) && st.st_ino == d->st.st_ino &&
		st.st_dev == d->st.st_dev)
		unlink(u->addr.path);
	mesh_watch(u->mesh, d->fd, 0, NULL, NULL, &err);
	close(d->fd);
	while (d->clients) {
		struct client *c = d->clients;

		d->clients = c->next;
		meet_flush(&c->io);
		client_free(u, c);
	}
	free(d);
}
