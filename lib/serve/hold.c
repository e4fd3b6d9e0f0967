#include "serve/hold.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

void held_pause(struct held_sources *h, struct source *src)
{
	for (size_t i = 0; i < h->n; i++)
		if (h->v[i] == src)
			return;
	if (h->n == h->cap) {
		size_t cap = h->cap ? 2 * h->cap : 16;
		struct source **v = mem_realloc(h->v, cap, sizeof(*v));

		if (!v)
			return;
		h->v = v;
		h->cap = cap;
	}
	h->v[h->n++] = src;
	source_pause(src, true);
}

void held_resume(struct held_sources *h)
{
	for (size_t i = 0; i < h->n; i++)
		source_pause(h->v[i], false);
	h->n = 0;
}

void held_release(struct held_sources *h, struct source *src)
{
	if (held_forget(h, src))
		source_pause(src, false);
}

bool held_forget(struct held_sources *h, const struct source *src)
{
	for (size_t i = 0; i < h->n; i++)
		if (h->v[i] == src) {
			memmove(&h->v[i], &h->v[i + 1], (--h->n - i) * sizeof(struct source *));
			return true;
		}
	return false;
}

void held_free(struct held_sources *h)
{
	free(h->v);
	*h = (struct held_sources){ 0 };
}
