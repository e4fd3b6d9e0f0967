#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/time.h"
#include "frame/messages.h"
#include "serve/internal.h"

/* ---- which source a stream belongs to: open addressing, linear probing ---- */

static size_t slot_of(const struct stage *st, uint64_t stream)
{
	return (size_t)((stream * 0x9e3779b97f4a7c15u) >> 32) & (st->route_cap - 1);
}

struct route *route_find(struct stage *st, uint64_t stream)
{
	if (!st->route_cap)
		return NULL;
	for (size_t i = slot_of(st, stream); st->routes[i].stream; i = (i + 1) & (st->route_cap - 1))
		if (st->routes[i].stream == stream)
			return &st->routes[i];
	return NULL;
}

static struct route *place(struct stage *st, struct route r)
{
	size_t i = slot_of(st, r.stream);

	while (st->routes[i].stream)
		i = (i + 1) & (st->route_cap - 1);
	st->routes[i] = r;
	return &st->routes[i];
}

/* Not yet counted among the source's open streams: the program may answer it without downstream.  NULL: no memory. */
struct route *route_add(struct stage *st, uint64_t stream, struct source *src)
{
	if (2 * (st->route_count + 1) > st->route_cap) {
		size_t old_cap = st->route_cap, cap = old_cap ? 2 * old_cap : 64;
		struct route *old = st->routes, *new = mem_calloc(cap, sizeof *new);

		if (!new)
			return NULL;
		st->routes = new;
		st->route_cap = cap;
		for (size_t i = 0; i < old_cap; i++)
			if (old[i].stream)
				place(st, old[i]);
		free(old);
	}
	st->route_count++;
	return place(st, (struct route){ .stream = stream, .src = src });
}

/* The downstream peer knows the stream now: its answer is awaited. */
void route_sent(struct route *r)
{
	if (!r->sent)
		r->src->routes++;
	r->sent = true;
}

void route_drop(struct stage *st, struct route *r)
{
	size_t i = (size_t)(r - st->routes);

	if (r->src && r->sent)
		r->src->routes--;
	r->stream = 0;
	st->route_count--;
	for (i = (i + 1) & (st->route_cap - 1); st->routes[i].stream; i = (i + 1) & (st->route_cap - 1)) {
		struct route moved = st->routes[i]; /* may have been displaced by the one that goes */

		st->routes[i].stream = 0;
		place(st, moved);
	}
}

/* A client has gone: downstream is told, and what still comes for its streams is dropped. */
void routes_orphan(struct source *src)
{
	struct stage *st = src->st;
	struct ds_err err;

	for (size_t i = 0; st->route_count && i < st->route_cap; i++) {
		struct route *r = &st->routes[i];

		if (!r->stream || r->src != src)
			continue;
		if (!r->sent || peer_elsewhere(st)) {
			route_drop(st, r);
			i--; /* another may have moved here */
			continue;
		}
		r->src = NULL;
		src->routes--;
		if (st->down.sink.dead || !st->service)
			continue;
		meta_reset(st->meta);
		meta_put_cstr(st->meta, "reason", "the client has gone");
		if (frame_write(st->down.sink.w, FRAME_CANCEL, 0, r->stream, st->meta, NULL, 0, false, &err))
			sink_note(st, &st->down.sink, &err);
	}
	src->routes = 0;
}

/* ---- the connection ---- */

/* No answers come back from the peer: it writes them to a place of its own. */
bool peer_elsewhere(const struct stage *st)
{
	return st->down.hello_seen && st->down.hello.elsewhere;
}

static void tell_waiting(const struct addr *a)
{
	log_msg(LOG_WARN, "waiting for '%s'", a->text);
}

int peer_open(struct stage *st, struct ds_err *err)
{
	const struct stage_options *o = &st->cfg->opt;
	int fd, rc = addr_connect_told(&st->connect_addr, CONNECT_NS, tell_waiting, &fd, err);

	if (rc)
		return rc;
	rc = sink_open(&st->down.sink, fd, st->connect_addr.text, err);
	if (!rc)
		rc = frame_reader_new(&st->down.r, fd, st->connect_addr.text, o->max_frame, err);
	if (!rc && (st->service || st->cfg->raw_input))
		sink_hello(&st->down.sink, st, &st->cfg->hello);
	return rc;
}

void peer_close(struct stage *st)
{
	if (!st->down.sink.w)
		return;
	sink_close(&st->down.sink);
	frame_reader_free(st->down.r);
	close(st->down.sink.fd);
	free(st->routes);
	st->routes = NULL;
	st->route_cap = 0;
}

void peer_hello(struct stage *st, const struct hello *input)
{
	struct hello h = st->cfg->hello;

	memcpy(h.via, input->via, sizeof h.via);
	hello_via(&h, input->program, input->version);
	sink_hello(&st->down.sink, st, &h);
}

static void fail_route(struct stage *st, const struct route *r, const struct ds_err *why)
{
	struct ds_err err;

	if (!st->cfg->raw_output)
		send_error(st, r->src->answer, r->stream, r->id, true, why);
	else if (st->ops->unanswered && st->ops->unanswered(st->cfg->ctx, r->src, r->stream, r->id, why, &err))
		stage_abort(st, &err);
}

static size_t open_routes(const struct stage *st)
{
	size_t n = 0;

	for (size_t i = 0; st->route_count && i < st->route_cap; i++)
		n += st->routes[i].stream && st->routes[i].src;
	return n;
}

/* Every request that is not fully answered gets an error instead, whether the peer knows of it or not; those that are
 * still to come from clients get the same. */
static void fail_routes(struct stage *st, const struct ds_err *why)
{
	struct ds_err each;

	err_set(&each, why->code == DS_TEMP ? DS_TEMP : DS_UNAVAILABLE, "%s", why->text);
	st->down.why = each;
	tell(st, why, open_routes(st));
	if (!st->rc) {
		st->rc = why->code;
		st->err.text[0] = 0; /* said already */
	}
	for (size_t i = 0; i < st->route_cap; i++) {
		struct route *r = &st->routes[i];

		if (r->stream && r->src)
			fail_route(st, r, &each);
		if (r->stream && r->src && r->sent)
			r->src->routes--;
		r->stream = 0;
	}
	st->route_count = 0;
}

void peer_lost(struct stage *st, const struct ds_err *why)
{
	if (st->down.lost)
		return;
	st->down.lost = st->down.sink.dead = true;
	fail_routes(st, why);
	for (struct source *src = st->sources; src; src = src->next) {
		if (!st->service)
			src->input_done = src->input_bad = true;
		source_end(src, false); /* the program drops its work; a service goes on reading, to refuse */
	}
	if (st->service)
		stage_drain(st, st->now);
	else if (!st->sources)
		st->stop = true;
}

/* ---- frames from it ---- */

static int refused_by_peer(struct stage *st, const struct frame *f, struct ds_err *err)
{
	struct error_message m;
	int rc = error_get(f, &m, err);

	if (rc)
		return rc;
	return err_set(err, m.code > 0 && m.code < 256 ? (int)m.code : DS_UNAVAILABLE, "'%s' says: %s",
		st->connect_addr.text, m.text);
}

/* A request failed downstream: in a filter that is the run's outcome too. */
static void note_error(struct stage *st, const struct frame *f)
{
	struct ds_err err;

	if (st->service || refused_by_peer(st, f, &err) == 0)
		return;
	tell(st, &err, 1);
	if (!st->rc) {
		st->rc = err.code;
		st->err.text[0] = 0;
	}
}

static struct source *owner(struct stage *st, const struct route *r)
{
	return r ? r->src : st->service ? NULL : st->sources;
}

static int peer_frame(struct stage *st, struct frame *f, struct ds_err *err)
{
	struct route *r = f->stream ? route_find(st, f->stream) : NULL;
	struct source *src = owner(st, r);
	bool last = f->type == FRAME_DONE || f->type == FRAME_ERROR || f->type == FRAME_PREFILLED;
	struct ds_err why;
	int rc = 0;

	if (f->type == FRAME_ERROR && !f->stream)
		return refused_by_peer(st, f, err);
	if (f->type == FRAME_DONE && !f->stream)
		return err_set(err, DS_DATA, "'%s': a 'done' frame without a stream", st->connect_addr.text);
	if (f->type == FRAME_STAT && !f->stream) /* it lives */
		return 0;
	if (f->type == FRAME_ERROR)
		note_error(st, f);
	if (src && st->cfg->raw_output) {
		rc = st->ops->frame ? st->ops->frame(st->cfg->ctx, src, f, err) : 0;
		r = f->stream ? route_find(st, f->stream) : NULL;
	} else if (src && !src->answer->dead) {
		if (!st->service)
			output_hello(st);
		if (frame_forward(src->answer->w, f, &why))
			sink_note(st, src->answer, &why);
	}
	if (r && last && !(f->flags & FRAME_MORE))
		route_drop(st, r);
	return rc;
}

static int peer_head(struct stage *st, struct frame *f, struct ds_err *err)
{
	struct source *src = owner(st, f->stream ? route_find(st, f->stream) : NULL);
	void *dst = NULL;
	int rc = 0;

	if (!st->down.hello_seen && f->type != FRAME_HELLO)
		return err_set(err, DS_DATA, "'%s': the stream does not begin with hello", st->connect_addr.text);
	if (f->type == FRAME_HELLO || f->type == FRAME_END || !src || !st->cfg->raw_output || !st->ops->head)
		return 0;
	rc = st->ops->head(st->cfg->ctx, src, f, &dst, err);
	if (!rc && dst)
		frame_reader_into(st->down.r, dst);
	return rc;
}

static int peer_said_hello(struct stage *st, const struct frame *f, struct ds_err *err)
{
	const struct source *src = st->sources;
	int rc = hello_get(f, &st->down.hello, err);

	if (rc)
		return err_prefix(err, "'%s'", st->connect_addr.text);
	rc = hello_check_stage(&st->down.hello, st->connect_addr.text, err);
	if (!rc)
		rc = hello_check(&st->cfg->hello, &st->down.hello, st->connect_addr.text, err);
	if (rc)
		return rc;
	st->down.hello_seen = true;
	if (!st->service && src && (src->hello_seen || st->cfg->raw_input))
		output_hello(st);
	return 0;
}

/* The peer has all and answers elsewhere: nothing is awaited. */
static int forget_routes(struct stage *st)
{
	for (size_t i = 0; i < st->route_cap; i++) {
		struct route *r = &st->routes[i];

		if (r->stream && r->src && r->sent)
			r->src->routes--;
		r->stream = 0;
	}
	st->route_count = 0;
	return 0;
}

static int peer_said_end(struct stage *st, struct ds_err *err)
{
	err_set(err, DS_UNAVAILABLE, open_routes(st) ? "'%s' ended without an answer" :
		"'%s' has ended the stream, it takes no more: try again elsewhere", st->connect_addr.text);
	st->down.ended = true;
	if (!st->down.sink.ended && st->draining && !open_routes(st))
		return 0; /* we both drain, and it was sooner */
	if (!st->down.sink.ended)
		return err->code; /* before we did: it drains */
	if (st->sources && st->sources->routes) {
		if (peer_elsewhere(st))
			return forget_routes(st);
		fail_routes(st, err);
	}
	return 0;
}

static int peer_body(struct stage *st, struct frame *f, struct ds_err *err)
{
	if (f->type == FRAME_HELLO)
		return peer_said_hello(st, f, err);
	return f->type == FRAME_END ? peer_said_end(st, err) : peer_frame(st, f, err);
}

void peer_read(struct stage *st)
{
	enum frame_event ev;
	struct ds_err err;
	struct frame *f;
	int rc = 0, frames = 0;

	while (!rc && frames < FRAMES_A_TURN && !st->down.ended && !st->down.lost && !st->stop &&
		!sink_full(&st->out)) {
		rc = frame_reader_next(st->down.r, &ev, &f, &err);
		if (frame_reader_bytes(st->down.r) != st->down.progress_bytes) {
			st->down.progress_bytes = frame_reader_bytes(st->down.r);
			st->down.progress_ns = st->now;
		}
		if (!rc && ev != FRAME_HEAD && ev != FRAME_BODY)
			break;
		if (!rc)
			rc = ev == FRAME_HEAD ? peer_head(st, f, &err) : peer_body(st, f, &err);
		frames += ev == FRAME_BODY;
	}
	if (rc && frame_reader_cut(st->down.r)) { /* in whatever way: where it was is of little use */
		log_msg(LOG_INFO, "%s", err.text);
		err_set(&err, DS_UNAVAILABLE, "the connection to '%s' broke off", st->connect_addr.text);
	}
	if (rc)
		peer_lost(st, &err);
}

void peer_turn(struct stage *st)
{
	int64_t patience = st->down.sink.dead ? LINGER_NS : st->cfg->opt.peer_ns;
	struct ds_err why;

	if (st->down.lost || st->down.ended)
		return;
	if (!st->service && st->now - st->began > HELLO_NS) /* our input is slow to begin: our own word must do */
		sink_hello(&st->down.sink, st, &st->cfg->hello);
	/* A busy peer that holds us back still answers others; one that answers elsewhere cannot be told from a dead
	 * one. */
	if (sink_stalled(st, &st->down.sink, st->down.progress_bytes) && !peer_elsewhere(st)) {
		err_set(&why, DS_UNAVAILABLE, "'%s' has taken nothing and said nothing for %g s", st->connect_addr.text,
			(double)st->cfg->opt.peer_ns / 1e9);
		peer_lost(st, &why);
	} else if (!st->down.sink.dead && (frame_reader_idle(st->down.r) || sink_full(&st->out))) {
		st->down.progress_ns = st->now;
	} else if (st->now - st->down.progress_ns > patience) {
		err_set(&why, DS_UNAVAILABLE, "'%s' %s", st->connect_addr.text,
			st->down.sink.dead ? "has closed the connection" : "was silent in the middle of a frame");
		peer_lost(st, &why);
	}
}
