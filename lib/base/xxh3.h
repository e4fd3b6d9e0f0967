/*
 * XXH3-64 of payloads, with the vectors that this processor has: libxxhash as distributions build it keeps to those
 * that every processor has, which is some three times as slow.  The same values everywhere.
 */
#ifndef DS_BASE_XXH3_H
#define DS_BASE_XXH3_H

#include <stddef.h>
#include <stdint.h>

#define XXH_STATIC_LINKING_ONLY /* the state's size */
#include <xxhash.h>

uint64_t xxh3(const void *p, size_t n);

/* In pieces.  The state needs an alignment of 64 bytes and nothing to free. */
struct xxh3_state { XXH3_state_t s; };
void xxh3_begin(struct xxh3_state *s);
void xxh3_add(struct xxh3_state *s, const void *p, size_t n);
uint64_t xxh3_end(struct xxh3_state *s);

#endif
