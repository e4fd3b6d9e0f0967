/*
 * Where the KV that arrives goes: into the pool while that has free blocks and no older request waits for them, else to
 * ordinary memory, up to a limit.  Beyond it a source is left unread at its next block, so that its sender waits, and
 * read again when there is room.
 *
 * That could be never, if all that is there has come in part only.  So where no request that could run waits for room,
 * one that is arriving at a time may go on over the limit: it will be complete, run, and give its memory back.  If
 * blocks of others stand before its own on the connection and nothing else goes on, those others fail.
 */
#include "base/mem.h"
#include "serve/decode_impl.h"

static bool arriving(const struct job *j)
{
	return j->state == JOB_ARRIVING;
}

/* The first choice of an older request has its KV parked: newcomers do not take the blocks that it waits for. */
static bool others_wait(const struct decode *d, const struct job *j)
{
	const struct group *last = NULL;
	const struct job *k;

	for (k = TAILQ_FIRST(&d->jobs); k && k != j; last = k->g, k = TAILQ_NEXT(k, link))
		if (k->g != last && k->parked.bytes)
			return true;
	return false;
}

/* The pool has room for all of the request that has arrived, and the next block. */
static bool pool_has(const struct decode *d, const struct job *j)
{
	return !others_wait(d, j) &&
		kv_pool_available(d->w->pool) > (j->parked.bytes ? j->parked.blocks : 0);
}

bool has_home(const struct decode *d, const struct group *g)
{
	return outside(d) < outside_most(d) || pool_has(d, g->lead);
}

void *next_block(struct decode *d, struct group *g)
{
	size_t bytes = d->w->pool->block_bytes, n = g->arrived;
	struct job *j = g->lead;
	unsigned char *p;

	if (pool_has(d, j) && (!j->parked.bytes || unpark(d, j)) &&
	    kv_seq_reserve(&j->kv, d->w->pool, (n + 1) * KV_BLOCK))
		return j->kv.pages[n];
	if (!j->parked.bytes) {
		j->kv.length = n * KV_BLOCK;
		if (!kv_seq_park(&j->kv, d->w->pool, 0, &j->parked))
			return NULL;
	}
	p = mem_realloc(j->parked.bytes, n + 1, bytes);
	if (!p)
		return NULL;
	j->parked.bytes = p;
	j->parked.blocks = n + 1;
	j->parked.length = j->parked.blocks * KV_BLOCK;
	return p + n * bytes;
}

static struct job *arriving_from(const struct decode *d, const struct source *src)
{
	struct job *j;

	TAILQ_FOREACH(j, &d->jobs, link)
		if (arriving(j) && j->g->src == src)
			return j;
	return NULL;
}

/* Nothing that goes on by itself will make room, or what is there is little enough. */
static bool may_press(const struct decode *d)
{
	const struct group *last = NULL;
	const struct job *j;
	bool started = false;

	for (j = TAILQ_FIRST(&d->jobs); j; last = j->g, j = TAILQ_NEXT(j, link)) {
		if (j->g != last && can_run(j) && j->parked.bytes)
			return false;
		started |= !arriving(j);
	}
	return !started || outside(d) <= 2 * outside_most(d);
}

static bool is_full(const struct decode *d, const struct source *src)
{
	for (size_t i = 0; i < d->full.n; i++)
		if (d->full.v[i] == src)
			return true;
	return false;
}

/* Some request can run, or arrive: it may make room. */
static bool others_go_on(const struct decode *d)
{
	const struct job *j;

	TAILQ_FOREACH(j, &d->jobs, link)
		if (arriving(j) ? !is_full(d, j->g->src) : j->waits || can_run(j))
			return true;
	return false;
}

/* No other arrives on the same connection. */
static bool alone(const struct decode *d, const struct group *g)
{
	const struct job *j;

	TAILQ_FOREACH(j, &d->jobs, link)
		if (arriving(j) && j->g->src == g->src && j->g != g)
			return false;
	return true;
}

/* The oldest whose next block is left unread, and that needs no other to be read; else the oldest. */
static struct group *candidate(const struct decode *d)
{
	struct group *oldest = NULL;
	struct job *j;

	TAILQ_FOREACH(j, &d->jobs, link) {
		if (!arriving(j) || !is_full(d, j->g->src))
			continue;
		if (alone(d, j->g))
			return j->g;
		oldest = oldest ? oldest : j->g;
	}
	return oldest;
}

/* Blocks of others may stand before those of the one that is to go on. */
static void press(struct decode *d)
{
	struct group *g = may_press(d) ? candidate(d) : NULL;

	if (g && (!d->pressed || alone(d, g))) {
		d->pressed = g;
		held_release(&d->full, g->src);
	} else if (d->pressed && !others_go_on(d)) {
		d->give_up = d->pressed->src;
		held_release(&d->full, d->give_up);
	}
}

void let_in(struct decode *d)
{
	size_t taken = outside(d), room = taken < outside_most(d) ? outside_most(d) - taken : 0;

	for (size_t i = 0; i < d->full.n;) {
		struct source *src = d->full.v[i];
		struct job *j = arriving_from(d, src);

		if (j && !room && !pool_has(d, j)) {
			i++;
			continue;
		}
		room -= j && room;
		held_release(&d->full, src);
	}
	if (d->full.n && (!d->pressed || is_full(d, d->pressed->src)))
		press(d);
}
