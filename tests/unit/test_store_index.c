/* The index: what is added is found, what is removed is not, memory stays small, ghosts are few and forgotten. */
#include "base/mem.h"
#include "store/index.h"
#include "store/keyed.h"
#include "tests/unit/stores.h"

enum { MANY = 400000 };

static uint32_t find(struct index *x, uint64_t n)
{
	struct store_key k = key_of(n);

	return index_find(x, &k, index_hash(x, &k));
}

static uint32_t add(struct index *x, uint64_t n)
{
	struct store_key k = key_of(n);
	uint32_t e = index_add(x, &k, index_hash(x, &k));

	if (e == INDEX_NONE)
		tap_bail("no memory");
	index_at(x, e)->segment = 1;
	index_at(x, e)->offset = (uint32_t)n;
	index_set(index_at(x, e), (uint32_t)n, 0);
	return e;
}

static bool is(struct index *x, uint64_t n)
{
	uint32_t e = find(x, n);

	return e != INDEX_NONE && index_at(x, e)->offset == (uint32_t)n && index_data(index_at(x, e)) == (uint32_t)n;
}

static void many(void)
{
	struct ds_err err;
	struct index *x;
	struct store_key *keys = mem_array(1000, sizeof *keys);
	uint32_t found[1000], top;
	size_t bad = 0, fat = 0;

	if (index_new(&x, &err) || !keys)
		tap_bail("no index");
	for (uint64_t n = 0; n < MANY; n++) {
		bad += find(x, n) != INDEX_NONE;
		add(x, n);
		fat += n > MANY / 2 && index_bytes(x) > 64 * n;
	}
	tap_is_int((long long)fat, 0, "an entry takes less than 64 bytes");
	tap_diag("%.1f bytes", (double)index_bytes(x) / MANY);
	for (uint64_t n = 0; n < MANY; n++)
		bad += !is(x, n);
	tap_ok(!bad && index_count(x) == MANY, "what was added is found");
	for (uint64_t n = 0; n < MANY; n += 2)
		index_remove(x, find(x, n));
	for (uint64_t n = 0; n < MANY; n++)
		bad += is(x, n) != n % 2;
	tap_ok(!bad && index_count(x) == MANY / 2, "what was removed is not, and all else is");
	for (uint64_t n = 0; n < 1000; n++)
		keys[n] = key_of(n * 97);
	index_find_many(x, keys, 1000, found);
	for (uint64_t n = 0; n < 1000; n++)
		bad += found[n] != find(x, n * 97);
	tap_is_int((long long)bad, 0, "many at once are found like one by one");
	top = index_top(x);
	for (uint64_t n = 0; n < MANY; n += 2)
		add(x, n);
	tap_ok(index_top(x) == top, "the room of what was removed is used again");
	index_free(x);
	free(keys);
}

static void reserved(void)
{
	struct ds_err err;
	struct index *x;
	size_t bad = 0, bytes;

	if (index_new(&x, &err))
		tap_bail("no index");
	for (uint64_t n = 0; n < 1000; n++)
		add(x, n);
	index_reserve(x, 200000);
	for (uint64_t n = 0; n < 1000; n++)
		bad += !is(x, n);
	bytes = index_bytes(x);
	for (uint64_t n = 1000; n < 200000; n++)
		add(x, n);
	for (uint64_t n = 0; n < 200000; n++)
		bad += !is(x, n);
	tap_ok(!bad && index_bytes(x) <= 64 * 200000 + (2 << 20), "what is made ready is used");
	tap_ok(bytes > 200000 * 10, "and was made ready: %zu bytes", bytes);
	index_free(x);
}

static void ghosts(void)
{
	struct ds_err err;
	struct index *x;
	size_t false_ones = 0, kept = 0, old = 0;

	if (index_new(&x, &err))
		tap_bail("no index");
	for (uint64_t n = 0; n < 100000; n++)
		add(x, n);
	for (uint64_t n = 0; n < 300000; n++) {
		struct store_key k = key_of(1000000 + n);

		index_ghost_add(x, index_hash(x, &k));
	}
	for (uint64_t n = 0; n < 300000; n++) {
		struct store_key k = key_of(1000000 + n), other = key_of(9000000 + n);
		bool is_ghost = index_ghost(x, index_hash(x, &k));

		kept += n >= 270000 && is_ghost;
		old += n < 30000 && is_ghost;
		false_ones += index_ghost(x, index_hash(x, &other));
	}
	tap_ok(kept > 29000, "the youngest ghosts are known: %zu of 30000", kept);
	tap_ok(old < 1000, "old ones are forgotten: %zu of 30000 left", old);
	tap_ok(false_ones < 300, "others are hardly ever taken for one: %zu of 300000", false_ones);
	index_free(x);
}

/* SipHash-2-4 of the paper's appendix: key 00 .. 0f, message 00 .. 07 and 00 .. 0f. */
static void known_answers(void)
{
	struct keyed k = { { 0x0706050403020100u, 0x0f0e0d0c0b0a0908u } };
	uint64_t words[] = { 0x0706050403020100u, 0x0f0e0d0c0b0a0908u };

	tap_ok(keyed_hash(&k, words, 1) == 0x93f5f5799a932462u, "SipHash of 8 bytes");
	tap_ok(keyed_hash(&k, words, 2) == 0x3f2acc7f57c29bdbu, "of 16 bytes");
}

int main(void)
{
	many();
	reserved();
	ghosts();
	known_answers();
	return tap_done();
}
