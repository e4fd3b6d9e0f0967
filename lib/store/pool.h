/*
 * Memory for payloads on their way: buffers that any connection may take, of so many bytes together.  The last one
 * given back is the first one taken, since it is in the processor's caches.  Thread-safe.
 *
 * Small buffers, up to a sixteenth of the limit, have a quarter of it to themselves and wait in a row of their own:
 * large ones may be held long by who sends or reads slowly, and do not hold the others.  Who sends a large one slowly
 * may have it as long as nobody waits.  (Memory by pieces would have all wait for one another with halves of payloads.)
 */
#ifndef DS_STORE_POOL_H
#define DS_STORE_POOL_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum { STORE_POOL_KEPT = 64 };

struct store_buffer { uint8_t *p; size_t cap; };
struct store_pool {
	pthread_mutex_t lock;
	pthread_cond_t given;
	uint64_t limit, taken, kept; /* bytes */
	uint64_t small;              /* of those taken */
	struct store_pool_wait { struct store_pool_wait *next; bool small; } *first; /* each kind is served in turn */
	size_t n;
	struct store_buffer free[STORE_POOL_KEPT];
};
int store_pool_open(struct store_pool *p, uint64_t limit, struct ds_err *err);
void store_pool_close(struct store_pool *p);
/* At least n bytes, 64-byte aligned; waits for its turn while too much is taken, until `until` (CLOCK_MONOTONIC; 0:
 * for ever).  What is larger than the large ones' share is given when no other large one is taken.  DS_TEMP, DS_OS. */
int store_pool_take(struct store_pool *p, size_t n, int64_t until, struct store_buffer *b, struct ds_err *err);
void store_pool_give(struct store_pool *p, struct store_buffer *b); /* empties *b; of an empty one nothing is done */
/* Others wait for large buffers, *b is one, and so little of its payload has come since then (CLOCK_MONOTONIC) that it
 * is to be given back. */
bool store_pool_too_slow(struct store_pool *p, const struct store_buffer *b, int64_t since, uint64_t came);
#define STORE_POOL_LOOK_NS ((int64_t)200000000) /* how often that is to be asked */
uint64_t store_pool_taken(struct store_pool *p);

#endif
