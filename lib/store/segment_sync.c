/* Bringing segments to disk. */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/sync.h"
#include "store/dir_impl.h"

bool segment_unsafe(struct segment *seg)
{
	bool unsafe;

	pthread_mutex_lock(&seg->sync);
	unsafe = seg->unsafe;
	pthread_mutex_unlock(&seg->sync);
	return unsafe;
}

/* Whoever moves items has to know that some are promised to be on disk: file `sync` says so, before the first is. */
static int promise(struct dir *d, struct ds_err *err)
{
	int fd;

	if (__atomic_load_n(&d->promised, __ATOMIC_RELAXED))
		return 0;
	fd = dir_open_file(d, "sync", O_WRONLY | O_CREAT);
	if (fd < 0)
		return err_errno(err, DS_IO, "cannot make '%s/sync'", d->path);
	close(fd);
	if (sync_fd(d->fd, d->path, err))
		return err->code;
	__atomic_store_n(&d->promised, true, __ATOMIC_RELAXED);
	return 0;
}

bool dir_promised(struct dir *d)
{
	return __atomic_load_n(&d->promised, __ATOMIC_RELAXED) || faccessat(d->fd, "sync", F_OK, 0) == 0;
}

int dir_settle(struct dir *d, struct ds_err *err)
{
	int rc = d->unsettled ? err_set(err, DS_IO, "'%s': what is moved does not reach the disk", d->path) : 0;

	d->unsettled = false;
	for (int i = 0; i < 2 * LANES && !rc && dir_promised(d); i++) {
		struct segment *seg = d->active[i / LANES][i % LANES]; /* changed under d->write only */

		if (seg && seg->moved)
			rc = segment_sync(d, seg, seg->moved, err);
	}
	return rc;
}

/* Under seg->sync, which is released meanwhile: whoever comes later waits, and shares the next one. */
static int sync_once(struct dir *d, struct segment *seg, struct ds_err *err)
{
	uint64_t size = __atomic_load_n(&seg->size, __ATOMIC_RELAXED);
	bool named = seg->named;
	int fd, rc = 0, bad;

	seg->syncing = true;
	pthread_mutex_unlock(&seg->sync);
	fd = segment_fd(d, seg);
	do
		bad = fd < 0 ? -1 : fdatasync(fd);
	while (bad && errno == EINTR);
	if (bad)
		rc = err_errno(err, DS_IO, "cannot write '%s/%s' to disk", d->path, seg->name);
	else if (!named)
		rc = sync_fd(d->fd, d->path, err);
	pthread_mutex_lock(&seg->sync);
	seg->syncing = false;
	if (rc)
		seg->unsafe = true; /* what was lost is not known, and the next call would not tell */
	else
		seg->named = true;
	if (!rc && size > seg->synced)
		seg->synced = size;
	pthread_cond_broadcast(&seg->synced_more);
	return rc;
}

int segment_sync(struct dir *d, struct segment *seg, uint64_t upto, struct ds_err *err)
{
	int rc = promise(d, err);

	if (rc)
		return rc;
	pthread_mutex_lock(&seg->sync);
	while (!rc && seg->synced < upto && !seg->unsafe)
		if (seg->syncing)
			pthread_cond_wait(&seg->synced_more, &seg->sync);
		else
			rc = sync_once(d, seg, err);
	if (!rc && seg->synced < upto)
		rc = err_set(err, DS_IO, "'%s/%s' could not be written to disk", d->path, seg->name);
	pthread_mutex_unlock(&seg->sync);
	return rc;
}
