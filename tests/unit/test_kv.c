/* The paged cache: blocks are handed out once, come back, and parking keeps every byte. */
#include "engine/kv.h"

#include "tap.h"

static void fill(const struct kv_pool *p, const struct kv_seq *s, unsigned char seed)
{
	for (size_t i = 0; i < s->count; i++)
		memset(s->pages[i], seed + (int)i, p->block_bytes);
}

static bool holds(const struct kv_pool *p, const struct kv_seq *s, unsigned char seed)
{
	for (size_t i = 0; i < s->count; i++)
		for (size_t b = 0; b < p->block_bytes; b++)
			if (((unsigned char *)s->pages[i])[b] != (unsigned char)(seed + i))
				return false;
	return true;
}

static void test_limits(void)
{
	struct kv_pool *p;
	struct ds_err err;
	size_t block = 3 * KV_BLOCK * 160 * 2;

	tap_is_int(kv_pool_new(&p, DT_BF16, 3, 160, block - 1, &err), DS_CONFIG, "less than one block is refused");
	tap_is_int(kv_pool_new(&p, DT_BF16, 3, 160, 5 * block + 7, &err), 0, "a pool of five blocks and a bit");
	tap_is_int((long long)kv_pool_available(p), 5, "has five blocks");
	kv_pool_free(p);
}

static void test_sequences(void)
{
	struct kv_seq a = { 0 }, b = { 0 };
	struct kv_parked parked;
	struct kv_pool *p;
	struct ds_err err;

	if (kv_pool_new(&p, DT_F32, 2, 24, 4 * 2 * KV_BLOCK * 24 * 4, &err))
		tap_bail("%s", err.text);
	tap_ok(kv_seq_reserve(&a, p, 65) && a.count == 2, "65 tokens take two blocks");
	tap_ok(kv_seq_reserve(&a, p, 128) && a.count == 2, "as do 128");
	tap_ok(kv_seq_reserve(&b, p, 1) && kv_pool_available(p) == 1, "another sequence takes a third");
	fill(p, &a, 10);
	fill(p, &b, 50);
	tap_ok(holds(p, &a, 10) && holds(p, &b, 50), "no block is in two sequences");
	tap_ok(!kv_seq_reserve(&b, p, 3 * 64) && b.count == 2, "an empty pool says so and keeps what it gave");
	a.length = 100;
	tap_ok(kv_seq_park(&a, p, 0, &parked) && kv_pool_available(p) == 2 && a.count == 0, "parking frees the blocks");
	tap_ok(kv_seq_reserve(&b, p, 4 * 64) && b.count == 4, "which others take");
	fill(p, &b, 90);
	tap_ok(!kv_seq_unpark(&a, p, &parked, NULL, NULL) && parked.bytes, "there is no way back while they are taken");
	kv_seq_clear(&b, p);
	tap_ok(kv_seq_unpark(&a, p, &parked, NULL, NULL) && a.length == 100 && a.count == 2, "there is one afterwards");
	tap_ok(holds(p, &a, 10) && !parked.bytes, "with every byte as it was");
	kv_seq_clear(&a, p);
	tap_is_int((long long)kv_pool_available(p), 4, "all blocks came back");
	kv_pool_free(p);
}

static void test_sharing(void)
{
	struct kv_seq a = { 0 }, b = { 0 }, c = { 0 };
	struct kv_parked parked;
	struct kv_pool *p;
	struct ds_err err;

	if (kv_pool_new(&p, DT_F32, 2, 24, 6 * 2 * KV_BLOCK * 24 * 4, &err))
		tap_bail("%s", err.text);
	tap_ok(kv_seq_reserve(&a, p, 150) && a.count == 3, "a sequence of three blocks");
	fill(p, &a, 10);
	a.length = 150;
	a.mtp = 149;
	tap_ok(kv_seq_fork(&b, &a, 150, p) && p->used == 4 && b.pages[1] == a.pages[1] &&
		b.pages[2] != a.pages[2] && holds(p, &b, 10) && b.length == 150 && b.mtp == 149,
		"a fork shares all but the block in which it ends");
	tap_ok(kv_seq_fork(&c, &a, 128, p) && p->used == 5 && c.pages[0] == a.pages[0] && c.pages[1] != a.pages[1] &&
		c.mtp == 128, "the last block is its own even where it is full");
	kv_seq_clear(&a, p);
	tap_ok(p->used == 4 && holds(p, &b, 10), "shared blocks outlive the sequence they came from");
	tap_ok(kv_seq_park(&b, p, 0, &parked) && p->used == 2,
		"parking gives up a share and frees what nobody else holds");
	tap_ok(kv_seq_fork(&a, &c, 128, p) && p->used == 3, "a fork of a fork");
	kv_seq_clear(&a, p);
	tap_ok(kv_seq_unpark(&b, p, &parked, NULL, NULL) && holds(p, &b, 10) && b.mtp == 149 && p->used == 5,
		"and it comes back as blocks of its own");
	tap_ok(kv_seq_reserve(&b, p, 256) && !kv_seq_fork(&a, &c, 128, p) && a.count == 0 && p->used == 6,
		"without room a fork takes nothing");
	kv_seq_clear(&b, p);
	kv_seq_clear(&c, p);
	tap_is_int((long long)kv_pool_available(p), 6, "all blocks came back");
	kv_pool_free(p);
}

/* Choices of one prompt: what they share is kept once, outside of what is parked. */
static void test_parking_what_is_shared(void)
{
	struct kv_seq a = { 0 }, b = { 0 };
	struct kv_parked first, second;
	unsigned char *common;
	struct kv_pool *p;
	struct ds_err err;

	if (kv_pool_new(&p, DT_F32, 2, 24, 5 * 2 * KV_BLOCK * 24 * 4, &err))
		tap_bail("%s", err.text);
	kv_seq_reserve(&a, p, 200);
	fill(p, &a, 10);
	a.length = 200;
	kv_seq_fork(&b, &a, 200, p);
	common = kv_seq_copy(&b, p, 0, 3);
	tap_ok(p->used == 5 && kv_seq_park(&b, p, 3, &second) && p->used == 4 && second.skip == 3 &&
		second.blocks == 4, "one of two parked frees its own block");
	tap_is_int((long long)kv_parked_blocks(&second, true), 1, "and needs no more to come back");
	tap_ok(kv_seq_unpark(&b, p, &second, &a, common) && p->used == 5 && b.pages[2] == a.pages[2] &&
		b.pages[3] != a.pages[3] && holds(p, &b, 10) && b.length == 200, "it shares with the other again");
	tap_ok(kv_seq_park(&b, p, 3, &second) && kv_seq_park(&a, p, 3, &first) && p->used == 0, "both are parked");
	memset(p->memory, 0, p->blocks * p->block_bytes);
	tap_is_int((long long)kv_parked_blocks(&first, false), 4, "then the first needs all blocks");
	tap_ok(kv_seq_unpark(&a, p, &first, NULL, common) && p->used == 4 && holds(p, &a, 10),
		"and has them of the copy");
	tap_ok(kv_seq_unpark(&b, p, &second, &a, common) && p->used == 5 && b.pages[0] == a.pages[0] &&
		holds(p, &b, 10), "the second again shares them");
	free(common);
	kv_seq_clear(&a, p);
	kv_seq_clear(&b, p);
	tap_is_int((long long)kv_pool_available(p), 5, "all blocks came back");
	kv_pool_free(p);
}

int main(void)
{
	test_parking_what_is_shared();
	test_sharing();
	test_limits();
	test_sequences();
	return tap_done();
}
