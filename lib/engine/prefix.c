#include "engine/prefix.h"

#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <xxhash.h>

#include "base/mem.h"

enum { BUCKETS_MIN = 1024 };

struct entry {
	LIST_ENTRY(entry) bucket;
	TAILQ_ENTRY(entry) rest;   /* while its block is idle */
	XXH128_hash_t key;
	struct entry *parent;      /* NULL: the prompt begins here */
	void *block;
	uint8_t decoded;           /* how its rows were made */
	uint32_t ids[KV_BLOCK + 1]; /* its tokens; with MTP the one that follows them, else 0 */
};

LIST_HEAD(bucket, entry);
TAILQ_HEAD(by_age, entry);

struct prefix_cache {
	struct kv_pool *pool;
	bool mtp;
	struct bucket *buckets;    /* [bucket_count], a power of two */
	size_t bucket_count, count;
	struct entry **of_block;   /* [pool->blocks] whose block it is */
	/* Those with idle blocks, the one that was used last first.  Whoever uses a block uses its parents, too, and
	 * gives it back before them: no parent stands behind its children, and none of the last one's is in use. */
	struct by_age idle;
};

static void on_rest(void *ctx, size_t n, bool idle)
{
	struct prefix_cache *c = ctx;

	if (idle)
		TAILQ_INSERT_HEAD(&c->idle, c->of_block[n], rest);
	else
		TAILQ_REMOVE(&c->idle, c->of_block[n], rest);
}

/* Its block is idle. */
static void drop(struct prefix_cache *c, struct entry *e)
{
	LIST_REMOVE(e, bucket);
	TAILQ_REMOVE(&c->idle, e, rest);
	kv_block_drop(c->pool, e->block);
	c->count--;
	free(e);
}

static void reclaim(void *ctx)
{
	struct prefix_cache *c = ctx;

	drop(c, TAILQ_LAST(&c->idle, by_age));
}

int prefix_new(struct prefix_cache **out, struct kv_pool *p, bool mtp, struct ds_err *err)
{
	struct prefix_cache *c = mem_calloc(1, sizeof(*c));
	size_t n = BUCKETS_MIN;

	while (n < p->blocks)
		n *= 2;
	if (c) {
		c->buckets = mem_calloc(n, sizeof(*c->buckets));
		c->of_block = mem_calloc(p->blocks, sizeof(*c->of_block));
	}
	if (!c || !c->buckets || !c->of_block) {
		if (c) {
			free(c->buckets);
			free(c->of_block);
		}
		free(c);
		return err_nomem(err, n * sizeof(struct bucket), "the cache of prefixes");
	}
	c->pool = p;
	c->mtp = mtp;
	c->bucket_count = n;
	TAILQ_INIT(&c->idle);
	p->reclaim = reclaim;
	p->rest = on_rest;
	p->cache = c;
	*out = c;
	return 0;
}

void prefix_free(struct prefix_cache *c)
{
	struct entry *e;

	if (!c)
		return;
	while ((e = TAILQ_LAST(&c->idle, by_age)) != NULL)
		drop(c, e);
	c->pool->reclaim = NULL;
	free(c->buckets);
	free(c->of_block);
	free(c);
}

size_t prefix_blocks(const struct prefix_cache *c) { return c->count; }

/* What a block's rows depend on, besides its parent: block n of a prompt, which a further token follows. */
static void tokens_of(const struct prefix_cache *c, const uint32_t *ids, size_t n, uint32_t out[KV_BLOCK + 1])
{
	memcpy(out, ids + n * KV_BLOCK, KV_BLOCK * sizeof(*out));
	out[KV_BLOCK] = c->mtp ? ids[(n + 1) * KV_BLOCK] : 0;
}

static XXH128_hash_t chain(const struct entry *parent, const uint32_t tokens[KV_BLOCK + 1])
{
	struct { XXH128_hash_t parent; uint32_t ids[KV_BLOCK + 1]; } link;

	memset(&link, 0, sizeof(link));
	if (parent)
		link.parent = parent->key;
	memcpy(link.ids, tokens, sizeof(link.ids));
	return XXH3_128bits(&link, sizeof(link));
}

/* Made as decoded says; ANY: in whatever way, in prefill's if there is that. */
enum { ANY = 255 };

static struct entry *find(const struct prefix_cache *c, const struct entry *parent, const uint32_t *ids, size_t n,
	uint8_t decoded)
{
	struct entry *e, *best = NULL;
	uint32_t tokens[KV_BLOCK + 1];
	XXH128_hash_t key;

	tokens_of(c, ids, n, tokens);
	key = chain(parent, tokens);
	LIST_FOREACH(e, &c->buckets[key.low64 & (c->bucket_count - 1)], bucket)
		if (XXH128_isEqual(e->key, key) && e->parent == parent &&
		    memcmp(e->ids, tokens, sizeof(e->ids)) == 0 && (decoded == ANY || e->decoded == decoded) &&
		    (!best || e->decoded == KV_BLOCK))
			best = e;
	return best;
}

/* Takes a place in s that may have another block of the same bytes, or of none. */
static bool give(struct prefix_cache *c, struct kv_seq *s, size_t n, const struct entry *e)
{
	if (n >= s->count)
		return kv_seq_share(s, c->pool, e->block);
	kv_seq_replace(s, c->pool, n, e->block);
	return true;
}

size_t prefix_take(struct prefix_cache *c, struct kv_seq *s, const uint32_t *ids, size_t count, uint8_t *decoded)
{
	size_t most = (count - 1) / KV_BLOCK, have = s->length / KV_BLOCK, n = 0;
	struct entry *e = NULL, *next;

	while (n < most) {
		next = find(c, e, ids, n, !decoded ? KV_BLOCK : n < have ? decoded[n] : ANY);
		if (!next || !give(c, s, n, next))
			break;
		if (decoded)
			decoded[n] = next->decoded;
		e = next;
		n++;
	}
	if (n > have) {
		s->length = n * KV_BLOCK;
		s->mtp = c->mtp ? s->length : 0;
	}
	return s->length;
}

size_t prefix_find(const struct prefix_cache *c, const uint32_t *ids, size_t count, uint8_t *decoded)
{
	const struct entry *e = NULL;
	size_t n = 0;

	while (n < (count - 1) / KV_BLOCK && (e = find(c, e, ids, n, ANY)) != NULL)
		decoded[n++] = e->decoded;
	return n * KV_BLOCK;
}

static struct entry *add(struct prefix_cache *c, struct entry *parent, const uint32_t *ids, size_t n, void *block,
	uint8_t decoded)
{
	struct entry *e = mem_calloc(1, sizeof(*e));

	if (!e)
		return NULL;
	tokens_of(c, ids, n, e->ids);
	e->key = chain(parent, e->ids);
	e->parent = parent;
	e->block = block;
	e->decoded = decoded;
	c->of_block[kv_block_number(c->pool, block)] = e;
	kv_block_keep(c->pool, block);
	LIST_INSERT_HEAD(&c->buckets[e->key.low64 & (c->bucket_count - 1)], e, bucket);
	c->count++;
	return e;
}

void prefix_keep(struct prefix_cache *c, struct kv_seq *s, const uint32_t *ids, size_t count, const uint8_t *decoded)
{
	struct entry *e = NULL, *next;

	for (size_t n = 0; n < (count - 1) / KV_BLOCK; n++) {
		uint8_t how = decoded ? decoded[n] : KV_BLOCK;

		next = find(c, e, ids, n, how);
		if (next)
			kv_seq_replace(s, c->pool, n, next->block);
		else
			next = add(c, e, ids, n, s->pages[n], how);
		if (!next)
			break;
		e = next;
	}
}
