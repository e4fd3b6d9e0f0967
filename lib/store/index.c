#include "store/index.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/mem.h"
#include "store/keyed.h"

enum {
	SLOTS = 8192, MASK = SLOTS - 1,
	FULL = SLOTS * 82 / 100,
	WAYS = 16, BUCKETS = 255,
	DEPTH_MAX = 19,             /* of the hash's 32 bits, 13 are places in a table */
	CHUNK = 1 << 16,            /* entries */
	HUGE = 2 << 20,
	ARENA = 5 * HUGE,           /* 128 tables */
	BATCH = 64,
};

struct table {
	uint64_t slot[SLOTS];       /* entry + 1, and below it 32 bits of the hash; 0: free */
	uint32_t ghost[BUCKETS][WAYS]; /* the same bits of the hash, the youngest first; 0: none */
	uint32_t used, depth;
	uint32_t pad[14];
};
_Static_assert(sizeof(struct table) == 80 << 10 && ARENA % sizeof(struct table) == 0, "tables fill arenas");

struct index {
	struct keyed seed;
	struct table **dir;         /* [1 << depth] by the hash's upper bits */
	unsigned depth;
	size_t tables;
	uint8_t **arena;            /* each has room for so many tables as fit */
	size_t arenas, arena_cap;
	struct index_entry **chunk;
	size_t chunks, chunk_cap;
	uint32_t top, free;         /* free: list through the keys of free entries, entry + 1 */
	size_t count;
	uint64_t *scratch;          /* [SLOTS] for splits */
};

/* Memory of whole huge pages, zeroed as the system gives it. */
static void *map_huge(size_t bytes)
{
	const int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
	uint8_t *p = mmap(NULL, bytes + HUGE, PROT_READ | PROT_WRITE, how, -1, 0);
	size_t before;

	if (p == MAP_FAILED)
		return NULL;
	before = (size_t)(-(uintptr_t)p & (HUGE - 1));
	if (before)
		munmap(p, before);
	if (HUGE - before)
		munmap(p + before + bytes, HUGE - before);
	mem_huge(p + before, bytes);
	return p + before;
}

static struct table *table_new(struct index *x)
{
	const size_t each = ARENA / sizeof(struct table);
	size_t in = x->tables % each;
	struct table *t;

	if (!in) {
		void *p = mem_more(x->arena, &x->arena_cap, x->arenas, sizeof *x->arena);

		if (!p)
			return NULL;
		x->arena = p;
		x->arena[x->arenas] = map_huge(ARENA);
		if (!x->arena[x->arenas])
			return NULL;
		x->arenas++;
	}
	t = (struct table *)(void *)x->arena[x->arenas - 1] + in;
	x->tables++;
	return t;
}

int index_new(struct index **out, struct ds_err *err)
{
	struct index *x = mem_calloc(1, sizeof *x);

	*out = NULL;
	if (!x || !(x->dir = mem_array(1, sizeof *x->dir)) || !(x->scratch = mem_array(SLOTS, sizeof *x->scratch)) ||
		!(x->dir[0] = table_new(x))) {
		if (x)
			index_free(x);
		return err_nomem(err, HUGE, "an index");
	}
	keyed_random(&x->seed, sizeof x->seed);
	*out = x;
	return 0;
}

void index_free(struct index *x)
{
	if (!x)
		return;
	for (size_t i = 0; i < x->arenas; i++)
		munmap(x->arena[i], ARENA);
	for (size_t i = 0; i < x->chunks; i++)
		munmap(x->chunk[i], CHUNK * sizeof(struct index_entry));
	free(x->arena);
	free(x->chunk);
	free(x->dir);
	free(x->scratch);
	free(x);
}

uint64_t index_hash(const struct index *x, const struct store_key *key)
{
	uint64_t w[2];

	memcpy(w, key->b, sizeof w);
	return keyed_hash(&x->seed, w, 2);
}

/* The bits that are used: the upper ones choose the table, the lower ones the place in it. */
static inline uint32_t bits_of(uint64_t hash)
{
	return (uint32_t)(hash >> 32);
}

static inline struct table *table_of(const struct index *x, uint32_t bits)
{
	return x->dir[(uint64_t)bits >> (32 - x->depth)];
}

struct index_entry *index_at(const struct index *x, uint32_t entry)
{
	return &x->chunk[entry / CHUNK][entry % CHUNK];
}

void index_ask(struct index_entry *e)
{
	uint32_t old = __atomic_load_n(&e->data, __ATOMIC_RELAXED);

	if (old >> INDEX_DATA_BITS < INDEX_ASKED_MAX) /* one that is lost to another thread's is no loss */
		__atomic_compare_exchange_n(&e->data, &old, old + (1u << INDEX_DATA_BITS), false, __ATOMIC_RELAXED,
			__ATOMIC_RELAXED);
}

/* The first entry from place i on with these bits; the place behind it in *i. */
static uint32_t candidate(const struct table *t, uint32_t bits, uint32_t *i)
{
	for (uint32_t at = *i & MASK;; at = (at + 1) & MASK) {
		uint64_t s = t->slot[at];

		if (s && (uint32_t)s != bits)
			continue;
		*i = at + 1;
		return s ? (uint32_t)(s >> 32) - 1 : INDEX_NONE;
	}
}

static uint32_t find_from(const struct index *x, const struct table *t, const struct store_key *key, uint32_t bits,
	uint32_t i)
{
	uint32_t entry;

	while ((entry = candidate(t, bits, &i)) != INDEX_NONE)
		if (store_key_equal(&index_at(x, entry)->key, key))
			break;
	return entry;
}

uint32_t index_find(const struct index *x, const struct store_key *key, uint64_t hash)
{
	uint32_t bits = bits_of(hash);

	return find_from(x, table_of(x, bits), key, bits, bits);
}

void index_prefetch(const struct index *x, uint64_t hash)
{
	uint32_t bits = bits_of(hash);

	__builtin_prefetch(&table_of(x, bits)->slot[bits & MASK]);
}

/* Memory answers many questions at once: first all slots are asked for, then all entries. */
void index_find_many(const struct index *x, const struct store_key *keys, size_t n, uint32_t *found)
{
	uint32_t bits[BATCH], next[BATCH];

	for (size_t from = 0; from < n; from += BATCH) {
		size_t m = n - from < BATCH ? n - from : BATCH;

		for (size_t i = 0; i < m; i++) {
			uint64_t hash = index_hash(x, &keys[from + i]);

			bits[i] = next[i] = bits_of(hash);
			index_prefetch(x, hash);
		}
		for (size_t i = 0; i < m; i++) {
			found[from + i] = candidate(table_of(x, bits[i]), bits[i], &next[i]);
			if (found[from + i] != INDEX_NONE)
				__builtin_prefetch(index_at(x, found[from + i]));
		}
		for (size_t i = 0; i < m; i++) {
			uint32_t *f = &found[from + i];

			if (*f != INDEX_NONE && !store_key_equal(&index_at(x, *f)->key, &keys[from + i]))
				*f = find_from(x, table_of(x, bits[i]), &keys[from + i], bits[i], next[i]);
		}
	}
}

/* ---- growing ---- */

static void slot_put(struct table *t, uint64_t s)
{
	uint32_t i = (uint32_t)s & MASK;

	while (t->slot[i])
		i = (i + 1) & MASK;
	t->slot[i] = s;
	t->used++;
}

static void ghost_put(struct table *t, uint32_t bits)
{
	uint32_t *g = t->ghost[bits % BUCKETS];

	memmove(g + 1, g, (WAYS - 1) * sizeof *g);
	g[0] = bits;
}

static bool double_dir(struct index *x)
{
	size_t n = (size_t)1 << x->depth;
	struct table **dir;

	if (x->depth == DEPTH_MAX)
		return false;
	dir = mem_array(2 * n, sizeof *dir);
	if (!dir)
		return false;
	for (size_t i = 0; i < n; i++)
		dir[2 * i] = dir[2 * i + 1] = x->dir[i];
	free(x->dir);
	x->dir = dir;
	x->depth++;
	return true;
}

static void split_ghosts(struct table *t, struct table *upper, uint32_t bit)
{
	for (size_t b = 0; b < BUCKETS; b++) {
		uint32_t old[WAYS];

		memcpy(old, t->ghost[b], sizeof old);
		memset(t->ghost[b], 0, sizeof old);
		for (size_t i = WAYS; i-- > 0;)
			if (old[i])
				ghost_put(old[i] & bit ? upper : t, old[i]);
	}
}

/* Half of what is in the table of these bits goes to a new one. */
static bool split(struct index *x, uint32_t bits)
{
	struct table *t = table_of(x, bits), *upper;
	uint32_t bit = 1u << (31 - t->depth);
	size_t first, n;

	if (t->depth == x->depth && !double_dir(x))
		return false;
	upper = table_new(x);
	if (!upper)
		return false;
	memcpy(x->scratch, t->slot, sizeof t->slot);
	memset(t->slot, 0, sizeof t->slot);
	t->used = 0;
	upper->depth = ++t->depth;
	for (size_t i = 0; i < SLOTS; i++)
		if (x->scratch[i])
			slot_put((uint32_t)x->scratch[i] & bit ? upper : t, x->scratch[i]);
	split_ghosts(t, upper, bit);
	n = (size_t)1 << (x->depth - t->depth);
	first = (size_t)((uint64_t)(bits | bit) >> (32 - t->depth)) * n;
	for (size_t i = 0; i < n; i++)
		x->dir[first + i] = upper;
	return true;
}

void index_reserve(struct index *x, size_t n)
{
	while (x->depth < DEPTH_MAX && ((size_t)FULL * 15 / 16) << x->depth < n) {
		unsigned depth = x->depth;

		for (uint64_t i = 0; i < (uint64_t)1 << depth; i++)
			if (!split(x, depth ? (uint32_t)(i << (32 - depth)) : 0))
				return;
	}
}

static uint32_t entry_new(struct index *x)
{
	uint32_t entry;

	if (x->free) {
		entry = x->free - 1;
		memcpy(&x->free, index_at(x, entry)->key.b, sizeof x->free);
		return entry;
	}
	if (x->top == UINT32_MAX - 1)
		return INDEX_NONE;
	if (x->top / CHUNK == x->chunks) {
		void *p = mem_more(x->chunk, &x->chunk_cap, x->chunks, sizeof *x->chunk);

		if (!p)
			return INDEX_NONE;
		x->chunk = p;
		x->chunk[x->chunks] = map_huge(CHUNK * sizeof(struct index_entry));
		if (!x->chunk[x->chunks])
			return INDEX_NONE;
		x->chunks++;
	}
	return x->top++;
}

uint32_t index_add(struct index *x, const struct store_key *key, uint64_t hash)
{
	uint32_t bits = bits_of(hash), entry;

	while (table_of(x, bits)->used >= FULL)
		if (!split(x, bits))
			return INDEX_NONE;
	entry = entry_new(x);
	if (entry == INDEX_NONE)
		return INDEX_NONE;
	index_at(x, entry)->key = *key;
	slot_put(table_of(x, bits), (uint64_t)(entry + 1) << 32 | bits);
	x->count++;
	return entry;
}

void index_remove(struct index *x, uint32_t entry)
{
	struct index_entry *e = index_at(x, entry);
	uint32_t bits = bits_of(index_hash(x, &e->key)), i = bits & MASK;
	struct table *t = table_of(x, bits);

	while (t->slot[i] >> 32 != (uint64_t)entry + 1)
		i = (i + 1) & MASK;
	for (uint32_t j = (i + 1) & MASK; t->slot[j]; j = (j + 1) & MASK) {
		uint32_t home = (uint32_t)t->slot[j] & MASK;

		if (((j - home) & MASK) < ((j - i) & MASK))
			continue;
		t->slot[i] = t->slot[j];
		i = j;
	}
	t->slot[i] = 0;
	t->used--;
	x->count--;
	e->segment = INDEX_NO_SEGMENT;
	memcpy(e->key.b, &x->free, sizeof x->free);
	x->free = entry + 1;
}

/* ---- ghosts ---- */

static uint32_t ghost_bits(uint64_t hash)
{
	uint32_t bits = bits_of(hash);

	return bits ? bits : 1;
}

bool index_ghost(const struct index *x, uint64_t hash)
{
	uint32_t bits = ghost_bits(hash);
	const uint32_t *g = table_of(x, bits)->ghost[bits % BUCKETS];

	for (size_t i = 0; i < WAYS; i++)
		if (g[i] == bits)
			return true;
	return false;
}

void index_ghost_add(struct index *x, uint64_t hash)
{
	if (!index_ghost(x, hash))
		ghost_put(table_of(x, ghost_bits(hash)), ghost_bits(hash));
}

size_t index_count(const struct index *x)
{
	return x->count;
}

uint32_t index_top(const struct index *x)
{
	return x->top;
}

size_t index_bytes(const struct index *x)
{
	return sizeof *x + x->tables * sizeof(struct table) + (x->arena_cap + x->chunk_cap) * sizeof(void *) +
		((size_t)sizeof(void *) << x->depth) + x->chunks * CHUNK * sizeof(struct index_entry) +
		SLOTS * sizeof *x->scratch;
}
