/* Looking up and fetching, as the stage sees it. */
#include "serve/kv_client_impl.h"

#include <stdlib.h>

#include "base/mem.h"
#include "base/time.h"

static void ask_free(struct kv_ask *a)
{
	kv_seq_clear(&a->hold, a->c->o.pool);
	free(a->ids);
	free(a->keys);
	free(a->decoded);
	free(a->here);
	free(a->pages);
	free(a);
}

void kv_reap(struct kv_client *c)
{
	struct kv_ask *a = TAILQ_FIRST(&c->given_up), *next;
	bool running;

	for (; a; a = next) {
		next = TAILQ_NEXT(a, link);
		pthread_mutex_lock(&c->lock);
		running = a->running;
		pthread_mutex_unlock(&c->lock);
		if (running)
			continue;
		TAILQ_REMOVE(&c->given_up, a, link);
		ask_free(a);
	}
}

/* Only the pages that the thread may be writing to stay out of others' reach. */
static void trim(struct kv_ask *a)
{
	const struct kv_client *c = a->c;
	struct kv_seq keep = { 0 };

	for (size_t i = (a->arrived - a->first) * c->pages; i < (a->placed - a->first) * c->pages; i++)
		if (a->pages[i] && !kv_seq_share(&keep, c->o.pool, a->pages[i])) {
			kv_seq_clear(&keep, c->o.pool);
			return; /* no memory: then all of them stay */
		}
	kv_seq_clear(&a->hold, c->o.pool);
	a->hold = keep;
}

void kv_ask_end(struct kv_ask *a, bool late)
{
	struct kv_client *c;
	bool running, fetching;

	if (!a)
		return;
	c = a->c;
	pthread_mutex_lock(&c->lock);
	late |= a->late;
	c->n.late += late;
	a->given_up = true;
	running = a->running;
	fetching = a->late || (late && running && a->pages); /* not who only stood behind such a one */
	if (!running && (a->state == KV_ASK_LOOKS || a->state == KV_ASK_FETCHES))
		TAILQ_REMOVE(&c->asks, a, link);
	if (running && a->hold.count)
		trim(a);
	pthread_mutex_unlock(&c->lock);
	kv_timed(c, a, fetching);
	if (running)
		TAILQ_INSERT_TAIL(&c->given_up, a, link);
	else
		ask_free(a);
}

/* ---- looking up ---- */

/* The first `have` pages are as they are; what follows them is what prefill makes. */
static size_t blocks_in_memory(const struct kv_client *c, const uint8_t *decoded, size_t have, uint64_t *of_blocks,
	size_t blocks)
{
	size_t n = 0;

	while (n < blocks && (n + 1) * c->pages <= have && kv_decoded(c, decoded + n * c->pages, &of_blocks[n]))
		n++;
	for (size_t b = n; b < blocks; b++)
		of_blocks[b] = c->o.layout.tokens;
	return n;
}

static struct kv_ask *make(struct kv_client *c, const uint32_t *ids, size_t count, size_t blocks)
{
	struct kv_ask *a = mem_calloc(1, sizeof(*a));

	if (!a)
		return NULL;
	a->c = c;
	a->count = count;
	a->blocks = blocks;
	a->began_ns = time_mono_ns();
	a->ids = mem_copy(ids, count * sizeof(*ids));
	a->keys = mem_array(blocks, sizeof(*a->keys));
	a->decoded = mem_array(blocks, sizeof(*a->decoded));
	a->here = mem_calloc(blocks, 1);
	if (a->ids && a->keys && a->decoded && a->here)
		return a;
	ask_free(a);
	return NULL;
}

static void queue(struct kv_ask *a, enum kv_ask_state state)
{
	struct kv_client *c = a->c;

	pthread_mutex_lock(&c->lock);
	a->state = state;
	TAILQ_INSERT_TAIL(&c->asks, a, link);
	pthread_cond_signal(&c->asks_wake);
	pthread_mutex_unlock(&c->lock);
}

/* *trial: to see whether it still is slow. */
static bool may_ask(struct kv_client *c, bool *trial)
{
	bool yes;

	pthread_mutex_lock(&c->lock);
	yes = !c->lost && !c->flushing && (!c->slow || (!c->trying && time_mono_ns() >= c->slow_until_ns));
	*trial = yes && c->slow;
	pthread_mutex_unlock(&c->lock);
	return yes;
}

struct kv_ask *kv_ask_new(struct kv_client *c, const uint32_t *ids, size_t count, const uint8_t *decoded, size_t have)
{
	size_t blocks = (count - 1) / (size_t)c->o.layout.tokens;
	struct kv_ask *a;
	bool trial;

	blocks = blocks < STORE_KEYS_MAX ? blocks : STORE_KEYS_MAX;
	if (!blocks || !may_ask(c, &trial))
		return NULL;
	a = make(c, ids, count, blocks);
	if (!a)
		return NULL;
	a->have = blocks_in_memory(c, decoded, have, a->decoded, blocks);
	a->trial = trial;
	pthread_mutex_lock(&c->lock);
	c->trying |= trial;
	pthread_mutex_unlock(&c->lock);
	queue(a, KV_ASK_LOOKS);
	return a;
}

enum kv_ask_state kv_ask_state(const struct kv_ask *a)
{
	enum kv_ask_state s;

	pthread_mutex_lock(&a->c->lock);
	s = a->state;
	pthread_mutex_unlock(&a->c->lock);
	return s;
}

size_t kv_ask_found(const struct kv_ask *a) { return a->found * a->c->pages; }

/* ---- fetching ---- */

bool kv_ask_elsewhere(const struct kv_ask *a, size_t page)
{
	struct kv_client *c = a->c;
	size_t block = page / c->pages;
	const struct kv_ask *k;
	bool yes = false;

	pthread_mutex_lock(&c->lock);
	if (c->at && c->at != a && c->at->state == KV_ASK_FETCHES && !c->at->given_up && block < c->at->found &&
	    block >= c->at->first)
		yes = store_key_equal(&c->at->keys[block], &a->keys[block]);
	TAILQ_FOREACH(k, &c->asks, link)
		if (k != a && k->state == KV_ASK_FETCHES && block < k->found && block >= k->first)
			yes |= store_key_equal(&k->keys[block], &a->keys[block]);
	pthread_mutex_unlock(&c->lock);
	return yes;
}

/* How a page of a block was made, as the block says it. */
static uint8_t page_decoded(const struct kv_client *c, uint64_t of_block, size_t page)
{
	uint64_t first = page * KV_BLOCK;

	if (of_block > c->o.layout.tokens)
		return (uint8_t)(KV_BLOCK + (page + 1 == c->pages));
	if (of_block <= first)
		return 0;
	return (uint8_t)(of_block - first < KV_BLOCK ? of_block - first : KV_BLOCK);
}

static bool goes_on(const struct kv_ask *a, size_t first, const uint8_t *decoded)
{
	const struct kv_client *c = a->c;

	for (size_t n = 0; n < first && n < a->found * c->pages; n++)
		if (decoded[n] != page_decoded(c, a->decoded[n / c->pages], n % c->pages))
			return false;
	return true;
}

bool kv_ask_fetch(struct kv_ask *a, const struct kv_seq *s, size_t first, const uint8_t *decoded)
{
	struct kv_client *c = a->c;
	size_t begin = first / c->pages, n = (a->found - begin) * c->pages;

	a->first = a->arrived = a->placed = begin;
	a->state = KV_ASK_OVER; /* the thread is not at it */
	if (!goes_on(a, first, decoded) || !(a->pages = mem_calloc(n, sizeof(*a->pages))))
		return false;
	for (size_t i = 0; i < n; i++) {
		size_t page = begin * c->pages + i;

		if (page < first)
			continue;
		if (!kv_seq_share(&a->hold, c->o.pool, s->pages[page])) {
			kv_seq_clear(&a->hold, c->o.pool);
			return false;
		}
		a->pages[i] = s->pages[page];
	}
	queue(a, KV_ASK_FETCHES);
	return true;
}

size_t kv_ask_arrived(const struct kv_ask *a, size_t first, uint8_t *decoded)
{
	struct kv_client *c = a->c;
	size_t n;

	pthread_mutex_lock(&c->lock);
	n = a->pages ? a->arrived * c->pages : 0;
	pthread_mutex_unlock(&c->lock);
	for (size_t i = first; i < n; i++)
		decoded[i] = page_decoded(c, a->decoded[i / c->pages], i % c->pages);
	return n;
}
