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
	uint64_t drops = __atomic_load_n(&seg->drops, __ATOMIC_ACQUIRE);
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
	if (!rc && drops > seg->drops_synced)
		seg->drops_synced = drops;
	pthread_cond_broadcast(&seg->synced_more);
	return rc;
}

/* Until so many bytes of it are on disk, and so many deletions. */
static int sync_until(struct dir *d, struct segment *seg, uint64_t upto, uint64_t drops, struct ds_err *err)
{
	int rc = 0;

	store_wait(true);
	pthread_mutex_lock(&seg->sync);
	while (!rc && (seg->synced < upto || seg->drops_synced < drops) && !seg->unsafe)
		if (seg->syncing)
			pthread_cond_wait(&seg->synced_more, &seg->sync);
		else
			rc = sync_once(d, seg, err);
	if (!rc && (seg->synced < upto || seg->drops_synced < drops))
		rc = err_set(err, DS_IO, "'%s/%s' could not be written to disk", d->path, seg->name);
	pthread_mutex_unlock(&seg->sync);
	store_wait(false);
	return rc;
}

int segment_sync(struct dir *d, struct segment *seg, uint64_t upto, struct ds_err *err)
{
	int rc = promise(d, err);

	return rc ? rc : sync_until(d, seg, upto, 0, err);
}

/* ---- deletions ---- */

/* One from slot *i on that has some which may not be on disk, held; how many. */
static struct segment *next_dropped(struct dir *d, uint32_t *i, uint64_t *drops)
{
	struct segment *found = NULL;

	pthread_rwlock_rdlock(&d->lock);
	while (!found && *i < d->segs) {
		struct segment *seg = d->seg[(*i)++];

		if (!seg || seg->gone)
			continue;
		*drops = __atomic_load_n(&seg->drops, __ATOMIC_ACQUIRE);
		pthread_mutex_lock(&seg->sync);
		if (*drops > seg->drops_synced)
			found = seg;
		pthread_mutex_unlock(&seg->sync);
	}
	if (found)
		__atomic_fetch_add(&found->refs, 1, __ATOMIC_RELAXED);
	pthread_rwlock_unlock(&d->lock);
	return found;
}

int dir_sync_drops(struct dir *d, struct ds_err *err)
{
	uint64_t removed = __atomic_load_n(&d->removed, __ATOMIC_ACQUIRE), drops;
	struct segment *seg;
	uint32_t i = 0;
	int rc = 0;

	while (!rc && (seg = next_dropped(d, &i, &drops))) {
		bool is_gone = segment_fd(d, seg) < 0 && errno == ENOENT;

		if (!is_gone) /* the file beside it first: once the segment is, this is not done again */
			rc = idx_sync(d, &seg->id, err);
		if (!rc && !is_gone)
			rc = sync_until(d, seg, 0, drops, err);
		segment_release(d, seg);
	}
	if (!rc && removed != __atomic_load_n(&d->removed_synced, __ATOMIC_ACQUIRE)) {
		rc = sync_fd(d->fd, d->path, err);
		if (!rc)
			__atomic_store_n(&d->removed_synced, removed, __ATOMIC_RELEASE);
	}
	return rc;
}
