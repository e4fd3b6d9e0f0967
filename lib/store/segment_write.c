/*
 * Writing segments: made, appended to, sealed.
 *
 * An item is written front first: what a killed process left of one ends where its file ends, and what a machine that
 * lost its power left of one has a wrong XXH3 (or front).  So no order within an item is needed; after `sync`, the
 * answer waits for fdatasync of the file and, once, for the directory that names it.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/time.h"
#include "base/version.h"
#include "frame/hello.h"
#include "store/dir_impl.h"

enum { PIECES = 64 };

uint64_t segment_holds(const struct segment *seg)
{
	return __atomic_load_n(&seg->size, __ATOMIC_RELAXED) + IDX_HEAD +
		__atomic_load_n(&seg->items, __ATOMIC_RELAXED) * IDX_RECORD;
}

uint64_t segment_bytes(const struct segment *seg)
{
	uint64_t holds = segment_holds(seg);

	return !seg->sealed && holds < seg->reserve ? seg->reserve : holds;
}

/* All of iov at that place. */
static int write_at(int fd, const struct iovec *iov, size_t n, uint64_t at)
{
	size_t skip = 0; /* bytes of iov[0] that are written */

	while (n) {
		struct iovec part[PIECES];
		size_t m = n < PIECES ? n : PIECES;
		ssize_t put;

		memcpy(part, iov, m * sizeof *part);
		part[0].iov_base = (uint8_t *)part[0].iov_base + skip;
		part[0].iov_len -= skip;
		put = pwritev(fd, part, (int)m, (off_t)at);
		if (put < 0 && errno == EINTR)
			continue;
		if (put < 0)
			return -1;
		at += (uint64_t)put;
		skip += (size_t)put;
		for (; n && skip >= iov->iov_len; iov++, n--)
			skip -= iov->iov_len;
		if (!put && n && m == n) {
			errno = EIO;
			return -1;
		}
	}
	return 0;
}

/* A frame at the end of the file; what cannot be written whole is cut off again. */
static int write_frame(int fd, const char *name, const struct iovec *iov, size_t n, uint64_t at, struct ds_err *err)
{
	int why;

	if (write_at(fd, iov, n, at) == 0)
		return 0;
	why = errno;
	if (ftruncate(fd, (off_t)at))
		why = why == ENOSPC ? EIO : why; /* the segment cannot go on */
	errno = why;
	return err_errno(err, why == ENOSPC || why == EDQUOT ? DS_TEMP : DS_IO, "cannot write to '%s'", name);
}

/* Its first frame, which the tools keep. */
static int hello(struct dir *d, uint64_t reserve, struct iovec *iov, struct ds_err *err)
{
	struct hello h = { .minor = DS_FRAME_MINOR, .program = "ds-kvstore", .version = DS_VERSION, .role = "store" };
	struct frame_front front;
	int rc;

	meta_reset(d->tools.meta);
	hello_put(d->tools.meta, &h);
	meta_put_uint(d->tools.meta, "reserve", reserve);
	rc = frame_encode(d->tools.w, FRAME_HELLO, 0, 0, 0, d->tools.meta, NULL, 0, false, &front, err);
	*iov = (struct iovec){ (void *)(uintptr_t)front.p, front.n };
	return rc;
}

static int put_hello(struct dir *d, struct segment *seg, struct ds_err *err)
{
	struct iovec iov;
	int rc = hello(d, seg->reserve, &iov, err);

	if (rc)
		return rc;
	rc = write_frame(seg->fd, seg->name, &iov, 1, 0, err);
	segment_grow(seg, iov.iov_len);
	seg->frames = 1;
	return rc;
}

/* It is no longer written here; gone: nor there. */
static void let_go(struct dir *d, struct segment *seg, bool gone)
{
	lanes_leave(d, seg);
	pthread_rwlock_wrlock(&d->lock);
	seg->mine = false;
	if (gone)
		segment_gone(d, seg);
	pthread_rwlock_unlock(&d->lock);
	idx_free(&seg->idx);
	if (seg->fd >= 0)
		segment_unlock(d, seg);
	segment_release(d, seg);
}

int segment_create(struct dir *d, bool main, uint64_t reserve, struct segment **out, struct ds_err *err)
{
	uint64_t now = (uint64_t)time_wall_ns();
	struct segment_id id = { now > d->time ? now : d->time + 1, d->writer, main };
	struct segment *seg;
	int rc;

	d->time = id.time;
	pthread_rwlock_wrlock(&d->lock);
	seg = segment_add(d, &id, err);
	if (seg) {
		seg->mine = true;
		__atomic_store_n(&seg->growing, true, __ATOMIC_SEQ_CST);
		seg->reserve = reserve;
		seg->refs = 1; /* the writer's */
	}
	pthread_rwlock_unlock(&d->lock);
	if (!seg)
		return err->code;
	seg->fd = dir_open_file(d, seg->name, O_RDWR | O_CREAT | O_EXCL);
	if (seg->fd < 0) {
		rc = err_errno(err, errno == ENOSPC || errno == EDQUOT || dir_lacks() ? DS_TEMP : DS_IO,
			"cannot make '%s/%s'",
			d->path, seg->name);
	} else {
		rc = file_lock_until(seg->fd, LOCK_ALONE, d->until, seg->name, err);
		if (!rc)
			rc = put_hello(d, seg, err);
		if (!rc && !lanes_enter(d, seg))
			rc = err_set(err, DS_TEMP, "'%s': others are writing", d->path);
		if (rc)
			unlinkat(d->fd, seg->name, 0);
	}
	if (rc) {
		let_go(d, seg, true);
		return rc;
	}
	*out = seg;
	return 0;
}

/* Into the index; the segment is held for who asked. */
static int enter(struct dir *d, struct segment *seg, const struct idx_record *r, const struct append *a,
	struct rivals *rivals, struct ds_err *err)
{
	int rc = 0;

	if (!idx_add(&seg->idx, r))
		return err_nomem(err, sizeof *r, "an index of a segment");
	pthread_rwlock_wrlock(&d->lock);
	if (!entry_add(d, seg, r, index_hash(d->index, &r->key), a->asked, rivals))
		rc = err_nomem(err, sizeof *r, "the index");
	pthread_rwlock_unlock(&d->lock);
	return rc;
}

int segment_append(struct dir *d, struct tools *t, struct segment *seg, const struct append *a, struct rivals *rivals,
	struct ds_err *err)
{
	static const uint8_t zeros[FRAME_ALIGN];
	uint64_t at = seg->size, data = 0;
	struct idx_record r = { .key = a->item.key, .at_ns = a->item.at_ns };
	struct frame_front front;
	struct iovec *iov = mem_array((size_t)a->iovs + 2, sizeof *iov);
	int rc;

	if (!iov)
		return err_nomem(err, (size_t)a->iovs * sizeof *iov, "pieces of an item");
	rc = frame_encode(t->w, FRAME_STORE, a->flags, segment_mark(&d->secret, &seg->id, at), seg->frames, a->meta,
		a->iov, a->iovs, false, &front, err);
	if (rc)
		goto out;
	iov[0] = (struct iovec){ (void *)(uintptr_t)front.p, front.n };
	for (int i = 0; i < a->iovs; i++) {
		iov[i + 1] = a->iov[i];
		data += a->iov[i].iov_len;
	}
	iov[a->iovs + 1] = (struct iovec){ (void *)(uintptr_t)zeros, front.pad };
	data += front.pad;
	rc = write_frame(seg->fd, seg->name, iov, (size_t)a->iovs + 2, at, err);
	if (rc)
		goto out;
	r.offset = (uint32_t)(at / INDEX_UNIT);
	r.front = (uint16_t)(front.n / INDEX_UNIT);
	r.data = (uint32_t)(data / INDEX_UNIT);
	r.expires = store_seconds(a->item.expires_ns);
	seg->frames++;
	segment_grow(seg, at + front.n + data);
	rc = enter(d, seg, &r, a, rivals, err);
	if (rc) /* it is in the file, whole, but nobody knows it */
		segment_drop_left(d, &r.key, &(struct place){ seg, r.offset, r.front }, &(struct ds_err){ 0 });
out:
	free(iov);
	return rc;
}

/* ---- complete ---- */

int segment_close_file(struct dir *d, int fd, const struct segment_id *id, uint64_t frames, uint64_t size,
	uint64_t *end, struct ds_err *err)
{
	struct frame_front front;
	char name[SEGMENT_NAME];
	struct iovec iov;
	int rc;

	segment_name(id, ".seg", name);
	meta_reset(d->tools.meta);
	meta_put_uint(d->tools.meta, "frames", frames);
	meta_put_uint(d->tools.meta, "bytes", size);
	rc = frame_encode(d->tools.w, FRAME_END, 0, segment_mark(&d->secret, id, size), frames, d->tools.meta, NULL, 0,
		false, &front, err);
	if (rc)
		return rc;
	iov = (struct iovec){ (void *)(uintptr_t)front.p, front.n };
	*end = size + front.n;
	rc = write_frame(fd, name, &iov, 1, size, err);
	if (!rc && ftruncate(fd, (off_t)*end)) /* what an item left that failed, and could not be cut off */
		rc = err_errno(err, DS_IO, "cannot cut '%s'", name);
	return rc;
}

/* Others may have deleted items while the file beside it was not there yet: those it says are alive. */
static void drop_dead(struct dir *d, struct segment *seg)
{
	for (size_t i = 0; i < seg->idx.n; i++) {
		const struct idx_record *r = &seg->idx.rec[i];
		uint8_t head[FRAME_HEAD_BYTES];

		if (dir_read(seg->fd, head, sizeof head, (uint64_t)r->offset * INDEX_UNIT) &&
			(frame_front_bytes(head) != (size_t)r->front * INDEX_UNIT || head[7] != FRAME_STORE))
			idx_drop(d, &seg->id, r->offset);
	}
}

int segment_seal(struct dir *d, struct segment *seg, struct ds_err *err)
{
	uint64_t end = seg->size;
	bool empty = !seg->idx.n;
	int rc = 0;

	if (empty) {
		unlinkat(d->fd, seg->name, 0);
	} else {
		rc = segment_close_file(d, seg->fd, &seg->id, seg->frames, seg->size, &end, err);
		if (!rc) {
			pthread_rwlock_wrlock(&d->lock);
			segment_grow(seg, end);
			seg->sealed = true;
			pthread_rwlock_unlock(&d->lock);
			__atomic_store_n(&seg->growing, false, __ATOMIC_SEQ_CST);
			seg->idx.size = end;
			rc = idx_write(d, &seg->id, &seg->idx, err);
			if (!rc)
				drop_dead(d, seg);
			pthread_rwlock_wrlock(&d->lock);
			seg->beside = !rc;
			pthread_rwlock_unlock(&d->lock);
			if (dir_promised(d) && segment_sync(d, seg, end, err))
				d->unsettled = true;
		}
	}
	let_go(d, seg, empty);
	return rc;
}

void segment_unlock(struct dir *d, struct segment *seg)
{
	int fd = segment_fd(d, seg);

	pthread_mutex_lock(&d->pins);
	if (fd >= 0) {
		file_lock(fd, LOCK_NONE, false);
		pin_lock(fd, seg->pins ? LOCK_SHARED : LOCK_NONE);
	}
	pthread_mutex_unlock(&d->pins);
}

int segment_fill(struct dir *d, int fd, uint64_t at, uint64_t n, uint64_t seq, uint64_t frames, struct ds_err *err)
{
	struct iovec first;
	int rc = 0;

	if (!at && frames == 1 && !hello(d, d->segment_bytes, &first, err) && first.iov_len == n)
		return write_frame(fd, "a segment", &first, 1, 0, err);
	meta_reset(d->tools.meta);
	for (uint64_t i = 0; !rc && i < frames; i++) {
		uint64_t left = n - (frames - i) * FRAME_ALIGN, data = i + 1 < frames ? 0 : left;
		struct iovec iov = { NULL, (size_t)data }; /* what lies there */
		struct frame_front front;

		rc = frame_encode(d->tools.w, FRAME_DROPPED, FRAME_DROPPABLE, 0, seq + i, d->tools.meta, &iov,
			data != 0, false, &front, err);
		if (!rc && !dir_write(fd, front.p, front.n, at))
			rc = err_errno(err, DS_IO, "cannot write to a segment");
		at += FRAME_ALIGN;
		n -= FRAME_ALIGN;
	}
	return rc;
}
