/* A store in a directory: opening, closing, looking keys up. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/mem.h"
#include "base/time.h"
#include "store/dir_impl.h"

enum { SEGMENT_MIN = 64 << 10, HAS_BATCH = 1024 };

/* ---- memory of a thread ---- */

uint8_t *tools_room(uint8_t **p, size_t *cap, size_t n)
{
	uint8_t *q;

	if (n <= *cap && *p)
		return *p;
	n = round_up(n ? n : 1, 4096);
	q = aligned_alloc(FRAME_ALIGN, n);
	if (!q)
		return NULL;
	free(*p);
	*p = q;
	*cap = n;
	return q;
}

int tools_new(struct tools *t, struct ds_err *err)
{
	int rc;

	*t = (struct tools){ 0 };
	t->meta = meta_new();
	t->xxh = XXH3_createState();
	t->front = mem_array(SEGMENT_FRONT_MAX, 1);
	rc = t->meta && t->xxh && t->front ? 0 : err_nomem(err, SEGMENT_FRONT_MAX, "a session");
	if (!rc)
		rc = frame_writer_new(&t->w, -1, "a segment", err);
	if (!rc)
		rc = frame_parser_new(&t->parser, err);
	if (rc)
		tools_free(t);
	return rc;
}

void tools_free(struct tools *t)
{
	frame_writer_free(t->w);
	frame_parser_free(t->parser);
	meta_free(t->meta);
	XXH3_freeState(t->xxh);
	free(t->front);
	free(t->a);
	free(t->b);
	*t = (struct tools){ 0 };
}

/* ---- segments in memory; under d->lock for writing ---- */

struct segment *segment_add(struct dir *d, const struct segment_id *id, struct ds_err *err)
{
	struct segment *seg;
	uint32_t slot = 0;

	while (slot < d->segs && d->seg[slot])
		slot++;
	if (slot == INDEX_NO_SEGMENT) {
		err_set(err, DS_TEMP, "'%s' has %u segments, and no more can be: larger ones are needed", d->path, slot);
		return NULL;
	}
	seg = mem_calloc(1, sizeof *seg);
	if (!seg) {
		err_nomem(err, sizeof *seg, "a segment");
		return NULL;
	}
	seg->id = *id;
	segment_name(id, ".seg", seg->name);
	seg->slot = (uint16_t)slot;
	seg->number = ++d->numbers << 16 | slot;
	seg->fd = -1;
	pthread_mutex_init(&seg->sync, NULL);
	pthread_cond_init(&seg->synced_more, NULL);
	d->seg[slot] = seg;
	d->gone[slot] = 0;
	if (slot == d->segs)
		d->segs++;
	return seg;
}

/* Whoever holds it reads on; when nobody does, its room on the disk becomes free. */
static void close_gone(struct dir *d, struct segment *seg)
{
	pthread_mutex_lock(&d->files);
	if (!__atomic_load_n(&seg->refs, __ATOMIC_ACQUIRE) && seg->fd >= 0) {
		close(seg->fd);
		__atomic_store_n(&seg->fd, -1, __ATOMIC_RELAXED);
	}
	pthread_mutex_unlock(&d->files);
}

void segment_gone(struct dir *d, struct segment *seg)
{
	if (seg->gone)
		return;
	seg->gone = true;
	d->gone[seg->slot] = 1;
	d->stale += seg->items;
	close_gone(d, seg);
}

void segment_release(struct dir *d, struct segment *seg)
{
	pthread_rwlock_rdlock(&d->lock);
	if (__atomic_sub_fetch(&seg->refs, 1, __ATOMIC_ACQ_REL) == 0 && seg->gone)
		close_gone(d, seg);
	pthread_rwlock_unlock(&d->lock);
}

/* Under d->files.  Nobody has those open that nobody holds. */
static bool close_idle(struct dir *d)
{
	bool any = false;

	if (pthread_rwlock_trywrlock(&d->lock))
		return false;
	for (uint32_t i = 0; i < d->segs; i++) {
		struct segment *seg = d->seg[i];

		if (!seg || seg->fd < 0 || seg->refs || seg->mine)
			continue;
		close(seg->fd);
		seg->fd = -1;
		any = true;
	}
	pthread_rwlock_unlock(&d->lock);
	return any;
}

bool dir_close_some(struct dir *d)
{
	bool any;

	pthread_mutex_lock(&d->files);
	any = close_idle(d);
	pthread_mutex_unlock(&d->files);
	return any;
}

int segment_fd(struct dir *d, struct segment *seg)
{
	int fd = __atomic_load_n(&seg->fd, __ATOMIC_ACQUIRE);

	if (fd >= 0)
		return fd;
	pthread_mutex_lock(&d->files);
	fd = seg->fd;
	while (fd < 0) {
		fd = openat(d->fd, seg->name, (d->base.o.read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC);
		if (fd < 0 && (errno == EACCES || errno == EROFS))
			fd = openat(d->fd, seg->name, O_RDONLY | O_CLOEXEC);
		if (fd >= 0)
			__atomic_store_n(&seg->fd, fd, __ATOMIC_RELEASE);
		else if ((errno != EMFILE && errno != ENFILE) || !close_idle(d))
			break;
	}
	pthread_mutex_unlock(&d->files);
	return fd;
}

/* ---- looking up ---- */

static bool expired(const struct index_entry *e, uint32_t now)
{
	return e->expires && e->expires <= now;
}

static uint32_t now_s(void)
{
	return (uint32_t)(time_wall_ns() / 1000000000);
}

static bool find_now(struct dir *d, const struct store_key *key, bool ask, struct found *f)
{
	uint32_t entry;
	bool late = false;

	pthread_rwlock_rdlock(&d->lock);
	f->hash = index_hash(d->index, key);
	f->seg = NULL;
	entry = index_find(d->index, key, f->hash);
	if (entry != INDEX_NONE) {
		struct index_entry *e = index_at(d->index, entry);

		late = expired(e, now_s());
		if (!d->gone[e->segment] && !late) {
			if (ask)
				index_ask(e);
			f->e = *e;
			f->e.data = index_data(e);
			f->seg = d->seg[e->segment];
			__atomic_fetch_add(&f->seg->refs, 1, __ATOMIC_RELAXED);
		}
	}
	pthread_rwlock_unlock(&d->lock);
	if (late) {
		pthread_rwlock_wrlock(&d->lock);
		entry = index_find(d->index, key, f->hash);
		if (entry != INDEX_NONE && expired(index_at(d->index, entry), now_s())) {
			entry_remove(d, entry);
			COUNT(d, expired, 1);
		}
		pthread_rwlock_unlock(&d->lock);
	}
	return f->seg != NULL;
}

bool dir_find(struct dir *d, const struct store_key *key, bool ask, struct found *f)
{
	struct ds_err err;

	if (find_now(d, key, ask, f))
		return true;
	return dir_look(d, false, &err) == 0 && find_now(d, key, ask, f);
}

bool dir_forget(struct dir *d, const struct found *f)
{
	uint32_t entry;
	bool was = false;

	pthread_rwlock_wrlock(&d->lock);
	entry = index_find(d->index, &f->e.key, f->hash);
	if (entry != INDEX_NONE) {
		const struct index_entry *e = index_at(d->index, entry);

		was = e->segment == f->e.segment && e->offset == f->e.offset;
		if (was)
			entry_remove(d, entry);
	}
	pthread_rwlock_unlock(&d->lock);
	return was;
}

static size_t has_now(struct dir *d, const struct store_key *keys, size_t n, uint8_t *here, size_t *prefix)
{
	uint32_t found[HAS_BATCH], now = now_s();
	size_t count = 0;
	bool row = true;

	*prefix = 0;
	for (size_t from = 0; from < n && (row || here); from += HAS_BATCH) {
		size_t m = n - from < HAS_BATCH ? n - from : HAS_BATCH;

		pthread_rwlock_rdlock(&d->lock);
		index_find_many(d->index, keys + from, m, found);
		for (size_t i = 0; i < m; i++) {
			const struct index_entry *e = found[i] == INDEX_NONE ? NULL : index_at(d->index, found[i]);
			bool is = e && !d->gone[e->segment] && !expired(e, now);

			row = row && is;
			*prefix += row;
			count += is;
			if (here)
				here[from + i] = is;
		}
		pthread_rwlock_unlock(&d->lock);
	}
	return count;
}

static int dir_has(struct store_session *ss, const struct store_key *keys, size_t n, uint8_t *here, size_t *prefix,
	struct ds_err *err)
{
	struct dir *d = dir_of(ss);
	size_t count = has_now(d, keys, n, here, prefix);
	int64_t seen;

	if (*prefix < n) {
		seen = __atomic_load_n(&d->scanned_ns, __ATOMIC_RELAXED);
		if (dir_look(d, false, err))
			return err->code;
		if (__atomic_load_n(&d->scanned_ns, __ATOMIC_RELAXED) != seen)
			count = has_now(d, keys, n, here, prefix);
	}
	COUNT(d, has, n);
	COUNT(d, has_found, here ? count : *prefix);
	return 0;
}

static int dir_stat(struct store_session *ss, struct store_stat *st, struct ds_err *err)
{
	struct dir *d = dir_of(ss);
	const size_t n = sizeof *st / sizeof(uint64_t);

	(void)err;
	for (size_t i = 0; i < n; i++)
		((uint64_t *)st)[i] = __atomic_load_n(&((uint64_t *)&d->st)[i], __ATOMIC_RELAXED);
	st->capacity = d->base.o.capacity;
	st->bytes = dir_bytes(d);
	pthread_mutex_lock(&d->pins);
	st->pinned_bytes = d->pinned_bytes;
	pthread_mutex_unlock(&d->pins);
	pthread_rwlock_rdlock(&d->lock);
	st->items = index_count(d->index) - d->stale;
	st->index_bytes = index_bytes(d->index);
	for (uint32_t i = 0; i < d->segs; i++)
		st->segments += d->seg[i] && !d->seg[i]->gone;
	pthread_rwlock_unlock(&d->lock);
	return 0;
}

static bool dir_gone(struct store *s, uint64_t number)
{
	struct dir *d = (struct dir *)s;
	uint32_t slot = number & 0xffff;
	bool gone;

	pthread_rwlock_rdlock(&d->lock);
	gone = slot >= d->segs || !d->seg[slot] || d->seg[slot]->number != number || d->seg[slot]->gone;
	pthread_rwlock_unlock(&d->lock);
	return gone;
}

/* ---- sessions ---- */

static int dir_begin(struct store_session **out, struct store *s, struct ds_err *err)
{
	struct dir_session *ss = mem_calloc(1, sizeof *ss);
	int rc;

	if (!ss)
		return err_nomem(err, sizeof *ss, "a session");
	ss->base.store = s;
	ss->d = (struct dir *)s;
	rc = tools_new(&ss->t, err);
	if (rc)
		free(ss);
	else
		*out = &ss->base;
	return rc;
}

static void dir_end(struct store_session *base)
{
	struct dir_session *ss = (struct dir_session *)base;

	dir_unpin_all(ss);
	tools_free(&ss->t);
	free(ss);
}

/* ---- opening and closing ---- */

static void dir_free(struct dir *d)
{
	for (uint32_t i = 0; d->seg && i < d->segs; i++) {
		struct segment *seg = d->seg[i];

		if (!seg)
			continue;
		if (seg->fd >= 0)
			close(seg->fd);
		idx_free(&seg->idx);
		pthread_mutex_destroy(&seg->sync);
		pthread_cond_destroy(&seg->synced_more);
		free(seg);
	}
	tools_free(&d->tools);
	index_free(d->index);
	free(d->seg);
	free(d->gone);
	if (d->fd >= 0)
		close(d->fd);
	if (d->lock_fd >= 0)
		close(d->lock_fd);
	free(d->path);
	free(d);
}

static void dir_locks(struct dir *d)
{
	pthread_rwlockattr_t prefer;
	pthread_condattr_t clock;

	pthread_rwlockattr_init(&prefer);
	pthread_rwlockattr_setkind_np(&prefer, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
	pthread_rwlock_init(&d->lock, &prefer);
	pthread_rwlockattr_destroy(&prefer);
	pthread_mutex_init(&d->files, NULL);
	pthread_mutex_init(&d->scan, NULL);
	pthread_mutex_init(&d->write, NULL);
	pthread_mutex_init(&d->flights, NULL);
	pthread_cond_init(&d->landed, NULL);
	pthread_mutex_init(&d->pins, NULL);
	pthread_mutex_init(&d->rest, NULL);
	pthread_condattr_init(&clock);
	pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
	pthread_cond_init(&d->wake, &clock);
	pthread_condattr_destroy(&clock);
}

static void dir_close(struct store *s)
{
	struct dir *d = (struct dir *)s;
	struct ds_err err;

	if (d->threaded) {
		pthread_mutex_lock(&d->rest);
		d->stop = true;
		pthread_cond_signal(&d->wake);
		pthread_mutex_unlock(&d->rest);
		pthread_join(d->thread, NULL);
	}
	pthread_mutex_lock(&d->write);
	for (int i = 0; i < 2; i++)
		if (d->active[i])
			segment_seal(d, d->active[i], &err);
	pthread_mutex_unlock(&d->write);
	dir_free(d);
}

static uint64_t segment_size(const struct store_options *o)
{
	uint64_t n = o->segment ? o->segment : o->capacity ? o->capacity / 64 : (uint64_t)256 << 20;

	if (!o->segment && n > (uint64_t)1 << 30)
		n = (uint64_t)1 << 30;
	if (n < SEGMENT_MIN)
		n = SEGMENT_MIN;
	return n > (uint64_t)64 << 30 ? (uint64_t)64 << 30 : n / INDEX_UNIT * INDEX_UNIT;
}

/* Files beside segments that are not there, and half made ones of the dead. */
static void clean(struct dir *d)
{
	int fd = openat(d->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	const struct dirent *e;

	if (!dir && fd >= 0)
		close(fd);
	while (dir && (e = readdir(dir))) {
		char name[SEGMENT_NAME];
		struct segment_id id;
		struct stat st;
		bool made = segment_parse(e->d_name, ".new", &id);

		if (!made && !segment_parse(e->d_name, ".idx", &id))
			continue;
		segment_name(&id, ".seg", name);
		if (fstatat(d->fd, name, &st, 0) < 0 && errno == ENOENT)
			unlinkat(d->fd, e->d_name, 0);
	}
	if (dir)
		closedir(dir);
}

static int take_in(struct dir *d, struct ds_err *err)
{
	int rc;

	pthread_mutex_lock(&d->write);
	if (!d->base.o.read_only)
		dir_lock(d, true);
	rc = dir_look(d, true, err);
	if (!d->base.o.read_only) {
		dir_inherit(d);
		clean(d);
		dir_unlock(d);
	}
	pthread_mutex_unlock(&d->write);
	return rc;
}

static int dir_open(struct store **out, const char *path, const struct store_options *o, struct ds_err *err)
{
	struct dir *d = mem_calloc(1, sizeof *d);
	int rc;

	if (!d)
		return err_nomem(err, sizeof *d, "a store");
	d->base = (struct store){ &store_dir, *o };
	if (!d->base.o.max_frame)
		d->base.o.max_frame = FRAME_MAX_DEFAULT;
	d->fd = d->lock_fd = -1;
	d->segment_bytes = segment_size(o);
	keyed_random(&d->writer, sizeof d->writer);
	dir_locks(d);
	d->path = strdup(path);
	d->seg = mem_calloc(INDEX_NO_SEGMENT, sizeof *d->seg);
	d->gone = mem_calloc(INDEX_NO_SEGMENT, 1);
	rc = d->path && d->seg && d->gone ? 0 : err_nomem(err, INDEX_NO_SEGMENT, "a store");
	if (!rc)
		rc = index_new(&d->index, err);
	if (!rc)
		rc = tools_new(&d->tools, err);
	if (!rc)
		rc = format_open(d, err);
	if (!rc)
		rc = take_in(d, err);
	if (!rc && pthread_create(&d->thread, NULL, dir_thread, d))
		rc = err_set(err, DS_OS, "cannot start a thread");
	else
		d->threaded = !rc;
	if (rc)
		dir_free(d);
	else
		*out = &d->base;
	return rc;
}

const struct store_ops store_dir = {
	.scheme = "dir:", .open = dir_open, .close = dir_close, .begin = dir_begin, .end = dir_end, .has = dir_has,
	.get = dir_get, .put = dir_put, .del = dir_del, .pin = dir_pin, .stat = dir_stat, .find = dir_ref,
	.release = dir_unref, .doubt = dir_doubt, .gone = dir_gone,
};
