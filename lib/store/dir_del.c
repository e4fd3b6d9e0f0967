/* Deleting items; whose turn it is to store or delete a key. */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "store/dir_impl.h"

/* ---- whose turn it is ---- */

static bool must_wait(const struct dir *d, const struct flight *f)
{
	const struct flight *before = d->flight;

	while (before != f && (!store_key_equal(&before->key, &f->key) || (before->shared && f->shared)))
		before = before->next;
	return before != f;
}

void flight_end(struct dir *d, const struct flight *f)
{
	struct flight **p = &d->flight;

	pthread_mutex_lock(&d->flights);
	while (*p != f)
		p = &(*p)->next;
	*p = f->next;
	pthread_cond_broadcast(&d->landed);
	pthread_mutex_unlock(&d->flights);
}

int flight_begin(struct dir *d, struct flight *f, int64_t until, struct ds_err *err)
{
	const struct timespec t = { .tv_sec = until / 1000000000, .tv_nsec = until % 1000000000 };
	struct flight **end = &d->flight;
	bool wait;
	int late = 0;

	pthread_mutex_lock(&d->flights);
	while (*end)
		end = &(*end)->next;
	*end = f;
	while ((wait = must_wait(d, f)) && late != ETIMEDOUT) {
		store_wait(true);
		late = pthread_cond_timedwait(&d->landed, &d->flights, &t);
		store_wait(false);
	}
	pthread_mutex_unlock(&d->flights);
	if (!wait)
		return 0;
	flight_end(d, f);
	return err_set(err, DS_TEMP, "'%s': another put of the same key is not done", d->path);
}

/* ---- in the files ---- */

int droppable(struct dir *d, struct segment *seg, struct ds_err *err)
{
	int fd = segment_fd(d, seg);

	if (fd < 0 && errno == ENOENT)
		return 0;
	if (fd >= 0 && (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR)
		return 0;
	if (fd >= 0)
		errno = EACCES;
	return err_errno(err, fd < 0 && dir_lacks() ? DS_TEMP : DS_IO, "cannot delete an item of '%s/%s'", d->path,
		seg->name);
}

static int bad(struct dir *d, const struct segment_id *id, struct ds_err *err)
{
	char name[SEGMENT_NAME];
	int why = errno;

	segment_name(id, ".seg", name);
	errno = why;
	return err_errno(err, DS_IO, "cannot delete an item of '%s/%s'", d->path, name);
}

/* In the segment first: what the file beside it says only saves reading all of that.  While we write a segment there is
 * none yet, and whoever completes it looks at the heads. */
int segment_drop_at(struct dir *d, int fd, const struct segment_id *id, uint32_t offset, uint32_t front,
	struct ds_err *err)
{
	size_t n = (size_t)front * INDEX_UNIT;
	uint64_t at = (uint64_t)offset * INDEX_UNIT;
	uint8_t p[SEGMENT_FRONT_MAX];

	if (n > sizeof p)
		return 0; /* no item is so */
	if (!dir_read(fd, p, n, at))
		return errno ? bad(d, id, err) : 0; /* a file that is shorter does not have it */
	if (p[7] == FRAME_STORE && frame_drop(p, n) && !dir_write(fd, p, FRAME_HEAD_BYTES, at))
		return bad(d, id, err);
	idx_drop(d, id, offset);
	return 0;
}

int segment_drop(struct dir *d, const struct place *place, struct ds_err *err)
{
	int fd, rc;

	if (d->base.o.read_only)
		return 0;
	if (droppable(d, place->seg, err))
		return err->code;
	fd = segment_fd(d, place->seg);
	rc = fd < 0 ? 0 : segment_drop_at(d, fd, &place->seg->id, place->offset, place->front, err);
	if (!rc) /* by another process, perhaps, who did not wait for it */
		__atomic_fetch_add(&place->seg->drops, 1, __ATOMIC_RELEASE);
	return rc;
}

int segment_drop_left(struct dir *d, const struct store_key *key, const struct place *place, struct ds_err *err)
{
	struct idx_record r = { .key = *key, .offset = place->offset, .front = (uint16_t)place->front };
	int rc = segment_drop(d, place, err);

	if (rc)
		orphan_add(d, place->seg, &r, ORPHAN_DROP);
	return rc;
}

/* ---- by key ---- */

static int delete_all(struct dir *d, const struct store_key *key, bool *was, struct ds_err *err)
{
	struct found f;
	int rc = orphans_bounded(d, err);

	if (!rc)
		rc = dir_look_all(d, err);
	if (!rc)
		rc = orphans_drop(d, key, err);
	while (!rc && dir_find(d, key, false, &f)) {
		rc = segment_drop(d, &(struct place){ f.seg, f.e.offset, f.e.front }, err);
		if (!rc)
			*was = dir_forget(d, &f) || *was;
		segment_release(d, f.seg);
	}
	return rc ? rc : orphans_drop(d, key, err); /* what was met meanwhile */
}

int dir_del(struct store_session *ss, const struct store_key *key, bool *was, struct ds_err *err)
{
	struct dir *d = dir_of(ss);
	struct flight f = { .key = *key };
	int64_t until = dir_until(ss);
	int rc = flight_begin(d, &f, until, err);

	if (rc)
		return rc;
	rc = dir_write_lock(d, until, err);
	if (rc)
		goto out;
	rc = dir_lock(d, err); /* then nothing is being moved, and all copies are known */
	if (!rc) {
		rc = delete_all(d, key, was, err);
		dir_unlock(d);
	}
	dir_write_unlock(d);
	if (!rc && (d->base.o.sync || dir_promised(d))) /* also what it replaced earlier, which would be there again */
		rc = dir_sync_drops(d, err);
out:
	flight_end(d, &f);
	return rc;
}
