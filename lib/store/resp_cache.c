/*
 * Values that are asked for often, in memory, checked: they are sent without being read and checked again.  An entry is
 * a place in the store's files, where nothing but the same bytes can ever be; whether a name is still there, the store
 * says each time.
 */
#include <stdlib.h>
#include <string.h>

#include "store/resp_impl.h"

enum { SLOTS = 4096, RECENT = 1 << 14, PART = 8 /* of all, for one value */ };

struct resp_cache {
	pthread_mutex_t lock;
	uint64_t limit, bytes;
	struct store_pool *pool;
	struct resp_cached *slots[SLOTS], *newest, *oldest;
	_Atomic uint32_t recent[RECENT]; /* places of values that were read from files */
};

struct resp_cache *resp_cache_new(struct store_pool *pool, uint64_t limit)
{
	struct resp_cache *k = limit ? mem_calloc(1, sizeof *k) : NULL;

	if (k) {
		pthread_mutex_init(&k->lock, NULL);
		k->limit = limit;
		k->pool = pool;
	}
	return k;
}

static uint64_t hash_of(uint64_t segment, uint64_t offset)
{
	const uint64_t place[2] = { segment, offset };

	return XXH3_64bits(place, sizeof place);
}

/* ---- under the lock ---- */

static void unlink_age(struct resp_cache *k, struct resp_cached *e)
{
	*(e->newer ? &e->newer->older : &k->newest) = e->older;
	*(e->older ? &e->older->newer : &k->oldest) = e->newer;
}

static void link_newest(struct resp_cache *k, struct resp_cached *e)
{
	e->newer = NULL;
	e->older = k->newest;
	*(k->newest ? &k->newest->newer : &k->oldest) = e;
	k->newest = e;
}

static struct resp_cached **find(struct resp_cache *k, uint64_t segment, uint64_t offset)
{
	struct resp_cached **p = &k->slots[hash_of(segment, offset) % SLOTS];

	while (*p && ((*p)->segment != segment || (*p)->offset != offset))
		p = &(*p)->next;
	return p;
}

/* No longer in the cache; those who send it have it still.  It, where nobody has. */
static struct resp_cached *take_out(struct resp_cache *k, struct resp_cached *e)
{
	struct resp_cached **p = find(k, e->segment, e->offset);

	*p = e->next;
	unlink_age(k, e);
	k->bytes -= e->b.cap;
	return --e->refs ? NULL : e;
}

/* ---- from outside ---- */

static void drop(struct resp_cache *k, struct resp_cached *e)
{
	store_pool_give(k->pool, &e->b);
	free(e);
}

struct resp_cached *resp_cache_get(struct resp_cache *k, uint64_t segment, uint64_t offset)
{
	struct resp_cached *e;

	pthread_mutex_lock(&k->lock);
	e = *find(k, segment, offset);
	if (e) {
		e->refs++;
		if (k->newest != e) {
			unlink_age(k, e);
			link_newest(k, e);
		}
	}
	pthread_mutex_unlock(&k->lock);
	return e;
}

void resp_cache_done(struct resp_cache *k, struct resp_cached *e)
{
	bool last;

	pthread_mutex_lock(&k->lock);
	last = --e->refs == 0;
	pthread_mutex_unlock(&k->lock);
	if (last)
		drop(k, e);
}

bool resp_cache_wants(struct resp_cache *k, uint64_t segment, uint64_t offset, size_t cap)
{
	uint64_t h = hash_of(segment, offset);
	uint32_t mark = (uint32_t)(h >> 32) | 1;

	return cap <= k->limit / PART && atomic_exchange(&k->recent[h % RECENT], mark) == mark;
}

void resp_cache_put(struct resp_cache *k, struct resp_cached *e)
{
	struct resp_cached *out[2 * PART], *same;
	size_t n = 0;

	pthread_mutex_lock(&k->lock);
	same = *find(k, e->segment, e->offset);
	if (!same) {
		struct resp_cached **p = &k->slots[hash_of(e->segment, e->offset) % SLOTS];

		e->refs = 1;
		e->next = *p;
		*p = e;
		link_newest(k, e);
		k->bytes += e->b.cap;
	}
	while (k->bytes > k->limit && n < ARRAY_LEN(out)) {
		out[n] = take_out(k, k->oldest);
		n += out[n] != NULL;
	}
	pthread_mutex_unlock(&k->lock);
	while (n)
		drop(k, out[--n]);
	if (same)
		drop(k, e);
}

void resp_cache_free(struct resp_cache *k)
{
	if (!k)
		return;
	while (k->oldest)
		drop(k, take_out(k, k->oldest));
	pthread_mutex_destroy(&k->lock);
	free(k);
}
