/*
 * Which segment an item is written to.  A file system lets one thread at a time write to a file: so of each kind there
 * may be several, each written by one thread at a time.  Another is begun only while all that are there are being
 * written to, and where the capacity bears it, since each counts for what it may grow to.
 *
 * Whoever writes to one holds no lock; it may need d->lock, but never d->write: who has that may wait for it.
 */
#include <errno.h>
#include <unistd.h>

#include "base/time.h"
#include "store/dir_impl.h"

#define SEAL_WAIT_NS ((int64_t)1000000000) /* for who is writing, while others wait for the directory */
#define REST_NS ((int64_t)2000000000)      /* what nobody has written to for so long is not needed just now */

enum { HELLO_MAX = 512, TRIES = 8, SHARE = 8 /* one in so many bytes may be of segments that are written */ };

static bool has_room(const struct segment *seg, uint64_t n)
{
	return seg->size + n + SEGMENT_END_MAX + IDX_HEAD + (seg->idx.n + 1) * IDX_RECORD <= seg->reserve;
}

/* What a segment takes that has an item of n bytes. */
static uint64_t least_for(uint64_t n)
{
	return HELLO_MAX + n + SEGMENT_END_MAX + IDX_HEAD + IDX_RECORD;
}

static uint64_t reserve_for(const struct dir *d, uint64_t n)
{
	return least_for(n) < dir_segment_bytes(d) ? dir_segment_bytes(d) : least_for(n);
}

static int check_size(const struct dir *d, uint64_t n, struct ds_err *err)
{
	uint64_t capacity = dir_capacity(d);

	return !capacity || least_for(n) <= capacity ? 0 : err_full(err, DS_TEMP,
		"an item of %llu bytes is larger than the store of %llu", (unsigned long long)n,
		(unsigned long long)capacity);
}

/* ---- under d->lanes ---- */

enum which { ROOMY, FULL /* or not to be written to any more */, BROKEN, ANY };

/* It was begun when the store might be larger. */
static bool oversized(const struct dir *d, const struct segment *seg, uint64_t n)
{
	return seg->reserve > reserve_for(d, n);
}

static bool is(const struct dir *d, struct segment *seg, enum which which, uint64_t n)
{
	bool sound;

	if (which >= BROKEN)
		return which == ANY || seg->broken;
	sound = !seg->broken && !segment_unsafe(seg) && !oversized(d, seg, n);
	return (sound && has_room(seg, n)) == (which == ROOMY);
}

/* One that nobody writes to. */
static struct segment *idle(struct dir *d, bool main, enum which which, uint64_t n)
{
	for (int i = 0; i < LANES; i++) {
		struct segment *seg = d->active[main][i];

		if (seg && !seg->busy && is(d, seg, which, n))
			return seg;
	}
	return NULL;
}

static int count(const struct dir *d, bool main)
{
	int n = 0;

	for (int i = 0; i < LANES; i++)
		n += d->active[main][i] != NULL;
	return n;
}

static bool may_begin(const struct dir *d, bool main, uint64_t n)
{
	uint64_t capacity = dir_capacity(d), all = reserve_for(d, n);
	int same = count(d, main);

	for (int i = 0; i < 2 * LANES; i++)
		if (d->active[i / LANES][i % LANES])
			all += d->active[i / LANES][i % LANES]->reserve;
	return !same || (same < LANES && (!capacity || all <= capacity / SHARE));
}

/* False: it is too late. */
static bool wait_lane(struct dir *d, bool main, int64_t until)
{
	const struct timespec t = { .tv_sec = until / 1000000000, .tv_nsec = until % 1000000000 };
	bool in_time;

	store_wait(true);
	in_time = pthread_cond_timedwait(&d->lane_free[main], &d->lanes, &t) != ETIMEDOUT;
	store_wait(false);
	return in_time;
}

/* ---- under d->write ---- */

static struct segment *take(struct dir *d, bool main, enum which which, uint64_t n)
{
	struct segment *seg;

	pthread_mutex_lock(&d->lanes);
	seg = idle(d, main, which, n);
	if (seg)
		seg->busy = true;
	pthread_mutex_unlock(&d->lanes);
	return seg;
}

/* Where that fails, whoever comes next completes it. */
static bool seal(struct dir *d, struct segment *seg)
{
	if (seg)
		segment_seal(d, seg, &(struct ds_err){ 0 });
	return seg != NULL;
}

bool lanes_seal(struct dir *d)
{
	int64_t soon = time_mono_ns() + SEAL_WAIT_NS;
	bool any = false;

	for (int main = 0; main < 2; main++) {
		bool in_time = true;

		while (in_time) {
			if (seal(d, take(d, main, ANY, 0))) {
				any = true;
				continue;
			}
			pthread_mutex_lock(&d->lanes);
			if (!count(d, main))
				in_time = false;
			else if (!idle(d, main, ANY, 0))
				in_time = wait_lane(d, main, soon < d->until ? soon : d->until);
			pthread_mutex_unlock(&d->lanes);
		}
	}
	return any;
}

void lanes_rest(struct dir *d)
{
	uint64_t capacity = dir_capacity(d);
	/* there is no room for another, with what is kept for eviction (make_room) */
	bool full = capacity && dir_bytes(d) + 2 * dir_segment_bytes(d) > capacity;
	int64_t since = time_mono_ns() - REST_NS;

	for (int i = 0; i < 2 * LANES; i++) {
		struct segment *seg;

		pthread_mutex_lock(&d->lanes);
		seg = d->active[i / LANES][i % LANES];
		if (seg && (seg->busy || !(oversized(d, seg, 0) || (full && seg->written_ns < since))))
			seg = NULL;
		if (seg)
			seg->busy = true;
		pthread_mutex_unlock(&d->lanes);
		seal(d, seg);
	}
}

void lanes_mend(struct dir *d, int64_t until)
{
	if (dir_write_lock(d, until, &(struct ds_err){ 0 }))
		return;
	for (int i = 0; i < 2 * LANES; i++)
		seal(d, take(d, i / LANES, BROKEN, 0));
	dir_write_unlock(d);
}

/* Room within the capacity, of which one segment's worth is kept for what eviction moves. */
static int make_room(struct dir *d, uint64_t reserve, struct ds_err *err)
{
	uint64_t capacity = dir_capacity(d), spare = dir_segment_bytes(d);
	int rc = dir_look(d, true, err);

	if (rc)
		return rc;
	dir_inherit(d);
	if (!capacity)
		return 0;
	return dir_make_room(d, reserve, reserve + spare > capacity ? capacity : capacity - spare, err);
}

/* A new one, and the directory's lock.  Making room for it may have begun one of its kind, for what was moved. */
static int begin(struct dir *d, bool main, uint64_t n, struct segment **out, struct ds_err *err)
{
	int rc = dir_lock(d, err);

	if (rc)
		return rc;
	capacity_look(d);
	rc = check_size(d, n, err);
	if (!rc)
		rc = make_room(d, reserve_for(d, n), err);
	for (int i = 0; !rc && i < TRIES; i++) {
		*out = take(d, main, ROOMY, n);
		if (*out)
			break;
		rc = segment_create(d, main, reserve_for(d, n), out, err);
		if (rc != DS_TEMP || !dir_evict_one(d, false, &(struct ds_err){ 0 }))
			break; /* unless the disk is full */
		rc = i + 1 < TRIES ? 0 : rc;
	}
	dir_unlock(d);
	return rc;
}

int lane_for_move(struct dir *d, bool main, uint64_t n, struct segment **out, struct ds_err *err)
{
	uint64_t reserve = reserve_for(d, n), least = reserve, capacity = dir_capacity(d), used;
	bool in_time = true;

	pthread_mutex_lock(&d->lanes);
	while (in_time && count(d, main) && !idle(d, main, ANY, 0))
		in_time = wait_lane(d, main, d->until);
	pthread_mutex_unlock(&d->lanes);
	if (!in_time)
		return err_set(err, DS_TEMP, "'%s': others are writing", d->path);
	*out = take(d, main, ROOMY, n);
	if (*out)
		return 0;
	seal(d, take(d, main, FULL, n));
	used = capacity ? dir_bytes(d) - d->going : 0;
	if (reserve == dir_segment_bytes(d) && n < reserve / 4)
		least = reserve / 4; /* rather a small one than none */
	if (capacity && used + reserve > capacity)
		reserve = used < capacity ? capacity - used : 0;
	if (reserve < least)
		return err_full(err, DS_TEMP, "no room to move an item to");
	return segment_create(d, main, reserve, out, err);
}

/* ---- by whoever puts an item ---- */

/* NULL and 0: there is another chance. */
static int begin_alone(struct dir *d, bool main, uint64_t n, int64_t until, struct segment **out, struct ds_err *err)
{
	bool may;
	int rc = dir_write_lock(d, until, err);

	if (rc)
		return rc;
	*out = take(d, main, ROOMY, n);
	if (!*out) {
		seal(d, take(d, main, FULL, n)); /* one in which the item does not fit is complete */
		pthread_mutex_lock(&d->lanes);
		may = may_begin(d, main, n);
		pthread_mutex_unlock(&d->lanes);
		rc = may ? begin(d, main, n, out, err) : 0;
	}
	dir_write_unlock(d);
	return rc;
}

int lane_take(struct dir *d, bool main, uint64_t n, int64_t until, struct segment **out, struct ds_err *err)
{
	bool in_time = true;
	int rc = 0;

	pthread_mutex_lock(&d->lanes);
	for (;;) {
		*out = idle(d, main, ROOMY, n);
		if (*out)
			(*out)->busy = true;
		if (*out || !in_time)
			break;
		if (d->beginning[main] || (!may_begin(d, main, n) && !idle(d, main, FULL, n))) {
			in_time = wait_lane(d, main, until);
			continue;
		}
		d->beginning[main] = true;
		pthread_mutex_unlock(&d->lanes);
		rc = begin_alone(d, main, n, until, out, err);
		pthread_mutex_lock(&d->lanes);
		d->beginning[main] = false;
		pthread_cond_broadcast(&d->lane_free[main]);
		if (rc || *out)
			break;
	}
	if (!rc && !*out)
		rc = err_set(err, DS_TEMP, "'%s': others are writing", d->path);
	pthread_mutex_unlock(&d->lanes);
	return rc;
}

void lane_give(struct dir *d, struct segment *seg, bool broken)
{
	pthread_mutex_lock(&d->lanes);
	seg->busy = false;
	seg->broken = seg->broken || broken;
	seg->written_ns = time_mono_ns();
	pthread_cond_broadcast(&d->lane_free[seg->id.main]); /* not each who waits can use it */
	pthread_mutex_unlock(&d->lanes);
}

bool lanes_enter(struct dir *d, struct segment *seg)
{
	int i = 0;

	pthread_mutex_lock(&d->lanes);
	while (i < LANES && d->active[seg->id.main][i])
		i++;
	if (i < LANES) {
		d->active[seg->id.main][i] = seg;
		seg->busy = true;
	}
	pthread_mutex_unlock(&d->lanes);
	return i < LANES;
}

void lanes_leave(struct dir *d, struct segment *seg)
{
	pthread_mutex_lock(&d->lanes);
	for (int i = 0; i < LANES; i++)
		if (d->active[seg->id.main][i] == seg)
			d->active[seg->id.main][i] = NULL;
	pthread_cond_broadcast(&d->lane_free[seg->id.main]);
	pthread_mutex_unlock(&d->lanes);
}
