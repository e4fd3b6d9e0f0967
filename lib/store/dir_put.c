/* Storing and deleting items. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
#include <zstd.h>

#include "base/mem.h"
#include "base/time.h"
#include "base/xxh3.h"
#include "store/dir_impl.h"

enum { ZSTD_LEVEL = 1, TRIES = 8 };

/* ---- one thread at a time stores or deletes a key; but any number replace it, each with a time of its own ---- */

static bool must_wait(const struct dir *d, const struct flight *f)
{
	const struct flight *before = d->flight;

	while (before != f && (!store_key_equal(&before->key, &f->key) || (before->shared && f->shared)))
		before = before->next;
	return before != f;
}

static void flight_end(struct dir *d, const struct flight *f)
{
	struct flight **p = &d->flight;

	pthread_mutex_lock(&d->flights);
	while (*p != f)
		p = &(*p)->next;
	*p = f->next;
	pthread_cond_broadcast(&d->landed);
	pthread_mutex_unlock(&d->flights);
}

static int flight_begin(struct dir *d, struct flight *f, int64_t until, struct ds_err *err)
{
	const struct timespec t = { .tv_sec = until / 1000000000, .tv_nsec = until % 1000000000 };
	struct flight **end = &d->flight;
	bool wait;
	int late = 0;

	pthread_mutex_lock(&d->flights);
	while (*end)
		end = &(*end)->next;
	*end = f;
	while ((wait = must_wait(d, f)) && late != ETIMEDOUT)
		late = pthread_cond_timedwait(&d->landed, &d->flights, &t);
	pthread_mutex_unlock(&d->flights);
	if (!wait)
		return 0;
	flight_end(d, f);
	return err_set(err, DS_TEMP, "'%s': another put of the same key is not done", d->path);
}

/* ---- payloads ---- */

struct payload {
	const struct iovec *iov;
	int iovs;
	struct iovec one;
	unsigned flags, planes;
	uint64_t xxh;
};

static void hash_plain(struct tools *t, const struct store_put *p, size_t size, struct payload *out)
{
	static const uint8_t zeros[FRAME_ALIGN];

	xxh3_begin(&t->xxh);
	for (int i = 0; i < p->iovs; i++)
		if (p->iov[i].iov_len)
			xxh3_add(&t->xxh, p->iov[i].iov_base, p->iov[i].iov_len);
	xxh3_add(&t->xxh, zeros, round_up(size, FRAME_ALIGN) - size);
	*out = (struct payload){ .iov = p->iov, .iovs = p->iovs, .xxh = xxh3_end(&t->xxh) };
}

/* False: it does not save a twentieth. */
static bool compress(struct tools *t, const struct store_put *p, size_t size, struct payload *out)
{
	size_t padded = round_up(size, FRAME_ALIGN), cap = padded - padded / 20, n;
	unsigned planes = p->element >= 2 && p->element <= 16 ? p->element : 0;
	uint8_t *a = tools_room(&t->a, &t->a_cap, padded), *b = tools_room(&t->b, &t->b_cap, cap);

	if (!a || !b)
		return false;
	if (planes) {
		store_payload_split(planes, p->iov, p->iovs, size, a);
	} else {
		size_t at = 0;

		for (int i = 0; i < p->iovs; at += p->iov[i++].iov_len)
			if (p->iov[i].iov_len)
				memcpy(a + at, p->iov[i].iov_base, p->iov[i].iov_len);
		memset(a + size, 0, padded - size);
	}
	n = ZSTD_compress(b, cap, a, padded, ZSTD_LEVEL);
	if (ZSTD_isError(n))
		return false;
	*out = (struct payload){ .one = { b, n }, .iovs = 1, .flags = FRAME_ZSTD, .planes = planes,
		.xxh = xxh3(a, padded) };
	out->iov = &out->one;
	return true;
}

/* ---- deleting ---- */

/* Whether its items can be deleted: else the old one would come back. */
static int droppable(struct dir *d, struct segment *seg, struct ds_err *err)
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

int segment_drop(struct dir *d, const struct place *place, struct ds_err *err)
{
	struct segment *seg = place->seg;
	uint8_t p[SEGMENT_FRONT_MAX];
	size_t n = (size_t)place->front * INDEX_UNIT;
	uint64_t at = (uint64_t)place->offset * INDEX_UNIT;
	bool beside;
	int fd;

	if (d->base.o.read_only || n > sizeof p)
		return 0;
	if (droppable(d, seg, err))
		return err->code;
	/* First where it would be found again: the file beside the segment cannot tell of one that is half deleted.
	 * One that we write has none yet; whoever completes it looks. */
	beside = !__atomic_load_n(&seg->growing, __ATOMIC_SEQ_CST) && idx_drop(d, &seg->id, place->offset);
	fd = segment_fd(d, seg);
	if (fd < 0 || pread(fd, p, n, (off_t)at) != (ssize_t)n || p[7] != FRAME_STORE || !frame_drop(p, n))
		goto out; /* nor would anybody find it */
	if (pwrite(fd, p, FRAME_HEAD_BYTES, (off_t)at) != FRAME_HEAD_BYTES)
		return err_errno(err, DS_IO, "cannot delete an item of '%s/%s'", d->path, seg->name);
	if (!beside && !__atomic_load_n(&seg->growing, __ATOMIC_SEQ_CST))
		idx_drop(d, &seg->id, place->offset); /* the segment may have been completed meanwhile */
out:
	__atomic_fetch_add(&seg->drops, 1, __ATOMIC_RELEASE); /* by another process, perhaps, who did not wait for it */
	return 0;
}

/* ---- storing ---- */

/* Bytes of the item's frame. */
static int frame_size(struct tools *t, const struct append *a, uint64_t *n, struct ds_err *err)
{
	struct frame_front front;
	int rc = frame_encode(t->w, FRAME_STORE, a->flags, 1, 0, a->meta, a->iov, a->iovs, false, &front, err);

	if (rc)
		return rc;
	if (front.n > STORE_META_MAX)
		return err_set(err, DS_DATA, "an item's meta of %zu bytes is over the limit of %d", front.n,
			STORE_META_MAX);
	*n = front.n + front.pad;
	for (int i = 0; i < a->iovs; i++)
		*n += a->iov[i].iov_len;
	return 0;
}

/* The disk is full. */
static bool evict_for(struct dir *d, int64_t until)
{
	struct ds_err err;
	bool went = false;

	if (dir_write_lock(d, until, &err))
		return false;
	if (!dir_lock(d, &err)) {
		went = dir_evict_one(d, false, &err);
		dir_unlock(d);
	}
	dir_write_unlock(d);
	return went;
}

static int append(struct dir *d, struct tools *t, const struct append *a, bool main, int64_t until,
	struct rivals *rivals, struct ds_err *err)
{
	uint64_t n = 0;
	int rc = frame_size(t, a, &n, err);

	for (int i = 0; !rc; i++) {
		struct segment *seg;

		rc = lane_take(d, main, n, until, &seg, err);
		if (rc)
			break;
		rc = segment_append(d, t, seg, a, rivals, err);
		lane_give(d, seg, rc == DS_IO);
		if (rc == DS_IO)
			lanes_mend(d, until);
		if (rc != DS_TEMP || i == TRIES || !evict_for(d, until))
			break;
		rc = 0;
	}
	return rc;
}

/* An item that is to be replaced: its place, and a time after its own for the new one. */
static bool older(struct dir *d, const struct store_key *key, struct found *f, uint64_t *at)
{
	uint64_t was;

	if (!dir_find(d, key, false, f))
		return false;
	was = entry_put_at(d, f->seg, &f->e);
	if (was >= *at)
		*at = was + 1;
	return true;
}

static void describe(struct dir_session *ss, const struct store_put *p, const struct store_item *as,
	const struct payload *y, struct append *a)
{
	struct meta_builder *b = ss->t.meta;
	uint64_t ttl = p->ttl_ns ? p->ttl_ns : ss->d->base.o.ttl_ns;

	if (as) {
		a->item.at_ns = as->at_ns;
		a->item.expires_ns = as->expires_ns;
	} else if (ttl && __builtin_add_overflow(a->item.at_ns, ttl, &a->item.expires_ns)) {
		a->item.expires_ns = 0;
	}
	a->item.planes = y->planes;
	meta_reset(b);
	store_item_put(b, &a->item);
	if (a->item.size)
		meta_put_uint(b, "xxh", y->xxh);
	if (p->meta)
		meta_put_built(b, p->meta);
	a->meta = b;
	a->iov = y->iov;
	a->iovs = y->iovs;
	a->flags = y->flags;
}

/* What is to be replaced can be; it stays where it is until the new one is written. */
static int replaces(struct dir *d, const struct store_put *p, struct found *old, bool *had, uint64_t *at,
	struct ds_err *err)
{
	int rc = dir_look(d, true, err); /* others may have put a newer one */

	*had = !rc && older(d, &p->key, old, at);
	return *had ? droppable(d, old->seg, err) : rc;
}

static int store_it(struct dir_session *ss, const struct store_put *p, const struct store_item *as, size_t size,
	bool main, struct ds_err *err)
{
	struct dir *d = ss->d;
	struct append a = { .item = { .key = p->key, .size = size, .at_ns = (uint64_t)time_wall_ns() } };
	struct rivals rivals = { .seg = NULL };
	struct payload y;
	struct found old;
	bool had = false;
	int rc = 0;

	if (!d->base.o.zstd || !size || !compress(&ss->t, p, size, &y))
		hash_plain(&ss->t, p, size, &y);
	if (p->replace)
		rc = replaces(d, p, &old, &had, &a.item.at_ns, err);
	if (had)
		rivals.known = (struct place){ old.seg, old.e.offset, old.e.front };
	if (!rc) {
		describe(ss, p, as, &y, &a);
		rc = append(d, &ss->t, &a, main, dir_until(&ss->base), &rivals, err);
	}
	if (!rc && (p->sync || d->base.o.sync)) /* if another put has replaced this one already, that one's */
		rc = segment_sync(d, rivals.seg, rivals.end, err);
	if (!rc && rivals.loser.seg)
		rc = segment_drop(d, &rivals.loser, err);
	rivals_release(d, &rivals);
	if (had)
		segment_release(d, old.seg);
	return rc;
}

/* It is there: 0, and with sync, on disk. */
static int already(struct dir_session *ss, const struct store_put *p, bool *is, struct ds_err *err)
{
	struct dir *d = ss->d;
	struct found f;
	int fd, rc = 0;

	*is = dir_find(d, &p->key, false, &f);
	if (!*is && p->exact) {
		rc = dir_look(d, true, err);
		*is = !rc && dir_find(d, &p->key, false, &f);
	}
	if (!*is)
		return rc;
	fd = segment_fd(d, f.seg);
	*is = !(fd >= 0 && segment_unlinked(fd)) && !dir_over(ss, &f);
	if (*is && (p->sync || d->base.o.sync)) {
		rc = segment_sync(d, f.seg, ((uint64_t)f.e.offset + f.e.front + f.e.data) * INDEX_UNIT, err);
		*is = !rc; /* else it is stored once more */
	}
	segment_release(d, f.seg);
	return 0;
}

static bool admitted(struct dir *d, const struct store_put *p, bool *main)
{
	uint64_t hash;
	bool ghost;

	pthread_rwlock_wrlock(&d->lock);
	hash = index_hash(d->index, &p->key);
	ghost = index_ghost(d->index, hash);
	if (d->base.o.admission == STORE_ADMIT_SECOND && !ghost)
		index_ghost_add(d->index, hash);
	pthread_rwlock_unlock(&d->lock);
	*main = ghost && d->base.o.admission == STORE_ADMIT_ALL;
	return ghost || d->base.o.admission == STORE_ADMIT_ALL;
}

/* What it replaces was admitted. */
static bool has_old(struct dir *d, const struct store_put *p)
{
	struct found f;

	if (!p->replace || !dir_find(d, &p->key, false, &f))
		return false;
	segment_release(d, f.seg);
	return true;
}

static int check_size(const struct dir *d, const struct store_put *p, size_t *size, struct ds_err *err)
{
	uint64_t most = d->base.o.max_frame;

	*size = 0;
	for (int i = 0; i < p->iovs; i++)
		if (__builtin_add_overflow(*size, p->iov[i].iov_len, size))
			*size = SIZE_MAX;
	if (most > UINT32_MAX - FRAME_ALIGN)
		most = UINT32_MAX - FRAME_ALIGN;
	if (*size > most)
		return err_set(err, DS_DATA, "an item of %zu bytes is over the limit of %llu", *size,
			(unsigned long long)most);
	if (dir_capacity(d) && *size > dir_capacity(d))
		return err_full(err, DS_TEMP, "an item of %zu bytes is larger than the store of %llu", *size,
			(unsigned long long)dir_capacity(d));
	return 0;
}

int dir_put_item(struct dir_session *ss, const struct store_put *p, const struct store_item *as,
	enum store_put_result *how, struct ds_err *err)
{
	struct dir *d = ss->d;
	struct flight f = { .key = p->key, .shared = p->replace };
	bool is = false, main = false;
	size_t size;
	int rc = check_size(d, p, &size, err);

	if (!rc)
		rc = flight_begin(d, &f, dir_until(&ss->base), err);
	if (rc)
		goto out;
	if (!p->replace)
		rc = already(ss, p, &is, err);
	if (rc) {
		;
	} else if (is) {
		*how = STORE_ALREADY;
		COUNT(d, already, 1);
	} else if (!admitted(d, p, &main) && !has_old(d, p)) {
		*how = STORE_NOT_ADMITTED;
		COUNT(d, not_admitted, 1);
	} else {
		rc = store_it(ss, p, as, size, main, err);
		*how = STORE_STORED;
	}
	flight_end(d, &f);
	if (!rc && *how == STORE_STORED) {
		COUNT(d, puts, 1);
		COUNT(d, put_bytes, size);
	}
out:
	if (rc)
		COUNT(d, refused, 1);
	return rc;
}

int dir_put(struct store_session *ss, const struct store_put *p, enum store_put_result *how, struct ds_err *err)
{
	return dir_put_item((struct dir_session *)ss, p, NULL, how, err);
}

/* ---- deleting by key ---- */

static int delete_all(struct dir *d, const struct store_key *key, bool *was, struct ds_err *err)
{
	struct found f;
	int rc = dir_look(d, true, err);

	while (!rc && dir_find(d, key, false, &f)) {
		rc = segment_drop(d, &(struct place){ f.seg, f.e.offset, f.e.front }, err);
		if (!rc)
			*was = dir_forget(d, &f) || *was;
		segment_release(d, f.seg);
	}
	return rc;
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
	if (!rc && d->base.o.sync) /* also what it replaced earlier, which would be there again */
		rc = dir_sync_drops(d, err);
out:
	flight_end(d, &f);
	return rc;
}
