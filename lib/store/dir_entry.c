/* Entries of the index, and the segments that they are of. */
#include <unistd.h>

#include "store/dir_impl.h"

uint32_t store_seconds(uint64_t expires_ns)
{
	uint64_t s = expires_ns / 1000000000;

	return !expires_ns ? 0 : !s ? 1 : s > UINT32_MAX ? UINT32_MAX : (uint32_t)s;
}

static uint64_t entry_bytes(const struct index_entry *e)
{
	return ((uint64_t)e->front + index_data(e)) * INDEX_UNIT;
}

static void entry_leaves(struct dir *d, const struct index_entry *e)
{
	struct segment *seg = d->seg[e->segment];

	__atomic_fetch_sub(&seg->items, 1, __ATOMIC_RELAXED);
	seg->live -= entry_bytes(e);
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
	seg->live += entry_bytes(e);
}

/* When an item that is known was put; 0: it cannot be read any more. */
uint64_t entry_put_at(struct dir *d, const struct index_entry *e)
{
	uint8_t front[SEGMENT_FRONT_MAX];
	size_t n = (size_t)e->front * INDEX_UNIT;
	struct frame_parser *p = NULL;
	struct store_item item;
	struct ds_err err;
	struct frame f;
	uint64_t at = 0;
	int fd = segment_fd(d, d->seg[e->segment]);

	if (fd < 0 || n > sizeof front || pread(fd, front, n, (off_t)((uint64_t)e->offset * INDEX_UNIT)) != (ssize_t)n ||
		frame_parser_new(&p, &err))
		return 0;
	if (!frame_parse(p, front, n, &f, &err) && !store_item_get(&f, &item, &err) && store_key_equal(&item.key, &e->key))
		at = item.at_ns ? item.at_ns : 1;
	frame_parser_free(p);
	return at;
}

/* A key that is there twice: the younger one stays, of one that was moved the copy. */
static void entry_again(struct dir *d, uint32_t entry, struct segment *seg, const struct idx_record *r, unsigned asked)
{
	struct index_entry *e = index_at(d->index, entry);
	struct segment *old = d->seg[e->segment];
	uint64_t at = d->gone[e->segment] || old == d->leaving ? 0 : entry_put_at(d, e);
	bool newer = r->at_ns != at ? r->at_ns > at : seg->id.main != old->id.main ? seg->id.main
		: segment_order(&seg->id, &old->id) > 0;

	if (at && !newer) {
		segment_drop(d, seg, r->offset, r->front);
		return;
	}
	if (at)
		segment_drop(d, old, e->offset, e->front);
	entry_leaves(d, e);
	entry_place(e, seg, r, asked);
}

bool entry_add(struct dir *d, struct segment *seg, const struct idx_record *r, unsigned asked)
{
	uint64_t hash = index_hash(d->index, &r->key);
	uint32_t entry = index_find(d->index, &r->key, hash);
	const struct index_entry *e;

	if (entry == INDEX_NONE) {
		entry = index_add(d->index, &r->key, hash);
		if (entry == INDEX_NONE)
			return false;
		entry_place(index_at(d->index, entry), seg, r, asked);
		return true;
	}
	e = index_at(d->index, entry);
	if (e->segment != seg->slot || e->offset != r->offset)
		entry_again(d, entry, seg, r, asked);
	return true;
}

