/* Keys, and blocks that are written behind. */
#include "serve/kv_client_impl.h"

#include <stdlib.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"
#include "frame/messages.h"

/* ---- keys ---- */

struct store_key kv_root(const struct kv_client *c) { return c->root; }

struct block_id kv_id(const struct kv_client *c, const struct store_key *keys, const uint32_t *ids, size_t b,
	uint64_t decoded)
{
	size_t tokens = (size_t)c->o.layout.tokens;

	return (struct block_id){ .parent = b ? keys[b - 1] : c->root, .ids = ids + b * tokens, .first = b * tokens,
		.decoded = decoded };
}

bool kv_decoded(const struct kv_client *c, const uint8_t *decoded, uint64_t *of_block)
{
	size_t n = 0;

	while (n < c->pages && decoded[n] == KV_BLOCK)
		n++;
	*of_block = n * KV_BLOCK;
	if (n < c->pages && decoded[n] > KV_BLOCK)
		*of_block = c->o.layout.tokens + 1;
	else if (n < c->pages)
		*of_block += decoded[n];
	for (n++; n < c->pages; n++)
		if (decoded[n]) /* prefill's rows behind decode's */
			return false;
	return true;
}

size_t kv_keys(const struct kv_client *c, const uint32_t *ids, size_t count, const uint8_t *decoded,
	struct store_key *keys)
{
	size_t tokens = (size_t)c->o.layout.tokens, n = 0;
	struct block_id id;
	uint64_t how;

	while ((n + 1) * tokens + (c->o.layout.mtp > 0) <= count && kv_decoded(c, decoded + n * c->pages, &how)) {
		id = kv_id(c, keys, ids, n, how);
		keys[n++] = block_key(&c->o.layout, &id);
	}
	return n;
}

void kv_say(const struct kv_client *c, struct kv_block *k, size_t page, uint8_t decoded, const struct store_key *keys,
	size_t n)
{
	size_t b = page / c->pages;

	if (b > n)
		return;
	store_key_hex(b ? &keys[b - 1] : &c->root, k->parent);
	if (b < n && (page + 1) % c->pages == 0)
		store_key_hex(&keys[b], k->key);
	k->has_decoded = decoded != KV_BLOCK;
	k->decoded = decoded;
}

/* ---- what was taken ---- */

#define KNOWN_NS ((int64_t)60000000000) /* a store may evict it, at any time */

static size_t place_of(const struct store_key *key)
{
	return (key->b[0] | (size_t)key->b[1] << 8) % KNOWN;
}

bool kv_known(const struct kv_client *c, const struct store_key *key, int64_t after)
{
	size_t i = place_of(key);
	int64_t least = time_mono_ns() - KNOWN_NS;

	after = after > least ? after : least;
	after = after > c->dropped_ns ? after : c->dropped_ns;
	return c->known[i].at_ns > after && store_key_equal(&c->known[i].key, key);
}

void kv_write_free(struct kv_write *w)
{
	free((void *)(uintptr_t)w->id.ids);
	free(w->memory);
	free(w);
}

/* From pages [layers, KV_BLOCK, dim] to [layers, tokens of a block, dim]. */
static void gather(const struct kv_client *c, unsigned char *memory, void *const *pages)
{
	size_t layers = (size_t)c->o.layout.layers, piece = c->block_bytes / layers / c->pages;

	for (size_t l = 0; l < layers; l++)
		for (size_t p = 0; p < c->pages; p++, memory += piece)
			memcpy(memory, (const unsigned char *)pages[p] + l * piece, piece);
}

/* Bytes of the block are counted from here on, or it is not to be taken. */
static bool count_in(struct kv_client *c)
{
	bool ok;

	pthread_mutex_lock(&c->lock);
	ok = (!c->lost || c->unmet) && !c->stop && c->write_bytes + c->block_bytes <= c->o.write_bytes;
	if (ok) {
		c->write_bytes += c->block_bytes;
		c->writing++;
	} else {
		c->n.dropped++;
	}
	pthread_mutex_unlock(&c->lock);
	return ok;
}

static void count_out(struct kv_client *c, uint64_t *outcome)
{
	pthread_mutex_lock(&c->lock);
	++*outcome;
	c->write_bytes -= c->block_bytes;
	if (!--c->writing)
		pthread_cond_signal(&c->written);
	pthread_mutex_unlock(&c->lock);
}

enum trust { TRUSTED, DOUBTED, MISSED };

static void take(struct kv_client *c, const struct store_key *key, const struct block_id *id, void *const *pages,
	enum trust trust)
{
	size_t n = (size_t)c->o.layout.tokens + (c->o.layout.mtp > 0), i = place_of(key);
	struct kv_write *w;

	if (!count_in(c))
		return;
	w = mem_calloc(1, sizeof(*w));
	if (w) {
		w->key = *key;
		w->id = *id;
		w->again = trust == MISSED;
		w->doubted = trust == DOUBTED;
		w->id.ids = mem_copy(id->ids, n * sizeof(*id->ids));
		w->memory = mem_array(c->block_bytes, 1);
	}
	if (!w || !w->id.ids || !w->memory) {
		if (w)
			kv_write_free(w);
		count_out(c, &c->n.dropped);
		return;
	}
	gather(c, w->memory, pages);
	c->known[i].key = *key;
	c->known[i].at_ns = time_mono_ns();
	pthread_mutex_lock(&c->lock);
	STAILQ_INSERT_TAIL(&c->writes, w, link);
	pthread_cond_signal(&c->writes_wake);
	pthread_mutex_unlock(&c->lock);
}

struct store_key kv_put(struct kv_client *c, const struct block_id *id, void *const *pages)
{
	struct store_key key = block_key(&c->o.layout, id);

	if (!kv_known(c, &key, 0))
		take(c, &key, id, pages, TRUSTED);
	return key;
}

void kv_put_prompt(struct kv_client *c, const struct kv_ask *a, const struct kv_seq *s, const uint32_t *ids,
	const uint8_t *decoded, const struct store_key *keys, size_t n)
{
	size_t missed = SIZE_MAX; /* did not come, though the store says that it is there; behind it nothing is known */
	bool asked;

	pthread_mutex_lock(&c->lock);
	asked = a && a->asked;
	if (a && a->short_of)
		missed = a->arrived;
	pthread_mutex_unlock(&c->lock);
	for (size_t b = 0; b < n; b++) {
		struct block_id id = kv_id(c, keys, ids, b, 0);
		enum trust t = !a || b < missed || b >= a->found ? TRUSTED : b == missed ? MISSED : DOUBTED;

		if (asked && t == TRUSTED && b < a->blocks && a->here[b] && store_key_equal(&a->keys[b], &keys[b]))
			continue;
		if (kv_known(c, &keys[b], a ? a->began_ns : 0) || !kv_decoded(c, decoded + b * c->pages, &id.decoded))
			continue;
		take(c, &keys[b], &id, s->pages + b * c->pages, t);
	}
}

/* ---- the thread that writes ---- */

/* Up to PUT_KEYS of the queue; 0: stop. */
static size_t next(struct kv_client *c, struct kv_write **w)
{
	size_t n = 0;

	pthread_mutex_lock(&c->lock);
	while (!c->stop && (STAILQ_EMPTY(&c->writes) || (c->lost && c->unmet && !c->flushing)))
		pthread_cond_wait(&c->writes_wake, &c->lock);
	while (!c->stop && n < PUT_KEYS && (w[n] = STAILQ_FIRST(&c->writes)) != NULL) {
		STAILQ_REMOVE_HEAD(&c->writes, link);
		n++;
	}
	pthread_mutex_unlock(&c->lock);
	return n;
}

static int64_t set_deadline(struct kv_client *c, struct store_session *ss)
{
	int64_t at = time_mono_ns() + c->o.timeout_ns;

	pthread_mutex_lock(&c->lock);
	if (c->flushing && at > c->flush_until)
		at = c->flush_until;
	pthread_mutex_unlock(&c->lock);
	store_deadline(ss, at);
	return at;
}

/* A store that is full, cannot write, or is late with that, is no reason not to ask it.  Said once, until it takes a
 * block again; one that is late is offered none for a while. */
static void refused(struct kv_client *c, const struct ds_err *why, bool late)
{
	bool news;

	pthread_mutex_lock(&c->lock);
	news = c->refuses == !why && !(late && (c->stop || c->flushing)); /* it had no time */
	c->refuses = why != NULL;
	c->put_pause_ns = late ? kv_longer(c->put_pause_ns) : 0;
	c->put_retry_ns = time_mono_ns() + c->put_pause_ns;
	pthread_mutex_unlock(&c->lock);
	if (news && why)
		log_msg(LOG_WARN, "--kv '%s' takes no blocks: %s", c->o.addr, why->text);
	else if (news)
		log_msg(LOG_WARN, "--kv '%s' takes blocks again", c->o.addr);
}

/* stored: memory for the form FP8; *outcome: which counter it belongs to. */
static int put(struct kv_client *c, struct store_session *ss, const struct kv_write *w, unsigned char *stored,
	struct meta_builder *b, uint64_t **outcome, struct ds_err *err)
{
	const struct block_layout *l = &c->o.layout;
	struct iovec iov = { w->memory, c->block_bytes };
	struct store_put p = { .key = w->key, .meta = b, .iov = &iov, .iovs = 1, .replace = w->again,
		.element = l->form == BLOCK_FP8 ? 1 : (unsigned)dtype_size(l->type) };
	enum store_put_result how;
	int64_t late;
	int rc;

	*outcome = &c->n.dropped;
	if (l->form == BLOCK_FP8) {
		if (!block_pack(l, w->memory, stored))
			return 0;
		iov = (struct iovec){ stored, c->stored_bytes };
	} else if (!block_finite(l, w->memory)) {
		return 0;
	}
	meta_reset(b);
	block_meta_put(b, l, &w->id);
	late = set_deadline(c, ss);
	rc = store_put(ss, &p, &how, err);
	if (rc && rc != DS_UNAVAILABLE && rc != DS_PROTO) {
		refused(c, err, time_mono_ns() >= late);
		c->dropped_ns = time_mono_ns();
		return 0;
	}
	if (rc)
		return rc;
	refused(c, NULL, false);
	*outcome = how == STORE_ALREADY ? &c->n.already : how == STORE_STORED ? &c->n.written : &c->n.dropped;
	return 0;
}

/* No use to offer it a block now. */
static bool lost(struct kv_client *c)
{
	bool yes;

	pthread_mutex_lock(&c->lock);
	yes = (c->lost && !(c->unmet && c->flushing)) || time_mono_ns() < c->put_retry_ns;
	pthread_mutex_unlock(&c->lock);
	return yes;
}

/* Which of them somebody else has written meanwhile. */
static int look(struct kv_client *c, struct store_session *ss, struct kv_write *const *w, size_t n, uint8_t *here,
	struct ds_err *err)
{
	struct store_key keys[PUT_KEYS];
	size_t prefix;
	int rc;

	for (size_t i = 0; i < n; i++) {
		keys[i] = w[i]->key;
		if (w[i]->doubted)
			set_deadline(c, ss);
		if (w[i]->doubted && !store_doubt(ss, &keys[i]))
			w[i]->again = true;
	}
	do {
		set_deadline(c, ss);
		rc = store_has(ss, keys, n, here, &prefix, err);
	} while (rc && kv_may_come(c, rc));
	for (size_t i = 0; i < n; i++)
		here[i] &= !w[i]->again;
	if (!rc)
		kv_met(c);
	return rc;
}

/* One that was not there at the end either is not waited for any more. */
static void not_there(struct kv_client *c)
{
	pthread_mutex_lock(&c->lock);
	c->unmet &= !c->flushing;
	pthread_mutex_unlock(&c->lock);
}

static void write_failed(struct kv_client *c, const struct ds_err *why)
{
	not_there(c);
	kv_failed(c, why, NULL);
}

/* One that has not been there yet may come, up to the end: then they are written. */
static bool keep(struct kv_client *c, struct kv_write *const *w, size_t n)
{
	bool yes;

	pthread_mutex_lock(&c->lock);
	yes = c->lost && c->unmet && !c->flushing && !c->stop;
	while (yes && n-- > 0)
		STAILQ_INSERT_HEAD(&c->writes, w[n], link);
	pthread_mutex_unlock(&c->lock);
	return yes;
}

static void write_some(struct kv_client *c, struct store_session *ss, struct kv_write **w, size_t n,
	unsigned char *stored, struct meta_builder *b)
{
	uint8_t here[PUT_KEYS] = { 0 };
	struct ds_err err;
	int rc = ss && !lost(c) ? look(c, ss, w, n, here, &err) : 0;

	if (rc)
		write_failed(c, &err);
	if (ss && keep(c, w, n))
		return;
	for (size_t i = 0; i < n; i++) {
		uint64_t *outcome = here[i] ? &c->n.already : &c->n.dropped;

		if (!here[i] && ss && !lost(c)) {
			rc = put(c, ss, w[i], stored, b, &outcome, &err);
			if (rc)
				write_failed(c, &err);
		}
		if (!here[i] && (rc || !ss || lost(c)))
			c->dropped_ns = time_mono_ns();
		kv_write_free(w[i]);
		count_out(c, outcome);
	}
}

void *kv_writer(void *client)
{
	struct kv_client *c = client;
	unsigned char *stored = c->o.layout.form == BLOCK_FP8 ? mem_array(c->stored_bytes, 1) : NULL;
	struct meta_builder *b = meta_new();
	bool able = b && (stored || c->o.layout.form != BLOCK_FP8);
	struct kv_write *w[PUT_KEYS];
	size_t n;

	while ((n = next(c, w)) > 0)
		write_some(c, able ? kv_session(c, &c->writes_by) : NULL, w, n, stored, b);
	kv_session_end(c, &c->writes_by);
	if (b)
		meta_free(b);
	free(stored);
	return NULL;
}
