#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/time.h"
#include "frame/messages.h"
#include "serve/internal.h"

struct source *source_new(struct stage *st, int fd, bool socket, const char *name, struct ds_err *err)
{
	struct source *src = mem_calloc(1, sizeof *src);
	struct stat sb;

	if (!src) {
		err_nomem(err, sizeof *src, "a connection");
		return NULL;
	}
	src->st = st;
	src->fd = fd;
	src->socket = socket;
	src->answer = st->service ? &src->own : &st->out;
	src->progress_ns = st->now;
	snprintf(src->name, sizeof src->name, "%s", name);
	if ((!st->cfg->raw_input && frame_reader_new(&src->r, fd, name, st->cfg->opt.max_frame, err)) ||
		(socket && sink_open(&src->own, fd, name, err))) {
		frame_reader_free(src->r);
		free(src);
		return NULL;
	}
	if (src->r && !socket && fstat(fd, &sb) == 0) {
		frame_reader_polled(src->r, !S_ISREG(sb.st_mode));
		src->ends = S_ISREG(sb.st_mode) || S_ISFIFO(sb.st_mode);
	}
	src->next = st->sources;
	st->sources = src;
	st->source_count++;
	return src;
}

/* The caller has unlinked it. */
void source_free(struct source *src)
{
	source_end(src, false);
	frame_reader_free(src->r);
	sink_close(&src->own);
	if (src->fd > STDIN_FILENO)
		close(src->fd);
	free(src);
}

static const struct sink *target(const struct source *src)
{
	return src->st->connect ? &src->st->down.sink : src->answer;
}

bool source_blocked(const struct source *src)
{
	return sink_full(target(src)) || sink_full(src->answer);
}

bool source_wants(const struct source *src)
{
	if (src->tail || src->st->stop)
		return !src->st->stop;
	return src->state == SRC_OPEN && !src->input_done && !src->paused && !source_blocked(src);
}

bool source_unread(const struct source *src)
{
	return src->socket && src->st->service && src->state == SRC_OPEN && src->hello_seen && !src->input_done &&
		!source_wants(src) && !sink_queued(&src->own);
}

void source_reassure(struct source *src)
{
	struct sink *s = &src->own;
	struct ds_err err;

	if (!source_unread(src)) {
		src->unread_ns = src->st->now;
	} else if (src->st->now - src->unread_ns >= ALIVE_NS) {
		src->unread_ns = src->st->now;
		if (!s->dead && !s->ended &&
			frame_write(s->w, FRAME_STAT, FRAME_DROPPABLE, 0, NULL, NULL, 0, false, &err))
			sink_note(src->st, s, &err);
	}
}

/* ---- the end of a source ---- */

void source_end(struct source *src, bool complete)
{
	if (src->gone)
		return;
	src->gone = true;
	src->holds = 0;
	if (src->r)
		frame_reader_forget(src->r);
	if (src->st->ops->gone)
		src->st->ops->gone(src->st->cfg->ctx, src, complete);
	routes_orphan(src);
}

/* What becomes of its requests that are here or downstream, and will not be answered; "" where there is none. */
static const char *dropped(const struct source *src, char text[64])
{
	size_t n = src->holds > src->routes ? src->holds : src->routes;

	text[0] = 0;
	if (n)
		snprintf(text, 64, "%zu request%s of it %s dropped", n, plural(n), n == 1 ? "is" : "are");
	return text;
}

void source_lost(struct source *src)
{
	char text[64];

	if (*dropped(src, text))
		log_msg(LOG_WARN, "'%s' has gone: %s", src->name, text);
	else
		log_msg(LOG_INFO, "'%s' has gone", src->name);
	source_end(src, false);
	src->state = SRC_DEAD;
}

static void close_after(struct source *src)
{
	src->state = SRC_CLOSING;
	src->close_by = src->st->now + src->st->cfg->opt.peer_ns;
}

void source_fail(struct source *src, const struct ds_err *why)
{
	struct stage *st = src->st;
	struct ds_err all = *why;
	char text[64];

	if (src->input_bad || (src->state != SRC_OPEN && !src->tail))
		return;
	src->input_done = src->input_bad = true;
	src->tail = false;
	if (!st->service) { /* what came whole is still answered */
		stage_fail(st, why);
		return;
	}
	if (*dropped(src, text))
		err_set(&all, why->code, "%s; %s", why->text, text);
	if (src->r && frame_reader_bytes(src->r) == 0)
		log_msg(LOG_DEBUG, "%s", why->text); /* someone only knocked */
	else
		log_err(&all);
	source_end(src, false);
	send_error(st, &src->own, 0, NULL, false, &all);
	close_after(src);
}

void source_cut(struct source *src, const struct ds_err *why)
{
	source_end(src, false);
	send_error(src->st, &src->own, 0, NULL, true, why);
	close_after(src);
}

/* ---- frames ---- */

/* A frame that the stage itself answers or drops: its stream belongs to another source, or we are draining. */
static bool refused(struct source *src, const struct frame *f)
{
	struct stage *st = src->st;
	struct route *r = st->connect && f->stream ? route_find(st, f->stream) : NULL;

	if (st->down.lost || (r && r->src != src))
		return true;
	if (st->draining && !st->ops->drain && f->type == FRAME_REQUEST)
		return true;
	if (st->connect && f->stream && f->type == FRAME_REQUEST) {
		if (!r && (r = route_add(st, f->stream, src)) != NULL &&
			meta_cstr(f->meta, "id", r->id, sizeof r->id) != META_OK)
			r->id[0] = 0;
		if (r)
			r->asked++;
	}
	return false;
}

static void refuse(struct source *src, const struct frame *f)
{
	struct stage *st = src->st;
	struct ds_err why;
	char id[REQUEST_ID_MAX + 1] = "";

	if (f->type != FRAME_REQUEST)
		return; /* one answer a request is enough */
	if (meta_cstr(f->meta, "id", id, sizeof id) != META_OK)
		id[0] = 0;
	if (st->down.lost)
		why = st->down.why;
	else if (st->draining)
		err_set(&why, DS_TEMP, "draining: try again elsewhere");
	else if (id[0])
		err_set(&why, DS_TEMP, "request '%s': a request of the same id runs for another client", id);
	else
		err_set(&why, DS_TEMP, "stream %016llx is in use by another client", (unsigned long long)f->stream);
	tell(st, &why, 1);
	send_error(st, src->answer, f->stream, id, true, &why);
}

/* ERROR without a stream: the source itself failed.  DONE without one says nothing. */
static int said_itself(struct source *src, const struct frame *f, struct ds_err *err)
{
	struct error_message m;

	if (f->type == FRAME_DONE)
		return err_set(err, DS_DATA, "'%s': a 'done' frame without a stream", src->name);
	if (error_get(f, &m, err))
		return err_prefix(err, "'%s'", src->name);
	return err_set(err, m.code > 0 && m.code < 256 ? (int)m.code : DS_UNAVAILABLE, "'%s' failed: %s", src->name,
		m.text);
}

int source_twice(struct source *src, const struct frame *f, struct ds_err *err)
{
	char id[REQUEST_ID_MAX + 1];

	if (meta_cstr(f->meta, "id", id, sizeof id) != META_OK)
		id[0] = 0;
	return err_set(err, DS_DATA, "'%s': frame %llu: request '%s' is still running; names must differ", src->name,
		(unsigned long long)f->number, id);
}

/* The program does not know any more what it has handed over, and our peer would refuse the stream of all clients. */
static int check_name(struct source *src, const struct frame *f, struct ds_err *err)
{
	const struct route *r = NULL;

	if (src->st->connect && f->stream && f->type == FRAME_REQUEST)
		r = route_find(src->st, f->stream);
	return r && r->src == src && r->sent ? source_twice(src, f, err) : 0;
}

static int on_head(struct source *src, struct frame *f, struct ds_err *err)
{
	void *dst = NULL;
	int rc = 0;

	if ((f->type == FRAME_HELLO) == src->hello_seen)
		return err_set(err, DS_DATA, "'%s': %s", src->name, src->hello_seen ? "a second hello frame" :
			"the stream does not begin with hello");
	if (f->type == FRAME_HELLO || f->type == FRAME_END)
		return 0;
	if (!f->stream && (f->type == FRAME_ERROR || f->type == FRAME_DONE))
		return said_itself(src, f, err);
	if (check_name(src, f, err))
		return err->code;
	src->drop = refused(src, f);
	if (!src->drop && src->st->ops->head)
		rc = src->st->ops->head(src->st->cfg->ctx, src, f, &dst, err);
	if (!rc && dst)
		frame_reader_into(src->r, dst);
	return rc;
}

static int on_hello(struct source *src, const struct frame *f, struct ds_err *err)
{
	struct stage *st = src->st;
	int rc = hello_get(f, &src->hello, err);

	if (rc)
		return err_prefix(err, "'%s'", src->name);
	rc = hello_check_stage(&src->hello, src->name, err);
	if (!rc)
		rc = hello_check(&st->cfg->hello, &src->hello, src->name, err);
	if (!rc && st->ops->hello)
		rc = st->ops->hello(st->cfg->ctx, src, &src->hello, err);
	if (rc)
		return rc;
	src->hello_seen = true;
	if (!st->service && st->connect)
		peer_hello(st, &src->hello);
	if (!st->service && (!st->connect || st->down.hello_seen))
		output_hello(st);
	return 0;
}

static int on_body(struct source *src, struct frame *f, struct ds_err *err)
{
	if (f->type == FRAME_HELLO)
		return on_hello(src, f, err);
	if (f->type == FRAME_END) {
		src->input_done = true;
		src->tail = src->ends;
		return 0; /* the head was refused if hello is missing */
	}
	if (src->drop) {
		refuse(src, f);
		return 0;
	}
	if (src->gone)
		return 0; /* its head came before the downstream peer was lost: answered then */
	return src->st->ops->frame ? src->st->ops->frame(src->st->cfg->ctx, src, f, err) : 0;
}

static int read_raw(struct source *src, struct ds_err *err)
{
	static char buf[65536]; /* one thread */
	ssize_t n;

	do
		n = read(src->fd, buf, sizeof buf);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return errno == EAGAIN ? 0 : err_errno(err, errno == ECONNRESET ? DS_DATA : DS_IO, "cannot read '%s'",
			src->name);
	src->input_done = n == 0;
	return src->st->ops->raw(src->st->cfg->ctx, src, buf, (size_t)n, n == 0, err);
}

static int read_frames(struct source *src, struct ds_err *err)
{
	uint64_t start = frame_reader_bytes(src->r);
	enum frame_event ev;
	struct frame *f;
	int rc = 0, frames = 0;

	while (!rc && frames < FRAMES_A_TURN && frame_reader_bytes(src->r) - start < BYTES_A_TURN &&
		source_wants(src)) {
		rc = frame_reader_next(src->r, &ev, &f, err);
		if (frame_reader_bytes(src->r) != src->progress_bytes) {
			src->progress_bytes = frame_reader_bytes(src->r);
			if (src->hello_seen) /* which is due at once, not a byte now and then */
				src->progress_ns = src->st->now;
		}
		src->tail = src->tail && ev != FRAME_EOF;
		if (rc || ev == FRAME_AGAIN || ev == FRAME_EOF)
			break;
		rc = ev == FRAME_HEAD ? on_head(src, f, err) : on_body(src, f, err);
		frames += ev == FRAME_BODY;
	}
	return rc;
}

void source_read(struct source *src)
{
	struct ds_err err;

	if (src->r ? read_frames(src, &err) : read_raw(src, &err))
		source_fail(src, &err);
}

/* ---- what is due besides reading ---- */

/* More must come from here before anything else can happen to it. */
bool source_due(struct source *src)
{
	const struct stage *st = src->st;

	if (!src->socket || !src->r || src->state != SRC_OPEN || !source_wants(src))
		return false;
	return !src->hello_seen || !frame_reader_idle(src->r) ||
		(src->holds && st->ops->incomplete && st->ops->incomplete(st->cfg->ctx, src));
}

static void overdue(struct source *src)
{
	struct stage *st = src->st;
	struct ds_err why;

	if (!src->socket || !src->r)
		return;
	if (!src->watched || !source_due(src)) { /* what was not asked for is not late */
		src->progress_ns = st->now;
	} else if (st->now - src->progress_ns > st->cfg->opt.peer_ns) {
		err_set(&why, DS_UNAVAILABLE, "'%s' was silent %s for %g s", src->name,
			!src->hello_seen ? "before its hello was complete" :
			frame_reader_idle(src->r) ? "in the middle of a request" : "in the middle of a frame",
			(double)st->cfg->opt.peer_ns / 1e9);
		source_fail(src, &why);
	}
	if (st->service && sink_stalled(st, &src->own, 0)) {
		err_set(&why, DS_UNAVAILABLE, "'%s' has read nothing for %g s: it is dropped", src->name,
			(double)st->cfg->opt.peer_ns / 1e9);
		log_err(&why);
		source_lost(src);
	} else if (st->connect && st->service && src->own.w && frame_writer_queued(src->own.w) > QUEUE_DROP) {
		err_set(&why, DS_TEMP, "'%s' reads its answers too slowly", src->name);
		source_fail(src, &why);
	}
}

static bool any_blocked(const struct stage *st)
{
	for (const struct source *s = st->sources; s; s = s->next)
		if (s->state == SRC_OPEN && source_blocked(s))
			return true;
	return false;
}

/* What is held for a source whose input is over came in part only, and nothing is left to do that could end it.  Where
 * all came whole it waits, for room that others have, or for a store. */
static void stuck(struct source *src)
{
	struct stage *st = src->st;
	struct ds_err why;

	if (!src->input_done || !src->holds || st->busy || src->routes || any_blocked(st) ||
	    (st->ops->waits && st->ops->waits(st->cfg->ctx)) ||
	    !st->ops->incomplete || !st->ops->incomplete(st->cfg->ctx, src))
		return;
	if (!src->input_bad) {
		err_set(&why, DS_DATA, "'%s' ended, but %zu of its requests came in part only", src->name, src->holds);
		source_fail(src, &why);
	}
	source_end(src, false);
}

static void linger(struct source *src)
{
	char waste[16384];
	ssize_t n = 1;

	for (int k = 0; src->readable && k < 16 && n > 0; k++)
		n = recv(src->fd, waste, sizeof waste, MSG_DONTWAIT);
	if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR) || src->st->now > src->close_by)
		src->state = SRC_DEAD;
}

static void closing(struct source *src)
{
	if (src->own.dead || !src->own.w || src->st->now > src->close_by) {
		src->state = SRC_DEAD;
	} else if (frame_writer_queued(src->own.w) == 0) {
		shutdown(src->fd, SHUT_WR);
		src->state = SRC_LINGER;
		src->close_by = src->st->now + LINGER_NS;
	}
}

bool source_awaits(const struct source *src)
{
	return src->state == SRC_OPEN && (src->holds || (src->routes && !peer_elsewhere(src->st)));
}

bool source_idle(const struct source *src)
{
	return src->state == SRC_OPEN && !source_awaits(src) && !src->readable && src->r && frame_reader_idle(src->r);
}

/* While others' work goes on, a drain leaves idle connections open: what they ask is refused by name. */
static void finish(struct source *src)
{
	struct stage *st = src->st;
	bool over = st->draining && !st->drain_news && !st->working && source_idle(src);

	if ((!src->input_done && !over) || source_awaits(src))
		return;
	sink_end(st, &src->own);
	source_end(src, true);
	close_after(src);
}

void source_turn(struct source *src)
{
	if (src->state == SRC_OPEN)
		overdue(src);
	if (src->state == SRC_OPEN)
		stuck(src);
	if (src->state == SRC_OPEN)
		source_reassure(src);
	if (src->state == SRC_OPEN && src->st->service) {
		if (src->own.dead)
			source_lost(src);
		else
			finish(src);
	}
	if (src->state == SRC_CLOSING)
		closing(src);
	if (src->state == SRC_LINGER)
		linger(src);
	if (src->readable && src->st->draining)
		src->st->busy = true; /* one round more shows whether it is idle now */
	src->readable = false;
}

/* ---- for callbacks ---- */

void source_hold(struct source *src) { src->holds++; }

void source_release(struct source *src)
{
	if (src->holds)
		src->holds--;
}

void source_pause(struct source *src, bool pause) { src->paused = pause; }
const char *source_name(const struct source *src) { return src->name; }
const struct hello *source_hello(const struct source *src) { return &src->hello; }
