/*
 * What other processes do in the directory: segments that came, that grew, that went away, that were left half done.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/time.h"
#include "store/dir_impl.h"

enum {
	AGAIN_MS = 50,     /* least time between two looks that nobody insists on */
	SETTLED_MS = 2000, /* a directory that changed longer ago was seen as it is */
	SETTLED_HERE_MS = 30, /* where its times are this kernel's, which advance with its ticks */
	IDLE_S = 3,
	BATCH = 4096,
};

/* ---- items of others ---- */

int segment_enter(struct dir *d, struct segment *seg, const struct idx_record *r, size_t n, struct ds_err *err)
{
	enum { AHEAD = 16 };
	uint64_t hash[AHEAD];
	int rc = 0;

	for (size_t from = 0; !rc && from < n; from += BATCH) {
		size_t to = n - from < BATCH ? n : from + BATCH;

		pthread_rwlock_wrlock(&d->lock);
		for (size_t i = from; i < to && i < from + AHEAD; i++)
			index_prefetch(d->index, hash[i % AHEAD] = index_hash(d->index, &r[i].key));
		for (size_t i = from; !rc && i < to && !seg->gone; i++) {
			uint64_t h = hash[i % AHEAD];

			if (i + AHEAD < to)
				index_prefetch(d->index, hash[i % AHEAD] = index_hash(d->index, &r[i + AHEAD].key));
			if (!r[i].dead && !entry_add(d, seg, &r[i], h, 0, NULL))
				rc = err_nomem(err, n * sizeof(struct index_entry), "the index");
		}
		pthread_rwlock_unlock(&d->lock);
	}
	return rc;
}

/* All items from s->at on, to x; *ended: the end frame was there.  fill: what was damaged becomes droppable. */
static int scan_all(struct dir *d, struct scan *s, struct idx *x, bool *ended, bool fill, struct ds_err *err)
{
	enum scan_got got = SCAN_GAP;
	struct idx_record r;
	int rc = 0;

	*ended = false;
	while (!rc && got != SCAN_STOP && got != SCAN_END) {
		rc = scan_next(s, &got, err);
		if (rc)
			break;
		if (got == SCAN_ITEM)
			scan_record(s, &r);
		if (got == SCAN_ITEM && !idx_add(x, &r))
			rc = err_nomem(err, x->n * sizeof r, "an index of a segment");
		if (got == SCAN_GAP && fill)
			rc = segment_fill(d, s->fd, s->offset, s->gap, s->frames - s->lost, s->lost, err);
		*ended = got == SCAN_END;
	}
	x->size = s->at;
	return rc;
}

/* Somebody writes it; else it can be searched for what lies behind damage. */
static bool written(int fd)
{
	bool is = !file_lock(fd, LOCK_SHARED, false);

	if (!is)
		file_lock(fd, LOCK_NONE, false);
	return is;
}

/* What is new in a segment that another process writes, as far as it is whole. */
static int tail(struct dir *d, struct segment *seg, struct ds_err *err)
{
	struct idx x = { 0 };
	struct scan s;
	bool ended = false;
	int fd = segment_fd(d, seg), rc;

	if (fd < 0 && dir_lacks())
		return err_errno(err, DS_TEMP, "cannot open '%s/%s'", d->path, seg->name);
	if (fd < 0) {
		d->blind = d->blind || errno != ENOENT; /* it went away */
		return 0;
	}
	rc = scan_begin(&s, fd, &seg->id, d->base.o.read_only && !written(fd) && d->marked ? &d->secret : NULL, err);
	if (rc)
		return rc;
	if (s.limit > seg->size) {
		s.at = seg->size;
		s.frames = seg->frames;
		rc = scan_all(d, &s, &x, &ended, false, err);
		if (!rc)
			rc = segment_enter(d, seg, x.rec, x.n, err);
		pthread_rwlock_wrlock(&d->lock);
		if (!rc && x.size > seg->size) {
			segment_grow(seg, x.size);
			seg->frames = s.frames;
		}
		if (s.reserve)
			seg->reserve = s.reserve;
		seg->sealed = ended;
		pthread_rwlock_unlock(&d->lock);
	}
	scan_end(&s);
	idx_free(&x);
	if (rc != DS_IO)
		return rc;
	d->blind = true; /* what cannot be read is not there, but nobody knows that it is not */
	return 0;
}

static int seen_new(struct dir *d, const struct segment_id *id, struct ds_err *err)
{
	struct segment *seg;
	struct idx x;
	int rc = idx_read(d, id, &x, err);
	bool beside = !rc;

	if (rc && rc != DS_NO)
		return rc;
	rc = 0;
	pthread_rwlock_wrlock(&d->lock);
	seg = segment_add(d, id, err);
	if (seg) {
		seg->sealed = seg->beside = beside;
		seg->drops = 1; /* what others deleted, for all we know */
		segment_grow(seg, beside ? x.size : 0);
		seg->refs++;
	}
	pthread_rwlock_unlock(&d->lock);
	if (!seg)
		rc = err->code;
	else if (beside)
		rc = segment_enter(d, seg, x.rec, x.n, err);
	else
		rc = tail(d, seg, err);
	if (seg && rc) { /* next time from the beginning */
		pthread_rwlock_wrlock(&d->lock);
		segment_gone(d, seg);
		pthread_rwlock_unlock(&d->lock);
	}
	if (seg)
		segment_release(d, seg);
	idx_free(&x);
	return rc;
}

/* ---- the directory ---- */

static int by_order(const void *a, const void *b)
{
	return segment_order(a, b);
}

static bool ids_have(const struct ids *ids, const struct segment_id *id)
{
	return ids->n && bsearch(id, ids->id, ids->n, sizeof *id, by_order);
}

static bool ids_add(struct ids *ids, const struct segment_id *id)
{
	void *p = mem_more(ids->id, &ids->cap, ids->n, sizeof *id);

	if (!p)
		return false;
	ids->id = p;
	ids->id[ids->n++] = *id;
	return true;
}

static bool is_file(const struct dir *d, const struct dirent *e)
{
	struct stat st;

	return e->d_type == DT_UNKNOWN ? !fstatat(d->fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) && S_ISREG(st.st_mode) :
		e->d_type == DT_REG;
}

int dir_names(struct dir *d, struct ids *ids, struct ds_err *err)
{
	int fd = dir_open_file(d, ".", O_RDONLY | O_DIRECTORY), rc = 0;
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	const struct dirent *e;
	struct segment_id id;

	if (!dir) {
		if (fd >= 0)
			close(fd);
		return err_errno(err, dir_lacks() ? DS_TEMP : DS_IO, "cannot look through '%s'", d->path);
	}
	while (!rc && (e = readdir(dir)))
		if (!segment_parse(e->d_name, ".seg", &id))
			continue;
		else if (!is_file(d, e))
			ids->odd++;
		else if (!ids_add(ids, &id))
			rc = err_nomem(err, ids->n * sizeof id, "names of files");
	closedir(dir);
	if (ids->n)
		qsort(ids->id, ids->n, sizeof id, by_order);
	return rc;
}

/* What is known and not there is gone; what is known, to `known`. */
static int forget_gone(struct dir *d, const struct ids *there, struct ids *known, struct ds_err *err)
{
	int rc = 0;

	pthread_rwlock_wrlock(&d->lock);
	for (uint32_t i = 0; !rc && i < d->segs; i++) {
		struct segment *seg = d->seg[i];

		if (!seg || seg->gone)
			continue;
		if (!ids_have(there, &seg->id) && !seg->mine) {
			segment_gone(d, seg);
			__atomic_fetch_add(&d->removed, 1, __ATOMIC_RELEASE);
		} else if (!ids_add(known, &seg->id))
			rc = err_nomem(err, known->n * sizeof seg->id, "names of files");
	}
	pthread_rwlock_unlock(&d->lock);
	if (known->n)
		qsort(known->id, known->n, sizeof *known->id, by_order);
	return rc;
}

/* The index is made ready for what the files beside new segments say that there is. */
static void expect(struct dir *d, const struct ids *there, const struct ids *known)
{
	size_t n = 0;

	for (size_t i = 0; i < there->n; i++)
		if (!ids_have(known, &there->id[i]))
			n += idx_count(d, &there->id[i]);
	pthread_rwlock_wrlock(&d->lock);
	index_reserve(d->index, index_count(d->index) + n);
	pthread_rwlock_unlock(&d->lock);
}

static int list(struct dir *d, struct ds_err *err)
{
	struct ids there = { 0 }, known = { 0 };
	int rc = dir_names(d, &there, err);

	if (!rc)
		rc = forget_gone(d, &there, &known, err);
	if (!rc)
		expect(d, &there, &known);
	for (size_t i = 0; !rc && i < there.n; i++)
		if (!ids_have(&known, &there.id[i]))
			rc = seen_new(d, &there.id[i], err);
	free(there.id);
	free(known.id);
	return rc;
}

/* A segment from slot *i on that others write, held. */
static struct segment *next_growing(struct dir *d, uint32_t *i)
{
	struct segment *seg = NULL;

	pthread_rwlock_rdlock(&d->lock);
	while (!seg && *i < d->segs) {
		seg = d->seg[(*i)++];
		if (seg && (seg->gone || seg->sealed || seg->mine))
			seg = NULL;
	}
	if (seg)
		__atomic_fetch_add(&seg->refs, 1, __ATOMIC_RELAXED);
	pthread_rwlock_unlock(&d->lock);
	return seg;
}

static bool is_here(int fd)
{
	static const unsigned long kinds[] = { EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC, BTRFS_SUPER_MAGIC, TMPFS_MAGIC };
	struct statfs fs;

	if (fstatfs(fd, &fs))
		return false;
	for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
		if ((unsigned long)fs.f_type == kinds[i])
			return true;
	return false;
}

/* now: what it is noted as once it was listed. */
static bool must_list(const struct dir *d, struct listed *now)
{
	struct stat st;
	int64_t age;

	*now = (struct listed){ { 0 }, false };
	if (fstat(d->fd, &st) < 0)
		return true;
	age = time_wall_ns() - ((int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec);
	now->changed = st.st_mtim;
	/* no nanoseconds: a file system that keeps whole seconds only */
	now->late = age > SETTLED_MS * (int64_t)1000000 ||
		(age > SETTLED_HERE_MS * (int64_t)1000000 && st.st_mtim.tv_nsec && is_here(d->fd));
	return !d->listed.late || st.st_mtim.tv_sec != d->listed.changed.tv_sec ||
		st.st_mtim.tv_nsec != d->listed.changed.tv_nsec;
}

static int look(struct dir *d, bool force, bool all, struct ds_err *err)
{
	int64_t now = time_mono_ns();
	struct listed listed;
	struct segment *seg;
	uint32_t i = 0;
	int rc = 0;

	if (force)
		pthread_mutex_lock(&d->scan);
	else if (now - __atomic_load_n(&d->scanned_ns, __ATOMIC_RELAXED) < AGAIN_MS * (int64_t)1000000 ||
		pthread_mutex_trylock(&d->scan))
		return 0;
	d->blind = false;
	if (must_list(d, &listed)) {
		rc = list(d, err);
		d->listed = rc ? (struct listed){ { 0 }, false } : listed;
	}
	while (!rc && (seg = next_growing(d, &i))) {
		rc = tail(d, seg, err);
		segment_release(d, seg);
	}
	if (!rc && all && d->blind)
		rc = err_set(err, DS_IO, "'%s': a segment cannot be read", d->path);
	__atomic_store_n(&d->scanned_ns, time_mono_ns(), __ATOMIC_RELAXED);
	pthread_mutex_unlock(&d->scan);
	return rc;
}

int dir_look(struct dir *d, bool force, struct ds_err *err)
{
	return look(d, force, false, err);
}

int dir_look_all(struct dir *d, struct ds_err *err)
{
	return look(d, true, true, err);
}

/* ---- what dead processes left ---- */

/* Its lock is ours: it is cut to what is whole, and ended. */
static int complete(struct dir *d, struct segment *seg, int fd, struct idx *x, struct ds_err *err)
{
	struct scan s;
	bool ended;
	int rc = scan_begin(&s, fd, &seg->id, d->marked ? &d->secret : NULL, err);

	if (rc)
		return rc;
	rc = scan_all(d, &s, x, &ended, true, err);
	if (!rc && x->n && s.limit > s.at && ftruncate(fd, (off_t)s.at))
		rc = err_errno(err, DS_IO, "cannot cut '%s'", seg->name);
	if (!rc && !ended && x->n)
		rc = segment_close_file(d, fd, &seg->id, s.frames, s.at, &x->size, err);
	scan_end(&s);
	return rc;
}

static int inherit(struct dir *d, struct segment *seg, int fd, struct ds_err *err)
{
	struct idx x = { 0 };
	int rc = complete(d, seg, fd, &x, err);

	if (!rc && x.n) {
		rc = idx_write(d, &seg->id, &x, err);
		if (!rc)
			rc = segment_enter(d, seg, x.rec, x.n, err);
	} else if (!rc) {
		unlinkat(d->fd, seg->name, 0);
	}
	pthread_rwlock_wrlock(&d->lock);
	if (!rc && x.n) {
		seg->sealed = seg->beside = true;
		segment_grow(seg, x.size);
	} else if (!rc) {
		segment_gone(d, seg);
	}
	pthread_rwlock_unlock(&d->lock);
	idx_free(&x);
	return rc;
}

static struct segment *next_left(struct dir *d, uint32_t *i)
{
	struct segment *seg = NULL;

	pthread_rwlock_rdlock(&d->lock);
	while (!seg && *i < d->segs) {
		seg = d->seg[(*i)++];
		if (seg && (seg->gone || (seg->sealed && seg->beside) || seg->mine))
			seg = NULL;
	}
	if (seg)
		__atomic_fetch_add(&seg->refs, 1, __ATOMIC_RELAXED);
	pthread_rwlock_unlock(&d->lock);
	return seg;
}

void dir_inherit(struct dir *d)
{
	struct segment *seg;
	struct ds_err err; /* what cannot be made complete stays as it is */
	uint32_t i = 0;

	while ((seg = next_left(d, &i))) {
		int fd = segment_fd(d, seg);

		if (fd >= 0 && file_lock(fd, LOCK_ALONE, false)) { /* nobody writes it; its items stay, pinned or not */
			pthread_mutex_lock(&d->scan);
			inherit(d, seg, fd, &err);
			pthread_mutex_unlock(&d->scan);
			file_lock(fd, LOCK_NONE, false);
		}
		segment_release(d, seg);
	}
}

/* ---- from time to time ---- */

static void free_gone(struct dir *d)
{
	for (uint32_t i = 0; i < d->segs; i++) {
		struct segment *seg = d->seg[i];

		if (!seg || !seg->gone || seg->refs || seg->items)
			continue;
		if (seg->fd >= 0)
			close(seg->fd);
		pthread_mutex_destroy(&seg->sync);
		pthread_cond_destroy(&seg->synced_more);
		free(seg);
		d->seg[i] = NULL;
		d->gone[i] = 0;
	}
}

void dir_sweep(struct dir *d, bool now)
{
	enum { STEP = 1 << 14 };
	uint32_t top, at = 0;
	size_t stale;

	pthread_rwlock_wrlock(&d->lock);
	free_gone(d);
	top = index_top(d->index);
	stale = d->stale;
	pthread_rwlock_unlock(&d->lock);
	if (!stale || (!now && stale < top / 8))
		return;
	while (at < top) {
		pthread_rwlock_wrlock(&d->lock);
		for (uint32_t to = top - at < STEP ? top : at + STEP; at < to; at++) {
			uint16_t slot = index_at(d->index, at)->segment;

			if (slot != INDEX_NO_SEGMENT && d->gone[slot])
				entry_remove(d, at);
		}
		pthread_rwlock_unlock(&d->lock);
	}
	pthread_rwlock_wrlock(&d->lock);
	free_gone(d);
	pthread_rwlock_unlock(&d->lock);
}

static void look_around(struct dir *d)
{
	struct ds_err err;

	dir_look(d, false, &err);
	if (!d->base.o.read_only && pthread_mutex_trylock(&d->write) == 0) {
		if (dir_trylock(d)) {
			d->until = time_mono_ns();
			capacity_look(d);
			dir_inherit(d);
			lanes_rest(d);
			dir_unlock(d);
		}
		pthread_mutex_unlock(&d->write);
	}
	if (!d->base.o.read_only)
		orphans_retry(d);
	dir_sweep(d, false);
}

void *dir_thread(void *ctx)
{
	struct dir *d = ctx;
	struct timespec t;

	pthread_mutex_lock(&d->rest);
	while (!d->stop) {
		clock_gettime(CLOCK_MONOTONIC, &t);
		t.tv_sec += IDLE_S;
		if (pthread_cond_timedwait(&d->wake, &d->rest, &t) != ETIMEDOUT || d->stop)
			continue;
		pthread_mutex_unlock(&d->rest);
		look_around(d);
		pthread_mutex_lock(&d->rest);
	}
	pthread_mutex_unlock(&d->rest);
	return NULL;
}
