/*
 * SipHash-2-4 (Aumasson and Bernstein, 2012): a hash that nobody can predict who does not know its key.  Keys of items
 * and bytes of payloads come from outside; where they are placed in tables, and what marks the beginning of an item in
 * a file, must not be theirs to choose.
 */
#ifndef DS_STORE_KEYED_H
#define DS_STORE_KEYED_H

#include <stddef.h>
#include <stdint.h>

struct keyed { uint64_t k[2]; };

/* Of n words. */
uint64_t keyed_hash(const struct keyed *key, const uint64_t *words, size_t n);
/* From the system's random numbers. */
void keyed_random(void *p, size_t n);

#endif
