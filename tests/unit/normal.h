/*
 * Normally distributed numbers for tests, a function of seed and counter as random.h's.
 */
#ifndef DS_TESTS_NORMAL_H
#define DS_TESTS_NORMAL_H

#include <math.h>

#include "base/random.h"

/* Standard normal: Box-Muller on two uniform numbers. */
static inline double normal_at(uint64_t seed, uint64_t counter)
{
	double u = random_unit(seed, 2 * counter), v = random_unit(seed, 2 * counter + 1);

	return sqrt(-2.0 * log(1.0 - u)) * cos(2.0 * M_PI * v);
}

#endif
