/*
 * Making room: S3-FIFO by whole segments, as dir.h says.  Under dir.write and the directory's lock.
 *
 * What others asked for is not known here: where several processes share a directory, each that makes room judges by
 * what it was asked itself.
 */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/xxh3.h"
#include "store/dir_impl.h"

enum {
	SMALL_SHARE = 2, /* one in so many bytes is for what is new: dialogues go on after minutes */
	MOVE_MOST = 4,    /* segments' worth of items that are moved to make room once; then they go, too */
	BATCH = 256,
};

uint64_t dir_bytes(struct dir *d)
{
	uint64_t n = 0;

	pthread_rwlock_rdlock(&d->lock);
	for (uint32_t i = 0; i < d->segs; i++)
		if (d->seg[i] && !d->seg[i]->gone)
			n += segment_bytes(d->seg[i]);
	pthread_rwlock_unlock(&d->lock);
	return n;
}

int segment_records(struct dir *d, struct segment *seg, struct idx *x, struct ds_err *err)
{
	enum scan_got got = SCAN_GAP;
	struct scan s;
	int fd, rc = idx_read(d, &seg->id, x, err);

	if (rc != DS_NO)
		return rc;
	fd = segment_fd(d, seg);
	if (fd < 0)
		return err_errno(err, DS_IO, "cannot open '%s/%s'", d->path, seg->name);
	rc = scan_begin(&s, fd, &seg->id, d->marked ? &d->secret : NULL, err);
	while (!rc && got != SCAN_STOP && got != SCAN_END) {
		struct idx_record r;

		rc = scan_next(&s, &got, err);
		if (rc || got != SCAN_ITEM)
			continue;
		scan_record(&s, &r);
		if (!idx_add(x, &r))
			rc = err_nomem(err, sizeof r, "an index of a segment");
	}
	scan_end(&s);
	return rc;
}

/* ---- which ---- */

/* The oldest of its kind that this process does not write.  Its kind: small ones, as long as they have more than their
 * share. */
static struct segment *pick(struct dir *d)
{
	struct segment *oldest[2] = { NULL, NULL }, *seg;
	uint64_t bytes[2] = { 0, 0 };
	bool main;

	pthread_rwlock_rdlock(&d->lock);
	for (uint32_t i = 0; i < d->segs; i++) {
		struct segment **o;

		seg = d->seg[i];
		if (!seg || seg->gone)
			continue;
		bytes[seg->id.main] += segment_bytes(seg);
		o = &oldest[seg->id.main];
		if (!seg->skip && !seg->mine && (!*o || segment_order(&seg->id, &(*o)->id) < 0))
			*o = seg;
	}
	main = bytes[0] < (bytes[0] + bytes[1]) / SMALL_SHARE;
	seg = oldest[main] ? oldest[main] : oldest[!main];
	if (seg)
		__atomic_fetch_add(&seg->refs, 1, __ATOMIC_RELAXED);
	pthread_rwlock_unlock(&d->lock);
	return seg;
}

/* What may be evicted again. */
static void skip_none(struct dir *d)
{
	pthread_rwlock_wrlock(&d->lock);
	for (uint32_t i = 0; i < d->segs; i++)
		if (d->seg[i])
			d->seg[i]->skip = false;
	pthread_rwlock_unlock(&d->lock);
}

/* ---- moving on ---- */

bool entry_at_place(struct dir *d, const struct segment *seg, const struct idx_record *r, unsigned *asked)
{
	uint32_t entry;
	bool is = false;

	pthread_rwlock_rdlock(&d->lock);
	entry = index_find(d->index, &r->key, index_hash(d->index, &r->key));
	if (entry != INDEX_NONE) {
		const struct index_entry *e = index_at(d->index, entry);

		is = e->segment == seg->slot && e->offset == r->offset;
		*asked = index_asked(e);
	}
	pthread_rwlock_unlock(&d->lock);
	return is;
}

/* The payload of an item that was read whole. */
static int check_payload(struct tools *t, const struct frame *f, const struct store_item *item, struct ds_err *err)
{
	size_t plain = round_up((size_t)item->size, FRAME_ALIGN);
	uint8_t *b;

	if (!item->zstd)
		return frame_check_payload(f, err);
	b = tools_room(&t->b, &t->b_cap, plain);
	if (!b)
		return err_nomem(err, plain, "an item");
	return store_item_decode(item, f->data, b) && xxh3(b, plain) == item->xxh ? 0 :
		err_set(err, DS_DATA, "its bytes are not those that were put");
}

int segment_move(struct dir *d, struct segment *from, const struct idx_record *r, const struct move *how,
	struct ds_err *err)
{
	static const char *const padding[] = { "_", NULL };
	uint64_t n = ((uint64_t)r->front + r->data) * INDEX_UNIT, at = (uint64_t)r->offset * INDEX_UNIT;
	uint8_t *p = tools_room(&d->tools.a, &d->tools.a_cap, (size_t)n);
	int fd = segment_fd(d, from), rc;
	struct append a = { .iovs = 1, .asked = how->asked };
	struct rivals rivals = { .known = { from, r->offset, r->front } };
	struct segment *to;
	struct iovec iov;
	struct frame f;

	if (!p)
		return err_nomem(err, (size_t)n, "an item");
	if (fd < 0 || !dir_read(fd, p, (size_t)n, at))
		return err_set(err, DS_NOINPUT, "cannot read '%s/%s'", d->path, from->name);
	rc = frame_parse(d->tools.parser, p, (size_t)n, &f, err);
	if (!rc)
		rc = store_item_get(&f, &a.item, err);
	if (!rc && !store_key_equal(&a.item.key, &r->key))
		rc = err_set(err, DS_DATA, "another item lies there");
	if (!rc && how->check)
		rc = check_payload(&d->tools, &f, &a.item, err);
	if (!rc)
		rc = lane_for_move(d, how->to_main, n + FRAME_ALIGN, &to, err);
	if (rc)
		return rc;
	meta_reset(d->tools.meta);
	meta_put_rest(d->tools.meta, f.meta, padding);
	iov = (struct iovec){ f.data, f.data_len };
	a.meta = d->tools.meta;
	a.iov = &iov;
	a.flags = f.flags;
	rc = segment_append(d, &d->tools, to, &a, &rivals, err);
	if (!rc) {
		dir_pin_moved(d, &r->key, to);
		to->moved = to->size;
	}
	lane_give(d, to, rc == DS_IO);
	if (rc)
		return rc;
	if (!rivals.seg)
		return err_set(err, DS_NOINPUT, "cannot read what replaced an item of '%s/%s'", d->path, from->name);
	if (rivals.loser.seg && rivals.loser.seg != from) /* the copy: it was replaced meanwhile */
		segment_drop_left(d, &r->key, &rivals.loser, err);
	rivals_release(d, &rivals);
	COUNT(d, moved_bytes, n);
	return 0;
}

/* So much of it is pinned that moving that on would gain little, and could go on for ever. */
static bool mostly_pinned(struct dir *d, const struct segment *seg, const struct idx *x)
{
	uint64_t pinned = 0;
	unsigned asked;

	pthread_mutex_lock(&d->pins);
	for (size_t i = 0; i < x->n && seg->pins; i++)
		if (dir_pinned(d, &x->rec[i].key) && entry_at_place(d, seg, &x->rec[i], &asked))
			pinned += ((uint64_t)x->rec[i].front + x->rec[i].data) * INDEX_UNIT;
	pthread_mutex_unlock(&d->pins);
	return pinned > seg->size / 2;
}

/* Of what is moved: so many bytes at most; so many have to go for what is to be within the limit, 0: all may. */
struct room { uint64_t budget, over; };

/* A segment that was written when more could be here is worth many: of its items those that were asked for, then the
 * youngest, go on as far as there is room.  Room for the records beside them and for a segment begun, too. */
static void keep_some(struct dir *d, struct segment *seg, const struct idx *x, uint64_t over)
{
	uint64_t room = segment_bytes(seg), slack = dir_segment_bytes(d) + over + room / 32;
	struct ds_err err;
	uint8_t *keep;

	if (!over || room / 2 < dir_segment_bytes(d) || room <= slack)
		return;
	room -= slack;
	keep = mem_calloc(x->n + 1, 1);
	for (int asked_for = 1; keep && asked_for >= 0; asked_for--)
		for (size_t i = x->n; i--;) {
			uint64_t n = ((uint64_t)x->rec[i].front + x->rec[i].data) * INDEX_UNIT + IDX_RECORD;
			unsigned asked = 0;

			if (keep[i] || x->rec[i].dead || !entry_at_place(d, seg, &x->rec[i], &asked) ||
				(asked_for && !asked) || n > room)
				continue;
			keep[i] = 1;
			room -= n;
		}
	d->going = segment_bytes(seg);
	for (size_t i = 0; keep && i < x->n; i++) {
		struct move how = { .to_main = seg->id.main };

		if (keep[i] && entry_at_place(d, seg, &x->rec[i], &how.asked))
			segment_move(d, seg, &x->rec[i], &how, &err);
	}
	d->going = 0;
	free(keep);
}

/* What is wanted goes on.  DS_TEMP: something that is pinned could not. */
static int move_wanted(struct dir *d, struct segment *seg, const struct idx *x, uint64_t *budget, struct ds_err *err)
{
	int rc = 0;

	for (size_t i = 0; i < x->n && !rc; i++) {
		const struct idx_record *r = &x->rec[i];
		uint64_t n = ((uint64_t)r->front + r->data) * INDEX_UNIT;
		struct move how = { .to_main = true };
		unsigned asked = 0;
		bool pinned;

		if (r->dead || !entry_at_place(d, seg, r, &asked))
			continue;
		pthread_mutex_lock(&d->pins);
		pinned = dir_pinned(d, &r->key);
		pthread_mutex_unlock(&d->pins);
		if (!pinned && (!asked || n > *budget))
			continue;
		how.asked = seg->id.main && asked ? asked - 1 : 0;
		if (segment_move(d, seg, r, &how, err) && pinned)
			rc = err_set(err, DS_TEMP, "what is pinned cannot be moved");
		*budget -= n < *budget ? n : *budget;
	}
	return rc;
}

/* ---- going ---- */

struct went { uint64_t items, bytes; };

/* Entries of records [n] go; false: one of them is pinned. */
static bool remove_some(struct dir *d, struct segment *seg, const struct idx_record *r, size_t n, struct went *w)
{
	bool pinned = false;

	pthread_mutex_lock(&d->pins);
	pthread_rwlock_wrlock(&d->lock);
	for (size_t i = 0; i < n && !pinned; i++) {
		uint64_t hash = index_hash(d->index, &r[i].key);
		uint32_t entry = r[i].dead ? INDEX_NONE : index_find(d->index, &r[i].key, hash);
		const struct index_entry *e = entry == INDEX_NONE ? NULL : index_at(d->index, entry);

		if (!e || e->segment != seg->slot || e->offset != r[i].offset)
			continue;
		pinned = dir_pinned(d, &r[i].key);
		if (pinned)
			break;
		w->items++;
		w->bytes += (uint64_t)index_data(e) * INDEX_UNIT;
		entry_remove(d, entry);
		if (!seg->id.main)
			index_ghost_add(d->index, hash);
	}
	pthread_rwlock_unlock(&d->lock);
	pthread_mutex_unlock(&d->pins);
	return !pinned;
}

void segment_remove(struct dir *d, struct segment *seg)
{
	char name[SEGMENT_NAME];

	if (unlinkat(d->fd, seg->name, 0) && errno != ENOENT) { /* then it is met again, with all that is in it */
		pthread_mutex_lock(&d->scan);
		d->listed.late = false;
		pthread_mutex_unlock(&d->scan);
	}
	segment_name(&seg->id, ".idx", name);
	unlinkat(d->fd, name, 0);
	__atomic_fetch_add(&d->removed, 1, __ATOMIC_RELEASE);
	pthread_rwlock_wrlock(&d->lock);
	segment_gone(d, seg);
	pthread_rwlock_unlock(&d->lock);
}

/* Of a segment that stays after all, the items do, too: else they would be there again after a restart, whatever was
 * put or deleted meanwhile.  So what was moved is deleted there, unless its copy may not be on disk. */
static void stay(struct dir *d, struct segment *seg, struct idx *x, bool settled)
{
	for (size_t i = 0; i < x->n && !settled; i++) {
		pthread_rwlock_rdlock(&d->lock);
		if (index_find(d->index, &x->rec[i].key, index_hash(d->index, &x->rec[i].key)) != INDEX_NONE)
			x->rec[i].dead = 1;
		pthread_rwlock_unlock(&d->lock);
	}
	segment_enter(d, seg, x->rec, x->n, &(struct ds_err){ 0 });
}

static bool evict(struct dir *d, struct segment *seg, bool moving, struct room *room, struct ds_err *err)
{
	uint64_t moved = d->st.moved_bytes; /* changed by this thread only */
	struct went gone = { 0 };
	struct idx x = { 0 };
	bool went, settled;

	/* What cannot be read has no items to move; those the index has of it are swept out later. */
	if (segment_records(d, seg, &x, err))
		idx_free(&x);
	if (moving)
		keep_some(d, seg, &x, room->over);
	went = !moving || (!mostly_pinned(d, seg, &x) && !move_wanted(d, seg, &x, &room->budget, err));
	for (size_t i = 0; i < x.n && went; i += BATCH)
		went = remove_some(d, seg, x.rec + i, x.n - i < BATCH ? x.n - i : BATCH, &gone);
	settled = moved == d->st.moved_bytes || !dir_settle(d, err);
	went = went && settled;
	if (went) {
		if (d->base.o.sync) /* or what the items had replaced would be there again if the power is lost */
			dir_sync_drops(d, &(struct ds_err){ 0 });
		segment_remove(d, seg);
		COUNT(d, evicted, gone.items);
		COUNT(d, evicted_bytes, gone.bytes);
	} else if (gone.items || moved != d->st.moved_bytes) {
		stay(d, seg, &x, settled);
	}
	idx_free(&x);
	return went;
}

/* A segment's lock, by which others say that they write it or have pinned items of it. */
bool segment_take(struct dir *d, struct segment *seg)
{
	int fd = segment_fd(d, seg);
	bool taken;

	if (fd < 0)
		return errno == ENOENT;
	taken = file_lock(fd, LOCK_ALONE, false) && pin_lock(fd, LOCK_ALONE);
	if (!taken)
		segment_unlock(d, seg);
	return taken;
}

static bool evict_oldest(struct dir *d, bool moving, struct room *room, struct ds_err *err)
{
	struct segment *seg;
	bool went = false;

	while (!went && (seg = pick(d))) {
		if (segment_take(d, seg)) {
			went = evict(d, seg, moving, room, err);
			segment_unlock(d, seg);
		}
		if (!went) {
			pthread_rwlock_wrlock(&d->lock);
			seg->skip = true;
			pthread_rwlock_unlock(&d->lock);
		}
		segment_release(d, seg);
	}
	return went;
}

bool dir_evict_one(struct dir *d, bool moving, struct ds_err *err)
{
	struct room room = { .budget = MOVE_MOST * d->segment_bytes };
	bool went;

	skip_none(d);
	went = evict_oldest(d, moving, &room, err);
	if (!went && lanes_seal(d)) /* what is being written can go when there is nothing else */
		went = evict_oldest(d, moving, &room, err);
	return went;
}

int dir_make_room(struct dir *d, uint64_t n, uint64_t limit, struct ds_err *err)
{
	struct room room = { .budget = MOVE_MOST * d->segment_bytes };
	uint64_t all;

	skip_none(d);
	for (all = dir_bytes(d); all + n > limit; all = dir_bytes(d)) {
		room.over = all + n - limit;
		if (!evict_oldest(d, true, &room, err) && !lanes_seal(d))
			return err_full(err, DS_TEMP, "the store is full: %llu bytes, and nothing of it can go now",
				(unsigned long long)dir_bytes(d));
	}
	dir_sweep(d, false);
	return 0;
}
