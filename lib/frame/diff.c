/* ds-frame diff: two captures, whatever they are of. */
#include "frame/diff.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static int compare_named(const void *a, const void *b)
{
	return point_compare(&((const struct diff_point *)a)->point, &((const struct diff_point *)b)->point);
}

static size_t find_point(const struct diff *d, const struct point *p)
{
	struct diff_point key = { .point = *p };
	const struct diff_point *at = bsearch(&key, d->points, d->point_count, sizeof key, compare_named);

	return (size_t)(at - d->points);
}

/* The points of both captures in order, and where each capture's keys are among them. */
static int unite_points(struct diff *d, struct ds_err *err)
{
	size_t n = d->c[0].keys.n + d->c[1].keys.n, kept = 0;

	d->points = mem_calloc(n + 1, sizeof *d->points);
	if (!d->points)
		return err_nomem(err, n * sizeof *d->points, "points");
	for (int s = 0; s < 2; s++)
		for (size_t i = 0; i < d->c[s].keys.n; i++) {
			d->points[d->point_count].cos = 1.0;
			d->points[d->point_count++].point = d->c[s].keys.v[i];
		}
	qsort(d->points, n, sizeof *d->points, compare_named);
	for (size_t i = 0; i < n; i++)
		if (!kept || compare_named(&d->points[kept - 1], &d->points[i]) != 0)
			d->points[kept++] = d->points[i];
	d->point_count = kept;
	chosen_points(d);
	for (int s = 0; s < 2; s++) {
		d->rank[s] = mem_array(d->c[s].keys.n + 1, sizeof *d->rank[s]);
		if (!d->rank[s])
			return err_nomem(err, d->c[s].keys.n * sizeof *d->rank[s], "points");
		for (size_t i = 0; i < d->c[s].keys.n; i++)
			d->rank[s][i] = find_point(d, &d->c[s].keys.v[i]);
	}
	return 0;
}

/* The second capture's streams take the turns that they have in the first; those that it lacks come after. */
static int unite_streams(struct diff *d, struct ds_err *err)
{
	struct capture *a = &d->c[SIDE_A], *b = &d->c[SIDE_B];
	size_t *turn = mem_array(b->stream_count + 1, sizeof *turn), next = a->stream_count;

	if (!turn)
		return err_nomem(err, b->stream_count * sizeof *turn, "streams");
	for (size_t i = 0; i < b->stream_count; i++) {
		const size_t *at = map_find(&a->turns, b->streams[i]);

		turn[i] = at ? *at : next++;
	}
	capture_turns(b, turn);
	free(turn);
	return 0;
}

static int compare(struct diff *d, struct ds_err *err)
{
	int rc = unite_points(d, err);

	if (!rc)
		rc = unite_streams(d, err);

	for (int s = 0; !rc && s < 2; s++)
		rc = capture_settle(&d->c[s], d->rank[s], err);
	if (!rc)
		rc = diff_rows(d, err);
	if (!rc)
		rc = diff_tokens(d, err);
	return rc ? rc : diff_frames(d, err);
}

int tool_diff(const struct tool_options *o, const struct diff_options *how, const char *a, const char *b,
	struct ds_err *err)
{
	struct diff d = { .o = *how, .c = { { .fd = -1, .spool = -1 }, { .fd = -1, .spool = -1 } } };
	int rc;

	if (strcmp(a, "-") == 0 && strcmp(b, "-") == 0)
		return err_set(err, DS_USAGE, "diff: only one of the two can be '-'");
	rc = capture_open(&d.c[SIDE_A], a, o->max_frame, o->force, err);
	if (!rc)
		rc = capture_open(&d.c[SIDE_B], b, o->max_frame, o->force, err);
	if (!rc)
		rc = compare(&d, err);
	if (!rc)
		rc = diff_print(&d, o->json, err);
	if (!rc && !diff_same(&d)) {
		err->text[0] = 0;
		rc = DS_NO;
	}
	for (int s = 0; s < 2; s++) {
		capture_close(&d.c[s]);
		free(d.rank[s]);
	}
	free(d.points);
	free(d.requests);
	free(d.frames);
	return rc;
}
