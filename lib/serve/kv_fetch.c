/* Looking up and fetching, as the thread does it that may wait for the store. */
#include "serve/kv_client_impl.h"

#include <stdlib.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"

/* ---- looking up ---- */

/* The keys of blocks from `from` on, as they are when a->decoded says how their rows were made. */
static void chain(struct kv_ask *a, size_t from)
{
	for (size_t b = from; b < a->blocks; b++) {
		struct block_id id = kv_id(a->c, a->keys, a->ids, b, a->decoded[b]);

		a->keys[b] = block_key(&a->c->o.layout, &id);
	}
}

static int has(struct kv_ask *a, struct store_session *ss, const struct store_key *keys, size_t n, uint8_t *here,
	size_t *prefix, struct ds_err *err)
{
	int rc;

	do {
		store_deadline(ss, time_mono_ns() + a->c->o.timeout_ns);
		rc = store_has(ss, keys, n, here, prefix, err);
	} while (rc && kv_may_come(a->c, rc));
	if (!rc)
		kv_met(a->c);
	return rc;
}

/* The block behind the last found one, made by decode from some token of it on; the later the better. */
static int find_decoded(struct kv_ask *a, struct store_session *ss, bool *found, struct ds_err *err)
{
	const struct block_layout *l = &a->c->o.layout;
	size_t n = (size_t)l->tokens + (l->mtp > 0), prefix;
	struct store_key *keys = mem_array(n, sizeof(*keys));
	uint8_t *here = mem_array(n, 1);
	struct block_id id = kv_id(a->c, a->keys, a->ids, a->found, 0);
	int rc = keys && here ? 0 : err_nomem(err, n * sizeof(*keys), "keys");

	*found = false;
	for (size_t i = 0; i < n && !rc; i++) {
		id.decoded = i < l->tokens ? i : l->tokens + 1;
		keys[i] = block_key(l, &id);
	}
	if (!rc)
		rc = has(a, ss, keys, n, here, &prefix, err);
	for (size_t i = n; i-- > 0 && !rc && !*found;)
		if (here[i]) {
			*found = true;
			a->decoded[a->found] = i < l->tokens ? i : l->tokens + 1;
		}
	free(keys);
	free(here);
	return rc;
}

/* Blocks that follow, all of them made by decode. */
static int find_run(struct kv_ask *a, struct store_session *ss, struct ds_err *err)
{
	size_t run, from = a->found;
	int rc;

	for (size_t b = from; b < a->blocks; b++)
		a->decoded[b] = 0;
	chain(a, from);
	rc = has(a, ss, a->keys + from, a->blocks - from, a->here + from, &run, err);
	a->found += rc ? 0 : run;
	for (size_t b = a->found; b < a->blocks; b++)
		a->decoded[b] = a->c->o.layout.tokens;
	chain(a, a->found);
	return rc;
}

static int look_up(struct kv_ask *a, struct store_session *ss, struct ds_err *err)
{
	size_t run;
	bool more = true;
	int rc;

	chain(a, 0);
	rc = has(a, ss, a->keys, a->blocks, a->here, &run, err);
	for (a->found = a->have; !rc && a->found < a->blocks && a->here[a->found];)
		a->found++;
	while (!rc && a->found < a->blocks && more && !a->c->o.pure) {
		rc = find_decoded(a, ss, &more, err);
		if (rc || !more)
			break;
		chain(a, a->found);
		a->here[a->found++] = 1;
		if (a->found < a->blocks)
			rc = find_run(a, ss, err);
		if (rc || a->found == a->blocks)
			break;
		rc = has(a, ss, a->keys + a->found, a->blocks - a->found, a->here + a->found, &run, err);
		a->found += rc ? 0 : run;
	}
	return rc;
}

/* ---- fetching ---- */

/* Where block b goes, first; in its own form, if that is a page's. */
static void *where(const struct kv_ask *a, size_t b)
{
	return a->c->bounce ? a->c->bounce : a->pages[b - a->first];
}

static void *place(void *ctx, size_t i, const struct store_item *item)
{
	struct kv_ask *a = ctx;
	size_t b = a->first + i;
	struct block_id id = kv_id(a->c, a->keys, a->ids, b, a->decoded[b]);
	bool go = false;
	struct ds_err why;

	if (!store_key_equal(&item->key, &a->keys[b]) || block_check(item, &a->c->o.layout, &id, &why)) {
		a->wrong = true;
		return NULL;
	}
	pthread_mutex_lock(&a->c->lock);
	if (!a->given_up) {
		a->placed = b + 1;
		go = true;
	}
	pthread_mutex_unlock(&a->c->lock);
	return go ? where(a, b) : NULL;
}

/* From [layers, tokens of a block, dim] to pages [layers, KV_BLOCK, dim], but for those that are there. */
static void scatter(const struct kv_client *c, const unsigned char *memory, void *const *pages)
{
	size_t layers = (size_t)c->o.layout.layers, piece = c->block_bytes / layers / c->pages;

	for (size_t l = 0; l < layers; l++)
		for (size_t p = 0; p < c->pages; p++, memory += piece)
			if (pages[p])
				memcpy((unsigned char *)pages[p] + l * piece, memory, piece);
}

static bool done(void *ctx, size_t i)
{
	struct kv_ask *a = ctx;
	struct kv_client *c = a->c;
	size_t b = a->first + i;
	const void *memory = where(a, b);
	bool go;

	if (c->o.layout.form == BLOCK_FP8) {
		block_unpack(&c->o.layout, memory, c->bounce2);
		memory = c->bounce2;
	}
	if (!block_finite(&c->o.layout, memory)) {
		a->wrong = true;
		return false;
	}
	if (c->bounce)
		scatter(c, memory, a->pages + (b - a->first) * c->pages);
	pthread_mutex_lock(&c->lock);
	go = !a->given_up;
	if (go)
		a->arrived = b + 1;
	pthread_mutex_unlock(&c->lock);
	return go;
}

#define ODD_NS ((int64_t)60000000000) /* between lines about such blocks */

/* What is not what its key says would be asked for again and again. */
static void forget(struct kv_ask *a, struct store_session *ss)
{
	char hex[STORE_KEY_HEX];
	struct kv_client *c = a->c;
	int64_t now = time_mono_ns();
	struct ds_err err;
	bool was;

	c->odd++;
	if (!c->odd_told_ns || now - c->odd_told_ns >= ODD_NS) {
		store_key_hex(&a->keys[a->arrived], hex);
		log_msg(LOG_WARN, "--kv '%s': block %s is not what its key says; it is computed again (%llu so far)",
			c->o.addr, hex, (unsigned long long)c->odd);
		c->odd_told_ns = now;
	}
	store_deadline(ss, time_mono_ns() + a->c->o.timeout_ns);
	store_del(ss, &a->keys[a->arrived], &was, &err);
}

/* The next loss is a new one. */
static void blocks_came(struct kv_client *c)
{
	pthread_mutex_lock(&c->lock);
	c->back_ns = 0;
	pthread_mutex_unlock(&c->lock);
}

/* Who answered what it has, and does not give it in time, is slow, not lost: asking what it has would find it well each
 * time.  kv_timed leaves it alone, for longer and longer, until its blocks come in time.  What is busy is neither. */
static int fetch(struct kv_ask *a, struct store_session *ss, struct ds_err *err)
{
	struct store_sink sink = { .ctx = a, .place = place, .done = done };
	int64_t until = time_mono_ns() + a->c->o.timeout_ns;
	size_t got;
	int rc;

	store_deadline(ss, until);
	rc = store_get(ss, a->keys + a->first, a->found - a->first, &sink, &got, err);
	if (a->wrong && !rc)
		forget(a, ss);
	a->short_of |= !rc && got < a->found - a->first;
	if (!rc && got)
		blocks_came(a->c);
	if (rc != DS_TEMP || (a->arrived == a->first && time_mono_ns() < until))
		return rc;
	pthread_mutex_lock(&a->c->lock);
	a->late = time_mono_ns() >= until;
	pthread_mutex_unlock(&a->c->lock);
	if (a->late)
		kv_timed(a->c, a, true); /* at once, not when its prompt ends */
	return 0;
}

/* ---- the thread ---- */

/* Next in the queue, marked as being worked on; NULL: stop, or (*probe) the store is to be tried again. */
static struct kv_ask *next(struct kv_client *c, bool *probe)
{
	struct kv_ask *a;

	*probe = false;
	pthread_mutex_lock(&c->lock);
	while (!c->stop && TAILQ_EMPTY(&c->asks) && !*probe) {
		struct timespec t = { c->retry_ns / 1000000000, c->retry_ns % 1000000000 };

		if (!c->lost || c->flushing)
			pthread_cond_wait(&c->asks_wake, &c->lock);
		else if (time_mono_ns() >= c->retry_ns)
			*probe = true;
		else
			pthread_cond_timedwait(&c->asks_wake, &c->lock, &t);
	}
	a = c->stop ? NULL : TAILQ_FIRST(&c->asks);
	if (a) {
		TAILQ_REMOVE(&c->asks, a, link);
		a->running = true;
		c->at = a;
		*probe = false;
	}
	pthread_mutex_unlock(&c->lock);
	return a;
}

static void over(struct kv_ask *a, enum kv_ask_state state, bool asked)
{
	struct kv_client *c = a->c;

	pthread_mutex_lock(&c->lock);
	c->n.asks += a->state == KV_ASK_LOOKS;
	if (a->state == KV_ASK_LOOKS)
		c->n.found += a->found > a->have ? a->found - a->have : 0;
	else
		c->n.fetched += a->arrived - a->first;
	c->n.wrong += a->wrong;
	a->short_of &= !a->given_up;
	c->n.missing += a->short_of && !a->wrong;
	a->state = state;
	a->asked |= asked;
	a->running = false;
	c->at = NULL;
	pthread_mutex_unlock(&c->lock);
	kv_ring(c);
}

static bool is_lost(struct kv_client *c)
{
	bool lost;

	pthread_mutex_lock(&c->lock);
	lost = c->lost;
	pthread_mutex_unlock(&c->lock);
	return lost;
}

/* What is cut short since nothing is asked any more says nothing of the store. */
static void failed(struct kv_client *c, const struct ds_err *why, const struct store_key *got)
{
	bool ending;

	pthread_mutex_lock(&c->lock);
	ending = c->flushing || c->stop;
	pthread_mutex_unlock(&c->lock);
	if (!ending)
		kv_failed(c, why, got);
}

static void work(struct kv_ask *a, struct store_session *ss)
{
	bool looks = a->state == KV_ASK_LOOKS, well;
	struct ds_err err;
	int rc;

	well = !is_lost(a->c);
	rc = !well ? 0 : looks ? look_up(a, ss, &err) : fetch(a, ss, &err);
	if (rc)
		failed(a->c, &err, looks ? NULL : &a->keys[a->arrived < a->found ? a->arrived : a->first]);
	if (looks && (rc || !well))
		a->found = 0;
	over(a, looks && a->found ? KV_ASK_FOUND : KV_ASK_OVER, looks && well && !rc);
}

struct tried { void *memory; size_t size; };

static void *place_tried(void *ctx, size_t i, const struct store_item *item)
{
	const struct tried *t = ctx;

	(void)i;
	return item->size <= t->size ? t->memory : NULL;
}

static bool done_tried(void *ctx, size_t i)
{
	(void)ctx;
	(void)i;
	return false;
}

/* Where a get failed: that it knows what it has says nothing. */
static int try_get(struct kv_client *c, struct store_session *ss, struct ds_err *err)
{
	struct tried t = { mem_array(c->stored_bytes, 1), c->stored_bytes };
	struct store_sink sink = { .ctx = &t, .place = place_tried, .done = done_tried };
	size_t got;
	int rc = t.memory ? store_get(ss, &c->get_key, 1, &sink, &got, err) : err_nomem(err, t.size, "a block");

	free(t.memory);
	return rc;
}

static void try_again(struct kv_client *c, struct store_session *ss)
{
	struct ds_err err;
	size_t prefix;
	int rc;

	store_deadline(ss, time_mono_ns() + c->o.timeout_ns);
	rc = store_has(ss, &c->root, 1, NULL, &prefix, &err);
	if (!rc && c->get_failed)
		rc = try_get(c, ss, &err);
	if (rc)
		failed(c, &err, NULL);
	else
		kv_well(c);
}

void *kv_asker(void *client)
{
	struct kv_client *c = client;
	struct kv_ask *a;
	bool probe;

	while ((a = next(c, &probe)) || probe) {
		struct store_session *ss = kv_session(c, &c->asks_by);

		if (!ss && a)
			over(a, KV_ASK_OVER, false);
		else if (a)
			work(a, ss);
		else if (ss)
			try_again(c, ss);
	}
	kv_session_end(c, &c->asks_by);
	return NULL;
}
