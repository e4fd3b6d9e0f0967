#include "base/map.h"

#include <stdlib.h>
#include <sys/random.h>

#include "base/mem.h"

static size_t place(const struct map *m, uint64_t key)
{
	uint64_t x = (key ^ m->seed) * 0x9e3779b97f4a7c15u;

	x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
	return (size_t)(x ^ x >> 32) & (m->cap - 1);
}

static struct map_slot *slot_of(const struct map *m, uint64_t key)
{
	size_t i = place(m, key);

	while (m->slots[i].used && m->slots[i].key != key)
		i = (i + 1) & (m->cap - 1);
	return &m->slots[i];
}

static bool grow(struct map *m)
{
	struct map old = *m;

	m->cap = old.cap ? 2 * old.cap : 64;
	m->slots = mem_calloc(m->cap, sizeof *m->slots);
	if (!m->slots) {
		*m = old;
		return false;
	}
	if (!old.cap && getrandom(&m->seed, sizeof m->seed, GRND_NONBLOCK) != (ssize_t)sizeof m->seed)
		m->seed = (uint64_t)(uintptr_t)m;
	for (size_t i = 0; i < old.cap; i++)
		if (old.slots[i].used)
			*slot_of(m, old.slots[i].key) = old.slots[i];
	free(old.slots);
	return true;
}

size_t *map_at(struct map *m, uint64_t key, bool *fresh)
{
	struct map_slot *s;

	if (m->n >= m->cap / 2 && !grow(m))
		return NULL;
	s = slot_of(m, key);
	*fresh = !s->used;
	if (!s->used) {
		*s = (struct map_slot){ key, 0, true };
		m->n++;
	}
	return &s->value;
}

const size_t *map_find(const struct map *m, uint64_t key)
{
	const struct map_slot *s = m->cap ? slot_of(m, key) : NULL;

	return s && s->used ? &s->value : NULL;
}

void map_free(struct map *m)
{
	free(m->slots);
	*m = (struct map){ 0 };
}
