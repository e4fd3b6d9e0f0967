/*
 * What is where: from keys to places in segments, in memory.
 *
 * Entries of 32 bytes lie in chunks, slots with the number of an entry in tables of 8,192; a table that is full splits
 * in two by the next bit of the hash (extendible hashing, Fagin et al., 1979), so nothing large is ever copied.  Each
 * table has room for the hashes of about as many keys that were given up (ghosts).  80 KiB a table of 3,500 to 6,700
 * entries: 44 to 56 bytes an entry in all, 2 MiB at least.
 *
 * Not locked: any number may look while nobody changes anything.
 */
#ifndef DS_STORE_INDEX_H
#define DS_STORE_INDEX_H

#include "store/item.h"

enum {
	INDEX_UNIT = FRAME_ALIGN,     /* of offsets and lengths */
	INDEX_NO_SEGMENT = 0xffff,
	INDEX_ASKED_MAX = 3,
};
#define INDEX_NONE UINT32_MAX

struct index_entry {
	struct store_key key;
	uint32_t offset;     /* of the frame, in units */
	uint32_t expires;    /* seconds since 1970; 0: never */
	uint32_t data;       /* 26 bits: bytes of the payload as stored, in units; above: how often it was asked for */
	uint16_t segment;
	uint16_t front;      /* bytes before the payload, in units */
};

enum { INDEX_DATA_BITS = 26 };

static inline uint32_t index_data(const struct index_entry *e)
{
	return __atomic_load_n(&e->data, __ATOMIC_RELAXED) & ((1u << INDEX_DATA_BITS) - 1);
}
static inline unsigned index_asked(const struct index_entry *e)
{
	return __atomic_load_n(&e->data, __ATOMIC_RELAXED) >> INDEX_DATA_BITS;
}
static inline void index_set(struct index_entry *e, uint32_t data, unsigned asked)
{
	__atomic_store_n(&e->data, data | asked << INDEX_DATA_BITS, __ATOMIC_RELAXED);
}
void index_ask(struct index_entry *e); /* once more, up to INDEX_ASKED_MAX; by any who look */

struct index;

int index_new(struct index **x, struct ds_err *err);
void index_free(struct index *x);
uint64_t index_hash(const struct index *x, const struct store_key *key);
/* Entry number or INDEX_NONE. */
uint32_t index_find(const struct index *x, const struct store_key *key, uint64_t hash);
void index_find_many(const struct index *x, const struct store_key *keys, size_t n, uint32_t *found);
struct index_entry *index_at(const struct index *x, uint32_t entry);
/* A key that is not there: its entry, in which all but the key is for the caller to set; INDEX_NONE: no memory. */
uint32_t index_add(struct index *x, const struct store_key *key, uint64_t hash);
void index_remove(struct index *x, uint32_t entry);
/* Makes ready for so many entries in all; it is no fault where that fails. */
void index_reserve(struct index *x, size_t n);
/* Fetches what the next call about that hash will look at. */
void index_prefetch(const struct index *x, uint64_t hash);

bool index_ghost(const struct index *x, uint64_t hash);
void index_ghost_add(struct index *x, uint64_t hash);

size_t index_count(const struct index *x);
uint32_t index_top(const struct index *x); /* entry numbers are below; free ones have INDEX_NO_SEGMENT */
size_t index_bytes(const struct index *x);

#endif
