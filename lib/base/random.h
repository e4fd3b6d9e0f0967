/*
 * Random numbers as a function of a key and a counter: no state, so the same (seed, position) gives the same number
 * in any batch, on any rank, after any restart.
 */
#ifndef DS_BASE_RANDOM_H
#define DS_BASE_RANDOM_H

#include <stdint.h>

/* 64 well-mixed bits of (seed, counter): two rounds of the SplitMix64 finaliser (Steele, Lea, Flood, OOPSLA 2014). */
uint64_t random_bits(uint64_t seed, uint64_t counter);
/* Uniform in [0, 1): the upper 53 bits. */
double random_unit(uint64_t seed, uint64_t counter);

#endif
