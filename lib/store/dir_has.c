/* Looking keys up. */
#include "base/time.h"
#include "store/dir_impl.h"

enum { HAS_BATCH = 1024 };

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
	struct segment *over = NULL;
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
			f->e = (struct index_entry){ e->key, e->offset, e->expires, index_data(e), e->segment,
				e->front };
			f->seg = d->seg[e->segment];
			__atomic_fetch_add(&f->seg->refs, 1, __ATOMIC_RELAXED);
		}
	}
	pthread_rwlock_unlock(&d->lock);
	if (late) {
		pthread_rwlock_wrlock(&d->lock);
		entry = index_find(d->index, key, f->hash);
		if (entry != INDEX_NONE && expired(index_at(d->index, entry), now_s())) {
			f->e = *index_at(d->index, entry);
			over = d->gone[f->e.segment] ? NULL : d->seg[f->e.segment];
			if (over)
				__atomic_fetch_add(&over->refs, 1, __ATOMIC_RELAXED);
			entry_remove(d, entry);
			COUNT(d, expired, 1);
		}
		pthread_rwlock_unlock(&d->lock);
	}
	if (over) { /* or it would be back if the clock went back */
		segment_drop(d, &(struct place){ over, f->e.offset, f->e.front }, &(struct ds_err){ 0 });
		segment_release(d, over);
	}
	return f->seg != NULL;
}

bool dir_find(struct dir *d, const struct store_key *key, bool ask, struct found *f)
{
	struct ds_err err;

	if (orphan_undecided(d, key))
		return false;
	if (find_now(d, key, ask, f))
		return true;
	return dir_look(d, false, &err) == 0 && !orphan_undecided(d, key) && find_now(d, key, ask, f);
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
			bool is = e && !d->gone[e->segment] && !expired(e,
				now + 1); /* not one that has a part of a second */

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

int dir_has(struct store_session *ss, const struct store_key *keys, size_t n, uint8_t *here, size_t *prefix,
	struct ds_err *err)
{
	struct dir *d = dir_of(ss);
	size_t count = has_now(d, keys, n, here, prefix);
	int64_t seen;

	if (*prefix < n) {
		seen = __atomic_load_n(&d->scanned_ns, __ATOMIC_RELAXED);
		dir_look(d, false, err); /* what cannot be seen is not there */
		if (__atomic_load_n(&d->scanned_ns, __ATOMIC_RELAXED) != seen)
			count = has_now(d, keys, n, here, prefix);
	}
	COUNT(d, has, n);
	COUNT(d, has_found, here ? count : *prefix);
	return 0;
}

int dir_stat_now(struct dir *d, struct store_stat *st)
{
	const size_t n = sizeof *st / sizeof(uint64_t);

	for (size_t i = 0; i < n; i++)
		((uint64_t *)st)[i] = __atomic_load_n(&((uint64_t *)&d->st)[i], __ATOMIC_RELAXED);
	st->capacity = dir_capacity(d);
	pthread_mutex_lock(&d->pins);
	st->pinned_bytes = d->pinned_bytes;
	pthread_mutex_unlock(&d->pins);
	pthread_rwlock_rdlock(&d->lock);
	st->items = index_count(d->index) - d->stale;
	st->index_bytes = index_bytes(d->index);
	for (uint32_t i = 0; i < d->segs; i++)
		if (d->seg[i] && !d->seg[i]->gone) {
			st->segments++;
			st->bytes += segment_holds(d->seg[i]);
		}
	pthread_rwlock_unlock(&d->lock);
	return 0;
}

int dir_stat(struct store_session *ss, struct store_stat *st, struct ds_err *err)
{
	(void)err;
	return dir_stat_now(dir_of(ss), st);
}
