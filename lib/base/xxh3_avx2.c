#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/xxh3_avx2.h"

uint64_t xxh3_avx2(const void *p, size_t n)
{
	return XXH3_64bits(p, n);
}

void xxh3_add_avx2(struct xxh3_state *s, const void *p, size_t n)
{
	XXH3_64bits_update(&s->s, p, n);
}
