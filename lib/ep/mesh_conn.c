/* One connection of a mesh: heads and bodies in and out, whatever pieces the kernel takes and gives. */
#include "ep/mesh_impl.h"

#include <endian.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/mem.h"

enum { TURN = 4 << 20, FIRST_BODY = 64 << 10, KEPT_BODY = 1 << 20 }; /* bytes of one connection before others' turn */

static void put_u32(uint8_t *p, uint32_t v)
{
	v = htole32(v);
	memcpy(p, &v, sizeof(v));
}

static void put_u64(uint8_t *p, uint64_t v)
{
	v = htole64(v);
	memcpy(p, &v, sizeof(v));
}

static uint32_t get_u32(const uint8_t *p)
{
	uint32_t v;

	memcpy(&v, p, sizeof(v));
	return le32toh(v);
}

static uint64_t get_u64(const uint8_t *p)
{
	uint64_t v;

	memcpy(&v, p, sizeof(v));
	return le64toh(v);
}

/* ---- what goes out ---- */

struct parcel *parcel_new(unsigned type, const struct mesh_put *h, const void *data, size_t n, bool put)
{
	struct parcel *p = malloc(sizeof(*p) + (put ? 0 : n));

	if (!p)
		return NULL;
	memset(p, 0, sizeof(*p));
	put_u32(p->head, type);
	if (h) {
		put_u64(p->head + 8, h->epoch);
		put_u64(p->head + 16, h->seq);
		put_u32(p->head + 24, h->kind);
		put_u32(p->head + 28, h->lane);
	}
	put_u64(p->head + 32, n);
	p->n = n;
	p->put = put;
	p->data = put ? data : p->copy;
	if (!put && n)
		memcpy(p->copy, data, n);
	return p;
}

void parcel_free(struct parcel *p)
{
	if (!p)
		return;
	for (size_t i = 0; i < p->fd_count; i++)
		close(p->fds[i]);
	free(p);
}

void parcels_add(struct parcels *q, struct parcel *p)
{
	p->next = NULL;
	if (q->first)
		q->last->next = p;
	else
		q->first = p;
	q->last = p;
}

void parcels_free(struct parcels *q)
{
	while (q->first) {
		struct parcel *p = q->first;

		q->first = p->next;
		parcel_free(p);
	}
}

/* The next one to send, or none: control messages first, puts when they are due. */
static struct parcel *conn_next(struct conn *c, int64_t now)
{
	struct parcels *q = &c->control;
	struct parcel *p;
	int64_t hold = 0;

	mesh_lock(c->mesh);
	if (!q->first)
		q = &c->puts;
	p = q->first;
	if (p && p->put && p->due_ns > now) {
		hold = p->due_ns;
		p = NULL;
	}
	if (p)
		q->first = p->next;
	mesh_unlock(c->mesh);
	c->mesh->hold_ns[c->peer] = hold;
	return p;
}

static ssize_t conn_send_some(struct conn *c)
{
	struct parcel *p = c->out;
	size_t head = c->out_done < WIRE_HEAD ? c->out_done : WIRE_HEAD, body = c->out_done - head;
	union { char space[CMSG_SPACE(sizeof(p->fds))]; struct cmsghdr align; } control;
	struct iovec iov[2] = { { p->head + head, WIRE_HEAD - head }, { 0 } };
	struct msghdr m = { .msg_iov = iov, .msg_iovlen = 2 };

	memcpy(&iov[1].iov_base, &(const uint8_t *){ p->data ? p->data + body : NULL }, sizeof(void *));
	iov[1].iov_len = p->n - body;
	if (p->fd_count) {
		m.msg_control = control.space;
		m.msg_controllen = CMSG_SPACE(p->fd_count * sizeof(int));
		memset(control.space, 0, sizeof(control.space));
		CMSG_FIRSTHDR(&m)->cmsg_level = SOL_SOCKET;
		CMSG_FIRSTHDR(&m)->cmsg_type = SCM_RIGHTS;
		CMSG_FIRSTHDR(&m)->cmsg_len = CMSG_LEN(p->fd_count * sizeof(int));
		memcpy(CMSG_DATA(CMSG_FIRSTHDR(&m)), p->fds, p->fd_count * sizeof(int));
	}
	return sendmsg(c->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void conn_sent(struct conn *c, size_t n)
{
	struct parcel *p = c->out;

	while (p->fd_count) /* they went with the first byte */
		close(p->fds[--p->fd_count]);
	c->out_done += n;
	if (c->out_done < WIRE_HEAD + p->n)
		return;
	c->out = NULL;
	parcel_free(p);
}

static void conn_gone(struct conn *c, int error)
{
	struct ds_err err;

	if (!error || error == ECONNRESET || error == EPIPE) {
		err_set(&err, DS_UNAVAILABLE, "connection closed");
	} else if (error == EMFILE) {
		err_set(&err, DS_OS, "no descriptor is left for what it sent; raise ulimit -n");
	} else {
		errno = error;
		err_errno(&err, DS_UNAVAILABLE, "connection failed");
	}
	mesh_lose(c, &err);
}

void conn_write(struct conn *c, int64_t now)
{
	size_t budget = TURN;

	while (!c->dropped && budget) {
		ssize_t n;

		if (!c->out) {
			c->out = conn_next(c, now);
			c->out_done = 0;
		}
		if (!c->out)
			break;
		n = conn_send_some(c);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && (errno == EAGAIN || errno == ENOBUFS || errno == ETOOMANYREFS)) {
			mesh_arm(c->mesh, c, true);
			return;
		}
		if (n < 0) {
			int error = errno;

			conn_read(c, now); /* its last words may lie there */
			if (!c->dropped)
				conn_gone(c, error);
			return;
		}
		if (c->blocked)
			c->heard_ns = now; /* it makes room: it takes what was sent */
		conn_sent(c, (size_t)n);
		budget -= (size_t)n < budget ? (size_t)n : budget;
	}
	if (!c->dropped)
		mesh_arm(c->mesh, c, !budget);
}

void conn_keep_half(struct conn *c)
{
	struct parcel *p = c->out, *copy;
	size_t body = c->out_done > WIRE_HEAD ? c->out_done - WIRE_HEAD : 0;
	struct ds_err err;

	if (!p || !p->put || p->data == p->copy)
		return;
	copy = malloc(sizeof(*copy) + p->n);
	if (!copy) {
		err_nomem(&err, p->n, "a message");
		mesh_lose(c, &err);
		return;
	}
	*copy = *p;
	memcpy(copy->copy + body, p->data + body, p->n - body);
	copy->data = copy->copy;
	free(p);
	c->out = copy;
}

/* ---- what comes in ---- */

__attribute__((format(printf, 2, 3))) static void conn_nonsense(struct conn *c, const char *fmt, ...)
{
	struct ds_err err;
	char what[200];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(what, sizeof(what), fmt, ap);
	va_end(ap);
	err_set(&err, DS_PROTO, "it sent %s", what);
	mesh_lose(c, &err);
}

static void conn_take_fds(struct conn *c, struct msghdr *m)
{
	for (struct cmsghdr *h = CMSG_FIRSTHDR(m); h; h = CMSG_NXTHDR(m, h)) {
		size_t n = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; i < n; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(h) + i * sizeof(int), sizeof(int));
			if (c->fd_count < MESH_MOST_FDS)
				c->fds[c->fd_count++] = fd;
			else
				close(fd);
		}
	}
}

static void conn_close_fds(struct conn *c)
{
	while (c->fd_count)
		close(c->fds[--c->fd_count]);
}

/* Of a head exactly its bytes are read, so that descriptors that come with them are that message's. */
static ssize_t conn_receive_head(struct conn *c)
{
	union { char space[CMSG_SPACE(sizeof(c->fds))]; struct cmsghdr align; } control;
	struct iovec iov = { c->head + c->head_got, WIRE_HEAD - c->head_got };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.space,
		.msg_controllen = sizeof(control.space) };
	ssize_t n;

	if (!c->local)
		return recv(c->fd, iov.iov_base, iov.iov_len, MSG_DONTWAIT);
	n = recvmsg(c->fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (n > 0)
		conn_take_fds(c, &m);
	if (n > 0 && m.msg_flags & MSG_CTRUNC && c->fd_count < MESH_MOST_FDS) { /* there was room for more of them */
		errno = EMFILE;
		return -1;
	}
	return n;
}

/* Bodies grow as they come: what a head claims costs nothing. */
static ssize_t conn_receive_body(struct conn *c)
{
	uint64_t left = c->in.bytes - c->body_got;
	size_t n = left < TURN ? (size_t)left : TURN;

	if (c->place)
		return recv(c->fd, c->place + c->body_got, n, MSG_DONTWAIT);
	if (c->type == WIRE_PUT && c->body_cap)
		return recv(c->fd, c->body, n < c->body_cap ? n : c->body_cap, MSG_DONTWAIT); /* dropped */
	if (c->body_got == c->body_cap) {
		size_t cap = c->body_cap ? c->body_cap * 2 : FIRST_BODY;
		uint8_t *more = mem_realloc(c->body, cap, 1);

		if (!more) {
			errno = ENOMEM;
			return -1;
		}
		c->body = more;
		c->body_cap = cap;
	}
	if (n > c->body_cap - c->body_got)
		n = (size_t)(c->body_cap - c->body_got);
	return recv(c->fd, c->body + c->body_got, n, MSG_DONTWAIT);
}

static void conn_message(struct conn *c)
{
	static const uint64_t nothing;
	const struct mesh_config *cfg = &c->mesh->cfg;
	size_t fds = c->fd_count;
	struct parcel *pong;

	if (c->type == WIRE_PUT) {
		if (c->place)
			cfg->ops->put_done(cfg->ctx, c->peer, &c->in);
	} else if (c->type == WIRE_PING) {
		pong = parcel_new(WIRE_PONG, NULL, NULL, 0, false);
		mesh_lock(c->mesh);
		if (pong)
			parcels_add(&c->control, pong);
		mesh_unlock(c->mesh);
		if (!c->blocked && pong)
			mesh_arm(c->mesh, c, true);
	} else if (c->type != WIRE_PONG) {
		c->fd_count = 0;
		cfg->ops->message(cfg->ctx, c->peer, c->type, c->in.bytes ? (const void *)c->body : &nothing,
			(size_t)c->in.bytes, c->fds, fds);
		if (c->body_cap > KEPT_BODY) {
			free(c->body);
			c->body = NULL;
			c->body_cap = 0;
		}
	}
	c->head_got = 0;
}

static void conn_head(struct conn *c)
{
	const struct mesh_config *cfg = &c->mesh->cfg;
	uint32_t fds = get_u32(c->head + 4);
	void *place = NULL;

	c->type = get_u32(c->head);
	c->in = (struct mesh_put){ get_u64(c->head + 8), get_u64(c->head + 16), get_u32(c->head + 24),
		get_u32(c->head + 28), get_u64(c->head + 32) };
	c->body_got = 0;
	c->place = NULL;
	if (c->type > WIRE_PONG || get_u64(c->head + 40)) {
		conn_nonsense(c, "a message of an unknown type (%u)", c->type);
	} else if (fds != c->fd_count || (fds && c->type >= MESH_TYPES)) {
		conn_nonsense(c, "%zu descriptors with a message of %u", c->fd_count, fds);
	} else if (c->type == WIRE_PUT) {
		place = cfg->ops->put(cfg->ctx, c->peer, &c->in);
		if (place == MESH_REFUSED)
			conn_nonsense(c, "a put that makes no sense (kind %u, lane %u, %llu bytes, epoch %llu)",
				c->in.kind, c->in.lane, (unsigned long long)c->in.bytes,
				(unsigned long long)c->in.epoch);
		else
			c->place = place;
	} else if (c->in.bytes > (c->type < MESH_TYPES ? MESH_MOST_BYTES : 0)) {
		conn_nonsense(c, "a message of %llu bytes, more than there can be", (unsigned long long)c->in.bytes);
	}
}

void conn_read(struct conn *c, int64_t now)
{
	size_t budget = TURN;

	while (!c->dropped && budget) {
		bool head = c->head_got < WIRE_HEAD;
		ssize_t n = head ? conn_receive_head(c) : conn_receive_body(c);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			return;
		if (n <= 0) {
			conn_gone(c, n ? errno : 0);
			return;
		}
		c->heard_ns = now;
		budget -= (size_t)n < budget ? (size_t)n : budget;
		if (head) {
			c->head_got += (size_t)n;
			if (c->head_got < WIRE_HEAD)
				continue;
			conn_head(c);
		} else {
			c->body_got += (size_t)n;
		}
		if (!c->dropped && c->body_got == c->in.bytes)
			conn_message(c);
	}
}

/* ---- the end ---- */

void conn_close(struct conn *c)
{
	if (c->fd < 0)
		return;
	shutdown(c->fd, SHUT_RDWR); /* a copy in another process must not keep the peer waiting */
	close(c->fd);
	c->fd = -1;
}

void conn_free(struct conn *c)
{
	conn_close(c);
	conn_close_fds(c);
	parcel_free(c->out);
	parcels_free(&c->control);
	parcels_free(&c->puts);
	free(c->body);
	free(c);
}
