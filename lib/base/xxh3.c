#include "base/xxh3.h"

#include "base/xxh3_avx2.h"

#if defined(__x86_64__)
static bool avx2(void) { return __builtin_cpu_supports("avx2"); }
#else
static bool avx2(void) { return false; }
#endif

uint64_t xxh3(const void *p, size_t n)
{
	return avx2() ? xxh3_avx2(p, n) : XXH3_64bits(p, n);
}

void xxh3_begin(struct xxh3_state *s)
{
	XXH3_64bits_reset(&s->s);
}

void xxh3_add(struct xxh3_state *s, const void *p, size_t n)
{
	if (!n)
		return;
	if (avx2())
		xxh3_add_avx2(s, p, n);
	else
		XXH3_64bits_update(&s->s, p, n);
}

uint64_t xxh3_end(struct xxh3_state *s)
{
	return XXH3_64bits_digest(&s->s);
}
