#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
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

static int refuse_terminal(const struct stage *st, int fd, struct ds_err *err)
{
	if (st->cfg->raw_output || st->cfg->opt.force || !isatty(fd))
		return 0;
	return err_set(err, DS_USAGE, "frames are not for a terminal: use a pipe, -o FILE or --force");
}

static int open_tmp(struct stage *st, struct ds_err *err)
{
	size_t n = strlen(st->out_path) + 40;
	int fd = -1;

	st->out_tmp = malloc(n);
	if (!st->out_tmp)
		return err_nomem(err, n, "a file name");
	for (unsigned k = 0; k < 100 && fd < 0; k++) {
		snprintf(st->out_tmp, n, "%s.%d.%u.tmp", st->out_path, (int)getpid(), k);
		fd = open(st->out_tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
		if (fd < 0 && errno != EEXIST)
			break;
	}
	if (fd < 0) {
		int rc = err_errno(err, DS_IO, "cannot create '%s'", st->out_tmp);

		free(st->out_tmp);
		st->out_tmp = NULL;
		return rc;
	}
	signals_filter(st->out_tmp);
	return sink_open(&st->out, fd, st->out_path, err);
}

static int open_file(struct stage *st, const char *path, struct ds_err *err)
{
	struct stat sb;
	int fd, rc;

	st->out_path = strdup(path);
	if (!st->out_path)
		return err_nomem(err, strlen(path), "a file name");
	if (stat(path, &sb))
		return errno == ENOENT ? open_tmp(st, err) : err_errno(err, DS_IO, "cannot write '%s'", path);
	if (S_ISDIR(sb.st_mode))
		return err_set(err, DS_USAGE, "cannot write '%s': it is a directory", path);
	if (S_ISREG(sb.st_mode)) {
		if (!st->cfg->opt.force)
			return err_set(err, DS_USAGE, "'%s' exists: use --force to overwrite it", path);
		return open_tmp(st, err);
	}
	fd = open(path, O_WRONLY | O_CLOEXEC); /* a device or a named pipe is written as it is */
	if (fd < 0)
		return err_errno(err, DS_IO, "cannot open '%s'", path);
	rc = sink_open(&st->out, fd, path, err);
	return rc ? rc : refuse_terminal(st, fd, err);
}

int output_open(struct stage *st, struct ds_err *err)
{
	const char *path = st->cfg->opt.output;
	struct stat sb;
	int rc;

	if (!path && st->service)
		return 0;
	if (path && strcmp(path, "-") != 0) {
		rc = open_file(st, path, err);
	} else {
		if (fcntl(STDOUT_FILENO, F_GETFD) < 0)
			return err_errno(err, DS_IO, "cannot write to '<stdout>'");
		rc = refuse_terminal(st, STDOUT_FILENO, err);
		if (!rc)
			rc = sink_open(&st->out, STDOUT_FILENO, "<stdout>", err);
	}
	if (rc)
		return rc;
	fd_grow_pipe(st->out.fd);
	st->out_watch = fstat(st->out.fd, &sb) == 0 && (S_ISFIFO(sb.st_mode) || S_ISSOCK(sb.st_mode));
	return 0;
}

int output_commit(struct stage *st, struct ds_err *err)
{
	int fd = st->out.fd;

	if (!st->out.w)
		return 0;
	sink_close(&st->out);
	if (fd == STDOUT_FILENO) {
		fd = dup(fd); /* closing is where some file systems report a failure; stdout itself stays */
		if (fd < 0)
			return err_errno(err, DS_IO, "cannot write to '%s'", st->out.name);
	}
	if (close(fd))
		return err_errno(err, DS_IO, "cannot write to '%s'", st->out.name);
	st->out.fd = -1;
	if (!st->out_tmp)
		return 0;
	if (renameat2(AT_FDCWD, st->out_tmp, AT_FDCWD, st->out_path, st->cfg->opt.force ? 0 : RENAME_NOREPLACE) &&
		(errno != EINVAL || rename(st->out_tmp, st->out_path)))
		return err_errno(err, DS_IO, "cannot rename '%s' to '%s'", st->out_tmp, st->out_path);
	signals_filter(NULL);
	free(st->out_tmp);
	st->out_tmp = NULL;
	return 0;
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
	if (st->out.fd > STDERR_FILENO)
		close(st->out.fd);
	if (st->out_tmp)
		unlink(st->out_tmp);
	signals_filter(NULL);
	free(st->out_tmp);
	free(st->out_path);
	st->out_tmp = st->out_path = NULL;
}
