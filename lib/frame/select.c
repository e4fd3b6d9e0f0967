#include "frame/select.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "frame/messages.h"

/* ---- ranges ---- */

static bool parse_number(const char **p, const char *end, uint64_t *v)
{
	const char *s = *p;

	*v = 0;
	while (s < end && *s >= '0' && *s <= '9')
		if (__builtin_mul_overflow(*v, 10u, v) || __builtin_add_overflow(*v, (uint64_t)(*s++ - '0'), v))
			return false;
	*p = s;
	return true;
}

static bool parse_range(const char *p, const char *end, uint64_t *first, uint64_t *last)
{
	const char *start = p;
	bool dots;

	if (p == end || !parse_number(&p, end, first))
		return false;
	dots = end - p >= 2 && p[0] == '.' && p[1] == '.';
	if (!dots) {
		*last = *first;
		return p == end;
	}
	p += 2;
	if (p == end) {
		*last = UINT64_MAX;
		return end - start > 2; /* not ".." alone */
	}
	return parse_number(&p, end, last) && p == end && *last >= *first;
}

int ranges_parse(struct ranges *r, const char *option, const char *text, struct ds_err *err)
{
	const char *part;
	size_t n;

	r->n = 0;
	for (size_t i = 0; text && pattern_at(text, i, &part, &n); i++) {
		if (r->n == RANGES_MAX || !parse_range(part, part + n, &r->v[r->n].first, &r->v[r->n].last))
			return err_set(err, DS_USAGE,
				"--%s: '%s' is not a number or a range such as 3, 0..7, 12.. or a list of at most %d",
				option, text, RANGES_MAX);
		r->n++;
	}
	return 0;
}

bool ranges_have(const struct ranges *r, uint64_t x)
{
	return ranges_meet(r, x, 1);
}

bool ranges_meet(const struct ranges *r, uint64_t first, uint64_t count)
{
	uint64_t last = first + (count - 1);

	for (size_t i = 0; i < r->n && count; i++)
		if (first <= r->v[i].last && last >= r->v[i].first)
			return true;
	return !r->n;
}

/* ---- selections ---- */

static int parse_types(struct selection *s, const char *text, struct ds_err *err)
{
	const char *part;
	size_t n;

	for (size_t i = 0; text && pattern_at(text, i, &part, &n); i++) {
		unsigned t = 1;

		while (t < FRAME_TYPE_COUNT && (strlen(frame_type_name(t)) != n ||
			memcmp(frame_type_name(t), part, n) != 0))
			t++;
		if (t == FRAME_TYPE_COUNT)
			return err_set(err, DS_USAGE, "--type: '%.*s' is no type of frame; see ds-frame(5)", (int)n,
				part);
		s->types |= (uint32_t)1 << t;
	}
	return 0;
}

static int compare_ids(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static int parse_streams(struct selection *s, const struct selection_text *t, struct ds_err *err)
{
	size_t n = t->requests.n + t->streams.n;

	s->streams = mem_array(t->streams.n + 1, sizeof *s->streams);
	s->requests = mem_array(t->requests.n + 1, sizeof *s->requests);
	if (!s->streams || !s->requests)
		return err_nomem(err, n * sizeof *s->streams, "stream ids");
	for (size_t i = 0; i < t->requests.n; i++)
		s->requests[s->request_count++] = frame_stream_id(t->requests.v[i], strlen(t->requests.v[i]));
	for (size_t i = 0; i < t->streams.n; i++) {
		const char *text = t->streams.v[i];

		if (!*text || strlen(text) > 16 || text[strspn(text, "0123456789abcdefABCDEF")])
			return err_set(err, DS_USAGE, "--stream: '%s' is no stream id, 1 to 16 hexadecimal digits",
				text);
		s->streams[s->stream_count++] = strtoull(text, NULL, 16);
	}
	qsort(s->streams, s->stream_count, sizeof *s->streams, compare_ids);
	qsort(s->requests, s->request_count, sizeof *s->requests, compare_ids);
	return 0;
}

int selection_new(struct selection *s, const struct selection_text *t, struct ds_err *err)
{
	int rc;

	memset(s, 0, sizeof *s);
	s->points = t->points;
	if ((rc = parse_types(s, t->types, err)) || (rc = parse_streams(s, t, err)) ||
		(rc = ranges_parse(&s->frames, "frames", t->frames, err)) ||
		(rc = ranges_parse(&s->layers, "layer", t->layers, err)) ||
		(rc = ranges_parse(&s->steps, "step", t->steps, err)) ||
		(rc = ranges_parse(&s->positions, "position", t->positions, err)) ||
		(rc = ranges_parse(&s->indices, "index", t->indices, err)))
		selection_free(s);
	return rc;
}

void selection_free(struct selection *s)
{
	free(s->streams);
	free(s->requests);
	s->streams = s->requests = NULL;
}

/* One of the streams that a named request's choices have. */
static bool has_choice(const struct selection *s, uint64_t stream)
{
	size_t low = 0, high = s->request_count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (s->requests[middle] <= stream)
			low = middle + 1;
		else
			high = middle;
	}
	/* Behind 2^64 - 1 comes 0. */
	return s->request_count && stream - s->requests[(low ? low : s->request_count) - 1] < REQUEST_MAX_N;
}

bool selection_has_stream(const struct selection *s, uint64_t stream)
{
	if (!s->stream_count && !s->request_count)
		return true;
	return has_choice(s, stream) || bsearch(&stream, s->streams, s->stream_count, sizeof stream, compare_ids);
}

/* Any row of a tensor frame by stream and position. */
static bool has_rows(const struct selection *s, const struct frame *f, const struct point_frame *p)
{
	for (size_t i = 0; i < p->segs; i++) {
		struct point_rows r = point_rows_at(f, i);

		if (selection_has_stream(s, r.stream) && ranges_meet(&s->positions, r.first, r.count))
			return true;
	}
	return false;
}

static bool has_positions(const struct selection *s, const struct frame *f)
{
	uint64_t first, count;

	return f->type == FRAME_KV && meta_uint(f->meta, "first", &first) == META_OK &&
		meta_uint(f->meta, "count", &count) == META_OK && ranges_meet(&s->positions, first, count);
}

static bool has_index(const struct selection *s, const struct frame *f)
{
	uint64_t index;

	return f->type == FRAME_TOKEN && meta_uint(f->meta, "index", &index) == META_OK &&
		ranges_have(&s->indices, index);
}

bool selection_has(const struct selection *s, const struct frame *f, const struct point_frame *p)
{
	if (!ranges_have(&s->frames, f->number) || (s->types && !(s->types >> f->type & 1)))
		return false;
	if (s->indices.n && !has_index(s, f))
		return false;
	if (!p)
		return !s->points && !s->layers.n && !s->steps.n && selection_has_stream(s, f->stream) &&
			(!s->positions.n || has_positions(s, f));
	if (s->points && !point_matches(s->points, &p->point))
		return false;
	if (s->layers.n && !(p->point.layered && ranges_have(&s->layers, p->point.layer)))
		return false;
	if (s->steps.n && !(p->has_step && ranges_have(&s->steps, p->step)))
		return false;
	return has_rows(s, f, p);
}
