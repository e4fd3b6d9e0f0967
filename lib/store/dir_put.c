/* Storing items. */
#include <zstd.h>

#include "base/mem.h"
#include "base/time.h"
#include "base/xxh3.h"
#include "store/dir_impl.h"

enum { ZSTD_LEVEL = 1, TRIES = 8 };

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
	uint64_t was;
	int rc = orphans_bounded(d, err);

	if (!rc)
		rc = dir_look_all(d, err); /* others may have put a newer one */
	*had = !rc && dir_find(d, &p->key, false, old);
	if (*had)
		rc = droppable(d, old->seg, err);
	if (*had && !rc)
		rc = entry_put_at(d, old->seg, &old->e, &was, err);
	if (*had && !rc && was >= *at) /* the new one is later */
		*at = was + 1;
	return rc;
}

/* It is written and in the index: on disk, if it has to be, then what it replaced is deleted.  What is not, the index
 * has left, so that it is an orphan; and who replaces or deletes the key next deletes that first. */
static int finish(struct dir *d, const struct store_put *p, struct rivals *rivals, struct ds_err *err)
{
	const struct place *loser = &rivals->loser;
	struct idx_record r = { .key = p->key, .offset = loser->offset, .front = (uint16_t)loser->front };
	int rc = 0;

	if (!rivals->seg)
		return err_set(err, DS_IO, "'%s': it cannot be read which item of a key is the last", d->path);
	if (p->sync || d->base.o.sync) /* if another put has replaced this one already, that one's */
		rc = segment_sync(d, rivals->seg, rivals->end, err);
	if (rc && loser->seg)
		orphan_add(d, loser->seg, &r, ORPHAN_LATER);
	else if (loser->seg)
		rc = segment_drop_left(d, &p->key, loser, err);
	return rc || !p->replace ? rc : orphans_drop(d, &p->key, err);
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
	if (!rc)
		rc = finish(d, p, &rivals, err);
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
		rc = dir_look_all(d, err);
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
	return ghost || p->exact || d->base.o.admission == STORE_ADMIT_ALL;
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
