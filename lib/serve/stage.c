#include "serve/stage.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/std_fds.h"
#include "base/time.h"
#include "frame/messages.h"
#include "serve/internal.h"

/* ---- errors ---- */

void stage_fail(struct stage *st, const struct ds_err *why)
{
	tell_flush(st);
	if (st->service) {
		log_err(why);
		if (!st->rc)
			st->rc = why->code;
		return;
	}
	if (st->rc && st->err.text[0])
		log_err(why); /* a second one: the first is left to the caller */
	if (st->rc)
		return;
	st->rc = why->code;
	st->err = *why;
	if (why->code == DS_SIGPIPE)
		st->err.text[0] = 0;
}

void stage_abort(struct stage *st, const struct ds_err *why)
{
	stage_fail(st, why);
	st->stop = true;
}

void send_error(struct stage *st, struct sink *to, uint64_t stream, const char *id, bool retryable,
	const struct ds_err *why)
{
	struct error_message m = { .code = (uint64_t)why->code, .retryable = retryable };
	struct ds_err err;

	if (!to->w || to->dead || to->ended || st->cfg->raw_output)
		return;
	if (id)
		snprintf(m.id, sizeof m.id, "%s", id);
	for (size_t i = 0; i + 1 < sizeof m.text && why->text[i]; i++) /* a path in it may be no UTF-8 */
		m.text[i] = (unsigned char)why->text[i] < 0x80 ? why->text[i] : '?';
	if (to == &st->out)
		output_hello(st);
	meta_reset(st->meta);
	error_put(st->meta, &m);
	if (frame_write(to->w, FRAME_ERROR, 0, stream, st->meta, NULL, 0, false, &err))
		sink_note(st, to, &err);
}

/* ---- for callbacks ---- */

/* Where answers go now; NULL: nowhere. */
static struct sink *sink_for(struct source *src, uint64_t stream)
{
	struct stage *st = src->st;
	struct sink *s = st->connect ? &st->down.sink : src->answer;
	struct route *r;

	if (src->gone || st->stop || s->ended || !s->w)
		return NULL;
	if (st->connect && stream && !st->down.lost) { /* a peer that is being lost: its loss will be the answer */
		r = route_find(st, stream);
		if (!r)
			r = route_add(st, stream, src);
		if (r && r->src == src && !s->dead)
			route_sent(r);
	}
	return s->dead ? NULL : s;
}

static void wrote(struct stage *st, struct sink *s, int rc, const struct ds_err *err)
{
	if (rc == DS_BUG || rc == DS_DATA) /* of the frame, not of the way */
		stage_abort(st, err);
	else if (rc)
		sink_note(st, s, err);
}

int stage_send(struct source *src, unsigned type, uint64_t stream, const struct meta_builder *meta,
	const struct iovec *iov, int n, bool hash)
{
	struct sink *s = sink_for(src, stream);
	struct ds_err err;

	if (s)
		wrote(src->st, s, frame_write(s->w, type, 0, stream, meta, iov, n, hash, &err), &err);
	return 0;
}

int stage_put(struct source *src, int (*put)(void *ctx, struct frame_writer *w, struct ds_err *err), void *ctx)
{
	struct sink *s = sink_for(src, 0);
	struct ds_err err;

	if (s)
		wrote(src->st, s, put(ctx, s->w, &err), &err);
	return 0;
}

int stage_forward(struct source *src, const struct frame *f)
{
	bool own = !f->stream && (f->type == FRAME_ERROR || f->type == FRAME_DONE); /* would be taken for our word */
	/* What is not there, or is over, has no answer that could be awaited. */
	bool late = f->type == FRAME_CANCEL && src->st->connect && !route_find(src->st, f->stream);
	struct sink *s = own || late ? NULL : sink_for(src, f->stream);
	struct ds_err err;

	if (s && frame_forward(s->w, f, &err))
		sink_note(src->st, s, &err);
	return 0;
}

void stage_request_id(struct source *src, uint64_t stream, const char *id)
{
	struct stage *st = src->st;
	struct route *r;

	if (!st->connect || src->gone || st->down.lost)
		return;
	r = route_find(st, stream);
	if (!r)
		r = route_add(st, stream, src);
	if (r && r->src == src)
		snprintf(r->id, sizeof r->id, "%s", id);
}

static bool mentions(const char *text, const char *name)
{
	char quoted[320];

	snprintf(quoted, sizeof quoted, "'%s'", name);
	return strstr(text, quoted) != NULL;
}

/* On stderr it must be clear whose request it is: one of many clients may send what names neither it nor a request.
 * That we are full or drain is nobody's doing. */
static void tell_whose(struct source *src, const char *id, const struct ds_err *why)
{
	struct ds_err whose = *why;

	if (why->code != DS_TEMP && !mentions(why->text, src->name) && !(id && mentions(why->text, id)))
		err_prefix(&whose, "'%s'", src->name);
	tell(src->st, &whose, 1);
}

int stage_error(struct source *src, uint64_t stream, const char *id, bool retryable, const struct ds_err *why)
{
	struct stage *st = src->st;
	struct route *r = st->connect && stream ? route_find(st, stream) : NULL;

	tell_whose(src, id, why);
	if (!st->service && !st->rc) {
		st->rc = why->code;
		st->err.text[0] = 0; /* said above */
	}
	if (src->gone)
		return 0;
	if (r && r->src == src && r->sent) { /* downstream drops the request and passes the error on, as in a pipe */
		send_error(st, &st->down.sink, stream, id, retryable, why);
		return 0;
	}
	send_error(st, src->answer, stream, id, retryable, why);
	if (r && r->src == src && r->asked-- <= 1)
		route_drop(st, r);
	return 0;
}

int stage_write(struct source *src, const void *p, size_t n)
{
	struct sink *s = src->answer;
	struct ds_err err;

	if (n && s->w && !s->dead && frame_write_raw(s->w, p, n, &err))
		sink_note(src->st, s, &err);
	return 0;
}

void stage_drain(struct stage *st, int64_t since_ns)
{
	if (st->draining)
		return;
	st->draining = st->drain_news = true;
	st->drain_by = since_ns + st->cfg->opt.drain_ns;
	log_msg(LOG_INFO, "draining");
	notify_stopping();
	addr_unlisten(&st->listen_addr, st->listen_fd);
	st->listen_fd = -1;
	if (st->ops->drain)
		st->ops->drain(st->cfg->ctx);
}

/* ---- the run ---- */

static int check_options(struct stage *st, struct ds_err *err)
{
	const struct stage_options *o = &st->cfg->opt;
	int rc = 0;

	if (o->log_format && strcmp(o->log_format, "text") != 0 && strcmp(o->log_format, "json") != 0)
		return err_set(err, DS_USAGE, "bad --log-format '%s': text or json", o->log_format);
	if (o->listen && (st->cfg->raw_input || st->cfg->raw_output))
		return err_set(err, DS_USAGE, "--listen is for streams of frames only");
	if (o->listen && o->input && strcmp(o->input, "-") != 0)
		return err_set(err, DS_USAGE, "--listen and --input exclude each other");
	if (o->listen)
		rc = addr_parse(o->listen, &st->listen_addr, err);
	if (!rc && o->connect)
		rc = addr_parse(o->connect, &st->connect_addr, err);
	st->service = o->listen && !o->output;
	st->connect = o->connect != NULL;
	return rc;
}

static int open_input(struct stage *st, struct ds_err *err)
{
	const char *path = st->cfg->opt.input;
	struct stat sb;
	int fd = STDIN_FILENO;

	if (st->cfg->opt.listen)
		return 0;
	if (!path || strcmp(path, "-") == 0) {
		path = "<stdin>";
		if (std_fd_closed(fd))
			return err_errno(err, DS_NOINPUT, "cannot read '<stdin>'");
		if (!st->cfg->raw_input && !st->cfg->opt.force && isatty(fd))
			return err_set(err, DS_USAGE, "frames do not come from a terminal: use a pipe or -i FILE");
	} else {
		fd = open(path, O_RDONLY | O_CLOEXEC);
		if (fd < 0)
			return err_errno(err, DS_NOINPUT, "cannot open '%s'", path);
	}
	if (fstat(fd, &sb) == 0 && S_ISDIR(sb.st_mode)) {
		if (fd != STDIN_FILENO)
			close(fd);
		return err_set(err, DS_NOINPUT, "cannot read '%s': it is a directory", path);
	}
	fd_grow_pipe(fd);
	return source_new(st, fd, false, path, err) ? 0 : err->code;
}

static int open_listener(struct stage *st, struct ds_err *err)
{
	int rc = addr_listen(&st->listen_addr, st->cfg->opt.anywhere, &st->listen_fd, err);
	char at[300];

	if (rc)
		return rc;
	addr_local(st->listen_fd, at, sizeof at);
	log_msg(st->listen_addr.kind == ADDR_TCP && strcmp(st->listen_addr.port, "0") == 0 ? LOG_WARN : LOG_INFO,
		"listening at '%s'",
		*at ? at : st->listen_addr.text); /* a port of the kernel's choice must be told */
	return 0;
}

/* What a named pipe or an address may let wait. */
static int open_streams(void *arg, struct ds_err *err)
{
	struct stage *st = arg;
	int rc = open_input(st, err);

	if (!rc)
		rc = output_open(st, err);
	if (!rc && st->connect)
		rc = peer_open(st, err);
	return rc;
}

static int open_all(struct stage *st, struct ds_err *err)
{
	int rc = check_options(st, err);

	if (!rc && !(st->meta = meta_new()))
		rc = err_nomem(err, 64, "frame meta");
	if (!rc)
		rc = st->ops->aside ? st->ops->aside(st->cfg->ctx, open_streams, st, err) : open_streams(st, err);
	if (!rc && st->service)
		/* before the address is there: who sees it may send a signal */
		rc = signals_service(st->cfg->opt.drain_ns, err);
	if (!rc && st->cfg->opt.listen)
		rc = open_listener(st, err);
	if (!rc && st->cfg->raw_input && !st->connect)
		output_hello(st);
	return rc;
}

static void close_all(struct stage *st)
{
	while (st->sources) {
		struct source *src = st->sources;

		st->sources = src->next;
		source_free(src);
	}
	peer_close(st);
	addr_unlisten(&st->listen_addr, st->listen_fd);
	output_discard(st);
	signals_done();
	meta_free(st->meta);
}

int stage_run(const struct stage_config *cfg, struct ds_err *err)
{
	struct stage st = { .cfg = cfg, .ops = cfg->ops, .listen_fd = -1, .file = { .fd = -1 },
		.now = time_mono_ns(), .out = { .fd = -1 } };
	struct ds_err second;
	int rc;

	signal(SIGPIPE, SIG_IGN); /* EPIPE says it */
	signal(SIGXFSZ, SIG_IGN); /* EFBIG does */
	err->text[0] = 0;
	rc = open_all(&st, err);
	st.began = st.now;
	if (!rc) {
		notify_ready(cfg->opt.ready_fd);
		log_msg(LOG_INFO, "%s", st.service ? "serving" : "running");
		rc = stage_loop(&st, err);
	}
	if (st.finished && !st.stop && (st.service || (st.sources && !st.sources->input_bad))) {
		/* Complete, even if requests in it failed. */
		int failed = output_commit(&st, rc ? &second : err);

		if (rc && failed)
			log_err(&second);
		rc = rc ? rc : failed;
	}
	close_all(&st);
	return rc;
}
