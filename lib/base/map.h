/*
 * A growing table from 64-bit keys to indices.  Keys may be chosen by whoever wrote the input: places depend on a
 * seed of this process.
 */
#ifndef DS_BASE_MAP_H
#define DS_BASE_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct map {
	struct map_slot { uint64_t key; size_t value; bool used; } *slots;
	size_t cap, n;
	uint64_t seed;
};

/* The value of a key, to be read or set; a new one is 0 and *fresh is true.  Valid until the next call.  NULL: no
 * memory. */
size_t *map_at(struct map *m, uint64_t key, bool *fresh);
/* NULL where the key is not there. */
const size_t *map_find(const struct map *m, uint64_t key);
void map_free(struct map *m);

#endif
