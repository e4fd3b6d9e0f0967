#include "model/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void file_free(struct text *t)
{
	free(t->p);
	free(t->path);
	memset(t, 0, sizeof *t);
}

static int read_whole(int fd, struct text *t, size_t size, struct ds_err *err)
{
	t->p = malloc(size + 1);
	if (!t->p)
		return err_nomem(err, size + 1, t->path);
	while (t->n < size) {
		ssize_t got = read(fd, t->p + t->n, size - t->n);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return err_errno(err, DS_IO, "cannot read '%s'", t->path);
		if (got == 0)
			break;
		t->n += (size_t)got;
	}
	t->p[t->n] = '\0';
	return 0;
}

static int read_from(const char *dir, const char *name, size_t max, bool optional, struct text *t, struct ds_err *err)
{
	struct stat st;
	int fd, rc;

	memset(t, 0, sizeof *t);
	if (asprintf(&t->path, "%s/%s", dir, name) < 0) {
		t->path = NULL;
		return err_nomem(err, strlen(dir) + strlen(name) + 2, "a path");
	}
	fd = open(t->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not hang us */
	if (fd < 0 && errno == ENOENT && optional) {
		file_free(t);
		return 0;
	}
	if (fd < 0)
		rc = err_errno(err, DS_NOINPUT, "cannot open '%s'", t->path);
	else if (fstat(fd, &st) < 0)
		rc = err_errno(err, DS_OS, "cannot stat '%s'", t->path);
	else if (!S_ISREG(st.st_mode))
		rc = err_set(err, DS_NOINPUT, "cannot read '%s': not a regular file", t->path);
	else if ((size_t)st.st_size > max)
		rc = err_set(err, DS_DATA, "cannot use '%s': %zu bytes are more than the limit of %zu", t->path,
			(size_t)st.st_size, max);
	else
		rc = read_whole(fd, t, (size_t)st.st_size, err);
	if (fd >= 0)
		close(fd);
	if (rc)
		file_free(t);
	return rc;
}

int file_read(const char *dir, const char *name, size_t max, struct text *t, struct ds_err *err)
{
	return read_from(dir, name, max, false, t, err);
}

int file_read_if_there(const char *dir, const char *name, size_t max, struct text *t, struct ds_err *err)
{
	return read_from(dir, name, max, true, t, err);
}
