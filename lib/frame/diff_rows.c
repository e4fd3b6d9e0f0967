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

void row_compare(enum dtype ta, const void *a, enum dtype tb, const void *b, uint64_t cols, struct row_diff *d)
{
	struct sums s = { 0, 0, 0, 0 };

	*d = (struct row_diff){ .cos = 1.0 };
	if (ta == tb && memcmp(a, b, cols * dtype_size(ta)) == 0)
		return;
	if (dtype_is_real(ta) || dtype_is_real(tb)) {
		for (uint64_t i = 0; i < cols; i++)
			take_value(d, &s, value_at(ta, a, i), value_at(tb, b, i), i);
	} else {
		for (uint64_t i = 0; i < cols; i++) {
			int64_t x = int_at(ta, a, i), y = int_at(tb, b, i);

			if (x != y && !d->differs)
				*d = (struct row_diff){ .differs = true, .col = i, .a = (double)x, .b = (double)y };
		}
		d->abs = d->rel = d->differs ? INFINITY : 0.0; /* ids have no distance */
		d->cos = (double)NAN;
		return;
	}
	if (!d->differs)
		return;
	if (isinf(d->abs)) {
		d->rel = INFINITY;
		d->cos = (double)NAN;
		return;
	}
	d->rel = s.diff == 0.0 ? 0.0 : s.a == 0.0 ? INFINITY : sqrt(s.diff) / sqrt(s.a);
	d->cos = s.a == 0.0 && s.b == 0.0 ? 1.0 : s.a == 0.0 || s.b == 0.0 ? 0.0 : s.dot / (sqrt(s.a) * sqrt(s.b));
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
	if (!(r->cos >= p->cos))
		p->cos = r->cos;
}

struct buffers { void *p[2]; size_t cap[2]; };

static int need(struct buffers *b, int side, size_t n, struct ds_err *err)
{
	void *p;

	if (n <= b->cap[side])
		return 0;
	p = mem_realloc(b->p[side], n, 1);
	if (!p)
		return err_nomem(err, n, "rows");
	b->p[side] = p;
	b->cap[side] = n;
	return 0;
}

/* n rows from position `first` on, which both have. */
static int compare_run(struct diff *d, struct diff_point *p, const struct cap_rows *r[2], uint64_t first, uint64_t n,
	struct buffers *b, struct ds_err *err)
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
	p->whole = !dtype_is_real(r[SIDE_A]->type) && !dtype_is_real(r[SIDE_B]->type);
	for (int s = 0; s < 2; s++)
		row[s] = (size_t)r[s]->cols * dtype_size(r[s]->type);
	most = PIECE / (row[0] > row[1] ? row[0] : row[1]);
	most = most ? most : 1;
	for (uint64_t done = 0, take; !rc && done < n; done += take) {
		take = n - done < most ? n - done : most;
		for (int s = 0; !rc && s < 2; s++) {
			rc = need(b, s, (size_t)take * row[s], err);
			if (!rc)
				rc = capture_read(&d->c[s], r[s], first + done - r[s]->first, take, b->p[s], err);
		}
		for (uint64_t i = 0; !rc && i < take; i++) {
			struct row_diff one;

			row_compare(r[0]->type, (char *)b->p[0] + i * row[0], r[1]->type,
				(char *)b->p[1] + i * row[1], r[0]->cols, &one);
			note_row(d, p, r[0], first + done + i, &one);
		}
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
	const struct cap_rows *r[2] = { rows_of(d, SIDE_A, &at[0]), rows_of(d, SIDE_B, &at[1]) };
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
	struct buffers b = { { NULL, NULL }, { 0, 0 } };
	int rc = 0;

	while (!rc && (rows_of(d, SIDE_A, &at[0]) || rows_of(d, SIDE_B, &at[1])))
		rc = step(d, at, &b, err);
	free(b.p[0]);
	free(b.p[1]);
	return rc;
}
