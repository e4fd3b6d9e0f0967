#include "serve/dump.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "frame/point.h"
#include "serve/beside.h"

struct dump {
	struct beside to;
	struct point_rows *segs;     /* [seg_cap] */
	size_t seg_cap, layers;      /* the MTP layer among them, if it runs */
	bool kv_alone;               /* of which only what its KV comes from is computed */
	bool *wanted;                /* [layers, POINT_KINDS]; points of no layer in row 0 */
};

/* ---- which points ---- */

static size_t kind_count(void)
{
	size_t n = 0;

	while (point_kinds[n].name)
		n++;
	return n;
}

static bool has_moe(const struct model *m, size_t layer)
{
	size_t main = m->config.layers;

	return layer < main ? m->layers[layer].moe : m->mtp[layer - main].layer.moe;
}

/* What a layer of the model that runs shows. */
static bool has_point(const struct dump *d, const struct model *m, size_t layer, size_t kind)
{
	const char *name = point_kinds[kind].name;

	if (layer >= m->config.layers && d->kv_alone && strcmp(name, "q") != 0 && strcmp(name, "kv") != 0)
		return false;
	return !point_kinds[kind].moe || has_moe(m, layer);
}

/* Calls fn for every point of what runs of the model. */
static void each_point(const struct dump *d, const struct model *m,
	void (*fn)(void *ctx, const struct point *p, size_t kind), void *ctx)
{
	for (size_t k = 0; point_kinds[k].name; k++)
		for (size_t l = 0; l < (point_kinds[k].layered ? d->layers : 1); l++) {
			struct point p = { .layered = point_kinds[k].layered, .layer = l };

			snprintf(p.name, sizeof p.name, "%s", point_kinds[k].name);
			if (!point_kinds[k].layered || has_point(d, m, l, k))
				fn(ctx, &p, k);
		}
}

struct choice { struct dump *d; const char *patterns; size_t kinds, matched; };

static void choose(void *ctx, const struct point *p, size_t kind)
{
	struct choice *c = ctx;
	bool *wanted = &c->d->wanted[p->layer * c->kinds + kind];

	if (point_matches(c->patterns, p)) {
		*wanted = true;
		c->matched++;
	}
}

static void list_range(struct buf *b, const struct dump *d, const struct model *m, bool moe)
{
	size_t layers = d->kv_alone ? m->config.layers : d->layers, first = 0, last = layers;

	while (moe && first < layers && !has_moe(m, first))
		first++;
	if (first == layers)
		return;
	buf_printf(b, "; layer.N.P, N from %zu to %zu, P one of", first, last - 1);
	for (size_t k = 0; point_kinds[k].name; k++)
		if (point_kinds[k].layered && point_kinds[k].moe == moe)
			buf_printf(b, " %s", point_kinds[k].name);
	if (moe)
		buf_str(b, " (router: all three)");
	else if (d->kv_alone)
		buf_printf(b, "; layer.%zu.q, layer.%zu.kv", layers, layers);
}

static int no_match(const struct dump *d, const struct model *m, const char *pattern, size_t n, struct ds_err *err)
{
	struct buf b = { 0 };
	int rc;

	for (size_t k = 0; point_kinds[k].name; k++)
		if (!point_kinds[k].layered)
			buf_printf(&b, " %s", point_kinds[k].name);
	list_range(&b, d, m, false);
	list_range(&b, d, m, true);
	rc = err_set(err, DS_USAGE, "--dump: '%.*s' matches no point; the points are%s", (int)(n < 100 ? n : 100),
		pattern, b.p ? b.p : "");
	buf_free(&b);
	return rc;
}

static int choose_points(struct dump *d, const char *patterns, const struct model *m, struct ds_err *err)
{
	struct choice c = { .d = d, .kinds = kind_count() };
	const char *text;
	size_t n;

	d->wanted = mem_calloc(d->layers * c.kinds, sizeof *d->wanted);
	if (!d->wanted)
		return err_nomem(err, d->layers * c.kinds, "points");
	for (size_t i = 0; pattern_at(patterns, i, &text, &n); i++) {
		char *one = strndup(text, n);

		if (!one)
			return err_nomem(err, n, "a pattern");
		c.patterns = one;
		c.matched = 0;
		each_point(d, m, choose, &c);
		free(one);
		if (!c.matched)
			return no_match(d, m, text, n, err);
	}
	return 0;
}

static bool wants(const struct dump *d, const struct tap_tensor *t)
{
	size_t kind = 0, kinds = kind_count();

	while (kind < kinds && strcmp(point_kinds[kind].name, t->point) != 0)
		kind++;
	return kind < kinds && t->layer < d->layers && d->wanted[t->layer * kinds + kind];
}

static void dump_free(struct dump *d)
{
	free(d->wanted);
	free(d->segs);
	free(d);
}

int dump_open(struct dump **out, const struct dump_options *o, const struct model *m, const struct hello *hello,
	struct ds_err *err)
{
	struct beside_options to = { .option = "--dump-to", .role = "dump", .to = o->to, .force = o->force,
		.stdout_taken = o->stdout_taken, .patience_ns = o->patience_ns };
	struct dump *d = mem_calloc(1, sizeof *d);
	int rc;

	if (!d)
		return err_nomem(err, sizeof *d, "a dump");
	d->layers = m->config.layers + (o->mtp != DUMP_MTP_NONE);
	d->kv_alone = o->mtp == DUMP_MTP_KV;
	rc = choose_points(d, o->patterns, m, err);
	if (!rc)
		rc = beside_open(&d->to, &to, hello, err);
	if (rc) {
		dump_free(d);
		return rc;
	}
	*out = d;
	return 0;
}

/* ---- what is shown ---- */

/* The rows of the segments that have any; returns how many those are. */
static size_t copy_segs(struct dump *d, const struct tap_tensor *t)
{
	size_t n = 0;

	if (t->seg_count > d->seg_cap) {
		struct point_rows *p = mem_realloc(d->segs, t->seg_count, sizeof *p);

		if (!p) {
			err_nomem(&d->to.error, t->seg_count * sizeof *p, "a dump's rows");
			return 0;
		}
		d->segs = p;
		d->seg_cap = t->seg_count;
	}
	for (size_t i = 0; i < t->seg_count; i++)
		if (t->segs[i].rows)
			d->segs[n++] = (struct point_rows){ .stream = t->segs[i].stream, .first = t->segs[i].first,
				.count = t->segs[i].rows, .id = t->segs[i].name,
				.id_len = t->segs[i].name ? strlen(t->segs[i].name) : 0 };
	return n;
}

void dump_tap(void *ctx, const struct tap_tensor *t)
{
	struct dump *d = ctx;
	struct point p = { .layer = t->layer };
	struct point_data data = { .point = &p, .has_step = true, .step = t->step, .type = t->type, .data = t->data,
		.cols = t->cols };
	size_t kind = 0;

	if (d->to.error.code || !wants(d, t))
		return;
	data.seg_count = copy_segs(d, t);
	while (strcmp(point_kinds[kind].name, t->point) != 0)
		kind++;
	p.layered = point_kinds[kind].layered;
	snprintf(p.name, sizeof p.name, "%s", t->point);
	data.segs = d->segs;
	beside_note(&d->to, point_write(d->to.w, d->to.meta, &data, NULL, &d->to.error));
	beside_flush(&d->to);
}

int dump_error(const struct dump *d, struct ds_err *err)
{
	return beside_error(&d->to, err);
}

int dump_close(struct dump *d, struct ds_err *err)
{
	int rc = beside_close(&d->to, err);

	dump_free(d);
	return rc;
}
