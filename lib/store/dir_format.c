/*
 * What a directory is: file `format`, "dsutils store 1", and the secret of its marks in 32 hexadecimal digits.  Who may
 * read segments need not know that: it is the owner's alone.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/sync.h"
#include "base/time.h"
#include "store/dir_impl.h"

static const char title[] = "dsutils store ", version[] = "1\n";

/* 0: there is one; DS_NO: none. */
static int read_format(struct dir *d, struct ds_err *err)
{
	char text[80] = "", *end;
	int fd = file_at(d->fd, "format", O_RDONLY, 0);
	ssize_t n;

	if (fd < 0 && errno == ENOENT)
		return err_set(err, DS_NO, "'%s' is no store", d->path);
	if (fd < 0 && errno == EACCES && d->base.o.read_only)
		return 0; /* another's: damaged segments are read up to the damage */
	if (fd < 0)
		return err_errno(err, DS_IO, "cannot open '%s/format'", d->path);
	n = read(fd, text, sizeof text - 1);
	close(fd);
	if (n < 0)
		return err_errno(err, DS_IO, "cannot read '%s/format'", d->path);
	if (strncmp(text, title, sizeof title - 1) != 0)
		return err_set(err, DS_DATA, "'%s/format' is not what a store has", d->path);
	if (strncmp(text + sizeof title - 1, version, sizeof version - 1) != 0)
		return err_set(err, DS_PROTO, "'%s' is a store of another version; this program writes version 1",
			d->path);
	end = text + sizeof title + sizeof version - 2;
	if (sscanf(end, "%16" SCNx64 "%16" SCNx64, &d->secret.k[0], &d->secret.k[1]) != 2)
		return err_set(err, DS_DATA, "'%s/format' is damaged", d->path);
	d->marked = true;
	return 0;
}

static bool is_empty(struct dir *d)
{
	int fd = openat(d->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	const struct dirent *e;
	struct segment_id id;
	bool empty = true;

	if (!dir && fd >= 0)
		close(fd);
	while (dir && (e = readdir(dir)))
		empty = empty && (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..") || !strcmp(e->d_name, "lock") ||
			!strcmp(e->d_name, "sync") || !strcmp(e->d_name, "capacity") ||
			!strcmp(e->d_name, "capacity.new") ||
			!strcmp(e->d_name, "format.new") || segment_parse(e->d_name, ".seg", &id) ||
			segment_parse(e->d_name, ".idx", &id) || segment_parse(e->d_name, ".new", &id));
	if (dir)
		closedir(dir);
	return empty;
}

static int write_format(struct dir *d, struct ds_err *err)
{
	char text[80];
	int fd, n, bad;

	if (!is_empty(d))
		return err_set(err, DS_CONFIG, "'%s' is no store, and not empty; name a directory of its own", d->path);
	keyed_random(&d->secret, sizeof d->secret);
	n = snprintf(text, sizeof text, "%s%s%016" PRIx64 "%016" PRIx64 "\n", title, version, d->secret.k[0],
		d->secret.k[1]);
	fd = file_at(d->fd, "format.new", O_WRONLY | O_CREAT | O_TRUNC, 0600);
	bad = fd < 0 || write(fd, text, (size_t)n) != n || fsync(fd);
	if (fd >= 0 && close(fd))
		bad = 1;
	if (bad || renameat(d->fd, "format.new", d->fd, "format"))
		return err_errno(err, DS_IO, "cannot write '%s/format'", d->path);
	d->marked = true;
	return sync_fd(d->fd, d->path, err);
}

static int open_path(struct dir *d, struct ds_err *err)
{
	bool ro = d->base.o.read_only, made = ro || mkdir(d->path, 0700) == 0;

	if (!made && errno == ENOENT)
		return err_set(err, DS_CONFIG, "cannot make directory '%s': the one it is to lie in is not there; "
			"make that first", d->path);
	if (!made && errno != EEXIST)
		return err_errno(err, DS_CONFIG, "cannot make directory '%s'", d->path);
	d->fd = open(d->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (d->fd < 0)
		return err_errno(err, ro ? DS_NOINPUT : DS_CONFIG, "cannot open '%s'", d->path);
	return 0;
}

int format_open(struct dir *d, struct ds_err *err)
{
	int rc = open_path(d, err);

	if (rc)
		return rc;
	if (d->base.o.read_only) {
		rc = read_format(d, err);
		if (!rc)
			rc = capacity_open(d, err);
		return rc == DS_NO ? err_set(err, DS_DATA, "'%s' is no store: it has no file 'format'", d->path) : rc;
	}
	if (faccessat(d->fd, "lock", F_OK, 0) && faccessat(d->fd, "format", F_OK, 0) && !is_empty(d))
		return err_set(err, DS_CONFIG, "'%s' is no store, and not empty; name a directory of its own", d->path);
	d->lock_fd = file_at(d->fd, "lock", O_RDWR | O_CREAT, 0666);
	if (d->lock_fd < 0)
		return err_errno(err, DS_CONFIG, "cannot make '%s/lock'", d->path);
	rc = file_lock_until(d->lock_fd, LOCK_ALONE, time_mono_ns() + DIR_OPEN_WAIT_S * (int64_t)1000000000, d->path,
		err);
	if (rc)
		return rc;
	rc = read_format(d, err);
	if (rc == DS_NO)
		rc = write_format(d, err);
	if (!rc)
		rc = capacity_open(d, err);
	file_lock(d->lock_fd, LOCK_NONE, true);
	return rc;
}
