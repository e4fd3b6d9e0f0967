/* Sets of ranks of a unit. */
#ifndef DS_EP_RANKS_H
#define DS_EP_RANKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { EP_MAX_WORLD = 1024 };

struct ranks { uint64_t bits[EP_MAX_WORLD / 64]; };

static inline bool ranks_has(const struct ranks *s, size_t r) { return s->bits[r / 64] >> (r % 64) & 1; }
static inline void ranks_add(struct ranks *s, size_t r) { s->bits[r / 64] |= (uint64_t)1 << (r % 64); }
static inline void ranks_del(struct ranks *s, size_t r) { s->bits[r / 64] &= ~((uint64_t)1 << (r % 64)); }
static inline bool ranks_equal(const struct ranks *a, const struct ranks *b) { return !memcmp(a, b, sizeof(*a)); }

static inline struct ranks ranks_first(size_t n) /* 0 .. n-1 */
{
	struct ranks s = { { 0 } };

	for (size_t r = 0; r < n; r++)
		ranks_add(&s, r);
	return s;
}

static inline struct ranks ranks_both(const struct ranks *a, const struct ranks *b)
{
	struct ranks s;

	for (size_t i = 0; i < EP_MAX_WORLD / 64; i++)
		s.bits[i] = a->bits[i] & b->bits[i];
	return s;
}

static inline struct ranks ranks_either(const struct ranks *a, const struct ranks *b)
{
	struct ranks s;

	for (size_t i = 0; i < EP_MAX_WORLD / 64; i++)
		s.bits[i] = a->bits[i] | b->bits[i];
	return s;
}

static inline struct ranks ranks_minus(const struct ranks *a, const struct ranks *b)
{
	struct ranks s;

	for (size_t i = 0; i < EP_MAX_WORLD / 64; i++)
		s.bits[i] = a->bits[i] & ~b->bits[i];
	return s;
}

static inline size_t ranks_count(const struct ranks *s)
{
	size_t n = 0;

	for (size_t i = 0; i < EP_MAX_WORLD / 64; i++)
		n += (size_t)__builtin_popcountll(s->bits[i]);
	return n;
}

/* The first member >= r, or EP_MAX_WORLD: for (r = ranks_next(s, 0); r < EP_MAX_WORLD; r = ranks_next(s, r + 1)) */
static inline size_t ranks_next(const struct ranks *s, size_t r)
{
	while (r < EP_MAX_WORLD) {
		uint64_t rest = s->bits[r / 64] >> (r % 64);

		if (rest)
			return r + (size_t)__builtin_ctzll(rest);
		r = (r / 64 + 1) * 64;
	}
	return EP_MAX_WORLD;
}

#endif
