/* Rows of a capture in order and disjoint: where a row comes several times, the last one counts. */
#include <stdlib.h>

#include "base/mem.h"
#include "frame/capture.h"

struct settle {
	const size_t *rank;
	const struct cap_rows *in; /* of one key and stream, by position */
	size_t n;
	size_t *heap;              /* rows that reach over the present position, the latest on top */
	size_t heaped;
	struct cap_rows *out;
	size_t made, cap;
};

static int compare_rows(const void *a, const void *b, void *ctx)
{
	const struct cap_rows *x = a, *y = b;
	const size_t *rank = ctx;
	size_t kx = rank[x->key], ky = rank[y->key];

	if (kx != ky)
		return kx < ky ? -1 : 1;
	if (x->turn != y->turn)
		return x->turn < y->turn ? -1 : 1;
	if (x->stream != y->stream)
		return x->stream < y->stream ? -1 : 1;
	if (x->first != y->first)
		return x->first < y->first ? -1 : 1;
	return x->order < y->order ? -1 : x->order > y->order;
}

static bool same_group(const struct cap_rows *a, const struct cap_rows *b)
{
	return a->key == b->key && a->stream == b->stream;
}

/* ---- the heap ---- */

static bool above(const struct settle *s, size_t a, size_t b)
{
	return s->in[a].order > s->in[b].order || (s->in[a].order == s->in[b].order && a > b);
}

static void heap_push(struct settle *s, size_t row)
{
	size_t i = s->heaped++;

	for (; i && above(s, row, s->heap[(i - 1) / 2]); i = (i - 1) / 2)
		s->heap[i] = s->heap[(i - 1) / 2];
	s->heap[i] = row;
}

static void heap_pop(struct settle *s)
{
	size_t row = s->heap[--s->heaped], i = 0, child;

	while ((child = 2 * i + 1) < s->heaped) {
		if (child + 1 < s->heaped && above(s, s->heap[child + 1], s->heap[child]))
			child++;
		if (above(s, row, s->heap[child]))
			break;
		s->heap[i] = s->heap[child];
		i = child;
	}
	s->heap[i] = row;
}

/* ---- one group ---- */

/* Rows [from, to) of the row list in[i], joined to the piece before where that is the same list. */
static bool put_piece(struct settle *s, size_t i, uint64_t from, uint64_t to)
{
	struct cap_rows r = s->in[i], *p = mem_more(s->out, &s->cap, s->made, sizeof *p);

	if (!p)
		return false;
	s->out = p;
	r.at += (from - r.first) * r.cols * dtype_size(r.type);
	r.first = from;
	r.count = to - from;
	s->out[s->made++] = r;
	return true;
}

/* Sweeps over positions; at each the latest row list that reaches over it is taken, up to where it ends or another
 * begins. */
static bool sweep(struct settle *s)
{
	uint64_t at = 0;
	size_t next = 0;

	s->heaped = 0;
	while (next < s->n || s->heaped) {
		const struct cap_rows *top;
		uint64_t to;

		while (s->heaped && s->in[s->heap[0]].first + s->in[s->heap[0]].count <= at)
			heap_pop(s);
		if (!s->heaped && next == s->n)
			break;
		if (!s->heaped && at < s->in[next].first)
			at = s->in[next].first;
		while (next < s->n && s->in[next].first <= at)
			heap_push(s, next++);
		top = &s->in[s->heap[0]];
		to = top->first + top->count;
		if (next < s->n && s->in[next].first < to)
			to = s->in[next].first;
		if (!put_piece(s, s->heap[0], at, to))
			return false;
		at = to;
	}
	return true;
}

int capture_settle(struct capture *c, const size_t *rank, struct ds_err *err)
{
	struct settle s = { .rank = rank, .heap = mem_array(c->row_count + 1, sizeof(size_t)) };
	bool ok = s.heap != NULL;

	if (c->row_count)
		qsort_r(c->rows, c->row_count, sizeof *c->rows, compare_rows, (void *)(uintptr_t)rank);
	for (size_t i = 0; ok && i < c->row_count; i += s.n) {
		s.in = c->rows + i;
		for (s.n = 1; i + s.n < c->row_count && same_group(s.in, s.in + s.n); s.n++)
			;
		ok = sweep(&s);
	}
	free(s.heap);
	if (!ok) {
		free(s.out);
		return err_nomem(err, c->row_count * sizeof *s.out, "the index of a capture");
	}
	free(c->rows);
	c->rows = s.out;
	c->row_count = s.made;
	c->row_cap = s.cap;
	return 0;
}
