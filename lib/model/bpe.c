#include "model/bpe.h"

#include <stdlib.h>
#include <string.h>

#define NO_SYMBOL UINT32_MAX
#define NO_PAIR UINT64_MAX

static size_t pair_hash(uint64_t key)
{
	key *= 0x9e3779b97f4a7c15u;
	return (size_t)(key ^ key >> 32);
}

int bpe_init(struct bpe *b, size_t merges, struct ds_err *err)
{
	size_t size = 16;

	while (size < merges * 2)
		size *= 2;
	b->pairs = mem_array(size, sizeof(*b->pairs));
	if (!b->pairs)
		return err_nomem(err, size * sizeof(*b->pairs), "the table of merges");
	for (size_t i = 0; i < size; i++)
		b->pairs[i].key = NO_PAIR;
	b->mask = size - 1;
	return 0;
}

void bpe_free(struct bpe *b)
{
	free(b->pairs);
	b->pairs = NULL;
}

/* The slot of a pair, or the free one where it would go. */
static struct bpe_pair *pair_slot(const struct bpe *b, uint32_t left, uint32_t right)
{
	uint64_t key = (uint64_t)left << 32 | right;
	size_t i = pair_hash(key) & b->mask;

	while (b->pairs[i].key != key && b->pairs[i].key != NO_PAIR)
		i = (i + 1) & b->mask;
	return &b->pairs[i];
}

void bpe_put(struct bpe *b, uint32_t left, uint32_t right, uint32_t rank, uint32_t id)
{
	struct bpe_pair *p = pair_slot(b, left, right);

	p->key = (uint64_t)left << 32 | right;
	p->rank = rank;
	p->id = id;
}

/* ---- a heap of candidate merges, lowest (rank, position) first ---- */

static bool cand_less(const struct bpe_cand *a, const struct bpe_cand *b)
{
	return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void heap_down(struct bpe_cand *h, size_t n, size_t i)
{
	struct bpe_cand c = h[i];

	for (size_t child; (child = 2 * i + 1) < n; i = child) {
		if (child + 1 < n && cand_less(&h[child + 1], &h[child]))
			child++;
		if (!cand_less(&h[child], &c))
			break;
		h[i] = h[child];
	}
	h[i] = c;
}

static void heap_push(struct bpe_cand *h, size_t *n, struct bpe_cand c)
{
	size_t i = (*n)++;

	for (; i && cand_less(&c, &h[(i - 1) / 2]); i = (i - 1) / 2)
		h[i] = h[(i - 1) / 2];
	h[i] = c;
}

/* ---- encoding ---- */

static int work_reserve(struct bpe_work *w, size_t n, struct ds_err *err)
{
	size_t cap = n < 256 ? 256 : n;
	void *p;

	if (n <= w->cap)
		return 0;
	p = mem_realloc(w->symbols, cap, sizeof(*w->symbols));
	if (!p)
		return err_nomem(err, cap * sizeof(*w->symbols), "merging");
	w->symbols = p;
	/* n - 1 candidates at first; each of at most n - 1 merges takes one away and adds two at most. */
	p = mem_realloc(w->heap, 2 * cap, sizeof(*w->heap));
	if (!p)
		return err_nomem(err, 2 * cap * sizeof(*w->heap), "merging");
	w->heap = p;
	w->cap = cap;
	return 0;
}

void bpe_work_free(struct bpe_work *w)
{
	free(w->symbols);
	free(w->heap);
	memset(w, 0, sizeof(*w));
}

/* The candidate of symbol `at` and the one behind it; false if they do not merge. */
static bool candidate(const struct bpe *b, const struct bpe_symbol *s, uint32_t at, struct bpe_cand *c)
{
	const struct bpe_pair *p;

	if (s[at].next == NO_SYMBOL)
		return false;
	c->at = at;
	c->left = s[at].id;
	c->right = s[s[at].next].id;
	p = pair_slot(b, c->left, c->right);
	c->rank = p->rank;
	return p->key != NO_PAIR;
}

static void merge_all(const struct bpe *b, struct bpe_symbol *s, struct bpe_cand *heap, size_t n)
{
	while (n) {
		struct bpe_cand c = heap[0], add;
		uint32_t right = s[c.at].next;

		heap[0] = heap[--n];
		if (n)
			heap_down(heap, n, 0);
		/* A symbol that was merged away has the id NO_SYMBOL, so what is out of date does not match. */
		if (s[c.at].id != c.left || right == NO_SYMBOL || s[right].id != c.right)
			continue;
		s[c.at].id = pair_slot(b, c.left, c.right)->id;
		s[c.at].next = s[right].next;
		s[right].id = NO_SYMBOL;
		if (s[c.at].next != NO_SYMBOL)
			s[s[c.at].next].prev = c.at;
		if (candidate(b, s, c.at, &add))
			heap_push(heap, &n, add);
		if (s[c.at].prev != NO_SYMBOL && candidate(b, s, s[c.at].prev, &add))
			heap_push(heap, &n, add);
	}
}

int bpe_encode(const struct bpe *b, struct bpe_work *w, const char *p, size_t n, struct ids *out, struct ds_err *err)
{
	struct bpe_symbol *s;
	size_t cands = 0;

	if (!n)
		return 0;
	if (n > (size_t)1 << 30)
		return err_set(err, DS_DATA, "a piece of text of %zu bytes cannot be tokenized: at most 1 GiB "
			"without a break", n);
	if (work_reserve(w, n, err))
		return err->code;
	s = w->symbols;
	for (uint32_t i = 0; i < n; i++)
		s[i] = (struct bpe_symbol){ .id = b->byte_id[(unsigned char)p[i]], .prev = i ? i - 1 : NO_SYMBOL,
			.next = i + 1 < n ? i + 1 : NO_SYMBOL };
	for (uint32_t i = 0; i + 1 < n; i++)
		cands += candidate(b, s, i, &w->heap[cands]);
	for (size_t i = cands / 2; i-- > 0; )
		heap_down(w->heap, cands, i);
	merge_all(b, s, w->heap, cands);
	for (uint32_t i = 0; i != NO_SYMBOL; i = s[i].next)
		if (!ids_add(out, s[i].id))
			return err_nomem(err, out->cap * 2 * sizeof(*out->v), "token ids");
	return 0;
}
