/*
 * Pins: items that are not evicted.  Their segments are held, and locked (pin_lock) against other processes that make
 * room; where this one makes room, it moves them on.
 */
#include <stdlib.h>

#include "base/mem.h"
#include "store/dir_impl.h"

/* Of one session on one item. */
struct pin {
	struct pin *next;
	struct store_key key;
	struct dir_session *owner;
	unsigned count;
	uint64_t bytes;
	struct segment *seg;
};

static struct pin **chain(struct dir *d, const struct store_key *key)
{
	return &d->pin[index_hash(d->index, key) % PIN_CHAINS];
}

static struct pin *pin_of(struct dir *d, const struct store_key *key, const struct dir_session *owner)
{
	struct pin *p = *chain(d, key);

	while (p && ((owner && p->owner != owner) || !store_key_equal(&p->key, key)))
		p = p->next;
	return p;
}

bool dir_pinned(struct dir *d, const struct store_key *key)
{
	return pin_of(d, key, NULL) != NULL;
}

/* One pin more or less on an item of that segment.  False: another process removes that just now, or it cannot be
 * opened. */
static bool segment_pin(struct dir *d, struct segment *seg, int by)
{
	bool first = !seg->pins;
	int fd;

	seg->pins += (unsigned)by;
	if (d->base.o.read_only || (seg->pins && !first))
		return true;
	fd = segment_fd(d, seg);
	return fd >= 0 && pin_lock(fd, seg->pins ? LOCK_SHARED : LOCK_NONE);
}

static int pin_one(struct dir_session *ss, const struct store_key *key, struct ds_err *err)
{
	struct dir *d = ss->d;
	struct pin *p = pin_of(d, key, ss);
	const struct pin *other = pin_of(d, key, NULL);
	uint64_t bytes, limit = dir_capacity(d) / 2;
	bool first = !other;
	struct found f;

	if (p) {
		p->count++;
		return 0;
	}
	if (!dir_find(d, key, true, &f))
		return 0;
	/* All pins of a key count for what the first one did: the item may have been replaced since. */
	bytes = other ? other->bytes : ((uint64_t)f.e.front + f.e.data) * INDEX_UNIT;
	if (first && limit && d->pinned_bytes + bytes > limit) {
		segment_release(d, f.seg);
		return err_set(err, DS_TEMP, "%llu bytes are pinned, half of what the store may hold",
			(unsigned long long)d->pinned_bytes);
	}
	p = mem_calloc(1, sizeof *p);
	if (!p) {
		segment_release(d, f.seg);
		return err_nomem(err, sizeof *p, "a pin");
	}
	if (!segment_pin(d, f.seg, 1)) {
		f.seg->pins--;
		segment_release(d, f.seg);
		free(p);
		return err_set(err, DS_TEMP, "the item is being moved");
	}
	*p = (struct pin){ *chain(d, key), *key, ss, 1, bytes, f.seg };
	*chain(d, key) = p;
	d->pinned_bytes += first ? bytes : 0;
	return 0;
}

static void unpin(struct dir *d, struct pin **at)
{
	struct pin *p = *at;

	*at = p->next;
	if (!dir_pinned(d, &p->key))
		d->pinned_bytes -= p->bytes;
	segment_pin(d, p->seg, -1);
	segment_release(d, p->seg);
	free(p);
}

static void unpin_one(struct dir_session *ss, const struct store_key *key)
{
	struct pin **at = chain(ss->d, key);

	while (*at && ((*at)->owner != ss || !store_key_equal(&(*at)->key, key)))
		at = &(*at)->next;
	if (*at && !--(*at)->count)
		unpin(ss->d, at);
}

int dir_pin(struct store_session *base, const struct store_key *keys, size_t n, bool pin, struct ds_err *err)
{
	struct dir_session *ss = (struct dir_session *)base;
	int rc = 0;

	pthread_mutex_lock(&ss->d->pins);
	for (size_t i = 0; !rc && i < n; i++)
		if (pin)
			rc = pin_one(ss, &keys[i], err);
		else
			unpin_one(ss, &keys[i]);
	pthread_mutex_unlock(&ss->d->pins);
	return rc;
}

void dir_unpin_all(struct dir_session *ss)
{
	struct dir *d = ss->d;

	pthread_mutex_lock(&d->pins);
	for (size_t i = 0; i < PIN_CHAINS; i++)
		for (struct pin **at = &d->pin[i]; *at;)
			if ((*at)->owner == ss)
				unpin(d, at);
			else
				at = &(*at)->next;
	pthread_mutex_unlock(&d->pins);
}

void dir_pin_moved(struct dir *d, const struct store_key *key, struct segment *to)
{
	pthread_mutex_lock(&d->pins);
	for (struct pin *p = *chain(d, key); p; p = p->next) {
		struct segment *from = p->seg;

		if (!store_key_equal(&p->key, key) || from == to)
			continue;
		pthread_rwlock_rdlock(&d->lock);
		__atomic_fetch_add(&to->refs, 1, __ATOMIC_RELAXED);
		pthread_rwlock_unlock(&d->lock);
		p->seg = to;
		segment_pin(d, to, 1);
		segment_pin(d, from, -1);
		segment_release(d, from);
	}
	pthread_mutex_unlock(&d->pins);
}
