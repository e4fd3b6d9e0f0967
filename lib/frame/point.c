#include "frame/point.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/mem.h"
#include "base/opt.h"
#include "frame/messages.h"

/* ---- names ---- */

const struct point_kind point_kinds[] = {
	{ "embed", false, false },
	{ "q", true, false },
	{ "kv", true, false },
	{ "attn_core", true, false },
	{ "attn_out", true, false },
	{ "attn", true, false },
	{ "router.logits", true, true },
	{ "router.ids", true, true },
	{ "router.weights", true, true },
	{ "mlp_out", true, false },
	{ "out", true, false },
	{ "final", false, false },
	{ "logits", false, false },
	{ NULL, false, false },
};

enum { KIND_COUNT = ARRAY_LEN(point_kinds) - 1 };

void point_format(const struct point *p, char dst[POINT_NAME_MAX + 32])
{
	if (p->layered)
		snprintf(dst, POINT_NAME_MAX + 32, "layer.%llu.%s", (unsigned long long)p->layer, p->name);
	else
		snprintf(dst, POINT_NAME_MAX + 32, "%s", p->name);
}

bool point_parse(const char *text, size_t n, struct point *p)
{
	size_t at = 6, digits;

	memset(p, 0, sizeof *p);
	if (n > at && memcmp(text, "layer.", at) == 0) {
		while (at < n && text[at] >= '0' && text[at] <= '9' && p->layer <= UINT32_MAX)
			p->layer = p->layer * 10 + (uint64_t)(text[at++] - '0');
		digits = at - 6;
		if (p->layer > UINT32_MAX)
			return false;
		if (digits && (digits == 1 || text[6] != '0') && n > at + 1 && text[at] == '.') {
			p->layered = true;
			text += at + 1;
			n -= at + 1;
		} else {
			p->layer = 0;
		}
	}
	if (!n || n > POINT_NAME_BYTES || memchr(text, 0, n))
		return false;
	memcpy(p->name, text, n);
	return true;
}

static size_t kind_of(const struct point *p)
{
	size_t i = 0;

	while (i < KIND_COUNT && (point_kinds[i].layered != p->layered || strcmp(point_kinds[i].name, p->name) != 0))
		i++;
	return i;
}

/* 0: before the layers, 1: of a layer, 2: after them; unknown points of no layer are last. */
static int part_of(const struct point *p)
{
	return p->layered ? 1 : strcmp(p->name, "embed") == 0 ? 0 : kind_of(p) < KIND_COUNT ? 2 : 3;
}

int point_compare(const struct point *a, const struct point *b)
{
	int pa = part_of(a), pb = part_of(b);
	size_t ka = kind_of(a), kb = kind_of(b);

	if (pa != pb)
		return pa < pb ? -1 : 1;
	if (a->layer != b->layer)
		return a->layer < b->layer ? -1 : 1;
	if (ka != kb)
		return ka < kb ? -1 : 1;
	return strcmp(a->name, b->name);
}

int point_set_add(struct point_set *s, const struct point *p, size_t *i, struct ds_err *err)
{
	uint64_t hash = XXH3_64bits_withSeed(p->name, strlen(p->name), p->layered ? p->layer + 1 : 0);
	struct point *v;

	for (;; hash++) {
		bool fresh;
		size_t *at = map_at(&s->map, hash, &fresh);

		if (!at)
			return err_nomem(err, s->n, "points");
		if (fresh) {
			v = mem_more(s->v, &s->cap, s->n, sizeof *v);
			if (!v)
				return err_nomem(err, s->n * sizeof *v, "points");
			s->v = v;
			v[s->n] = *p;
			*i = *at = s->n++;
			return 0;
		}
		*i = *at;
		v = &s->v[*at];
		if (*at < s->n && strcmp(v->name, p->name) == 0 && v->layered == p->layered && v->layer == p->layer)
			return 0;
	}
}

void point_set_free(struct point_set *s)
{
	free(s->v);
	map_free(&s->map);
	memset(s, 0, sizeof *s);
}

bool pattern_at(const char *patterns, size_t i, const char **text, size_t *n)
{
	for (;; i--) {
		*text = patterns;
		*n = strcspn(patterns, ",");
		if (!i)
			return true;
		if (!patterns[*n])
			return false;
		patterns += *n + 1;
	}
}

static bool matches_one(const char *text, size_t n, const struct point *p)
{
	char pattern[POINT_NAME_MAX + 32], name[POINT_NAME_MAX + 32], *dot;

	if (n >= sizeof pattern)
		return false;
	memcpy(pattern, text, n);
	pattern[n] = 0;
	point_format(p, name);
	if (fnmatch(pattern, name, 0) == 0)
		return true;
	if (!p->layered || strncmp(p->name, "router.", 7) != 0)
		return false;
	dot = strrchr(name, '.');
	*dot = 0;
	return fnmatch(pattern, name, 0) == 0;
}

bool point_matches(const char *patterns, const struct point *p)
{
	const char *text;
	size_t n;

	for (size_t i = 0; pattern_at(patterns, i, &text, &n); i++)
		if (matches_one(text, n, p))
			return true;
	return false;
}

/* ---- reading frames ---- */

static int bad(const struct frame *f, const char *why, struct ds_err *err)
{
	return err_set(err, DS_DATA, "frame %llu (tensor): %s", (unsigned long long)f->number, why);
}

bool point_frame_is(const struct frame *f)
{
	const char *s;
	size_t n;

	return f->type == FRAME_TENSOR && meta_str(f->meta, "point", &s, &n) != META_ABSENT;
}

static const char *read_point(const struct frame *f, struct point_frame *p)
{
	enum meta_result layer = meta_uint(f->meta, "layer", &p->point.layer);
	enum meta_result step = meta_uint(f->meta, "step", &p->step);
	struct point named;

	if (meta_cstr(f->meta, "point", p->point.name, POINT_NAME_BYTES + 1) != META_OK ||
		!p->point.name[0])
		return "'point' is no text of 1 to 100 bytes";
	if (layer == META_TYPE || p->point.layer > UINT32_MAX)
		return "'layer' is no whole number below 2^32";
	if (step == META_TYPE)
		return "'step' is no whole number";
	if (layer != META_OK && point_parse(p->point.name, strlen(p->point.name), &named) && named.layered)
		return "'point' names a layer, which is to be in 'layer'";
	p->point.layered = layer == META_OK;
	p->has_step = step == META_OK;
	return NULL;
}

static bool read_seg(struct meta rows, size_t i, struct point_rows *r)
{
	struct meta seg;
	size_t n;

	*r = (struct point_rows){ .id = NULL };
	return meta_at_array(rows, i, &seg, &n) == META_OK && n >= 3 && meta_at_uint(seg, 0, &r->stream) == META_OK &&
		meta_at_uint(seg, 1, &r->first) == META_OK && meta_at_uint(seg, 2, &r->count) == META_OK &&
		meta_at_str(seg, 3, &r->id, &r->id_len) != META_TYPE;
}

/* A name that is not the stream's would lead to another request than the rows are of. */
static bool good_name(const struct point_rows *r)
{
	return !r->id || (r->id_len && r->id_len <= REQUEST_ID_MAX && !memchr(r->id, 0, r->id_len) &&
		r->stream - frame_stream_id(r->id, r->id_len) < REQUEST_MAX_N);
}

static const char *read_rows(const struct frame *f, struct point_frame *p)
{
	const uint64_t most = (uint64_t)1 << 62;
	struct meta rows;
	uint64_t sum = 0;

	if (meta_array(f->meta, "rows", &rows, &p->segs) != META_OK || !p->segs)
		return "'rows' is no array of at least one segment";
	for (size_t i = 0; i < p->segs; i++) {
		struct point_rows r;

		if (!read_seg(rows, i, &r))
			return "a segment of 'rows' is not [stream, first, count, name]";
		if (!good_name(&r))
			return "a segment's name is not that of its stream";
		if (!r.count || r.count > most || r.first > most || sum > most)
			return "a segment of 'rows' is empty or out of range";
		sum += r.count;
	}
	return sum == p->rows ? NULL : "its segments do not add up to the tensor's rows";
}

int point_frame_get(const struct frame *f, struct point_frame *p, struct ds_err *err)
{
	char name[POINT_NAME_MAX + 32];
	const char *why;
	int rc;

	memset(p, 0, sizeof *p);
	why = read_point(f, p);
	if (why)
		return bad(f, why, err);
	if (frame_tensor_count(f) != 1)
		return bad(f, "it has not one tensor", err);
	rc = frame_tensor_at(f, 0, &p->t, err);
	if (rc)
		return rc;
	if (p->t.ndim != 2 || !p->t.shape[1])
		return bad(f, "its tensor is not [rows, columns]", err);
	point_format(&p->point, name);
	if (strcmp(p->t.name, name) != 0)
		return bad(f, "its tensor is not called as its point", err);
	p->rows = p->t.shape[0];
	p->cols = p->t.shape[1];
	why = read_rows(f, p);
	return why ? bad(f, why, err) : 0;
}

struct point_rows point_rows_at(const struct frame *f, size_t i)
{
	struct point_rows r = { .id = NULL };
	struct meta rows;
	size_t n;

	if (meta_array(f->meta, "rows", &rows, &n) == META_OK)
		read_seg(rows, i, &r);
	return r;
}

/* ---- writing frames ---- */

static void put_point(struct meta_builder *b, const struct point_data *d)
{
	meta_put_cstr(b, "point", d->point->name);
	if (d->point->layered)
		meta_put_uint(b, "layer", d->point->layer);
	if (d->has_step)
		meta_put_uint(b, "step", d->step);
}

/* Where the next frame begins: a segment and its rows that are written already. */
struct place { size_t seg; uint64_t done; };

/* Puts segments of at most `most` rows, moves on, and returns how many rows; *stream: theirs, 0 where they are of
 * several. */
static uint64_t put_rows(struct meta_builder *b, const struct point_data *d, struct place *at, uint64_t most,
	uint64_t *stream)
{
	uint64_t put = 0;
	size_t segs = 0;

	*stream = d->segs[at->seg].stream;
	meta_put_array(b, "rows");
	while (put < most && at->seg < d->seg_count && segs++ < POINT_FRAME_SEGS) {
		const struct point_rows *s = &d->segs[at->seg];
		uint64_t n = s->count - at->done;

		n = n < most - put ? n : most - put;
		meta_put_array(b, NULL);
		meta_put_uint(b, NULL, s->stream);
		meta_put_uint(b, NULL, s->first + at->done);
		meta_put_uint(b, NULL, n);
		if (s->id)
			meta_put_str(b, NULL, s->id, s->id_len);
		meta_put_end(b);
		if (s->stream != *stream)
			*stream = 0;
		put += n;
		at->done += n;
		if (at->done == s->count)
			*at = (struct place){ at->seg + 1, 0 };
	}
	meta_put_end(b);
	return put;
}

int point_write(struct frame_writer *w, struct meta_builder *b, const struct point_data *d, const struct meta *more,
	struct ds_err *err)
{
	static const char *const ours[] = { "point", "layer", "step", "rows", "tensors", "xxh", "_", NULL };
	size_t row = d->cols * dtype_size(d->type);
	uint64_t bytes = d->max_frame && d->max_frame < POINT_FRAME_BYTES ? d->max_frame / 64 * 64 : POINT_FRAME_BYTES;
	uint64_t most = bytes / (row ? row : 1), stream;
	const uint8_t *p = d->data;
	struct place at = { 0, 0 };
	char name[POINT_NAME_MAX + 32];
	int rc = 0;

	point_format(d->point, name);
	while (!rc && at.seg < d->seg_count) {
		uint64_t shape[2] = { 0, d->cols };
		struct iovec iov;

		meta_reset(b);
		put_point(b, d);
		shape[0] = put_rows(b, d, &at, most ? most : 1, &stream);
		if (more)
			meta_put_rest(b, *more, ours);
		meta_put_tensor(b, name, d->type, "token,dim", shape, 2, 0, NULL);
		iov = (struct iovec){ (void *)(uintptr_t)p, (size_t)shape[0] * row };
		rc = frame_write(w, FRAME_TENSOR, 0, stream, b, &iov, 1, true, err);
		p += iov.iov_len;
	}
	return rc;
}
