#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/mem.h"
#include "base/time.h"
#include "serve/internal.h"

/* What each slot of the poll set is about; sources follow. */
enum { P_SIGNALS, P_LISTEN, P_DOWN, P_OUT, P_BELL, P_SOURCES };

struct loop {
	struct stage *st;
	struct pollfd p[P_SOURCES + MAX_SOURCES];
	struct source *src[MAX_SOURCES];
	size_t n; /* sources in the set */
};

static void watch(struct pollfd *p, int fd, bool on, short events)
{
	p->fd = on ? fd : -1;
	p->events = events;
	p->revents = 0;
}

/* ---- what to wait for ---- */

static void watch_source(struct loop *l, struct source *src)
{
	bool in = source_wants(src) || src->state == SRC_LINGER, out = src->socket && sink_queued(&src->own);
	/* A connection is watched even if nothing is wanted from it: poll tells when it has gone. */
	bool on = in || out || (src->socket && src->answer == &src->own);

	src->watched = in;
	l->src[l->n] = src;
	watch(&l->p[P_SOURCES + l->n++], src->fd, on, (short)((in ? POLLIN : 0) | (out ? POLLOUT : 0)));
}

static void watch_all(struct loop *l)
{
	struct stage *st = l->st;
	bool down = st->connect && !st->down.lost && !st->down.ended, down_out = down && sink_queued(&st->down.sink);
	int bell;

	watch(&l->p[P_SIGNALS], signals_fd(), st->service, POLLIN);
	watch(&l->p[P_LISTEN], st->listen_fd,
		st->listen_fd >= 0 && st->source_count < MAX_SOURCES && st->now >= st->accept_after, POLLIN);
	watch(&l->p[P_DOWN], st->down.sink.fd, down && (down_out || !sink_full(&st->out)),
		(short)((sink_full(&st->out) ? 0 : POLLIN) | (down_out ? POLLOUT : 0)));
	watch(&l->p[P_OUT], st->out.fd, st->out.w && (st->out_watch || sink_queued(&st->out)),
		sink_queued(&st->out) ? POLLOUT : 0);
	bell = st->ops->bell ? st->ops->bell(st->cfg->ctx) : -1;
	watch(&l->p[P_BELL], bell, bell >= 0, POLLIN); /* step, which follows each poll, is the answer */
	l->n = 0;
	for (struct source *src = st->sources; src; src = src->next)
		watch_source(l, src);
}

static void sooner(int64_t *due, int64_t t)
{
	if (*due < 0 || t < *due)
		*due = t;
}

/* Milliseconds until something is due by the clock, -1: nothing is. */
static int patience(const struct stage *st)
{
	int64_t due = -1, peer = st->cfg->opt.peer_ns;

	if (st->busy)
		return 0;
	if (st->draining)
		sooner(&due, st->drain_by);
	if (st->told.n)
		sooner(&due, tell_due(st));
	if (st->accept_after > st->now)
		sooner(&due, st->accept_after);
	if (st->connect && !st->down.lost && !st->down.ended && (st->down.sink.dead || !frame_reader_idle(st->down.r)))
		sooner(&due, st->down.progress_ns + (st->down.sink.dead ? LINGER_NS : peer));
	if (st->connect && !st->down.lost && sink_queued(&st->down.sink) && !peer_elsewhere(st))
		sooner(&due, st->down.sink.progress_ns + peer);
	if (st->connect && !st->service && !st->down.sink.hello_sent)
		sooner(&due, st->began + HELLO_NS);
	for (struct source *src = st->sources; src; src = src->next) {
		if (st->service && src->state == SRC_OPEN && sink_queued(&src->own))
			sooner(&due, src->own.progress_ns + peer);
		if (src->state == SRC_CLOSING || src->state == SRC_LINGER)
			sooner(&due, src->close_by);
		else if (source_due(src))
			sooner(&due, src->progress_ns + peer);
		if (source_unread(src))
			sooner(&due, src->unread_ns + ALIVE_NS);
	}
	if (due < 0)
		return -1;
	due = due > st->now ? (due - st->now) / 1000000 + 1 : 0;
	return due > 3600000 ? 3600000 : (int)due;
}

/* ---- what happened ---- */

static void flush(struct stage *st, struct sink *s)
{
	struct ds_err err;

	if (sink_queued(s) && frame_writer_flush(s->w, &err))
		sink_note(st, s, &err);
}

static void print_state(struct stage *st)
{
	struct buf b = { 0 };
	ssize_t r = 0;
	struct jw w;

	if (st->ops->state) {
		st->ops->state(st->cfg->ctx);
		return;
	}
	jw_init(&w, &b);
	jw_obj(&w);
	jw_key(&w, "connections");
	jw_uint(&w, st->source_count);
	jw_key(&w, "routes");
	jw_uint(&w, st->route_count);
	jw_key(&w, "draining");
	jw_bool(&w, st->draining);
	jw_obj_end(&w);
	buf_add(&b, "\n", 1);
	if (!b.nomem)
		r = write(STDERR_FILENO, b.p, b.len);
	(void)r; /* there is nobody to tell that stderr fails */
	buf_free(&b);
}

static void on_signals(struct stage *st)
{
	struct ds_err why;

	for (int sig = signals_next(); sig; sig = signals_next()) {
		if (sig == SIGUSR1) {
			print_state(st);
		} else if (sig == SIGNAL_AGAIN) {
			err_set(&why, DS_TEMP, "stopped by a second signal, %zu connections were open",
				st->source_count);
			stage_abort(st, &why);
		} else {
			stage_drain(st, signals_since()); /* may have begun with the loss of our peer */
		}
	}
}

static void on_source(struct loop *l, struct source *src, short ev)
{
	struct stage *st = l->st;
	bool broken = ev & (POLLHUP | POLLERR | POLLNVAL);

	if (ev & POLLOUT) {
		size_t before = frame_writer_queued(src->own.w);

		flush(st, &src->own);
		if (frame_writer_queued(src->own.w) < before && src->state == SRC_CLOSING)
			src->close_by = st->now + st->cfg->opt.peer_ns; /* slow is not silent */
	}
	src->readable = ev & POLLIN;
	if (src->state == SRC_LINGER || src->state == SRC_CLOSING)
		src->state = broken ? SRC_DEAD : src->state;
	else if (source_wants(src) && (broken || (ev & POLLIN)))
		source_read(src);
	else if (broken && src->socket && src->answer == &src->own)
		source_lost(src);
}

static void serve(struct loop *l)
{
	struct stage *st = l->st;
	struct ds_err why;

	if (l->p[P_SIGNALS].revents)
		on_signals(st);
	if (l->p[P_OUT].revents & POLLOUT)
		flush(st, &st->out);
	else if (l->p[P_OUT].revents & (POLLERR | POLLHUP)) {
		err_set(&why, DS_SIGPIPE, "'%s': the reader has gone", st->out.name);
		sink_note(st, &st->out, &why);
	}
	if (l->p[P_DOWN].revents & POLLOUT)
		flush(st, &st->down.sink);
	if (l->p[P_DOWN].revents & (POLLIN | POLLHUP | POLLERR))
		peer_read(st);
	for (size_t i = 0; i < l->n && !st->stop; i++)
		if (l->p[P_SOURCES + i].revents)
			on_source(l, l->src[i], l->p[P_SOURCES + i].revents);
	if (l->p[P_LISTEN].revents && st->listen_fd >= 0)
		accept_some(st);
}

/* ---- the end ---- */

static void reap(struct stage *st)
{
	struct source **p = &st->sources;

	while (*p) {
		struct source *src = *p;

		if (src->state != SRC_DEAD || !st->service) {
			p = &src->next;
			continue;
		}
		*p = src->next;
		st->source_count--;
		source_free(src);
	}
}

/* The one stream of a filter: input over, work done, downstream answered, output written. */
static void finish_one(struct stage *st)
{
	struct source *src = st->sources;
	struct ds_err bad;

	if (!src || !src->input_done || src->holds)
		return;
	if (!src->input_bad && !src->gone && st->ops->ending)
		st->ops->ending(st->cfg->ctx, src);
	if (st->connect && !st->down.lost && !st->down.ended) {
		if (!src->input_bad)
			sink_end(st, &st->down.sink);
		if (!src->input_bad || src->routes)
			return;
	}
	if (!src->gone || src->state == SRC_OPEN) {
		if (!src->input_bad && !st->cfg->raw_output) {
			output_hello(st);
			sink_end(st, &st->out);
		}
		source_end(src, !src->input_bad);
		err_set(&bad, st->rc ? st->rc : DS_DATA, "%s", st->down.lost ? st->down.why.text : st->err.text);
		if (src->socket && src->input_bad)
			send_error(st, &src->own, 0, NULL, false, &bad);
		else if (src->socket)
			sink_end(st, &src->own);
		src->state = src->socket ? SRC_CLOSING : SRC_DEAD;
		src->close_by = st->now + st->cfg->opt.peer_ns;
		source_turn(src);
	}
	if (sink_queued(&st->out) || src->state != SRC_DEAD)
		return;
	if (src->tail)
		output_release(st);
	else
		st->finished = true;
}

/* A service's last connection has closed: what waits for the downstream peer is still handed over, and the peer says
 * END where it answers us. */
static void finish_peer(struct stage *st)
{
	const struct sink *s = &st->down.sink;
	struct ds_err why;

	if (!st->connect || st->down.lost || st->down.ended) {
		st->finished = true;
		return;
	}
	sink_end(st, &st->down.sink);
	if (!s->dead && peer_elsewhere(st) && !sink_queued(s)) {
		st->finished = true;
	} else if (st->now >= st->drain_by) {
		err_set(&why, DS_TEMP, "draining took too long: '%s' has not taken everything", s->name);
		stage_abort(st, &why);
	}
}

static bool working(const struct stage *st)
{
	for (const struct source *src = st->sources; src; src = src->next)
		if (source_awaits(src))
			return true;
	return false;
}

/* Before the rest is cut. */
static void end_idle(struct stage *st)
{
	for (struct source *src = st->sources; src; src = src->next)
		if (source_idle(src)) {
			sink_end(st, &src->own);
			source_end(src, true);
			src->state = SRC_LINGER;
		}
}

/* Connections that have not got all their answers; those that only linger have. */
static size_t unfinished(const struct stage *st)
{
	size_t n = 0;

	for (const struct source *src = st->sources; src; src = src->next)
		n += src->state == SRC_OPEN || src->state == SRC_CLOSING;
	return n;
}

/* Who has not got all answers gets an error instead, and a while to take it: it stands behind what waits already. */
static void cut(struct stage *st)
{
	struct ds_err why;

	err_set(&why, DS_TEMP, "draining took too long: %zu connections are cut", unfinished(st));
	stage_fail(st, &why);
	for (struct source *src = st->sources; src; src = src->next)
		if (src->state == SRC_OPEN)
			source_cut(src, &why);
	st->cut = true;
	st->drain_by = st->now + LINGER_NS;
	signals_last(LINGER_NS);
}

/* A service ends when it drains and the last connection has closed, or when the time for that is over. */
static void finish_service(struct stage *st)
{
	bool late = st->now >= st->drain_by;

	if (!st->draining)
		return;
	if (st->cut) {
		st->stop = late || !st->sources;
		return;
	}
	if (late)
		end_idle(st);
	if (late && unfinished(st))
		cut(st);
	else if (!st->sources || late)
		finish_peer(st);
}

static int step(struct stage *st, struct ds_err *err)
{
	int rc = 0;

	st->busy = false;
	if (st->ops->step && !st->stop)
		rc = st->ops->step(st->cfg->ctx, &st->busy, err);
	if (rc)
		stage_abort(st, err);
	return rc;
}

static void turn(struct stage *st)
{
	if (st->connect)
		peer_turn(st);
	st->working = st->draining && working(st);
	for (struct source *src = st->sources; src && !st->stop; src = src->next)
		source_turn(src);
	if (st->drain_news || (st->working && !working(st)))
		st->busy = true; /* a round more, for those that waited for it */
	st->drain_news = false;
	reap(st);
	if (st->service)
		finish_service(st);
	else
		finish_one(st);
}

int stage_loop(struct stage *st, struct ds_err *err)
{
	struct loop *l = mem_calloc(1, sizeof *l);

	if (!l)
		return err_nomem(err, sizeof *l, "the poll set");
	l->st = st;
	st->busy = st->ops->bell != NULL; /* it rings for those only who have said in step that they sleep */
	while (!st->stop && !st->finished) {
		watch_all(l);
		if (poll(l->p, P_SOURCES + l->n, patience(st)) < 0 && errno != EINTR) {
			err_errno(err, DS_OS, "cannot poll");
			stage_abort(st, err);
			break;
		}
		st->now = time_mono_ns();
		serve(l);
		step(st, err);
		if (!st->stop)
			turn(st);
		if (st->told.n && st->now >= tell_due(st))
			tell_flush(st);
	}
	tell_flush(st);
	free(l);
	*err = st->err;
	if (st->rc)
		err->code = st->rc;
	return st->rc;
}
