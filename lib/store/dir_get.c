/* Reading items. */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/time.h"
#include "base/xxh3.h"
#include "store/dir_impl.h"

enum { PIECE = 1 << 20 }; /* read, and hashed while the cache has it */

enum state { RIGHT, DELETED, EXPIRED, WRONG, LOST, UNREAD, FAILED };

/* A file that is too short: the item is wrong.  A disk that fails says nothing of it: it is missed, and stays. */
static enum state read_at(int fd, void *p, size_t n, uint64_t at)
{
	return dir_read(fd, p, n, at) ? RIGHT : errno ? UNREAD : WRONG;
}

/* The front of what was found, to item, which points into t. */
static enum state read_front(struct dir *d, struct tools *t, const struct found *f, int *fd, struct store_item *item,
	struct ds_err *err)
{
	size_t n = (size_t)f->e.front * INDEX_UNIT;
	enum state state;
	struct frame frame;

	*fd = segment_fd(d, f->seg);
	if (*fd < 0 ? errno == ENOENT : segment_unlinked(*fd))
		return LOST;
	if (*fd < 0) {
		err_errno(err, dir_lacks() ? DS_TEMP : DS_IO, "cannot open '%s/%s'", d->path, f->seg->name);
		return FAILED;
	}
	state = n > SEGMENT_FRONT_MAX ? WRONG : read_at(*fd, t->front, n, (uint64_t)f->e.offset * INDEX_UNIT);
	if (state != RIGHT)
		return state;
	if (frame_parse(t->parser, t->front, n, &frame, err))
		return WRONG;
	if (frame.type == FRAME_DROPPED)
		return DELETED;
	if (frame_front_bytes(t->front) != n || frame.data_len != (uint64_t)f->e.data * INDEX_UNIT ||
		store_item_get(&frame, item, err) || !store_key_equal(&item->key, &f->e.key))
		return WRONG;
	if (store_item_expired(item, (uint64_t)time_wall_ns())) {
		COUNT(d, expired, 1);
		return EXPIRED;
	}
	return RIGHT;
}

static enum state read_plain(struct tools *t, int fd, uint64_t at, const struct store_item *item, uint8_t *dst)
{
	size_t size = (size_t)item->size, pad = item->stored - size;
	enum state state = RIGHT;
	uint8_t zeros[FRAME_ALIGN];

	xxh3_begin(&t->xxh);
	for (size_t done = 0; done < size; done += PIECE) {
		size_t n = size - done < PIECE ? size - done : PIECE;

		state = read_at(fd, dst + done, n, at + done);
		if (state != RIGHT)
			return state;
		xxh3_add(&t->xxh, dst + done, n);
	}
	if (pad) {
		state = read_at(fd, zeros, pad, at + size);
		if (state != RIGHT)
			return state;
		xxh3_add(&t->xxh, zeros, pad);
	}
	return !size || xxh3_end(&t->xxh) == item->xxh ? RIGHT : WRONG;
}

/* One whose bytes were compressed or taken apart. */
static enum state read_coded(struct tools *t, int fd, uint64_t at, const struct store_item *item, uint8_t *dst,
	struct ds_err *err)
{
	size_t plain = round_up((size_t)item->size, FRAME_ALIGN);
	enum state state;
	uint8_t *a = tools_room(&t->a, &t->a_cap, item->stored), *b = tools_room(&t->b, &t->b_cap, plain);

	if (!a || !b) {
		err_nomem(err, plain, "an item");
		return FAILED;
	}
	state = read_at(fd, a, item->stored, at);
	if (state != RIGHT)
		return state;
	if (!item->zstd)
		b = a;
	else if (!store_item_decode(item, a, b))
		return WRONG;
	if (xxh3(b, plain) != item->xxh)
		return WRONG;
	store_item_plain(item, b, dst);
	return RIGHT;
}

static enum state read_from(struct tools *t, int fd, uint64_t at, const struct store_item *item, void *dst,
	struct ds_err *err)
{
	return item->zstd || item->planes ? read_coded(t, fd, at, item, dst, err) : read_plain(t, fd, at, item, dst);
}

int item_read(struct tools *t, int fd, uint64_t at, const struct store_item *item, void *dst, struct ds_err *err)
{
	switch (read_from(t, fd, at, item, dst, err)) {
	case RIGHT: return 0;
	case FAILED: return err->code;
	case UNREAD: return err_errno(err, DS_NOINPUT, "cannot read a payload");
	default: return err_set(err, DS_DATA, "its bytes are not those that were put");
	}
}

static enum state read_payload(struct tools *t, int fd, const struct found *f, const struct store_item *item, void *dst,
	struct ds_err *err)
{
	return read_from(t, fd, ((uint64_t)f->e.offset + f->e.front) * INDEX_UNIT, item, dst, err);
}

/* What is wrong or over is no longer there; nor in the file, unless that is wrong and another process still writes
 * it. */
static void give_up(struct dir *d, const struct found *f, enum state state)
{
	const struct place place = { f->seg, f->e.offset, f->e.front };
	struct ds_err err;
	bool settled;

	if (!dir_forget(d, f))
		return;
	if (state == EXPIRED) /* or it would be back if the clock went back */
		segment_drop(d, &place, &err);
	if (state != WRONG)
		return;
	COUNT(d, corrupt, 1);
	pthread_rwlock_rdlock(&d->lock);
	settled = (f->seg->sealed || f->seg->mine) && !f->seg->gone;
	pthread_rwlock_unlock(&d->lock);
	if (settled)
		segment_drop(d, &place, &err);
}

/* Looks it up and reads its front.  DS_NO: it is not there. */
static int find_front(struct dir_session *ss, const struct store_key *key, struct found *f, int *fd,
	struct store_item *item, struct ds_err *err)
{
	struct dir *d = ss->d;

	for (int again = 0; again < 3; again++) {
		enum state state;

		if (!dir_find(d, key, again == 0, f))
			break;
		state = read_front(d, &ss->t, f, fd, item, err);
		if (state == RIGHT)
			return 0;
		if (state != LOST && state != FAILED && state != UNREAD)
			give_up(d, f, state);
		segment_release(d, f->seg);
		if (state == FAILED)
			return err->code;
		if (state == EXPIRED || state == UNREAD)
			break;
		/* It was removed, and perhaps moved; or deleted, and perhaps replaced. */
		if ((state == LOST || state == DELETED) && dir_look(d, true, err))
			return err->code;
	}
	return err_set(err, DS_NO, "it is not there");
}

bool dir_over(struct dir_session *ss, const struct found *f)
{
	struct store_item item;
	struct ds_err err;
	int fd;

	if (!f->e.expires || f->e.expires > store_seconds((uint64_t)time_wall_ns()))
		return false;
	if (read_front(ss->d, &ss->t, f, &fd, &item, &err) != EXPIRED)
		return false;
	give_up(ss->d, f, EXPIRED);
	return true;
}

enum next { NEXT, STOP, MISS };

static int get_one(struct dir_session *ss, const struct store_key *key, size_t i, const struct store_sink *sink,
	enum next *next, struct ds_err *err)
{
	struct store_item item;
	enum state state;
	struct found f;
	void *dst;
	int fd, rc = find_front(ss, key, &f, &fd, &item, err);

	*next = MISS;
	if (rc)
		return rc == DS_NO ? 0 : rc;
	dst = sink->place(sink->ctx, i, &item);
	if (!dst) {
		*next = STOP;
		segment_release(ss->d, f.seg);
		return 0;
	}
	state = read_payload(&ss->t, fd, &f, &item, dst, err);
	if (state == WRONG)
		give_up(ss->d, &f, state);
	segment_release(ss->d, f.seg);
	if (state == FAILED)
		return err->code;
	if (state == WRONG || state == UNREAD)
		return 0;
	COUNT(ss->d, hits, 1);
	COUNT(ss->d, hit_bytes, item.size);
	*next = NEXT;
	return 0;
}

int dir_get(struct store_session *base, const struct store_key *keys, size_t n, const struct store_sink *sink,
	size_t *got, struct ds_err *err)
{
	struct dir_session *ss = (struct dir_session *)base;
	enum next next = NEXT;
	int rc = 0;

	for (size_t i = 0; !rc && i < n && next == NEXT; i++) {
		if (store_until(base) && time_mono_ns() >= store_until(base))
			return err_set(err, DS_TEMP, "not read in time");
		rc = get_one(ss, &keys[i], i, sink, &next, err);
		if (!rc && next == NEXT) {
			++*got;
			if (!sink->done(sink->ctx, i))
				next = STOP;
		}
	}
	if (!rc && next == MISS)
		COUNT(ss->d, misses, 1);
	return rc;
}

static bool deleted(int fd, const struct found *f)
{
	uint8_t head[8];

	return dir_read(fd, head, sizeof head, (uint64_t)f->e.offset * INDEX_UNIT) && head[7] == FRAME_DROPPED;
}

int dir_ref(struct store_session *base, const struct store_key *key, struct store_ref *ref, struct ds_err *err)
{
	struct dir *d = dir_of(base);
	struct found f;

	for (int again = 0; again < 3 && dir_find(d, key, again == 0, &f); again++) {
		int fd = segment_fd(d, f.seg);
		bool lost = fd < 0 ? errno == ENOENT : segment_unlinked(fd);

		if (lost || (fd >= 0 && deleted(fd, &f))) { /* by another process, which may have put another */
			if (!lost)
				give_up(d, &f, DELETED);
			segment_release(d, f.seg);
			if (dir_look(d, true, err))
				return err->code;
			continue;
		}
		if (fd >= 0) {
			*ref = (struct store_ref){ fd, f.seg->number, (uint64_t)f.e.offset * INDEX_UNIT,
				(uint32_t)f.e.front * INDEX_UNIT, f.e.data * INDEX_UNIT, f.seg };
			COUNT(d, hits, 1);
			COUNT(d, hit_bytes, ref->data_bytes);
			return 0;
		}
		err_errno(err, dir_lacks() ? DS_TEMP : DS_IO, "cannot open '%s/%s'", d->path, f.seg->name);
		segment_release(d, f.seg);
		return err->code;
	}
	COUNT(d, misses, 1);
	return err_set(err, DS_NO, "it is not there");
}

void dir_unref(struct store_session *base, struct store_ref *ref)
{
	if (ref->hold)
		segment_release(dir_of(base), ref->hold);
	*ref = (struct store_ref){ .fd = -1 };
}

void dir_doubt(struct store_session *base, const struct store_key *key)
{
	struct dir_session *ss = (struct dir_session *)base;
	struct store_item item;
	struct ds_err err;
	struct found f;
	uint8_t *dst;
	int fd;

	if (find_front(ss, key, &f, &fd, &item, &err))
		return;
	dst = mem_array((size_t)item.size, 1);
	if (dst && read_payload(&ss->t, fd, &f, &item, dst, &err) == WRONG)
		give_up(ss->d, &f, WRONG);
	free(dst);
	segment_release(ss->d, f.seg);
}
