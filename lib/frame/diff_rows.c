/* ds-frame diff: tensors, row by row. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "frame/diff.h"

enum { PIECE = 1 << 20 }; /* bytes read at once from each side, at least a row */

/* ---- one row ---- */

struct sums { double diff, a, b, dot; };

static bool same_value(double x, double y)
{
	return (x == y && signbit(x) == signbit(y)) || (isnan(x) && isnan(y));
}

static void take_value(struct row_diff *d, struct sums *s, double x, double y, uint64_t col)
{
	bool same = same_value(x, y);
	double gap = same ? 0.0 : fabs(x - y);

	if (isnan(gap) || isinf(gap))
		gap = INFINITY;
	if (!same && (!d->differs || gap > d->abs)) {
		d->abs = gap;
		d->col = col;
		d->a = x;
		d->b = y;
	}
	d->differs |= !same;
	if (!isfinite(x) || !isfinite(y)) /* the same on both sides, or abs says it */
		return;
	s->diff += gap * gap;
	s->a += x * x;
	s->b += y * y;
	s->dot += x * y;
}

static void finish(struct row_diff *d, const struct sums *s)
{
	if (!d->differs)
		return;
	if (isinf(d->abs)) {
		d->rel = INFINITY;
		d->cos = (double)NAN;
		return;
	}
	d->rel = s->diff == 0.0 ? 0.0 : s->a == 0.0 ? INFINITY : sqrt(s->diff) / sqrt(s->a);
	d->cos = s->a == 0.0 && s->b == 0.0 ? 1.0 : s->a == 0.0 || s->b == 0.0 ? 0.0 :
		s->dot / (sqrt(s->a) * sqrt(s->b));
}

void row_compare_values(const double *a, const double *b, uint64_t cols, struct row_diff *d)
{
	struct sums s = { 0, 0, 0, 0 };

	*d = (struct row_diff){ .cos = 1.0 };
	for (uint64_t i = 0; i < cols; i++)
		take_value(d, &s, a[i], b[i], i);
	finish(d, &s);
}

/* Ids have no distance. */
static void compare_whole(enum dtype ta, const void *a, enum dtype tb, const void *b, uint64_t cols, struct row_diff *d)
{
	for (uint64_t i = 0; i < cols; i++) {
		int64_t x = int_at(ta, a, i), y = int_at(tb, b, i);

		if (x != y && !d->differs)
			*d = (struct row_diff){ .differs = true, .col = i, .a = (double)x, .b = (double)y };
	}
	d->abs = d->rel = d->differs ? INFINITY : 0.0;
	d->cos = (double)NAN;
}

void row_compare(enum dtype ta, const void *a, enum dtype tb, const void *b, uint64_t cols, struct row_diff *d)
{
	struct sums s = { 0, 0, 0, 0 };

	*d = (struct row_diff){ .cos = 1.0 };
	if (ta == tb && memcmp(a, b, cols * dtype_size(ta)) == 0)
		return;
	if (!dtype_is_real(ta) && !dtype_is_real(tb)) {
		compare_whole(ta, a, tb, b, cols, d);
		return;
	}
	for (uint64_t i = 0; i < cols; i++)
		take_value(d, &s, value_at(ta, a, i), value_at(tb, b, i), i);
	finish(d, &s);
}

/* ---- rows of a point ---- */

static bool row_allowed(const struct diff *d, const struct diff_point *p, const struct row_diff *r)
{
	if (p->whole || isinf(r->abs))
		return false;
	return (d->o.tol >= 0.0 && r->rel <= d->o.tol) || (d->o.atol >= 0.0 && r->abs <= d->o.atol);
}

static void note_row(const struct diff *d, struct diff_point *p, const struct cap_rows *a, uint64_t position,
	const struct row_diff *r)
{
	if (!r->differs)
		return;
	if (!p->differing || r->rel > p->worst.rel || (r->rel == p->worst.rel && r->abs > p->worst.abs)) {
		p->worst = *r;
		p->stream = a->stream;
		p->position = position;
	}
	p->differing++;
	p->over += !row_allowed(d, p, r);
	p->abs = fmax(p->abs, r->abs);
	p->rel = fmax(p->rel, r->rel);
	if (isnan(r->cos) || r->cos < p->cos) /* once one row has none, there is no least of all */
		p->cos = r->cos;
}

enum { ROWS, IDS, KINDS };

struct buffers {
	void *p[KINDS][2];
	size_t cap[KINDS][2];
	struct chosen chosen;
};

/* Rows of both sides from a position on, into the buffers of a kind. */
static int read_both(const struct diff *d, const struct cap_rows *const r[2], uint64_t position, uint64_t n,
	struct buffers *b, int kind, struct ds_err *err)
{
	for (int s = 0; s < 2; s++) {
		size_t bytes = (size_t)n * (size_t)r[s]->cols * dtype_size(r[s]->type);
		void *p = b->p[kind][s];
		int rc;

		if (bytes > b->cap[kind][s]) {
			p = mem_realloc(p, bytes, 1);
			if (!p)
				return err_nomem(err, bytes, "rows");
			b->p[kind][s] = p;
			b->cap[kind][s] = bytes;
		}
		rc = capture_read(&d->c[s], r[s], position - r[s]->first, n, p, err);
		if (rc)
			return rc;
	}
	return 0;
}

static void row_at(const struct cap_rows *const r[2], const struct buffers *b, int kind, uint64_t i,
	struct typed_row row[2])
{
	for (int s = 0; s < 2; s++)
		row[s] = (struct typed_row){ r[s]->type,
			(const char *)b->p[kind][s] + i * r[s]->cols * dtype_size(r[s]->type) };
}

/* n rows that have been read; ids: theirs, of experts, NULL where the rows are compared as they are. */
static int compare_piece(struct diff *d, struct diff_point *p, const struct cap_rows *const r[2],
	const struct cap_rows *const *ids, uint64_t position, uint64_t n, struct buffers *b, struct ds_err *err)
{
	struct typed_row row[2], id[2];
	struct row_diff one;
	int rc = 0;

	for (uint64_t i = 0; !rc && i < n; i++) {
		row_at(r, b, ROWS, i, row);
		if (ids) {
			row_at(ids, b, IDS, i, id);
			rc = chosen_weights(&b->chosen, row, id, r[0]->cols, &one, err);
		} else if (p->chosen) {
			rc = chosen_ids(&b->chosen, row, r[0]->cols, &one, err);
		} else {
			row_compare(row[0].type, row[0].p, row[1].type, row[1].p, r[0]->cols, &one);
		}
		if (!rc)
			note_row(d, p, r[0], position + i, &one);
	}
	return rc;
}

/* n rows from position `first` on, which both have. */
static int compare_run(struct diff *d, struct diff_point *p, const struct cap_rows *const r[2], uint64_t first,
	uint64_t n, struct buffers *b, struct ds_err *err)
{
	size_t row[2], most;
	int rc = 0;

	p->rows += n;
	if (r[SIDE_A]->cols != r[SIDE_B]->cols) {
		p->other_shape += n;
		p->differing += n;
		p->over += n;
		return 0;
	}
	p->whole = p->chosen || (!dtype_is_real(r[SIDE_A]->type) && !dtype_is_real(r[SIDE_B]->type));
	for (int s = 0; s < 2; s++)
		row[s] = (size_t)r[s]->cols * dtype_size(r[s]->type);
	most = PIECE / (row[0] > row[1] ? row[0] : row[1]);
	most = most ? most : 1;
	for (uint64_t done = 0, take; !rc && done < n; done += take) {
		const struct cap_rows *ids[2];
		bool paired;

		take = n - done < most ? n - done : most;
		paired = p->ids && !p->whole && chosen_find(d, p, r, first + done, &take, ids);
		rc = read_both(d, r, first + done, take, b, ROWS, err);
		if (!rc && paired)
			rc = read_both(d, ids, first + done, take, b, IDS, err);
		if (!rc)
			rc = compare_piece(d, p, r, paired ? ids : NULL, first + done, take, b, err);
	}
	return rc;
}

/* Where a side stands: a list of rows and those of it that are done. */
struct side { size_t i; uint64_t done; };

static const struct cap_rows *rows_of(const struct diff *d, int side, const struct side *at)
{
	const struct capture *c = &d->c[side];

	return at->i < c->row_count ? &c->rows[at->i] : NULL;
}

static void advance(const struct diff *d, int side, struct side *at, uint64_t n)
{
	at->done += n;
	if (at->done == d->c[side].rows[at->i].count)
		*at = (struct side){ at->i + 1, 0 };
}

static int compare_place(const struct diff *d, const struct cap_rows *a, const struct cap_rows *b)
{
	size_t ka, kb;

	if (!a || !b)
		return a ? -1 : 1;
	ka = d->rank[SIDE_A][a->key];
	kb = d->rank[SIDE_B][b->key];
	if (ka != kb)
		return ka < kb ? -1 : 1;
	if (a->turn != b->turn)
		return a->turn < b->turn ? -1 : 1;
	return 0;
}

/* One step of the walk over both sides in order. */
static int step(struct diff *d, struct side at[2], struct buffers *b, struct ds_err *err)
{
	const struct cap_rows *const r[2] = { rows_of(d, SIDE_A, &at[0]), rows_of(d, SIDE_B, &at[1]) };
	int order = compare_place(d, r[0], r[1]), alone = order <= 0 ? SIDE_A : SIDE_B, rc;
	uint64_t left[2], first[2], n;

	for (int s = 0; s < 2; s++) {
		left[s] = r[s] ? r[s]->count - at[s].done : 0;
		first[s] = r[s] ? r[s]->first + at[s].done : 0;
	}
	if (!order && first[0] == first[1]) {
		n = left[0] < left[1] ? left[0] : left[1];
		rc = compare_run(d, &d->points[d->rank[SIDE_A][r[0]->key]], r, first[0], n, b, err);
		advance(d, SIDE_A, &at[0], n);
		advance(d, SIDE_B, &at[1], n);
		return rc;
	}
	n = left[alone];
	if (!order) {
		alone = first[0] < first[1] ? SIDE_A : SIDE_B;
		n = first[!alone] - first[alone] < left[alone] ? first[!alone] - first[alone] : left[alone];
	}
	d->points[d->rank[alone][r[alone]->key]].only[alone] += n;
	advance(d, alone, &at[alone], n);
	return 0;
}

int diff_rows(struct diff *d, struct ds_err *err)
{
	struct side at[2] = { { 0, 0 }, { 0, 0 } };
	struct buffers b = { 0 };
	int rc = 0;

	while (!rc && (rows_of(d, SIDE_A, &at[0]) || rows_of(d, SIDE_B, &at[1])))
		rc = step(d, at, &b, err);
	for (int kind = 0; kind < KINDS; kind++)
		for (int s = 0; s < 2; s++)
			free(b.p[kind][s]);
	chosen_free(&b.chosen);
	return rc;
}
