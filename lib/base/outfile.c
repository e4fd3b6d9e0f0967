#include "base/outfile.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/leftover.h"
#include "base/std_fds.h"
#include "base/sync.h"

/* ---- what a signal must remove ---- */

static void on_fatal(int sig)
{
	leftover_remove();
	signal(sig, SIG_DFL);
	raise(sig);
}

static void handle(int sig)
{
	struct sigaction sa = { .sa_handler = on_fatal, .sa_flags = SA_RESTART }, old;

	if (sigaction(sig, NULL, &old) || old.sa_handler != SIG_DFL)
		return; /* nohup, or a program with a way of its own to end */
	sigemptyset(&sa.sa_mask);
	sigaction(sig, &sa, NULL);
}

static void guard(const char *tmp)
{
	leftover_add(tmp);
	handle(SIGTERM);
	handle(SIGINT);
	handle(SIGHUP);
}

/* ---- opening ---- */

static int refuse_terminal(const struct outfile *o, struct ds_err *err)
{
	if (o->force || o->text || !isatty(o->fd))
		return 0;
	return err_set(err, DS_USAGE, "frames are not for a terminal: use a pipe, -o FILE or --force");
}

static int open_tmp(struct outfile *o, struct ds_err *err)
{
	size_t n = strlen(o->path) + 40;

	o->tmp = malloc(n);
	if (!o->tmp)
		return err_nomem(err, n, "a file name");
	for (unsigned k = 0; k < 100 && o->fd < 0; k++) {
		snprintf(o->tmp, n, "%s.%d.%u.tmp", o->path, (int)getpid(), k);
		o->fd = open(o->tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
		if (o->fd < 0 && errno != EEXIST)
			break;
	}
	if (o->fd < 0) {
		int rc = err_errno(err, DS_IO, "cannot create '%s'", o->tmp);

		free(o->tmp);
		o->tmp = NULL;
		return rc;
	}
	guard(o->tmp);
	return 0;
}

static int open_path(struct outfile *o, struct ds_err *err)
{
	struct stat sb;

	if (!*o->path)
		return err_set(err, DS_USAGE, "cannot write '': the name is empty");
	if (stat(o->path, &sb))
		return errno == ENOENT ? open_tmp(o, err) : err_errno(err, DS_IO, "cannot write '%s'", o->path);
	if (S_ISDIR(sb.st_mode))
		return err_set(err, DS_USAGE, "cannot write '%s': it is a directory", o->path);
	if (S_ISREG(sb.st_mode) && !o->force)
		return err_set(err, DS_USAGE, "'%s' exists: use --force to overwrite it", o->path);
	if (S_ISREG(sb.st_mode))
		return open_tmp(o, err);
	o->fd = open(o->path, O_WRONLY | O_CLOEXEC);
	return o->fd < 0 ? err_errno(err, DS_IO, "cannot open '%s'", o->path) : refuse_terminal(o, err);
}

static int open_stdout(struct outfile *o, struct ds_err *err)
{
	if (std_fd_closed(STDOUT_FILENO))
		return err_errno(err, DS_IO, "cannot write to '<stdout>'");
	o->fd = STDOUT_FILENO;
	return refuse_terminal(o, err);
}

int outfile_open(struct outfile *o, const char *path, bool force, bool text, struct ds_err *err)
{
	bool out = !path || strcmp(path, "-") == 0;
	int rc;

	*o = (struct outfile){ .fd = -1, .force = force, .text = text, .path = strdup(out ? "<stdout>" : path) };
	if (!o->path)
		return err_nomem(err, 64, "a file name");
	rc = out ? open_stdout(o, err) : open_path(o, err);
	if (rc)
		outfile_discard(o);
	return rc;
}

/* ---- the end ---- */

int outfile_commit(struct outfile *o, struct ds_err *err)
{
	int fd = o->fd, rc;

	if (fd < 0)
		return 0;
	if (fd == STDOUT_FILENO) {
		fd = dup(fd); /* closing is where some file systems report a failure; stdout itself stays */
		if (fd < 0)
			return err_errno(err, DS_IO, "cannot write to '%s'", o->path);
	}
	o->fd = -1;
	rc = o->tmp ? sync_fd(fd, o->path, err) : 0;
	if (close(fd) && !rc)
		rc = err_errno(err, DS_IO, "cannot write to '%s'", o->path);
	if (rc || !o->tmp)
		return rc;
	if (renameat2(AT_FDCWD, o->tmp, AT_FDCWD, o->path, o->force ? 0 : RENAME_NOREPLACE) &&
		(errno != EINVAL || rename(o->tmp, o->path)))
		return err_errno(err, DS_IO, "cannot rename '%s' to '%s'", o->tmp, o->path);
	leftover_done(o->tmp);
	free(o->tmp);
	o->tmp = NULL;
	return sync_parent(o->path, err);
}

void outfile_discard(struct outfile *o)
{
	if (o->fd > STDERR_FILENO)
		close(o->fd);
	o->fd = -1;
	if (o->tmp) {
		unlink(o->tmp);
		leftover_done(o->tmp);
	}
	free(o->tmp);
	free(o->path);
	o->tmp = o->path = NULL;
}
