/* Streams of store frames: hello, requests, end. */
#include "store/server.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/time.h"
#include "base/version.h"
#include "store/server_impl.h"

#define HELLO_NS ((int64_t)10000000000) /* for a client's first frame */
#define LINGER_NS ((int64_t)2000000000) /* for it to read what we said last */
#define BYTE_NS ((int64_t)1000)         /* a payload takes at most so long a byte, since it holds memory: 1 MB/s */

/* ---- what all share ---- */

int store_server_new(struct store_server **out, struct store *s, const struct store_server_options *o,
	struct ds_err *err)
{
	struct store_server *sv = mem_calloc(1, sizeof *sv);
	int rc;

	*out = NULL;
	if (!sv)
		return err_nomem(err, sizeof *sv, "a server");
	sv->store = s;
	sv->o = *o;
	if (!sv->o.max_frame)
		sv->o.max_frame = FRAME_MAX_DEFAULT;
	sv->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	rc = sv->bell < 0 ? err_errno(err, DS_OS, "cannot make an event descriptor") :
		store_pool_open(&sv->pool, o->memory ? o->memory : (uint64_t)1 << 30, err);
	if (rc) {
		if (sv->bell >= 0)
			close(sv->bell);
		free(sv);
		return rc;
	}
	*out = sv;
	return 0;
}

void store_server_free(struct store_server *sv)
{
	if (!sv)
		return;
	store_pool_close(&sv->pool);
	close(sv->bell);
	free(sv);
}

void store_server_drain(struct store_server *sv)
{
	const uint64_t one = 1;
	ssize_t n;

	sv->draining = true;
	n = write(sv->bell, &one, sizeof one);
	(void)n;
}

struct store_server_counts *store_server_counts(struct store_server *sv)
{
	return &sv->counts;
}

struct store_pool *store_server_pool(struct store_server *sv)
{
	return &sv->pool;
}

uint64_t store_server_memory(struct store_server *sv)
{
	return store_pool_taken(&sv->pool);
}

/* ---- answers ---- */

int client_sent(struct store_client *c, int rc, struct ds_err *err)
{
	if (!rc && frame_writer_queued(c->w)) /* its time-out */
		rc = err_set(err, DS_TEMP, "'%s': the client takes no answer", c->peer);
	if (rc)
		c->ended = true; /* nothing more can be said */
	return rc;
}

int client_send(struct store_client *c, uint64_t stream, const struct iovec *iov, int n, struct ds_err *err)
{
	return client_sent(c, frame_write(c->w, FRAME_STORE, 0, stream, c->meta, iov, n, false, err), err);
}

int client_refuse(struct store_client *c, uint64_t stream, const struct ds_err *why, struct ds_err *err)
{
	struct error_message m = { .code = (uint64_t)why->code,
		.retryable = why->code == DS_TEMP || why->code == DS_UNAVAILABLE };
	const struct ds_err copy = *why;
	int rc;

	for (size_t i = 0; i + 1 < sizeof m.text && why->text[i]; i++) /* a path in it may be no UTF-8 */
		m.text[i] = (unsigned char)why->text[i] < 0x80 ? why->text[i] : '?';
	if (c->refused && !c->refused->code)
		*c->refused = *why;
	meta_reset(c->meta);
	error_put(c->meta, &m);
	rc = client_sent(c, frame_write(c->w, FRAME_ERROR, 0, stream, c->meta, NULL, 0, false, err), err);
	if (rc || stream)
		return rc;
	*err = copy;
	return err->code;
}

static int say_hello(struct store_client *c, struct ds_err *err)
{
	struct hello h = { .minor = 1, .role = "store" };

	snprintf(h.program, sizeof h.program, "%.31s", c->sv->o.program);
	snprintf(h.version, sizeof h.version, "%s", DS_VERSION);
	meta_reset(c->meta);
	hello_put(c->meta, &h);
	return client_sent(c, frame_write(c->w, FRAME_HELLO, 0, 0, c->meta, NULL, 0, false, err), err);
}

void client_deadline(struct store_client *c)
{
	if (c->sv->o.peer_ns)
		store_deadline(c->ss, time_mono_ns() + c->sv->o.peer_ns);
}

/* ---- requests ---- */

static uint8_t unwanted[FRAME_ALIGN];

/* Refuses what has begun; its payload is read and dropped. */
static int refuse_head(struct store_client *c, const struct frame *f, const struct ds_err *why, struct ds_err *err)
{
	atomic_fetch_add(&c->sv->counts.op[0].requests, 1);
	atomic_fetch_add(&c->sv->counts.op[0].errors, 1);
	frame_reader_into(c->r, unwanted);
	frame_reader_forget(c->r);
	return client_refuse(c, f->stream, why, err);
}

/* Memory for the payload of a put, before a byte of it is read. */
static int put_head(struct store_client *c, const struct frame *f, struct ds_err *err)
{
	struct ds_err why;

	if (!f->data_len)
		return 0;
	if (store_pool_take(&c->sv->pool, f->data_len, c->sv->o.peer_ns ? time_mono_ns() + c->sv->o.peer_ns : 0,
		&c->payload, &why))
		return refuse_head(c, f, &why, err);
	frame_reader_into(c->r, c->payload.p);
	c->payload_since = time_mono_ns();
	c->payload_from = frame_reader_bytes(c->r);
	c->payload_stream = f->stream;
	return 0;
}

/* Its memory is others' from now on; the rest of it is read and dropped. */
static int refuse_slow(struct store_client *c, struct ds_err *err)
{
	struct ds_err why;

	atomic_fetch_add(&c->sv->counts.op[STORE_OP_PUT].requests, 1);
	atomic_fetch_add(&c->sv->counts.op[STORE_OP_PUT].errors, 1);
	frame_reader_forget(c->r);
	store_pool_give(&c->sv->pool, &c->payload);
	err_set(&why, DS_TEMP, "'%s': a payload came too slowly, and others waited for its memory (--memory)", c->peer);
	return client_refuse(c, c->payload_stream, &why, err);
}

static int on_head(struct store_client *c, const struct frame *f, struct ds_err *err)
{
	const uint32_t most = STORE_KEYS_MAX * STORE_KEY_BYTES;
	enum store_op op = STORE_OP_NONE;
	struct ds_err why = { 0 };

	c->frame_until = time_mono_ns() + c->sv->o.peer_ns + BYTE_NS * f->data_len;
	if (f->type == FRAME_HELLO || f->type == FRAME_END || !c->greeted)
		return f->data_len <= most ? 0 :
			err_set(err, DS_DATA, "'%s': a payload where there is none", c->peer);
	if (f->type != FRAME_STORE && (f->flags & FRAME_DROPPABLE) && f->data_len <= most)
		return 0;
	if (f->type != FRAME_STORE)
		err_set(&why, DS_DATA, "frame %llu: %s where a store frame is due", (unsigned long long)f->number,
			frame_type_name(f->type));
	else if (store_op_get(f, &op, &why))
		;
	else if (c->sv->draining)
		err_set(&why, DS_TEMP, "the store is draining");
	else if (op == STORE_OP_NONE || op > STORE_OP_MEMORY)
		err_set(&why, DS_DATA, "frame %llu (store): 'op' is none that is known here",
			(unsigned long long)f->number);
	else if (op != STORE_OP_PUT && f->data_len > most)
		err_set(&why, DS_DATA, "frame %llu (store): more than %d keys", (unsigned long long)f->number,
			STORE_KEYS_MAX);
	if (why.code)
		return refuse_head(c, f, &why, err);
	return op == STORE_OP_PUT ? put_head(c, f, err) : 0;
}

static int on_hello(struct store_client *c, const struct frame *f, struct ds_err *err)
{
	uint64_t hops = 0;
	struct hello h;

	if (c->greeted)
		return err_set(err, DS_DATA, "'%s': a second hello", c->peer);
	c->greeted = true;
	if (hello_get(f, &h, err))
		return err_prefix(err, "'%s'", c->peer);
	if (meta_uint(f->meta, "hops", &hops) == META_TYPE)
		return err_set(err, DS_DATA, "'%s': 'hops' of hello is no number", c->peer);
	if (hops >= STORE_HOPS_MAX)
		return err_set(err, DS_CONFIG, "a store behind %d others: is one of them its own --store?",
			STORE_HOPS_MAX);
	c->ss->hops = (unsigned)hops + 1;
	return 0;
}

/* Descriptors that came with a frame in which they have no place. */
static void drop_fds(struct store_client *c)
{
	int fd;

	while (c->local && (fd = frame_reader_take_fd(c->r)) >= 0)
		close(fd);
}

static int on_body(struct store_client *c, const struct frame *f, struct ds_err *err)
{
	enum store_op op;
	int64_t began = time_mono_ns();
	int rc;

	c->frame_until = 0;
	if (f->type == FRAME_HELLO || !c->greeted)
		return on_hello(c, f, err);
	if (f->type != FRAME_STORE) /* end; or what may be dropped */
		return 0;
	store_op_get(f, &op, err);
	client_deadline(c);
	atomic_fetch_add(&c->sv->counts.op[op].requests, 1);
	rc = client_request(c, f, op, err);
	drop_fds(c);
	store_pool_give(&c->sv->pool, &c->payload);
	atomic_fetch_add(&c->sv->counts.op[op].ns, (uint64_t)(time_mono_ns() - began));
	return rc;
}

/* ---- the stream ---- */

static int left_ms(int64_t until)
{
	int64_t ms = (until - time_mono_ns() + 999999) / 1000000;

	return ms < 0 ? 0 : ms > INT_MAX ? INT_MAX : (int)ms;
}

/* Until there is more to read; *stop: the server is ending, and nothing is half read. */
static int wait_input(struct store_client *c, int64_t hello_until, bool *stop, struct ds_err *err)
{
	bool idle = frame_reader_idle(c->r);
	struct pollfd p[2] = { { .fd = c->in, .events = POLLIN }, { .fd = idle ? c->sv->bell : -1, .events = POLLIN } };
	int64_t now = time_mono_ns(), until = now + c->sv->o.peer_ns, look;
	int rc;

	if (idle) {
		until = c->greeted ? 0 : hello_until;
		c->frame_until = 0;
	} else if (!c->frame_until) {
		c->frame_until = until;
	} else if (c->frame_until < until) {
		until = c->frame_until;
	}
	do {
		if (store_pool_too_slow(&c->sv->pool, &c->payload, c->payload_since,
			frame_reader_bytes(c->r) - c->payload_from))
			return refuse_slow(c, err);
		look = c->payload.p ? time_mono_ns() + STORE_POOL_LOOK_NS : until;
		rc = poll(p, 2, until ? left_ms(look < until ? look : until) : -1);
	} while ((rc < 0 && errno == EINTR) || (rc == 0 && time_mono_ns() < until));
	*stop = idle && p[1].revents && !p[0].revents;
	if (rc == 0)
		return err_set(err, DS_TEMP, "'%s': the client stands still%s", c->peer,
			idle ? " before its hello" : " within a frame");
	return 0;
}

static int serve(struct store_client *c, struct ds_err *err)
{
	int64_t hello_until = time_mono_ns() + HELLO_NS;
	enum frame_event ev = FRAME_AGAIN;
	bool stop = false;
	struct frame *f;
	int rc = say_hello(c, err);

	while (!rc && !stop && ev != FRAME_EOF) {
		rc = frame_reader_next(c->r, &ev, &f, err);
		if (rc)
			break;
		if (ev == FRAME_AGAIN)
			rc = wait_input(c, hello_until, &stop, err);
		else if (ev == FRAME_HEAD)
			rc = on_head(c, f, err);
		else if (ev == FRAME_BODY)
			rc = on_body(c, f, err);
		stop = stop || (c->socket && frame_reader_ended(c->r)); /* its sender may wait for our end */
	}
	return rc;
}

/* END, or what was wrong with the stream and END, which the client has a while to read then: what is closed with bytes
 * unread takes our last words with it. */
static void last_words(struct store_client *c, const struct ds_err *why)
{
	int64_t until = time_mono_ns() + LINGER_NS;
	struct pollfd p = { .fd = c->in, .events = POLLIN };
	struct ds_err err;
	char drop[4096];

	if (!c->ended && why->code)
		client_refuse(c, 0, why, &err);
	if (!c->ended && (c->socket || !why->code))
		frame_write_end(c->w, &err);
	if (!c->socket || shutdown(c->out, SHUT_WR) || !why->code)
		return;
	while (poll(&p, 1, left_ms(until)) > 0 && recv(c->in, drop, sizeof drop, MSG_DONTWAIT) > 0)
		;
}

static void set_up_socket(struct store_client *c)
{
	int64_t us = c->sv->o.peer_ns / 1000;
	const struct timeval limit = { .tv_sec = us / 1000000, .tv_usec = us % 1000000 };
	struct sockaddr_storage sa = { .ss_family = AF_UNSPEC };
	socklen_t n = sizeof sa;

	c->socket = getsockname(c->in, (struct sockaddr *)&sa, &n) == 0 && c->in == c->out;
	c->local = c->socket && sa.ss_family == AF_UNIX;
	if (c->socket)
		setsockopt(c->out, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
	frame_reader_polled(c->r, c->socket);
	frame_reader_fds(c->r, c->local);
	frame_reader_hashes(c->r, true);
	frame_reader_no_zstd(c->r, true);
}

static void client_free(struct store_client *c)
{
	store_pool_give(&c->sv->pool, &c->payload);
	client_memory_free(c);
	store_end(c->ss);
	frame_reader_free(c->r);
	frame_writer_free(c->w);
	frame_parser_free(c->parser);
	meta_free(c->meta);
	meta_free(c->item_meta);
	free(c->here);
	free(c);
}

static int client_new(struct store_client **out, struct store_server *sv, int in, int fd, const char *peer,
	struct ds_err *err)
{
	struct store_client *c = mem_calloc(1, sizeof *c);
	int rc;

	*out = c;
	if (!c)
		return err_nomem(err, sizeof *c, "a client");
	*c = (struct store_client){ .sv = sv, .in = in, .out = fd, .peer = peer };
	c->meta = meta_new();
	c->item_meta = meta_new();
	rc = c->meta && c->item_meta ? 0 : err_nomem(err, sizeof *c, "a client");
	if (!rc)
		rc = frame_reader_new(&c->r, in, peer, sv->o.max_frame, err);
	if (!rc)
		rc = frame_writer_new(&c->w, fd, peer, err);
	if (!rc)
		rc = frame_parser_new(&c->parser, err);
	if (!rc)
		rc = store_begin(&c->ss, sv->store, err);
	return rc;
}

int store_serve(struct store_server *sv, int in, int out, const char *peer, struct ds_err *refused,
	struct ds_err *err)
{
	struct store_client *c;
	int rc = client_new(&c, sv, in, out, peer, err);

	if (refused)
		*refused = (struct ds_err){ 0 };
	if (rc)
		goto out;
	c->refused = refused;
	set_up_socket(c);
	atomic_fetch_add(&sv->counts.clients, 1);
	atomic_fetch_add(&sv->counts.connections, 1);
	rc = serve(c, err);
	if (!rc)
		err->code = 0;
	last_words(c, err);
	atomic_fetch_sub(&sv->counts.clients, 1);
out:
	if (c)
		client_free(c);
	return rc;
}
