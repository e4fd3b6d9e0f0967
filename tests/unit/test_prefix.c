/* Prefixes that were computed before: found by their tokens alone, shared, given up oldest first and never in use. */
#include "engine/prefix.h"

#include <time.h>

#include "base/random.h"
#include "tap.h"

enum { BLOCK_BYTES = KV_BLOCK * 8 * 4 };

struct rig { struct kv_pool *pool; struct prefix_cache *cache; };

static void open_rig(struct rig *r, size_t blocks, bool mtp)
{
	struct ds_err err;

	if (kv_pool_new(&r->pool, DT_F32, 1, 8, blocks * BLOCK_BYTES, &err) ||
	    prefix_new(&r->cache, r->pool, mtp, &err))
		tap_bail("%s", err.text);
}

static void close_rig(struct rig *r)
{
	size_t idle = r->pool->idle, used = r->pool->used, kept = prefix_blocks(r->cache);

	prefix_free(r->cache);
	tap_ok(idle == used && kept == used && r->pool->used == 0,
		"nothing is in use at the end, the cache gives all back");
	kv_pool_free(r->pool);
}

/* A prompt of n tokens: the first `common` from a, the others from b. */
static void prompt(uint32_t *ids, size_t n, size_t common, uint32_t a, uint32_t b)
{
	for (size_t i = 0; i < n; i++)
		ids[i] = (i < common ? a : b) * 1000 + (uint32_t)i;
}

/* What a block's bytes depend on, as in an engine: all tokens up to its end, with MTP the next one, too. */
static uint32_t stamp(const uint32_t *ids, size_t n, bool mtp)
{
	uint32_t h = 1;

	for (size_t i = 0; i < (n + 1) * KV_BLOCK + mtp; i++)
		h = h * 16777619u + ids[i];
	return h;
}

static uint32_t *word(void *block) { return block; }

/* Takes what is there, computes the rest, keeps it; returns the hit.  wrong: blocks that are not what computing them
 * would give. */
static size_t run(struct rig *r, struct kv_seq *s, const uint32_t *ids, size_t n, bool mtp, size_t *wrong)
{
	size_t hit = prefix_take(r->cache, s, ids, n, NULL);

	*wrong += s->length != hit || hit % KV_BLOCK != 0 || hit >= n || (mtp && s->mtp != hit);
	if (!kv_seq_reserve(s, r->pool, n))
		return SIZE_MAX;
	for (size_t b = 0; b < (n - 1) / KV_BLOCK; b++) {
		if (b >= hit / KV_BLOCK)
			*word(s->pages[b]) = stamp(ids, b, mtp);
		*wrong += *word(s->pages[b]) != stamp(ids, b, mtp);
	}
	s->length = n;
	prefix_keep(r->cache, s, ids, n, NULL);
	for (size_t b = 0; b < (n - 1) / KV_BLOCK; b++)
		*wrong += *word(s->pages[b]) != stamp(ids, b, mtp);
	return hit;
}

static void test_hits(void)
{
	uint32_t a[300], b[300];
	struct kv_seq s = { 0 };
	size_t wrong = 0;
	struct rig r;

	open_rig(&r, 20, false);
	prompt(a, 300, 300, 1, 1);
	tap_is_int((long long)run(&r, &s, a, 300, false, &wrong), 0, "nothing is found at first");
	kv_seq_clear(&s, r.pool);
	tap_ok(prefix_blocks(r.cache) == 4 && r.pool->idle == 4 && kv_pool_available(r.pool) == 20,
		"four complete blocks of 300 tokens are kept, idle, and count as available");
	tap_is_int((long long)run(&r, &s, a, 300, false, &wrong), 256, "the same prompt finds them");
	tap_ok(r.pool->used == 5 && r.pool->idle == 0, "they are shared, no longer idle");
	kv_seq_clear(&s, r.pool);
	tap_is_int((long long)run(&r, &s, a, 256, false, &wrong), 192, "one token is always left to be computed");
	kv_seq_clear(&s, r.pool);
	tap_is_int((long long)run(&r, &s, a, 257, false, &wrong), 256, "of 257 the last");
	kv_seq_clear(&s, r.pool);
	for (size_t at = 0; at < 300; at += 13) { /* one other token anywhere */
		memcpy(b, a, sizeof(b));
		b[at] ^= 1;
		if (prefix_take(r.cache, &s, b, 300, NULL) != (at < 256 ? at / KV_BLOCK * KV_BLOCK : 256))
			wrong++;
		kv_seq_clear(&s, r.pool);
	}
	/* the second block's tokens at the beginning of a prompt */
	wrong += prefix_take(r.cache, &s, a + KV_BLOCK, 200, NULL) != 0;
	tap_is_int((long long)wrong, 0,
		"a block is found where all tokens before and in it are the same, and only there");
	close_rig(&r);
}

/* The MTP layer's last entry of a block is made with the token after it: who goes on otherwise must not get it. */
static void test_next_token(void)
{
	uint32_t ids[4][300];
	struct kv_seq s = { 0 };
	size_t wrong = 0, hit[4];
	struct rig r;

	open_rig(&r, 30, true);
	prompt(ids[0], 300, 128, 1, 2); /* parts from the others right behind a block */
	prompt(ids[1], 300, 128, 1, 3);
	prompt(ids[2], 300, 128, 1, 3);
	ids[2][299]++;
	prompt(ids[3], 128, 128, 1, 1);
	for (size_t i = 0; i < 4; i++) {
		hit[i] = run(&r, &s, ids[i], i < 3 ? 300 : 128, true, &wrong);
		kv_seq_clear(&s, r.pool);
	}
	tap_ok(hit[0] == 0 && hit[1] == 64 && hit[2] == 256 && hit[3] == 64,
		"with MTP a block is found by the token behind it, too (%zu, %zu, %zu, %zu)", hit[0], hit[1], hit[2],
			hit[3]);
	tap_is_int((long long)wrong, 0, "so that every block is the one that would be computed");
	close_rig(&r);
}

/* Two that computed the same at the same time hold one copy afterwards, and no idle block is out of reach. */
static void test_twins(void)
{
	uint32_t a[200], b[270];
	struct kv_seq s = { 0 }, t = { 0 }, u = { 0 };
	struct rig r;

	open_rig(&r, 9, false);
	prompt(a, 200, 200, 1, 1);
	prompt(b, 270, 200, 1, 2);
	prefix_take(r.cache, &s, a, 200, NULL);
	prefix_take(r.cache, &t, b, 270, NULL);
	if (!kv_seq_reserve(&s, r.pool, 200) || !kv_seq_reserve(&t, r.pool, 270))
		tap_bail("no room");
	s.length = 200;
	t.length = 270;
	prefix_keep(r.cache, &s, a, 200, NULL);
	prefix_keep(r.cache, &t, b, 270, NULL);
	tap_ok(r.pool->used == 6 && s.pages[2] == t.pages[2] && prefix_blocks(r.cache) == 4,
		"what two sequences computed at the same time is held once");
	kv_seq_clear(&s, r.pool);
	tap_ok(r.pool->idle == 0 && r.pool->used == 5 && kv_pool_available(r.pool) == 4,
		"it stays in use until both are gone");
	tap_ok(kv_seq_reserve(&u, r.pool, 4 * KV_BLOCK) && !kv_seq_reserve(&u, r.pool, 5 * KV_BLOCK),
		"what counts as available can be had, nothing more");
	kv_seq_clear(&t, r.pool);
	tap_ok(kv_pool_available(r.pool) == 5 && kv_seq_reserve(&u, r.pool, 9 * KV_BLOCK) &&
		prefix_blocks(r.cache) == 0,
		"idle blocks make way to the last one, children before their parents");
	kv_seq_clear(&u, r.pool);
	close_rig(&r);
}

static void test_order(void)
{
	uint32_t ids[3][129];
	struct kv_seq s = { 0 }, u = { 0 };
	size_t wrong = 0;
	struct rig r;

	open_rig(&r, 6, false);
	for (uint32_t i = 0; i < 3; i++)
		prompt(ids[i], 129, 129, i + 1, 0);
	for (size_t i = 0; i < 2; i++) {
		run(&r, &s, ids[i], 129, false, &wrong);
		kv_seq_clear(&s, r.pool);
	}
	run(&r, &s, ids[0], 129, false, &wrong); /* used again: now the second is the older one */
	kv_seq_clear(&s, r.pool);
	run(&r, &s, ids[2], 129, false, &wrong); /* three blocks, two are free */
	kv_seq_clear(&s, r.pool);
	tap_ok(prefix_take(r.cache, &s, ids[1], 129, NULL) == 64,
		"the end of the prefix that was used least recently went first");
	kv_seq_clear(&s, r.pool);
	tap_ok(prefix_take(r.cache, &s, ids[0], 129, NULL) == 128, "one used since then is there");
	tap_ok(kv_seq_reserve(&u, r.pool, 4 * KV_BLOCK) && !kv_seq_reserve(&u, r.pool, 5 * KV_BLOCK) &&
		prefix_blocks(r.cache) == 2, "a prefix in use is never given up");
	kv_seq_clear(&u, r.pool);
	kv_seq_clear(&s, r.pool);
	close_rig(&r);
}

/* Anything at random: every block is the right one, available ones can be had, all comes back. */
static void test_random(bool mtp)
{
	enum { SEQS = 6, MOST = 400 };
	static uint32_t ids[SEQS][MOST];
	struct kv_seq s[SEQS] = { 0 };
	struct kv_parked parked[SEQS] = { 0 };
	size_t n[SEQS] = { 0 }, wrong = 0, hits = 0, failed = 0;
	struct rig r;

	open_rig(&r, 24, mtp);
	for (uint64_t k = 0; k < 20000; k++) {
		size_t i = random_bits(7, 4 * k) % SEQS, what = random_bits(7, 4 * k + 1) % 8;
		size_t free_blocks = kv_pool_available(r.pool);

		if (parked[i].bytes) {
			bool could = free_blocks >= parked[i].blocks;

			failed += kv_seq_unpark(&s[i], r.pool, &parked[i], NULL, NULL) != could;
		} else if (n[i] && what == 0) {
			failed += !kv_seq_park(&s[i], r.pool, 0, &parked[i]);
		} else if (n[i] && what < 5) {
			kv_seq_clear(&s[i], r.pool);
			n[i] = 0;
		} else if (!n[i]) {
			size_t hit;

			n[i] = 1 + random_bits(7, 4 * k + 2) % MOST;
			for (size_t b = 0; b < n[i]; b++) /* three ways to go on after each half block */
				ids[i][b] = (uint32_t)random_bits(11, (k % 5 + b / 32) * 3 +
					random_bits(13, k / 9 + b / 32) % 3);
			hit = run(&r, &s[i], ids[i], n[i], mtp, &wrong);
			hits += hit != SIZE_MAX && hit > 0;
			if (hit == SIZE_MAX) { /* what there is was given and is not enough */
				failed += kv_pool_available(r.pool) != 0;
				kv_seq_clear(&s[i], r.pool);
				n[i] = 0;
			}
		}
	}
	tap_ok(wrong == 0 && failed == 0 && hits > 500,
		"%s: %zu hits, %zu wrong blocks, %zu times available ones were not",
		mtp ? "with MTP" : "without", hits, wrong, failed);
	for (size_t i = 0; i < SEQS; i++) {
		kv_seq_clear(&s[i], r.pool);
		free(parked[i].bytes);
	}
	close_rig(&r);
}

enum { LARGE = 30000, BEHIND = 60000 };

/* Seconds to give up LARGE idle blocks while older ones, `in_use` of them, are in use. */
static double reclaim_all(size_t in_use)
{
	uint32_t *ids = calloc((BEHIND + 1) * KV_BLOCK, sizeof(*ids));
	struct kv_seq busy = { 0 }, s = { 0 };
	size_t n = LARGE * KV_BLOCK + 1;
	double seconds;
	clock_t began;
	struct rig r;

	open_rig(&r, LARGE + 1 + in_use, false);
	if (!ids || !kv_seq_reserve(&busy, r.pool, in_use * KV_BLOCK))
		tap_bail("no memory");
	if (in_use)
		prefix_keep(r.cache, &busy, ids, in_use * KV_BLOCK + 1, NULL);
	ids[0] = 1;
	if (!kv_seq_reserve(&s, r.pool, n))
		tap_bail("no room");
	prefix_keep(r.cache, &s, ids, n, NULL);
	kv_seq_clear(&s, r.pool);
	began = clock();
	if (r.pool->idle != LARGE || !kv_seq_reserve(&s, r.pool, n) || r.pool->idle)
		tap_bail("idle blocks were not given up");
	seconds = (double)(clock() - began) / CLOCKS_PER_SEC;
	kv_seq_clear(&s, r.pool);
	kv_seq_clear(&busy, r.pool);
	prefix_free(r.cache);
	kv_pool_free(r.pool);
	free(ids);
	return seconds;
}

static void test_large(void)
{
	double alone = reclaim_all(0), behind = reclaim_all(BEHIND);

	tap_ok(behind < 20 * alone + 0.05, "%d blocks are given up in %.1f ms, with %d others in use in %.1f ms", LARGE,
		1e3 * alone, BEHIND, 1e3 * behind);
}

/* Blocks of the same tokens of which decode made some rows are other blocks; what was computed behind them is
 * theirs. */
static void test_lineages(void)
{
	uint8_t pure[4] = { 64, 64, 64, 64 }, mixed[4] = { 64, 17, 64, 64 }, how[4] = { 0 };
	struct kv_seq a = { 0 }, b = { 0 }, s = { 0 };
	struct rig r;
	uint32_t ids[300];
	void *own;

	open_rig(&r, 16, false);
	prompt(ids, 300, 300, 1, 2);
	kv_seq_reserve(&a, r.pool, 193);
	kv_seq_reserve(&b, r.pool, 193);
	a.length = b.length = 193;
	prefix_keep(r.cache, &b, ids, 193, mixed);
	tap_ok(prefix_take(r.cache, &s, ids, 193, NULL) == 64, "who asks for prefill's rows only gets them only");
	kv_seq_clear(&s, r.pool);
	tap_ok(prefix_find(r.cache, ids, 193, how) == 192 && how[0] == 64 && how[1] == 17 && how[2] == 64,
		"who asks how they were made is told");
	own = a.pages[1];
	prefix_keep(r.cache, &a, ids, 193, pure);
	tap_ok(a.pages[0] == b.pages[0] && a.pages[1] == own && a.pages[1] != b.pages[1] && a.pages[2] != b.pages[2],
		"the block before is shared, that of the other lineage and what follows it is not");
	tap_ok(prefix_take(r.cache, &s, ids, 193, how) == 192 && s.pages[1] == a.pages[1] && how[1] == 64,
		"prefill's are taken first");
	kv_seq_clear(&s, r.pool);
	kv_seq_reserve(&s, r.pool, 193);
	s.length = 128;
	how[1] = 17;
	tap_ok(prefix_take(r.cache, &s, ids, 193, how) == 192 && s.pages[1] == b.pages[1] && s.pages[2] == b.pages[2] &&
		s.count == 4,
		"a sequence that has some goes on with those of its own lineage, in the room that it has");
	kv_seq_clear(&s, r.pool);
	kv_seq_reserve(&s, r.pool, 193);
	s.length = 128;
	how[1] = 18;
	tap_ok(prefix_take(r.cache, &s, ids, 193, how) == 128 && s.pages[1] != b.pages[1] && s.pages[1] != a.pages[1],
		"of another lineage there is nothing");
	kv_seq_clear(&s, r.pool);
	kv_seq_clear(&a, r.pool);
	kv_seq_clear(&b, r.pool);
	close_rig(&r);
}

int main(void)
{
	test_large();
	test_hits();
	test_next_token();
	test_twins();
	test_order();
	test_lineages();
	test_random(false);
	test_random(true);
	return tap_done();
}
