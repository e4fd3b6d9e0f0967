/* ds-frame diff: the experts that a router chose.  Top-k is a set, and another engine may list the same one in another
 * order, so ids are compared as sets, and weights by the ids that they belong to. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "frame/diff.h"

struct pick { int64_t id; double weight; uint64_t col; };

static int room(struct chosen *c, uint64_t cols, struct ds_err *err)
{
	size_t n = (size_t)cols;

	if (n <= c->cap)
		return 0;
	chosen_free(c);
	for (int s = 0; s < 2; s++) {
		c->picks[s] = mem_array(n, sizeof *c->picks[s]);
		c->values[s] = mem_array(n, 2 * sizeof *c->values[s]);
	}
	c->cols = mem_array(n, 2 * sizeof *c->cols);
	if (!c->picks[0] || !c->picks[1] || !c->values[0] || !c->values[1] || !c->cols)
		return err_nomem(err, n * sizeof **c->picks, "a row of chosen experts");
	c->cap = n;
	return 0;
}

void chosen_free(struct chosen *c)
{
	for (int s = 0; s < 2; s++) {
		free(c->picks[s]);
		free(c->values[s]);
	}
	free(c->cols);
	memset(c, 0, sizeof *c);
}

/* Any order that does not depend on the columns will do; NaN is last. */
static int compare_weights(double x, double y)
{
	if (isnan(x) || isnan(y))
		return !!isnan(x) - !!isnan(y);
	if (x != y)
		return x < y ? -1 : 1;
	return !!signbit(y) - !!signbit(x);
}

static int compare_picks(const void *a, const void *b)
{
	const struct pick *x = a, *y = b;

	if (x->id != y->id)
		return x->id < y->id ? -1 : 1;
	return compare_weights(x->weight, y->weight);
}

/* An id as it was dumped, maybe with everything else as floats.  One that is no whole number is no expert's, and the
 * same only where it is the same number. */
static int64_t id_at(const struct typed_row *ids, uint64_t i)
{
	double v;
	int64_t bits;

	if (!dtype_is_real(ids->type))
		return int_at(ids->type, ids->p, i);
	v = value_at(ids->type, ids->p, i);
	if (fabs(v) < 0x1p53 && v == floor(v))
		return (int64_t)v;
	if (isnan(v))
		return INT64_MAX;
	memcpy(&bits, &v, sizeof bits);
	return bits ^ INT64_MIN; /* far from any small number */
}

/* weights: NULL where only the ids are meant, which are their own then. */
static void sort_picks(struct chosen *c, const struct typed_row ids[2], const struct typed_row *weights, uint64_t cols)
{
	for (int s = 0; s < 2; s++) {
		for (uint64_t i = 0; i < cols; i++) {
			const struct typed_row *w = weights ? &weights[s] : &ids[s];

			c->picks[s][i] = (struct pick){ id_at(&ids[s], i), value_at(w->type, w->p, i), i };
		}
		qsort(c->picks[s], (size_t)cols, sizeof *c->picks[s], compare_picks);
	}
}

/* The next id of either side in order, at least one of i is below cols; has: which sides have it. */
static void next_pick(const struct chosen *c, const uint64_t i[2], uint64_t cols, bool has[2])
{
	const struct pick *a = c->picks[0] + i[0], *b = c->picks[1] + i[1];

	has[0] = i[0] < cols && (i[1] == cols || a->id <= b->id);
	has[1] = i[1] < cols && (i[0] == cols || b->id <= a->id);
}

int chosen_ids(struct chosen *c, const struct typed_row ids[2], uint64_t cols, struct row_diff *d, struct ds_err *err)
{
	uint64_t i[2] = { 0, 0 };
	const struct pick *only[2] = { NULL, NULL }; /* the first in the row */
	int rc;

	row_compare(ids[0].type, ids[0].p, ids[1].type, ids[1].p, cols, d);
	if (!d->differs)
		return 0;
	rc = room(c, cols, err);
	if (rc)
		return rc;
	sort_picks(c, ids, NULL, cols);
	while (i[0] < cols || i[1] < cols) {
		bool has[2];

		next_pick(c, i, cols, has);
		for (int s = 0; s < 2; s++) {
			const struct pick *p = c->picks[s] + i[s];

			if (has[s] && !has[!s] && (!only[s] || p->col < only[s]->col))
				only[s] = p;
			i[s] += has[s];
		}
	}
	*d = (struct row_diff){ .cos = 1.0 };
	if (only[0] && only[1]) /* rows of one length: both or none */
		*d = (struct row_diff){ .differs = true, .abs = INFINITY, .rel = INFINITY, .cos = (double)NAN,
			.col = only[0]->col, .a = only[0]->weight, .b = only[1]->weight };
	return 0;
}

int chosen_weights(struct chosen *c, const struct typed_row weights[2], const struct typed_row ids[2], uint64_t cols,
	struct row_diff *d, struct ds_err *err)
{
	uint64_t i[2] = { 0, 0 };
	struct row_diff order;
	size_t n = 0;
	int rc;

	row_compare(ids[0].type, ids[0].p, ids[1].type, ids[1].p, cols, &order);
	row_compare(weights[0].type, weights[0].p, weights[1].type, weights[1].p, cols, d);
	if (!order.differs && !d->differs)
		return 0;
	rc = room(c, cols, err);
	if (rc)
		return rc;
	sort_picks(c, ids, weights, cols);
	for (; i[0] < cols || i[1] < cols; n++) {
		bool has[2];

		next_pick(c, i, cols, has);
		c->cols[n] = c->picks[!has[0]][i[!has[0]]].col;
		for (int s = 0; s < 2; s++) {
			c->values[s][n] = has[s] ? c->picks[s][i[s]].weight : 0.0; /* not chosen: adds nothing */
			i[s] += has[s];
		}
	}
	row_compare_values(c->values[0], c->values[1], n, d);
	d->col = d->differs ? c->cols[d->col] : 0;
	return 0;
}

/* ---- which points, and where the ids of weights are ---- */

static int compare_to(const void *key, const void *p)
{
	return point_compare(key, &((const struct diff_point *)p)->point);
}

void chosen_points(struct diff *d)
{
	for (size_t i = 0; i < d->point_count; i++) {
		struct diff_point *p = &d->points[i];
		struct point ids = p->point;

		p->chosen = strcmp(p->point.name, "router.ids") == 0;
		if (strcmp(p->point.name, "router.weights") != 0)
			continue;
		memset(ids.name, 0, sizeof ids.name);
		memcpy(ids.name, "router.ids", 10);
		p->ids = bsearch(&ids, d->points, d->point_count, sizeof *d->points, compare_to);
	}
}

/* The rows of a point at or before a position: the last such, or those after it where there is none; NULL: none. */
static const struct cap_rows *rows_near(const struct diff *d, int side, size_t point, size_t turn, uint64_t position)
{
	const struct capture *c = &d->c[side];
	size_t low = 0, high = c->row_count;

	while (low < high) {
		size_t middle = low + (high - low) / 2, rank = d->rank[side][c->rows[middle].key];
		const struct cap_rows *r = &c->rows[middle];

		if (rank < point || (rank == point && (r->turn < turn || (r->turn == turn && r->first <= position))))
			low = middle + 1;
		else
			high = middle;
	}
	for (size_t i = low ? low - 1 : 0; i < c->row_count && i <= low; i++) {
		const struct cap_rows *r = &c->rows[i];

		if (d->rank[side][r->key] == point && r->turn == turn && r->first + r->count > position)
			return r;
	}
	return NULL;
}

bool chosen_find(const struct diff *d, const struct diff_point *p, const struct cap_rows *const weights[2],
	uint64_t position, uint64_t *n, const struct cap_rows *ids[2])
{
	bool found = true;

	for (int s = 0; s < 2; s++) {
		const struct cap_rows *r = p->ids ?
			rows_near(d, s, (size_t)(p->ids - d->points), weights[s]->turn, position) : NULL;
		uint64_t end = !r ? position + *n : r->first > position ? r->first : r->first + r->count;

		*n = end - position < *n ? end - position : *n;
		found &= r && r->first <= position && r->cols == weights[s]->cols;
		ids[s] = r;
	}
	return found;
}
