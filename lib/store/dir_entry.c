/* Segments in memory, and the entries of the index that are of them. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "store/dir_impl.h"

enum { CLOSE_WAIT_NS = 20000000 };

struct segment *segment_add(struct dir *d, const struct segment_id *id, struct ds_err *err)
{
	struct segment *seg;
	uint32_t slot = 0;

	while (slot < d->segs && d->seg[slot])
		slot++;
	if (slot == INDEX_NO_SEGMENT) {
		err_full(err, DS_TEMP, "'%s' has %u segments, and no more can be: larger ones are needed", d->path,
			slot);
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
	struct timespec soon;
	bool any = false;
	int why = errno;

	clock_gettime(CLOCK_REALTIME, &soon);
	soon.tv_nsec += CLOSE_WAIT_NS;
	soon.tv_sec += soon.tv_nsec / 1000000000;
	soon.tv_nsec %= 1000000000;
	if (pthread_rwlock_timedwrlock(&d->lock, &soon)) { /* not for long: who has it may wait for d->files */
		errno = why;
		return false;
	}
	for (uint32_t i = 0; i < d->segs; i++) {
		struct segment *seg = d->seg[i];

		if (!seg || seg->fd < 0 || seg->refs || seg->mine)
			continue;
		close(seg->fd);
		seg->fd = -1;
		any = true;
	}
	pthread_rwlock_unlock(&d->lock);
	errno = why;
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

bool dir_lacks(void)
{
	return errno == EMFILE || errno == ENFILE || errno == ENOMEM;
}

int file_at(int dir, const char *name, int flags, mode_t mode)
{
	int fd = openat(dir, name, flags | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW, mode), why;
	struct stat st;

	if (fd < 0 || (flags & O_DIRECTORY) || (!fstat(fd, &st) && S_ISREG(st.st_mode)))
		return fd;
	why = S_ISDIR(st.st_mode) ? EISDIR : ENOTSUP;
	close(fd);
	errno = why;
	return -1;
}

int dir_open_file(struct dir *d, const char *name, int flags)
{
	int fd;

	do
		fd = file_at(d->fd, name, flags, 0666);
	while (fd < 0 && (errno == EMFILE || errno == ENFILE) && dir_close_some(d));
	return fd;
}

int segment_fd(struct dir *d, struct segment *seg)
{
	int fd = __atomic_load_n(&seg->fd, __ATOMIC_ACQUIRE);

	if (fd >= 0)
		return fd;
	pthread_mutex_lock(&d->files);
	fd = seg->fd;
	while (fd < 0) {
		fd = file_at(d->fd, seg->name, d->base.o.read_only ? O_RDONLY : O_RDWR, 0);
		if (fd < 0 && (errno == EACCES || errno == EROFS))
			fd = file_at(d->fd, seg->name, O_RDONLY, 0);
		if (fd >= 0)
			__atomic_store_n(&seg->fd, fd, __ATOMIC_RELEASE);
		else if ((errno != EMFILE && errno != ENFILE) || !close_idle(d))
			break;
	}
	pthread_mutex_unlock(&d->files);
	return fd;
}

bool segment_unlinked(int fd)
{
	struct stat st;

	return fstat(fd, &st) == 0 && st.st_nlink == 0;
}

/* ---- entries; under d->lock for writing ---- */

uint32_t store_seconds(uint64_t expires_ns)
{
	uint64_t s = expires_ns / 1000000000 + (expires_ns % 1000000000 != 0);

	return !expires_ns ? 0 : s > UINT32_MAX ? UINT32_MAX : (uint32_t)s;
}

static void entry_leaves(struct dir *d, const struct index_entry *e)
{
	struct segment *seg = d->seg[e->segment];

	__atomic_fetch_sub(&seg->items, 1, __ATOMIC_RELAXED);
	d->stale -= seg->gone;
}

void entry_remove(struct dir *d, uint32_t entry)
{
	entry_leaves(d, index_at(d->index, entry));
	index_remove(d->index, entry);
}

static void entry_place(struct index_entry *e, struct segment *seg, const struct idx_record *r, unsigned asked)
{
	e->offset = r->offset;
	e->expires = r->expires;
	e->segment = seg->slot;
	e->front = r->front;
	index_set(e, r->data, asked);
	__atomic_fetch_add(&seg->items, 1, __ATOMIC_RELAXED);
}

int entry_put_at(struct dir *d, struct segment *seg, const struct index_entry *e, uint64_t *at, struct ds_err *err)
{
	uint8_t front[SEGMENT_FRONT_MAX];
	size_t n = (size_t)e->front * INDEX_UNIT;
	struct frame_parser *p = NULL;
	struct store_item item;
	struct idx_record r;
	struct ds_err why;
	struct frame f;
	int fd = segment_fd(d, seg);

	*at = 0;
	if ((fd < 0 && errno == ENOENT) || n > sizeof front)
		return 0;
	if (fd < 0 || !dir_read(fd, front, n, (uint64_t)e->offset * INDEX_UNIT)) {
		if (fd >= 0 && !errno)
			return 0; /* the file was cut */
		err_errno(err, DS_IO, "cannot read '%s/%s'", d->path, seg->name);
		if (!idx_find(d, &seg->id, e->offset, &r) || !store_key_equal(&r.key, &e->key))
			return err->code;
		*at = r.dead ? 0 : r.at_ns ? r.at_ns : 1;
		return 0;
	}
	if (frame_parser_new(&p, err))
		return err->code;
	if (!frame_parse(p, front, n, &f, &why) && !store_item_get(&f, &item, &why) &&
		store_key_equal(&item.key, &e->key))
		*at = item.at_ns ? item.at_ns : 1;
	frame_parser_free(p);
	return 0;
}

static uint64_t end_of(uint32_t offset, uint32_t front, uint32_t data)
{
	return ((uint64_t)offset + front + data) * INDEX_UNIT;
}

void rivals_release(struct dir *d, struct rivals *rivals)
{
	if (rivals->seg)
		segment_release(d, rivals->seg);
	if (rivals->loser.seg)
		segment_release(d, rivals->loser.seg);
	rivals->seg = rivals->loser.seg = NULL;
}

static void hold(struct segment *seg)
{
	__atomic_fetch_add(&seg->refs, 1, __ATOMIC_RELAXED);
}

static void settle(struct dir *d, struct rivals *rivals, const struct store_key *key, struct segment *seg,
	uint64_t end, const struct place *loser)
{
	if (!rivals) {
		if (loser->seg)
			segment_drop_left(d, key, loser, &(struct ds_err){ 0 });
		return;
	}
	rivals->seg = seg;
	rivals->end = end;
	rivals->loser = *loser;
	hold(seg);
	if (loser->seg)
		hold(loser->seg);
}

/* A key that is there twice: the younger one stays, of one that was moved the copy. */
static void entry_again(struct dir *d, uint32_t entry, struct segment *seg, const struct idx_record *r, unsigned asked,
	struct rivals *rivals)
{
	struct index_entry *e = index_at(d->index, entry);
	struct segment *old = d->seg[e->segment];
	struct place was = { old, e->offset, e->front }, is = { seg, r->offset, r->front };
	bool known = rivals && old == rivals->known.seg && e->offset == rivals->known.offset;
	struct ds_err err;
	uint64_t at = 0;
	bool newer;

	if (!d->gone[e->segment] && !known && entry_put_at(d, old, e, &at, &err)) {
		orphan_add(d, seg, r, ORPHAN_UNDECIDED);
		return;
	}
	newer = r->at_ns != at ? r->at_ns > at : seg->id.main != old->id.main ? seg->id.main
		: segment_order(&seg->id, &old->id) > 0;

	if (at && !newer) {
		settle(d, rivals, &r->key, old, end_of(e->offset, e->front, index_data(e)), &is);
		return;
	}
	if (!at && !known) {
		was.seg = NULL;
		__atomic_fetch_add(&old->drops, 1, __ATOMIC_RELEASE); /* by another process */
	}
	settle(d, rivals, &r->key, seg, end_of(r->offset, r->front, r->data), &was);
	entry_leaves(d, e);
	entry_place(e, seg, r, asked);
}

bool entry_add(struct dir *d, struct segment *seg, const struct idx_record *r, uint64_t hash, unsigned asked,
	struct rivals *rivals)
{
	uint32_t entry = index_find(d->index, &r->key, hash);
	const struct index_entry *e;

	if (entry == INDEX_NONE) {
		entry = index_add(d->index, &r->key, hash);
		if (entry == INDEX_NONE)
			return false;
		entry_place(index_at(d->index, entry), seg, r, asked);
		settle(d, rivals, &r->key, seg, end_of(r->offset, r->front, r->data), &(struct place){ 0 });
		return true;
	}
	e = index_at(d->index, entry);
	if (e->segment != seg->slot || e->offset != r->offset)
		entry_again(d, entry, seg, r, asked, rivals);
	return true;
}
