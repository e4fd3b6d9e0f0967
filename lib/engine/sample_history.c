/* Tokens seen, by id: a dense row of them, found through open addressing. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine/sample.h"

struct sample_history {
	struct sample_seen *v; /* [cap] */
	uint32_t *slot;        /* [2 cap] index + 1; 0: free */
	size_t n, cap;         /* cap: a power of two */
};

static uint32_t *find(const struct sample_history *h, uint32_t id)
{
	size_t mask = 2 * h->cap - 1, i = id * 0x9e3779b1u & mask;

	while (h->slot[i] && h->v[h->slot[i] - 1].id != id)
		i = (i + 1) & mask;
	return &h->slot[i];
}

static int grow(struct sample_history *h, size_t cap, struct ds_err *err)
{
	struct sample_seen *v = mem_realloc(h->v, cap, sizeof(*v));
	uint32_t *slot;

	if (v)
		h->v = v;
	slot = v ? mem_calloc(2 * cap, sizeof(*slot)) : NULL;
	if (!slot)
		return err_nomem(err, cap * (sizeof(*v) + 2 * sizeof(*slot)), "tokens to penalise");
	free(h->slot);
	h->slot = slot;
	h->cap = cap;
	for (size_t i = 0; i < h->n; i++)
		*find(h, h->v[i].id) = (uint32_t)i + 1;
	return 0;
}

/* The entry of id, made if there is none; NULL without memory. */
static struct sample_seen *entry(struct sample_history *h, uint32_t id, struct ds_err *err)
{
	uint32_t *slot;

	if (h->n == h->cap && grow(h, 2 * h->cap, err))
		return NULL;
	slot = find(h, id);
	if (!*slot) {
		h->v[h->n] = (struct sample_seen){ .id = id };
		*slot = (uint32_t)++h->n;
	}
	return &h->v[*slot - 1];
}

int sample_history_new(struct sample_history **out, const uint32_t *prompt, size_t n, struct ds_err *err)
{
	struct sample_history *h = mem_calloc(1, sizeof(*h));

	if (!h)
		return err_nomem(err, sizeof(*h), "tokens to penalise");
	if (grow(h, 64, err))
		goto fail;
	for (size_t i = 0; i < n; i++) {
		struct sample_seen *t = entry(h, prompt[i], err);

		if (!t)
			goto fail;
		t->prompt = true;
	}
	*out = h;
	return 0;
fail:
	sample_history_free(h);
	return err->code;
}

int sample_history_copy(struct sample_history **out, const struct sample_history *from, struct ds_err *err)
{
	struct sample_history *h = mem_calloc(1, sizeof(*h));

	if (!h)
		return err_nomem(err, sizeof(*h), "tokens to penalise");
	if (grow(h, from->cap, err)) {
		sample_history_free(h);
		return err->code;
	}
	memcpy(h->v, from->v, from->n * sizeof(*h->v));
	memcpy(h->slot, from->slot, 2 * from->cap * sizeof(*h->slot));
	h->n = from->n;
	*out = h;
	return 0;
}

int sample_history_add(struct sample_history *h, uint32_t id, struct ds_err *err)
{
	struct sample_seen *t = entry(h, id, err);

	if (!t)
		return err->code;
	t->count++;
	return 0;
}

void sample_history_free(struct sample_history *h)
{
	if (!h)
		return;
	free(h->v);
	free(h->slot);
	free(h);
}

size_t sample_history_seen(const struct sample_history *h, const struct sample_seen **v)
{
	*v = h->v;
	return h->n;
}
