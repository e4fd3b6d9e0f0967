/* Added tokens: strings that stand for one token wherever they occur. */
#include <stdlib.h>
#include <string.h>

#include "model/tokenizer_impl.h"

int added_put(struct added_set *s, const char *text, size_t len, uint32_t id, struct ds_err *err)
{
	char *copy;

	if (s->n == s->cap) {
		size_t cap = s->cap ? s->cap * 2 : 64;
		void *v = mem_realloc(s->v, cap, sizeof(*s->v));
		if (!v)
			return err_nomem(err, cap * sizeof(*s->v), "added tokens");
		s->v = v;
		s->cap = cap;
	}
	copy = mem_array(len, 1);
	if (!copy)
		return err_nomem(err, len, "an added token");
	memcpy(copy, text, len);
	s->v[s->n++] = (struct added){ .text = copy, .len = len, .id = id };
	s->first[(unsigned char)text[0]] = 1;
	return 0;
}

static int added_cmp(const void *a, const void *b)
{
	const struct added *x = a, *y = b;
	int c = memcmp(x->text, y->text, x->len < y->len ? x->len : y->len);

	return c ? c : (x->len > y->len) - (x->len < y->len);
}

void added_sort(struct added_set *s)
{
	if (s->n)
		qsort(s->v, s->n, sizeof(*s->v), added_cmp);
}

void added_free(struct added_set *s)
{
	for (size_t i = 0; i < s->n; i++)
		free(s->v[i].text);
	free(s->v);
	memset(s, 0, sizeof(*s));
}

/* First of s->v[lo .. hi), which agree on their first d bytes and are longer, with a byte d that is at least c. */
static size_t lower(const struct added_set *s, size_t lo, size_t hi, size_t d, unsigned c)
{
	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;
		if ((unsigned char)s->v[mid].text[d] < c)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

const struct added *added_at(const struct added_set *s, const char *p, size_t n)
{
	const struct added *best = NULL;
	size_t lo = 0, hi = s->n;

	if (!n || !s->first[(unsigned char)p[0]])
		return NULL;
	for (size_t d = 0; d < n && lo < hi; d++) {
		unsigned c = (unsigned char)p[d];
		lo = lower(s, lo, hi, d, c);
		hi = lower(s, lo, hi, d, c + 1);
		if (lo < hi && s->v[lo].len == d + 1)
			best = &s->v[lo++]; /* the shortest of a common beginning sorts first */
	}
	return best;
}
