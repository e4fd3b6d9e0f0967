/* ds-frame stat: how much of what a capture holds, and how its requests went. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/map.h"
#include "frame/input.h"
#include "frame/messages.h"
#include "frame/stat_load.h"
#include "frame/tools.h"

struct by_type { uint64_t frames, bytes, tensors, tensor_bytes; };

struct by_point { const struct point *point; uint64_t frames, rows, bytes; };

struct by_request {
	uint64_t stream, prompt, tokens;
	bool has_prompt;
	uint64_t arrival, first, last; /* ns; 0: not said */
	char id[REQUEST_ID_MAX + 1], end[24];
};

struct stat_table {
	struct by_type types[FRAME_TYPE_COUNT];
	struct point_set names;
	struct by_point *points;       /* of each name */
	struct by_request *requests;
	size_t point_cap, request_count, request_cap;
	struct map streams;            /* stream -> request */
	struct stat_load load;
	uint64_t bytes;
};

/* ---- counting ---- */

static int request_of(struct stat_table *t, uint64_t stream, struct by_request **out, struct ds_err *err)
{
	bool fresh;
	size_t *at = map_at(&t->streams, stream, &fresh);
	struct by_request *more;

	if (!at)
		return err_nomem(err, t->streams.n, "streams");
	if (fresh) {
		more = mem_more(t->requests, &t->request_cap, t->request_count, sizeof *more);
		if (!more)
			return err_nomem(err, t->request_count * sizeof *more, "requests");
		t->requests = more;
		*at = t->request_count++;
		t->requests[*at] = (struct by_request){ .stream = stream };
	}
	*out = &t->requests[*at];
	return 0;
}

/* As prefilled and done frames say it; the request itself knows better. */
static void prompt_from_usage(struct by_request *r, const struct frame *f)
{
	struct meta usage;

	if (!r->has_prompt && meta_map(f->meta, "usage", &usage) == META_OK)
		r->has_prompt = meta_uint(usage, "prompt", &r->prompt) == META_OK;
}

static void count_request(struct by_request *r, const struct frame *f)
{
	struct frame_tensor tokens;
	struct ds_err ignored;
	uint64_t t;

	switch (f->type) {
	case FRAME_REQUEST:
		meta_cstr(f->meta, "id", r->id, sizeof r->id);
		meta_uint(f->meta, "arrival_ns", &r->arrival);
		if (frame_tensor_get(f, "tokens", &tokens, &ignored) == 0)
			r->prompt = tokens.nbytes / dtype_size(tokens.type);
		r->has_prompt |= r->prompt > 0;
		break;
	case FRAME_PREFILLED:
		prompt_from_usage(r, f);
		break;
	case FRAME_TOKEN:
		r->tokens++;
		if (meta_uint(f->meta, "t_ns", &t) != META_OK)
			break;
		if (!r->first)
			r->first = t;
		r->last = t;
		break;
	case FRAME_DONE:
		prompt_from_usage(r, f);
		meta_cstr(f->meta, "id", r->id, sizeof r->id);
		if (meta_cstr(f->meta, "finish_reason", r->end, sizeof r->end) != META_OK)
			snprintf(r->end, sizeof r->end, "done");
		break;
	case FRAME_ERROR:
		meta_cstr(f->meta, "id", r->id, sizeof r->id);
		snprintf(r->end, sizeof r->end, "error");
		if (meta_uint(f->meta, "code", &t) == META_OK && t < 256)
			snprintf(r->end, sizeof r->end, "error %d", (int)t);
		break;
	default:
		break;
	}
}

/* By point, its layers together. */
static int count_point(struct stat_table *t, const struct frame *f, struct ds_err *err)
{
	struct point_frame p;
	struct by_point *b;
	size_t i, known = t->names.n;
	int rc = point_frame_get(f, &p, err);

	p.point.layer = 0;
	if (!rc)
		rc = point_set_add(&t->names, &p.point, &i, err);
	if (rc)
		return rc;
	if (t->names.n > known) {
		b = mem_more(t->points, &t->point_cap, known, sizeof *b);
		if (!b)
			return err_nomem(err, known * sizeof *b, "points");
		t->points = b;
		b[i] = (struct by_point){ .frames = 0 };
	}
	b = &t->points[i];
	b->frames++;
	b->rows += p.rows;
	b->bytes += p.t.nbytes;
	return 0;
}

static int stat_frame(struct frame *f, void *ctx, struct ds_err *err)
{
	struct stat_table *t = ctx;
	struct by_type *b = &t->types[f->type];
	struct by_request *r = NULL;
	struct frame_tensor tensor;
	int rc = 0;

	b->frames++;
	b->bytes += f->data_len;
	for (size_t i = 0; !rc && i < frame_tensor_count(f); i++) {
		rc = frame_tensor_at(f, i, &tensor, err);
		b->tensors++;
		b->tensor_bytes += tensor.nbytes;
	}
	if (!rc && point_frame_is(f))
		return count_point(t, f, err);
	if (!rc && f->type == FRAME_LOAD)
		return stat_load_add(&t->load, f, err);
	if (rc || !f->stream || f->type == FRAME_TENSOR)
		return rc;
	rc = request_of(t, f->stream, &r, err);
	if (!rc)
		count_request(r, f);
	return rc;
}

/* ---- figures ---- */

static double first_ms(const struct by_request *r)
{
	return r->arrival && r->first >= r->arrival ? (double)(r->first - r->arrival) / 1e6 : (double)NAN;
}

static double token_ms(const struct by_request *r)
{
	return r->tokens > 1 && r->last >= r->first && r->first ?
		(double)(r->last - r->first) / 1e6 / (double)(r->tokens - 1) : (double)NAN;
}

static int compare_points(const void *a, const void *b)
{
	return point_compare(((const struct by_point *)a)->point, ((const struct by_point *)b)->point);
}

static void sort_points(struct stat_table *t)
{
	for (size_t i = 0; i < t->names.n; i++)
		t->points[i].point = &t->names.v[i];
	if (t->names.n)
		qsort(t->points, t->names.n, sizeof *t->points, compare_points);
}

static void point_label(const struct by_point *p, char label[POINT_NAME_MAX + 32])
{
	snprintf(label, POINT_NAME_MAX + 32, "%s%s", p->point->layered ? "layer.*." : "", p->point->name);
}

/* ---- as text ---- */

static void add_ms(struct buf *b, double ms)
{
	if (isnan(ms))
		buf_printf(b, " %10s", "-");
	else
		buf_printf(b, " %10.2f", ms);
}

static void print_requests(const struct stat_table *t, struct buf *b)
{
	if (!t->request_count)
		return;
	buf_printf(b, "\n%-24s %-16s %8s %8s %10s %10s  %s\n", "request", "stream", "prompt", "tokens", "first ms",
		"ms/token", "end");
	for (size_t i = 0; i < t->request_count; i++) {
		const struct by_request *r = &t->requests[i];
		char id[REQUEST_ID_MAX + 1];

		memcpy(id, r->id, sizeof id);
		err_one_line(id);
		buf_printf(b, "%-24s %016llx", *id ? id : "-", (unsigned long long)r->stream);
		if (r->has_prompt)
			buf_printf(b, " %8llu", (unsigned long long)r->prompt);
		else
			buf_printf(b, " %8s", "-");
		buf_printf(b, " %8llu", (unsigned long long)r->tokens);
		add_ms(b, first_ms(r));
		add_ms(b, token_ms(r));
		buf_printf(b, "  %s\n", *r->end ? r->end : "-");
	}
}

static void print_text(const struct stat_table *t, struct buf *b)
{
	buf_printf(b, "%-24s %10s %14s %10s %14s\n", "type", "frames", "bytes", "tensors", "their bytes");
	for (unsigned i = 1; i < FRAME_TYPE_COUNT; i++)
		if (t->types[i].frames)
			buf_printf(b, "%-24s %10llu %14llu %10llu %14llu\n", frame_type_name(i),
				(unsigned long long)t->types[i].frames, (unsigned long long)t->types[i].bytes,
				(unsigned long long)t->types[i].tensors,
				(unsigned long long)t->types[i].tensor_bytes);
	if (t->names.n)
		buf_printf(b, "\n%-24s %10s %14s %10s\n", "point", "frames", "bytes", "rows");
	for (size_t i = 0; i < t->names.n; i++) {
		const struct by_point *p = &t->points[i];
		char label[POINT_NAME_MAX + 32];

		point_label(p, label);
		err_one_line(label);
		buf_printf(b, "%-24s %10llu %14llu %10llu\n", label, (unsigned long long)p->frames,
			(unsigned long long)p->bytes, (unsigned long long)p->rows);
	}
	print_requests(t, b);
	stat_load_text(&t->load, b);
}

/* ---- as JSON ---- */

static void put_text_or_null(struct jw *w, const char *key, const char *s)
{
	jw_key(w, key);
	if (*s)
		jw_str(w, s);
	else
		jw_null(w);
}

static void put_request(struct jw *w, const struct by_request *r)
{
	jw_obj(w);
	put_text_or_null(w, "id", r->id);
	jw_put_hex(w, "stream", r->stream);
	jw_key(w, "prompt");
	if (r->has_prompt)
		jw_uint(w, r->prompt);
	else
		jw_null(w);
	jw_put_uint(w, "tokens", r->tokens);
	jw_put_real(w, "first_ms", first_ms(r));
	jw_put_real(w, "ms_per_token", token_ms(r));
	put_text_or_null(w, "end", r->end);
	jw_obj_end(w);
}

static void print_json(const struct stat_table *t, struct buf *b)
{
	struct jw w;

	jw_init(&w, b);
	jw_obj(&w);
	jw_put_uint(&w, "bytes", t->bytes);
	jw_key(&w, "types");
	jw_obj(&w);
	for (unsigned i = 1; i < FRAME_TYPE_COUNT; i++) {
		if (!t->types[i].frames)
			continue;
		jw_key(&w, frame_type_name(i));
		jw_obj(&w);
		jw_put_uint(&w, "frames", t->types[i].frames);
		jw_put_uint(&w, "bytes", t->types[i].bytes);
		jw_put_uint(&w, "tensors", t->types[i].tensors);
		jw_put_uint(&w, "tensor_bytes", t->types[i].tensor_bytes);
		jw_obj_end(&w);
	}
	jw_obj_end(&w);
	jw_key(&w, "points");
	jw_arr(&w);
	for (size_t i = 0; i < t->names.n; i++) {
		char label[POINT_NAME_MAX + 32];

		point_label(&t->points[i], label);
		jw_obj(&w);
		jw_put_str(&w, "point", label);
		jw_put_uint(&w, "frames", t->points[i].frames);
		jw_put_uint(&w, "rows", t->points[i].rows);
		jw_put_uint(&w, "bytes", t->points[i].bytes);
		jw_obj_end(&w);
	}
	jw_arr_end(&w);
	jw_key(&w, "requests");
	jw_arr(&w);
	for (size_t i = 0; i < t->request_count; i++)
		put_request(&w, &t->requests[i]);
	jw_arr_end(&w);
	stat_load_json(&t->load, &w);
	jw_obj_end(&w);
	buf_str(b, "\n");
}

int tool_stat(const struct tool_options *o, const char *path, struct ds_err *err)
{
	struct stat_table t = { 0 };
	struct buf b = { 0 };
	struct input in;
	int rc = input_open(&in, path, o->force, err);

	if (rc)
		return rc;
	rc = input_frames(&in, o->max_frame, true, stat_frame, &t, &t.bytes, err);
	input_close(&in);
	if (!rc) {
		sort_points(&t);
		(o->json ? print_json : print_text)(&t, &b);
		if (b.nomem)
			rc = err_nomem(err, b.len, "a table");
		else if (fwrite(b.p, 1, b.len, stdout) != b.len)
			rc = err_errno(err, DS_IO, "cannot write to '<stdout>'");
	}
	buf_free(&b);
	map_free(&t.streams);
	point_set_free(&t.names);
	stat_load_free(&t.load);
	free(t.points);
	free(t.requests);
	return rc;
}
