/*
 * Caches of blocks as their authors wrote them, without bytes: what a policy gives at its best.
 *
 * A request asks for its blocks from the front; it is given those up to the first that is missing, and has the rest
 * made and put.  Blocks are numbered from 0.
 */
#ifndef DS_TESTS_BENCH_POLICIES_H
#define DS_TESTS_BENCH_POLICIES_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/mem.h"

enum policy {
	POLICY_LRU,    /* the end of a prompt is older than its beginning */
	POLICY_FIFO,
	POLICY_S3,     /* S3-FIFO: Yang et al., SOSP 2023 */
	POLICY_BELADY, /* what is needed latest goes, and may not come in at all: no policy has more hits */
};

enum queue { SMALL, MAIN, GHOST, NOWHERE };

#define POLICY_END UINT32_MAX
enum { POLICY_ASKED = 3 /* S3-FIFO counts to */ };

struct policy_node {
	uint32_t older, newer; /* in its queue */
	uint32_t next;         /* Belady: place of its next use in the trace */
	uint8_t queue, asked;
};

struct policy_list { uint32_t oldest, newest; size_t n; };

struct policy_due { uint32_t next, id; };

struct cache {
	enum policy policy;
	size_t capacity, small, ghosts; /* blocks */
	bool second;                    /* S3-FIFO: a block comes in when it is put for the second time */
	struct policy_node *node;       /* [blocks] */
	struct policy_list list[3];
	struct policy_due *heap;        /* Belady's, entries that are no longer true among them */
	size_t heaped, heap_cap;
	uint64_t written, moved;        /* blocks */
};

/* small, ghosts: S3-FIFO's, in parts of the capacity. */
static inline bool cache_init(struct cache *c, enum policy policy, size_t capacity, size_t blocks, double small,
	double ghosts)
{
	*c = (struct cache){ .policy = policy, .capacity = capacity, .small = (size_t)((double)capacity * small),
		.ghosts = (size_t)((double)capacity * ghosts) };
	for (int q = 0; q < 3; q++)
		c->list[q] = (struct policy_list){ POLICY_END, POLICY_END, 0 };
	c->node = mem_array(blocks, sizeof(*c->node));
	for (size_t i = 0; c->node && i < blocks; i++)
		c->node[i] = (struct policy_node){ .queue = NOWHERE };
	return c->node;
}

static inline void cache_free(struct cache *c)
{
	free(c->node);
	free(c->heap);
}

static inline bool cache_has(const struct cache *c, uint32_t id)
{
	return c->node[id].queue <= MAIN;
}

static inline void cache_take(struct cache *c, uint32_t id)
{
	struct policy_node *e = &c->node[id];
	struct policy_list *l = &c->list[e->queue];

	*(e->older == POLICY_END ? &l->oldest : &c->node[e->older].newer) = e->newer;
	*(e->newer == POLICY_END ? &l->newest : &c->node[e->newer].older) = e->older;
	l->n--;
	e->queue = NOWHERE;
}

static inline void cache_push(struct cache *c, enum queue q, uint32_t id)
{
	struct policy_list *l = &c->list[q];

	c->node[id] = (struct policy_node){ .older = l->newest, .newer = POLICY_END, .next = c->node[id].next,
		.queue = (uint8_t)q };
	*(l->newest == POLICY_END ? &l->oldest : &c->node[l->newest].newer) = id;
	l->newest = id;
	l->n++;
}

/* What leaves without having been asked for is remembered. */
static inline void cache_remember(struct cache *c, uint32_t id)
{
	if (!c->ghosts)
		return;
	if (c->list[GHOST].n >= c->ghosts)
		cache_take(c, c->list[GHOST].oldest);
	cache_push(c, GHOST, id);
}

static inline void cache_evict_s3(struct cache *c)
{
	while (c->list[SMALL].n + c->list[MAIN].n > c->capacity) {
		enum queue q = c->list[SMALL].n > c->small || !c->list[MAIN].n ? SMALL : MAIN;
		uint32_t id = c->list[q].oldest;
		uint8_t asked = c->node[id].asked;

		cache_take(c, id);
		if (asked) {
			cache_push(c, MAIN, id);
			c->node[id].asked = q == MAIN ? asked - 1 : 0;
			c->moved++;
		} else if (q == SMALL) {
			cache_remember(c, id);
		}
	}
}

static inline void cache_use_s3(struct cache *c, uint32_t id)
{
	struct policy_node *e = &c->node[id];
	enum queue to = SMALL;

	if (e->queue <= MAIN) {
		if (e->asked < POLICY_ASKED)
			e->asked++;
		return;
	}
	if (e->queue == GHOST) {
		cache_take(c, id);
		to = MAIN;
	} else if (c->second) {
		cache_remember(c, id);
		return;
	}
	c->written++;
	cache_push(c, to, id);
	cache_evict_s3(c);
}

static inline void cache_use_fifo(struct cache *c, uint32_t id)
{
	bool here = cache_has(c, id);

	if (here && c->policy == POLICY_FIFO)
		return;
	if (here)
		cache_take(c, id);
	else
		c->written++;
	cache_push(c, MAIN, id);
	if (c->list[MAIN].n > c->capacity)
		cache_take(c, c->list[MAIN].oldest);
}

/* The heap's first is needed latest. */
static inline void cache_heap_add(struct cache *c, struct policy_due due)
{
	struct policy_due *h = mem_more(c->heap, &c->heap_cap, c->heaped, sizeof(*h));
	size_t i = c->heaped++;

	if (!h)
		abort();
	c->heap = h;
	for (; i && h[(i - 1) / 2].next < due.next; i = (i - 1) / 2)
		h[i] = h[(i - 1) / 2];
	h[i] = due;
}

static inline struct policy_due cache_heap_first(struct cache *c)
{
	struct policy_due *h = c->heap, first = h[0], last = h[--c->heaped];
	size_t i = 0;

	for (size_t k; (k = 2 * i + 1) < c->heaped; i = k) {
		k += k + 1 < c->heaped && h[k + 1].next > h[k].next;
		if (h[k].next <= last.next)
			break;
		h[i] = h[k];
	}
	h[i] = last;
	return first;
}

/* next: place of the block's next use, POLICY_END: none. */
static inline void cache_use_belady(struct cache *c, uint32_t id, uint32_t next)
{
	bool here = cache_has(c, id);

	if (here)
		cache_take(c, id);
	if (next == POLICY_END)
		return;
	c->written += !here;
	cache_push(c, MAIN, id);
	c->node[id].next = next;
	cache_heap_add(c, (struct policy_due){ next, id });
	while (c->list[MAIN].n > c->capacity) {
		struct policy_due due = cache_heap_first(c);

		if (cache_has(c, due.id) && c->node[due.id].next == due.next)
			cache_take(c, due.id);
	}
}

/*
 * One request; how many blocks from the front were there.  next [n]: of each block the place of its next use, for
 * Belady, whose hits are counted wherever they lie in the prompt: a bound.
 */
static inline size_t cache_request(struct cache *c, const uint32_t *ids, const uint32_t *next, size_t n)
{
	size_t hits = 0;

	if (c->policy == POLICY_BELADY) {
		for (size_t i = 0; i < n; i++) {
			hits += cache_has(c, ids[i]);
			cache_use_belady(c, ids[i], next[i]);
		}
		return hits;
	}
	while (hits < n && cache_has(c, ids[hits]))
		hits++;
	for (size_t i = 0; i < n; i++)
		if (c->policy == POLICY_S3)
			cache_use_s3(c, ids[i]);
		else
			cache_use_fifo(c, ids[c->policy == POLICY_LRU ? n - 1 - i : i]);
	return hits;
}

#endif
