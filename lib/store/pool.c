#include "store/pool.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "base/mem.h"
#include "base/time.h"

enum { LEAST = 64 << 10, HUGE_FROM = 4 << 20, KEEP_EACH = 32 << 20, KEEP_ALL = 64 << 20 };

int store_pool_open(struct store_pool *p, uint64_t limit, struct ds_err *err)
{
	pthread_condattr_t attr;

	*p = (struct store_pool){ .limit = limit };
	if (pthread_condattr_init(&attr))
		return err_nomem(err, sizeof attr, "memory for payloads");
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_mutex_init(&p->lock, NULL);
	pthread_cond_init(&p->given, &attr);
	pthread_condattr_destroy(&attr);
	return 0;
}

void store_pool_close(struct store_pool *p)
{
	for (size_t i = 0; i < p->n; i++)
		free(p->free[i].p);
	pthread_cond_destroy(&p->given);
	pthread_mutex_destroy(&p->lock);
}

/* Powers of two and the middles between them: what is asked for again is found again. */
static size_t size_class(size_t n)
{
	size_t cap = LEAST;

	while (cap < n && cap + cap / 2 < n)
		cap *= 2;
	return cap >= n ? cap : cap + cap / 2;
}

static bool take_kept(struct store_pool *p, size_t cap, struct store_buffer *b)
{
	for (size_t i = p->n; i-- > 0;)
		if (p->free[i].cap == cap) {
			*b = p->free[i];
			for (p->n--; i < p->n; i++)
				p->free[i] = p->free[i + 1];
			p->kept -= cap;
			return true;
		}
	return false;
}

static bool is_small(const struct store_pool *p, size_t cap)
{
	return cap <= p->limit / 16;
}

/* The first of its kind that waits, or NULL. */
static struct store_pool_wait *first(const struct store_pool *p, bool small)
{
	struct store_pool_wait *w = p->first;

	while (w && w->small != small)
		w = w->next;
	return w;
}

static bool room(uint64_t limit, uint64_t taken, size_t cap)
{
	return cap <= limit && taken <= limit - cap;
}

/* Small ones fall back to their share while a large one waits, so that it comes to its turn. */
static bool fits(const struct store_pool *p, size_t cap)
{
	uint64_t share = p->limit / 4, large = p->taken - p->small;

	if (p->taken == 0)
		return true;
	if (is_small(p, cap))
		return room(share, p->small, cap) || (!first(p, false) && room(p->limit, p->taken, cap));
	return large ? room(p->limit - share, large, cap) && room(p->limit, p->taken, cap) : p->small <= share;
}

/* Waits for its turn and for room; the lock is held.  False: too late. */
static bool wait_turn(struct store_pool *p, size_t cap, int64_t until)
{
	const struct timespec at = { .tv_sec = until / 1000000000, .tv_nsec = until % 1000000000 };
	struct store_pool_wait self = { NULL, is_small(p, cap) }, **w = &p->first;
	bool late = false;

	while (*w)
		w = &(*w)->next;
	*w = &self;
	while (!(first(p, self.small) == &self && fits(p, cap)) && !late) {
		if (until)
			late = pthread_cond_timedwait(&p->given, &p->lock, &at) == ETIMEDOUT;
		else
			pthread_cond_wait(&p->given, &p->lock);
	}
	for (w = &p->first; *w != &self; w = &(*w)->next)
		;
	*w = self.next;
	pthread_cond_broadcast(&p->given); /* another is the first now */
	return !late;
}

/* Buffers that are kept count, too: they give way. */
static void drop_kept(struct store_pool *p)
{
	while (p->n && p->taken + p->kept > p->limit) {
		p->kept -= p->free[--p->n].cap;
		free(p->free[p->n].p);
	}
}

int store_pool_take(struct store_pool *p, size_t n, int64_t until, struct store_buffer *b, struct ds_err *err)
{
	size_t cap;
	bool have = false, late;

	*b = (struct store_buffer){ NULL, 0 };
	if (n > SIZE_MAX / 4)
		return err_nomem(err, n, "a payload");
	cap = size_class(n);
	pthread_mutex_lock(&p->lock);
	late = (first(p, is_small(p, cap)) || !fits(p, cap)) && !wait_turn(p, cap, until);
	if (!late) {
		have = take_kept(p, cap, b);
		p->taken += cap;
		p->small += is_small(p, cap) ? cap : 0;
		drop_kept(p);
	}
	pthread_mutex_unlock(&p->lock);
	if (late)
		return err_set(err, DS_TEMP, "no memory for a payload of %zu bytes: others have it (--memory)", n);
	if (have)
		return 0;
	*b = (struct store_buffer){ aligned_alloc(64, cap), cap };
	if (!b->p) {
		store_pool_give(p, b);
		return err_nomem(err, n, "a payload");
	}
	if (cap >= HUGE_FROM)
		mem_huge(b->p, cap);
	return 0;
}

void store_pool_give(struct store_pool *p, struct store_buffer *b)
{
	uint8_t *drop = b->p;

	if (!b->cap)
		return;
	pthread_mutex_lock(&p->lock);
	p->taken -= b->cap;
	p->small -= is_small(p, b->cap) ? b->cap : 0;
	if (b->p && b->cap <= KEEP_EACH && p->kept + b->cap <= KEEP_ALL && p->n < STORE_POOL_KEPT) {
		p->kept += b->cap;
		p->free[p->n++] = *b;
		drop = NULL;
	}
	pthread_cond_broadcast(&p->given);
	pthread_mutex_unlock(&p->lock);
	free(drop);
	*b = (struct store_buffer){ NULL, 0 };
}

#define GRACE_NS ((int64_t)1000000000)
#define SLOW_NS_PER_BYTE 64 /* 16 MB/s: a tenth of what a gigabit has */

bool store_pool_too_slow(struct store_pool *p, const struct store_buffer *b, int64_t since, uint64_t came)
{
	int64_t took = time_mono_ns() - since;
	bool yes;

	if (!b->p || took < GRACE_NS || came >= (uint64_t)took / SLOW_NS_PER_BYTE)
		return false;
	pthread_mutex_lock(&p->lock);
	yes = !is_small(p, b->cap) && first(p, false);
	pthread_mutex_unlock(&p->lock);
	return yes;
}

uint64_t store_pool_taken(struct store_pool *p)
{
	uint64_t n;

	pthread_mutex_lock(&p->lock);
	n = p->taken;
	pthread_mutex_unlock(&p->lock);
	return n;
}
