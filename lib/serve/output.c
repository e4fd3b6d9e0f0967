#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/time.h"
#include "serve/internal.h"

/* ---- sinks ---- */

int sink_open(struct sink *s, int fd, const char *name, struct ds_err *err)
{
	memset(s, 0, sizeof *s);
	s->fd = fd;
	snprintf(s->name, sizeof s->name, "%s", name);
	return frame_writer_new(&s->w, fd, name, err);
}

void sink_close(struct sink *s)
{
	frame_writer_free(s->w);
	s->w = NULL;
}

bool sink_full(const struct sink *s)
{
	return s->w && !s->dead && frame_writer_queued(s->w) > QUEUE_LIMIT;
}

bool sink_queued(const struct sink *s)
{
	return s->w && !s->dead && frame_writer_queued(s->w) > 0;
}

/* Asked for once a round.  The round's own time counts, not that of a long step since, in which nobody flushed. */
bool sink_stalled(struct stage *st, struct sink *s, uint64_t heard)
{
	uint64_t progress = s->w ? frame_writer_taken(s->w) + heard : 0;

	if (!sink_queued(s) || progress != s->progress) {
		s->progress = progress;
		s->progress_ns = time_mono_ns();
	}
	return st->now - s->progress_ns > st->cfg->opt.peer_ns;
}

/* Writing failed: what that means depends on whose sink it is. */
void sink_note(struct stage *st, struct sink *s, const struct ds_err *why)
{
	if (s->dead)
		return;
	s->dead = true;
	if (s == &st->out)
		stage_abort(st, why);
	/* a connection's own sink: its source finds it dead at its turn; the downstream peer's: what it said last is
	 * read first */
}

void sink_hello(struct sink *s, struct stage *st, const struct hello *h)
{
	struct ds_err err;

	if (!s->w || s->dead || s->hello_sent)
		return;
	s->hello_sent = true;
	meta_reset(st->meta);
	hello_put(st->meta, h);
	if (frame_write(s->w, FRAME_HELLO, 0, 0, st->meta, NULL, 0, false, &err))
		sink_note(st, s, &err);
}

void sink_end(struct stage *st, struct sink *s)
{
	struct ds_err err;

	if (!s->w || s->dead || s->ended)
		return;
	s->ended = true;
	if (frame_write_end(s->w, &err))
		sink_note(st, s, &err);
}

/* What the output's hello says: ours, or, where a downstream peer makes the frames, the peer's; via in both cases is
 * the whole way. */
void output_hello(struct stage *st)
{
	struct hello h = st->cfg->hello;
	const struct source *src = st->sources;

	if (st->cfg->raw_output || st->out.hello_sent)
		return;
	if (st->connect && st->down.hello_seen)
		h = st->down.hello;
	h.elsewhere = false;
	h.via[0] = 0;
	if (src && src->hello_seen) {
		memcpy(h.via, src->hello.via, sizeof h.via);
		hello_via(&h, src->hello.program, src->hello.version);
	}
	if (st->connect && st->down.hello_seen)
		hello_via(&h, st->cfg->hello.program, st->cfg->hello.version);
	sink_hello(&st->out, st, &h);
}

/* ---- the output file ---- */

int output_open(struct stage *st, struct ds_err *err)
{
	const struct stage_config *cfg = st->cfg;
	const char *path = cfg->opt.output;
	struct stat sb;
	int rc;

	if (!path && st->service)
		return 0;
	rc = outfile_open(&st->file, path, cfg->opt.force, cfg->raw_output, err);
	if (!rc)
		rc = sink_open(&st->out, st->file.fd, st->file.path, err);
	if (rc)
		return rc;
	fd_grow_pipe(st->out.fd);
	if (st->ops->awaited && st->ops->awaited(cfg->ctx))
		fd_nonblock_apart(st->out.fd);
	st->out_watch = fstat(st->out.fd, &sb) == 0 && (S_ISFIFO(sb.st_mode) || S_ISSOCK(sb.st_mode));
	return 0;
}

int output_commit(struct stage *st, struct ds_err *err)
{
	if (!st->out.w)
		return 0;
	sink_close(&st->out);
	st->out.fd = -1;
	return outfile_commit(&st->file, err);
}

void output_release(struct stage *st)
{
	int null;
	struct ds_err err;

	if (st->out.fd != STDOUT_FILENO || !st->out.w)
		return;
	if (output_commit(st, &err)) {
		stage_abort(st, &err);
		return;
	}
	null = open("/dev/null", O_WRONLY | O_CLOEXEC);
	if (null >= 0) {
		dup2(null, STDOUT_FILENO);
		close(null);
	}
}

void output_discard(struct stage *st)
{
	if (st->out.w)
		sink_close(&st->out);
	st->out.fd = -1;
	outfile_discard(&st->file);
}
