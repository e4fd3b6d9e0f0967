#include "base/random.h"

static uint64_t mix(uint64_t z)
{
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

uint64_t random_bits(uint64_t seed, uint64_t counter)
{
	const uint64_t golden = 0x9e3779b97f4a7c15u;

	return mix(mix(seed + golden) + (counter + 1) * golden);
}

double random_unit(uint64_t seed, uint64_t counter)
{
	return (double)(random_bits(seed, counter) >> 11) * 0x1p-53;
}
